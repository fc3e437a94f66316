"""Streams in front of others: their batches are changed as they are taken, or by a thread ahead of the consumer.

`Stream.map(function)` makes a `Mapped` stream, `Stream.map(function, ahead=n)` a `Prefetched` one, for conversion and
copies to a device. The thread takes, works and queues; what was queued is not received before the consumer
acknowledges it. Nothing here knows of tensors, devices or datasets.

What happens to the thread, in every case: at the end of the pass it ends by itself; an error is raised where its batch
would have come, and stops the stream; on `break`, a new stream, Ctrl-C and `close()` the thread is stopped and joined,
the source first, which ends a wait for the next batch; at interpreter exit and in a garbage collection the finalizer
does so, for at most `EXIT_WAIT_S` (a collection inside a thread of ours waits for nothing); in a forked child, which
has no such thread, `take` raises LoaderClosed.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections import deque
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from penstock.engine.delivery import AWAITED, FAILED, FORKED, STOPPED, Delivery, Stream
from penstock.errors import LoaderClosed
from penstock.halt import EXIT_WAIT_S, OwnThread, wait_in

if TYPE_CHECKING:
    from collections.abc import Callable

B = TypeVar("B")
C = TypeVar("C")

_LOOK_S = 1.0
"""A waiting consumer wakes this often: on Windows Ctrl-C does not interrupt an endless wait."""


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
            self.release(why=FAILED)
            raise
        self._source.note_hand_over(time.perf_counter() - began)
        return Delivery(made, *delivery[1:])


class Prefetched(Wrapping[B, C]):
    """A stream that a thread fills, up to `ahead` deliveries before they are taken."""

    def __init__(self, source: Stream[B], function: Callable[[Delivery[B]], C], ahead: int) -> None:
        super().__init__(source)
        source.note_ahead(self)
        self._is_outermost = True
        """Whether the consumer takes from this one, and not a thread ahead of it."""
        self._queue: _Queue[B, C] = _Queue(source, function, ahead)
        self._finalizer = weakref.finalize(self, self._queue.stop, EXIT_WAIT_S)

    def take(self) -> Delivery[C] | None:
        """Return the next delivery; waits for the thread where none is ready. An error stops the stream."""
        try:
            return self._next()
        except BaseException:  # a batch is lost: nothing may come after the gap
            self.stop()
            raise
        finally:
            self._queue.wake()

    def next_received(self) -> Delivery[C] | None:
        """Take and acknowledge the next delivery before the thread is woken to make another one.

        The thread would compete with the consumer for the GIL, which may take 5 ms to win back, and for locks.
        """
        try:
            return super().next_received()
        finally:
            self._queue.wake()

    def _next(self) -> Delivery[C] | None:
        if not self._is_outermost:
            return self._queue.take()
        self.note_waiting(True)
        try:
            return self._queue.take()
        finally:
            self.note_waiting(False)

    def note_ahead(self, front: Stream[Any]) -> None:
        """Note that a thread of `front` takes ahead of the consumer, whose wait is then noted there."""
        self._is_outermost = False
        super().note_ahead(front)

    def ready(self) -> int:
        """Return how many deliveries wait in front of the consumer."""
        return self._queue.ready()

    def when_idle(self, function: Callable[[C], None]) -> Prefetched[B, C]:
        """Have the thread call a function of each batch it made when it has nothing better to do; returns self."""
        self._queue.settle = function
        return self

    def when_taken(self, function: Callable[[C], Any]) -> Prefetched[B, Any]:
        """Have `take` replace each batch by what a function makes of it, in the consumer's thread; returns self.

        Unlike `map`, it is called before the thread is woken to make more: the two do not compete for the GIL then.
        """
        self._queue.finish = function
        return self

    def release(self, wait_s: float | None = None, why: str = STOPPED) -> None:
        """End the thread and the source, as `stop` does."""
        self._finalizer.detach()
        self._queue.stop(wait_s, why)

    def stop(self) -> None:
        """End the thread and the source, and wait for them."""
        self.release()


class _Queue(Generic[B, C]):
    """What the thread holds: it must not hold the stream, whose end would then never come."""

    def __init__(self, source: Stream[B], function: Callable[[Delivery[B]], C], ahead: int) -> None:
        self._source = source
        self._function = function
        self._ahead = ahead
        self.settle: Callable[[C], None] | None = None
        self.finish: Callable[[C], Any] | None = None
        self._ready: deque[Delivery[C] | BaseException | None] = deque()
        self._unsettled: list[C] = []
        self._lock = threading.RLock()
        self._cond = threading.Condition(self._lock)
        self._stopped = False
        self._over = False
        self._pid = os.getpid()
        self._thread: threading.Thread | None = None

    def ready(self) -> int:
        return len(self._ready)

    def wake(self) -> None:
        """Let the thread look whether there is room for another result."""
        if os.getpid() == self._pid:  # the lock of a forked child may never be released
            with self._lock:
                self._cond.notify_all()

    def take(self) -> Delivery[C] | None:
        """Return the next result; the caller must call `wake` after it."""
        if os.getpid() != self._pid:
            raise LoaderClosed(FORKED)
        with self._lock:  # not `with self._cond`: its Python __enter__ could be interrupted with the lock taken
            if self._thread is None and not self._stopped:
                self._thread = OwnThread(target=self._work, name="penstock-feed", daemon=True)
                self._thread.start()
            while not self._ready and not self._stopped and not self._over:
                wait_in(self._lock, self._cond, _LOOK_S)
            if self._over:
                return None
            found = LoaderClosed(AWAITED) if self._stopped else self._ready.popleft()
            self._over = found is None
        try:
            if self._stopped:
                self._source.take()  # says why it was ended, if somebody else ended it
            if isinstance(found, BaseException):
                raise found
            if found is None or self.finish is None:
                return found
            return Delivery(self.finish(found.batch), *found[1:])
        finally:
            del found  # the traceback of an error holds this frame

    def _work(self) -> None:
        while self._has_room():
            made: Delivery[C] | BaseException | None
            try:
                taken, made = self._source.take(), None
                if taken is not None:
                    began = time.perf_counter()
                    made = Delivery(self._function(taken), *taken[1:])
                    self._source.note_hand_over(time.perf_counter() - began)
                del taken
            except BaseException as error:  # noqa: BLE001 -- handed to the consumer, who meets it in order
                made = error
                self._source.release(why=FAILED)
            if not self._put(made) or not isinstance(made, Delivery):
                return
            if self.settle is not None:
                self._unsettled.append(made.batch)
            del made

    def _put(self, made: Delivery[C] | BaseException | None) -> bool:
        """Hand a result to the consumer; False: stopped."""
        with self._cond:
            if not self._stopped:
                self._ready.append(made)
                self._cond.notify_all()
            return not self._stopped

    def _has_room(self) -> bool:
        """Wait until another result may be made; False: stopped."""
        while True:
            with self._cond:
                while len(self._ready) >= self._ahead and not self._stopped and not self._unsettled:
                    self._cond.wait()
                if self._stopped or len(self._ready) < self._ahead:
                    self._unsettled.clear()
                    return not self._stopped
            try:
                for one in self._unsettled:
                    cast("Any", self.settle)(one)
                self._unsettled.clear()
            except BaseException as error:  # noqa: BLE001 -- as above
                self._put(error)
                return False

    def stop(self, wait_s: float | None, why: str = STOPPED) -> None:
        if os.getpid() != self._pid:
            return
        deadline = None if wait_s is None else time.perf_counter() + wait_s
        # Called in a locked region (by a garbage collection or a signal handler): our thread needs the lock to end.
        inside = cast("Any", self._lock)._is_owned()
        with self._lock:
            self._stopped = True
            self._cond.notify_all()
        self._source.release(wait_s, why)  # ends a wait for the next batch
        if self._thread is not None and not inside and not isinstance(threading.current_thread(), OwnThread):
            with contextlib.suppress(RuntimeError):  # a signal came before it had started; it ends by itself
                self._thread.join(None if deadline is None else max(0.0, deadline - time.perf_counter()))
        self._ready.clear()
