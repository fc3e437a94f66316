"""Threads that bring batches to a device ahead of need; what a batch goes through there is the caller's (`device`).

A `Feed` has one thread and hands things on in order; two of them in a row work on two batches at once. Nothing here
knows of tensors, devices or datasets.

What happens to a feed's thread, in every case: at the end of the pass and after an error it ends by itself, the error
being raised where its batch would have come; on `break`, garbage collection, a new iterator and `close()` it is
stopped and joined, the source first, which ends a wait for the next batch; at Ctrl-C the consumer stops it; at
interpreter exit the finalizer does; in a forked child, which has no such thread, `take` raises LoaderClosed.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, cast

from penstock.errors import LoaderClosed
from penstock.halt import wait_in

if TYPE_CHECKING:
    from collections.abc import Callable

_LOOK_S = 1.0
"""A consumer that waits looks around this often: on Windows Ctrl-C does not interrupt a wait without end."""


class Feed:
    """A thread that takes from a source and works on what it gets, up to `depth` ahead of the consumer.

    The source has `take()`, which raises StopIteration at the end, and `stop()`; so has a feed.
    """

    def __init__(
        self,
        source: Any,
        work: Callable[[Any], Any],
        depth: int,
        *,
        receive: Callable[[Any], Any] | None = None,
        settle: Callable[[Any], None] | None = None,
    ) -> None:
        """Make a feed whose thread starts with the first `take`.

        Args:
            source: Where things come from.
            work: What the thread does with each.
            depth: How many may be ready.
            receive: What the consumer does with the result, in its own thread, before this one is woken to make more.
            settle: What the thread may still do with a result when it has nothing better to do.
        """
        self._source = source
        self._do = work
        self._depth = depth
        self._receive = receive
        self._settle = settle
        self._ready: deque[tuple[bool, Any]] = deque()
        self._unsettled: list[Any] = []
        self._lock = threading.RLock()
        self._cond = threading.Condition(self._lock)
        self._stopped = False
        self._pid = os.getpid()
        self._thread: threading.Thread | None = None

    def take(self) -> Any:
        """Return the next result; StopIteration after the last one; raises what went wrong on the way."""
        if os.getpid() != self._pid:
            raise LoaderClosed("this loader was made in another process; make one after the fork instead")
        if self._thread is None and not self._stopped:
            self._thread = threading.Thread(target=self._work, name="penstock-feed", daemon=True)
            self._thread.start()
        with self._lock:  # not `with self._cond`: its Python __enter__ could be interrupted with the lock taken
            while not self._ready:
                if self._stopped:
                    raise LoaderClosed("the loader was closed, or another iterator was made, while a batch was awaited")
                wait_in(self._lock, self._cond, _LOOK_S)
            good, found = self._ready.popleft()
        try:
            if not good:
                raise found
            return found if self._receive is None else self._receive(found)
        finally:
            del found  # an error's traceback holds this frame
            with self._lock:
                self._cond.notify_all()

    def _work(self) -> None:
        while self._room():
            try:
                found = self._source.take()
                made: tuple[bool, Any] = True, self._do(found)
                del found
            except BaseException as error:  # noqa: BLE001 -- handed to the consumer, who meets it in order
                made = False, error
            if not self._put(*made) or not made[0]:
                return
            if self._settle is not None:
                self._unsettled.append(made[1])
            del made

    def _put(self, good: bool, made: Any) -> bool:
        """Hand a result to the consumer; False: stopped."""
        with self._cond:
            if not self._stopped:
                self._ready.append((good, made))
                self._cond.notify_all()
            return not self._stopped

    def _room(self) -> bool:
        """Wait until another result may be made; False: stopped."""
        while True:
            with self._cond:
                while len(self._ready) >= self._depth and not self._stopped and not self._unsettled:
                    self._cond.wait()
                if self._stopped or len(self._ready) < self._depth:
                    self._unsettled.clear()
                    return not self._stopped
            try:
                self._settle_all()
            except BaseException as error:  # noqa: BLE001 -- as above
                self._put(False, error)
                return False

    def _settle_all(self) -> None:
        for one in self._unsettled:
            if self._settle is not None:
                self._settle(one)
        self._unsettled.clear()

    def stop(self) -> None:
        """End the thread, and the source, and wait for them; may be called twice and from a finalizer."""
        if os.getpid() != self._pid:
            return
        # Called in a locked region (by a garbage collection or a signal handler): our thread needs the lock to end.
        inside = cast("Any", self._lock)._is_owned()
        with self._lock:
            self._stopped = True
            self._cond.notify_all()
        self._source.stop()  # ends a wait for the next batch
        thread = self._thread
        if thread is not None and thread is not threading.current_thread() and not inside:
            with contextlib.suppress(RuntimeError):  # a signal came before it had started; it ends by itself
                thread.join()
        self._ready.clear()
