"""Rows, dicts of columns and Arrow data to encode tasks: the first stage of writing.

`RowBuffer` is for `Writer.append` and for iterables of dicts: cheap values are encoded at once, expensive ones later in
other threads. When `add` returns, the caller may change or reuse the row and everything in it: mutable values are
copied, or encoded already if all other threads were busy. Buffers the rows of one batch only. `cells` defines what
a single value may be.

In Arrow tables, batches and readers, and so in DataFrames, columns are stored as they are, cast to the types of the
schema if that changes no value. Arrow's safe cast is not enough: it turns numbers into text and text into numbers, any
number into a boolean, large floats into infinity, timestamps into days. Types are compared once for a column; values
are checked only if the cast might have lost some. In dicts, arrays of the stored type pass without a look at their
values; other arrays and lists are encoded. A field with a codec takes cells that are encoded already (binary), or lists
and tensors, whose rows are encoded like any array. Copies rows only where necessary.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.codecs.arrow_kinds import form_of, leaf_of, scalar_dtype
from penstock.dataset.unify_types import decoded
from penstock.errors import SchemaError
from penstock.write.arrays import FIXED, BufferPool, own, quick_column
from penstock.write.cells import (
    EncodedCell,
    array_of,
    check_limits,
    encode_cell,
    encode_cells,
    is_ours,
    is_slow,
    keep_value,
    plain_types,
    refuse_names,
    refuse_null,
    refuse_nulls,
    wanted,
)
from penstock.write.options import BATCH_BYTES, BATCH_ROWS, TABLE_ROWS, EncodeTask

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
            places = {name: batch.schema.get_field_index(name) for name in layout.columns.names}
            parts = {name: batch.column(place) for name, place in places.items() if place >= 0}
            make = partial(_encoded_columns, parts, layout, first, batch.num_rows)
            yield EncodeTask(first, batch.num_rows, int(batch.nbytes), make)
            first += batch.num_rows


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
    nested = _is_array(row.values.type)
    found = np.array(row.as_py(), dtype) if nested else row.values.to_numpy(zero_copy_only=False)
    sizes = [size for size in shape if size is not None]
    is_flat = found.ndim == 1 and len(sizes) == len(shape) > 1 and found.size == math.prod(sizes)
    return found.reshape(sizes) if is_flat else found


_LISTS = {"list", "fixed_list"}
_TAKES = {
    "bool": {"bool", "number"},
    "number": {"number", "bool", "decimal"},
    "decimal": {"decimal", "number"},
    "temporal": {"temporal"},
    "text": {"text", "bytes"},
}
"""From which forms a column of each form can be made, if `_is_other` agrees; Arrow makes no bytes of numbers."""


def cast_column(column: pa.Array, stored: pa.Field, first: int) -> pa.Array:
    """Return an Arrow column in its stored type; SchemaError names the column, and the row if a value is lost."""
    where = f"column {stored.name!r}, rows from {first}: the table has {column.type}, the schema stores {stored.type}"
    pairs = list(_pairs(column.type, stored.type))
    for given, into in pairs:
        if _is_other(given, into):
            raise SchemaError(
                f"{where}: {given} is not converted to {into}; cast the column first, or change the field's dtype"
            )
    if form_of(column.type) == "dictionary" and form_of(stored.type) != "dictionary":
        column = column.dictionary_decode()  # old versions of Arrow cast no dictionary to another type
    try:
        made = column.cast(stored.type)
    except pa.ArrowException as error:
        raise SchemaError(
            f"{where}: {error}; cast the column, encode its cells with the codec of the field, or pass rows instead "
            "of a table"
        ) from error
    if any(_is_risky(given, into) for given, into in pairs):
        rows = np.arange(first, first + len(column))
        for old, new, indices in _leaves(column, made, rows):
            _refuse_lost(old, new, indices, stored.name)
    return made


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return the type of the values behind encodings and extensions."""
    form = form_of(kind)
    if form == "extension":
        return _plain(kind.storage_type)
    return _plain(kind.value_type) if form in ("dictionary", "runs") else kind


def _pairs(given: pa.DataType, into: pa.DataType) -> Iterator[tuple[pa.DataType, pa.DataType]]:
    """Yield the types of values before and after the cast, inside lists, structs and maps too."""
    given, into = _plain(given), _plain(into)
    forms = (form_of(given), form_of(into))
    if set(forms) <= _LISTS:
        yield from _pairs(given.value_type, into.value_type)
    elif forms == ("map", "map"):
        yield from _pairs(given.key_type, into.key_type)
        yield from _pairs(given.item_type, into.item_type)
    elif forms == ("struct", "struct"):
        for field in into:
            if given.get_field_index(field.name) >= 0:
                yield from _pairs(given.field(field.name).type, field.type)
    else:
        yield given, into


