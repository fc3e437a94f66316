"""Orders that keep rows together: chunks as stored or permuted, dealt to ranks in contiguous parts.

`Line` lays the items of an epoch's chunks end to end and finds the chunk of any item; `shuffled` builds on it too.
`LinePlan` gives a rank a part of what is left of the line, as runs of neighbouring items. Memory is a few words for
each chunk and run, nothing for each row.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock.plan.epoch import EpochPlan, Visits, repeated
from penstock.plan.order import Cursor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.plan.order import Order, Share

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
        from penstock.plan.permutations import CHUNKS, permutation  # here: natural order needs none

        chunks = chunks[permutation(len(chunks), seed=order.seed, epoch=epoch, a=0, b=0, kind=CHUNKS)]
    borders = np.zeros(len(chunks) + 1, dtype=np.int64)
    np.cumsum(counts[chunks], out=borders[1:])
    shift = max(0, (int(borders[-1]) // max(1, len(chunks))).bit_length() - 1)
    first_cell = (borders[:-1] + ((1 << shift) - 1)) >> shift  # the first cell whose first row is not before the chunk
    begun = np.bincount(first_cell, minlength=(int(borders[-1]) >> shift) + 1)
    table = np.cumsum(begun, dtype=np.int64) - 1
    return Line(chunks, borders, shift, table, int(np.diff(table, append=len(chunks) - 1).max(initial=0)))


class LinePlan(EpochPlan):
    """One rank's part of an epoch whose items form a line; see `EpochPlan`.

    What is left is laid end to end, n items, and the rank has places [offset, offset + num_items) of it.
    n=10, W=4:   drop 0-2 2-4 4-6 6-8, the tail 8-10 stays in `left`    pad 0-3 3-6 6-9 9-12    uneven 0-3 3-6 6-8 8-10
    """

    def __init__(self, counts: NDArray[np.int64], *, order: Order, cursor: Cursor, share: Share) -> None:
        super().__init__(counts, order=order, cursor=cursor, share=share)
        left = np.array(cursor.left, dtype=np.int64).reshape(-1, 2)
        self._left_first = left[:, 0]
        self._left_borders = np.concatenate(([0], np.cumsum(left[:, 1] - left[:, 0])))
        self._offset = int(part_offsets(share, self.num_left)[share.rank])

    @property
    def _num_real(self) -> int:
        return max(0, min(self.num_items, self.num_left - self._offset))

    @cached_property
    def line(self) -> Line:
        """The chunks of the epoch, laid end to end; built on first use."""
        return lay(self.counts, order=self.order, epoch=self.cursor.epoch)

    @cached_property
    def _padding(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        padding = self.positions(self._num_real, self.num_items)
        return self.line.locate(repeated(self.total_rows, padding))

    @cached_property
    def _stretches(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Chunk, first row and item of each stretch of rows that follow each other, and the end of the items."""
        _, first, last = self._on_line(np.array([self._offset]), np.array([self._offset + self._num_real]))
        _, cell, begin, end = cut(self.line.borders, first, last)
        pad_chunk, pad_row = self._padding
        chunk = np.concatenate((self.line.chunks[cell], pad_chunk))
        row = np.concatenate((begin - self.line.borders[cell], pad_row))
        length = np.concatenate((end - begin, np.ones(len(pad_chunk), dtype=np.int64)))
        return chunk, row, np.concatenate(([0], np.cumsum(length)))

    def runs(self, lo: int, hi: int) -> list[tuple[int, int, int]]:
        """Return items lo..hi-1 as stretches (chunk, first row, end row), in order; a padding row is one."""
        self._check(lo, hi)
        chunk, row, end = self._between(lo, hi)
        return list(zip(chunk.tolist(), row.tolist(), end.tolist(), strict=True))

    def positions(self, lo: int, hi: int) -> NDArray[np.int64]:
        """Return the index on the epoch's line; N+j for padding."""
        self._check(lo, hi)
        place = self._offset + np.arange(lo, hi, dtype=np.int64)
        inside = place[place < self.num_left]
        at = np.searchsorted(self._left_borders, inside, side="right") - 1
        on_line = self._left_first[at] + inside - self._left_borders[at]
        return np.concatenate((on_line, self.total_rows + place[len(inside) :] - self.num_left))

    def _rows(self, lo: int, hi: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        chunk, row, end = self._between(lo, hi)
        length = end - row
        before = np.cumsum(length) - length
        return np.repeat(chunk, length), np.arange(hi - lo, dtype=np.int64) + np.repeat(row - before, length)

    def _between(self, lo: int, hi: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return chunk, first and end row of the stretches of items lo..hi-1."""
        chunk, row, item = self._stretches
        at = slice(int(np.searchsorted(item, lo, side="right")) - 1, int(np.searchsorted(item, hi, side="left")))
        if lo == hi:
            at = slice(0, 0)
        first = np.maximum(item[at], lo)
        last = np.minimum(item[1:][at], hi)
        base = row[at] - item[at]
        return chunk[at], base + first, base + last

    def _visits(self) -> Visits:
        chunk, _, item = self._stretches
        opens = changes(chunk[:-1] != chunk[1:], len(chunk))
        return Visits(chunk[opens], item[opens], np.concatenate((item[opens[1:]], item[-1:]))[: len(opens)])

    def _after(self, steps: int) -> Cursor:
        share, num_left = self.share, self.num_left
        bounds = np.minimum(part_offsets(share, num_left), num_left)
        kept = np.array([share.kept(num_left, rank) for rank in range(share.world)], dtype=np.int64)
        first = np.append(bounds[:-1] + np.minimum(kept, steps * share.batch_size), bounds[-1])
        _, first, last = self._on_line(first, np.append(bounds[1:], num_left))
        return Cursor(self.cursor.epoch, left=as_left(first, last), owner=self.cursor.owner)

    def cells(self, first: NDArray[np.int64], last: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return which part and which cell of the line each stretch of the parts [first, last) of what is left has."""
        part, first, last = self._on_line(first, last)
        stretch, cell, _, _ = cut(self.line.borders, first, last)
        return part[stretch], cell

    def _on_line(
        self, first: NDArray[np.int64], last: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return part and interval of the epoch's line for the parts [first, last) of what is left."""
        part, cell, first, last = cut(self._left_borders, first, last)
        shift = self._left_first[cell] - self._left_borders[cell]
        return part, first + shift, last + shift


def part_offsets(share: Share, num_left: int) -> NDArray[np.int64]:
    """Return where the part of each rank begins, and where that of the last one ends (beyond n with padding)."""
    even, rest = divmod(num_left, share.world)
    rank = np.arange(share.world + 1, dtype=np.int64)
    if share.remainder == "uneven":
        return rank * even + np.minimum(rank, rest)
    return rank * (even + (rest > 0 and share.remainder == "pad"))


def changes(differs: NDArray[np.bool_], n: int) -> NDArray[np.int64]:
    """Return where the runs of n things begin, given which neighbours differ."""
    return np.flatnonzero(np.concatenate(([True], differs)))[:n]


def as_left(first: NDArray[np.int64], last: NDArray[np.int64]) -> tuple[tuple[int, int], ...]:
    """Return rising intervals as pairs, those that touch made one."""
    opens = changes(last[:-1] != first[1:], len(first))
    closes = np.append(opens[1:], len(first))[: len(opens)] - 1
    return tuple(zip(first[opens].tolist(), last[closes].tolist(), strict=True))
