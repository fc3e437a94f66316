"""`ProcessPool(10)`, as Petastorm's documents hand it to `Reader(reader_pool=...)`.

Selects the process pool and its size, and starts nothing: the engine has its own processes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

__all__ = ["ProcessPool"]


@dataclass(frozen=True)
class ProcessPool:
    """Other processes decode and transform."""

    pool_type: ClassVar[str] = "process"
    """What `make_reader` calls this pool."""
    workers_count: int
    """Processes."""
    serializer: Any = None
    """Without effect: batches come back in shared memory."""
    zmq_copy_buffers: bool = True
    """Without effect, for the same reason."""
