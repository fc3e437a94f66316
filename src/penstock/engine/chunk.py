"""A chunk in memory: its columns, decompressed but not decoded, ready to be gathered.

Made from what the source read; holds NumPy views on its buffers and keeps those alive. Immutable, so any number of
threads may gather from it. Rows are the selected rows only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from penstock.codecs.arrow import cells_view, fixed_view, takeable
from penstock.codecs.arrow_memory import one_array, take_rows
from penstock.codecs.base import CellError, Cells, view_column
from penstock.codecs.decode import reason_of
from penstock.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from penstock.codecs.arrow import Fixed
    from penstock.engine.columns import Column
    from penstock.source import ChunkData


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

    __slots__ = ("data", "start", "stop", "valid", "view")

    def __init__(
        self,
        data: NDArray[np.uint8],
        start: NDArray[np.integer[Any]],
        stop: NDArray[np.integer[Any]],
        valid: NDArray[np.bool_] | None,
    ) -> None:
        self.data = data
        self.start = start
        self.stop = stop
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
    """The columns of one chunk."""

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
    """A chunk that could not be read; the error is raised for the first batch that needs a row of it."""

    index: int
    error: Exception
    num_bytes: int = 0

    @property
    def damaged(self) -> bool:
        """Always True: all of its rows are lost."""
        return True


def make_chunk(
    index: int, data: ChunkData, columns: Sequence[Column], rows: NDArray[np.int64] | None, *, skip: bool
) -> Chunk:
    """Prepare the rows `rows` (None: all) of what a source read; costs microseconds a column, copies only bits.

    A value that does not fit its column is a CellLost, or with `skip` its row is noted as damaged.
    """
    import pyarrow as pa

    table = data if isinstance(data, pa.Table) else None
    given = table.itercolumns() if table is not None else [data[column.name] for column in columns]
    stored = [one if isinstance(one, pa.Array | Cells) else one_array(one) for one in given]
    if rows is not None:
        stored = [one.take(rows) if isinstance(one, Cells) else take_rows(one, rows) for one in stored]
    parts: list[Part] = []
    damaged: dict[int, tuple[str, str]] = {}
    for array, column in zip(stored, columns, strict=True):
        try:
            parts.append(_part(array, column))
        except CellError as error:
            if not skip:
                raise CellLost(error.index, column.name, reason_of(error, column.name)) from error
            bad = _bad_rows(array, column)
            for row, reason in bad.items():
                damaged.setdefault(row, (column.name, reason))
            parts.append(_part(_nulled(array, list(bad)), column))
    nulls = frozenset(i for i, part in enumerate(parts) if part.valid is not None)
    if table is not None and rows is None:
        return Chunk(index, table.num_rows, table.get_total_buffer_size(), tuple(parts), nulls, damaged=damaged)
    num_rows = len(stored[0]) if rows is None else len(rows)
    return Chunk(index, num_rows, sum(map(_num_bytes, stored)), tuple(parts), nulls, damaged=damaged)


def _num_bytes(array: pa.Array | Cells) -> int:
    if isinstance(array, Cells):
        return sum(part.nbytes for part in array.parts) + array.start.nbytes + array.stop.nbytes
    return int(array.get_total_buffer_size())


def _bad_rows(array: pa.Array, column: Column) -> dict[int, str]:
    """Return the rows whose value does not fit, each with the reason."""
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


def _part(array: pa.Array | Cells, column: Column) -> Part:
    if isinstance(array, Cells):
        if column.form not in ("cells", "ragged") or len(array.parts) != 1:
            raise SchemaError(
                f"the source gave Cells of {len(array.parts)} buffers for column {column.name!r}; it must give cells "
                "of one buffer, and only for fields with a codec: values of other fields are Arrow arrays"
            )
        return CellsPart(array.parts[0], array.start, array.stop, array.valid)
    if column.form == "fixed":
        return FixedPart(*fixed_view(array, cast("Fixed", column.kind), writable=True))
    if column.form == "objects":
        return ObjectsPart(takeable(array))
    data, offsets, valid = cells_view(array)
    part = CellsPart(data, offsets[:-1], offsets[1:], valid)
    if column.form == "cells" and valid is None:
        part.view = view_column(column.codec, column.field, data, offsets)
    return part
