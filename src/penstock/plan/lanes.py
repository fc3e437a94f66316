"""Deal the shuffled order to ranks: rows of many lanes, one from each in turn.

Takes the line of an epoch, cuts it into lanes and blocks, and answers which row is at which place and when a chunk is
needed. `blocks` does the permuting; nothing here is kept for each row.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from penstock.plan.base import EpochPlan, repeated
from penstock.plan.blocks import Blocks
from penstock.plan.cursor import Cursor
from penstock.plan.grid import Deal, Grid
from penstock.plan.line import Line, cut, lay
from penstock.plan.visits import Visits, in_order, joined

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.plan.order import Order
    from penstock.plan.share import Share


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
        stays = self._stays()
        return joined([stays, padding]) if padding else stays

    def _stays(self) -> Visits:
        """Return when the rank's own rows need which chunk: from block to block, as blocks are permuted whole."""
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
        return in_order(self.line.chunks[cell[some]], low * num_lanes + column, (high - 1) * num_lanes + column + 1)

    def _turns(self, column: NDArray[np.int64], row: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many of the rank's items in that lane come before `row` of the lane."""
        num_lanes, stride = len(self.deal.lane), self.deal.stride
        num_turns = -(-(self._num_real - column) // num_lanes)
        before: NDArray[np.int64] = -(-(row - self.deal.row[column]) // stride)
        return np.minimum(np.maximum(before, 0), np.maximum(num_turns, 0))
