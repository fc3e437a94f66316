"""Petastorm's exceptions, as classes of the error tree of Penstock.

Raised by the readers of this API; other exceptions are in the same modules as in Petastorm. Nothing is raised here.
"""

from __future__ import annotations

from penstock.errors import PenstockError

__all__ = ["NoDataAvailableError"]


class NoDataAvailableError(PenstockError):
    """There is nothing to read: no row group for this shard, or a selection that leaves no rows."""
