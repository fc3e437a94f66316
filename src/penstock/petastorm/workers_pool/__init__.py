"""Petastorm's worker pools, as names: which pool a `Reader` uses, and two exceptions.

Penstock's engine has its own pools; the classes here only select one and its number of workers.
"""

from __future__ import annotations

from penstock.errors import PenstockError

__all__ = ["EmptyResultError", "TimeoutWaitingForResultError"]


class EmptyResultError(PenstockError):
    """Petastorm's pools raised it when all results were out; kept for programs that catch it."""


class TimeoutWaitingForResultError(PenstockError):
    """Petastorm's pools raised it when no result came in time; kept for programs that catch it."""
