"""Chunks in memory, and the rows of a span brought together from the chunks they lie in, column by column.

A `Chunk` is made from what the source read: columns that are decompressed but not decoded, as views of its buffers. It
is immutable, so any number of threads may gather from it. `gather` takes chunks and the place of every row and gives
`Gathered` columns: finished arrays for stacked columns, `Cells` for encoded ones, Python values for the rest. Decodes
nothing. Rows come either as runs of neighbours (line orders: slices, views where that is allowed) or as picks (the lane
order: one sorted pass over each chunk, then one permutation).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from penstock.codecs.arrow import Objects, cells_view, fixed_view, objects, takeable
from penstock.codecs.arrow_memory import one_array, take_rows
from penstock.codecs.base import CellError, Cells, view_column
from penstock.codecs.decode import reason_of
from penstock.codecs.row_values import objects_of
from penstock.engine.memory import Cutter, aligned
from penstock.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from penstock.codecs.arrow import Fixed
    from penstock.engine.inputs import Column
    from penstock.engine.memory import BlockPool
    from penstock.engine.row_arena import Records
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
            bad = []
            for row in range(len(array)):
                try:
                    _part(cast("pa.Array", array).slice(row, 1), column)
                except CellError as misfit:
                    damaged.setdefault(row, (column.name, reason_of(misfit, column.name)))
                    bad.append(row)
            parts.append(_part(_nulled(array, bad), column))
    nulls = frozenset(i for i, part in enumerate(parts) if part.valid is not None)
    if table is not None and rows is None:
        return Chunk(index, table.num_rows, table.get_total_buffer_size(), tuple(parts), nulls, damaged=damaged)
    num_rows = len(stored[0]) if rows is None else len(rows)
    num_bytes = 0
    for one in stored:
        if isinstance(one, Cells):
            num_bytes += sum(part.nbytes for part in one.parts) + one.start.nbytes + one.stop.nbytes
        else:
            num_bytes += one.get_total_buffer_size()
    return Chunk(index, num_rows, num_bytes, tuple(parts), nulls, damaged=damaged)


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


_SMALL_KEY_CHUNKS = 1 << 16
"""Chunk numbers below this sort as 16-bit keys, which NumPy does by radix: 19 instead of 50 ns a row."""


_SMALL_ITEM_BYTES = 64
"""Up to here a row is taken twice, in chunk order and then into place: both passes run at memory speed."""
_LARGE_ITEM_BYTES = 1 << 13
"""From here copying one row costs more than the Python around it (450 ns; a fancy index takes 140 ns for 784 bytes)."""


class Gathered(NamedTuple):
    """One column of a span: exactly one of `values`, `cells` and `rows` is given."""

    values: NDArray[Any] | None = None
    valid: NDArray[np.bool_] | None = None
    cells: Cells | None = None
    rows: NDArray[np.object_] | list[Any] | None = None


class Runs:
    """Rows as runs of neighbours: run i is rows [first, end) of a chunk."""

    def __init__(self, chunks: Sequence[Chunk], bounds: Sequence[tuple[int, int]], *, views: bool) -> None:
        self.chunks = chunks
        self.bounds = bounds
        self.views = views
        """Whether a view of a chunk may be handed out: only at the chunk's last use."""
        self.num_rows = sum(end - first for first, end in bounds)

    def fixed(self, parts: Sequence[NDArray[Any]], out: NDArray[Any]) -> None:
        """Copy the rows of each part into `out`."""
        at = 0
        for values, (first, end) in zip(parts, self.bounds, strict=True):
            out[at : at + end - first] = values[first:end]
            at += end - first

    def single_run(self) -> slice | None:
        """Return the rows as a slice of the only chunk, where handing out views of it is allowed."""
        return slice(*self.bounds[0]) if self.views and len(self.bounds) == 1 else None

    def arena_index(self, arena: Records) -> None:
        """Return None: runs are copied as slices, not taken."""

    def part_numbers(self) -> NDArray[np.intp] | None:
        """Return for each row the number of its chunk; None where there is only one."""
        if len(self.chunks) == 1:
            return None
        return np.repeat(np.arange(len(self.chunks)), [end - first for first, end in self.bounds])

    def arrays(self, parts: Sequence[Any]) -> list[tuple[Any, slice]]:
        """Return Arrow slices and where their rows go."""
        found, at = [], 0
        for array, (first, end) in zip(parts, self.bounds, strict=True):
            found.append((array.slice(first, end - first), slice(at, at + end - first)))
            at += end - first
        return found


