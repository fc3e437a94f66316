"""Rows, one dict each, to encode tasks: cheap values are encoded at once, expensive ones later in other threads.

First stage for `Writer.append` and for iterables of dicts. When `add` returns, the caller may change or reuse the row
and everything in it: mutable values are copied, or encoded already if all other threads were busy. Buffers the rows of
one batch only. `cells` says what a single value may be.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.errors import SchemaError
from penstock.write.cells import (
    EncodedCell,
    array_of,
    encode_cell,
    encode_cells,
    is_ours,
    is_slow,
    keep_value,
    plain_types,
    refuse_names,
)
from penstock.write.copies import FIXED, BufferPool, own
from penstock.write.options import BATCH_BYTES, BATCH_ROWS, EncodeTask
from penstock.write.tables import checked

if TYPE_CHECKING:
    from penstock.schema.unischema import UnischemaField
    from penstock.write.layout import StorageLayout

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
        make = partial(_make, self._cells, self._layout, self._first, self._hands)
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


def _make(cells: list[list[Any]], layout: StorageLayout, first: int, hands: Hands) -> pa.RecordBatch:
    arrays = []
    for column, stored in zip(cells, layout.columns, strict=True):
        field = layout.unischema.fields[stored.name]
        encoded = _encoded(column, field, first, hands) if is_slow(field) else column
        arrays.append(array_of(encoded, stored, first))
    return checked(pa.RecordBatch.from_arrays(arrays, schema=layout.columns), layout, first)


def _encoded(column: list[Any], field: UnischemaField, first: int, hands: Hands) -> list[Any]:
    """Encode the values of a column; the memory of copies is reused, unless a custom codec may still hold it."""
    cells = encode_cells(field, column, first)
    if hands.copy and is_ours(field.codec):
        hands.spares.give_back(column)
    column.clear()
    return cells
