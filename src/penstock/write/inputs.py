"""What the user hands to `penstock.write`, as a stream of Arrow batches in storage form.

First stage of writing: rows (dicts), columns (a dict of arrays) and Arrow tables come in, `pa.RecordBatch`es whose
columns are those of the layout go out to `files`. Values pass through the schema's codecs; Arrow columns are taken as
stored already. A stream stays a stream: at most one batch of `BATCH_ROWS` rows or `BATCH_BYTES` bytes is held. Every
error names the row, the field and what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.errors import ColumnNotFound, SchemaError, close_names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.schema.unischema import Unischema, UnischemaField
    from penstock.write.layout import Layout

BATCH_ROWS = 4096
BATCH_BYTES = 4 << 20

Row = Mapping[str, Any]
ArrowData = (pa.Table, pa.RecordBatch, pa.RecordBatchReader)


def batches(data: Any, layout: Layout) -> Iterator[pa.RecordBatch]:
    """Yield the rows of any accepted input, in order, encoded as the layout says."""
    first = 0
    for batch in _encoded(data, layout):
        for name, limits in layout.limits.items():
            _check_limits(batch.column(layout.columns.get_field_index(name)), name, limits, first)
        yield batch
        first += batch.num_rows


def _encoded(data: Any, layout: Layout) -> Iterator[pa.RecordBatch]:
    if isinstance(data, ArrowData):
        return _from_arrow(data, layout)
    if isinstance(data, Mapping):
        return _from_columns(data, layout)
    return _from_rows(data, layout)


def _check_limits(column: pa.Array, name: str, limits: np.iinfo[Any], first: int) -> None:
    """Refuse a number that the stored type holds and the field's does not: it would come back as another."""
    import pyarrow.compute as pc

    outside = pc.or_(pc.less(column, limits.min), pc.greater(column, limits.max))
    if pc.any(outside).as_py():
        index = outside.to_pylist().index(True)
        raise SchemaError(
            f"row {first + index}, field {name!r}: {column[index].as_py()} is not within {limits.min} to {limits.max}, "
            f"the numbers of {limits.dtype}; convert the value, or give the field a wider dtype"
        )


def num_rows(data: Any) -> int | None:
    """Return the number of rows where the input knows it, for the progress bar."""
    if isinstance(data, pa.Table | pa.RecordBatch):
        return int(data.num_rows)
    if isinstance(data, Mapping):
        return _length(data)
    return len(data) if isinstance(data, Sequence) else None


# --- rows -------------------------------------------------------------------------------------------------------------


def _from_rows(rows: Iterable[Row], layout: Layout) -> Iterator[pa.RecordBatch]:
    cells: list[list[Any]] = [[] for _ in layout.columns]
    first = size = 0
    index = -1
    for index, row in enumerate(rows):
        size += _add_row(cells, index, row, layout)
        if size >= BATCH_BYTES or index - first + 1 >= BATCH_ROWS:
            yield _batch(cells, first, layout)
            cells, first, size = [[] for _ in layout.columns], index + 1, 0
    if index >= first:
        yield _batch(cells, first, layout)


def _add_row(cells: list[list[Any]], index: int, row: Row, layout: Layout) -> int:
    """Encode one row into the columns and return the bytes of its binary cells."""
    if not isinstance(row, Mapping):
        raise SchemaError(
            f"row {index}: expected a dict of field name to value, got {type(row).__name__}; "
            "namedtuples can be given as row._asdict()"
        )
    encoded = _encode_row(index, row, layout.unischema)
    size = 0
    for column, name in zip(cells, layout.columns.names, strict=True):
        cell = encoded[name]
        column.append(cell)
        if isinstance(cell, bytes | bytearray | str):
            size += len(cell)
    return size


def _encode_row(index: int, row: Row, schema: Unischema) -> dict[str, Any]:
    from penstock.schema.unischema import encode_row

    try:
        return encode_row(schema, dict(row))
    except Exception as error:
        raise _row_error(index, row, schema, error) from error


