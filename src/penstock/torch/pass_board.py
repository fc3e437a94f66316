"""A block of memory that a `Batches` shares with its worker processes: which passes have begun, and commands.

Through it the workers of one `for` over a DataLoader agree on the pass, the process that holds the `Batches` learns of
it even if a `collate_fn` replaces the batches, and persistent workers learn of `set_epoch` and `load_state_dict`.
Consists of 8-byte words that are each written at once: no lock that a killed process could keep, no thread, no name in
a filesystem. It is inherited by a fork or passed on when a process is started, and in no other way.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_SLOTS = 8
"""How many iterations are remembered: more than can begin while the workers of one are started."""
_MOST_WORKERS = 512
_MOST_SKIPPED = 1 << 20
"""The largest limit that is watched: more skipped rows are not told apart."""
_TEXT_BYTES = 32 << 10
_LOW = (1 << 32) - 1
_PASS_BITS = 40
_ROW_BITS = 40
"""Of the digest of a skipped row; the number of the iteration comes before it."""

# Offsets of the words.
_COMMANDS, _LENGTH = 0, 1
_WHO = 2
"""Of each slot: the number of the iteration, and the key of its workers."""
_PASS = _WHO + _SLOTS
"""Of each slot: how many commands its workers had seen, and its pass."""
_BEGUN = _PASS + _SLOTS
"""Of each slot and worker: the number of the iteration that this worker has begun."""
_WORDS = _BEGUN + _SLOTS * _MOST_WORKERS


class BegunPass(NamedTuple):
    """One iteration over a DataLoader with workers."""

    number: int
    """Number of the iteration, counted from 1."""
    commands: int
    """How many commands its workers had seen when they began it."""
    in_pass: int
    """The pass that they stream."""


class PassBoard:
    """The shared memory; `owner` is the id of the process that gives commands."""

    def __init__(self, skip_limit: int = 0) -> None:
        self.owner = os.getpid()
        self._skipped: Any = multiprocessing.RawArray("q", min(skip_limit, _MOST_SKIPPED) + 1)
        self._words: Any = multiprocessing.RawArray("q", _WORDS)
        self._text: Any = multiprocessing.RawArray("c", _TEXT_BYTES)

    # -- commands -------------------------------------------------------------------------------------------------

    @property
    def commands(self) -> int:
        """How many commands were given."""
        return int(self._words[_COMMANDS])

    def command(self, state: Mapping[str, Any] | None) -> int:
        """Tell persistent workers to go on from a state (None: from where they are); returns the commands given."""
        text = b"" if state is None else json.dumps(dict(state)).encode()
        fits = len(text) <= _TEXT_BYTES
        if fits:
            self._text[: len(text)] = text
        self._words[_LENGTH] = len(text) if fits else -1
        self._words[_COMMANDS] += 1
        return self.commands

    def commanded(self) -> dict[str, Any] | None:
        """Return the state of the last command; ValueError if it was too long."""
        length = int(self._words[_LENGTH])
        if length < 0:
            raise ValueError(f"the state has more than {_TEXT_BYTES} bytes")
        return cast("dict[str, Any]", json.loads(self._text[:length])) if length else None

    # -- iterations -----------------------------------------------------------------------------------------------

    def latest(self) -> BegunPass | None:
        """Return the iteration that began last."""
        return max(self._begun(), default=None)

    def begin(self, who: int, worker: int, commands: int, in_pass: int | None, first: int) -> BegunPass:
        """Return the iteration that a worker begins.

        Args:
            who: A key that all workers of an iteration have in common, and that rarely repeats in another one.
            worker: Its index.
            commands: How many commands it has seen.
            in_pass: The pass, if the worker knows it; None: that of the other workers of this iteration, or the one
                after the last pass.
            first: The first pass after these commands.
        """
        who &= _LOW
        last = self.latest()
        for one in sorted(self._begun(), reverse=True):
            # Equal seeds give equal keys: a worker that has begun this iteration already begins another one now.
            if self._words[_WHO + one.number % _SLOTS] & _LOW == who and not self._has_begun(worker, one.number):
                return self._enter(worker, one if in_pass is None else one._replace(in_pass=in_pass))
        if in_pass is None:
            in_pass = last.in_pass + 1 if last is not None and last.commands == commands else first
        one = BegunPass(1 if last is None else last.number + 1, commands, in_pass)
        slot = one.number % _SLOTS
        self._words[_PASS + slot] = commands << _PASS_BITS | in_pass
        self._words[_WHO + slot] = one.number << 32 | who  # after the pass: who finds the number can rely on it
        return self._enter(worker, one)

    def _begun(self) -> list[BegunPass]:
        slots = ((int(self._words[_WHO + slot]) >> 32, int(self._words[_PASS + slot])) for slot in range(_SLOTS))
        in_pass = (1 << _PASS_BITS) - 1
        return [BegunPass(number, word >> _PASS_BITS, word & in_pass) for number, word in slots if number]

    def _has_begun(self, worker: int, number: int) -> bool:
        return worker < _MOST_WORKERS and self._words[_begun_word(worker, number)] == number

    def _enter(self, worker: int, one: BegunPass) -> BegunPass:
        if worker < _MOST_WORKERS:
            self._words[_begun_word(worker, one.number)] = one.number
        return one

    # -- skipped rows ---------------------------------------------------------------------------------------------

    def skip(self, number: int, rows: Iterable[tuple[str, int, int]]) -> int:
        """Note rows (file, part, row) that were skipped in an iteration; return how many all workers have noted.

        A row that is met again, in another epoch or by another worker, counts once.
        """
        begin, skipped = number << _ROW_BITS, np.frombuffer(self._skipped, np.int64)
        for row in rows:
            digest = hashlib.blake2b(repr(row).encode(), digest_size=_ROW_BITS // 8).digest()
            word = begin | int.from_bytes(digest, "little")
            free = np.flatnonzero(skipped >> _ROW_BITS != number)
            if len(free) and word not in skipped:
                skipped[free[word % len(free)]] = word  # any of them: two workers rarely choose the same
        return int(np.count_nonzero(skipped >> _ROW_BITS == number))


def _begun_word(worker: int, number: int) -> int:
    return _BEGUN + number % _SLOTS * _MOST_WORKERS + worker
