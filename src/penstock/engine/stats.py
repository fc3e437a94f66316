"""Counters of a loader: rows, bytes, the seconds spent in each stage, and what the last steps took.

Stages add to them from several threads, the consumer to others, under a lock that no stage waits for: a signal handler
may close the loader at any moment, and then the consumer waits for the stages. Says nothing about why: `Loader.stats`
hands the numbers out as a plain dict, `report` reads them.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import deque
from typing import NamedTuple

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
        self.rows = 0
        self.batches = 0
        self.chunks_read = 0
        self.bytes_read = 0
        self.wait_s = 0.0
        self.read_s = 0.0
        self.gather_s = 0.0
        self.finish_s = 0.0
        self.hand_over_s = 0.0

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
            sums = self.read_s, self.gather_s, self.finish_s, self.bytes_read, self.hand_over_s
            self._steps.append(Step(end, num_rows, wait_s, *sums))

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
