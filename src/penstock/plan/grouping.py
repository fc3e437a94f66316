"""Define what an epoch plan deals out: rows, whole chunks or parts of them, windows over time.

A plan orders and deals *items*, which it knows by part and number only. A `Grouping` says how many items each part has
and translates a plan's answers into chunks and rows for the engine. Adding a kind of item (packs of token sequences,
batches of similar lengths) takes one subclass. Pure; memory is a few words for each part.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from penstock.plan.visits import Visits, joined

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock.plan.windows import WindowTable

Run = tuple[int, int, int]
"""Consecutive rows of a chunk (or items of a part): its number, the first and one more than the last."""


@dataclass(frozen=True, slots=True)
class ItemRows:
    """The rows of some items, in order: either `runs`, or `chunk` and `row` are given.

    A batch consists of rows, or of windows that share rows: its *units*. Usually every unit is an item.
    """

    runs: list[Run] | None = None
    """Rows as runs of neighbours."""
    chunk: NDArray[np.int64] | None = None
    """Chunk of each row."""
    row: NDArray[np.int64] | None = None
    """Each row's number among the selected rows of its chunk."""
    windows: NDArray[np.int64] | None = None
    """Rows of each window, as indices into the rows above: shape (windows, length). None: units are rows."""
    starts: NDArray[np.int64] | None = None
    """First unit of each item, and the number of units at the end (ragged items). None: one unit per item."""


class Grouping(ABC):
    """What the items of a plan are. Implementations are immutable."""

    counts: NDArray[np.int64]
    """Items of each part: what the plan orders and deals. A part is a chunk unless the grouping says otherwise."""
    one_row: bool = False
    """Whether every item is one row, so that several batches may be gathered together and sliced."""

    @abstractmethod
    def locate(self, part: NDArray[np.int64], number: NDArray[np.int64]) -> ItemRows:
        """Return the rows of items, each given by its part and its number there."""

    def locate_runs(self, runs: Sequence[Run]) -> ItemRows:
        """Return the rows of items given as runs (part, first, end) of neighbours."""
        part = np.concatenate([np.full(end - first, one, np.int64) for one, first, end in runs])
        return self.locate(part, np.concatenate([np.arange(first, end, dtype=np.int64) for _, first, end in runs]))

    @abstractmethod
    def most_rows(self, num_items: int, *, neighbours: bool) -> int:
        """Return the most rows that a batch of `num_items` items can need; `neighbours`: all follow one another."""

    def visits(self, visits: Visits) -> Visits:
        """Return when each chunk is needed, given when each part is."""
        return visits

    @abstractmethod
    def digest(self, selection: str) -> str:
        """Return the digest that states keep of the items, given that of the selected rows.

        A state resumes only where it is equal. Changing a digest breaks resumed runs.
        """


def _digest(selection: str, name: str, table: str) -> str:
    return hashlib.blake2b(f"{selection} {name} {table}".encode(), digest_size=16).hexdigest()


@dataclass(frozen=True)
class RowGrouping(Grouping):
    """Every selected row is an item."""

    counts: NDArray[np.int64]
    one_row = True

    def locate(self, part: NDArray[np.int64], number: NDArray[np.int64]) -> ItemRows:
        """Return the rows as they are."""
        return ItemRows(chunk=part, row=number)

    def locate_runs(self, runs: Sequence[Run]) -> ItemRows:
        """Return the runs as they are."""
        return ItemRows(list(runs))

    def most_rows(self, num_items: int, *, neighbours: bool) -> int:  # noqa: ARG002 -- of `Grouping`
        """Return the number of items."""
        return num_items

    def digest(self, selection: str) -> str:
        """Return the digest of the selected rows."""
        return selection


