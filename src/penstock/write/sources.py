"""What the user hands over, brought to one of four forms: Arrow data, columns, rows, or Arrow batches in turn.

First look at any input, for `write` and `Writer.extend`: DataFrames become Arrow (or columns, where a codec has to see
values), datasets of other libraries become readers. From the form the layout is planned and the works are cut. Imports
no library of DataFrames: an object of one is there only if its library is.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.errors import SchemaError
from penstock.schema.arrow import arrow_schema, infer_unischema
from penstock.schema.unischema import Unischema, UnischemaField
from penstock.write.columns import column_works, length
from penstock.write.layout import Layout, plan_layout
from penstock.write.rows import Hands, RowBuffer
from penstock.write.tables import table_works

if TYPE_CHECKING:
    from penstock.write.work import Work

ARROW = (pa.Table, pa.RecordBatch, pa.RecordBatchReader)


class Tables:
    """Tables or batches of Arrow, one after another, and the schema they come with where they have one."""

    def __init__(
        self, first: Any, rest: Iterator[Any], unischema: Unischema | None = None, num_rows: int | None = None
    ) -> None:
        self.schema = first.schema
        self.unischema = unischema
        self.num_rows = num_rows
        self.parts = itertools.chain([first], rest)


def normal_form(data: Any, schema: Unischema | None) -> Any:
    """Return the data as Arrow, `Tables`, a mapping of columns, or an iterable of rows."""
    library = type(data).__module__.partition(".")[0]
    if isinstance(data, (*ARROW, Mapping, Tables)) and library != "datasets":  # whose dict of splits is a dict too
        return data
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
    return _from_iterable(data)


def _from_iterable(data: Any) -> Any:
    """Return rows as they are, but for Arrow batches in turn, which the first one shows."""
    if not isinstance(data, Iterable) or isinstance(data, str | bytes):
        raise SchemaError(
            f"cannot write {type(data).__name__}; give an iterable of dicts, a dict of columns, Arrow data, or a "
            "DataFrame of pandas or Polars"
        )
    if isinstance(data, Sequence) and not (data and isinstance(data[0], pa.Table | pa.RecordBatch)):
        return data
    rest = iter(data)
    for first in rest:
        if isinstance(first, pa.Table | pa.RecordBatch):
            return Tables(first, rest)
        return itertools.chain([first], rest)
    return []


def _from_pandas(frame: Any, schema: Unischema | None) -> Any:
    """Return a frame as Arrow; columns of arrays that a codec is to encode stay as they are."""
    if not hasattr(frame, "columns"):
        raise SchemaError(f"cannot write a pandas {type(frame).__name__}; give a DataFrame")
    named = [name for name in frame.index.names if name is not None]
    fields = {} if schema is None else schema.fields
    objects = [name for name in frame.columns if frame[name].dtype == object and _has_arrays(frame[name], fields, name)]
    rest = frame.drop(columns=objects)
    table = pa.Table.from_pandas(rest, preserve_index=bool(named)).replace_schema_metadata(None)
    if not objects:
        return table
    columns = {str(name): table.column(name) for name in table.column_names}
    columns |= {str(name): [None if v is None else v for v in frame[name]] for name in objects}
    return {name: columns[name] for name in [*map(str, frame.columns), *(set(columns) - set(map(str, frame.columns)))]}


def _has_arrays(column: Any, fields: Mapping[str, Any], name: str) -> bool:
    first = next((value for value in column if value is not None), None)
    array = isinstance(first, np.ndarray) or hasattr(first, "__array_interface__")
    return array and (name in fields or (isinstance(first, np.ndarray) and first.ndim > 1))


def _from_polars(frame: Any) -> pa.Table:
    """Return a frame as Arrow in the types that Parquet has; a lazy one is computed."""
    if hasattr(frame, "collect"):
        frame = frame.collect()
    if not hasattr(frame, "to_arrow"):
        raise SchemaError(f"cannot write a polars {type(frame).__name__}; give a DataFrame or LazyFrame")
    table = frame.to_arrow()
    kinds = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
    kinds |= {view(): plain for view, plain in _views()}
    if not any(field.type in kinds for field in table.schema):
        return table if isinstance(table, pa.Table) else pa.table({frame.name: table})
    return table.cast(pa.schema([field.with_type(kinds.get(field.type, field.type)) for field in table.schema]))


def _views() -> list[tuple[Any, Any]]:
    known = [("string_view", pa.string()), ("binary_view", pa.binary())]  # since pyarrow 16
    return [(getattr(pa, name), plain) for name, plain in known if hasattr(pa, name)]


# --- their layout -----------------------------------------------------------------------------------------------------


def layout_of(data: Any, schema: Unischema | None, partition_by: tuple[str, ...]) -> Layout:
    """Return the layout that data in normal form is to have; SchemaError where it needs a schema and has none."""
    if schema is not None:
        return schema_layout(schema, partition_by)
    if isinstance(data, (*ARROW, Tables)):
        columns = data.schema.remove_metadata()
        return plan_layout(getattr(data, "unischema", None) or infer_unischema(columns), columns, partition_by)
    if isinstance(data, Mapping):
        return plan_layout(*_infer(data), partition_by)
    raise SchemaError(
        "rows need a schema: pass schema=Unischema(name, [UnischemaField(...), ...]), or give an Arrow table or a dict "
        "of arrays, whose schema can be inferred"
    )


def schema_layout(schema: Any, partition_by: tuple[str, ...]) -> Layout:
    """Return the layout of a schema that was given."""
    if not isinstance(schema, Unischema):
        raise SchemaError(f"schema must be a Unischema or None; got {type(schema).__name__}")
    return plan_layout(schema, arrow_schema(schema), partition_by)


def _infer(columns: Mapping[str, Any]) -> tuple[Unischema, pa.Schema]:
    """Return a schema for a dict of arrays: as Arrow sees them, `NdarrayCodec` for more than one dimension."""
    from penstock.codecs import NdarrayCodec

    length(columns)  # refuses what is no column
    stored, fields = [], []
    for name, column in columns.items():
        if isinstance(column, np.ndarray) and column.ndim > 1:
            stored.append(pa.field(name, pa.binary(), nullable=False))
            fields.append(UnischemaField(name, column.dtype.type, column.shape[1:], NdarrayCodec(), False))
        else:
            stored.append(_arrow_field(name, column))
            fields.extend(infer_unischema(pa.schema(stored[-1:])).fields.values())
    return Unischema("inferred_schema", fields), pa.schema(stored)


def _arrow_field(name: str, column: Any) -> pa.Field:
    if isinstance(column, np.ndarray) and column.dtype.kind in "biuf":
        return pa.field(name, pa.from_numpy_dtype(column.dtype), nullable=isinstance(column, np.ma.MaskedArray))
    try:
        values = column if isinstance(column, pa.Array | pa.ChunkedArray) else pa.array(column)
    except pa.ArrowException as error:
        raise SchemaError(
            f"column {name!r}: cannot infer a type from {type(column).__name__}: {error}; pass schema=Unischema(...)"
        ) from error
    return pa.field(name, values.type, nullable=values.null_count > 0)


# --- their rows -------------------------------------------------------------------------------------------------------


def num_rows(data: Any) -> int | None:
    """Return the number of rows where data in normal form knows it, for the progress bar."""
    if isinstance(data, pa.Table | pa.RecordBatch | Tables):
        return None if data.num_rows is None else int(data.num_rows)
    if isinstance(data, Mapping):
        return length(data)
    return len(data) if isinstance(data, Sequence) else None


def works(data: Any, layout: Layout, first: int, *, skip: int, hands: Hands) -> Iterator[Work]:
    """Cut data in normal form into works, without its first `skip` rows; the next has the number `first`."""
    if isinstance(data, pa.Table | pa.RecordBatch):
        return table_works(data.slice(skip), layout, first)
    if isinstance(data, Mapping):
        return column_works(data, layout, first, start=skip, hands=hands)
    if isinstance(data, pa.RecordBatchReader):
        return _from_tables(data, layout, first, skip)
    if isinstance(data, Tables):
        return _from_tables(data.parts, layout, first, skip)
    if not isinstance(data, Sequence):  # what an iterator gave may change when it is asked for more
        hands = dataclasses.replace(hands, copy=True)
    return _from_rows(itertools.islice(data, skip, None), layout, first, hands)


def _from_tables(tables: Iterable[Any], layout: Layout, first: int, skip: int) -> Iterator[Work]:
    for table in tables:
        left = table.slice(min(skip, table.num_rows))
        skip -= table.num_rows - left.num_rows
        yield from table_works(left, layout, first)
        first += left.num_rows


def _from_rows(rows: Iterable[Any], layout: Layout, first: int, hands: Hands) -> Iterator[Work]:
    buffer = RowBuffer(layout, first, hands)
    for row in rows:
        buffer.add(row)
        if buffer.is_full():
            yield buffer.take()
    if buffer.num_rows:
        yield buffer.take()
