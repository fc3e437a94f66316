"""Arrow columns as Spark sends them to cells of a field's codec: nested lists, ML vectors, raw bytes.

Runs in Spark's Python workers, between `mapInArrow` and the writing of files. A column of equal shapes is handled as
one block of memory, and plain arrays are laid out as `.npy` cells without a loop over rows; everything else goes
through the codec row by row. Binary columns of encoded cells are unchanged. Knows no Spark.

`encoded_rows` does the same for rows that a transform makes, in one thread as Spark does. A row is encoded when it is
taken, so its arrays may be reused; arrays of one shape are copied once, into the memory that Parquet is written from;
numbers become columns all at once. `write/cells.py` defines what a value may be, and has the error messages.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import pyarrow as pa

from penstock.codecs import CompressedImageCodec, CompressedNdarrayCodec, NdarrayCodec, ScalarCodec
from penstock.codecs.arrow_kinds import form_of
from penstock.errors import SchemaError
from penstock.write.cells import array_of, encode_cell, refuse_names, refuse_null, refuse_nulls
from penstock.write.options import BATCH_BYTES
from penstock.write.tasks import checked

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.schema.unischema import UnischemaField
    from penstock.write.layout import StorageLayout

_VECTOR = ["type", "size", "indices", "values"]
"""The struct in which Spark stores ML vectors; `type` is 0 for sparse and 1 for dense ones."""
_BEGINNINGS: dict[Any, tuple[bytes, ...]] = {
    NdarrayCodec: (b"\x93NUMPY",),
    CompressedNdarrayCodec: (b"PK\x03\x04",),
    CompressedImageCodec: (b"\x89PNG", b"\xff\xd8\xff", b"RIFF", b"II*\x00", b"MM\x00*", b"BM", b"\x00\x00\x00\x0c"),
}
SLICE_BYTES = 64 << 20
"""Bytes of a batch that are encoded at a time; the cells of a column are in one buffer with 32-bit offsets."""


def slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut a batch into slices of about `SLICE_BYTES`, in order."""
    step = max(1, batch.num_rows * SLICE_BYTES // max(int(batch.nbytes), 1))
    for start in range(0, batch.num_rows, step):
        yield batch.slice(start, step)


def with_cells(batch: pa.RecordBatch, layout: StorageLayout, first: int) -> pa.RecordBatch:
    """Return a batch whose columns with a codec are encoded; `first` is the index of its first row, for errors."""
    columns, fields = [], []
    for stored, column in zip(batch.schema, batch.columns, strict=True):
        made = column
        if stored.name in layout.cells:
            field = layout.unischema.fields[stored.name]
            made = encoded(column, field, layout.columns.field(stored.name), first)
        columns.append(made)
        fields.append(pa.field(stored.name, made.type))
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def encoded(column: pa.Array, field: UnischemaField, stored: pa.Field, first: int) -> pa.Array:
    """Return a column as cells of the field's codec.

    Raises:
        SchemaError: A row does not match the field; names the row, the field, what is expected and what was given.
    """
    if pa.types.is_struct(column.type) and [child.name for child in column.type] == _VECTOR:
        column = dense(column)
    if _is_list(column.type):
        levels, leaf = _levels(column)
        _refuse_inner_nulls(column, levels[1:], leaf, field, first)
        offsets = [level.offsets.to_numpy(zero_copy_only=False).astype(np.int64) for level in levels]
        starts = [one - one[0] for one in offsets]  # relative to the slice of the level below
        values = _leaf_values(leaf, starts, field, first)
        sizes = None if column.null_count else _uniform(starts)
        shape = None if sizes is None else _shaped(sizes, field)
        if shape is not None and type(field.codec) is NdarrayCodec and values.dtype.kind in "biufc":
            block = values.reshape(len(column), *shape)
            encode_cell(field, block[0], first)  # one row for all: they share dtype and shape
            return npy_cells(block)
        return _row_by_row(column, lambda row: _row(starts, values, row, field, first), field, stored, first)
    if (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)) and _is_raw(column, field):
        size, dtype = _raw_bytes(field), np.dtype(field.numpy_dtype)

        def value(row: int) -> NDArray[Any]:
            cell = column[row].as_buffer()
            if len(cell) != size:
                raise SchemaError(
                    f"row {first + row}, field {field.name!r}: {len(cell)} bytes, where {dtype} of shape {field.shape} "
                    f"has {size}; give raw bytes of that many, or cells that are encoded already, but not both in one "
                    "column"
                )
            return np.frombuffer(cell, dtype).reshape([n or 0 for n in field.shape])

        return _row_by_row(column, value, field, stored, first)
    return column  # cells, or refused later when types are compared


