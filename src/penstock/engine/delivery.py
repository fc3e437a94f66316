"""The way out of the engine: deliveries, each a batch together with the place behind it, and streams of them.

A loader or mix opens a stream; frameworks `map` it, a few deliveries ahead if they copy to a device, and hand the
batches to the user. A batch counts as received only when its place is acknowledged (`Stream.received`), so code that
prefetches, splits into rows or sends to another process carries the delivery along and acknowledges when the real
consumer has it. `Acknowledged` is the only record of what was received; `StreamedPasses` opens streams one by one.
"""

from __future__ import annotations

import inspect
import os
import threading
import time
import weakref
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeVar, cast

from penstock.errors import LoaderClosed, PlanError, StateMismatch
from penstock.options import at_least

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    import numpy as np
    from numpy.typing import NDArray

    from penstock.engine.locate import Skipped
    from penstock.engine.stages import Batch
    from penstock.plan import Cursor, EpochPlan, Order

B = TypeVar("B")
C = TypeVar("C")

_GO_ON = (
    "iterating the loader again begins its next pass; to go on behind the last batch received, call "
    "loader.load_state_dict(loader.state_dict()) before that"
)
ENDED = (
    "this iteration was ended: another one was made of the same loader, or a state was loaded or an epoch set; go on "
    "with the new one, or make a loader for each"
)
FAILED = f"a batch of this iteration has failed or was interrupted; {_GO_ON}"
STOPPED = f"this stream was stopped; {_GO_ON}"
AWAITED = "stop(), close(), load_state_dict() or another iteration ended this one while a batch was awaited"
FORKED = "this iteration belongs to the process that began it; begin another one, or make a loader, after the fork"


class Run(NamedTuple):
    """What all places of a loader share: places of another dataset, selection or number of epochs are refused by it."""

    dataset: str
    """Fingerprint of the dataset."""
    rows: str
    """Digest of the selection and of what is dealt out."""
    num_items: int
    """Items of an epoch, of all ranks."""
    epochs: int | None
    """Epochs of a pass; None: passes have no end."""


class Place:
    """Where a loader stands: behind some steps of an epoch. Opaque outside of the engine.

    Costs nothing to make; the cursor that states store is worked out when it is asked for. Pickles without the plan; a
    copy is equal to the original.
    """

    __slots__ = ("_cursor", "_order", "plan", "run", "steps")

    def __init__(
        self, plan: EpochPlan | None, steps: int, run: Run, order: Any = None, cursor: Cursor | None = None
    ) -> None:
        self.plan = plan
        self.steps = steps
        """Steps of `plan` that are done."""
        self.run = run
        self._order = order
        self._cursor = cursor

    @classmethod
    def at(cls, order: Order, cursor: Cursor, run: Run) -> Place:
        """Return the place of a cursor."""
        return cls(None, 0, run, order, cursor)

    def __reduce__(self) -> Any:
        return Place.at, (self.order, self.cursor, self.run)

    def __repr__(self) -> str:
        return f"Place({self.cursor})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Place) and self.__reduce__() == other.__reduce__()

    def __hash__(self) -> int:
        return hash(self.cursor)

    @property
    def key(self) -> tuple[int, int]:
        """Orders the places of a loader: the epoch, and how many of its items are delivered."""
        return self.cursor.epoch, -self.cursor.num_left(self.run.num_items)

    def check(self, place: object) -> None:
        """Raise TypeError unless this is a place of a loader, StateMismatch unless it can follow this place."""
        if not isinstance(place, Place):
            raise not_a_place(place, "loader")
        ours, theirs = self.order, place.order
        if place.run != self.run or (theirs.kind, theirs.seed) != (ours.kind, ours.seed):
            raise StateMismatch(
                "the place belongs to another loader: dataset, selected rows, shuffle, seed and epochs must be the "
                f"same; it has order {theirs.name!r}, seed {theirs.seed} and {place.run}, this loader order "
                f"{ours.name!r}, seed {ours.seed} and {self.run}"
            )

    @property
    def cursor(self) -> Cursor:
        """The place in terms of the global order; at the start of a pass it is the same on all ranks."""
        if self._cursor is None:
            plan: Any = self.plan
            cursor = plan.after(self.steps)
            if cursor.epoch != plan.cursor.epoch:
                ended = self.run.epochs is not None and cursor.epoch % self.run.epochs == 0
                cursor = replace(cursor, owner=None) if ended else plan.next_epoch()
            self._cursor = cursor
        return self._cursor

    @property
    def order(self) -> Order:
        """The order that the steps are counted in."""
        plan = self.plan
        return cast("Order", self._order) if plan is None else plan.order