def _row_error(index: int, row: Row, schema: Unischema, error: Exception) -> SchemaError:
    """Find the field that a row failed on, and say what to do."""
    extra = [name for name in row if name not in schema.fields]
    if extra:
        return ColumnNotFound(
            f"row {index}: no field {extra[0]!r} in the schema ({close_names(extra[0], schema.fields)}); "
            "leave the key out, or add a UnischemaField"
        )
    for name, field in schema.fields.items():
        if row.get(name) is None:
            if not field.nullable:
                return SchemaError(
                    f"row {index}, field {name!r}: a value is needed and there is none; give one, or make the field "
                    "nullable=True"
                )
            continue
        try:
            _encode(field, row[name])
        except Exception as reason:  # noqa: BLE001 - codecs of users may raise anything; it goes into the message
            return _value_error(index, field, row[name], reason)
    return SchemaError(f"row {index}: cannot be encoded: {error}")


def _value_error(index: int, field: UnischemaField, value: Any, reason: Exception) -> SchemaError:
    got = f"{type(value).__name__}"
    if isinstance(value, np.ndarray | np.generic):
        got += f" of {value.dtype}, shape {value.shape}"
    wanted = f"{np.dtype(field.numpy_dtype).name if _is_numpy(field) else field.numpy_dtype}, shape {field.shape}"
    return SchemaError(
        f"row {index}, field {field.name!r}: cannot encode {got} where the schema says {wanted} "
        f"with {field.codec}: {reason}; convert the value, or change the field (None is a free dimension)"
    )


def _is_numpy(field: UnischemaField) -> bool:
    return isinstance(field.numpy_dtype, type) and issubclass(field.numpy_dtype, np.generic)


