"""Rows, one dict each, to works: values leave the dict at once, and what is slow to encode is encoded later.

First stage for `Writer.append` and for iterables of dicts. When `add` returns, the caller may change or reuse the row
and its arrays. Nothing is held but the rows of one batch. What a single value may be is said in `cells`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.errors import SchemaError
from penstock.write.cells import array_of, encode_cell, is_ours, is_slow, keep_value, refuse_names
from penstock.write.tables import checked
from penstock.write.work import Work

if TYPE_CHECKING:
    from penstock.schema.unischema import UnischemaField
    from penstock.write.layout import Layout
    from penstock.write.spares import Spares

_NUMBER_BYTES = 32
"""A Python number in a list, about."""


class RowBuffer:
    """The rows of the batch that is being filled, as columns."""

    def __init__(self, layout: Layout, first: int, spares: Spares) -> None:
        fields = layout.unischema.fields
        if list(fields) != layout.columns.names:
            raise SchemaError("rows cannot follow a table with structs; pass schema=Unischema(...) and rows only")
        self._layout, self._fields = layout, fields
        self._plan = [(name, field, is_slow(field)) for name, field in fields.items()]
        self._first, self._spares = first, spares
        self._clear()

    def _clear(self) -> None:
        self._cells: list[list[Any]] = [[] for _ in self._plan]
        self.num_rows = self._bytes = 0

    def add(self, row: Any) -> None:
        """Take one row; SchemaError where it does not fit, and then it is not taken."""
        index = self._first + self.num_rows
        if not isinstance(row, Mapping):
            raise SchemaError(
                f"row {index}: expected a dict of field name to value, got {type(row).__name__}; "
                "namedtuples can be given as row._asdict()"
            )
        if not row.keys() <= self._fields.keys():
            refuse_names(row, self._fields, index=index)
        taken, size = [], 0
        for name, field, slow in self._plan:
            value = row.get(name)
            if slow and value is not None:
                value = keep_value(field, value, index, self._spares)
                size += getattr(value, "nbytes", _NUMBER_BYTES)
            else:
                value = encode_cell(field, value, index)
                size += len(value) if isinstance(value, bytes | bytearray | str) else _NUMBER_BYTES
            taken.append(value)
        for column, value in zip(self._cells, taken, strict=True):
            column.append(value)
        self.num_rows += 1
        self._bytes += size

    def is_full(self, *, rows: int, size: int) -> bool:
        """Tell whether the batch has that many rows or bytes."""
        return self.num_rows >= rows or self._bytes >= size

    def take(self) -> Work:
        """Return the rows so far as one work, and begin the next batch."""
        make = partial(_make, self._cells, self._layout, self._first, self._spares)
        work = Work(self._first, self.num_rows, self._bytes, make)
        self._first += self.num_rows
        self._clear()
        return work


def _make(cells: list[list[Any]], layout: Layout, first: int, spares: Spares) -> pa.RecordBatch:
    arrays = []
    for column, stored in zip(cells, layout.columns, strict=True):
        field = layout.unischema.fields[stored.name]
        encoded = _encoded(column, field, first, spares) if is_slow(field) else column
        arrays.append(array_of(encoded, stored, first))
    return checked(pa.RecordBatch.from_arrays(arrays, schema=layout.columns), layout, first)


def _encoded(column: list[Any], field: UnischemaField, first: int, spares: Spares) -> list[Any]:
    """Encode the values of a column; the memory of their copies is free then, unless a codec of the user has them."""
    cells = []
    for index, value in enumerate(column, first):
        cells.append(encode_cell(field, value, index))
        if is_ours(field.codec):
            spares.give_back(value)
    column.clear()
    return cells
