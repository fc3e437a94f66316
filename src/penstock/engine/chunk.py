"""A chunk in memory: the columns of one row group, decompressed but not decoded, ready to be gathered.

Made from the Arrow table that the source read; holds NumPy views on Arrow's buffers and keeps those alive. Immutable,
so any number of threads may gather from it. Rows are the selected rows only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from penstock.codecs.arrow import cells_view, fixed_view, takeable
from penstock.codecs.arrow_memory import one_array
from penstock.codecs.base import CellError, view_column
from penstock.codecs.decode import reason_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from penstock.codecs.arrow import Fixed
    from penstock.engine.columns import Column


class CellLost(Exception):
    """A cell cannot be made into a value: its row (of the chunk or batch at hand), its column, and the reason."""

    def __init__(self, row: int, column: str, reason: str) -> None:
        super().__init__(row, column, reason)
        self.row = row
        self.column = column
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Damaged:
    """Stands for a value that could not be made, where its row is to be skipped."""

    reason: str


class FixedPart:
    """Values of a stacked column, one row an item."""

    __slots__ = ("valid", "values")

    def __init__(self, values: NDArray[Any], valid: NDArray[np.bool_] | None) -> None:
        self.values = values
        self.valid = valid

    @property
    def stacked(self) -> NDArray[Any]:
        """The values, a row an item."""
        return self.values

    def lent_base(self) -> NDArray[Any] | None:
        """Return the array that every view of this part refers to, so that its end can be noticed."""
        base = self.values
        while isinstance(base.base, np.ndarray):
            base = base.base
        return base


class CellsPart:
    """Encoded cells; `view` is given where all of them are uniform and need no decoding."""

    __slots__ = ("data", "offsets", "valid", "view")

    def __init__(
        self, data: NDArray[np.uint8], offsets: NDArray[np.integer[Any]], valid: NDArray[np.bool_] | None
    ) -> None:
        self.data = data
        self.offsets = offsets
        self.valid = valid
        self.view: NDArray[Any] | None = None

    @property
    def stacked(self) -> NDArray[Any]:
        """The uniform cells, a row an item; only where there is a view."""
        return cast("NDArray[Any]", self.view)

    def lent_base(self) -> None:
        """Return None: cells are decoded, never handed out."""


class ObjectsPart:
    """An Arrow array whose values become Python objects when a batch is built."""

    __slots__ = ("array",)
    valid = None  # nulls become None among the objects

    def __init__(self, array: pa.Array) -> None:
        self.array = array

    def lent_base(self) -> None:
        """Return None: objects are made anew for each batch."""


Part = FixedPart | CellsPart | ObjectsPart


@dataclass(frozen=True, slots=True)
class Chunk:
    """The columns of one row group."""

    index: int
    num_rows: int
    num_bytes: int
    parts: tuple[Part, ...]
    nulls: frozenset[int]
    """Numbers of the columns that have nulls."""
    slot: int = -1
    """Where its narrow columns lie in the arena; -1: not there."""
    damaged: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    """Rows that are to be skipped, with the column and the reason; null in that column."""


@dataclass(frozen=True, slots=True)
class LostChunk:
    """A row group that could not be read; whoever needs a row of it meets the error."""

    index: int
    error: Exception
    num_bytes: int = 0

    @property
    def damaged(self) -> bool:
        """Always True: all of its rows are lost."""
        return True


def make_chunk(index: int, table: pa.Table, columns: Sequence[Column], *, skip: bool) -> Chunk:
    """Prepare a table, whose columns stand in the order of `columns`; costs microseconds a column, copies only bits.

    A value that does not fit its column is a CellLost, or with `skip` its row is noted as damaged.
    """
    parts: list[Part] = []
    column = None
    try:
        for chunked, column in zip(table.itercolumns(), columns, strict=True):
            array = chunked.chunk(0) if chunked.num_chunks == 1 else one_array(chunked)
            parts.append(_part(array, column))
    except CellError as error:
        if skip:
            return _make_damaged(index, table, columns)
        name = cast("Column", column).name
        raise CellLost(error.index, name, reason_of(error, name)) from error
    nulls = frozenset(i for i, part in enumerate(parts) if part.valid is not None)
    return Chunk(index, table.num_rows, table.get_total_buffer_size(), tuple(parts), nulls)


def _make_damaged(index: int, table: pa.Table, columns: Sequence[Column]) -> Chunk:
    """Prepare a table some of whose values do not fit: their rows are noted, the others are as they should be."""
    parts: list[Part] = []
    damaged: dict[int, tuple[str, str]] = {}
    for chunked, column in zip(table.itercolumns(), columns, strict=True):
        array = one_array(chunked)
        bad = _bad_rows(array, column)
        for row, reason in bad.items():
            damaged.setdefault(row, (column.name, reason))
        parts.append(_part(_nulled(array, list(bad)) if bad else array, column))
    nulls = frozenset(i for i, part in enumerate(parts) if part.valid is not None)
    return Chunk(index, table.num_rows, table.get_total_buffer_size(), tuple(parts), nulls, damaged=damaged)


def _bad_rows(array: pa.Array, column: Column) -> dict[int, str]:
    """Return the rows whose value does not fit, each with the reason."""
    if _misfit(array, column) is None:
        return {}
    reasons = {row: _misfit(array.slice(row, 1), column) for row in range(len(array))}
    return {row: reason for row, reason in reasons.items() if reason is not None}


def _misfit(array: pa.Array, column: Column) -> str | None:
    try:
        _part(array, column)
    except CellError as error:
        return reason_of(error, column.name)
    return None


def _nulled(array: pa.Array, rows: list[int]) -> pa.Array:
    """Return the array with these rows null."""
    import pyarrow as pa

    valid = np.ones(len(array), np.bool_)
    valid[rows] = False
    buffers = [pa.py_buffer(np.packbits(valid, bitorder="little")), pa.py_buffer(np.arange(len(array)))]
    return takeable(array).take(pa.Array.from_buffers(pa.int64(), len(array), buffers, len(rows)))


def _part(array: pa.Array, column: Column) -> Part:
    if column.form == "fixed":
        return FixedPart(*fixed_view(array, cast("Fixed", column.kind), writable=True))
    if column.form == "objects":
        return ObjectsPart(takeable(array))
    part = CellsPart(*cells_view(array))
    if column.form == "cells" and part.valid is None:
        part.view = view_column(column.codec, column.field, part.data, part.offsets)
    return part