class Picks:
    """Rows picked from anywhere: row i of the span is row `rows[i]` of chunk number `part[i]`."""

    def __init__(self, chunks: Sequence[Chunk], part: NDArray[np.intp], rows: NDArray[np.int64]) -> None:
        self.chunks = chunks
        self.num_rows = len(rows)
        self._part = part
        self._rows = rows

    @cached_property
    def _order(self) -> NDArray[np.intp]:
        """The rows by chunk, in the span's order within each."""
        keys = self._part.astype(np.uint16) if len(self.chunks) < _SMALL_KEY_CHUNKS else self._part
        return np.argsort(keys, kind="stable")

    @cached_property
    def _sorted_rows(self) -> NDArray[np.int64]:
        return self._rows[self._order]

    @cached_property
    def _bounds(self) -> list[int]:
        """Where each chunk's rows begin in that order."""
        return cast("list[int]", np.searchsorted(self._part[self._order], np.arange(len(self.chunks) + 1)).tolist())

    @cached_property
    def _back(self) -> NDArray[np.intp]:
        """Where each row of the span is in that order."""
        back = np.empty(self.num_rows, np.intp)
        back[self._order] = np.arange(self.num_rows)
        return back

    def fixed(self, parts: Sequence[NDArray[Any]], out: NDArray[Any]) -> None:
        """Take the rows of each part, chunk by chunk, into `out`."""
        if len(parts) == 1:
            _take(parts[0], self._sorted_rows, out)  # one chunk: the stable order is the span's own
            return
        item_bytes = out.strides[0]
        if item_bytes > _SMALL_ITEM_BYTES:
            for number, values in enumerate(parts):
                first, end = self._bounds[number], self._bounds[number + 1]
                to, rows = self._order[first:end], self._sorted_rows[first:end]
                if item_bytes <= _LARGE_ITEM_BYTES:
                    out[to] = values[rows]
                    continue
                for target, row in zip(to.tolist(), rows.tolist(), strict=True):
                    out[target] = values[row]  # without the temporary copy
            return
        near = np.empty_like(out)
        for number, values in enumerate(parts):
            first, end = self._bounds[number], self._bounds[number + 1]
            _take(values, self._sorted_rows[first:end], near[first:end])
        _take(near, self._back, out)

    def single_run(self) -> None:
        """Return None: picked rows are never neighbours."""

    def arena_index(self, arena: Records) -> NDArray[np.int64] | None:
        """Return the place of every row in the arena; None if some chunk is not there."""
        slots = np.array([chunk.slot for chunk in self.chunks], np.int64)
        if not len(slots) or slots.min() < 0:
            return None
        return (slots * arena.slot_rows)[self._part] + self._rows

    def part_numbers(self) -> NDArray[np.intp] | None:
        """Return for each row the number of its chunk; None where there is only one."""
        return self._part if len(self.chunks) > 1 else None

    def arrays(self, parts: Sequence[Any]) -> list[tuple[Any, NDArray[np.intp]]]:
        """Return Arrow arrays of the picked rows, one a chunk, and where their rows go."""
        import pyarrow as pa

        found = []
        for number, array in enumerate(parts):
            first, end = self._bounds[number], self._bounds[number + 1]
            rows = self._sorted_rows[first:end]
            index = pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(np.ascontiguousarray(rows))])
            found.append((array.take(index), self._order[first:end]))
        return found


Rows = Runs | Picks


def _take(values: NDArray[Any], rows: NDArray[np.int64], out: NDArray[Any]) -> None:
    # mode="clip" writes straight into `out`; "raise" would go through a buffer. The plan never asks beyond the chunk.
    if values.flags.c_contiguous and values.dtype == out.dtype:
        values.take(rows, 0, out, "clip")
    else:
        out[...] = values[rows]  # take would first copy a strided part whole, and converts nothing


