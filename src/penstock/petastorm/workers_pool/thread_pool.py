"""`ThreadPool(10)`, as Petastorm's documents hand it to `Reader(reader_pool=...)`.

Selects the thread pool and its size, and starts nothing: the engine has its own threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

__all__ = ["ThreadPool"]


@dataclass(frozen=True)
class ThreadPool:
    """Threads of this process decode and transform."""

    pool_type: ClassVar[str] = "thread"
    """What `make_reader` calls this pool."""
    workers_count: int
    """Threads."""
    results_queue_size: int = 50
    """Without effect: memory is bounded in bytes."""
    profiling_enabled: bool = False
    """Without effect; see `Reader.diagnostics`."""
    shuffle_rows: bool = False
    """Without effect: the order does not depend on the pool."""
    seed: int | None = None
    """Without effect, for the same reason."""
