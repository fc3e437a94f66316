"""Decode one column: encoded cells into memory that the caller owns, or an Arrow column into the values of a batch.

The only place that calls codecs to decode. The engine decodes the cells of a batch into its own memory; row filters and
row-group indexes decode Arrow columns of a chunk. Errors are traced to a row of the column, `CellError.index`; callers
know which file that row belongs to. Reads no files.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.codecs.arrow import Fixed, cells_view, column_kind, fixed_view, mask, objects
from penstock.codecs.arrow_fixed import fill_value
from penstock.codecs.base import (
    CellError,
    Cells,
    DataframeColumnCodec,
    FieldLike,
    claimed_bytes,
    column_dtype,
    decode_column,
    decode_list,
    has_cells,
)
from penstock.errors import CodecError
from penstock.options import MEMORY_BYTES

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    Column = NDArray[Any] | list[Any]

GUESSED_CELL_BYTES = 1 << 16
"""Decoded size assumed for a cell of unknown shape."""


def decode_cells(
    codec: DataframeColumnCodec,
    field: FieldLike,
    cells: Cells,
    out: NDArray[Any] | None,
    failed: dict[int, Exception] | None = None,
) -> Column:
    """Decode cells into `out` and return it, masked where cells are null; with `out=None` return a list of values.

    A user's codec may raise anything for damaged bytes. If the column as a whole fails, the cells are decoded one by
    one to find those that are to blame.

    Args:
        codec: Decodes the cells.
        field: Passed to the codec.
        cells: What to decode.
        out: An array of shape `(len(cells), *shape)`; null rows are set to the dtype's fill value.
        failed: If given, cells that cannot be decoded do not raise: their exceptions are stored here by row, and their
            rows hold None, or arbitrary values in `out`.

    Raises:
        CellError: a cell cannot be decoded, and `failed` is not given; carries the row.
        CodecError, MemoryError: as raised for the whole column.
    """
    if out is not None and cells.valid is not None:
        out[~cells.valid] = fill_value(out.dtype)
    try:
        if out is None:
            return decode_list(codec, field, cells)
        decode_column(codec, field, cells, out)
    except (CodecError, MemoryError):
        raise
    except Exception as error:
        if failed is None and isinstance(error, CellError):
            raise
        values: list[Any] = [None] * len(cells)
        found = {} if failed is None else failed
        for row in range(len(cells)):
            one = cells.take(np.array([row]))
            try:
                if out is None:
                    (values[row],) = decode_list(codec, field, one)
                else:
                    decode_column(codec, field, one, out[row : row + 1])
            except Exception as reason:
                if failed is None:
                    raise CellError(row, reason_of(reason, field.name)) from reason
                found[row] = reason
        if not found:
            raise  # every cell decodes on its own
        if out is None:
            return values
    return mask(out, cells.valid)


def reason_of(error: Exception, column: str) -> str:
    """Return why a cell cannot be decoded, without the name of its column, which callers add themselves."""
    if not isinstance(error, CellError):
        return f"{type(error).__name__}: {error}"
    return str(error).removeprefix(f"cannot decode a cell of field {column!r}: ")


def decode_array(array: pa.Array, field: Any) -> Column:
    """Return the values of an Arrow column as a batch holds them: stacked where all rows have one dtype and shape.

    Nulls make a MaskedArray of a stacked column and are None in others. `field` is a `UnischemaField`.

    Raises:
        CellError: a cell cannot be decoded, or claims more than `MEMORY_BYTES` once decoded; carries its row.
    """
    if not has_cells(field.codec):
        kind = column_kind(array.type, numpy_dtype=field.asked_dtype, name=field.name, shape=field.shape)
        return mask(*fixed_view(array, kind)) if isinstance(kind, Fixed) else objects(array, kind)
    data, offsets, valid = cells_view(array)
    wide = offsets.astype(np.int64, copy=False)
    cells = Cells([data], None, wide[:-1], wide[1:], valid)
    dtype = column_dtype(field)
    if dtype is not None:
        return decode_cells(field.codec, field, cells, np.empty((len(cells), *field.shape), dtype))
    sizes = claimed_bytes(field.codec, field, cells)
    if sizes is not None and len(large := np.flatnonzero(sizes > MEMORY_BYTES)):
        size = int(sizes[large[0]])
        raise CellError(int(large[0]), f"it takes {size:,} bytes when it is decoded; the limit is {MEMORY_BYTES:,}")
    return decode_cells(field.codec, field, cells, None)


def decoded_bytes(field: FieldLike, codec: DataframeColumnCodec | None) -> int:
    """Return the bytes of one decoded row of a column of cells, 0 for native columns."""
    if not has_cells(codec):
        return 0
    dtype = column_dtype(field)
    return GUESSED_CELL_BYTES if dtype is None else dtype.itemsize * math.prod(size or 0 for size in field.shape)