def dense(column: pa.StructArray) -> pa.Array:
    """Return ML vectors as lists of their values, including zeros."""
    kinds, values = column.field("type"), column.field("values")
    if 0 not in kinds.unique().to_pylist():
        if not column.null_count:
            return values
        import pyarrow.compute as pc

        return pc.if_else(column.is_valid(), values, pa.scalar(None, values.type))
    sizes = column.field("size").to_pylist()
    indices, rows = column.field("indices").to_pylist(), values.to_pylist()
    found: list[NDArray[np.float64] | None] = []
    for row, (kind, size, places) in enumerate(zip(kinds.to_pylist(), sizes, indices, strict=True)):
        if not column[row].is_valid:
            found.append(None)
        elif kind == 1:
            found.append(np.array(rows[row], np.float64))
        else:
            found.append(np.zeros(size))
            found[-1][places] = rows[row]  # type: ignore[index]
    return pa.array(found, pa.list_(pa.float64()))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


# -- raw bytes -----------------------------------------------------------------------------------------------------


def _is_raw(column: pa.Array, field: UnischemaField) -> bool:
    """Tell whether cells are the raw memory of arrays: of exactly that length, and without the header of an encoded
    cell.
    """
    size = _raw_bytes(field)
    row = next((row for row in column if row.is_valid), None) if size else None
    if row is None:
        return False
    cell = row.as_buffer()
    return len(cell) == size and not cell.to_pybytes()[:16].startswith(_BEGINNINGS.get(type(field.codec), ()))


def _raw_bytes(field: UnischemaField) -> int:
    """Return the bytes of an array of this field; 0 if they are unknown."""
    kind = field.numpy_dtype
    plain = isinstance(kind, type) and issubclass(kind, np.number | np.bool_)
    return int(math.prod(size or 0 for size in field.shape)) * np.dtype(kind).itemsize if plain else 0


# -- lists ---------------------------------------------------------------------------------------------------------


def _row_by_row(
    column: pa.Array, value: Callable[[int], Any], field: UnischemaField, stored: pa.Field, first: int
) -> pa.Array:
    cells: list[Any] = []
    for row, is_valid in enumerate(column.is_valid().to_numpy(zero_copy_only=False).tolist()):
        if not is_valid:
            refuse_null(field, first + row)
        cells.append(encode_cell(field, value(row), first + row) if is_valid else None)
    return array_of(cells, stored, first)


def _levels(column: pa.Array) -> tuple[list[Any], pa.Array]:
    """Return the list arrays from the outermost in, and the values; slices are cut at each level."""
    levels = []
    while _is_list(column.type):
        if pa.types.is_fixed_size_list(column.type):
            column = column.cast(pa.large_list(column.type.value_type))
        levels.append(column)
        begin, end = int(column.offsets[0].as_py()), int(column.offsets[-1].as_py())
        column = column.values.slice(begin, end - begin)
    return levels, column


def _refuse_inner_nulls(column: pa.Array, inner: list[Any], leaf: pa.Array, field: UnischemaField, first: int) -> None:
    if not leaf.null_count and not any(level.null_count for level in inner):
        return
    for row, value in enumerate(column.to_pylist()):
        if value is not None and _has_null(value):
            raise SchemaError(
                f"row {first + row}, field {field.name!r}: the list holds a null, which an array cannot represent; "
                "use a value instead, or make the whole row null in a nullable field"
            )


def _has_null(value: Any) -> bool:
    return value is None or (isinstance(value, list) and any(map(_has_null, value)))


_TEXT = {"text"}
_FORMS = {"U": _TEXT, "S": _TEXT | {"bytes"}}
_NUMBERS = {"bool", "number", "decimal"}
"""Forms of Arrow's types (`codecs/arrow_kinds.py`) whose values fill arrays of text, of bytes and of numbers."""


