"""A loader: batches of a dataset in one global order, from any place on.

Made by `Dataset.loader` from inputs (source, selection, columns) and options. It plans epochs, divides the memory and
opens streams, each over a `Scheduler`; passes and states are in `batches`. Holds threads only while a stream is alive.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from penstock.engine import host
from penstock.engine.base_loader import BaseLoader
from penstock.engine.build import Builder, Room
from penstock.engine.delivery import Place
from penstock.engine.engine_stream import EngineStream, Record
from penstock.engine.gather import BlockPool
from penstock.engine.inputs import choose_order, count_needs, describe
from penstock.engine.randomness import Watch
from penstock.engine.residency import Residency
from penstock.engine.row_arena import Shelf, make_records
from penstock.engine.scheduler import Limits, Scheduler
from penstock.engine.stages import MASK, FilterRows, make_stages, output_columns
from penstock.errors import BudgetError, PenstockWarning, PlanError, users_level
from penstock.options import READ_COST, SPAN_BYTES
from penstock.plan import Cursor, Order, Share, State, check, check_owner, check_predicate, plan_epoch, steps_left
from penstock.source import may_hold_nulls

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from penstock.engine.delivery import Stream
    from penstock.engine.inputs import Inputs, Needs
    from penstock.engine.locate import Skipped
    from penstock.engine.output_columns import OutputColumn
    from penstock.engine.process import Payload
    from penstock.engine.report import Report
    from penstock.engine.stages import Batch, Fold, LateFilter, Stage
    from penstock.options import LoaderOptions
    from penstock.plan import EpochPlan
    from penstock.plan.grouping import Grouping
    from penstock.plan.plan import Plan

_AHEAD_BYTES = 256 << 20
"""Chunks may be read this far ahead of need, or a few for each worker where chunks are larger."""
_SPAN_BATCHES = 64
_ADVISE_CHUNKS = 200_000
"""Beyond this many row groups advice costs seconds, and comes only with `print(loader.plan)`."""
_TOLERANCE = 1.25
_RETAIN_SHARE = 0.6
"""Line orders keep chunks for the next epoch when all of them take at most this part of the budget."""


@dataclass(frozen=True, slots=True)
class Make:
    """How batches are made where they are not simply `batch_size` rows: for readers of rows, chunks and windows."""

    batch_items: int
    """Most items that are made at once."""
    aligned: bool = False
    """Whether they end with their chunk, in line orders."""
    late: LateFilter | None = None
    """Leaves rows out on delivery."""
    unseen: frozenset[str] = frozenset()
    """Columns that are read for `late` only."""
    rowwise: Stage | None = None
    """Changes rows, also their number, before they become windows."""
    fold: Fold | None = None
    """How windows become a batch; None: they are left to the consumer."""
    most_waiting: int = 1 << 30
    """Most results that wait for the consumer, where memory allows more."""

    def batch_rows(self, items: Grouping, *, is_line: bool) -> int:
        """Return the most rows of a batch."""
        return items.most_rows(self.batch_items, neighbours=is_line and self.aligned)


class Loader(BaseLoader):
    """Iterable of batches (dict of column -> array); see `Dataset.loader` for the options.

    One pass is `epochs` epochs.
    """

    def __init__(self, inputs: Inputs, options: LoaderOptions, make: Make | None = None) -> None:
        self._inputs = inputs
        self._options = options
        self._make = make = make or Make(options.batch_size)
        rank, world = host.rank_and_world(options.rank, options.world)
        self._share = Share(rank, world, options.batch_size, options.remainder, options.drop_last)
        self._total_rows = int(inputs.counts.sum())
        self._workers = options.workers or host.default_workers()
        self._memory_bytes = options.memory_bytes or host.default_memory()
        self.stages = make_stages(
            inputs.columns,
            options,
            total=self._total_rows,
            filter_rows=None if make.late is None else FilterRows(make.late, make.unseen),
            rowwise=make.rowwise,
            fold=make.fold,
        )
        """What happens to a batch after it is gathered, in order."""
        self._payload: Payload | None = None
        if options.pool == "process":
            from penstock.engine.process import payload_of  # here: multiprocessing is a tenth of the time of our import

            self._payload = payload_of(self.stages)
        watch = Watch() if options.pool != "process" and self._calls_user else None
        self._record = Record(options.skip_limit, watch)
        self._planned: EpochPlan | None = None
        order = choose_order(inputs, options)
        super().__init__(Place.at(order, Cursor.start(0, order, self._total_rows), options.epochs))
        if self._options.remainder == "pad" and any(column.name == MASK for column in self._inputs.columns):
            raise PlanError(
                f"remainder='pad' adds a column {MASK!r}, which the dataset has already; select other columns, or use "
                "another remainder"
            )
        if self._options.epochs is None and not self._share.steps(self._total_rows, self._share.rank):
            raise PlanError(
                f"epochs=None would wait for ever: {self._total_rows:,} rows give rank {self.rank} of {self.world} "
                f"no batch of {self._options.batch_size}; use a smaller batch_size or world, or drop_last=False"
            )
        self._check_budget(self._progress.place)
        # One rank that reads in order reads every chunk once: there is nothing to say.
        plain = self.order.is_line and self.world == 1
        if not plain and self._total_rows and len(inputs.counts) <= _ADVISE_CHUNKS and (advice := self.plan.warnings):
            warnings.warn("; also: ".join(advice), PenstockWarning, stacklevel=users_level())

    def share_host(self, num_processes: int) -> None:
        """Use one of `num_processes` equal parts of the default threads and memory, but at least what is needed.

        For worker processes that each run this loader on one host; explicit `workers` and `memory_bytes` stay. Takes
        effect with the next stream.
        """
        if self._options.workers is None:
            self._workers = max(1, host.default_workers() // num_processes)
        if self._options.memory_bytes is None:  # the window is the same for any number of processes
            least = self._check_budget(self._progress.place).least
            self._memory_bytes = max(host.default_memory() // num_processes, least)

    # -- streams --------------------------------------------------------------------------------------------------

    def stream(self, *, start: Any = None, every: tuple[int, int] = (0, 1)) -> Stream[Batch]:
        """Return the deliveries of what is left of a pass; see `BaseLoader.stream`."""
        if self._options.rank is None and self._options.world is None:
            host.check_still(self.rank, self.world)
        return super().stream(start=start, every=every)

    def _open(self, place: Place, every: tuple[int, int], number: int) -> EngineStream:
        length = self.count(place)
        if length is not None:
            length = max(0, -(-(length - every[0]) // every[1]))
        scheduler, end = self._schedule(place, every), self.pass_after(place)
        return EngineStream(scheduler, (self._progress, number), self._record, end, length)

    # -- places and states ----------------------------------------------------------------------------------------

    def state_of(self, place: Place) -> dict[str, Any]:
        """Return a place as small JSON."""
        source = self._inputs.source
        return State(
            place.order, place.cursor, source.facts.fingerprint, self._inputs.rows, self._predicate(), source.content()
        ).to_json()

    def _predicate(self) -> str | None:
        return None if self._make.late is None else self._make.late.digest

    def place_of(self, state: Mapping[str, Any]) -> Place:
        """Return the place of a state; StateMismatch or BudgetError if this loader cannot go on from it."""
        loaded = State.from_json(state)
        inputs = self._inputs
        content = None if loaded.content is None else inputs.source.content()
        check(
            loaded, dataset=inputs.source.facts.fingerprint, content=content, rows=inputs.rows, seed=self._options.seed,
            kind=self._progress.place.order.kind,
        )  # fmt: skip
        check_predicate(loaded, self._predicate())
        check_owner(loaded, self._share)
        loaded.cursor.check(loaded.order, self._total_rows)
        place = Place.at(loaded.order, loaded.cursor, self._options.epochs)
        self._check_budget(place)
        return place

    def place_at(self, pass_number: int) -> Place:
        """Return the place at the beginning of a pass, counted from 0."""
        return self._start_of(pass_number, self._progress.place.order)

    def _start_of(self, pass_number: int, order: Order) -> Place:
        cursor = Cursor.start(pass_number * (self._options.epochs or 1), order, self._total_rows)
        return Place.at(order, cursor, self._options.epochs)

    def pass_after(self, place: Place) -> Place:
        """Return the beginning of the pass after the one that a place lies in."""
        return self._start_of(self.pass_of(place) + 1, place.order)

    def next_pass_after(self, place: Place) -> Place:
        """Return the beginning of the next pass; the place itself if it is the beginning of one."""
        begun = self._start_of(self.pass_of(place), place.order)
        return begun if replace(place.cursor, owner=None) == begun.cursor else self.pass_after(place)

    def place_after(self, place: Place, batches: int) -> Place | None:
        """Return the place so many batches further; None where the pass has no batch there."""
        plan, steps = self._plan(place), batches
        while steps >= plan.num_steps:
            steps -= plan.num_steps
            epochs = self._options.epochs
            if epochs is not None and (plan.cursor.epoch + 1) % epochs == 0:
                return None
            plan = self._plan(Place.at(place.order, plan.next_epoch(), epochs))
        return Place(plan, steps, self._options.epochs)

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

    def count_units(self, place: Place) -> int | None:
        """Return the rows (or windows) from a place to the end of its pass, as planned; None: it has no end.

        Also where items are whole chunks. Functions and late filters may change the number. Microseconds a chunk.
        """
        if self._options.epochs is None:
            return None
        items = self._inputs.items
        return sum(items.count_units(plan.rows(0, plan.num_items)[0]) for plan in self._plans(self._plan(place)))

    # -- what it says about itself ----------------------------------------------------------------------------------

    def stats(self) -> dict[str, float]:
        """Return counters: rows, batches, bytes and chunks read, seconds the consumer waited, seconds of each stage."""
        self._progress.settle()
        return self._record.stats.as_dict()

    def report(self) -> Report:
        """Return where the time of the last steps went, which stage was the bottleneck and what would help; print it.

        Its `prometheus()` gives the counters as text. See docs/stalls.md.
        """
        from penstock.engine.report import make_report

        self._progress.settle()
        options, record = self._options, self._record
        return make_report(
            record.stats,
            rank=self.rank,
            world=self.world,
            workers=1 if options.pool == "serial" else self._workers,
            pool=options.pool,
            has_transform=self._calls_user,
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
        return list(self._record.skipped.values())

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Names of the columns of every batch, in order; None where a function of the user decides."""
        names = output_columns(self.stages)
        return None if names is None else tuple(names)

    def output_columns(self) -> tuple[OutputColumn, ...]:
        """Return what each column of a batch is made of; with a `transform=` function, as that one gets it.

        Reads the footers of files where they have to say whether a nullable column holds nulls.
        """
        from penstock.engine.output_columns import describe_columns

        return describe_columns(self._inputs, self.stages)

    def may_be_null(self, names: Iterable[str]) -> frozenset[str]:
        """Return those of the stored columns among `names` that may hold nulls, by their fields and footers."""
        stored = {column.name for column in self._inputs.columns}
        return may_hold_nulls(self._inputs.source, [name for name in names if name in stored])

    def probe(self, most_rows: int | None = None) -> Batch | None:
        """Return the first batch in stored order that has rows, made in this thread; None where there is none.

        For finding out what a function of the user makes; reads a row group or two. Skips nothing: what is damaged is
        an error.
        """
        options = self._options
        size = options.batch_size if most_rows is None else min(most_rows, options.batch_size)
        plain = replace(
            options, batch_size=size, shuffle=False, lanes=None, epochs=1, rank=0, world=1, drop_last=False,
            remainder=options.remainder if options.remainder == "pad" else "drop", pool="serial", on_error="raise",
            skip_limit=None,
        )  # fmt: skip
        with Loader(self._inputs, plain, replace(self._make, batch_items=min(size, self._make.batch_items))) as first:
            return next((batch for batch in first if not batch or len(next(iter(batch.values())))), None)

    @property
    def plan(self) -> Plan:
        """What this loader does from here to the end of the epoch; print it. Costs microseconds a row group."""
        place = self.place()
        return describe(self._inputs, place.order, place.cursor, self._share, self._options)

    @property
    def pads(self) -> bool:
        """Whether batches have a column `_valid` that tells rows from padding."""
        return self._options.remainder == "pad"

    @property
    def unequal_cause(self) -> str | None:
        """The option by which ranks may get batches of unequal sizes at one step; None: they do not."""
        if self._make.late is not None:
            return "where(..., exact=False)"
        if self._options.remainder == "uneven":
            return "remainder='uneven'"
        return "on_error='skip'" if self._options.on_error == "skip" else None

    @property
    def full_batches(self) -> int | None:
        """Rows of every batch, where all batches are sure to have the same number; else None."""
        options = self._options
        equal = options.drop_last and options.on_error == "raise" and self._make.late is None
        return options.batch_size if equal else None

    def inside(self) -> tuple[Loader, ...]:
        """Return the loaders that read: this one."""
        return (self,)

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
        order: Order = self._progress.place.order
        return order

    def __repr__(self) -> str:
        left = self.batches_left
        length = "endless" if left is None else f"{left} batches left"
        size, share = self._options.batch_size, f"{self.rank}/{self.world}"
        return f"Loader({self.order.name!r}, batch_size={size}, rank={share}, {length})"

    # -- plans ----------------------------------------------------------------------------------------------------

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

    # -- memory ---------------------------------------------------------------------------------------------------

    def _check_budget(self, place: Place) -> Needs:
        inputs, plan = self._inputs, self._plan(place)
        window_bytes = inputs.items.visits(plan.visits).most_rows(inputs.held_chunk_bytes)
        needs = count_needs(
            inputs, window_bytes, self._make.batch_rows(inputs.items, is_line=plan.order.is_line), self._options.pool
        )
        if needs.least > self._memory_bytes and self._total_rows:
            largest = int(np.where(inputs.selected > 0, inputs.chunk_bytes, -1).argmax())
            noun = inputs.source.facts.part_noun
            raise BudgetError(
                f"memory_bytes={self._memory_bytes:,} is too little: the shuffle buffer of {needs.window_bytes:,} "
                f"bytes, one read of {needs.read_bytes:,} and two batches of {needs.batch_bytes:,} need at least "
                f"{needs.least:,} "
                f"(the largest {noun}: {inputs.source.locate(largest)}, {int(inputs.chunk_bytes[largest]):,} bytes in "
                f"memory); raise memory_bytes, or lower shuffle_bytes or batch_size, or write smaller {noun}s",
                least=needs.least,
            )
        return needs

    def _schedule(self, place: Place, every: tuple[int, int]) -> Scheduler:
        """Return what carries out the rest of a pass, or every n-th batch of it; its threads start with `next`."""
        inputs, options, needs = self._inputs, self._options, self._check_budget(place)
        first = self._plan(place)
        is_line = first.order.is_line
        workers = 0 if options.pool == "serial" else self._workers
        free = self._memory_bytes - needs.window_bytes - needs.read_bytes
        span_batches = min(self._span_batches(needs.batch_bytes, every), max(1, free // 2 // max(1, needs.batch_bytes)))
        span_bytes = span_batches * needs.batch_bytes
        ahead = max(1, min(workers + 2, self._make.most_waiting, free // 2 // max(1, span_bytes)))
        budget = self._memory_bytes - (ahead + 1) * span_bytes
        pool = BlockPool(keep=max(ahead, workers) + 3)
        shelf = self._make_shelf(budget, pool, needs) if is_line else None
        residency = self._make_residency(
            budget if shelf is None else int(budget * (1 - _RETAIN_SHARE)), shelf, shuffled=not is_line
        )
        # What one read can have beside window and batches, and a little more: estimates scatter.
        chunk_room = _TOLERANCE * (self._memory_bytes - needs.window_bytes - 2 * needs.batch_bytes)
        room = Room(all_bytes=free, copies=3 if options.pool == "process" else 1)  # decoded, packed, unpacked
        if options.memory_bytes is None:
            room.cell_bytes = max(free, host.default_memory())
        else:  # only then a batch that needs more is an error; two of them fit at least
            room.cell_bytes, room.batch_bytes = free, free // 2
        builder = Builder(
            source=inputs.source, selection=inputs.selection, columns=inputs.columns, stages=self.stages, pool=pool,
            stats=self._record.stats, seed=options.seed, skip=options.on_error == "skip", arena=residency.arena,
            shelf=shelf, limit_bytes=int(chunk_room / READ_COST / inputs.slack), room=room, watch=self._record.watch,
        )  # fmt: skip
        last = None
        if options.epochs is not None:
            last = first.cursor.epoch // options.epochs * options.epochs + options.epochs - 1
        limits = Limits(
            workers=workers,
            span_batches=span_batches,
            ahead_spans=ahead,
            num_chunks=len(inputs.selected),
            views=is_line and options.remainder != "pad",
            last_epoch=last,
            # Processes seed their global random states for every batch, by its position.
            positions=any(stage.wants for stage in self.stages) or (options.pool == "process" and self._calls_user),
            items=inputs.items,
            batch_items=self._make.batch_items,
            batch_size=options.batch_size,
            aligned=self._make.aligned and is_line,
            every=every,
        )
        processes: list[Any] = []
        if options.pool == "process":
            from penstock.engine.process import ProcessStages, start_method

            processes = [ProcessStages(cast("Payload", self._payload), start_method()) for _ in range(workers)]
        return Scheduler(self._plans(first), residency, builder, limits, processes)

    def _span_batches(self, batch_bytes: int, every: tuple[int, int]) -> int:
        """Return how many batches are gathered together: one where making it takes long, for workers to share."""
        slow = self._options.pool == "process" or self._make.aligned or any(stage.is_slow for stage in self.stages)
        slow = slow or not self._inputs.items.one_row or every[1] > 1
        if slow or not all(column.light for column in self._inputs.columns):
            return 1
        return max(1, min(_SPAN_BATCHES, SPAN_BYTES // max(1, batch_bytes)))

    def _make_shelf(self, budget: int, pool: BlockPool, needs: Needs) -> Shelf | None:
        """Return where a line order keeps chunks for the next epoch, if there is one and all chunks will fit."""
        inputs = self._inputs
        room, rest = int(budget * _RETAIN_SHARE), int(budget * (1 - _RETAIN_SHARE))
        all_bytes = int(inputs.held_chunk_bytes.sum())
        if self._options.epochs == 1 or all_bytes > room:
            return None
        return None if needs.window_bytes + needs.read_bytes > rest else Shelf(room, inputs.slack, pool)

    def _make_residency(self, budget: int, shelf: Shelf | None, *, shuffled: bool) -> Residency:
        inputs = self._inputs
        chunk_bytes = inputs.held_chunk_bytes
        whole_bytes = np.ceil(inputs.chunk_bytes * inputs.slack).astype(np.int64)
        ahead = max(_AHEAD_BYTES, int((2 * self._workers + 2) * whole_bytes.max(initial=0)))
        arena = make_records(inputs.columns, inputs.selected, budget) if shuffled else None
        reads = (READ_COST - 1) * whole_bytes
        return Residency(
            budget_bytes=budget, ahead_bytes=ahead, chunk_bytes=chunk_bytes, read_bytes=reads, share=shuffled,
            slack=inputs.slack, arena=arena, shelf=shelf,
        )  # fmt: skip

    @property
    def _calls_user(self) -> bool:
        return any(stage.calls_user for stage in self.stages)
