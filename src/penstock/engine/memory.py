"""Memory for batches: blocks that are used again once nothing refers to them.

A batch owns its memory: every array handed out refers to its block, and a block returns to the pool when the last
array on it is gone. First-touched pages are slow, so a loader that runs for hours touches only a few blocks. The pool
never blocks and never waits: a batch that the user keeps simply keeps its block.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

ALIGN = 64
_GRAIN = 1 << 16


def aligned(num_bytes: int) -> int:
    """Round up to the alignment of columns inside a block."""
    return (num_bytes + ALIGN - 1) & -ALIGN


class _Lease:
    """Keeps a block out of the pool while any array refers to it."""

    __slots__ = ("__array_interface__", "_free", "_memory")

    def __init__(self, memory: NDArray[np.uint8], free: deque[NDArray[np.uint8]]) -> None:
        self._memory = memory
        self._free = free
        self.__array_interface__: dict[str, Any] = {
            "shape": (memory.size,),
            "typestr": "|u1",
            "data": (memory.ctypes.data, False),
            "version": 3,
        }

    def __del__(self) -> None:
        # Runs in the thread that drops the last array, maybe inside a garbage collection: must not take a lock.
        self._free.append(self._memory)


class BlockPool:
    """Blocks of bytes, reused by size class; `lease(n)` gives a writable array of at least n bytes.

    Keeps at most `keep` free blocks of each size class, and about as much as `keep` of the largest in all; the rest
    goes back to the system.
    """

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._free: dict[int, deque[NDArray[np.uint8]]] = {}

    def lease(self, num_bytes: int) -> NDArray[np.uint8]:
        """Return uninitialised bytes; the block comes back when the array and all its views are gone."""
        size = max(_GRAIN, (num_bytes + _GRAIN - 1) // _GRAIN * _GRAIN)
        free = self._free.get(size)
        if free is None:
            free = self._free.setdefault(size, deque(maxlen=self._keep))
        try:
            memory = free.pop()
        except IndexError:
            memory = None
        if memory is None:  # outside the except block, so that errors do not chain to the IndexError
            sizes = list(self._free.items())  # sizes may change so often that too many free blocks are kept
            if sum(size * len(free) for size, free in sizes) > self._keep * max(size for size, _ in sizes):
                self.clear()
            fresh = np.empty(size + ALIGN, np.uint8)
            begin = -fresh.ctypes.data % ALIGN  # frameworks share only aligned memory; malloc aligns to 16
            memory = fresh[begin : begin + size]
        return np.asarray(_Lease(memory, free))[:num_bytes]

    def clear(self) -> None:
        """Give all free blocks back."""
        for free in list(self._free.values()):
            free.clear()


def release_unused() -> None:
    """Give memory that Arrow has freed back to the system; costs 1 to 5 ms, and first touches later.

    Arrow's allocator keeps what a thread has freed for that thread, once more as much as is in use.
    """
    import pyarrow as pa

    pa.default_memory_pool().release_unused()


class Cutter:
    """Cuts the arrays of one batch out of one block, column after column."""

    __slots__ = ("_block", "_offset")

    def __init__(self, block: NDArray[np.uint8]) -> None:
        self._block = block
        self._offset = 0

    def cut(self, shape: tuple[int, ...], dtype: np.dtype[Any] | None, num_bytes: int) -> NDArray[Any]:
        """Return the next uninitialised array; the block must have been leased large enough."""
        array: NDArray[Any] = np.ndarray(shape, dtype, self._block, self._offset)
        self._offset += aligned(num_bytes)
        return array
