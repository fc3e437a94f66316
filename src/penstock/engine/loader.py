"""A loader: batches of a dataset in one global order, from any place on.

Made by `Dataset.loader` from inputs (source, selection, columns) and options. It plans epochs and opens streams, each
over a `Scheduler` that its `Setup` makes. Holds threads only while a stream is alive: `EngineStream` is the handle that
ends the threads of its scheduler when it is dropped; none of them holds it. `Stats` counts rows, bytes and the seconds
of each stage; `report` reads it.
"""

from __future__ import annotations

import threading
import time
import warnings
import weakref
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.engine.delivery import FAILED, STOPPED, Acknowledged, Built, Delivery, Place, Run, Stream
from penstock.engine.inputs import Inputs, Setup, choose_order, make_stages
from penstock.engine.loader_facts import LoaderFacts
from penstock.engine.randomness import Watch, advice
from penstock.engine.rank import check_still, rank_and_world
from penstock.engine.stages import MASK, Batch, Stage
from penstock.errors import DecodeError, PenstockWarning, PlanError, StateMismatch, users_level
from penstock.halt import EXIT_WAIT_S
from penstock.plan.epoch import EpochPlan, plan_epoch
from penstock.plan.order import Cursor, Order, Share, steps_left

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.engine.locate import Skipped
    from penstock.engine.scheduler import Scheduler
    from penstock.options import LoaderOptions

