"""Counters of a loader: rows, bytes, and the seconds spent in each stage.

Stages add to them from several threads; one lock, a few additions a batch. Says nothing about why: `Loader.stats`
hands the numbers out as a plain dict.
"""

from __future__ import annotations

import threading


class Stats:
    """What a loader has done so far."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.rows = 0
        self.batches = 0
        self.chunks_read = 0
        self.bytes_read = 0
        self.wait_s = 0.0
        self.read_s = 0.0
        self.gather_s = 0.0
        self.finish_s = 0.0

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

    def delivered(self, num_rows: int, wait_s: float) -> None:
        """Count one batch handed to the consumer and how long it waited."""
        with self._lock:
            self.rows += num_rows
            self.batches += 1
            self.wait_s += wait_s

    def as_dict(self) -> dict[str, float]:
        """Return all counters; seconds are summed over threads, except `wait_s`, which is the consumer's."""
        with self._lock:
            return {name: value for name, value in vars(self).items() if not name.startswith("_")}
