"""A dict of equally long columns to encode tasks: arrays and lists are encoded, Arrow columns are stored as they are.

First stage for dicts of columns. `pipeline` encodes the slices like any task; arrays of the stored type pass without a
look at their values. `hands` says whether the caller may change its arrays while tasks are waiting.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.codecs.arrow_kinds import scalar_dtype
from penstock.errors import SchemaError
from penstock.write import encode_task
from penstock.write.arrays import quick_column
from penstock.write.cells import array_of, encode_cell, refuse_names, refuse_null, refuse_nulls
from penstock.write.defensive_copy import own
from penstock.write.encode_task import EncodeTask
from penstock.write.tables import checked, stored_column

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.schema.unischema import UnischemaField
    from penstock.write.layout import StorageLayout
    from penstock.write.rows import Hands


def column_works(
    columns: Mapping[str, Any], layout: StorageLayout, first: int, *, start: int, hands: Hands
) -> Iterator[EncodeTask]:
    """Cut a dict of columns into tasks, from its row `start` on; that row has the index `first`."""
    count = length(columns)
    refuse_names(columns, layout.columns.names)
    while start < count:
        stop = min(start + _step(columns, start, hands.batch_bytes), count)
        parts = {name: column[start:stop] for name, column in columns.items()}
        if hands.copy:
            parts = {name: own(part) for name, part in parts.items()}
        size = sum(int(getattr(part, "nbytes", 8 * (stop - start))) for part in parts.values())
        yield EncodeTask(first, stop - start, size, partial(_make, parts, layout, first, stop - start))
        first, start = first + stop - start, stop


def length(columns: Mapping[str, Any]) -> int:
    """Return the number of rows; raises SchemaError if something is not a column, or lengths differ."""
    for name, column in columns.items():
        is_column = hasattr(column, "__len__") and hasattr(column, "__getitem__")
        if not is_column or isinstance(column, str | bytes | bytearray | Mapping):
            raise SchemaError(
                f"column {name!r}: expected an array or list, got {type(column).__name__}; pass a single row as [row]"
            )
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise SchemaError(f"columns must have equal lengths; got {lengths}")
    return next(iter(lengths.values()), 0)


def _step(columns: Mapping[str, Any], start: int, most_bytes: int) -> int:
    """Return how many rows to encode at a time: fewer if rows are large."""
    if all(isinstance(column, np.ndarray) and column.ndim == 1 for column in columns.values()):
        return encode_task.TABLE_ROWS
    size = sum(int(getattr(column[start], "nbytes", 8)) for column in columns.values())
    return max(1, min(encode_task.BATCH_ROWS, most_bytes // max(size, 1)))


def _make(parts: Mapping[str, Any], layout: StorageLayout, first: int, count: int) -> pa.RecordBatch:
    arrays = []
    for stored in layout.columns:
        field = layout.unischema.fields.get(stored.name)  # None for a struct: its members have fields
        part = parts.get(stored.name)
        if part is None:
            refuse_null(field or stored, first)
            arrays.append(pa.nulls(count, stored.type))
        elif isinstance(part, pa.Array | pa.ChunkedArray):
            arrays.append(stored_column(part, stored, layout, first))
        elif field is None:
            arrays.append(array_of(list(part), stored, first))
        else:
            arrays.append(_column(part, field, stored, first))
    return checked(pa.RecordBatch.from_arrays(arrays, schema=layout.columns), layout, first)


def _column(part: Any, field: UnischemaField, stored: pa.Field, first: int) -> pa.Array:
    if _is_plain(part, field, stored):
        mask = np.ma.getmaskarray(part) if isinstance(part, np.ma.MaskedArray) else None
        return refuse_nulls(quick_column(np.ma.getdata(part), stored.type, mask), stored, first)
    cells = []
    for index, value in enumerate(part, first):
        cells.append(encode_cell(field, value, index))
    return array_of(cells, stored, first)


def _is_plain(part: Any, field: UnischemaField, stored: pa.Field) -> bool:
    """Tell whether a slice is a flat array of exactly the stored numbers: no codec has anything to do."""
    return (
        isinstance(part, np.ndarray)
        and part.ndim == 1
        and part.dtype.kind in "biuf"
        and field.shape == ()
        and part.dtype == np.dtype(field.numpy_dtype)
        and pa.types.is_primitive(stored.type)
        and np.can_cast(part.dtype, scalar_dtype(stored.type), "safe")
    )
