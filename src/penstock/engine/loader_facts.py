"""What a loader says about itself and about places: counters, columns, plan, states. No batch is made here.

`LoaderFacts` is the base class of `loader.Loader`, which opens streams. States name a place of the global order as
small JSON; place arithmetic (`place_after`, `count_units`) is for processes that share a pass and for readers of rows.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from bisect import bisect_right
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from penstock.engine import host
from penstock.engine.base_loader import BaseLoader
from penstock.engine.delivery import Place, Run
from penstock.engine.inputs import Inputs, Setup, advise_smaller, count_needs
from penstock.engine.stages import Batch, output_columns
from penstock.errors import PenstockError
from penstock.options import LoaderOptions, at_least
from penstock.plan import Cursor, EpochPlan, Order, Plan, Share, State, check, check_owner, check_predicate
from penstock.source import may_hold_nulls

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from penstock.engine.loader import EngineStream
    from penstock.engine.locate import Skipped
    from penstock.engine.output_columns import OutputColumn
    from penstock.engine.report import Report


class LoaderFacts(BaseLoader):
    """The part of a `Loader` that reads nothing."""

    _inputs: Inputs
    _options: LoaderOptions
    _share: Share
    _setup: Setup
    _total_rows: int
    """Items of an epoch."""
    _run: Run

    @abstractmethod
    def _start_of(self, pass_number: int, order: Order) -> Place:
        """Return the beginning of a pass."""

    @abstractmethod
    def _plan(self, place: Place) -> EpochPlan:
        """Return the plan of the epoch from a place on."""

    @abstractmethod
    def _plans(self, first: EpochPlan) -> Iterator[EpochPlan]:
        """Give the plans of what is left of the pass, epoch by epoch."""

    @abstractmethod
    def _inputs_of(self, order: Order) -> Inputs:
        """Return the inputs whose chunks `order` deals out: parts of row groups, or whole ones."""

    @abstractmethod
    def _setup_of(self, order: Order) -> Setup:
        """Return the setup of passes in that order."""

    # -- places and states ----------------------------------------------------------------------------------------

    def check_place(self, place: Any) -> None:
        """Raise TypeError or StateMismatch unless this is a place of such a loader."""
        self._progress.place.check(place)

    def state_of(self, place: Place) -> dict[str, Any]:
        """Return a place as small JSON."""
        self.check_place(place)
        source = self._inputs.source
        return State(
            place.order,
            place.cursor,
            source.facts.fingerprint,
            self._inputs_of(place.order).rows,
            self._filter_digest,
            source.content(),
        ).to_json()

    @property
    def _filter_digest(self) -> str | None:
        found = self._inputs.filter_rows
        return None if found is None else found.filter.digest

    def place_of(self, state: Mapping[str, Any]) -> Place:
        """Return the place of a state; StateMismatch or BudgetError if this loader cannot resume from it."""
        loaded = State.from_json(state)
        inputs, dataset = self._inputs, self._inputs.source.facts.fingerprint
        content = None if loaded.content is None else inputs.source.content()
        kind = self._progress.place.order.kind
        comparable = (loaded.order.kind, loaded.dataset) == (kind, dataset)  # else `check` raises, and says why
        rows = self._inputs_of(loaded.order).rows if comparable else inputs.rows
        check(loaded, dataset=dataset, content=content, rows=rows, seed=self._options.seed, kind=kind)
        check_predicate(loaded, self._filter_digest)
        check_owner(loaded, self._share)
        loaded.cursor.check(loaded.order, self._total_rows)
        place = Place.at(loaded.order, loaded.cursor, self._run)
        self._setup_of(place.order).check_budget(self._plan(place), resumed=True)
        return place

    def place_at(self, pass_number: int) -> Place:
        """Return the place at the beginning of a pass, counted from 0."""
        return self._start_of(at_least("pass_number", pass_number, 0), self._progress.place.order)

    def next_pass_after(self, place: Place) -> Place:
        """Return the beginning of the next pass; the place itself if it is the beginning of one."""
        begun = self._start_of(self.pass_of(place), place.order)
        return begun if replace(place.cursor, owner=None) == begun.cursor else self.pass_after(place)

    def place_after(self, place: Place, batches: int) -> Place | None:
        """Return the place so many batches further; None where the pass has no batch there."""
        self.check_place(place)
        plan, steps = self._plan(place), at_least("batches", batches, 0)
        while steps >= plan.num_steps:
            steps -= plan.num_steps
            epochs = self._options.epochs
            if epochs is not None and (plan.cursor.epoch + 1) % epochs == 0:
                return None
            plan = self._plan(Place.at(place.order, plan.next_epoch(), self._run))
        return Place(plan, steps, self._run)

    def count_units(self, place: Place) -> int | None:
        """Return the rows (or windows) from a place to the end of its pass, as planned; None: it has no end.

        Also where items are whole chunks. Functions and late filters may change the number. Microseconds a chunk.
        """
        if self._options.epochs is None:
            return None
        items = self._inputs_of(place.order).items
        return sum(items.count_units(plan.rows(0, plan.num_items)[0]) for plan in self._plans(self._plan(place)))

    def share_host(self, num_processes: int) -> None:
        """Use one of `num_processes` equal parts of the default threads and memory, but at least what is needed.

        For worker processes that each run this loader on one host; explicit `workers` and `memory_bytes` stay. Takes
        effect with the next stream.
        """
        setup = self._setup
        if self._options.workers is None:
            setup = replace(setup, workers=max(1, host.default_workers() // num_processes))
        if self._options.memory_bytes is None:  # the window is the same for any number of processes
            place = self._progress.place
            least = replace(setup, inputs=self._inputs_of(place.order)).check_budget(self._plan(place)).least
            setup = replace(setup, memory_bytes=max(host.default_memory() // num_processes, least))
        self._setup = setup

    # -- counters, columns, plan ------------------------------------------------------------------------------------

    def stats(self) -> dict[str, float]:
        """Return counters: rows, batches, bytes and chunks read, seconds the consumer waited, seconds of each stage."""
        self._progress.settle()
        return self._setup.record.stats.as_dict()

    def report(self) -> Report:
        """Return where the time of the last steps went, which stage was the bottleneck and what would help; print it.

        Its `prometheus()` gives the counters as text. See docs/stalls.md.
        """
        from penstock.engine.report import make_report

        self._progress.settle()
        options, record = self._options, self._setup.record
        return make_report(
            record.stats,
            rank=self.rank,
            world=self.world,
            workers=1 if options.pool == "serial" else self._setup.workers,
            pool=options.pool,
            has_transform=self._setup.calls_user,
            num_waiting=self.num_waiting(),
            num_skipped=len(record.skipped),
            hands_over_ahead=record.hands_over_ahead,
        )

    def num_building(self) -> int:
        """Return how many batches are being built."""
        stream = cast("EngineStream | None", self._stream())
        return 0 if stream is None else stream.building()

    @property
    def skipped(self) -> list[Skipped]:
        """The rows left out of received batches under on_error="skip", each once, in the order of delivery."""
        self._progress.settle()
        return list(self._setup.record.skipped.values())

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Names of the columns of every batch, in order; None where a function of the user decides."""
        names = output_columns(self._setup.stages)
        return None if names is None else tuple(names)

    def output_columns(self) -> tuple[OutputColumn, ...]:
        """Return what each column of a batch is made of; with a `transform=` function, as that one gets it.

        Reads the footers of files where they have to say whether a nullable column holds nulls.
        """
        from penstock.engine.output_columns import describe_columns

        return describe_columns(self._inputs, self._setup.stages)

    def may_be_null(self, names: Iterable[str]) -> frozenset[str]:
        """Return which of `names` are stored columns that may hold nulls, according to their fields and footers."""
        stored = {column.name for column in self._inputs.columns}
        return may_hold_nulls(self._inputs.source, [name for name in names if name in stored])

    def probe(self, most_rows: int | None = None) -> Batch | None:
        """Return the first batch in stored order that has rows, made in this thread; None where there is none.

        For finding out what a function of the user makes; reads a row group or two. Skips nothing: what is damaged is
        an error.
        """
        from penstock.engine.loader import Loader  # here: it is a subclass of this class

        options = self._options
        size = options.batch_size if most_rows is None else min(most_rows, options.batch_size)
        plain = replace(
            options, batch_size=size, shuffle=False, lanes=None, parts=None, epochs=1, rank=0, world=1,
            remainder=options.remainder if options.remainder == "pad" else "drop", pool="serial", on_error="raise",
            drop_last=False, skip_limit=None,
        )  # fmt: skip
        inputs = replace(self._inputs, batch_items=min(size, self._inputs.most_items(options)))
        with Loader(inputs, plain) as first:
            return next((batch for batch in first if not batch or len(next(iter(batch.values())))), None)

    @property
    def plan(self) -> Plan:
        """What this loader does from here to the end of the epoch; print it. Costs microseconds a row group.

        If row groups are read in parts, the offset indexes of a few of them are read.
        """
        return self._describe(measured=True)

    def _describe(self, *, measured: bool) -> Plan:
        place = self.place()
        inputs = self._inputs_of(place.order)
        return describe(inputs, place.order, place.cursor, self._share, self._options, measured=measured)

    @property
    def pads(self) -> bool:
        """Whether batches have a column `_valid` that tells rows from padding."""
        return self._options.remainder == "pad"

    @property
    def unequal_cause(self) -> str | None:
        """The option by which ranks may get batches of unequal sizes at one step; None: they do not."""
        if self._inputs.filter_rows is not None:
            return "where(..., exact=False)"
        if self._options.remainder == "uneven":
            return "remainder='uneven'"
        return "on_error='skip'" if self._options.on_error == "skip" else None

    @property
    def full_batches(self) -> int | None:
        """Rows of every batch, where all batches are sure to have the same number; else None."""
        options = self._options
        equal = options.drop_last and options.on_error == "raise" and self._inputs.filter_rows is None
        return options.batch_size if equal else None

    @property
    def rank(self) -> int:
        """The rank this loader reads for."""
        return self._share.rank

    @property
    def world(self) -> int:
        """The number of ranks that share the order."""
        return self._share.world

    @property
    def batch_size(self) -> int:
        """Rows, or other items, of a batch on each rank."""
        return self._share.batch_size

    @property
    def epochs(self) -> int | None:
        """Epochs of one pass; None: it has no end."""
        return self._options.epochs

    @property
    def order(self) -> Order:
        """The order in force: kind, seed, lanes and block."""
        return cast("Order", self._progress.place.order)

    def __repr__(self) -> str:
        left = self.batches_left
        length = "endless" if left is None else f"{left} batches left"
        size, share = self._options.batch_size, f"{self.rank}/{self.world}"
        return f"Loader({self.order.name!r}, batch_size={size}, rank={share}, {length})"