_ADVISE_CHUNKS = 200_000
"""Beyond this many row groups advice costs seconds, and comes only with `print(loader.plan)`."""
KEPT_STEPS = 2000
"""How many steps are remembered one by one: half a megabyte."""
WAIT_BOUNDS = (0.0001, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Upper ends, in seconds, of the classes that waits are counted in."""


class Step(NamedTuple):
    """One batch handed out, and what the stages had done by then, in sums since the loader was made."""

    end: float
    num_rows: int
    wait_s: float
    read_s: float
    gather_s: float
    finish_s: float
    bytes_read: int
    hand_over_s: float = 0.0


class Stats:
    """What a loader has done so far."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Of the stages' counters; the consumer reads them without it: one may be a batch ahead of another."""
        self._out = threading.RLock()
        """Of the consumer's counters; a signal handler may ask for them."""
        self._steps: deque[Step] = deque(maxlen=KEPT_STEPS)
        self._waits = [0] * (len(WAIT_BOUNDS) + 1)
        self.rows = self.batches = self.chunks_read = self.bytes_read = 0
        self.wait_s = self.read_s = self.gather_s = self.finish_s = self.hand_over_s = 0.0

    def read(self, seconds: float, num_bytes: int) -> None:
        """Count one chunk read."""
        with self._lock:
            self.chunks_read += 1
            self.bytes_read += num_bytes
            self.read_s += seconds

    def gathered(self, seconds: float) -> None:
        """Count the gathering of one span."""
        with self._lock:
            self.gather_s += seconds

    def finished(self, seconds: float) -> None:
        """Count decoding and transform of one batch."""
        with self._lock:
            self.finish_s += seconds

    def handed_over(self, seconds: float) -> None:
        """Count the work between the engine and the consumer: conversion, copies, transforms on the device."""
        with self._lock:
            self.hand_over_s += seconds

    def delivered(self, num_rows: int, wait_s: float) -> None:
        """Count one batch handed to the consumer and how long it waited."""
        end = time.perf_counter()
        with self._out:
            self.rows += num_rows
            self.batches += 1
            self.wait_s += wait_s
            self._waits[bisect_left(WAIT_BOUNDS, wait_s)] += 1
            read_s, gather_s, finish_s = self.read_s, self.gather_s, self.finish_s
            step = Step(end, num_rows, wait_s, read_s, gather_s, finish_s, self.bytes_read, self.hand_over_s)
            self._steps.append(step)

    def as_dict(self) -> dict[str, float]:
        """Return all counters; seconds are summed over threads, except `wait_s`, which is the consumer's."""
        with self._out:
            return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def last_steps(self) -> list[Step]:
        """Return the steps that are remembered, oldest first."""
        with self._out:
            return list(self._steps)

    def waits(self) -> list[int]:
        """Return how many waits there were in each class of `WAIT_BOUNDS`, and beyond."""
        with self._out:
            return list(self._waits)


@dataclass(slots=True)
class Record:
    """What a loader counts and lists over all its streams."""

    skip_limit: int | None
    """More skipped rows than this are an error."""
    watch: Watch | None
    """Notices transforms that draw from global random states; None: nothing to watch, or it was reported."""
    stats: Stats = field(default_factory=Stats)
    skipped: dict[tuple[str, int, int], Skipped] = field(default_factory=dict)
    hands_over_ahead: bool = False
    """Whether threads of a framework take batches ahead of the consumer."""


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
        stages = make_stages(inputs, options)
        watched = options.pool != "process" and any(stage.calls_user for stage in stages)
        record = Record(options.skip_limit, Watch() if watched else None)
        self._setup = Setup.of(inputs, options, stages, record)
        self._planned: EpochPlan | None = None
        order, dealt = choose_order(inputs, options)
        self._splits = {order.scanned: dealt} if order.parts else {}
        """Inputs with parts of row groups as chunks, by `Order.scanned`, once an order has needed them."""
        self._run = Run(inputs.source.facts.fingerprint, inputs.rows, self._total_rows, options.epochs)
        start = Place.at(order, Cursor.start(0, order, self._total_rows), self._run)
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
        self._setup_of(order).check_budget(self._plan(start))
        # One rank that reads in order reads every chunk once: there is nothing to say.
        plain = order.is_line and world == 1
        if (
            not plain
            and self._total_rows
            and len(inputs.counts) <= _ADVISE_CHUNKS
            and (advice := self._describe(measured=False).warnings)
        ):
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
        scheduler = self._setup_of(place.order).make_scheduler(first, self._plans(first), every)
        return EngineStream(scheduler, (self._progress, number), self._setup.record, self.pass_after(place), length)

    def _inputs_of(self, order: Order) -> Inputs:
        """Return the inputs whose chunks `order` deals out: parts of row groups, or whole ones."""
        if not order.parts:
            return self._inputs
        if order.scanned not in self._splits:
            try:
                found = self._inputs.split(scan=order.scanned)
            except PlanError as exc:
                raise StateMismatch(f"cannot resume: the state's order divides row groups into parts: {exc}") from exc
            if found is None:
                raise StateMismatch(
                    f"cannot resume: the state's order {order.name!r} divides row groups into parts, and those of this "
                    "loader are not divided; open the dataset, and make the loader, as the interrupted run did"
                )
            self._splits[order.scanned] = found[0]
        return self._splits[order.scanned]

    def _setup_of(self, order: Order) -> Setup:
        return replace(self._setup, inputs=self._inputs_of(order)) if order.parts else self._setup

    def _start_of(self, pass_number: int, order: Order) -> Place:
        cursor = Cursor.start(pass_number * (self._options.epochs or 1), order, self._total_rows)
        return Place.at(order, cursor, self._run)

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
            counts = self._inputs_of(place.order).counts
            planned = plan_epoch(counts, order=place.order, cursor=cursor, share=self._share)
            self._planned = planned
        return planned

    def _plans(self, first: EpochPlan) -> Iterator[EpochPlan]:
        """Give the plans of what is left of the pass, epoch by epoch."""
        yield first
        plan, length, counts = first, self._options.epochs, first.counts
        while length is None or (plan.cursor.epoch + 1) % length:
            plan = plan_epoch(counts, order=plan.order, cursor=plan.next_epoch(), share=self._share)
            yield plan


class EngineStream(Stream[Batch]):
    """Deliveries of one loader."""

    def __init__(
        self, scheduler: Scheduler, progress: tuple[Acknowledged, int], record: Record, end: Place, length: int | None
    ) -> None:
        self._scheduler = scheduler
        self._batch_size = scheduler.batch_size
        self._progress, self._number = progress
        self._record = record
        self._end = end
        self.length = length
        self._ahead = False
        self._front: Callable[[], Stream[Any] | None] = lambda: None
        """Weak: the outermost stream with a thread that takes from here."""
        self._is_through = False
        """Whether `take` came to the end of the pass: then it returns None, also after the loader was closed."""
        self._last: Place = self._progress.place
        """Behind what was taken."""
        self._unacknowledged: deque[tuple[Place, int, tuple[Skipped, ...]]] = deque()
        self._lock = threading.RLock()
        """Of those who acknowledge. A thread that takes ahead never holds it for long, so that they need not wait."""
        self._taking = threading.RLock()
        """Of those who take: what they took is noted in the order of the pass."""
        self._finalizer = weakref.finalize(self, scheduler.stop, EXIT_WAIT_S)

    @property
    def end(self) -> Place:
        """The start of the next pass."""
        return self._end

    def take(self) -> Delivery[Batch] | None:
        """Return the next delivery; None at the end of the pass."""
        if self._is_through:
            return None
        self._progress.check(self._number, taking=True)
        watch = self._record.watch
        try:
            with self._taking:
                built = self._scheduler.next() if watch is None else self._next_watched(watch)
                if built is None:
                    self._is_through = True
                    return None
                place = Place(built.origin.plan, -(-built.origin.end // self._batch_size), self._end.run)
                self._last = place
                self._unacknowledged.append((place, built.num_rows, built.skipped))
            limit = self._record.skip_limit
            if built.skipped and limit is not None:
                with self._lock:
                    self._check_skipped(built.skipped[-1], limit)
        except BaseException:
            self.release(why=FAILED)
            raise
        return Delivery(built.batch, place, built.origin, built.num_rows, built.skipped)

    def _next_watched(self, watch: Watch) -> Built | None:
        """Return the next batch; a warning reports a transform that has drawn from a global random state."""
        if not self._ahead:
            watch.user_waits()
        built = self._scheduler.next()
        if not self._ahead:
            watch.user_works()
        if watch.moved and self._record.watch is not None:
            self._record.watch = None
            warnings.warn(advice(watch.moved), PenstockWarning, stacklevel=users_level())
        return built

    def _check_skipped(self, last: Skipped, limit: int) -> None:
        keys = {(one.path, one.row_group, one.row) for _, _, lost in list(self._unacknowledged) for one in lost}
        count = len(keys | self._record.skipped.keys())
        if count > limit:
            raise DecodeError(
                f"{count} row{'s' * (count > 1)} skipped, more than skip_limit={limit}; the last one in {last.path}, "
                f"{last.part_name}, row {last.row}, column {last.column!r}: {last.reason}",
                path=last.path, row_group=last.row_group, row=last.row, column=last.column,
            )  # fmt: skip

    def received(self, place: Place, waited_s: float = 0.0) -> None:
        """Acknowledge all deliveries up to a place."""
        if self.is_over:  # a late acknowledgement is of an earlier place
            return
        self._progress.check(self._number)  # before the lock, which a forked child may never get
        record, waiting = self._record, self._unacknowledged
        with self._lock:
            is_end = place is self._end
            if not is_end and not (waiting and waiting[0][0] is place):
                self._end.check(place)
                if place.key > self._last.key:
                    raise StateMismatch(f"{place} lies beyond {self._last}, the last that was taken from the stream")
                if place.key < self._progress.place.key:
                    return
            while waiting and (waiting[0][0] is place or is_end or waiting[0][0].key <= place.key):
                one, num_rows, skipped = waiting.popleft()
                for lost in skipped:
                    record.skipped.setdefault((lost.path, lost.row_group, lost.row), lost)
                record.stats.delivered(num_rows, waited_s)
                waited_s = 0.0
                if one is place:
                    break
            # Last: a batch that Ctrl-C takes along in here was not received.
            self._progress.received(self._number, place, is_end=is_end)
            self.is_over = is_end

    def ready(self) -> int:
        """Return how many batches are made and wait."""
        return self._scheduler.num_waiting()

    def building(self) -> int:
        """Return how many batches are being built."""
        return self._scheduler.num_building()

    def before_state(self, function: Callable[[], None]) -> None:
        """Have a function called by state_dict() and len()."""
        self._progress.before_state(self._number, function)

    def note_hand_over(self, seconds: float) -> None:
        """Count work between the engine and the consumer."""
        self._record.stats.handed_over(seconds)

    def note_waiting(self, waiting: bool) -> None:
        """Note that the consumer's own thread begins or ends a wait."""
        watch = self._record.watch
        if watch is not None:
            (watch.user_waits if waiting else watch.user_works)()

    def note_ahead(self, front: Stream[Any]) -> None:
        """Note that a thread of `front` takes ahead of the consumer."""
        self._ahead = self._record.hands_over_ahead = True
        self._front = weakref.ref(front)

    def release(self, wait_s: float | None = None, why: str = STOPPED) -> None:
        """End the scheduler's threads and processes."""
        self._progress.halt(self._number, why)
        self._finalizer.detach()
        self._scheduler.stop(wait_s)

    def stop(self) -> None:
        """End threads and processes, also those in front; they are gone on return."""
        self.release()
        front = self._front()
        if front is not None:
            front.stop()
