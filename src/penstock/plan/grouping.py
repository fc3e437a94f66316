"""Define what an epoch plan deals out: the protocol `Grouping`, and rows, whole chunks or parts of them.

A plan orders and deals *items*, which it knows by part and number only. A `Grouping` says how many items each part has
and translates a plan's answers into chunks and rows for the engine; `windows` has the one for windows over time. Adding
a kind of item (packs of token sequences, batches of similar lengths) takes one subclass. Pure; memory is a few words
for each part.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock.plan.epoch import Visits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

Run = tuple[int, int, int]
"""Consecutive rows of a chunk (or items of a part): its number, the first and one more than the last."""


class ItemRows(NamedTuple):
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

    def count_units(self, part: NDArray[np.int64]) -> int:
        """Return how many units (rows or windows) items have together, given the part of each item."""
        return len(part)

    def visits(self, visits: Visits) -> Visits:
        """Return when each chunk is needed, given when each part is."""
        return visits

    @property
    @abstractmethod
    def name(self) -> str:
        """What states call the items: part of `digest`, as is `table_digest`."""

    def table_digest(self) -> str:
        """Return a digest of what was computed from data to find the items; empty if nothing was."""
        return ""

    def digest(self, selection: str) -> str:
        """Return the digest that states keep of the items, given that of the selected rows.

        A state resumes only where it is equal. Changing a digest breaks resumed runs.
        """
        return hashlib.blake2b(f"{selection} {self.name} {self.table_digest()}".encode(), digest_size=16).hexdigest()


@dataclass(frozen=True)
class RowGrouping(Grouping):
    """Every selected row is an item."""

    counts: NDArray[np.int64]
    one_row = True
    name = "rows"

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
class PartGrouping(Grouping):
    """Chunks cut into parts, which are ordered and dealt instead of chunks. Build it with `cut`.

    An item is a whole part, or one of the rows (or windows) in it.
    """

    units: Grouping
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
    def cut(cls, units: Grouping, parts: int, *, whole: bool) -> PartGrouping:
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

    def count_units(self, part: NDArray[np.int64]) -> int:
        """Return the units of whole parts, or the number of items."""
        return int(self.sizes[part].sum()) if self.whole else len(part)

    def visits(self, visits: Visits) -> Visits:
        """Return the visits of the chunks that parts lie in."""
        return self.units.visits(Visits(self.chunk[visits.chunk], visits.first, visits.last))

    @property
    def name(self) -> str:
        """Names the number of parts."""
        return f"{'whole ' if self.whole else ''}{len(self.sizes)} parts"

    def table_digest(self) -> str:
        """Return the digest of the units."""
        return self.units.table_digest()
