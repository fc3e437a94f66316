"""One rank's part of one epoch: the interface of all epoch plans, the sequential one, and when which chunk is needed.

`LinePlan` implements `EpochPlan` for orders that read chunk after chunk, `shuffled` for lanes; `plan_epoch` chooses.
The engine asks a plan for the rows of its items and reads ahead and evicts by its `Visits`. A plan is a value (caches
only save work), belongs to one rank and one epoch, and must be used by one thread at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock.errors import InternalError
from penstock.plan.order import Cursor, Order, Share, as_counts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


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
        """Return the stays with overlapping or touching stays of a chunk merged: each is one read of the chunk."""
        if not len(self) or np.bincount(self.chunk).max() == 1:
            return self
        by_chunk = np.lexsort((self.first, self.chunk))
        chunk, first, last = self.chunk[by_chunk], self.first[by_chunk], self.last[by_chunk]
        # One running maximum serves all chunks, as each has a separate range; chunks x items stays below 2^63.
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
    if order.is_line:
        return LinePlan(as_counts(counts), order=order, cursor=cursor, share=share)
    from penstock.plan.shuffled import LanePlan  # here: it imports this module, and few runs need it

    return LanePlan(as_counts(counts), order=order, cursor=cursor, share=share)


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
        from penstock.plan.permutation import CHUNKS, permutation  # here: natural order needs none

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
        opens = changes(last[:-1] != first[1:], len(first))
        closes = np.append(opens[1:], len(first))[: len(opens)] - 1
        return Cursor(
            self.cursor.epoch,
            left=tuple(zip(first[opens].tolist(), last[closes].tolist(), strict=True)),
            owner=self.cursor.owner,
        )

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