def _leaf_values(leaf: pa.Array, starts: list[NDArray[np.int64]], field: UnischemaField, first: int) -> NDArray[Any]:
    """Return the values in the field's dtype; floats may be rounded, but no number becomes another, or infinite."""
    kind = field.numpy_dtype
    if not (isinstance(kind, type) and issubclass(kind, np.number | np.bool_ | np.str_ | np.bytes_)):
        return cast("NDArray[Any]", leaf.to_numpy(zero_copy_only=False))
    dtype = np.dtype(kind)
    if not len(leaf):
        return np.empty(0, dtype)
    if form_of(leaf.type) not in _FORMS.get(dtype.kind, _NUMBERS):
        raise _misfit(leaf, field, first, "values are not converted to another kind")
    if dtype.kind in "US":
        return cast("NDArray[Any]", leaf.to_numpy(zero_copy_only=False).astype(kind))
    made, lost = _as_numbers(leaf, dtype, field, first)
    if lost is not None and lost.any():
        index = int(lost.argmax())
        for level in reversed(starts):
            index = int(np.searchsorted(level, index, side="right")) - 1
        raise SchemaError(
            f"row {first + index}, field {field.name!r}: the list holds {leaf[int(lost.argmax())].as_py()}, which "
            f"{dtype.name} does not; convert the column, or change the field"
        )
    return made


def _as_numbers(
    leaf: pa.Array, dtype: np.dtype[Any], field: UnischemaField, first: int
) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    """Return numbers in a dtype, and which of them it cannot hold; None: it holds them all."""
    is_whole = pa.types.is_integer(leaf.type)
    if dtype.kind in "iu" or (is_whole and dtype in (np.float32, np.float64)):
        try:
            return leaf.cast(pa.from_numpy_dtype(dtype)).to_numpy(zero_copy_only=False), None
        except pa.ArrowException as error:
            raise _misfit(leaf, field, first, str(error)) from error
    plain = leaf.cast(pa.float64()) if form_of(leaf.type) == "decimal" else leaf
    values: NDArray[Any] = plain.to_numpy(zero_copy_only=False)
    if values.dtype == dtype:
        return values, None
    with np.errstate(over="ignore", invalid="ignore"):
        made = values.astype(dtype)
    if dtype.kind == "b" or is_whole:
        return made, made != values
    infinite: NDArray[np.bool_] = np.isinf(made)
    return made, infinite & ~np.isinf(values) if infinite.any() else None


def _misfit(leaf: pa.Array, field: UnischemaField, first: int, why: str) -> SchemaError:
    return SchemaError(
        f"rows from {first}, field {field.name!r}: the lists hold {leaf.type}, the field expects "
        f"{np.dtype(field.numpy_dtype).name}: {why}; convert the column, or change the field"
    )


def _uniform(starts: list[NDArray[np.int64]]) -> tuple[int, ...] | None:
    """Return the sizes that all rows share, outermost first; None if they differ, or there is no row."""
    sizes = []
    for level in starts:
        widths = np.diff(level)
        if not len(widths) or (widths != widths[0]).any():
            return None
        sizes.append(int(widths[0]))
    return tuple(sizes)


def _shaped(sizes: tuple[int, ...], field: UnischemaField) -> tuple[int, ...]:
    """Return the shape of a row: its own, or the field's for a flat list of the right length."""
    wanted = tuple(size for size in field.shape if size is not None)
    is_flat = len(sizes) == 1 and len(wanted) == len(field.shape) > 1 and sizes[0] == math.prod(wanted)
    return wanted if is_flat else sizes


def _row(
    starts: list[NDArray[np.int64]], values: NDArray[Any], row: int, field: UnischemaField, first: int
) -> NDArray[Any]:
    """Return one row as an array; its inner lists must have equal lengths."""
    begin, end = row, row + 1
    sizes = []
    for depth, level in enumerate(starts):
        widths = np.diff(level[begin : end + 1])
        if depth and len(widths) and (widths != widths[0]).any():
            raise SchemaError(
                f"row {first + row}, field {field.name!r}: lists of {int(widths.min())} to {int(widths.max())} values "
                f"in one row, expected an array of shape {field.shape}; make them equally long"
            )
        sizes.append(int(widths[0]) if len(widths) else 0)
        begin, end = int(level[begin]), int(level[end])
    return values[begin:end].reshape(_shaped(tuple(sizes), field))


