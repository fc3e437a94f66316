"""A loader: iterates batches of a dataset in one global order, says where it is, and goes on from there.

Made by `Dataset.loader` from facts (source, selection, columns) and options; plans epochs and hands them to a `Run`.
Holds threads only while an iterator is alive; `close()`, a `with` block, `break` or the end of the pass end them.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from penstock.engine import host
from penstock.engine.arena import Shelf, make_records
from penstock.engine.build import Builder, Skipped
from penstock.engine.chance import Watch, advice
from penstock.engine.describe import choose_order, describe
from penstock.engine.memory import BlockPool
from penstock.engine.needs import count_needs
from penstock.engine.passes import Pass
from penstock.engine.room import Room
from penstock.engine.run import Limits, Run
from penstock.engine.stages import MASK, FilterRows, ThreadStages, make_stages
from penstock.engine.stats import Stats
from penstock.engine.window import Window
from penstock.errors import BudgetError, DecodeError, LoaderClosed, PenstockWarning, PlanError, users_level
from penstock.options import READ_COST, SPAN_BYTES
from penstock.plan import Cursor, Order, Share, State, check, check_owner, check_predicate, plan_epoch, steps_left

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

    from penstock.engine.build import Built
    from penstock.engine.facts import Facts
    from penstock.engine.needs import Needs
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


class Loader:
    """Iterable of batches (dict of column -> array); see `Dataset.loader` for the options.

    One pass is `epochs` epochs. Iterating again after the end, or after `break`, starts the next pass; after
    `load_state_dict` iteration goes on exactly where the state was taken. One iterator at a time: a new one ends the
    one before it, which raises LoaderClosed if it is asked for more.
    """

    def __init__(self, facts: Facts, options: LoaderOptions, make: Make | None = None) -> None:
        self._facts = facts
        self._options = options
        self._make = make = make or Make(options.batch_size)
        rank, world = host.rank_and_world(options.rank, options.world)
        self._share = Share(rank, world, options.batch_size, options.remainder, options.drop_last)
        self._order = choose_order(facts, options)
        self._total_rows = int(facts.counts.sum())
        self._workers = options.workers or host.default_workers()
        self._memory_bytes = options.memory_bytes or host.default_memory()
        self.stages = make_stages(
            facts.columns,
            options,
            total=self._total_rows,
            filter_rows=None if make.late is None else FilterRows(make.late, make.unseen),
            rowwise=make.rowwise,
            fold=make.fold,
        )
        """What happens to a batch after it is gathered, in order."""
        self._payload = self._make_payload() if options.pool == "process" else None
        self.watch: Watch | None = Watch() if options.pool != "process" and self._calls_user else None
        self._stats = Stats()
        self._hands_over_ahead = False
        """Whether threads of the hand-over take batches ahead of the consumer."""
        self._skipped: dict[tuple[str, int, int], Skipped] = {}
        self._closed = False
        self._stride, self._skip = (0, 1), 0
        self.is_bound = options.memory_bytes is not None
        """Whether the budget was asked for: only then a batch that needs more is an error."""
        self._lock = threading.RLock()
        """Held where the place of the run moves: one thread may save or load a state while another one iterates."""
        self._active: weakref.ref[Pass] | None = None
        """Weak: an iterator that nobody holds any more (after `break`) ends at once, and its threads with it."""
        self._progress: tuple[EpochPlan, int] | None = None
        """Plan and steps of the last batch delivered in the current pass."""
        self._delivered = False
        self._cursor = Cursor.start(0, self._order, self._total_rows)
        self._first: EpochPlan | None = None
        self._check_mask()
        self._check_endless()
        self._needs = self._check_budget()
        self._advise()

    def _advise(self) -> None:
        """Warn, once a run, of what the plan says could be better."""
        if self._order.is_line and self.world == 1:
            return  # one rank reads every chunk once, in order
        if self._total_rows and len(self._facts.counts) <= _ADVISE_CHUNKS:
            advice = self.plan.warnings
            if advice:
                warnings.warn("; also: ".join(advice), PenstockWarning, stacklevel=users_level())

    # -- iteration ------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Batch]:
        self._check_open()
        if self._options.rank is None and self._options.world is None:
            host.check_still(self.rank, self.world)
        self._end_pass()
        if self._delivered and not self._at_pass_start():
            self._cursor = self._start_of(self._next_pass_epoch())
        self._delivered = False
        started = Pass(self)
        self._active = weakref.ref(started)
        return started

    def __len__(self) -> int:
        epochs = self._options.epochs
        if epochs is None:
            raise TypeError("a loader with epochs=None has no length")
        if self._progress is not None:
            plan, steps = self._progress
            later = epochs - 1 - plan.cursor.epoch % epochs
            return plan.num_steps - steps + later * self._share.steps(self._total_rows, self._share.rank)
        return steps_left(self._total_rows, cursor=self._cursor, share=self._share, epochs=epochs)

    def _start_of(self, epoch: int) -> Cursor:
        return Cursor.start(epoch, self._order, self._total_rows)

    def _next_pass_epoch(self) -> int:
        length = self._options.epochs or 1
        return (self._now().epoch // length + 1) * length

    def _at_pass_start(self) -> bool:
        cursor, length = replace(self._now(), owner=None), self._options.epochs or 1
        return cursor.epoch % length == 0 and cursor == self._start_of(cursor.epoch)

    def next_pass(self) -> None:
        """End a running iterator and go to the beginning of the next pass, unless this is the beginning of one."""
        self._end_pass()
        if not self._at_pass_start():
            self._cursor = self._start_of(self._next_pass_epoch())
        self._delivered = False

    # -- state ----------------------------------------------------------------------------------------------------

    def _now(self) -> Cursor:
        """Return what the consumer has received, worked out when somebody asks."""
        with self._lock:
            if self._progress is not None:
                self._cursor = self._after(*self._progress)
            return self._cursor

    def _after(self, plan: EpochPlan, steps: int) -> Cursor:
        """Return the place behind some batches of an epoch; at the beginning of a pass all ranks are together again."""
        cursor, epochs = plan.after(steps), self._options.epochs
        if cursor.epoch == plan.cursor.epoch:
            return cursor
        ended = epochs is not None and cursor.epoch % epochs == 0
        return replace(cursor, owner=None) if ended else plan.next_epoch()

    def state_dict(self) -> dict[str, Any]:
        """Return the place of this run as small JSON: what the consumer has received, not what was prefetched.

        The same on every rank at the same step; under remainder="uneven", where ranks have unequal numbers of batches,
        only in the first epoch of a pass: in later ones it names its rank, which alone can go on from it. Behind the
        last batch of a pass it is the start of the next one; see `pass_number`. Costs microseconds; the first time
        3 to 15 for each column chunk, to digest what the footers say about them.
        """
        return self._state_of(self._now())

    def state_after(self, plan: EpochPlan, steps: int) -> dict[str, Any]:
        """Return the state behind the first `steps` batches of an epoch, for loaders in front that count batches."""
        return self._state_of(self._after(plan, steps))

    def _state_of(self, cursor: Cursor) -> dict[str, Any]:
        facts = self._facts
        content = facts.source.content()
        return State(self._order, cursor, facts.dataset, facts.rows, self._predicate(), content).to_json()

    def _predicate(self) -> str | None:
        return None if self._make.late is None else self._make.late.digest

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state: of any world, batch size, workers, window or columns, of the same dataset, rows and seed.

        Ends a running iterator. Raises StateMismatch saying which part differs, and BudgetError where the lanes and
        block of the state need more memory than this loader has.
        """
        self._check_open()
        loaded = self._check_state(state)
        self._end_pass()
        before = self._order, self._cursor, self._first
        self._order, self._cursor, self._first = loaded.order, loaded.cursor, None
        try:
            self._needs = self._check_budget()
        except BudgetError:
            self._order, self._cursor, self._first = before
            raise
        self._delivered = False

    def _check_state(self, state: Mapping[str, Any]) -> State:
        """Return a state that this loader can go on from."""
        loaded = State.from_json(state)
        facts = self._facts
        content = None if loaded.content is None else facts.source.content()
        check(
            loaded, dataset=facts.dataset, content=content, rows=facts.rows, seed=self._options.seed,
            kind=self._order.kind,
        )  # fmt: skip
        check_predicate(loaded, self._predicate())
        check_owner(loaded, self._share)
        loaded.cursor.check(loaded.order, self._total_rows)
        return loaded

    # -- what it says about itself ----------------------------------------------------------------------------------

    def stats(self) -> dict[str, float]:
        """Return counters: rows, batches, bytes and chunks read, seconds the consumer waited, seconds of each stage."""
        return self._stats.as_dict()

    def report(self) -> Report:
        """Return where the time of the last steps went, which stage was the bottleneck and what would help; print it.

        Its `prometheus()` gives the counters as text. See docs/stalls.md.
        """
        from penstock.engine.report import make_report

        return make_report(self)

    def note_hand_over(self, seconds: float, *, ahead: bool = False) -> None:
        """Count work between the engine and the consumer, for whoever hands batches on to a framework.

        The consumer has waited for it, for the batch that was taken last, unless it was done `ahead` by a thread.
        """
        self._stats.handed_over(seconds)
        if not ahead:
            self._stats.waited_longer(seconds)

    def note_received(self, num_rows: int, wait_s: float) -> None:
        """Count a batch that the consumer has received and waited for, where the pass says `ahead`."""
        self._hands_over_ahead = True
        self._stats.delivered(num_rows, wait_s)

    def num_waiting(self) -> int:
        """Return how many batches are made and wait for the consumer."""
        active = None if self._active is None else self._active()
        return 0 if active is None else active.num_waiting()

    def num_building(self) -> int:
        """Return how many batches are being built."""
        active = None if self._active is None else self._active()
        return 0 if active is None else active.num_building()

    @property
    def skipped(self) -> list[Skipped]:
        """The rows left out so far under on_error="skip", each once, in the order of delivery."""
        return list(self._skipped.values())

    @property
    def plan(self) -> Plan:
        """What this loader does from here to the end of the epoch; print it. Costs microseconds a row group."""
        return describe(self._facts, self._order, self._now(), self._share, self._options)

    @property
    def pass_number(self) -> int:
        """The pass, counted from 0, that the next batch belongs to; with epochs=None the epoch.

        It moves on with the last batch of a pass, as the state does: after 10 passes it is 10, also in a loader that
        has loaded the state of then. Under remainder="uneven", ranks with fewer batches move on when their loop ends.
        """
        return self._now().epoch // (self._options.epochs or 1)

    @property
    def rank(self) -> int:
        """The rank this loader reads for."""
        return self._share.rank

    @property
    def world(self) -> int:
        """The number of ranks that share the order."""
        return self._share.world

    @property
    def order(self) -> Order:
        """The order in force: kind, seed, lanes and block."""
        return self._order

    def __repr__(self) -> str:
        options = self._options
        length = "endless" if options.epochs is None else f"{len(self)} batches left"
        return f"Loader({self._order.name!r}, batch_size={options.batch_size}, rank={self.rank}/{self.world}, {length})"

    # -- the end --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop threads and processes and wait for the calls they are in; the loader cannot be used again."""
        self._closed = True
        self._end_pass()

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError("a loader is not pickled or copied; make one in the other process and give it the state_dict()")

    def _check_open(self) -> None:
        if self._closed:
            raise LoaderClosed("the loader is closed; make another one from the dataset")

    def _end_pass(self) -> None:
        with self._lock:
            active, self._active = None if self._active is None else self._active(), None
            self._now()
            self._progress = None
        if active is not None:
            active.stop()  # without the lock: it waits for threads, in which a transform may ask for it

    # -- plans ----------------------------------------------------------------------------------------------------

    def _plan(self, cursor: Cursor) -> EpochPlan:
        return plan_epoch(self._facts.counts, order=self._order, cursor=cursor, share=self._share)

    def _first_plan(self) -> EpochPlan:
        if self._first is None or self._first.cursor != self._cursor:
            self._first = self._plan(self._cursor)
        return self._first

    def _plans(self, first: EpochPlan) -> Iterator[EpochPlan]:
        """Give the plans of what is left of the pass, epoch by epoch."""
        yield first
        plan, length = first, self._options.epochs
        while length is None or (plan.cursor.epoch + 1) % length:
            plan = self._plan(plan.next_epoch())
            yield plan

    def _check_mask(self) -> None:
        if self._options.remainder == "pad" and any(column.name == MASK for column in self._facts.columns):
            raise PlanError(
                f"remainder='pad' adds a column {MASK!r}, which the dataset has already; select other columns, or use "
                "another remainder"
            )

    def _check_endless(self) -> None:
        if self._options.epochs is None and not self._share.steps(self._total_rows, self._share.rank):
            raise PlanError(
                f"epochs=None would wait for ever: {self._total_rows:,} rows give rank {self.rank} of {self.world} "
                f"no batch of {self._options.batch_size}; use a smaller batch_size or world, or drop_last=False"
            )

    # -- memory ---------------------------------------------------------------------------------------------------

    def _check_budget(self) -> Needs:
        facts = self._facts
        window_bytes = facts.items.visits(self._first_plan().visits).most_rows(facts.held_chunk_bytes)
        needs = count_needs(
            facts, window_bytes, self._make.batch_rows(facts.items, is_line=self._order.is_line), self._options.pool
        )
        if needs.least > self._memory_bytes and self._total_rows:
            largest = int(np.where(facts.selected > 0, facts.chunk_bytes, -1).argmax())
            noun = facts.source.facts.part_noun
            raise BudgetError(
                f"memory_bytes={self._memory_bytes:,} is too little: the shuffle buffer of {needs.window_bytes:,} "
                f"bytes, one read of {needs.read_bytes:,} and two batches of {needs.batch_bytes:,} need at least "
                f"{needs.least:,} "
                f"(the largest {noun}: {facts.source.locate(largest)}, {int(facts.chunk_bytes[largest]):,} bytes in "
                f"memory); raise memory_bytes, or lower shuffle_bytes or batch_size, or write smaller {noun}s",
                least=needs.least,
            )
        return needs

    def _make_run(self) -> Run:
        facts, options, needs = self._facts, self._options, self._needs
        first = self._first_plan()
        workers = 0 if options.pool == "serial" else self._workers
        free = self._memory_bytes - needs.window_bytes - needs.read_bytes
        span_batches = min(self._span_batches(needs.batch_bytes), max(1, free // 2 // max(1, needs.batch_bytes)))
        span_bytes = span_batches * needs.batch_bytes
        ahead = max(1, min(workers + 2, self._make.most_waiting, free // 2 // max(1, span_bytes)))
        budget = self._memory_bytes - (ahead + 1) * span_bytes
        pool = BlockPool(keep=max(ahead, workers) + 3)
        shelf = self._make_shelf(budget, pool)
        window = self._make_window(budget if shelf is None else int(budget * (1 - _RETAIN_SHARE)), shelf)
        builder = Builder(
            source=facts.source, selection=facts.selection, columns=facts.columns, stages=self.stages, pool=pool,
            stats=self._stats, seed=options.seed, skip=options.on_error == "skip", arena=window.arena, shelf=shelf,
            limit_bytes=self._chunk_limit(), room=self._room(free),
        )  # fmt: skip
        limits = Limits(
            workers,
            span_batches,
            ahead,
            len(facts.selected),
            self._order.is_line and options.remainder != "pad",
            None
            if options.epochs is None
            else first.cursor.epoch // options.epochs * options.epochs + options.epochs - 1,
            any(stage.wants for stage in self.stages) or self._seeds_processes,
            facts.items,
            self._make.batch_items,
            self._make.aligned and self._order.is_line,
            self._stride,
            self._skip,
        )
        return Run(self._plans(first), window, builder, limits, self._make_finishers(workers, builder.halted))

    def _chunk_limit(self) -> int:
        """Return the bytes that one chunk may take, as Arrow: what its read can have beside window and batches.

        A little more, since estimates scatter: a run that was accepted is not to end over a few percent.
        """
        needs = self._needs
        room = self._memory_bytes - needs.window_bytes - 2 * needs.batch_bytes
        return int(_TOLERANCE * room / READ_COST / self._facts.slack)

    def _room(self, free: int) -> Room:
        """Return the room for decoded cells where so many bytes are free for batches: two of them fit at least."""
        copies = 3 if self._options.pool == "process" else 1  # decoded, packed, unpacked
        if self.is_bound:
            return Room(free, free // 2, free, copies)
        return Room(max(free, host.default_memory()), None, free, copies)

    def _span_batches(self, batch_bytes: int) -> int:
        """Return how many batches are gathered together: one where making it takes long, for workers to share."""
        slow = self._options.pool == "process" or self._make.aligned or any(stage.is_slow for stage in self.stages)
        slow = slow or not self._facts.items.one_row or self._stride[1] > 1
        if slow or not all(column.light for column in self._facts.columns):
            return 1
        return max(1, min(_SPAN_BATCHES, SPAN_BYTES // max(1, batch_bytes)))

    def _make_shelf(self, budget: int, pool: BlockPool) -> Shelf | None:
        """Return where a line order keeps chunks for the next epoch, if there is one and all chunks will fit."""
        facts, needs = self._facts, self._needs
        room, rest = int(budget * _RETAIN_SHARE), int(budget * (1 - _RETAIN_SHARE))
        all_bytes = int(facts.held_chunk_bytes.sum())
        if not self._order.is_line or self._options.epochs == 1 or all_bytes > room:
            return None
        return None if needs.window_bytes + needs.read_bytes > rest else Shelf(room, facts.slack, pool)

    def _make_window(self, budget: int, shelf: Shelf | None) -> Window:
        facts, shuffled = self._facts, not self._order.is_line
        chunk_bytes = facts.held_chunk_bytes
        whole_bytes = np.ceil(facts.chunk_bytes * facts.slack).astype(np.int64)
        ahead = max(_AHEAD_BYTES, int((2 * self._workers + 2) * whole_bytes.max(initial=0)))
        arena = make_records(facts.columns, facts.selected, budget) if shuffled else None
        reads = (READ_COST - 1) * whole_bytes
        return Window(budget, ahead, chunk_bytes, reads, shuffled, facts.slack, arena, shelf)

    @property
    def _calls_user(self) -> bool:
        return any(stage.calls_user for stage in self.stages)

    @property
    def _seeds_processes(self) -> bool:
        """Whether processes seed their global random states for every batch, by its position."""
        return self._options.pool == "process" and self._calls_user

    def _make_payload(self) -> Payload:
        from penstock.engine.process import payload_of  # here: multiprocessing is a tenth of the time of our import

        return payload_of(self.stages)

    def _make_finishers(self, workers: int, halted: threading.Event) -> list[Any]:
        if self._options.pool != "process":
            return [ThreadStages(self.stages, halted, self.watch)] * max(1, workers)
        from penstock.engine.process import ProcessStages, start_method

        return [ProcessStages(cast("Payload", self._payload), start_method()) for _ in range(workers)]

    def _strided(self, first: int, step: int, skip: int = 0) -> Loader:
        """Deliver only every `step`-th batch of the pass from number `first` on, without the first `skip` of these.

        For workers that share a pass. `state_dict()` of a strided loader describes no single worker: do not save it.
        """
        self._stride, self._skip = (first, step), skip
        return self

    # -- called by the pass -----------------------------------------------------------------------------------------

    def _advise_on_chance(self) -> None:
        """Warn, once, of a transform that draws from global random states."""
        watch = self.watch
        if watch is not None and watch.moved:
            self.watch = None
            warnings.warn(advice(watch.moved), PenstockWarning, stacklevel=users_level())

    def _is_active(self, one: Pass) -> bool:
        active = self._active
        return active is not None and active() is one

    def _move(self, one: Pass, built: Built | None) -> bool:
        """Move on by one batch, or to the next pass after the last one; returns False if the pass was ended before."""
        with self._lock:
            if not self._is_active(one):
                return False
            if built is None:
                self._ended()
            else:
                self._delivered = True
                self._go_on(built.work.plan, self.steps_of(built.end))
            return True

    def _go_on(self, plan: EpochPlan, steps: int) -> None:
        """Note the place behind a batch; never back, where several threads take from one iterator."""
        before = self._progress
        if before is None or (before[0].cursor.epoch, before[1]) <= (plan.cursor.epoch, steps):
            self._progress = plan, steps

    def steps_of(self, items: int) -> int:
        """Return the steps that are done once so many of this rank's items are out."""
        return -(-items // self._share.batch_size)

    def received(self, plan: EpochPlan, steps: int) -> None:
        """Note how far a consumer is who takes a batch apart himself."""
        with self._lock:
            self._progress = plan, steps

    def _note_skipped(self, skipped: tuple[Skipped, ...]) -> None:
        """List what a batch about to be delivered lacks; more than the limit is an error, and it is not delivered."""
        for one in skipped:
            self._skipped.setdefault((one.path, one.row_group, one.row), one)
        limit = self._options.skip_limit
        if limit is not None and len(self._skipped) > limit:
            raise _too_many(self.skipped, limit)

    def _ended(self) -> None:
        """Move to the beginning of the next pass."""
        self._now()
        self._active = self._progress = None
        if not self._at_pass_start() or not self._delivered:
            self._cursor = self._start_of(self._next_pass_epoch())
        self._delivered = False


def _too_many(skipped: list[Skipped], limit: int) -> Exception:
    last = skipped[-1]
    count = f"{len(skipped)} row{'s' * (len(skipped) > 1)}"
    return DecodeError(
        f"{count} skipped, more than skip_limit={limit}; the last one in {last.path}, "
        f"row group {last.row_group}, row {last.row}, column {last.column!r}: {last.reason}",
        path=last.path, row_group=last.row_group, row=last.row, column=last.column,
    )  # fmt: skip
