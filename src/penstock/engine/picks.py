"""Rows picked from anywhere in the chunks in memory: how the shuffled order gathers.

`Picks` is what `Runs` of `gather` is for rows that follow one another. One sorted pass over each chunk and one
permutation bring fixed-width rows into place.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock.engine.gather import Chunk
    from penstock.engine.row_arena import Records

_SMALL_KEY_CHUNKS = 1 << 16
"""Chunk numbers below this sort as 16-bit keys, which NumPy does by radix: 19 instead of 50 ns a row."""
_SMALL_ITEM_BYTES = 64
"""Up to here a row is taken twice, in chunk order and then into place: both passes run at memory speed."""
_LARGE_ITEM_BYTES = 1 << 13
"""From here copying one row costs more than the Python around it (450 ns; a fancy index takes 140 ns for 784 bytes)."""
_FEW_ROWS = 8
"""With fewer rows than that from each chunk, single rows are joined: a take of a chunk costs about as much as ten."""


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
        return (slots * arena.slot_rows)[self._part] + self._rows if len(slots) and slots.min() >= 0 else None

    def part_numbers(self) -> NDArray[np.intp] | None:
        """Return for each row the number of its chunk; None where there is only one."""
        return self._part if len(self.chunks) > 1 else None

    def arrays(self, parts: Sequence[Any]) -> list[tuple[Any, NDArray[np.intp] | slice]]:
        """Return Arrow arrays of the picked rows, one for each chunk or one for all, and where their rows go."""
        import pyarrow as pa

        if parts and self.num_rows < _FEW_ROWS * len(parts) and not _is_composed(parts[0].type):
            picked = zip(self._part.tolist(), self._rows.tolist(), strict=True)
            try:
                return [
                    (pa.concat_arrays([parts[number].slice(row, 1) for number, row in picked]), slice(0, self.num_rows))
                ]
            except pa.ArrowInvalid:  # no rows, chunks of different types, or more bytes than one array can hold
                pass
        found: list[tuple[Any, NDArray[np.intp] | slice]] = []
        for number, array in enumerate(parts):
            first, end = self._bounds[number], self._bounds[number + 1]
            rows = self._sorted_rows[first:end]
            index = pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(np.ascontiguousarray(rows))])
            found.append((array.take(index), self._order[first:end]))
        return found


def _is_composed(kind: Any) -> bool:
    """Tell whether joining arrays of a type costs more than copying their values: dictionaries are merged."""
    import pyarrow as pa

    return bool(pa.types.is_nested(kind) or pa.types.is_dictionary(kind))


def _take(values: NDArray[Any], rows: NDArray[np.int64], out: NDArray[Any]) -> None:
    # mode="clip" writes straight into `out`; "raise" would go through a buffer. The plan never asks beyond the chunk.
    if values.flags.c_contiguous and values.dtype == out.dtype:
        values.take(rows, 0, out, "clip")
    else:
        out[...] = values[rows]  # take would first copy a strided part whole, and converts nothing
