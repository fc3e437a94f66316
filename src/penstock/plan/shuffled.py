"""The shuffled order: rows of many lanes, one from each in turn, permuted in blocks.

An epoch's line is cut into lanes and each lane into blocks; a rank's items take turns over its lanes. `Grid` and `Deal`
are the arithmetic, `Blocks` permutes the blocks that a rank is drawing from (a ring for each lane, so that a span over
hundreds of lanes is one gather), `LanePlan` answers which row is at which place and when a chunk is needed, and
`choose_lanes` picks lanes and block for a fresh run. Nothing is kept for each row but the current blocks.

L=3 lanes of a line of 11 rows, B=2, before the blocks are permuted:

    lane 0   rows 0 1 2 3    first block max(1, 2*1//3)=1 row:    [0] [1 2] [3]
    lane 1   rows 4 5 6 7    first block max(1, 2*2//3)=1 row:    [4] [5 6] [7]
    lane 2   rows 8 9 10     first block max(1, 2*3//3)=2 rows:   [8 9] [10]

    position     0 1 2 3 4 5 6 7 8 9 10
    lane         0 1 2 0 1 2 0 1 2 0 1
    row of lane  0 0 0 1 1 1 2 2 2 3 3
"""

from __future__ import annotations

from functools import cached_property
from math import gcd
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock.errors import PlanError
from penstock.plan.epoch import EpochPlan, Line, Visits, cut, in_order, joined, lay, repeated
from penstock.plan.order import Cursor, Order, Share, as_counts, check_lanes, typical_rows
from penstock.plan.permutation import BLOCKS, Words, stable_argsort, stable_argsort_part

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


LADDER = (1, 2, 4, 8, 24, 48, 96, 192, 384, 768)
"""Numbers of lanes tried by default; the upper ones divide by the worlds people have (2, 3, 4, 6, 8, 16, ... 256)."""


MAX_BLOCK = 1 << 20
"""Most rows of a block by default; also the largest dataset that is permuted whole."""


PARTS_IN_LANE = 12
"""With many parts there is no need for short lanes: so at most a twelfth of the bytes is read by two ranks."""


class Lanes(NamedTuple):
    """How rows are spread over lanes."""

    lanes: int
    block: int


