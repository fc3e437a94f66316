"""A word to threads of ours that call a user's function many times: stop after the call you are in.

Whoever stops the work sets an event; the thread works inside `until(event)`, and loops over the user's function ask
`is_halted()` between two calls. Starts and joins nothing itself.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_running = threading.local()


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
