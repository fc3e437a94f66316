"""A little memory that a `Batches` shares with its worker processes: which passes they have begun, and its orders.

Workers of one `for` over a DataLoader find out together which pass it is, the process that holds the `Batches` learns
of it whatever a `collate_fn` makes of the batches, and workers that stay learn of `set_epoch` and `load_state_dict`.
Plain words of 8 bytes, each written at once: no lock that a killed process could keep, no thread, no name in a
filesystem. It is inherited by a fork and travels with the start of a process, and in no other way.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

_SLOTS = 8
"""How many iterations are remembered: more than can begin while the workers of one are started."""
_MOST_WORKERS = 512
_TEXT_BYTES = 32 << 10
_LOW = (1 << 32) - 1
_PASS_BITS = 40

# Where things are among the words.
_ORDERS, _LENGTH = 0, 1
_WHO = 2
"""Of each slot: number of the iteration and whose it is."""
_PASS = _WHO + _SLOTS
"""Of each slot: the orders it obeys, and its pass."""
_BEGUN = _PASS + _SLOTS
"""Of each slot and worker: the number of the iteration that this worker has begun."""
_SKIPPED = _BEGUN + _SLOTS * _MOST_WORKERS
"""Of each worker: number of the iteration, and rows that it has left out in it."""
_WORDS = _SKIPPED + _MOST_WORKERS


class Begun(NamedTuple):
    """One iteration over a DataLoader with workers."""

    number: int
    """Counted from 1."""
    orders: int
    """How many orders had been given when its workers were started, or began again."""
    in_pass: int
    """The pass that it goes through."""


class Cell:
    """The common memory; `owner` is the process that gives orders."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._words: Any = multiprocessing.RawArray("q", _WORDS)
        self._text: Any = multiprocessing.RawArray("c", _TEXT_BYTES)

    # -- orders ---------------------------------------------------------------------------------------------------

    @property
    def orders(self) -> int:
        """How many orders were given."""
        return int(self._words[_ORDERS])

    def give_order(self, state: Mapping[str, Any] | None) -> int:
        """Tell workers that stay to go on from a state; None: as they are. Returns the number of orders."""
        text = b"" if state is None else json.dumps(dict(state)).encode()
        fits = len(text) <= _TEXT_BYTES
        if fits:
            self._text[: len(text)] = text
        self._words[_LENGTH] = len(text) if fits else -1
        self._words[_ORDERS] += 1
        return self.orders

    def order(self) -> dict[str, Any] | None:
        """Return the state of the last order; ValueError where it was too long."""
        length = int(self._words[_LENGTH])
        if length < 0:
            raise ValueError(f"the state has more than {_TEXT_BYTES} bytes")
        state: dict[str, Any] | None = json.loads(self._text[:length]) if length else None
        return state

    # -- iterations -----------------------------------------------------------------------------------------------

    def latest(self) -> Begun | None:
        """Return the iteration that has begun last."""
        return max(self._begun(), default=None)

    def begin(self, who: int, worker: int, orders: int, in_pass: int | None, first: int) -> Begun:
        """Return the iteration that a worker begins.

        Args:
            who: A number that all workers of an iteration have, and seldom those of another one.
            worker: Its index.
            orders: How many orders it knows of.
            in_pass: The pass, if it knows; None: the one after the last one, or that which others of its iteration do.
            first: The pass to begin with after these orders.
        """
        who &= _LOW
        last = self.latest()
        for one in sorted(self._begun(), reverse=True):
            slot = one.number % _SLOTS
            # The same seed twice is the same `who`: a worker that has begun this one begins another one now.
            if self._words[_WHO + slot] & _LOW == who and not self._has_begun(worker, one.number):
                return self._enter(worker, one if in_pass is None else one._replace(in_pass=in_pass))
        if in_pass is None:
            in_pass = last.in_pass + 1 if last is not None and last.orders == orders else first
        one = Begun(1 if last is None else last.number + 1, orders, in_pass)
        slot = one.number % _SLOTS
        self._words[_PASS + slot] = orders << _PASS_BITS | in_pass
        self._words[_WHO + slot] = one.number << 32 | who  # second: who sees it finds the pass
        return self._enter(worker, one)

    def _begun(self) -> list[Begun]:
        found = []
        for slot in range(_SLOTS):
            number, word = int(self._words[_WHO + slot]) >> 32, int(self._words[_PASS + slot])
            if number:
                found.append(Begun(number, word >> _PASS_BITS, word & ((1 << _PASS_BITS) - 1)))
        return found

    def _has_begun(self, worker: int, number: int) -> bool:
        place = _BEGUN + number % _SLOTS * _MOST_WORKERS + worker
        return worker < _MOST_WORKERS and self._words[place] == number

    def _enter(self, worker: int, one: Begun) -> Begun:
        if worker < _MOST_WORKERS:
            self._words[_BEGUN + one.number % _SLOTS * _MOST_WORKERS + worker] = one.number
        return one

    # -- rows left out --------------------------------------------------------------------------------------------

    def skip(self, number: int, worker: int, num_rows: int) -> int:
        """Add rows that a worker has left out in an iteration; returns those of all its workers."""
        if worker < _MOST_WORKERS:
            word = int(self._words[_SKIPPED + worker])
            before = word & _LOW if word >> 32 == number else 0
            self._words[_SKIPPED + worker] = number << 32 | before + num_rows
        words = self._words[_SKIPPED : _SKIPPED + _MOST_WORKERS]
        return sum(word & _LOW for word in words if word >> 32 == number)
