"""Whatever the user passes, normalised to one of four forms: Arrow data, columns, rows, or a stream of Arrow batches.

First look at any input, for `write` and `Writer.extend`: DataFrames become Arrow (or columns, if a codec has to see
values), datasets of other libraries become readers. The layout is planned and tasks are cut from the normal form.
Imports a DataFrame library only if it was passed an object of it.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.codecs.arrow_kinds import form_of
from penstock.codecs.arrow_memory import without_views
from penstock.errors import SchemaError, StateMismatch
from penstock.schema.arrow import arrow_schema, infer_unischema
from penstock.schema.unischema import Unischema, UnischemaField
from penstock.write.cells import is_missing
from penstock.write.layout import StorageLayout, plan_layout
from penstock.write.tasks import Hands, RowBuffer, column_works, length, table_works, without_runs

if TYPE_CHECKING:
    from penstock.write.options import EncodeTask

ARROW = (pa.Table, pa.RecordBatch, pa.RecordBatchReader)


class Tables:
    """A stream of Arrow tables or batches, with their schema if they have one."""

    def __init__(
        self, first: Any, rest: Iterator[Any], unischema: Unischema | None = None, num_rows: int | None = None
    ) -> None:
        self.schema = first.schema
        self.unischema = unischema
        self.num_rows = num_rows
        self.parts = itertools.chain([first], rest)


def normal_form(data: Any, schema: Unischema | None) -> Any:
    """Return the data as Arrow, `Tables`, a mapping of columns, or an iterable of rows."""
    library = _library(data)
    if isinstance(data, (*ARROW, Mapping, Tables)) and library != "datasets":  # its DatasetDict is a dict too
        if not isinstance(data, Mapping):
            return data
        _check_columns(data)
        if not any(_library(column) in ("pandas", "polars") for column in data.values()):
            return data
        return {name: _plain_column(name, column, schema) for name, column in data.items()}  # each as in a frame
    if library == "pandas":
        return _from_pandas(data, schema)
    if library == "polars":
        return _from_polars(data)
    if library == "datasets":
        from penstock.write.hugging_face import as_source

        return as_source(data, schema)
    if hasattr(data, "__arrow_c_stream__"):
        return (
            pa.RecordBatchReader.from_stream(data) if hasattr(pa.RecordBatchReader, "from_stream") else pa.table(data)
        )
    if hasattr(data, "to_reader"):  # pyarrow.dataset.Scanner
        return data.to_reader()
    if hasattr(data, "scanner"):  # pyarrow.dataset.Dataset
        return data.scanner().to_reader()
    return _from_iterable(data, schema)


def _library(data: Any) -> str:
    return type(data).__module__.partition(".")[0]


def _plain_column(name: str, column: Any, schema: Unischema | None) -> Any:
    library = _library(column)
    if library in ("pandas", "polars") and hasattr(column, "columns"):
        raise SchemaError(f"column {name!r}: expected an array or list, got a DataFrame; give its columns one by one")
    if library == "polars" and hasattr(column, "to_frame"):
        return _from_polars(column.to_frame(name)).column(0)
    if library != "pandas" or not hasattr(column, "dtype"):
        return column
    fields = {} if schema is None else schema.fields
    kind = column.dtype.kind if isinstance(column.dtype, np.dtype) else "O"
    if kind in "biumM" or (kind == "f" and _has_nan(fields, name)):
        return column.to_numpy()
    import pandas as pd  # installed, since the column is of it

    frame = _from_pandas(pd.DataFrame({name: pd.array(column, column.dtype)}), schema)
    return frame[name] if isinstance(frame, Mapping) else frame.column(0)


def _check_columns(columns: Mapping[Any, Any]) -> None:
    for name, column in columns.items():
        if not isinstance(name, str):
            raise SchemaError(f"column names must be text; got {name!r} ({type(name).__name__}); rename the column")
        if getattr(column, "shape", None) == ():
            raise SchemaError(
                f"column {name!r}: expected an array or list, got {type(column).__name__} of 0 dimensions; give a "
                "single row as [row]"
            )


def _from_iterable(data: Any, schema: Unischema | None) -> Any:
    """Return rows unchanged, and streams of Arrow batches or DataFrames, recognised by the first one, as `Tables`."""
    if not isinstance(data, Iterable) or isinstance(data, str | bytes):
        raise SchemaError(
            f"cannot write {type(data).__name__}; give an iterable of dicts, a dict of columns, Arrow data, or a "
            "DataFrame of pandas or Polars"
        )
    if isinstance(data, Sequence) and not (data and _is_table(data[0])):
        return data
    rest = iter(data)
    for first in rest:
        if isinstance(first, pa.Table | pa.RecordBatch):
            return Tables(first, rest)
        if _is_table(first):
            frames = _from_frames(itertools.chain([first], rest), schema)
            return Tables(next(frames), frames)
        return itertools.chain([first], rest)
    return []


def _is_table(item: Any) -> bool:
    is_frame = _library(item) in ("pandas", "polars") and hasattr(item, "columns")
    return is_frame or isinstance(item, pa.Table | pa.RecordBatch)


def _from_frames(items: Iterable[Any], schema: Unischema | None) -> Iterator[Any]:
    """Yield a stream of DataFrames as Arrow."""
    for index, item in enumerate(items):
        if not _is_table(item):
            raise SchemaError(
                f"item {index} is a {type(item).__name__}, where the first one is a DataFrame; give DataFrames only"
            )
        found = item if isinstance(item, pa.Table | pa.RecordBatch) else normal_form(item, schema)
        if isinstance(found, Mapping):
            name = next(name for name, column in found.items() if isinstance(column, list))
            raise SchemaError(
                f"DataFrame {index}, column {name!r}: arrays that a codec is to encode are taken from one DataFrame at "
                "a time; give each to penstock.Writer.extend(frame)"
            )
        yield found


# --- DataFrames -------------------------------------------------------------------------------------------------------


def _from_pandas(frame: Any, schema: Unischema | None) -> Any:
    """Return a frame as Arrow; columns of arrays for a codec stay as they are."""
    if not hasattr(frame, "columns"):
        raise SchemaError(f"cannot write a pandas {type(frame).__name__}; give a DataFrame")
    names = [str(name) for name in frame.columns]
    levels = [str(name) for name in frame.index.names if name is not None]
    twice = next((name for name, count in Counter([*names, *levels]).items() if count > 1), None)
    if twice is not None:
        of_index = " (one is of its index)" if twice in levels else ""
        raise SchemaError(f"the DataFrame has two columns called {twice!r}{of_index}; rename one of them")
    fields = {} if schema is None else schema.fields
    objects = [name for name in frame.columns if frame[name].dtype == object and _has_arrays(frame[name], fields, name)]
    table = _pandas_table(frame.drop(columns=objects), fields)
    if not objects:
        return table
    columns: dict[str, Any] = {name: table.column(name) for name in table.column_names}
    columns |= {str(name): [None if _is_missing(value) else value for value in frame[name]] for name in objects}
    index = [name for name in table.column_names if name not in names]
    return {name: columns[name] for name in [*names, *index]}


def _pandas_table(frame: Any, fields: Mapping[str, Any]) -> pa.Table:
    """Return a frame as a table, including the named levels of its index."""
    unnamed = [level for level, name in enumerate(frame.index.names) if name is None]
    is_named = len(unnamed) < len(frame.index.names)
    if is_named and unnamed:
        frame = frame.set_axis(frame.index.droplevel(unnamed))
    try:
        table = pa.Table.from_pandas(frame, preserve_index=is_named).replace_schema_metadata(None)
        return _with_nan(table, frame, fields)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        for name in frame.columns:
            try:
                pa.array(frame[name], from_pandas=True)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as reason:
                raise SchemaError(
                    f"column {str(name)!r} of the DataFrame ({frame[name].dtype}): its objects have no common type: "
                    f"{reason}; convert the column to one, or pass schema=Unischema(...) for arrays and pictures"
                ) from error
        raise SchemaError(
            f"the DataFrame cannot be taken as Arrow: {error}; convert the column that it names"
        ) from error


def _with_nan(table: pa.Table, frame: Any, fields: Mapping[str, Any]) -> pa.Table:
    """Return the table with NaN where a column of NumPy floats has it: pandas' conversion to Arrow turns it into
    null.
    """
    levels = [frame.index.get_level_values(level) for level in range(frame.index.nlevels)]
    columns = [frame.iloc[:, index] for index in range(frame.shape[1])] + levels
    for index, (name, column) in enumerate(zip(table.column_names, columns, strict=False)):
        is_float = isinstance(column.dtype, np.dtype) and column.dtype.kind == "f"
        if is_float and table.column(index).null_count and _has_nan(fields, name):
            table = table.set_column(index, table.schema.field(index), pa.array(column.to_numpy()))
    return table


def _has_nan(fields: Mapping[str, Any], name: str) -> bool:
    """Tell whether a field can hold NaN; if not, NaN means null: integers with gaps are floats in pandas."""
    kind = fields[name].numpy_dtype if name in fields else None
    return kind is None or np.dtype(kind).kind == "f"


def _has_arrays(column: Any, fields: Mapping[str, Any], name: str) -> bool:
    first = next((value for value in column if not _is_missing(value)), None)
    array = isinstance(first, np.ndarray) or hasattr(first, "__array_interface__")
    return array and (name in fields or (isinstance(first, np.ndarray) and first.ndim > 1))


def _is_missing(value: Any) -> bool:
    """Tell whether a cell of an object column is missing: pandas has four values for that."""
    return is_missing(value) or (isinstance(value, float) and value != value)


def _from_polars(frame: Any) -> pa.Table:
    """Return a frame as Arrow in types that Parquet has; a lazy one is computed."""
    if hasattr(frame, "collect"):
        frame = frame.collect()
    if not (hasattr(frame, "to_arrow") and hasattr(frame, "columns")):  # a Series has the first too
        raise SchemaError(f"cannot write a polars {type(frame).__name__}; give a DataFrame or LazyFrame")
    for name, dtype in frame.schema.items():
        strange = _strange_in(dtype)
        if strange is not None:
            raise SchemaError(
                f"column {name!r} has the Polars type {strange}, which no Parquet column holds; cast or drop the column"
            )
    table = frame.to_arrow()
    kinds = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
    views = {"string_view": pa.string(), "binary_view": pa.binary()}  # since pyarrow 16
    kinds |= {getattr(pa, name)(): plain for name, plain in views.items() if hasattr(pa, name)}
    if not any(field.type in kinds for field in table.schema):
        return table
    return table.cast(pa.schema([field.with_type(kinds.get(field.type, field.type)) for field in table.schema]))


def _strange_in(dtype: Any) -> str | None:
    """Return the Polars type inside a type that cannot be exported: objects come as addresses, 128 bits not at all."""
    if str(dtype) in ("Object", "Int128", "UInt128"):
        return str(dtype)
    inner = [dtype.inner] if hasattr(dtype, "inner") else [field.dtype for field in getattr(dtype, "fields", ())]
    return next((found for found in map(_strange_in, inner) if found is not None), None)


# --- their layout -----------------------------------------------------------------------------------------------------


def layout_of(data: Any, schema: Unischema | None, partition_by: tuple[str, ...]) -> StorageLayout:
    """Return the layout of data in normal form; raises SchemaError if it needs a schema and has none."""
    if schema is not None:
        return schema_layout(schema, partition_by)
    if isinstance(data, (*ARROW, Tables)):
        columns = pa.schema([field.with_type(_storable(field.type)) for field in data.schema])
        _refuse_none(columns.names)
        return plan_layout(getattr(data, "unischema", None) or infer_unischema(columns), columns, partition_by)
    if isinstance(data, Mapping):
        return plan_layout(*_infer(data), partition_by)
    raise SchemaError(
        "rows need a schema: pass schema=Unischema(name, [UnischemaField(...), ...]), or give an Arrow table or a dict "
        "of arrays, whose schema can be inferred"
    )


def schema_layout(schema: Any, partition_by: tuple[str, ...]) -> StorageLayout:
    """Return the layout of a given schema."""
    if not isinstance(schema, Unischema):
        raise SchemaError(f"schema must be a Unischema or None; got {type(schema).__name__}")
    return plan_layout(schema, arrow_schema(schema), partition_by)


def _infer(columns: Mapping[str, Any]) -> tuple[Unischema, pa.Schema]:
    """Return a schema for a dict of arrays: as Arrow sees them, `NdarrayCodec` for more than one dimension."""
    from penstock.codecs import NdarrayCodec

    _refuse_none(columns)
    length(columns)  # raises if something is not a column
    stored, fields = [], []
    for name, column in columns.items():
        if isinstance(column, np.ndarray) and column.ndim > 1:
            nullable = isinstance(column, np.ma.MaskedArray)
            stored.append(pa.field(name, pa.binary(), nullable=nullable))
            fields.append(UnischemaField(name, column.dtype.type, column.shape[1:], NdarrayCodec(), nullable))
        else:
            stored.append(_arrow_field(name, column))
            fields.extend(infer_unischema(pa.schema(stored[-1:])).fields.values())
    return Unischema("inferred_schema", fields), pa.schema(stored)


def _refuse_none(names: Collection[str]) -> None:
    if not names:
        raise SchemaError("no columns to write, and no schema; give at least one column, or pass schema=Unischema(...)")


def _storable(kind: pa.DataType) -> pa.DataType:
    """Return the type that a column is written as: Parquet has no runs, and pyarrow cannot write views in structs."""
    return without_views(kind.value_type if form_of(kind) == "runs" else kind)


def _arrow_field(name: str, column: Any) -> pa.Field:
    try:
        if isinstance(column, np.ndarray) and column.dtype.kind in "biuf":
            return pa.field(name, pa.from_numpy_dtype(column.dtype), nullable=isinstance(column, np.ma.MaskedArray))
        values = without_runs(column) if isinstance(column, pa.Array | pa.ChunkedArray) else pa.array(column)
    except OverflowError as error:
        raise SchemaError(
            f"column {name!r}: a whole number is outside of int64, -2**63 to 2**63 - 1, which whole numbers become "
            "without a schema; give np.array(column, np.uint64) where they fit that, or floats, or text"
        ) from error
    except (pa.ArrowException, TypeError, ValueError) as error:
        kind = f" of {column.dtype}" if isinstance(column, np.ndarray) else ""
        raise SchemaError(
            f"column {name!r}: cannot infer a type from {type(column).__name__}{kind}: {error}; convert the column, or "
            "pass schema=Unischema(...)"
        ) from error
    return pa.field(name, _storable(values.type), nullable=values.null_count > 0)


# --- their rows -------------------------------------------------------------------------------------------------------


def num_rows(data: Any) -> int | None:
    """Return the number of rows if data in normal form knows it, for the progress bar."""
    if isinstance(data, pa.Table | pa.RecordBatch | Tables):
        return None if data.num_rows is None else int(data.num_rows)
    if isinstance(data, Mapping):
        return length(data)
    return len(data) if isinstance(data, Sequence) else None


def works(data: Any, layout: StorageLayout, first: int, *, skip: int, hands: Hands) -> Iterator[EncodeTask]:
    """Cut data in normal form into tasks, without its first `skip` rows; the next row has the index `first`.

    Raises:
        StateMismatch: There are fewer rows than to be skipped: it is not the data that the earlier writer had.
    """
    known = num_rows(data)
    if known is not None and known < skip:
        raise _too_short(known, skip)
    if isinstance(data, pa.Table | pa.RecordBatch):
        return table_works(data.slice(skip), layout, first)
    if isinstance(data, Mapping):
        return column_works(data, layout, first, start=skip, hands=hands)
    if isinstance(data, pa.RecordBatchReader):
        return _from_tables(data, layout, first, skip)
    if isinstance(data, Tables):
        return _from_tables(data.parts, layout, first, skip)
    if not isinstance(data, Sequence):  # an iterator may change a row when it yields the next
        hands = dataclasses.replace(hands, copy=True)
    return _from_rows(data, layout, first, skip, hands)


def _too_short(found: int, skip: int) -> StateMismatch:
    return StateMismatch(
        f"the data ended after {found:,} rows, but the writer to be resumed has {skip:,} safe rows; pass the same rows "
        "again, or start again with overwrite=True"
    )


def _from_tables(tables: Iterable[Any], layout: StorageLayout, first: int, skip: int) -> Iterator[EncodeTask]:
    wanted = skip
    for table in tables:
        left = table.slice(min(skip, table.num_rows))
        skip -= table.num_rows - left.num_rows
        yield from table_works(left, layout, first)
        first += left.num_rows
    if skip:
        raise _too_short(wanted - skip, wanted)


def _from_rows(data: Iterable[Any], layout: StorageLayout, first: int, skip: int, hands: Hands) -> Iterator[EncodeTask]:
    buffer, rows = RowBuffer(layout, first, hands), iter(data)
    passed = sum(1 for _ in itertools.islice(rows, skip))
    if passed < skip:
        raise _too_short(passed, skip)
    for row in rows:
        buffer.add(row)
        if buffer.is_full():
            yield buffer.take()
    if buffer.num_rows:
        yield buffer.take()