def _is_other(given: pa.DataType, into: pa.DataType) -> bool:
    """Tell whether a cast would change the kind of values: numbers to text, times to numbers."""
    takes = _TAKES.get(form_of(into))
    if given == into or takes is None or form_of(given) == "null":
        return False
    if form_of(given) not in takes:
        return True
    if form_of(into) == "temporal":
        return _sort(given) != _sort(into)
    return form_of(into) in ("bool", "decimal") and pa.types.is_floating(given)


def _sort(kind: pa.DataType) -> tuple[bool, bool]:
    """Return whether times are durations, or times of a day; else they are moments."""
    return pa.types.is_duration(kind), pa.types.is_time(kind)


def _is_risky(given: pa.DataType, into: pa.DataType) -> bool:
    """Tell whether Arrow's own checks are not enough: narrower floats, numbers to booleans, timestamps to days."""
    if given == into or form_of(given) == "null":
        return False
    if pa.types.is_floating(into):
        wider = pa.types.is_floating(given) and given.bit_width <= into.bit_width
        return not (wider or (pa.types.is_integer(given) and not pa.types.is_float16(into)))
    is_flag = pa.types.is_boolean(into) and pa.types.is_integer(given)
    return bool(is_flag or (pa.types.is_date(into) and pa.types.is_timestamp(given)))


def _leaves(old: Any, new: Any, rows: NDArray[Any]) -> Iterator[tuple[Any, Any, NDArray[Any]]]:
    """Yield the values of a column before and after the cast, and the row of each."""
    import pyarrow.compute as pc

    while isinstance(old, pa.ExtensionArray):
        old = old.storage
    if form_of(old.type) == "dictionary":
        old = old.dictionary_decode()
    form = form_of(old.type)
    if form == "map":
        old, new, form = _map_lists(old), _map_lists(new), "list"
    if form in _LISTS:
        rows = rows[pc.list_parent_indices(old).to_numpy(zero_copy_only=False)]
        yield from _leaves(pc.list_flatten(old), pc.list_flatten(new), rows)
    elif form == "struct":
        parts = dict(zip([field.name for field in old.type], old.flatten(), strict=True))
        for field, part in zip(new.type, new.flatten(), strict=True):
            if field.name in parts:
                yield from _leaves(parts[field.name], part, rows)
    else:
        yield old, new, rows


def _map_lists(column: Any) -> Any:
    """Return a map as lists of structs, which can be flattened."""
    entries = pa.StructArray.from_arrays([column.keys, column.items], ["key", "value"])
    return pa.ListArray.from_arrays(column.offsets, entries)


