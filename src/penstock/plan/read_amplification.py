"""Count what all ranks together will read, and how well a batch is mixed, before anything is read.

Used by `plan`. Computes the visits of chunks for all ranks at once, without building their plans. Rows stand for bytes
here: a chunk weighs its selected rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING

import numpy as np

from penstock.plan.epoch import in_order
from penstock.plan.sequential import Line, LinePlan, changes, cut, lay, part_offsets
from penstock.plan.shuffled import Grid

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.plan.order import Cursor, Order, Share
    from penstock.plan.shuffled import LanePlan

EXACT_STAYS = 1 << 22
"""Above so many stays over all ranks, those of one chunk that overlap on a rank are counted as two reads."""


@dataclass(frozen=True, slots=True)
class ReadAmplification:
    """Rows of chunks read by all ranks for what is left of an epoch; padding is not counted."""

    rows_read: int
    """Rows of all chunks read, as often as they are read by any rank."""
    rows_needed: int
    """Rows of the chunks that are needed at all, once each."""

    @property
    def factor(self) -> float:
        """Rows read over rows needed; 1.0 where nothing is needed."""
        return self.rows_read / self.rows_needed if self.rows_needed else 1.0


def count_reads(counts: NDArray[np.int64], *, order: Order, cursor: Cursor, share: Share) -> ReadAmplification:
    """Return what all ranks read from `cursor` to the end of the epoch; about a microsecond a chunk.

    A stay of a chunk on a rank is one read: memory is not hoped to keep a chunk from one end of an epoch to the other.
    """
    plan = (_line_reads if order.is_line else _lane_reads)(counts, order, cursor, share)
    chunk, times = plan
    return ReadAmplification(int((counts[chunk] * times).sum()), int(counts[np.unique(chunk)].sum()))


def _line_reads(
    counts: NDArray[np.int64], order: Order, cursor: Cursor, share: Share
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    plan = LinePlan(counts, order=order, cursor=cursor, share=share)
    bounds = part_offsets(share, plan.num_left)[:-1]
    last = np.minimum(bounds + _kept(share, plan.num_left), plan.num_left)
    part, cell = plan.cells(bounds, last)
    chunk = plan.line.chunks[cell]
    opens = changes((part[:-1] != part[1:]) | (chunk[:-1] != chunk[1:]), len(chunk))
    return chunk[opens], np.ones(len(opens), dtype=np.int64)


def _kept(share: Share, num_left: int) -> NDArray[np.int64]:
    """Return the items that each rank delivers."""
    return np.array([share.kept(num_left, rank) for rank in range(share.world)], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class _Stays:
    """Each chunk's rows of a lane: the turns [first, last) of the lane, all ranks, in which the chunk may be needed."""

    chunk: NDArray[np.int64]
    lane: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]

    @classmethod
    def of(cls, line: Line, grid: Grid, start: int) -> _Stays:
        """Return the stays that are not over before position `start`."""
        borders = grid.start(np.arange(grid.lanes + 1, dtype=np.int64))
        lane, cell, first, last = cut(line.borders, borders[:-1], borders[1:])
        first, _ = grid.block_span(lane, grid.block_of(lane, first - borders[lane]))
        _, last = grid.block_span(lane, grid.block_of(lane, last - 1 - borders[lane]))
        first = np.maximum(first, -(-(start - lane) // grid.lanes))
        some = first < last
        return cls(line.chunks[cell[some]], lane[some], first[some], last[some])


def _lane_reads(
    counts: NDArray[np.int64], order: Order, cursor: Cursor, share: Share
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return chunks and how often each is read; a chunk may be listed more than once."""
    total, start = int(counts.sum()), cursor.position or 0
    grid = Grid.of(total, order)
    stays = _Stays.of(lay(counts, order=order, epoch=cursor.epoch), grid, start)
    ranks_of_lane = share.world // gcd(grid.lanes, share.world)
    if len(stays.chunk) * ranks_of_lane > EXACT_STAYS:
        return stays.chunk, np.minimum(stays.last - stays.first, ranks_of_lane)
    chunk = _merged_chunks(stays, grid, start, share)
    return chunk, np.ones(len(chunk), dtype=np.int64)


def _merged_chunks(stays: _Stays, grid: Grid, start: int, share: Share) -> NDArray[np.int64]:
    """Return the chunk of every read of every rank: the union of the ranks' own visits, those that overlap made one."""
    world, common = share.world, gcd(grid.lanes, share.world)
    period, num_lanes = world // common, grid.lanes // common
    times = np.minimum(stays.last - stays.first, period)
    at = np.repeat(np.arange(len(times)), times)
    row = stays.first[at] + np.arange(len(at)) - np.repeat(np.cumsum(times) - times, times)
    first, rank = np.divmod(row * grid.lanes + stays.lane[at] - start, world)
    kept = _kept(share, grid.total_rows - start)[rank]
    turns = np.minimum((stays.last[at] - 1 - row) // period, (kept - 1 - first) // num_lanes)
    some = first < kept
    ids = (stays.chunk[at] * world + rank)[some]
    names, ids = np.unique(ids, return_inverse=True)
    last = first + turns * num_lanes + 1
    return np.asarray(names[in_order(ids, first[some], last[some]).merged().chunk] // world)


def chunks_per_batch(plan: LanePlan) -> float:
    """Return how many chunks a batch in the middle of the rank's part is expected to draw from."""
    size = plan.share.batch_size
    lo = plan.num_items // 2 // size * size
    lane, row, grid = *plan.places(lo, min(lo + size, plan.num_items)), plan.grid
    begin, end = grid.block_span(lane, grid.block_of(lane, row))
    begin, at, draws = np.unique(begin + grid.start(lane), return_index=True, return_counts=True)
    end = (end + grid.start(lane))[at]
    part, cell, first, last = cut(plan.line.borders, begin, end)
    share_of_block = (last - first) / (end - begin)[part]
    with np.errstate(divide="ignore"):  # a block within one chunk misses it never: log 0
        missed = np.bincount(cell, weights=draws[part] * np.log1p(-share_of_block)) if len(cell) else np.zeros(0)
    return float((1 - np.exp(missed)).sum())
