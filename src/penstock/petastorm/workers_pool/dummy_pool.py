"""`DummyPool()`, as Petastorm's documents hand it to `Reader(reader_pool=...)`.

Selects the calling thread for all work, which is useful in a debugger. Does nothing itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

__all__ = ["DummyPool"]


@dataclass(frozen=True)
class DummyPool:
    """The caller's own thread decodes and transforms."""

    pool_type: ClassVar[str] = "dummy"
    """What `make_reader` calls this pool."""
    workers: int | None = None
    """Without effect: there is one, the caller."""

    @property
    def workers_count(self) -> int:
        """One."""
        return 1