def _refuse_lost(old: Any, new: Any, rows: NDArray[Any], name: str) -> None:
    """Raise for the first value that differs after the cast."""
    import pyarrow.compute as pc

    if not _is_risky(old.type, new.type):
        return
    if pa.types.is_boolean(new.type):
        lost = pc.and_(pc.not_equal(old, 0), pc.not_equal(old, 1))
    elif pa.types.is_date(new.type):
        lost = pc.not_equal(new.cast(pa.timestamp(old.type.unit)), old.cast(pa.timestamp(old.type.unit)))
    elif pa.types.is_integer(old.type):
        lost = pc.not_equal(new.cast(pa.float64()), old.cast(pa.float64()))
    else:
        lost = pc.is_inf(new.cast(pa.float64()))
        if pa.types.is_floating(old.type):  # infinity is allowed
            lost = pc.and_(lost, pc.invert(pc.is_inf(old.cast(pa.float64()))))
    index = pc.index(lost, True).as_py()
    if index >= 0:
        raise SchemaError(
            f"row {rows[index]}, column {name!r}: {old[index].as_py()} ({old.type}) cannot be stored as {new.type} and "
            "stay the same; change the value, or give the field another dtype"
        )


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
        yield EncodeTask(first, stop - start, size, partial(_encoded_columns, parts, layout, first, stop - start))
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
        return TABLE_ROWS
    size = sum(int(getattr(column[start], "nbytes", 8)) for column in columns.values())
    return max(1, min(BATCH_ROWS, most_bytes // max(size, 1)))


def _encoded_columns(parts: Mapping[str, Any], layout: StorageLayout, first: int, count: int) -> pa.RecordBatch:
    arrays = []
    for stored in layout.columns:
        field = layout.unischema.fields.get(stored.name)  # None for a struct: its members have fields
        part = parts.get(stored.name)
        if part is None:
            refuse_null(field or stored, first)
            arrays.append(pa.nulls(count, stored.type))
        elif isinstance(part, pa.Array | pa.ChunkedArray):
            arrays.append(stored_column(part, stored, layout, first))
        else:
            encoded = array_of(list(part), stored, first) if field is None else _column(part, field, stored, first)
            arrays.append(encoded)
    return checked(pa.RecordBatch.from_arrays(arrays, schema=layout.columns), layout, first)


def _column(part: Any, field: UnischemaField, stored: pa.Field, first: int) -> pa.Array:
    if _is_plain(part, field, stored):
        mask = np.ma.getmaskarray(part) if isinstance(part, np.ma.MaskedArray) else None
        return refuse_nulls(quick_column(np.ma.getdata(part), stored.type, mask), stored, first)
    return array_of([encode_cell(field, value, index) for index, value in enumerate(part, first)], stored, first)


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


_NUMBER_BYTES = 32
"""Approximate size of a Python number in a list."""


@dataclass(frozen=True, slots=True)
class Hands:
    """How values that are expensive to encode are handled."""

    is_busy: Callable[[], bool]
    """Whether the other threads are busy: then the caller encodes as well, which saves a copy."""
    copy: bool
    """Whether values may change after the row was taken, so that waiting ones must be copies."""
    batch_rows: int = BATCH_ROWS
    """Rows after which a batch is closed."""
    batch_bytes: int = BATCH_BYTES
    """Bytes of values after which a batch is closed."""
    spares: BufferPool = dataclasses.field(default_factory=BufferPool)
    """Where the memory of copies goes after they are encoded."""


class RowBuffer:
    """The rows of the current batch, as columns."""

    def __init__(self, layout: StorageLayout, first: int, hands: Hands) -> None:
        fields = layout.unischema.fields
        if list(fields) != layout.columns.names:
            raise SchemaError("rows cannot follow a table with structs; pass schema=Unischema(...) and rows only")
        self._layout, self._fields = layout, fields
        self._plan = [(name, field, is_slow(field), plain_types(field)) for name, field in fields.items()]
        self._has_slow = any(is_slow(field) for field in fields.values())
        self._first, self._hands = first, hands
        self._clear()

    def _clear(self) -> None:
        self._cells: list[list[Any]] = [[] for _ in self._plan]
        self.num_rows = self._bytes = 0

    def add(self, row: Any) -> None:
        """Take one row; raises SchemaError if it does not match, and then it is not taken."""
        index = self._first + self.num_rows
        if type(row) is not dict and not isinstance(row, Mapping):  # the second check takes a microsecond
            raise SchemaError(
                f"row {index}: expected a dict of field name to value, got {type(row).__name__}; "
                "namedtuples can be given as row._asdict()"
            )
        if not row.keys() <= self._fields.keys():
            refuse_names(row, self._fields, index=index)
        taken, size = [], 0
        busy = self._has_slow and self._hands.is_busy()
        for name, field, slow, plain in self._plan:
            value = row.get(name)
            if type(value) in plain:
                size += _NUMBER_BYTES
            elif slow and value is not None:
                # The size of the value, not of the cell: where a batch ends must not depend on which thread was busy.
                size += getattr(value, "nbytes", _NUMBER_BYTES)
                if busy:
                    value = EncodedCell(own(encode_cell(field, value, index)))
                else:
                    value = keep_value(field, value, index, self._hands.spares if self._hands.copy else None)
            else:
                value = encode_cell(field, value, index)
                if type(value) not in FIXED and self._hands.copy:
                    value = own(value)
                size += len(value) if type(value) is bytes else _size(value)
            taken.append(value)
        for column, value in zip(self._cells, taken, strict=True):
            column.append(value)
        self.num_rows += 1
        self._bytes += size

    def is_full(self) -> bool:
        """Tell whether the batch is large enough to be encoded."""
        return self.num_rows >= self._hands.batch_rows or self._bytes >= self._hands.batch_bytes

    def take(self) -> EncodeTask:
        """Return the rows so far as one task, and start the next batch."""
        make = partial(_encoded_rows, self._cells, self._layout, self._first, self._hands)
        taken = EncodeTask(self._first, self.num_rows, self._bytes, make)
        self._first += self.num_rows
        self._clear()
        return taken


def _size(cell: Any) -> int:
    """Return the approximate bytes that a cell keeps in memory while it waits."""
    if isinstance(cell, bytes | bytearray | str):
        return len(cell)
    if isinstance(cell, list | tuple) and cell:
        return len(cell) * _size(cell[0])
    return int(getattr(cell, "nbytes", _NUMBER_BYTES))


def _encoded_rows(cells: list[list[Any]], layout: StorageLayout, first: int, hands: Hands) -> pa.RecordBatch:
    arrays = []
    for column, stored in zip(cells, layout.columns, strict=True):
        field = layout.unischema.fields[stored.name]
        slow = is_slow(field)
        arrays.append(array_of(encode_cells(field, column, first) if slow else column, stored, first))
        if slow and hands.copy and is_ours(field.codec):  # a custom codec may still hold the memory of the copies
            hands.spares.give_back(column)
        column.clear()
    return checked(pa.RecordBatch.from_arrays(arrays, schema=layout.columns), layout, first)