def npy_cells(block: NDArray[Any]) -> pa.Array:
    """Return rows of equal shape as `.npy` cells, byte for byte those of `NdarrayCodec.encode`, without a loop."""
    file = BytesIO()
    np.save(file, block[0], allow_pickle=False)
    payload = block[0].nbytes
    header = np.frombuffer(file.getvalue(), np.uint8)[: file.tell() - payload]
    cells = np.empty((len(block), len(header) + payload), np.uint8)
    cells[:, : len(header)] = header
    cells[:, len(header) :] = np.ascontiguousarray(block).reshape(len(block), -1).view(np.uint8)
    offsets = np.arange(len(block) + 1, dtype=np.int32) * np.int32(cells.shape[1])
    return pa.Array.from_buffers(pa.binary(), len(block), [None, pa.py_buffer(offsets), pa.py_buffer(cells)])


_ROW_BYTES = 64
"""Approximate bytes of the numbers of a row, for cutting batches by bytes."""


def encoded_rows(rows: Iterable[Any], layout: StorageLayout, first: int) -> Iterator[pa.RecordBatch]:
    """Encode rows, dicts of the schema's values, and yield batches of about `BATCH_BYTES`, in order.

    Raises:
        SchemaError: A row does not match the schema; names the row, the field, what is expected and what was given.
    """
    names = layout.unischema.fields.keys()
    numbers, columns = _numbers(layout), _columns(layout)
    begin, size = first, 0
    for index, row in enumerate(rows, first):
        if not isinstance(row, Mapping):
            got = type(row).__name__
            raise SchemaError(f"row {index}: the transform gave {got}, wanted a dict of the schema's values")
        if not row.keys() <= names:
            refuse_names(row, layout.unischema.fields, index=index)
        size += _ROW_BYTES
        numbers.add(row)
        for name, column in columns.items():
            size += column.add(row.get(name), index)
        if size >= BATCH_BYTES:
            yield _batch(numbers, columns, layout, begin)
            numbers, columns, begin, size = _numbers(layout), _columns(layout), index + 1, 0
    if size:
        yield _batch(numbers, columns, layout, begin)


class _Column(Protocol):
    def add(self, value: Any, index: int) -> int:
        """Take the value of row `index`; return the bytes of its cell."""

    def finish(self, first: int) -> pa.Array:
        """Return all values as a column; `first` is the index of the first row."""


def _columns(layout: StorageLayout) -> dict[str, _Column]:
    fields = layout.unischema.fields
    others = [(fields[s.name], s) for s in layout.columns if not _is_number(fields[s.name], s.type)]
    return {
        stored.name: _Blocks(field, stored)
        if type(field.codec) is NdarrayCodec and _raw_bytes(field)
        else _Cells(field, stored)
        for field, stored in others
    }


def _is_number(field: UnischemaField, kind: pa.DataType) -> bool:
    if field.shape or type(field.codec) not in (ScalarCodec, type(None)):
        return False
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _numbers(layout: StorageLayout) -> _Numbers:
    fields = layout.unischema.fields
    return _Numbers([(fields[s.name], s) for s in layout.columns if _is_number(fields[s.name], s.type)])


def _batch(numbers: _Numbers, columns: Mapping[str, _Column], layout: StorageLayout, first: int) -> pa.RecordBatch:
    made = numbers.finish(first) | {name: column.finish(first) for name, column in columns.items()}
    arrays = [made[stored.name] for stored in layout.columns]
    return checked(pa.RecordBatch.from_arrays(arrays, schema=layout.columns), layout, first)


class _Cells:
    """Values that their codec encodes one by one."""

    def __init__(self, field: UnischemaField, stored: pa.Field) -> None:
        self._field, self._stored = field, stored
        self._cells: list[Any] = []

    def add(self, value: Any, index: int) -> int:
        cell = encode_cell(self._field, value, index)
        self._cells.append(cell)
        return len(cell) if isinstance(cell, bytes | bytearray | str) else 0

    def finish(self, first: int) -> pa.Array:
        return array_of(self._cells, self._stored, first)


