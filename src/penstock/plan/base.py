"""What every epoch plan promises to the engine, whichever order it carries.

`lanes` and `lines` fill in the order; `epoch.plan_epoch` chooses between them. A plan is a pure value in all it answers
(a cache inside only saves work), belongs to one rank and one epoch, and is to be asked by one thread at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from penstock.errors import InternalError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.plan.cursor import Cursor
    from penstock.plan.order import Order
    from penstock.plan.share import Share
    from penstock.plan.visits import Visits


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

        Any span may be asked for; consecutive ones are cheap, as the permutations under way are kept.
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

        The same on every rank. The next epoch's beginning once the last batch of the epoch is out on all ranks.
        """
        if steps < 0:
            raise InternalError(f"steps must be >= 0; got {steps}; please report")
        if steps < self.max_steps:
            return self._after(steps)
        return type(self.cursor).start(self.cursor.epoch + 1, self.order, self.total_rows, self.cursor.owner)

    def next_epoch(self) -> Cursor:
        """Return where this rank goes on by itself behind its last batch: one that has fewer is there sooner."""
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
            raise InternalError(f"items [{lo}, {hi}) asked of a plan of {self.num_items}; please report")


def repeated(total_rows: int, padding: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the position that each padding position N+j repeats: N-1-j, again from the end after N of them."""
    return total_rows - 1 - (padding - total_rows) % total_rows
