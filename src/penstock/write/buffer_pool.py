"""A pool of large memory blocks that are reused.

An image is copied when its row is taken and needed until it is encoded, a moment later in another thread; encoded cells
lie end to end until their row group is written. Fresh memory of the system costs four times as much as the copy (a page
fault every 4 KiB: 138 us for 256x256 colours, against 33), so blocks come back here. Thread-safe; keeps a bounded
number of bytes.
"""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

LEAST_BYTES = 64 << 10
"""Smaller arrays come from the allocator of the process."""
MOST_BYTES = 64 << 20
"""Most bytes kept, all sizes together."""
_CLASS_BYTES = 64 << 10


class BufferPool:
    """Blocks that are free to be reused."""

    def __init__(self) -> None:
        self._free: dict[int, list[NDArray[np.uint8]]] = defaultdict(list)
        self._bytes = 0
        self._lock = threading.RLock()  # a finalizer may run while it is held, in the same thread

    def copy(self, value: NDArray[Any]) -> NDArray[Any]:
        """Return a copy of an array with the same layout."""
        if value.nbytes < LEAST_BYTES or not value.flags.c_contiguous or value.dtype.hasobject:
            return value.copy(order="K")
        copied = self._pop(value.nbytes)[: value.nbytes].view(value.dtype).reshape(value.shape)
        np.copyto(copied, value)
        return copied

    def take(self, size: int) -> NDArray[np.uint8]:
        """Return a block that comes back by itself when nobody, Arrow included, holds it any more."""
        memory = self._pop(size)
        block = memory[:size]
        weakref.finalize(block, self._put, memory).atexit = False
        return block

    def _pop(self, size: int) -> NDArray[np.uint8]:
        size = -(-size // _CLASS_BYTES) * _CLASS_BYTES
        with self._lock:
            free = self._free[size]
            if free:
                self._bytes -= size
                return free.pop()
        return np.empty(size, np.uint8)

    def _put(self, memory: NDArray[np.uint8]) -> None:
        with self._lock:
            if self._bytes + memory.nbytes <= MOST_BYTES:
                self._free[memory.nbytes].append(memory)
                self._bytes += memory.nbytes

    def give_back(self, copies: Iterable[Any]) -> None:
        """Take back the memory of copies that nobody uses any more; ignores anything else."""
        for copied in copies:
            memory = getattr(copied, "base", None)
            if isinstance(memory, np.ndarray) and memory.dtype == np.uint8 and memory.nbytes % _CLASS_BYTES == 0:
                self._put(memory)