def _encode(field: UnischemaField, value: Any) -> Any:
    if field.codec is not None:
        return field.codec.encode(field, value)
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _batch(cells: list[list[Any]], first: int, layout: Layout) -> pa.RecordBatch:
    arrays = [_array(column, field, first) for column, field in zip(cells, layout.columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=layout.columns)


def _array(cells: list[Any], field: pa.Field, first: int) -> pa.Array:
    if pa.types.is_nested(field.type):  # Arrow takes lists of lists, not arrays of more than one dimension
        cells = [cell.tolist() if isinstance(cell, np.ndarray) else cell for cell in cells]
    if pa.types.is_date(field.type):  # Arrow takes Python's dates here, not NumPy's
        cells = [cell.astype("M8[D]").item() if isinstance(cell, np.datetime64) else cell for cell in cells]
    try:
        return pa.array(cells, field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        for index, cell in enumerate(cells, first):
            try:
                pa.array([cell], field.type)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                raise SchemaError(
                    f"row {index}, field {field.name!r}: {cell!r:.100} does not fit the stored type {field.type}: "
                    f"{error}; convert the value, or choose a wider type in the field's codec"
                ) from error
        raise


# --- columns ----------------------------------------------------------------------------------------------------------


def _from_columns(columns: Mapping[str, Any], layout: Layout) -> Iterator[pa.RecordBatch]:
    count = _length(columns)
    _check_names(list(columns), layout)
    start = 0
    while start < count:
        stop = min(start + _step(columns, start), count)
        arrays = [
            _slice(columns.get(f.name), layout.unischema.fields[f.name], f, (start, stop)) for f in layout.columns
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=layout.columns)
        start = stop


def _length(columns: Mapping[str, Any]) -> int:
    for name, column in columns.items():
        if not hasattr(column, "__len__") or isinstance(column, str | bytes):
            raise SchemaError(
                f"column {name!r}: expected an array or list, got {type(column).__name__}; give a single row as [row]"
            )
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise SchemaError(f"columns must have equal lengths; got {lengths}")
    return next(iter(lengths.values()), 0)


def _step(columns: Mapping[str, Any], start: int) -> int:
    """Return how many rows to encode at a time: fewer where rows are large."""
    size = sum(int(getattr(column[start], "nbytes", 8)) for column in columns.values())
    return max(1, min(BATCH_ROWS, BATCH_BYTES // max(size, 1)))


def _slice(column: Any, field: UnischemaField, stored: pa.Field, span: tuple[int, int]) -> pa.Array:
    start, stop = span
    if column is None:
        _refuse_null(field, start)
        return pa.nulls(stop - start, stored.type)
    part = column[start:stop]
    if _is_plain(part, field, stored):
        return _refuse_nulls(pa.array(np.ma.getdata(part), stored.type, mask=_mask(part)), stored, start)
    cells = []
    for index, value in enumerate(part, start):
        cells.append(_cell(field, None if value is np.ma.masked else value, index))
    return _array(cells, stored, start)


def _is_plain(part: Any, field: UnischemaField, stored: pa.Field) -> bool:
    """Whether a slice is one flat array of the very numbers that are stored: no codec has anything to do."""
    return (
        isinstance(part, np.ndarray)
        and part.ndim == 1
        and part.dtype.kind in "biuf"
        and field.shape == ()
        and part.dtype == np.dtype(field.numpy_dtype)
        and pa.types.is_primitive(stored.type)
    )


def _mask(part: Any) -> Any:
    return np.ma.getmaskarray(part) if isinstance(part, np.ma.MaskedArray) else None


def _cell(field: UnischemaField, value: Any, index: int) -> Any:
    if value is None:
        _refuse_null(field, index)
        return None
    try:
        return _encode(field, value)
    except Exception as error:
        raise _value_error(index, field, value, error) from error


def _refuse_null(field: Any, index: int) -> None:
    if not field.nullable:
        raise SchemaError(
            f"row {index}, field {field.name!r}: a value is needed and there is none; give one, or make the field "
            "nullable=True"
        )


def _check_names(names: Sequence[str], layout: Layout) -> None:
    for name in names:
        if name not in layout.columns.names:
            raise ColumnNotFound(
                f"no field {name!r} in the schema; {close_names(name, layout.columns.names)} "
                "Leave the column out, or add a UnischemaField"
            )


# --- Arrow ------------------------------------------------------------------------------------------------------------


def _from_arrow(data: Any, layout: Layout) -> Iterator[pa.RecordBatch]:
    _check_names(data.schema.names, layout)
    first = 0
    for batch in [data] if isinstance(data, pa.RecordBatch) else _arrow_batches(data):
        arrays = [_stored(batch, field, first) for field in layout.columns]
        yield pa.RecordBatch.from_arrays(arrays, schema=layout.columns)
        first += batch.num_rows


def _arrow_batches(data: Any) -> Iterable[pa.RecordBatch]:
    found: Iterable[pa.RecordBatch] = data.to_batches(max_chunksize=1 << 16) if isinstance(data, pa.Table) else data
    return found


def _stored(batch: pa.RecordBatch, field: pa.Field, first: int) -> pa.Array:
    """Return one column in its stored type; missing nullable ones are all null."""
    position = batch.schema.get_field_index(field.name)
    if position < 0:
        _refuse_null(field, first)
        return pa.nulls(batch.num_rows, field.type)
    column = batch.column(position)
    if column.type != field.type:
        column = _cast(column, field)
    return _refuse_nulls(column, field, first)


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    try:
        return column.cast(field.type)
    except pa.ArrowException as error:
        raise SchemaError(
            f"column {field.name!r}: the table has {column.type}, the schema stores {field.type}: {error}; "
            "cast the column, encode its cells with the field's codec, or give rows instead of a table"
        ) from error


def _refuse_nulls(column: pa.Array, field: pa.Field, first: int) -> pa.Array:
    if column.null_count and not field.nullable:
        _refuse_null(field, first + column.is_null().to_pylist().index(True))
    return column
