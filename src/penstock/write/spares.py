"""Copies of large arrays in memory that is used again.

A row's image is copied when it is taken and needed until it is encoded, a moment later in another thread. Memory fresh
from the system costs four times the copying itself (a page fault for every 4 KiB, 138 us for 256x256 colours against
33), so it comes back here. Safe for threads; keeps a bounded number of bytes.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

LEAST_BYTES = 64 << 10
"""Smaller arrays come from memory that the process has already."""
MOST_BYTES = 64 << 20
"""Bytes kept for later, all sizes together."""
_CLASS_BYTES = 64 << 10


class Spares:
    """Memory of copies that are no longer needed."""

    def __init__(self) -> None:
        self._free: dict[int, list[NDArray[np.uint8]]] = defaultdict(list)
        self._bytes = 0
        self._lock = threading.Lock()

    def copy(self, value: NDArray[Any]) -> NDArray[Any]:
        """Return a copy of an array, laid out like it."""
        if value.nbytes < LEAST_BYTES or not value.flags.c_contiguous or value.dtype.hasobject:
            return value.copy(order="K")
        size = -(-value.nbytes // _CLASS_BYTES) * _CLASS_BYTES
        with self._lock:
            free = self._free[size]
            memory = free.pop() if free else None
            self._bytes -= 0 if memory is None else size
        if memory is None:
            memory = np.empty(size, np.uint8)
        copied = memory[: value.nbytes].view(value.dtype).reshape(value.shape)
        np.copyto(copied, value)
        return copied

    def give_back(self, copies: Iterable[Any]) -> None:
        """Take the memory of copies that nobody looks at any more; anything else is passed over."""
        with self._lock:
            for copied in copies:
                memory = getattr(copied, "base", None)
                if not isinstance(memory, np.ndarray) or memory.dtype != np.uint8 or memory.nbytes % _CLASS_BYTES:
                    continue
                if self._bytes + memory.nbytes <= MOST_BYTES:
                    self._free[memory.nbytes].append(memory)
                    self._bytes += memory.nbytes