@dataclass(frozen=True)
class WindowGrouping(Grouping):
    """Every window over time is an item; it belongs to the chunk in which it starts."""

    table: WindowTable

    @cached_property
    def counts(self) -> NDArray[np.int64]:  # type: ignore[override]
        """Windows that start in each chunk."""
        return self.table.counts

    def locate(self, part: NDArray[np.int64], number: NDArray[np.int64]) -> ItemRows:
        """Return the distinct rows of the windows, and which of them each window has."""
        table = self.table
        at, row = table.rows(part, number)
        distinct, windows = np.unique(table.row_offsets[at] + row, return_inverse=True)
        chunk: NDArray[np.int64] = np.searchsorted(table.row_offsets, distinct.reshape(-1), side="right") - 1
        return ItemRows(chunk=chunk, row=distinct - table.row_offsets[chunk], windows=windows.reshape(at.shape))

    def most_rows(self, num_items: int, *, neighbours: bool) -> int:
        """Return the rows of the windows; neighbours share all but one."""
        length = self.table.length
        return num_items + length - 1 if neighbours else num_items * length

    def visits(self, visits: Visits) -> Visits:
        """Return the visits, with those of later chunks that windows reach into."""
        far = self.table.last_chunks()[visits.chunk] - visits.chunk
        more = [visits]
        for step in range(1, int(far.max(initial=0)) + 1):
            there = far >= step
            more.append(Visits(visits.chunk[there] + step, visits.first[there], visits.last[there]))
        return joined(more) if len(more) > 1 else visits

    def digest(self, selection: str) -> str:
        """Return a digest of rows and windows."""
        return _digest(selection, "windows", self.table.digest())


@dataclass(frozen=True)
class PartGrouping(Grouping):
    """Chunks cut into parts, which are ordered and dealt instead of chunks. Build it with `cut`.

    An item is a whole part, or one of the rows (or windows) in it.
    """

    units: RowGrouping | WindowGrouping
    """What parts consist of."""
    chunk: NDArray[np.int64]
    """Chunk of each part."""
    first: NDArray[np.int64]
    """First unit of each part, counted in its chunk."""
    sizes: NDArray[np.int64]
    """Units of each part; at least one."""
    whole: bool
    """Whether a part is one item."""

    @classmethod
    def cut(cls, units: RowGrouping | WindowGrouping, parts: int, *, whole: bool) -> PartGrouping:
        """Cut each chunk into `parts` parts of equal size, those without units left out."""
        counts = units.counts
        chunk = np.repeat(np.arange(len(counts), dtype=np.int64), parts)
        number = np.tile(np.arange(parts, dtype=np.int64), len(counts))
        first = counts[chunk] * number // parts
        sizes = counts[chunk] * (number + 1) // parts - first
        kept = sizes > 0
        return cls(units, chunk[kept], first[kept], sizes[kept], whole)

    @cached_property
    def counts(self) -> NDArray[np.int64]:  # type: ignore[override]
        """Items of each part."""
        return np.ones(len(self.sizes), np.int64) if self.whole else self.sizes

    def locate(self, part: NDArray[np.int64], number: NDArray[np.int64]) -> ItemRows:
        """Return the rows of parts, or of units of parts."""
        if self.whole:
            return self.locate_runs([(one, 0, 1) for one in part.tolist()])
        return self.units.locate(self.chunk[part], self.first[part] + number)

    def locate_runs(self, runs: Sequence[Run]) -> ItemRows:
        """Return the rows of runs, where a whole part is one run."""
        if not self.whole:
            moved = [(int(self.chunk[one]), int(self.first[one])) for one, _, _ in runs]
            return self.units.locate_runs(
                [(chunk, at + lo, at + hi) for (chunk, at), (_, lo, hi) in zip(moved, runs, strict=True)]
            )
        part = np.array([one for one, lo, hi in runs for _ in range(lo, hi)], np.int64)
        first, sizes = self.first[part], self.sizes[part]
        stretches = zip(self.chunk[part].tolist(), first.tolist(), (first + sizes).tolist(), strict=True)
        found = self.units.locate_runs(list(stretches))
        starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))
        return ItemRows(found.runs, found.chunk, found.row, found.windows, starts)

    def most_rows(self, num_items: int, *, neighbours: bool) -> int:
        """Return the rows of the largest parts."""
        most = int(self.sizes.max(initial=1)) if self.whole else 1
        return self.units.most_rows(most * num_items, neighbours=neighbours)

    def visits(self, visits: Visits) -> Visits:
        """Return the visits of the chunks that parts lie in."""
        return self.units.visits(Visits(self.chunk[visits.chunk], visits.first, visits.last))

    def digest(self, selection: str) -> str:
        """Return a digest of rows, windows and the number of parts."""
        table = self.units.table.digest() if isinstance(self.units, WindowGrouping) else ""
        return _digest(selection, f"{'whole ' if self.whole else ''}{len(self.sizes)} parts", table)
