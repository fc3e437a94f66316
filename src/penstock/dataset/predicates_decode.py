"""Arrow columns as the values that predicates and indexes look at: decoded by their codecs, as a loader gives them.

`predicates_view` and `index_build` hand over one column at a time, of a chunk or of some of its rows. Gives an array, a
MaskedArray where there are nulls, or a list of row values; `row_values` makes row values of any of them. Reads no file.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.codecs.arrow import Fixed, cells_view, column_kind, fixed_view, mask, objects, takeable
from penstock.codecs.arrow_fixed import fill_value
from penstock.codecs.base import (
    CellError,
    Cells,
    claimed_bytes,
    column_dtype,
    decode_column,
    decode_list,
    has_cells,
)
from penstock.options import MEMORY_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.schema.unischema import UnischemaField

    Column = NDArray[Any] | list[Any]

GUESS_BYTES = 1 << 16
"""Decoded bytes assumed for a cell of unknown shape."""


def decode(array: pa.Array, field: UnischemaField) -> Column:
    """Return the decoded values of a column, stacked where all rows have one dtype and shape.

    Raises:
        CellError: a cell cannot be decoded; carries its row.
    """
    if has_cells(field.codec):
        return _decode_cells(array, field)
    kind = column_kind(array.type, numpy_dtype=field.asked_dtype, name=field.name, shape=field.shape)
    if isinstance(kind, Fixed):
        return mask(*fixed_view(array, kind))
    return objects(array, kind)


def _decode_cells(array: pa.Array, field: UnischemaField) -> Column:
    data, offsets, valid = cells_view(array)
    wide = offsets.astype(np.int64, copy=False)
    cells = Cells([data], None, wide[:-1], wide[1:], valid)
    codec: Any = field.codec
    dtype = column_dtype(field)
    if dtype is None:
        sizes = claimed_bytes(codec, field, cells)
        if sizes is not None and len(large := np.flatnonzero(sizes > MEMORY_BYTES)):
            size = int(sizes[large[0]])
            raise CellError(int(large[0]), f"it takes {size:,} bytes when it is decoded; {MEMORY_BYTES:,} are read")
        return decode_list(codec, field, cells)
    out = np.full((len(cells), *_sizes(field)), fill_value(dtype), dtype)
    decode_column(codec, field, cells, out)
    return mask(out, valid)


def _sizes(field: UnischemaField) -> tuple[int, ...]:
    return tuple(size for size in field.shape if size is not None)  # no free dimension: the field has a dtype


def decoded_bytes(field: UnischemaField) -> int:
    """Return the bytes of one decoded row where cells are decoded, 0 for native columns."""
    if not has_cells(field.codec):
        return 0
    dtype = column_dtype(field)
    return GUESS_BYTES if dtype is None else dtype.itemsize * math.prod(_sizes(field))


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array; more than 2 GiB of text or bytes get 64-bit offsets."""
    if column.num_chunks == 1:
        return column.chunk(0)
    if pa.types.is_binary(column.type):
        column = column.cast(pa.large_binary())
    elif pa.types.is_string(column.type):
        column = column.cast(pa.large_string())
    return column.combine_chunks()


def take(array: pa.Array, rows: NDArray[np.int64]) -> pa.Array:
    """Return some rows of a column."""
    index = pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(np.ascontiguousarray(rows))])
    return takeable(array).take(index)


def row_values(column: Column) -> list[Any]:
    """Return the value of each row, None for null; stacked columns give NumPy scalars and arrays."""
    if not isinstance(column, np.ma.MaskedArray):
        return list(column)
    hidden = np.ma.getmaskarray(column)
    if column.ndim == 1:
        return [None if null else value for value, null in zip(column.data, hidden.tolist(), strict=True)]
    return [None if null else _row(column, row) for row, null in enumerate(null_rows(column).tolist())]


def null_rows(column: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which rows of a stacked column are null: all of their elements are, and there are some."""
    hidden = np.ma.getmaskarray(column).reshape(len(column), -1)
    return np.asarray(hidden.all(axis=1) & (hidden.shape[1] > 0), np.bool_)


def _row(column: np.ma.MaskedArray[Any, Any], row: int) -> Any:
    one = column[row]
    return one if np.ma.getmaskarray(one).any() else one.data
