"""Copy values that wait for their batch, so that the caller may change them; large copies into memory that is reused.

`own` copies what is mutable and returns what is not, at the cost of one look at its type. `BufferPool`: an image is
copied when its row is taken and needed until it is encoded, a moment later in another thread; encoded cells lie end to
end until their row group is written. Fresh memory of the system costs four times as much as the copy (a page fault
every 4 KiB: 138 us for 256x256 colours, against 33), so blocks come back here. Thread-safe; keeps a bounded number of
bytes.
"""

from __future__ import annotations

import copy
import datetime
import decimal
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


FIXED: frozenset[type] = frozenset(
    [
        *(type(None), bool, int, float, complex, str, bytes, range, decimal.Decimal),
        *(datetime.date, datetime.datetime, datetime.time, datetime.timedelta),
    ]
)
"""Immutable types; those of NumPy scalars are recognised by their base class."""


def own(value: Any) -> Any:
    """Return a value that nobody else can change: the same object if it is immutable, else a deep copy.

    >>> rows = [[1, 2], [3]]
    >>> mine = own(rows)
    >>> rows[0].append(9)
    >>> mine
    [[1, 2], [3]]
    """
    if is_fixed(value):
        return value
    if isinstance(value, np.ndarray):
        return copy.deepcopy(value) if value.dtype.hasobject else value.copy(order="K")
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if type(value) in (list, tuple):
        if set(map(type, value)) <= FIXED:
            return value[:]
        return type(value)([own(one) for one in value])
    if type(value) is dict:
        return {key: own(one) for key, one in value.items()}
    return value if type(value).__module__.startswith("pyarrow") else copy.deepcopy(value)


def is_fixed(value: Any) -> bool:
    """Tell whether a value is immutable."""
    return type(value) in FIXED or (isinstance(value, np.generic) and not isinstance(value, np.void))
