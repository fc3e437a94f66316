"""Chunks in memory, and the rows of a span brought together from the chunks they lie in, column by column.

A `Chunk` is made from what the source read: columns that are decompressed but not decoded, as views of its buffers. It
is immutable, so any number of threads may gather from it. `gather` takes chunks and the place of every row and gives
`Gathered` columns: finished arrays for stacked columns, `Cells` for encoded ones, Python values for the rest. Decodes
nothing. Rows come either as runs of neighbours (line orders: slices, views where that is allowed) or as picks (the lane
order, `picks`).

Batches own their memory: the arrays of a batch refer to a block of the `BlockPool`, which gets it back when
the last array on it is gone. First-touched pages are slow, so a loader that runs for hours touches only a few blocks.
The pool never waits: a batch that the user keeps simply keeps its block.
"""

from __future__ import annotations

import contextlib
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from penstock.codecs.arrow import cells_view, fixed_view, takeable
from penstock.codecs.arrow_memory import one_array, take_rows
from penstock.codecs.base import CellError, Cells, view_column
from penstock.codecs.decode import reason_of
from penstock.engine.gather_values import CellLost, find_misfits, gather_objects, gather_valid, nulled
from penstock.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from penstock.engine.inputs import Column
    from penstock.engine.picks import Picks
    from penstock.engine.row_arena import Records
    from penstock.source import ChunkData


ALIGN = 64
_GRAIN = 1 << 16


def aligned(num_bytes: int) -> int:
    """Round up to the alignment of columns inside a block."""
    return (num_bytes + ALIGN - 1) & -ALIGN


class _Lease:
    """Keeps a block out of the pool while any array refers to it."""

    __slots__ = ("__array_interface__", "_free", "_memory")

    def __init__(self, memory: NDArray[np.uint8], free: deque[NDArray[np.uint8]]) -> None:
        self._memory = memory
        self._free = free
        self.__array_interface__: dict[str, Any] = {
            "shape": (memory.size,),
            "typestr": "|u1",
            "data": (memory.ctypes.data, False),
            "version": 3,
        }

    def __del__(self) -> None:
        # Runs in the thread that drops the last array, maybe inside a garbage collection: must not take a lock.
        with contextlib.suppress(AttributeError):  # Ctrl-C inside `__init__`
            self._free.append(self._memory)


