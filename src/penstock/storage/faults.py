"""Tell faults of a store from damaged data, and repeat requests where that may help.

Every request to a store runs inside `attempt`. Its errors leave as one of three kinds, which are never mixed up:
`StoreUnavailable` (the store does not answer; tried again first), `StoreRefused` (access denied; raised at once), and
everything else unchanged, for example FileNotFoundError. Only the last kind may say something about the data.

`fault_kinds` decides which kind an error is, once a request has failed.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, TypeVar

from penstock.errors import StoreUnavailable
from penstock.halt import pause
from penstock.storage.fault_kinds import store_error

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
"""What a request returns."""

ATTEMPTS = 8
"""How often a request is made before its store counts as unavailable."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0
"""The pause after the first failure, doubled each time: 16 s in all at most."""
_LONGEST_S = 60.0
"""No further attempt after this time: some clients make their own attempts for minutes before they report a failure."""
_jitter = random.Random()  # not the global state, which belongs to the user


def attempt(request: Callable[[], T], url: str) -> T:
    """Return what a request returns; make it again, after a pause, while its store is unavailable.

    A request inside another one is not repeated twice: its `StoreError` passes. Costs nothing if all goes well. Where
    the thread's work is stopped meanwhile (see `halt.until`) there is no further attempt.

    Raises:
        StoreUnavailable: the last of `ATTEMPTS` attempts failed too, or the first ones took a minute.
        StoreRefused: access was denied; not tried again.
    """
    number, began = 1, time.monotonic()
    while True:
        try:
            return request()
        except Exception as error:
            failure = store_error(error, url, attempts=number)
            if failure is None or failure is error:
                raise
            # Random pauses, so that ranks do not all return at once.
            pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** (number - 1)) * _jitter.uniform(0.5, 1.0)
            last = number == ATTEMPTS or time.monotonic() - began > _LONGEST_S
            if last or not isinstance(failure, StoreUnavailable) or pause(pause_s):
                raise failure from error
        number += 1
