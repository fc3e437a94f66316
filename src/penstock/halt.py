"""How the threads of this package are stopped: after the call they are in, and without leaving a lock unreleased.

The caller that stops the work sets an event; the thread works inside `until(event)`, and loops over the user's function
ask `is_halted()` between two calls. A consumer waits by `wait_in`, which Ctrl-C may end at any moment. Starts and joins
nothing itself.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

A = TypeVar("A")
R = TypeVar("R")

EXIT_WAIT_S = 10.0
"""How long interpreter exit, or a finalizer, waits for a call that is still running in one of our threads."""
_running = threading.local()


class OwnThread(threading.Thread):
    """A thread of a loader or of a stream in front of it.

    It never waits for a thread in front of it, which may wait for it or for a lock that it holds: a garbage collection
    may finalize a stream in any thread, inside any locked region.
    """


@contextlib.contextmanager
def until(halted: threading.Event) -> Iterator[None]:
    """Make `is_halted` in this thread tell whether the event is set."""
    before = getattr(_running, "halted", None)
    _running.halted = halted
    try:
        yield
    finally:
        _running.halted = before


def is_halted() -> bool:
    """Tell whether the work that this thread does was stopped."""
    halted = getattr(_running, "halted", None)
    return halted is not None and halted.is_set()


def inherited(function: Callable[[A], R]) -> Callable[[A], R]:
    """Return a function that does the same in another thread, and is halted there when this thread's work is."""
    halted = getattr(_running, "halted", None)
    if halted is None:
        return function

    def call(argument: A) -> R:
        with until(halted):
            return function(argument)

    return call


def pause(seconds: float) -> bool:
    """Wait for some seconds, or until the work that this thread does is stopped; return whether it was stopped."""
    halted = getattr(_running, "halted", None) or threading.Event()
    return bool(halted.wait(seconds))


def wait_in(lock: Any, cond: threading.Condition, seconds: float) -> None:
    """Wait for a condition inside `with lock:`, an RLock and the condition's own; it is held after that in any case.

    Ctrl-C just after `Condition.wait` has released its lock would leave it released, and the `with` would then fail.
    """
    try:
        cond.wait(seconds)
    except BaseException:
        if not lock._is_owned():
            lock.acquire()
        raise