@dataclass(slots=True)
class BlockPool:
    """Blocks of bytes, reused by size class; `lease(n)` gives a writable array of at least n bytes."""

    keep: int
    """Most free blocks of each size class that are kept, and about as much as so many of the largest in all; the rest
    goes back to the system."""
    _free: dict[int, deque[NDArray[np.uint8]]] = field(default_factory=dict, init=False)

    def lease(self, num_bytes: int) -> NDArray[np.uint8]:
        """Return uninitialised bytes; the block comes back when the array and all its views are gone."""
        size = max(_GRAIN, (num_bytes + _GRAIN - 1) // _GRAIN * _GRAIN)
        free = self._free.get(size)
        if free is None:
            free = self._free.setdefault(size, deque(maxlen=self.keep))
        try:
            memory = free.pop()
        except IndexError:
            memory = None
        if memory is None:  # outside the except block, so that errors do not chain to the IndexError
            sizes = list(self._free.items())  # sizes may change so often that too many free blocks are kept
            if sum(size * len(free) for size, free in sizes) > self.keep * max(size for size, _ in sizes):
                self.clear()
            fresh = np.empty(size + ALIGN, np.uint8)
            begin = -fresh.ctypes.data % ALIGN  # frameworks share only aligned memory; malloc aligns to 16
            memory = fresh[begin : begin + size]
        return np.asarray(_Lease(memory, free))[:num_bytes]

    def clear(self) -> None:
        """Give all free blocks back."""
        for free in list(self._free.values()):
            free.clear()


class Cutter:
    """Cuts the arrays of one batch out of one block, column after column."""

    __slots__ = ("_block", "_offset")

    def __init__(self, block: NDArray[np.uint8]) -> None:
        self._block = block
        self._offset = 0

    def cut(self, shape: tuple[int, ...], dtype: np.dtype[Any] | None, num_bytes: int) -> NDArray[Any]:
        """Return the next uninitialised array; the block must have been leased large enough."""
        array: NDArray[Any] = np.ndarray(shape, dtype, self._block, self._offset)
        self._offset += aligned(num_bytes)
        return array


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
    if table is not None:
        stored = [one.chunk(0) if one.num_chunks == 1 else one_array(one) for one in table.itercolumns()]
    else:
        given = [data[column.name] for column in columns]
        stored = [one if isinstance(one, pa.Array | Cells) else one_array(one) for one in given]
    if rows is not None:
        stored = [one.take(rows) if isinstance(one, Cells) else take_rows(one, rows) for one in stored]
    parts: list[Part] = []
    damaged: dict[int, tuple[str, str]] = {}
    make = _part if table is None else _arrow_part
    for array, column in zip(stored, columns, strict=True):
        try:
            parts.append(make(array, column))
        except CellError as error:
            if not skip:
                raise CellLost(error.index, column.name, reason_of(error, column.name)) from error
            misfits = find_misfits(cast("pa.Array", array), column, _part)
            for row, misfit in misfits.items():
                damaged.setdefault(row, (column.name, reason_of(misfit, column.name)))
            parts.append(_part(nulled(cast("pa.Array", array), list(misfits)), column))
    nulls = frozenset(i for i, part in enumerate(parts) if part.valid is not None)
    if table is not None and rows is None:
        return Chunk(index, table.num_rows, table.get_total_buffer_size(), tuple(parts), nulls, damaged=damaged)
    num_rows = len(stored[0]) if rows is None else len(rows)
    num_bytes = sum(
        sum(part.nbytes for part in one.parts) + one.start.nbytes + one.stop.nbytes
        if isinstance(one, Cells)
        else one.get_total_buffer_size()
        for one in stored
    )
    return Chunk(index, num_rows, num_bytes, tuple(parts), nulls, damaged=damaged)


def _part(array: pa.Array | Cells, column: Column) -> Part:
    if isinstance(array, Cells):
        if column.form not in ("cells", "ragged") or len(array.parts) != 1:
            raise SchemaError(
                f"the source gave Cells of {len(array.parts)} buffers for column {column.name!r}; it must give cells "
                "of one buffer, and only for fields with a codec: values of other fields are Arrow arrays"
            )
        return CellsPart(array.parts[0], array.start, array.stop, array.valid)
    return _arrow_part(array, column)


def _arrow_part(array: pa.Array, column: Column) -> Part:
    if column.form == "fixed":
        kind: Any = column.kind
        return FixedPart(*fixed_view(array, kind, writable=True))
    if column.form == "objects":
        return ObjectsPart(takeable(array))
    data, offsets, valid = cells_view(array)
    part = CellsPart(data, offsets[:-1], offsets[1:], valid)
    if column.form == "cells" and valid is None:
        part.view = view_column(column.codec, column.field, data, offsets)
    return part


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


def gather(
    rows: Runs | Picks, columns: Sequence[Column], pool: BlockPool, arena: Records | None, *, skip: bool
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
        valid = gather_valid(rows, [chunk.parts[i] for chunk in chunks]) if i in nulls else None
        if i in values:
            found.append(Gathered(values[i], valid))
        elif run is not None and column.form == "fixed":
            found.append(Gathered(chunks[0].parts[i].values[run], valid))  # type: ignore[union-attr]
        elif column.form == "objects":
            found.append(Gathered(rows=gather_objects(rows, column, [chunk.parts[i] for chunk in chunks], skip=skip)))
        else:
            cells = [cast("CellsPart", chunk.parts[i]) for chunk in chunks]
            start, stop = np.empty(rows.num_rows, np.int64), np.empty(rows.num_rows, np.int64)
            rows.fixed([part.start for part in cells], start)
            rows.fixed([part.stop for part in cells], stop)
            data = [part.data for part in cells]
            found.append(Gathered(valid=valid, cells=Cells(data, rows.part_numbers(), start, stop, valid)))
    return found


def _stack(
    rows: Runs | Picks, columns: Sequence[tuple[int, Column]], pool: BlockPool, arena: Records | None
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
