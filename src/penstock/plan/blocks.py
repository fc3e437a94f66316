"""Permute the blocks that a rank is drawing from and hand out its rows in order.

The fast path under `lanes`: a ring for each of the rank's lanes holds what is left of the current block, so that a span
over hundreds of lanes is one gather. Knows lanes, blocks and line rows; chunks are looked up by `line`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock.plan.order import BLOCKS, Words, stable_argsort, stable_argsort_part

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.plan.grid import Deal, Grid
    from penstock.plan.order import Order

SPAN = 1 << 14
"""Rows gathered at once: larger spans are cut, so that rings need not be much longer than a block."""

FEW = 64
"""A first span that wants less than one row in so many of a block does not wait for the whole block to be sorted."""


class Blocks:
    """The rows of one rank's lanes, in the rank's order.

    Item i is turn i // P of lane column i mod P. Column c keeps turns [since[c], until[c]) in a ring of one block and
    one span: 4 bytes a row (8 where the epoch has 2^32 rows or more). A span that goes on where the last ended permutes
    each block once; a span elsewhere begins anew with the blocks it lies in.
    """

    def __init__(self, grid: Grid, deal: Deal, *, order: Order, epoch: int) -> None:
        self._grid, self._deal = grid, deal
        self._words = Words(order.seed, epoch)
        self._num_lanes = len(deal.lane)
        self._lane_start, self._lane_rows = grid.start(deal.lane), grid.rows(deal.lane)
        self._first_block = grid.first_block(deal.lane)
        self._since = np.zeros(self._num_lanes, dtype=np.int64)
        self._until = np.zeros(self._num_lanes, dtype=np.int64)
        self._turns = SPAN // self._num_lanes + 1
        longest = max(1, min(grid.block, int(self._lane_rows.max())))
        self._length = -(-longest // deal.stride) + self._turns + 1
        dtype = np.uint32 if grid.total_rows < 1 << 32 else np.int64
        self._ring = np.empty((self._num_lanes, self._length), dtype=dtype)
        self._flat = self._ring.reshape(-1)
        self._columns = np.arange(self._num_lanes, dtype=np.int64)

    def line_rows(self, lo: int, hi: int) -> NDArray[np.int64]:
        """Return the line row of items lo..hi-1; about 25 ns a row in spans of thousands, permuting included."""
        most = max(1, self._turns - 1) * self._num_lanes
        spans = [self._span(at, min(at + most, hi)) for at in range(lo, hi, most)]
        return spans[0] if len(spans) == 1 else np.concatenate([np.empty(0, dtype=np.int64), *spans])

    def _span(self, lo: int, hi: int) -> NDArray[np.int64]:
        num_lanes = self._num_lanes
        if hi - lo < num_lanes:
            item = np.arange(lo, hi, dtype=np.int64)
            turn, column = np.divmod(item, num_lanes)
            self._fill(lo, hi, column)
            index = column * self._length + turn % self._length
        else:
            self._fill(lo, hi, self._columns)
            turn = np.arange(lo // num_lanes, (hi - 1) // num_lanes + 1, dtype=np.int64) % self._length
            index = (turn[:, None] + self._columns * self._length).reshape(-1)
            index = index[lo % num_lanes :][: hi - lo]
        rows: NDArray[np.int64] = self._flat.take(index).astype(np.int64, copy=False)
        return rows

    def _fill(self, lo: int, hi: int, column: NDArray[np.int64]) -> None:
        """Make the ring hold the turns of items lo..hi-1, whose columns are `column`."""
        first = -(-(lo - column) // self._num_lanes)
        last = (hi - 1 - column) // self._num_lanes + 1
        away = column[(first < self._since[column]) | (first > self._until[column])]
        if away.size:
            self._since[away] = self._until[away] = -(-(lo - away) // self._num_lanes)
        short = np.flatnonzero(self._until[column] < last)
        for c, end in zip(column[short].tolist(), last[short].tolist(), strict=True):
            while self._until[c] < end:
                self._load(c, end)

    def _load(self, column: int, end_turn: int) -> None:
        """Append the rank's rows of the block that the column's next turn lies in to the ring."""
        deal, turn = self._deal, int(self._until[column])
        row = int(deal.row[column]) + turn * deal.stride
        block, begin, end = self._block(column, row)
        words = self._words.draw(end - begin, a=int(deal.lane[column]), b=block, kind=BLOCKS)
        wanted = (end_turn - turn) * deal.stride * FEW
        if turn == self._since[column] and row + wanted < end:
            # A run's first batch wants a few rows of every block at once: sort these now and the blocks after it.
            places = stable_argsort_part(words, row - begin, row - begin + wanted // FEW)[:: deal.stride]
        else:
            places = stable_argsort(words)[row - begin :: deal.stride]
        self._append(column, turn, places + (int(self._lane_start[column]) + begin))

    def _block(self, column: int, row: int) -> tuple[int, int, int]:
        """Return the block that holds `row` of the column's lane, and the rows of the lane it spans."""
        first, size = int(self._first_block[column]), self._grid.block
        block = 0 if row < first else (row - first) // size + 1
        begin = first + (block - 1) * size if block else 0
        return block, begin, min(first + block * size, int(self._lane_rows[column]))

    def _append(self, column: int, turn: int, rows: NDArray[np.int64]) -> None:
        ring, at = self._ring[column], turn % self._length
        head = min(len(rows), self._length - at)
        ring[at : at + head] = rows[:head]
        ring[: len(rows) - head] = rows[head:]
        self._until[column] = turn + len(rows)
        self._since[column] = max(int(self._since[column]), turn + len(rows) - self._length)
