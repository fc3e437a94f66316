"""Petastorm's exceptions, as classes of the error tree of Penstock.

Raised by the readers of this face; what Petastorm keeps in other modules is in those. Nothing is raised here.
"""

from __future__ import annotations

from penstock.errors import PenstockError

__all__ = ["NoDataAvailableError"]


class NoDataAvailableError(PenstockError):
    """There is nothing to read: no row group for this shard, or a selection that leaves no rows."""
