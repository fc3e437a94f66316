"""One rank's part of one epoch: the interface of all epoch plans, and when which chunk is needed.

`sequential` and `shuffled` implement `EpochPlan` for their orders; `plan_epoch` chooses. The engine asks a plan for the
rows of its items and reads ahead and evicts by its `Visits`. A plan is a value (caches only save work), belongs to one
rank and one epoch, and must be used by one thread at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import InternalError
from penstock.plan.order import as_counts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock.plan.order import Cursor, Order, Share


@dataclass(frozen=True, slots=True)
class Visits:
    """Stays of chunks: `chunk[k]` may be needed for the rank's items in [first[k], last[k]); sorted by `first`."""

    chunk: NDArray[np.int64]
    """Chunk number; a chunk may appear more than once, for instance if a lane border cuts it."""
    first: NDArray[np.int64]
    """The first item, counted in the rank's own items, that may come from the chunk."""
    last: NDArray[np.int64]
    """One more than the last such item."""

    def __len__(self) -> int:
        return len(self.chunk)

    def merged(self) -> Visits:
        """Return the stays with those of one chunk that overlap or touch made one: each is one read of the chunk."""
        if not len(self) or np.bincount(self.chunk).max() == 1:
            return self
        by_chunk = np.lexsort((self.first, self.chunk))
        chunk, first, last = self.chunk[by_chunk], self.first[by_chunk], self.last[by_chunk]
        # One running maximum serves all chunks, as each has a range of its own; chunks x items stays below 2^63.
        offset = chunk * (int(last.max()) + 1)
        reach = np.maximum.accumulate(last + offset)
        opens = np.flatnonzero(np.concatenate(([True], (first + offset)[1:] > reach[:-1])))
        closes = np.concatenate((opens[1:], [len(chunk)])) - 1
        return in_order(chunk[opens], first[opens], reach[closes] - offset[closes])

    def most_rows(self, counts: NDArray[np.int64]) -> int:
        """Return the most selected rows needed at one item: the sum over the chunks that are staying then."""
        stays = self.merged()
        if not len(stays):
            return 0
        rows = counts[stays.chunk]
        when = np.concatenate((stays.last, stays.first))  # leaving comes before entering at the same item
        change = np.concatenate((-rows, rows))[np.argsort(when, kind="stable")]
        return int(np.cumsum(change).max())


def in_order(chunk: NDArray[np.int64], first: NDArray[np.int64], last: NDArray[np.int64]) -> Visits:
    """Return the stays sorted by first item (stable)."""
    order = np.argsort(first, kind="stable")
    return Visits(chunk[order], first[order], last[order])


def joined(parts: Sequence[Visits]) -> Visits:
    """Return the stays of all parts, sorted by first item."""
    chunk = np.concatenate([p.chunk for p in parts])
    return in_order(chunk, np.concatenate([p.first for p in parts]), np.concatenate([p.last for p in parts]))


