"""Lists of plain values, and NumPy columns, to Arrow arrays from buffers: the result of `pa.array`, faster.

`pa.array` looks at every value and imports pandas if it is installed, which costs a third of a second before the first
row. Here one look at the types of a list decides; anything else is left to `pa.array` by returning None. Never
converts a value: an array is returned only if it equals the result of `pa.array`.

`own` copies values that wait for their batch, so that the caller may change them: what is mutable, at the cost of one
look at its type. `BufferPool` has memory that is reused: an image is copied when its row is taken and needed until it
is encoded, a moment later in another thread; encoded cells lie end to end until their row group is written. Fresh
memory of the system costs four times as much as the copy (a page fault every 4 KiB: 138 us for 256x256 colours, against
33). Thread-safe; keeps a bounded number of bytes.
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
import pyarrow as pa

from penstock.codecs.arrow_kinds import scalar_dtype

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

_NONE = type(None)
_MOST = (1 << 31) - 1
"""Bytes that 32-bit offsets can address."""
_LARGE = 64 << 10


def quick_array(cells: list[Any], kind: pa.DataType) -> pa.Array | None:
    """Return a list of bytes, text, integers, floats or booleans, with None for nulls, as an array of that type.

    Returns None if the list has anything else, or a number that the type cannot hold.
    """
    types = set(map(type, cells))
    valid = np.array([cell is not None for cell in cells], np.bool_) if _NONE in types else None
    types.discard(_NONE)
    if types == {bytes} and kind == pa.binary():
        return _bytes(cells, kind, valid)
    if types == {str} and kind == pa.string():
        try:
            return _bytes([cell if cell is None else cell.encode() for cell in cells], kind, valid)
        except UnicodeEncodeError:  # a lone surrogate
            return None
    if valid is not None:
        cells = [0 if cell is None else cell for cell in cells]
    if types == {int} and pa.types.is_integer(kind):
        dtype = np.dtype(str(kind))
        limits = np.iinfo(dtype)
        if min(cells) < limits.min or max(cells) > limits.max:
            return None
        return _from_numpy(np.array(cells, dtype), kind, valid)
    if types == {float} and (pa.types.is_float64(kind) or pa.types.is_float32(kind)):
        with np.errstate(over="ignore"):
            values = np.array(cells, np.float64 if pa.types.is_float64(kind) else np.float32)
        if pa.types.is_float32(kind) and np.isinf(values).any():  # or too large for 32 bits
            return None
        return _from_numpy(values, kind, valid)
    if types == {bool} and pa.types.is_boolean(kind):
        return _from_numpy(np.array(cells, np.bool_), kind, valid)
    return None


def quick_column(values: NDArray[Any], kind: pa.DataType, mask: NDArray[np.bool_] | None) -> pa.Array:
    """Return a flat array of numbers or booleans as a column of the same or a wider type.

    Numbers of the type of the column are not copied.
    """
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        return pa.array(values, kind, mask=mask)
    stored = values if pa.types.is_boolean(kind) else values.astype(scalar_dtype(kind), copy=False)
    return _from_numpy(stored, kind, None if mask is None else ~mask)


def _bytes(cells: list[Any], kind: pa.DataType, valid: NDArray[np.bool_] | None) -> pa.Array | None:
    sizes = [0 if cell is None else len(cell) for cell in cells]
    offsets = np.zeros(len(cells) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    if offsets[-1] > _MOST:
        return None
    data = _joined(cells, offsets)
    buffers = [_bits(valid), pa.py_buffer(offsets.astype(np.int32)), data]
    return pa.Array.from_buffers(kind, len(cells), buffers)


def _joined(cells: list[Any], offsets: NDArray[np.int64]) -> pa.Buffer:
    """Return the cells end to end; large ones in memory that is reused."""
    size = int(offsets[-1])
    if size < _LARGE:
        return pa.py_buffer(b"".join([cell for cell in cells if cell is not None]))
    block = _JOINED.take(size)
    for cell, start in zip(cells, offsets.tolist(), strict=False):
        if cell:
            # NumPy copies without the GIL, which the encoding threads need every 100 us.
            np.copyto(block[start : start + len(cell)], np.frombuffer(cell, np.uint8))
    return pa.py_buffer(block)


def _from_numpy(values: NDArray[Any], kind: pa.DataType, valid: NDArray[np.bool_] | None) -> pa.Array:
    data = _bits(values) if pa.types.is_boolean(kind) else pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(kind, len(values), [_bits(valid), data])


def _bits(flags: NDArray[Any] | None) -> pa.Buffer | None:
    return None if flags is None else pa.py_buffer(np.packbits(flags, bitorder="little"))


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
        """Return a block that returns to the pool when nothing, Arrow included, refers to it any more."""
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
        """Take back the memory of copies that are no longer used; ignores anything else."""
        for copied in copies:
            memory = getattr(copied, "base", None)
            if isinstance(memory, np.ndarray) and memory.dtype == np.uint8 and memory.nbytes % _CLASS_BYTES == 0:
                self._put(memory)


_JOINED = BufferPool()

FIXED: frozenset[type] = frozenset(
    [
        *(type(None), bool, int, float, complex, str, bytes, range, decimal.Decimal),
        *(datetime.date, datetime.datetime, datetime.time, datetime.timedelta),
    ]
)
"""Immutable types; those of NumPy scalars are recognised by their base class."""


def own(value: Any) -> Any:
    """Return a value that no other code can change: the same object if it is immutable, else a deep copy.

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
