"""A loader: batches of a dataset in one global order, from any place on.

Made by `Dataset.loader` from inputs (source, selection, columns) and options. It plans epochs and opens streams, each
over a `Scheduler` that its `Setup` makes. Holds threads only while a stream is alive.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from penstock.engine.delivery import Place, Stream
from penstock.engine.engine_stream import EngineStream
from penstock.engine.inputs import Inputs, choose_order
from penstock.engine.loader_facts import LoaderFacts
from penstock.engine.rank import check_still, rank_and_world
from penstock.engine.setup import Setup
from penstock.engine.stages import MASK, Batch, Stage
from penstock.errors import PenstockWarning, PlanError, users_level
from penstock.plan.epoch import EpochPlan, plan_epoch
from penstock.plan.order import Cursor, Order, Share, steps_left

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.options import LoaderOptions

_ADVISE_CHUNKS = 200_000
"""Beyond this many row groups advice costs seconds, and comes only with `print(loader.plan)`."""


class Loader(LoaderFacts):
    """Iterable of batches (dict of column -> array); see `Dataset.loader` for the options.

    One pass is `epochs` epochs.
    """

    def __init__(self, inputs: Inputs, options: LoaderOptions) -> None:
        self._inputs = inputs
        self._options = options
        rank, world = options.rank, options.world
        if rank is None or world is None:
            rank, world = rank_and_world(rank, world)
        self._share = Share(rank, world, options.batch_size, options.remainder, options.drop_last)
        self._total_rows = int(inputs.counts.sum())
        self._setup = Setup.of(inputs, options)
        self._planned: EpochPlan | None = None
        order = choose_order(inputs, options)
        start = Place.at(order, Cursor.start(0, order, self._total_rows), options.epochs)
        super().__init__(start)
        if options.remainder == "pad" and any(column.name == MASK for column in inputs.columns):
            raise PlanError(
                f"remainder='pad' adds a column {MASK!r}, which the dataset has already; select other columns, or use "
                "another remainder"
            )
        if options.epochs is None and not self._share.steps(self._total_rows, rank):
            raise PlanError(
                f"epochs=None would wait forever: {self._total_rows:,} rows give rank {rank} of {world} no batch of "
                f"{options.batch_size}; use a smaller batch_size or world, or drop_last=False"
            )
        self._setup.check_budget(self._plan(start))
        # One rank that reads in order reads every chunk once: there is nothing to say.
        plain = order.is_line and world == 1
        if not plain and self._total_rows and len(inputs.counts) <= _ADVISE_CHUNKS and (advice := self.plan.warnings):
            warnings.warn("; also: ".join(advice), PenstockWarning, stacklevel=users_level())

    def inside(self) -> tuple[Loader, ...]:
        """Return the loaders that read: this one."""
        return (self,)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """What happens to a batch after it is gathered, in order."""
        return self._setup.stages

    def stream(self, *, start: Any = None, every: tuple[int, int] = (0, 1)) -> Stream[Batch]:
        """Return the deliveries of what is left of a pass; see `StreamedPasses.stream`."""
        if self._options.rank is None and self._options.world is None:
            check_still(self.rank, self.world)
        return super().stream(start=start, every=every)

    def _open(self, place: Place, every: tuple[int, int], number: int) -> EngineStream:
        length, first = self.count(place), self._plan(place)
        if length is not None:
            length = max(0, -(-(length - every[0]) // every[1]))
        scheduler = self._setup.make_scheduler(first, self._plans(first), every)
        return EngineStream(scheduler, (self._progress, number), self._setup.record, self.pass_after(place), length)

    def _start_of(self, pass_number: int, order: Order) -> Place:
        cursor = Cursor.start(pass_number * (self._options.epochs or 1), order, self._total_rows)
        return Place.at(order, cursor, self._options.epochs)

    def pass_after(self, place: Place) -> Place:
        """Return the beginning of the pass after the one that a place lies in."""
        return self._start_of(self.pass_of(place) + 1, place.order)

    def pass_of(self, place: Place) -> int:
        """Return the number of the pass that a place lies in."""
        return place.cursor.epoch // (self._options.epochs or 1)

    def count(self, place: Place) -> int | None:
        """Return the batches from a place to the end of its pass; None: it has no end."""
        epochs, plan = self._options.epochs, place.plan
        if epochs is None:
            return None
        if plan is None:
            return steps_left(self._total_rows, cursor=place.cursor, share=self._share, epochs=epochs)
        later = epochs - 1 - plan.cursor.epoch % epochs
        return plan.num_steps - place.steps + later * self._share.steps(self._total_rows, self._share.rank)

    def _plan(self, place: Place) -> EpochPlan:
        """Return the plan of the epoch from a place on; the last one is kept."""
        planned, cursor = self._planned, place.cursor
        if planned is None or (planned.cursor, planned.order) != (cursor, place.order):
            planned = plan_epoch(self._inputs.counts, order=place.order, cursor=cursor, share=self._share)
            self._planned = planned
        return planned

    def _plans(self, first: EpochPlan) -> Iterator[EpochPlan]:
        """Give the plans of what is left of the pass, epoch by epoch."""
        yield first
        plan, length, counts = first, self._options.epochs, self._inputs.counts
        while length is None or (plan.cursor.epoch + 1) % length:
            plan = plan_epoch(counts, order=plan.order, cursor=plan.next_epoch(), share=self._share)
            yield plan
