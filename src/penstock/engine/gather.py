"""Bring the rows of a span together from the chunks they lie in, column by column.

Takes chunks and the place of every row; gives `Gathered` columns: finished arrays for stacked columns, `Cells` for
encoded ones, Python values for the rest. Decodes nothing. Rows come either as runs of neighbours (line orders: slices,
views where that is allowed) or as picks (the lane order: one sorted pass over each chunk, then one permutation).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from penstock.codecs import Cells
from penstock.codecs.arrow import Objects, objects
from penstock.engine.chunk import CellsPart, FixedPart, ObjectsPart
from penstock.engine.memory import Cutter, aligned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock.engine.chunk import Chunk, Part
    from penstock.engine.columns import Column
    from penstock.engine.memory import BlockPool

_SMALL_KEY_CHUNKS = 1 << 16
"""Chunk numbers below this sort as 16-bit keys, which NumPy does by radix: 19 instead of 50 ns a row."""


_SMALL_ITEM_BYTES = 64
"""Up to here a row is taken twice, in chunk order and then into place: both passes run at memory speed."""
_LARGE_ITEM_BYTES = 1 << 13
"""From here a copy of one row costs more than the Python around it (450 ns a row; 784 bytes take 140 ns by fancy index)."""


@dataclass(frozen=True, slots=True)
class Gathered:
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

    def view(self, parts: Sequence[NDArray[Any]]) -> NDArray[Any] | None:
        """Return the rows without copying, where they are neighbours in one part and handing out views is allowed."""
        if not self.views or len(parts) != 1:
            return None
        first, end = self.bounds[0]
        return parts[0][first:end]

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
        keys = part.astype(np.uint16) if len(chunks) < _SMALL_KEY_CHUNKS else part
        self._order = np.argsort(keys, kind="stable")
        self._sorted_rows = rows[self._order]
        self._bounds = np.searchsorted(part[self._order], np.arange(len(chunks) + 1)).tolist()
        self._back = np.empty(len(rows), np.intp)
        self._back[self._order] = np.arange(len(rows))

    def fixed(self, parts: Sequence[NDArray[Any]], out: NDArray[Any]) -> None:
        """Take the rows of each part, chunk by chunk, into `out`."""
        if len(parts) == 1:
            _take(parts[0], self._sorted_rows, out)  # one chunk: the stable order is the span's own
            return
        item_bytes = out.strides[0]
        if item_bytes > _SMALL_ITEM_BYTES:
            self._scatter(parts, out, one_by_one=item_bytes > _LARGE_ITEM_BYTES)
            return
        near = np.empty_like(out)
        for number, values in enumerate(parts):
            first, end = self._bounds[number], self._bounds[number + 1]
            _take(values, self._sorted_rows[first:end], near[first:end])
        _take(near, self._back, out)

    def _scatter(self, parts: Sequence[NDArray[Any]], out: NDArray[Any], *, one_by_one: bool) -> None:
        """Copy wide rows to their place chunk by chunk; very wide ones singly, which spares the temporary copy."""
        for number, values in enumerate(parts):
            first, end = self._bounds[number], self._bounds[number + 1]
            to, rows = self._order[first:end], self._sorted_rows[first:end]
            if not one_by_one:
                out[to] = values[rows]
                continue
            for target, row in zip(to.tolist(), rows.tolist(), strict=True):
                out[target] = values[row]

    def view(self, parts: Sequence[NDArray[Any]]) -> None:
        """Return None: picked rows are never neighbours."""

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
        np.take(values, rows, axis=0, out=out, mode="clip")
    else:
        out[...] = values[rows]  # take would first copy a strided part whole, and converts nothing


def gather(rows: Rows, columns: Sequence[Column], pool: BlockPool) -> list[Gathered]:
    """Gather every column of a span; stacked columns share one block of the pool."""
    parts = [[chunk.parts[i] for chunk in rows.chunks] for i in range(len(columns))]
    stacked = [_stackable(column, part) for column, part in zip(columns, parts, strict=True)]
    views = [
        rows.view(values) if values is not None and column.form == "fixed" else None
        for column, values in zip(columns, stacked, strict=True)
    ]
    need = sum(
        aligned(column.item_bytes * rows.num_rows)
        for column, values, view in zip(columns, stacked, views, strict=True)
        if values is not None and view is None
    )
    cutter = Cutter(pool.lease(need)) if need else None
    found = []
    for column, part, values, view in zip(columns, parts, stacked, views, strict=True):
        if values is None:
            found.append(_encoded(rows, column, part))
            continue
        if view is None:
            view = _copied(rows, column, values, cast("Cutter", cutter))
        found.append(Gathered(view, _valid(rows, part)))
    return found


def _stackable(column: Column, parts: Sequence[Part]) -> list[NDArray[Any]] | None:
    """Return each chunk's stacked values, or None where any of them still has to be decoded."""
    if column.form == "fixed":
        return [cast("FixedPart", part).values for part in parts]
    if column.form != "cells":
        return None
    views = [cast("CellsPart", part).view for part in parts]
    return None if any(view is None for view in views) else cast("list[NDArray[Any]]", views)


def _copied(rows: Rows, column: Column, values: Sequence[NDArray[Any]], cutter: Cutter) -> NDArray[Any]:
    dtype = cast("np.dtype[Any]", column.dtype)
    out = cutter.cut((rows.num_rows, *column.shape), dtype, column.item_bytes * rows.num_rows)
    rows.fixed(values, out)
    return out


def _valid(rows: Rows, parts: Sequence[Part]) -> NDArray[np.bool_] | None:
    """Gather validity where any of the chunks has nulls."""
    if all(part.valid is None for part in parts if not isinstance(part, ObjectsPart)):
        return None
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


def _encoded(rows: Rows, column: Column, parts: Sequence[Part]) -> Gathered:
    if column.form == "objects":
        return Gathered(rows=_objects(rows, column, parts))
    cells = cast("Sequence[CellsPart]", parts)
    start, stop = np.empty(rows.num_rows, np.int64), np.empty(rows.num_rows, np.int64)
    rows.fixed([part.offsets[:-1] for part in cells], start)
    rows.fixed([part.offsets[1:] for part in cells], stop)
    valid = _valid(rows, parts)
    return Gathered(valid=valid, cells=Cells([part.data for part in cells], rows.part_numbers(), start, stop, valid))


def _objects(rows: Rows, column: Column, parts: Sequence[Part]) -> NDArray[np.object_] | list[Any]:
    kind = cast("Objects", column.kind)
    pieces = rows.arrays([cast("ObjectsPart", part).array for part in parts])
    if len(pieces) == 1 and isinstance(pieces[0][1], slice):
        return objects(pieces[0][0], kind)
    out = np.empty(rows.num_rows, np.object_)
    for array, where in pieces:
        values = objects(array, kind)
        holder = np.empty(len(values), np.object_)
        holder[:] = values if isinstance(values, np.ndarray) else _as_objects(values)
        out[where] = holder
    return list(out) if kind.as_list else out


def _as_objects(values: list[Any]) -> NDArray[np.object_]:
    """Wrap a list without letting NumPy look inside (equal lengths would become a 2-D array)."""
    out = np.empty(len(values), np.object_)
    for i, value in enumerate(values):  # no NumPy call assigns a list of arrays item by item
        out[i] = value
    return out
