"""Lay the selected rows of an epoch's chunks end to end and find the chunk of any row on that line.

Takes rows per chunk and the order; gives `lanes` and `lines` the borders of chunks and an exact, vectorised look-up.
Keeps two words for each chunk that has rows and a small table, never anything for each row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock.plan.order import CHUNKS, permutation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.plan.order import Order

GUESSES = 4
"""Steps from the table's guess before a binary search takes over, where many chunks are far below the average."""


class Stretches(NamedTuple):
    """Stretches cut at borders, in order: stretch `part` has rows [first, last) of cell `cell`."""

    part: NDArray[np.int64]
    cell: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]


def cut(borders: NDArray[np.int64], first: NDArray[np.int64], last: NDArray[np.int64]) -> Stretches:
    """Cut the stretches [first, last) at the strictly rising `borders`, which reach from 0 to the end.

    Empty stretches give none. borders 0 3 5 9, stretches [1, 4) [5, 6): give [1, 3) [3, 4) [5, 6) in cells 0 1 2.
    """
    some = np.flatnonzero(last > first)
    low = np.searchsorted(borders, first[some], side="right") - 1
    num_cells = np.searchsorted(borders, last[some], side="left") - low
    part = np.repeat(some, num_cells)
    before = np.cumsum(num_cells) - num_cells
    cell = np.arange(len(part), dtype=np.int64) + np.repeat(low - before, num_cells)
    return Stretches(part, cell, np.maximum(borders[cell], first[part]), np.minimum(borders[cell + 1], last[part]))


@dataclass(frozen=True, slots=True)
class Line:
    """The rows of one epoch, chunk after chunk; built by `lay`."""

    chunks: NDArray[np.int64]
    """Numbers of the chunks that have rows, in the order of this epoch."""
    borders: NDArray[np.int64]
    """Line row at which each of them begins, and N at the end."""
    shift: int
    """log2 of the rows of one cell of `table`, at most the rows of an average chunk."""
    table: NDArray[np.int64]
    """For the first row of each cell of 2^shift rows, the index of its chunk in `chunks`."""
    steps: int
    """The most chunks that begin within a cell, after its first row: how far the table's guess may be behind."""

    @property
    def total_rows(self) -> int:
        """N."""
        return int(self.borders[-1])

    def find(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the index in `chunks` for each line row; about 10 ns a row where chunks are of like size."""
        at = self.table.take(rows >> self.shift)
        ends = self.borders[1:]
        for _ in range(min(self.steps, GUESSES)):
            at += ends.take(at) <= rows
        if self.steps > GUESSES and (ends.take(at) <= rows).any():
            return np.searchsorted(self.borders, rows, side="right") - 1
        return at

    def locate(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return chunk number and ordinal among the chunk's selected rows for each line row."""
        at = self.find(rows)
        return self.chunks.take(at), rows - self.borders.take(at)


def lay(counts: NDArray[np.int64], *, order: Order, epoch: int) -> Line:
    """Return the line of `epoch`: chunks with rows only, as stored or permuted by (seed, epoch)."""
    chunks = np.flatnonzero(counts).astype(np.int64, copy=False)
    if order.kind != "natural":
        chunks = chunks[permutation(len(chunks), seed=order.seed, epoch=epoch, a=0, b=0, kind=CHUNKS)]
    borders = np.zeros(len(chunks) + 1, dtype=np.int64)
    np.cumsum(counts[chunks], out=borders[1:])
    shift = max(0, (int(borders[-1]) // max(1, len(chunks))).bit_length() - 1)
    table = _cells(borders, shift)
    return Line(chunks, borders, shift, table, int(np.diff(table, append=len(chunks) - 1).max(initial=0)))


def _cells(borders: NDArray[np.int64], shift: int) -> NDArray[np.int64]:
    """Return for each cell of 2^shift rows how many chunks begin at or before its first row, less one."""
    first_cell = (borders[:-1] + ((1 << shift) - 1)) >> shift  # the first cell whose first row is not before the chunk
    begun = np.bincount(first_cell, minlength=(int(borders[-1]) >> shift) + 1)
    return np.cumsum(begun, dtype=np.int64) - 1