def not_a_place(value: object, kind: str) -> TypeError:
    """Return the error for what was given instead of a place of a loader or a mix (`kind`)."""
    given = type(value).__name__
    hints = {"Delivery": ": pass delivery.place", "dict": ": load_state_dict() and place_of() take states"}
    return TypeError(
        f"a place of a {kind} is wanted, as delivery.place, place(), place_at() and place_after() give it; got "
        f"{given}{hints.get(given, '')}"
    )


class Origin(NamedTuple):
    """Which items of the order a batch was made of: for transforms, and for consumers that take a batch apart."""

    plan: EpochPlan
    """The epoch, for this rank."""
    first: int
    """First item of `plan` that the batch was made of."""
    end: int
    """The item after the last one."""
    windows: NDArray[np.int64] | None = None
    """Which rows of the batch each window consists of, where items are windows that were not folded."""
    kept: NDArray[np.int64] | None = None
    """Which items, counted from `first`, are in the batch; None: all."""

    @property
    def epoch(self) -> int:
        """Number of the epoch."""
        return self.plan.cursor.epoch

    @property
    def seed(self) -> int:
        """Seed of the order."""
        return self.plan.order.seed

    def positions(self) -> NDArray[np.int64]:
        """Return the global position of every item that is in the batch."""
        found = self.plan.positions(self.first, self.end)
        return found if self.kept is None else found[self.kept]

    def first_position(self) -> int:
        """Return the global position of the first item as planned; 0 for a batch of none."""
        return int(self.plan.positions(self.first, self.first + 1)[0]) if self.end > self.first else 0


class Built(NamedTuple):
    """One batch as the engine has made it: a `Delivery` without its place."""

    batch: dict[str, Any]
    origin: Origin
    num_rows: int
    skipped: tuple[Skipped, ...]


