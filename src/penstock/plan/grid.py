"""The arithmetic of lanes and blocks: where each begins, and which of them a rank draws from.

Used by `lanes` and `blocks`; arrays of lanes and rows in, arrays out, nothing kept for each row or chunk.

L=3 lanes of a line of 11 rows, B=2, before the blocks are permuted:

    lane 0   rows 0 1 2 3    first block max(1, 2*1//3)=1 row:    [0] [1 2] [3]
    lane 1   rows 4 5 6 7    first block max(1, 2*2//3)=1 row:    [4] [5 6] [7]
    lane 2   rows 8 9 10     first block max(1, 2*3//3)=2 rows:   [8 9] [10]

    position     0 1 2 3 4 5 6 7 8 9 10
    lane         0 1 2 0 1 2 0 1 2 0 1
    row of lane  0 0 0 1 1 1 2 2 2 3 3
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.plan.order import Order


@dataclass(frozen=True, slots=True)
class Grid:
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


@dataclass(frozen=True, slots=True)
class Deal:
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