def describe(  # noqa: PLR0913 -- all that a run is made of
    inputs: Inputs, order: Order, cursor: Cursor, share: Share, options: LoaderOptions, *, measured: bool
) -> Plan:
    """Return what `share.rank` will do from `cursor` on; with `measured`, `Plan.page_factor` is found out."""
    from penstock.plan.plan import Sizes, make_plan  # here: few runs are described

    sizes = Sizes(
        inputs.row_bytes,
        inputs.held_bytes,
        options.shuffle_bytes,
        inputs.source.facts.part_noun,
        groups=inputs.whole_chunk,
        page_factor=page_factor(inputs) if measured else None,
        smaller=partial(advise_smaller, inputs, order, options),
    )

    def least(plan: EpochPlan) -> int:
        window_bytes = inputs.items.visits(plan.visits).most_rows(inputs.held_chunk_bytes)
        return count_needs(inputs, window_bytes, share.batch_size, options.pool).least

    return make_plan(inputs.counts, order=order, cursor=cursor, share=share, sizes=sizes, least_memory=least)


_SAMPLED_GROUPS = 4
"""Row groups whose pages are looked at for a plan."""


def page_factor(inputs: Inputs) -> float | None:
    """Return the bytes that parts of row groups read over those of the row groups, measured on a few of them.

    Columns that are read whole are counted once: their rows are kept for the other parts. None if chunks are not
    divided, or what was looked at cannot be read, which is an error once it is needed.
    """
    if inputs.whole is None or inputs.whole_chunk is None:
        return None
    names, read, needed = [column.name for column in inputs.columns], 0, 0
    groups, counts = np.unique(inputs.whole_chunk[inputs.selected > 0], return_counts=True)
    divided = groups[counts > 1]
    step = max(1, len(divided) // _SAMPLED_GROUPS)
    try:
        for group in divided[step // 2 :: step][:_SAMPLED_GROUPS].tolist():
            first, last = np.searchsorted(inputs.whole_chunk, (group, group + 1)).tolist()
            columns = sorted(inputs.whole.ranges(group, names))
            by_pages: Counter[int] = Counter()
            for one in (one for part in range(first, last) for one in inputs.source.ranges(part, names)):
                at = bisect_right(columns, (one.path, one.start, math.inf)) - 1
                if at >= 0 and one != columns[at] and one.path == columns[at].path and one.stop <= columns[at].stop:
                    by_pages[at] += one.stop - one.start
            for at, column in enumerate(columns):
                needed += column.stop - column.start
                read += by_pages[at] or column.stop - column.start
    except (PenstockError, OSError):
        return None
    return read / needed if needed else None
