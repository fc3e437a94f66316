"""Petastorm's worker pools, as names: which pool a `Reader` uses, and two exceptions.

The pools are those of Penstock's engine; the classes here only say which one and how many workers.
"""

from __future__ import annotations

from penstock.errors import PenstockError

__all__ = ["EmptyResultError", "TimeoutWaitingForResultError"]


class EmptyResultError(PenstockError):
    """Petastorm's pools raised it when all results were out; kept for programs that catch it."""


class TimeoutWaitingForResultError(PenstockError):
    """Petastorm's pools raised it when no result came in time; kept for programs that catch it."""