class EpochPlan(ABC):
    """One rank's part of what is left of one epoch: items 0, 1, ... `num_items` - 1 in the order of delivery.

    An item is one selected row, named by its chunk and its ordinal among the chunk's selected rows. Padding items,
    False in `valid`, come last and repeat rows from the end of the epoch.
    """

    def __init__(self, counts: NDArray[np.int64], *, order: Order, cursor: Cursor, share: Share) -> None:
        self.counts = counts
        self.order = order
        self.cursor = cursor
        self.share = share
        self.total_rows = int(counts.sum())
        """N: selected rows of the whole epoch, all ranks."""
        cursor.check(order, self.total_rows)
        self.num_left = cursor.num_left(self.total_rows)
        """Items of the epoch that are left, all ranks, before the remainder is dropped or padded."""
        self.num_items = share.kept(self.num_left, share.rank)
        """Items that this rank delivers: padding included, remainder and the tail of `drop_last` left out."""
        self.num_steps = share.steps(self.num_left, share.rank)
        """Batches that this rank delivers."""
        self.max_steps = share.steps(self.num_left, 0)
        """The most batches that any rank delivers: rank 0 never has fewer items than another."""

    def __repr__(self) -> str:
        share = self.share
        return (
            f"EpochPlan(epoch={self.cursor.epoch}, rank={share.rank}/{share.world}, steps={self.num_steps}, "
            f"items={self.num_items}, order={self.order.name!r})"
        )

    @property
    def _num_real(self) -> int:
        """How many of the rank's items are rows of their own, not padding."""
        return self.num_items

    @cached_property
    def visits(self) -> Visits:
        """When this rank needs which chunk; built on first use in about 0.3 us a stay."""
        return self._visits()

    def rows(self, lo: int, hi: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return chunk and ordinal among its selected rows for items lo..hi-1.

        Spans may be requested in any order; consecutive ones are cheap, as current permutations are kept.
        """
        self._check(lo, hi)
        real = self._num_real
        chunk, row = self._rows(min(lo, real), min(hi, real))
        if hi <= real:
            return chunk, row
        tail_chunk, tail_row = self._padding
        tail = slice(max(lo, real) - real, hi - real)
        return np.concatenate((chunk, tail_chunk[tail])), np.concatenate((row, tail_row[tail]))

    def valid(self, lo: int, hi: int) -> NDArray[np.bool_]:
        """Return True for rows and False for padding, for items lo..hi-1."""
        self._check(lo, hi)
        return np.arange(lo, hi) < self._num_real

    def window_rows(self) -> int:
        """Return the most selected rows that must be in memory at once for this rank."""
        return self.visits.most_rows(self.counts)

    def after(self, steps: int) -> Cursor:
        """Return the cursor once every rank has delivered `steps` batches (or all it has).

        The same on every rank. The start of the next epoch once all ranks have delivered their last batch.
        """
        if steps < 0:
            raise InternalError(f"steps must be >= 0; got {steps}; please report")
        if steps < self.max_steps:
            return self._after(steps)
        return type(self.cursor).start(self.cursor.epoch + 1, self.order, self.total_rows, self.cursor.owner)

    def next_epoch(self) -> Cursor:
        """Return where this rank continues after its last batch, possibly before the other ranks."""
        share, owner = self.share, self.cursor.owner
        if share.steps(self.num_left, share.world - 1) != self.max_steps:
            owner = (share.rank, share.world)
        return type(self.cursor).start(self.cursor.epoch + 1, self.order, self.total_rows, owner)

    @abstractmethod
    def runs(self, lo: int, hi: int) -> list[tuple[int, int, int]] | None:
        """Return items lo..hi-1 as stretches (chunk, first row, end row) in order; None where rows are shuffled."""

    @abstractmethod
    def positions(self, lo: int, hi: int) -> NDArray[np.int64]:
        """Return the global position of items lo..hi-1; padding has N, N+1, ..."""

    @abstractmethod
    def _rows(self, lo: int, hi: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]: ...

    @abstractmethod
    def _visits(self) -> Visits: ...

    @abstractmethod
    def _after(self, steps: int) -> Cursor: ...

    @cached_property
    @abstractmethod
    def _padding(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Chunk and ordinal of this rank's padding items."""

    def _check(self, lo: int, hi: int) -> None:
        if not 0 <= lo <= hi <= self.num_items:
            raise InternalError(f"items [{lo}, {hi}) requested of a plan of {self.num_items}; please report")


def repeated(total_rows: int, padding: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the position that each padding position N+j repeats: N-1-j, again from the end after N of them."""
    return total_rows - 1 - (padding - total_rows) % total_rows


def plan_epoch(
    counts: Sequence[int] | NDArray[np.integer[Any]], *, order: Order, cursor: Cursor, share: Share
) -> EpochPlan:
    """Return the plan of `share.rank` from `cursor` to the end of that epoch.

    `counts` is the selected rows of each chunk, zeros included. Costs about a microsecond a chunk on first use; no
    array of all rows is built. StateMismatch where the cursor lies outside the epoch.
    """
    # Late: both modules import this one, and few runs need both.
    if order.is_line:
        from penstock.plan.sequential import LinePlan as Chosen
    else:
        from penstock.plan.shuffled import LanePlan as Chosen  # type: ignore[assignment]
    return Chosen(as_counts(counts), order=order, cursor=cursor, share=share)
