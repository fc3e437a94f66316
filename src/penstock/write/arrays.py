"""Lists of plain values, and NumPy columns, to Arrow arrays from buffers: the result of `pa.array`, faster.

`pa.array` looks at every value and imports pandas if it is installed, which costs a third of a second before the first
row. Here one look at the types of a list decides; whatever is not plain is left to `pa.array` by returning None. Never
converts a value: an array is returned only if it equals that of `pa.array`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.codecs.arrow_kinds import scalar_dtype
from penstock.write.copies import BufferPool

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NONE = type(None)
_MOST = (1 << 31) - 1
"""Bytes that 32-bit offsets can address."""
_LARGE = 64 << 10
_JOINED = BufferPool()


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
    """Return a flat array of numbers or booleans as a column of its own type or a wider one.

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