def choose_lanes(
    counts: Sequence[int] | NDArray[np.integer[Any]], *, row_bytes: float, shuffle_bytes: int, lanes: int | None,
    parts: bool = False,
) -> Lanes:  # fmt: skip
    """Return lanes and block for a fresh run, by the rule of the design.

    A dataset that fits the window and 2^20 rows is one block, a true permutation. Otherwise as many lanes of the ladder
    as leave four chunks to a lane (`PARTS_IN_LANE` if chunks are parts of row groups: the one at the border of two
    lanes may be read for both) and two chunks a lane to the window, and blocks that fill the window. `lanes` given by
    the user is kept as it is. `row_bytes` is that of all columns, so that the order does not depend on those read.
    """
    array = as_counts(counts)
    array = array[array > 0]
    total, typical = int(array.sum()), typical_rows(array)
    window_rows = rows_in(shuffle_bytes, row_bytes)
    if lanes is not None:
        check_lanes(lanes)
    elif total <= min(window_rows, MAX_BLOCK):
        return Lanes(1, max(1, total))
    else:
        most = len(array) // (PARTS_IN_LANE if parts else 4)
        fitting = [n for n in LADDER if n <= most and 2 * n * typical <= window_rows]
        lanes = max(fitting, default=1)
    return Lanes(lanes, max(1, typical, min(window_rows // lanes - typical, MAX_BLOCK)))


def rows_in(shuffle_bytes: int, row_bytes: float) -> int:
    """Return w, how many rows of `row_bytes` the window holds; rows narrower than a byte count as one byte."""
    if shuffle_bytes < 1:
        raise PlanError(f"shuffle_bytes must be at least 1; got {shuffle_bytes}")
    return int(shuffle_bytes // max(row_bytes, 1.0))


class Grid(NamedTuple):
    """Lanes and blocks over a line of `total_rows`; arrays in, arrays out.

    More lanes than rows give the same order as one lane a row, so `lanes` never exceeds the rows.
    """

    total_rows: int
    lanes: int
    block: int

    @classmethod
    def of(cls, total_rows: int, order: Order) -> Grid:
        """Return the grid of `order` over `total_rows`."""
        lanes = max(1, min(order.lanes or 1, total_rows))
        # Blocks of a lane's rows times L already make one block of every lane; larger ones would overflow int64.
        return cls(total_rows, lanes, min(order.block or 1, (total_rows // lanes + 1) * lanes))

    def start(self, lane: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the line row at which each lane begins; lane L begins at N."""
        each, longer = divmod(self.total_rows, self.lanes)
        return lane * each + np.minimum(lane, longer)

    def rows(self, lane: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of each lane."""
        each, longer = divmod(self.total_rows, self.lanes)
        return each + (lane < longer)

    def first_block(self, lane: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of each lane's block 0 (the lane's end may cut it): growing, so that lanes take turns."""
        return np.maximum(1, self.block * (lane + 1) // self.lanes)

    def block_of(self, lane: NDArray[np.int64], row: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the block that holds a row of a lane."""
        first = self.first_block(lane)
        return np.where(row < first, 0, (row - first) // self.block + 1)

    def block_span(
        self, lane: NDArray[np.int64], block: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the rows of the lane [first, last) that a block holds."""
        first = self.first_block(lane)
        begin = np.where(block == 0, 0, first + (block - 1) * self.block)
        return begin, np.minimum(first + block * self.block, self.rows(lane))


class Deal(NamedTuple):
    """Which lanes a rank draws from, in turn.

    Item i has position start + rank + W*i. Items i, i + P, i + 2P ... lie in one lane, `stride` rows apart, where
    P = L / gcd(L, W) is the number of the rank's lanes and stride = W / gcd(L, W): 1 when W divides L.
    """

    lane: NDArray[np.int64]
    """Lane of items 0..P-1."""
    row: NDArray[np.int64]
    """Row of that lane that items 0..P-1 have (before the block is permuted)."""
    stride: int
    """Rows of the lane between one item and the next in that lane."""

    @classmethod
    def of(cls, grid: Grid, *, first: int, world: int) -> Deal:
        """Return the deal of the rank whose item 0 has position `first`."""
        common = gcd(grid.lanes, world)
        position = first + world * np.arange(grid.lanes // common, dtype=np.int64)
        return cls(position % grid.lanes, position // grid.lanes, world // common)


SPAN = 1 << 14
"""Rows gathered at once: larger spans are cut, so that rings need not be much longer than a block."""

FEW = 64
"""A first span that wants less than one row in so many of a block does not wait for the whole block to be sorted."""


class Blocks:
    """The rows of one rank's lanes, in the rank's order.

    Item i is turn i // P of lane column i mod P. Column c keeps turns [since[c], until[c]) in a ring of one block and
    one span: 4 bytes a row (8 where the epoch has 2^32 rows or more). A span that continues the last one permutes
    each block once; a span elsewhere starts again with the blocks it lies in.
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
        first, size = int(self._first_block[column]), self._grid.block
        block = 0 if row < first else (row - first) // size + 1
        begin = first + (block - 1) * size if block else 0
        block, begin, end = block, begin, min(first + block * size, int(self._lane_rows[column]))
        words = self._words.draw(end - begin, a=int(deal.lane[column]), b=block, kind=BLOCKS)
        wanted = (end_turn - turn) * deal.stride * FEW
        if turn == self._since[column] and row + wanted < end:
            # A run's first batch wants a few rows of every block at once: sort these now and the blocks after it.
            places = stable_argsort_part(words, row - begin, row - begin + wanted // FEW)[:: deal.stride]
        else:
            places = stable_argsort(words)[row - begin :: deal.stride]
        rows = places + (int(self._lane_start[column]) + begin)
        ring, at = self._ring[column], turn % self._length
        head = min(len(rows), self._length - at)
        ring[at : at + head] = rows[:head]
        ring[: len(rows) - head] = rows[head:]
        self._until[column] = turn + len(rows)
        self._since[column] = max(int(self._since[column]), turn + len(rows) - self._length)


class LanePlan(EpochPlan):
    """One rank's part of an epoch whose rows are shuffled over lanes; see `EpochPlan`."""

    def __init__(self, counts: NDArray[np.int64], *, order: Order, cursor: Cursor, share: Share) -> None:
        super().__init__(counts, order=order, cursor=cursor, share=share)
        self._start = cursor.position or 0
        self.grid = Grid.of(self.total_rows, order)
        self.deal = Deal.of(self.grid, first=self._start + share.rank, world=share.world)

    @cached_property
    def line(self) -> Line:
        """The chunks of the epoch, laid end to end; built on first use."""
        return lay(self.counts, order=self.order, epoch=self.cursor.epoch)

    @cached_property
    def _blocks(self) -> Blocks:
        return Blocks(self.grid, self.deal, order=self.order, epoch=self.cursor.epoch)

    @property
    def _num_real(self) -> int:
        ahead = self.total_rows - self._start - self.share.rank
        return min(self.num_items, max(0, -(-ahead // self.share.world)))

    def runs(self, lo: int, hi: int) -> None:
        """Return None: rows of a lane order have no stretches worth the name."""
        self._check(lo, hi)

    def positions(self, lo: int, hi: int) -> NDArray[np.int64]:
        """Return start + rank + world * item."""
        self._check(lo, hi)
        return self._start + self.share.rank + self.share.world * np.arange(lo, hi, dtype=np.int64)

    def places(self, lo: int, hi: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return lane and row of the lane (before blocks are permuted) of items lo..hi-1, padding left out."""
        position = self.positions(lo, min(hi, self._num_real)) if lo < self._num_real else np.empty(0, dtype=np.int64)
        return position % self.grid.lanes, position // self.grid.lanes

    def _rows(self, lo: int, hi: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return self.line.locate(self._blocks.line_rows(lo, hi))

    @cached_property
    def _padding(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        position = repeated(self.total_rows, self.positions(self._num_real, self.num_items))
        rows = [self._line_row(int(p)) for p in position]  # one at most: fewer than W positions are padding
        return self.line.locate(np.array(rows, dtype=np.int64))

    def _line_row(self, position: int) -> int:
        """Return the line row at any global position, at the cost of permuting its block."""
        alone = Deal.of(self.grid, first=position, world=self.grid.lanes)  # that lane and no other
        return int(Blocks(self.grid, alone, order=self.order, epoch=self.cursor.epoch).line_rows(0, 1)[0])

    def _after(self, steps: int) -> Cursor:
        ahead = steps * self.share.batch_size * self.share.world
        position = min(self._start + ahead, self.total_rows)
        return Cursor(self.cursor.epoch, position=position, owner=self.cursor.owner)

    def _visits(self) -> Visits:
        item, num = np.arange(self._num_real, self.num_items, dtype=np.int64), self.num_items - self._num_real
        padding = Visits(self._padding[0], item, item + 1) if num else None
        grid, deal = self.grid, self.deal
        begin = grid.start(deal.lane)
        column, cell, first, last = cut(self.line.borders, begin, begin + grid.rows(deal.lane))
        lane, base = deal.lane[column], begin[column]
        first, _ = grid.block_span(lane, grid.block_of(lane, first - base))
        _, last = grid.block_span(lane, grid.block_of(lane, last - 1 - base))
        low, high = self._turns(column, first), self._turns(column, last)
        some = low < high
        column, low, high = column[some], low[some], high[some]
        num_lanes = len(deal.lane)
        stays = in_order(self.line.chunks[cell[some]], low * num_lanes + column, (high - 1) * num_lanes + column + 1)
        return joined([stays, padding]) if padding else stays

    def _turns(self, column: NDArray[np.int64], row: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many of the rank's items in that lane come before `row` of the lane."""
        num_lanes, stride = len(self.deal.lane), self.deal.stride
        num_turns = -(-(self._num_real - column) // num_lanes)
        before: NDArray[np.int64] = -(-(row - self.deal.row[column]) // stride)
        return np.minimum(np.maximum(before, 0), np.maximum(num_turns, 0))
