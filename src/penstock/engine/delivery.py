"""The way out of the engine: deliveries, each a batch together with the place behind it, and streams of them.

A loader or mix (`batches`) opens a stream; frameworks `map` it, a few deliveries ahead if they copy to a device, and
hand the batches to the user. A batch counts as received only when its place is acknowledged (`Stream.received`), so
code that prefetches, splits into rows or sends to another process carries the delivery along and acknowledges when
the real consumer has it. `Acknowledged` is the only record of what was received.
"""

from __future__ import annotations

import inspect
import threading
import time
import weakref
from abc import ABC, abstractmethod
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast

from penstock.errors import LoaderClosed

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from penstock.engine.locate import Skipped
    from penstock.plan import Cursor, EpochPlan, Order

B = TypeVar("B")
C = TypeVar("C")

ENDED = (
    "this iterator was ended: another one was made of the same loader, or a state was loaded or an epoch set; go on "
    "with the new one, or make a loader for each"
)


CLOSED = "the loader was closed while a batch was awaited, or an earlier batch has failed; iterate it anew"
FORKED = "this loader was made in another process; make one after the fork instead"


class Place:
    """Where a run stands: behind some steps of an epoch. Opaque outside of the engine.

    Costs nothing to make; the cursor that states store is worked out when it is asked for. Pickles without the plan.
    Places of one stream are ordered by `key`.
    """

    __slots__ = ("_cursor", "_order", "epochs", "key", "plan", "steps")

    def __init__(
        self, plan: EpochPlan | None, steps: int, epochs: int | None, order: Any = None, cursor: Cursor | None = None
    ) -> None:
        self.plan = plan
        self.steps = steps
        """Steps of `plan` that are done."""
        self.epochs = epochs
        """Epochs of a pass; None: passes have no end."""
        self.key = (cast("Cursor", cursor).epoch, 0) if plan is None else (plan.cursor.epoch, steps)
        """Orders the places of one stream."""
        self._order = order
        self._cursor = cursor

    @classmethod
    def at(cls, order: Order, cursor: Cursor, epochs: int | None) -> Place:
        """Return the place of a cursor."""
        return cls(None, 0, epochs, order, cursor)

    def __reduce__(self) -> Any:
        return Place.at, (self.order, self.cursor, self.epochs)

    def __repr__(self) -> str:
        return f"Place({self.cursor})"

    @property
    def cursor(self) -> Cursor:
        """The place in terms of the global order; at the start of a pass all ranks are together again."""
        if self._cursor is None:
            plan: Any = self.plan
            cursor = plan.after(self.steps)
            if cursor.epoch != plan.cursor.epoch:
                ended = self.epochs is not None and cursor.epoch % self.epochs == 0
                cursor = replace(cursor, owner=None) if ended else plan.next_epoch()
            self._cursor = cursor
        return self._cursor

    @property
    def order(self) -> Order:
        """The order that the steps are counted in."""
        plan = self.plan
        return cast("Order", self._order) if plan is None else plan.order


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
    """`Place` of a loader, or that of a mix; opaque, to be given to `Stream.received`."""
    origin: Origin
    num_rows: int
    skipped: tuple[Skipped, ...] = ()
    """Rows that on_error="skip" left out of it."""

    def after(self, steps: int) -> Any:
        """Return the place behind the first `steps` steps of this delivery that are in its batch.

        For loaders that make several steps at once (a step is `batch_size` items: one row for Petastorm's readers).
        Steps that were left out count as done once a later one is.
        """
        first, end, kept = self.origin.first, self.origin.end, self.origin.kept
        size = self.origin.plan.share.batch_size
        if steps >= (-(-(end - first) // size) if kept is None else len(kept)):
            return self.place
        done = steps if kept is None or not steps else int(kept[steps - 1]) + 1
        return Place(self.origin.plan, -(-first // size) + done, self.place.epochs)


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
        self._hooks: list[Callable[[], Callable[[], None] | None]] = []

    def begin(self, place: Any) -> int:
        """Start a stream at a place and return its number; the stream before it is ended."""
        with self.lock:
            self._live += 1
            self.place, self.in_pass, self._why = place, False, ENDED
            self._hooks.clear()
            return self._live

    def end(self, why: str) -> None:
        """End the live stream; its `take` and `received` then raise LoaderClosed with this reason."""
        with self.lock:
            self._live += 1
            self._why = why
            self._hooks.clear()

    def check(self, stream: int) -> None:
        """Raise LoaderClosed unless this is the live stream."""
        if stream != self._live:
            raise LoaderClosed(self._why)

    def received(self, stream: int, place: Any, *, is_end: bool) -> None:
        """Move to a place unless it is older than the one reached; LoaderClosed unless the stream is live."""
        with self.lock:
            self.check(stream)
            if is_end:
                self.place, self.in_pass = place, False
            elif not self.in_pass or self.place.key <= place.key:
                self.place, self.in_pass = place, True

    def before_state(self, stream: int, function: Callable[[], None]) -> None:
        """Call a function before the place is read, while this stream is live; a method is held weakly."""
        with self.lock:
            self.check(stream)
            self._hooks.append(weakref.WeakMethod(function) if inspect.ismethod(function) else lambda: function)

    def settle(self) -> None:
        """Let those who cannot push acknowledge what was received."""
        for hook in list(self._hooks):
            function = hook()
            if function is not None:
                function()


class Stream(ABC, Generic[B]):
    """Deliveries of what is left of one pass, in order. Dropping the outermost stream ends its threads.

    An error comes at its place, after all earlier deliveries; then the stream is stopped. In a forked child every call
    raises LoaderClosed. Several threads may take: each delivery goes to one of them.
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

        `waited_s` is how long the consumer waited for the last one. Raises LoaderClosed where the stream was stopped
        or superseded, and moves nothing then.
        """

    @abstractmethod
    def ready(self) -> int:
        """Return how many deliveries are made and wait."""

    @abstractmethod
    def stop(self) -> None:
        """End threads and processes; they are gone on return. May be called twice, and from a finalizer."""

    def release(self) -> None:
        """End what works for this stream, but no thread in front of it, through which an error goes to the consumer."""
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

        `ahead` 0: called in the taking thread; n: by a thread of its own, up to n deliveries ahead of the consumer.
        Where the function fails, its batch was not received.
        """
        if not ahead:
            return Mapped(self, function)
        from penstock.engine.prefetch import Prefetched

        return Prefetched(self, function, ahead)

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

    def __iter__(self) -> BatchIterator[B]:
        return BatchIterator(self)


def _passed_on(name: str) -> Any:
    """Return a property that gives an attribute or a method of the stream behind."""
    return property(attrgetter(f"_source.{name}"))


class Wrapping(Stream[C], Generic[B, C]):
    """A stream in front of another one: what it does not do itself it passes on."""

    def __init__(self, source: Stream[B]) -> None:
        self._source = source

    length, is_over, end = _passed_on("length"), _passed_on("is_over"), _passed_on("end")
    received, ready, before_state = _passed_on("received"), _passed_on("ready"), _passed_on("before_state")
    release, stop, note_ahead = _passed_on("release"), _passed_on("stop"), _passed_on("note_ahead")
    note_hand_over, note_waiting = _passed_on("note_hand_over"), _passed_on("note_waiting")


class Mapped(Wrapping[B, C]):
    """A stream whose batches a function changes in the taking thread."""

    def __init__(self, source: Stream[B], function: Callable[[Delivery[B]], C]) -> None:
        super().__init__(source)
        self._function = function

    def take(self) -> Delivery[C] | None:
        """Return the next delivery, changed; where the function fails the stream is stopped."""
        delivery = self._source.take()
        if delivery is None:
            return None
        began = time.perf_counter()
        try:
            made = self._function(delivery)
        except BaseException:
            self.release()
            raise
        self._source.note_hand_over(time.perf_counter() - began)
        return Delivery(made, *delivery[1:])


class BatchIterator(Generic[B]):
    """What a `for` loop iterates: takes from a stream and acknowledges each batch as it hands it out."""

    def __init__(self, stream: Stream[B]) -> None:
        self._stream = stream

    def __iter__(self) -> BatchIterator[B]:
        return self

    def __next__(self) -> B:
        delivery = self._stream.next_received()
        if delivery is None:
            raise StopIteration
        return delivery.batch