def gather(
    rows: Rows, columns: Sequence[Column], pool: BlockPool, arena: Records | None, *, skip: bool
) -> list[Gathered]:
    """Gather every column of a span; stacked columns share one block of the pool.

    Columns that lie in an arena with all the chunks concerned are taken in one go; neighbours in one chunk become views
    where that is allowed. A value that cannot be made is a CellLost, or with `skip` a Damaged in its place.
    """
    chunks = rows.chunks
    run = rows.single_run()
    # Columns that are copied into stacked arrays: not where a view will do or cells have to be decoded.
    stacked = [
        i
        for i, column in enumerate(columns)
        if (
            run is None
            if column.form == "fixed"
            else column.form == "cells" and all(cast("CellsPart", chunk.parts[i]).view is not None for chunk in chunks)
        )
    ]
    values = _stack(rows, [(i, columns[i]) for i in stacked], pool, arena)
    nulls = frozenset[int]().union(*(chunk.nulls for chunk in chunks))
    found = []
    for i, column in enumerate(columns):
        valid = _valid(rows, [chunk.parts[i] for chunk in chunks]) if i in nulls else None
        if i in values:
            found.append(Gathered(values[i], valid))
        elif run is not None and column.form == "fixed":
            found.append(Gathered(chunks[0].parts[i].values[run], valid))  # type: ignore[union-attr]
        elif column.form == "objects":
            found.append(Gathered(rows=_objects(rows, column, [chunk.parts[i] for chunk in chunks], skip=skip)))
        else:
            cells = [cast("CellsPart", chunk.parts[i]) for chunk in chunks]
            start, stop = np.empty(rows.num_rows, np.int64), np.empty(rows.num_rows, np.int64)
            rows.fixed([part.start for part in cells], start)
            rows.fixed([part.stop for part in cells], stop)
            data = [part.data for part in cells]
            found.append(Gathered(valid=valid, cells=Cells(data, rows.part_numbers(), start, stop, valid)))
    return found


def _stack(
    rows: Rows, columns: Sequence[tuple[int, Column]], pool: BlockPool, arena: Records | None
) -> dict[int, NDArray[Any]]:
    """Copy the rows of stacked columns into one block. A loop over maybe 1,000 columns: every call counts."""
    num_rows, chunks = rows.num_rows, rows.chunks
    if not columns:
        return {}
    cutter = Cutter(pool.lease(sum(aligned(column.item_bytes * num_rows) for _, column in columns)))
    cut = cutter.cut
    out = {i: cut((num_rows, *column.shape), column.dtype, column.item_bytes * num_rows) for i, column in columns}
    left = out
    if arena is not None and (index := rows.arena_index(arena)) is not None:
        arena.take(index, out)
        left = {i: array for i, array in out.items() if i not in arena.columns}
    for i, array in left.items():
        rows.fixed([chunk.parts[i].stacked for chunk in chunks], array)  # type: ignore[union-attr]
    return out


def _valid(rows: Rows, parts: Sequence[Part]) -> NDArray[np.bool_] | None:
    """Gather validity of a column with nulls in any of the chunks; None if none of the rows is null."""
    masks = [part.valid for part in parts if not isinstance(part, ObjectsPart)]
    wide = max((mask.ndim for mask in masks if mask is not None), default=1)
    shape = next(mask.shape[1:] for mask in masks if mask is not None and mask.ndim == wide)
    filled = []
    for chunk, mask in zip(rows.chunks, masks, strict=True):
        if mask is None:
            mask = np.ones((chunk.num_rows, *shape), np.bool_)
        elif mask.ndim < wide:
            mask = np.broadcast_to(mask.reshape(-1, *[1] * len(shape)), (len(mask), *shape))
        filled.append(mask)
    out = np.empty((rows.num_rows, *shape), np.bool_)
    rows.fixed(filled, out)
    return None if out.all() else out


def _objects(rows: Rows, column: Column, parts: Sequence[Part], *, skip: bool) -> NDArray[np.object_] | list[Any]:
    kind = cast("Objects", column.kind)
    arrays = rows.arrays([cast("ObjectsPart", part).array for part in parts])
    if len(arrays) == 1 and isinstance(arrays[0][1], slice):
        return _values(*arrays[0], column, skip=skip)
    out = np.empty(rows.num_rows, np.object_)
    for array, where in arrays:
        values = _values(array, where, column, skip=skip)
        out[where] = values if isinstance(values, np.ndarray) else objects_of(values)
    return list(out) if kind.as_list else out


def _values(
    array: pa.Array, where: slice | NDArray[np.intp], column: Column, *, skip: bool
) -> NDArray[np.object_] | list[Any]:
    """Make the values of an array whose rows go to `where` in the span."""
    kind = cast("Objects", column.kind)
    try:
        return objects(array, kind)
    except CellError as error:
        if not skip:
            row = where.start + error.index if isinstance(where, slice) else int(where[error.index])
            raise CellLost(row, column.name, reason_of(error, column.name)) from error
    found: list[Any] = []
    for row in range(len(array)):
        try:
            found.append(objects(array.slice(row, 1), kind)[0])
        except CellError as error:
            found.append(Damaged(str(error)))
    return found
