"""Arrow data to encode tasks: columns are stored as they are, cast to the types of the schema if that loses nothing.

First stage for Arrow tables, batches and readers, and so for DataFrames. A field with a codec takes cells that are
encoded already (binary), or lists and tensors, whose rows are encoded like any array. Copies rows only where necessary.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.codecs.arrow_kinds import form_of, leaf_of
from penstock.dataset.unify_types import decoded
from penstock.errors import SchemaError
from penstock.write.casts import cast_column
from penstock.write.cells import array_of, check_limits, encode_cell, refuse_names, refuse_null, refuse_nulls, wanted
from penstock.write.encode_task import TABLE_ROWS, EncodeTask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.schema.unischema import UnischemaField
    from penstock.write.layout import StorageLayout


def table_works(data: Any, layout: StorageLayout, first: int) -> Iterator[EncodeTask]:
    """Cut a table, batch or reader into tasks, in order."""
    refuse_names(data.schema.names, layout.columns.names)
    found = [data] if isinstance(data, pa.RecordBatch) else data
    if isinstance(data, pa.Table):
        found = data.to_batches(max_chunksize=TABLE_ROWS)
    for whole in found:
        for start in range(0, whole.num_rows, TABLE_ROWS):
            batch = whole.slice(start, TABLE_ROWS)
            yield EncodeTask(first, batch.num_rows, int(batch.nbytes), partial(_make, batch, layout, first))
            first += batch.num_rows


def _make(batch: pa.RecordBatch, layout: StorageLayout, first: int) -> pa.RecordBatch:
    arrays = []
    for stored in layout.columns:
        position = batch.schema.get_field_index(stored.name)
        if position < 0:
            refuse_null(layout.unischema.fields.get(stored.name, stored), first)
            arrays.append(pa.nulls(batch.num_rows, stored.type))
        else:
            arrays.append(stored_column(batch.column(position), stored, layout, first))
    return checked(pa.RecordBatch.from_arrays(arrays, schema=layout.columns), layout, first)


def checked(batch: pa.RecordBatch, layout: StorageLayout, first: int) -> pa.RecordBatch:
    """Return the batch; raises SchemaError if a number is out of its field's range."""
    for name, limits in layout.limits.items():
        check_limits(batch.column(layout.columns.get_field_index(name)), name, limits, first)
    return batch


def stored_column(column: Any, stored: pa.Field, layout: StorageLayout, first: int) -> pa.Array:
    """Return an Arrow column in its stored type; rows of lists are encoded if the field has a codec."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    column = without_runs(column)
    if column.type == stored.type:
        return refuse_nulls(column, stored, first)
    if stored.name in layout.cells and _is_array(column.type):
        return _encoded(column, layout.unischema.fields[stored.name], stored, first)
    if stored.name in layout.cells and form_of(decoded(column.type)) == "text" and form_of(stored.type) == "bytes":
        # Arrow would take the bytes of the text for encoded cells, and no codec could read those.
        raise SchemaError(
            f"column {stored.name!r}, rows from {first}: the table has {column.type}, but the field expects encoded "
            f"cells as {stored.type}; pass the bytes of the files and not their names, or rows of values to encode"
        )
    return refuse_nulls(cast_column(column, stored, first), stored, first)


def without_runs(column: Any) -> Any:
    """Return a run-end encoded array as plain values, since Parquet has no such type; others unchanged."""
    if form_of(column.type) != "runs":
        return column
    import pyarrow.compute as pc

    return pc.run_end_decode(column)


def _is_array(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return _is_array(kind.storage_type)
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _encoded(column: pa.Array, field: UnischemaField, stored: pa.Field, first: int) -> pa.Array:
    shape = tuple(getattr(column.type, "shape", ())) or field.shape
    while isinstance(column, pa.ExtensionArray):
        column = column.storage
    dtype = np.dtype(leaf_of(column.type).to_pandas_dtype())
    cells = []
    for index, row in enumerate(column, first):
        if row.is_valid and _holds_null(row.values):
            raise SchemaError(
                f"row {index}, field {field.name!r}: its list holds a null, which {wanted(field)} cannot "
                "represent; use a number instead, or a null for the whole row"
            )
        value = None if not row.is_valid else _as_array(row, dtype, shape)
        cells.append(encode_cell(field, value, index))
    return array_of(cells, stored, first)


def _holds_null(values: pa.Array) -> bool:
    return bool(values.null_count) or (_is_array(values.type) and _holds_null(values.flatten()))


def _as_array(row: pa.Scalar, dtype: np.dtype[Any], shape: tuple[int | None, ...]) -> Any:
    """Return the array of one row: nested lists as they are, a flat list in the shape of the field if that is known."""
    values = row.values
    flat = not _is_array(values.type)
    found = values.to_numpy(zero_copy_only=False) if flat else np.array(row.as_py(), dtype)
    sizes = [size for size in shape if size is not None]
    if found.ndim == 1 and len(sizes) == len(shape) > 1 and found.size == math.prod(sizes):
        return found.reshape(sizes)
    return found