class _Numbers:
    """All columns of numbers: Arrow checks and converts each at once; the codec handles, or refuses, the rest."""

    def __init__(self, fields: Sequence[tuple[UnischemaField, pa.Field]]) -> None:
        self._fields = fields
        self._names = [field.name for field, _ in fields]
        # One call for all of them; with a single name it would return the value itself.
        self._take = itemgetter(*self._names) if len(fields) > 1 else None
        self._rows: list[Sequence[Any]] = []

    def add(self, row: Mapping[str, Any]) -> None:
        """Take the numbers of a row; a missing one is null."""
        if self._take is not None and type(row) is dict:  # other mappings may invent values for missing keys
            try:
                self._rows.append(self._take(row))
            except KeyError:
                pass
            else:
                return
        self._rows.append([row.get(name) for name in self._names])

    def finish(self, first: int) -> dict[str, pa.Array]:
        """Return the columns by name; `first` is the index of the first row."""
        values = zip(*self._rows, strict=True)
        return {
            field.name: _number_column(field, stored, column, first)
            for (field, stored), column in zip(self._fields, values, strict=True)
        }


def _number_column(field: UnischemaField, stored: pa.Field, values: Sequence[Any], first: int) -> pa.Array:
    kinds: tuple[type, ...] = (int, np.integer)
    if pa.types.is_boolean(stored.type):
        kinds = (bool, np.bool_)
    elif pa.types.is_floating(stored.type):
        kinds = (float, np.floating)
    if all(issubclass(kind, (type(None), *kinds)) for kind in set(map(type, values))):  # Arrow cuts 1.5 down to 1
        with contextlib.suppress(pa.ArrowException, TypeError, OverflowError):
            made = pa.array(values, stored.type)
            if not _has_infinite(made):
                return refuse_nulls(made, stored, first)
    return array_of([encode_cell(field, value, index) for index, value in enumerate(values, first)], stored, first)


def _has_infinite(column: pa.Array) -> bool:
    """Tell whether there is an infinite number, which a large one may have become."""
    if not pa.types.is_float32(column.type):
        return False
    import pyarrow.compute as pc

    return bool(pc.any(pc.is_inf(column)).as_py())


class _Blocks:
    """Arrays of one shape, one after the other as `.npy` cells: byte for byte those of the codec."""

    def __init__(self, field: UnischemaField, stored: pa.Field) -> None:
        self._field, self._stored = field, stored
        self._shape, self._kind = field.shape, field.numpy_dtype
        file = BytesIO()
        np.save(file, np.zeros([n or 0 for n in self._shape], np.dtype(self._kind)), allow_pickle=False)
        header = file.getvalue()[: file.tell() - _raw_bytes(field)]
        self._start = len(header)
        width = len(header) + _raw_bytes(field)
        self._block = np.empty((BATCH_BYTES // width + 1, width), np.uint8)
        self._block[:, : self._start] = np.frombuffer(header, np.uint8)
        self._num_rows = 0
        self._odd: dict[int, bytes | None] = {}
        """Cells that are null, or have another header: arrays in Fortran's order."""

    def add(self, value: Any, index: int) -> int:
        row = self._num_rows
        if row == len(self._block):  # many rows, because of other columns
            self._block = np.concatenate([self._block, self._block])
        plain = type(value) is np.ndarray and value.shape == self._shape and value.flags.c_contiguous
        if plain and value.dtype.type is self._kind and value.dtype.isnative:
            self._block[row, self._start :] = value.reshape(-1).view(np.uint8)
        else:
            self._odd[row] = encode_cell(self._field, value, index)
        self._num_rows += 1
        return self._block.shape[1]

    def finish(self, first: int) -> pa.Array:
        cells = self._block[: self._num_rows]
        if self._odd:
            made = [self._odd[row] if row in self._odd else cells[row].tobytes() for row in range(self._num_rows)]
            return array_of(made, self._stored, first)
        offsets = np.arange(len(cells) + 1, dtype=np.int32) * np.int32(cells.shape[1])
        return pa.Array.from_buffers(pa.binary(), len(cells), [None, pa.py_buffer(offsets), pa.py_buffer(cells)])