class Delivery(NamedTuple, Generic[B]):
    """A batch and the place behind it."""

    batch: B
    place: Any
    """`Place` of a loader, or `MixPlace` of a mix; opaque, to be given to `Stream.received`."""
    origin: Origin
    num_rows: int
    skipped: tuple[Skipped, ...] = ()
    """Rows that on_error="skip" left out of it."""

    def after(self, steps: int) -> Any:
        """Return the place behind the first `steps` steps of this delivery that are in its batch.

        For loaders that make several steps at once (a step is `batch_size` items: one row for Petastorm's readers).
        Steps that were left out count as done once a later one is.
        """
        first, end, size = self.origin.first, self.origin.end, self.origin.plan.share.batch_size
        kept = self.origin.kept if size == 1 else None  # steps of several items stay, whichever items were left out
        count = -(-(end - first) // size) if kept is None else len(kept)
        if at_least("steps", steps, 0) > count:
            raise PlanError(f"the delivery has {count} step{'s' * (count != 1)}; got {steps}")
        if steps == count:
            return self.place
        if not isinstance(self.place, Place):
            raise PlanError("a delivery of a mix is one step: there is no place within it")
        done = steps if kept is None or not steps else int(kept[steps - 1]) + 1
        return Place(self.origin.plan, -(-first // size) + done, self.place.run)


class Acknowledged:
    """What the consumer of a loader or mix has received; shared by the loader and its live stream.

    Safe for threads: one may save or load a state while another one iterates.
    """

    def __init__(self, place: Any) -> None:
        self.lock = threading.RLock()
        self.place = place
        """The place that a state describes."""
        self.in_pass = False
        """Whether a batch of the current pass was received."""
        self._live = 0
        self._why = ENDED
        self._halted: str | None = None
        """Why nothing can be taken from the live stream any more."""
        self._pid = os.getpid()
        self._hooks: list[Callable[[], Callable[[], None] | None]] = []

    def begin(self, place: Any) -> int:
        """Start a stream at a place and return its number; the stream before it is ended."""
        with self.lock:
            self._live += 1
            self.place, self.in_pass, self._why = place, False, ENDED
            self._halted, self._pid = None, os.getpid()
            self._hooks.clear()
            return self._live

    def end(self, why: str) -> None:
        """End the live stream; its `take` and `received` then raise LoaderClosed with this reason."""
        with self.lock:
            self._live += 1
            self._why = why
            self._hooks.clear()

    def halt(self, stream: int, why: str) -> None:
        """Note why nothing more can be taken from a stream, unless it was noted; what was taken may be received."""
        if stream == self._live and self._halted is None:
            self._halted = why

    def check(self, stream: int, *, taking: bool = False) -> None:
        """Raise LoaderClosed unless this is the live stream, in its own process; `taking`: and was not halted."""
        if os.getpid() != self._pid:
            raise LoaderClosed(FORKED)
        if stream != self._live:
            raise LoaderClosed(self._why)
        if taking and self._halted is not None:
            raise LoaderClosed(self._halted)

    def received(self, stream: int, place: Any, *, is_end: bool) -> None:
        """Move to a place of the live stream; LoaderClosed if this is another one."""
        with self.lock:
            if stream != self._live:
                raise LoaderClosed(self._why)
            self.place, self.in_pass = place, not is_end

    def before_state(self, stream: int, function: Callable[[], None]) -> None:
        """Call a function before the place is read, while this stream is live; a method is held weakly."""
        with self.lock:
            self.check(stream)
            self._hooks.append(weakref.WeakMethod(function) if inspect.ismethod(function) else lambda: function)

    def settle(self) -> None:
        """Let those who cannot push acknowledge what was received; in a forked child there is nobody to ask."""
        for hook in list(self._hooks) if os.getpid() == self._pid else ():
            function = hook()
            if function is not None:
                function()


class Stream(ABC, Generic[B]):
    """Deliveries of what is left of one pass, in order. Dropping the outermost stream ends its threads.

    An error comes at its place, after all earlier deliveries; then the stream is stopped. In a forked child `take`,
    `received` and iterating raise LoaderClosed. Several threads may take: each delivery goes to one of them.
    """

    length: int | None
    """Deliveries in all; None: endless, or not known."""
    is_over = False
    """Whether the consumer has acknowledged the end of the pass."""

    @property
    @abstractmethod
    def end(self) -> Any:
        """The place behind the pass, which is the start of the next one; acknowledged after `take` returned None."""

    @abstractmethod
    def take(self) -> Delivery[B] | None:
        """Return the next delivery; None at the end of the pass, and every time after it. Moves no state."""

    @abstractmethod
    def received(self, place: Any, waited_s: float = 0.0) -> None:
        """Acknowledge all deliveries up to a place; an older place is ignored.

        `waited_s` is how long the consumer waited for the last one. Nothing has moved where it raises: LoaderClosed
        where the stream was superseded or the loader closed, TypeError for what is not a place, StateMismatch for one
        of another loader or beyond what was taken.
        """

    @abstractmethod
    def ready(self) -> int:
        """Return how many deliveries are made and wait."""

    @abstractmethod
    def stop(self) -> None:
        """End threads and processes; they are gone on return. May be called twice, and from a finalizer."""

    def release(self, wait_s: float | None = None, why: str = STOPPED) -> None:  # noqa: ARG002 -- for subclasses
        """End what works for this stream, but no thread in front of it, through which an error goes to the consumer.

        Waits at most `wait_s` seconds for calls of the user's functions; None: as long as they take. `why` is the
        message of LoaderClosed if more is taken; the first one counts.
        """
        self.stop()

    @abstractmethod
    def before_state(self, function: Callable[[], None]) -> None:
        """Have a function called by state_dict() and len(), for consumers that cannot push what they received.

        A method is held weakly, so that its object may hold the stream.
        """

    @abstractmethod
    def note_hand_over(self, seconds: float) -> None:
        """Count work between the engine and the consumer; `map` does it."""

    @abstractmethod
    def note_waiting(self, waiting: bool) -> None:
        """Note that the consumer's own thread begins or ends a wait, where another thread takes ahead of it."""

    @abstractmethod
    def note_ahead(self, front: Stream[Any]) -> None:
        """Note that a thread of `front` takes ahead of the consumer; `map` does it. `stop` stops `front` as well."""

    def map(self, function: Callable[[Delivery[B]], C], *, ahead: int = 0) -> Stream[C]:
        """Return the stream with each batch replaced by what the function makes of its delivery.

        `ahead` 0: called in the taking thread; n: by a separate thread, up to n deliveries ahead of the consumer.
        Where the function fails, its batch was not received.
        """
        if not callable(function):
            raise TypeError(f"map takes a function of a delivery; got {function!r}")
        ahead = at_least("ahead", ahead, 0)
        from penstock.engine.prefetch import Mapped, Prefetched

        return Prefetched(self, function, ahead) if ahead else Mapped(self, function)

    def next_received(self) -> Delivery[B] | None:
        """Take the next delivery, or None, and acknowledge it or the end of the pass: what a `for` loop does."""
        began = time.perf_counter()
        try:
            delivery = self._next()
            if delivery is not None:
                self.received(delivery.place, time.perf_counter() - began)
            elif not self.is_over:
                self.received(self.end)
        except BaseException:
            # An interrupt may have lost a batch that was already taken: end the pass instead of skipping it silently.
            self.stop()
            raise
        return delivery

    def _next(self) -> Delivery[B] | None:
        """Take for `next_received`: a stream that wakes a thread in `take` wakes it later here."""
        return self.take()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> B:
        delivery = self.next_received()
        if delivery is None:
            raise StopIteration
        return delivery.batch


class ClosedOnExit(ABC):
    """Context manager that closes itself: base class of all loaders."""

    @abstractmethod
    def close(self) -> None:
        """Stop threads and processes; the loader cannot be used again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class StreamedPasses(ClosedOnExit):
    """Iterable that gives one pass after another, each by a stream; base class of loaders and mixes.

    Holds what the consumer has received, and ends a stream when another one begins. Holds no thread: those belong to
    the stream that is alive.
    """

    def __init__(self, start: Any) -> None:
        self._progress = Acknowledged(start)
        self._stream: Callable[[], Stream[Batch] | None] = _none
        """Weak: a stream that is no longer referenced (after `break`) ends at once, and its threads with it."""
        self._begun = 0
        """The pass of the stream that was opened last."""
        self._is_closed = False

    def stream(self, *, start: Any = None, every: tuple[int, int] = (0, 1)) -> Stream[Batch]:
        """Return the deliveries of what is left of a pass: of the one that `iter` would give, or from `start` on.

        `every=(i, n)` gives the batches i, i + n, i + 2n, ... of that sequence, for n workers that share a pass; their
        places are those of the undivided sequence: acknowledging one counts the batches of all workers before it.
        `len` is then the batches of this stream, `batches_left` those of the undivided sequence. Ends the stream before
        it.
        """
        self.check_open()
        if not isinstance(every, tuple) or len(every) != 2 or not all(type(one) is int for one in every):
            raise PlanError(f"every= takes two whole numbers, (first, step); got {every!r}")
        if not 0 <= every[0] < every[1]:
            raise PlanError(f"every=(first, step) needs 0 <= first < step; got {every}")
        if start is not None:
            self.check_place(start)
        self._end_stream(ENDED)
        place = self.next_start() if start is None else start
        self._begun = self.pass_of(place)
        stream = self._open(place, every, self._progress.begin(place))
        self._stream = weakref.ref(stream)
        return stream

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.stream())

    def next_pass(self) -> None:
        """End a running iterator and go to the beginning of the next pass, unless this is the beginning of one."""
        self._end_stream(ENDED)
        self._progress.begin(self.next_pass_after(self._progress.place))

    def go_to(self, place: Any) -> None:
        """Go on from a place of this loader; ends a running iterator."""
        self.check_open()
        self.check_place(place)
        self._end_stream(ENDED)
        self._progress.begin(place)

    def next_start(self) -> Any:
        """Return the place where the next iteration begins: after `break` the start of the next pass."""
        self._progress.settle()
        with self._progress.lock:
            place = self._progress.place
            return self.next_pass_after(place) if self._progress.in_pass else place

    def _end_stream(self, why: str) -> None:
        self._progress.settle()
        self._progress.end(why)
        stream, self._stream = self._stream(), _none
        if stream is not None:
            stream.stop()  # without the lock: it waits for threads, in which a transform may ask for it

    def place(self) -> Any:
        """Return what the consumer has received; costs nothing."""
        self._progress.settle()
        return self._progress.place

    def close(self) -> None:
        """Stop threads and processes and wait for the calls they are in; the loader cannot be used again."""
        self._is_closed = True
        self._end_stream(self._closed)

    _closed = "the loader is closed; make another one from the dataset"

    def check_open(self) -> None:
        """Raise LoaderClosed after `close`."""
        if self._is_closed:
            raise LoaderClosed(self._closed)

    @abstractmethod
    def _open(self, place: Any, every: tuple[int, int], number: int) -> Stream[Batch]:
        """Return the stream with that number in the progress, from a place on."""

    @abstractmethod
    def check_place(self, place: Any) -> None:
        """Raise TypeError unless this is a place of a loader (or mix), StateMismatch unless of one such as this."""

    @abstractmethod
    def next_pass_after(self, place: Any) -> Any:
        """Return the beginning of the next pass; the place itself if it is the beginning of one."""

    @abstractmethod
    def pass_of(self, place: Any) -> int:
        """Return the number of the pass that a place lies in."""


def _none() -> None:
    return None
