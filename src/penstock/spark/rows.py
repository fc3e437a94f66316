"""Rows that a transform makes on an executor, as Arrow batches in storage form.

Runs in one thread of one process, as Spark does: no queue and no pool. A row is encoded when it is taken, so its arrays
may be reused; arrays of one shape are copied once, into the memory that Parquet is written from; numbers become columns
all at once. `write/cells.py` says what a value may be, and has the error messages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from io import BytesIO
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from penstock.codecs import NdarrayCodec, ScalarCodec
from penstock.errors import SchemaError
from penstock.write.cells import array_of, encode_cell, refuse_names, refuse_nulls
from penstock.write.encode_task import BATCH_BYTES
from penstock.write.tables import checked

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from penstock.schema.unischema import UnischemaField
    from penstock.write.layout import StorageLayout

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
    cells = [stored for stored in layout.columns if not _is_number(fields[stored.name], stored.type)]
    return {stored.name: _column(fields[stored.name], stored) for stored in cells}


def _column(field: UnischemaField, stored: pa.Field) -> _Column:
    if type(field.codec) is NdarrayCodec and _payload_bytes(field):
        return _Blocks(field, stored)
    return _Cells(field, stored)


def _is_number(field: UnischemaField, kind: pa.DataType) -> bool:
    if field.shape or type(field.codec) not in (ScalarCodec, type(None)):
        return False
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _numbers(layout: StorageLayout) -> _Numbers:
    fields = layout.unischema.fields
    return _Numbers([(fields[s.name], s) for s in layout.columns if _is_number(fields[s.name], s.type)])


def _payload_bytes(field: UnischemaField) -> int:
    """Return the bytes of an array of this field; 0 if they are unknown."""
    kind = field.numpy_dtype
    plain = isinstance(kind, type) and issubclass(kind, np.number | np.bool_)
    return int(math.prod(n or 0 for n in field.shape)) * np.dtype(kind).itemsize if plain else 0


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
        try:
            made = pa.array(values, stored.type)
        except (pa.ArrowException, TypeError, OverflowError):
            pass
        else:
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
        header = _header(np.dtype(self._kind), self._shape)
        self._start = len(header)
        width = len(header) + _payload_bytes(field)
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


def _header(dtype: np.dtype[Any], shape: tuple[int | None, ...]) -> bytes:
    file = BytesIO()
    np.save(file, np.zeros([n or 0 for n in shape], dtype), allow_pickle=False)
    return file.getvalue()[: file.tell() - math.prod(n or 0 for n in shape) * dtype.itemsize]
