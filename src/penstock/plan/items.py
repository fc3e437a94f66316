"""Say what a plan deals out, and which rows that is: rows, stretches of chunks, whole chunks, or windows of rows.

A plan orders and deals the items of *parts*; where nothing is said a part is a chunk and an item one of its selected
rows. This translates a plan's answers into chunks and rows for the engine. Pure; holds a few words for each part.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

import numpy as np

from penstock.plan.visits import Visits, joined

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

Run = tuple[int, int, int]


class Starts(Protocol):
    """Where the windows of each chunk begin."""

    counts: NDArray[np.int64]
    """Windows that begin in each chunk."""

    def starts(self, chunk: int) -> NDArray[np.int64]:
        """Return the rows at which windows of a chunk begin, ascending."""


class Folded(NamedTuple):
    """The distinct rows of some windows, and which of them each window consists of."""

    chunk: NDArray[np.int64]
    row: NDArray[np.int64]
    fold: NDArray[np.int64]
    """One line for each window: numbers of the distinct rows."""


class Windows:
    """Windows of `length` rows that follow each other, across the borders of chunks where `table` says so."""

    def __init__(self, table: Starts, length: int, selected: NDArray[np.int64]) -> None:
        self.table = table
        self.length = length
        self._ends: NDArray[np.int64] = np.cumsum(selected)
        self._begins = self._ends - selected

    def rows(self, chunk: NDArray[np.int64], number: NDArray[np.int64]) -> Folded:
        """Return the rows of windows, each named by the chunk it begins in and its number there."""
        start = np.empty(len(chunk), np.int64)
        for one in np.unique(chunk).tolist():
            here = chunk == one
            start[here] = self.table.starts(one)[number[here]]
        lines = (self._begins[chunk] + start)[:, None] + np.arange(self.length)
        distinct, fold = np.unique(lines, return_inverse=True)
        at = cast("NDArray[np.int64]", np.searchsorted(self._ends, distinct, side="right"))
        return Folded(at, distinct - self._begins[at], fold.reshape(lines.shape))

    def reaching(self, visits: Visits) -> Visits:
        """Return the stays with those of the chunks added that windows reach into from the one before."""
        last = np.minimum(self._ends[visits.chunk] + self.length - 2, self._ends[-1] - 1)
        far = np.searchsorted(self._ends, last, side="right") - visits.chunk
        more = [visits]
        for step in range(1, int(far.max(initial=0)) + 1):
            there = far >= step
            more.append(Visits(visits.chunk[there] + step, visits.first[there], visits.last[there]))
        return joined(more) if len(more) > 1 else visits


@dataclass(frozen=True)
class Items:
    """What is dealt out, part by part."""

    counts: NDArray[np.int64]
    """Items of each part."""
    chunk: NDArray[np.int64] | None = None
    """Chunk of each part; None: part i is chunk i, whole."""
    first: NDArray[np.int64] | None = None
    """Where each part begins among the selected rows (or windows) of its chunk."""
    sizes: NDArray[np.int64] | None = None
    """Rows (or windows) of each part, where the part is one item; None: each of them is an item."""
    windows: Windows | None = None
    """What an item is made of; None: of one row."""

    @classmethod
    def of_parts(cls, counts: NDArray[np.int64], parts: int, *, whole: bool, windows: Windows | None = None) -> Items:
        """Return the items of chunks with `counts` rows (or windows), each chunk cut into `parts` equal stretches."""
        chunk = np.repeat(np.arange(len(counts), dtype=np.int64), parts)
        number = np.tile(np.arange(parts, dtype=np.int64), len(counts))
        first = counts[chunk] * number // parts
        sizes = counts[chunk] * (number + 1) // parts - first
        kept = sizes > 0  # an item without rows would be an empty batch that nobody asked for
        chunk, first, sizes = chunk[kept], first[kept], sizes[kept]
        if whole:
            return cls(np.ones(len(sizes), np.int64), chunk, first, sizes, windows)
        return cls(sizes, chunk, first, None, windows)

    @property
    def is_whole(self) -> bool:
        """Whether an item is a whole part."""
        return self.sizes is not None

    @cached_property
    def name(self) -> str:
        """What states call it: a state goes on only where items are the same."""
        if self.chunk is None:
            return "rows" if self.windows is None else "windows"
        return f"{'whole ' if self.is_whole else ''}{len(self.counts)} parts"

    def visits(self, visits: Visits) -> Visits:
        """Return when which chunk is needed, from when which part is."""
        if self.chunk is not None:
            visits = Visits(self.chunk[visits.chunk], visits.first, visits.last)
        return visits if self.windows is None else self.windows.reaching(visits)

    def runs(self, runs: Sequence[Run]) -> list[Run]:
        """Return stretches of chunks from stretches of parts."""
        if self.chunk is None:
            return list(runs)
        chunk, first = self.chunk, cast("NDArray[np.int64]", self.first)
        if self.sizes is None:
            return [(int(chunk[part]), int(first[part]) + lo, int(first[part]) + hi) for part, lo, hi in runs]
        sizes = self.sizes
        return [
            (int(chunk[part]), int(first[part]), int(first[part] + sizes[part]))
            for part, lo, hi in runs
            for _ in range(lo, hi)
        ]

    def rows(self, part: NDArray[np.int64], item: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return chunk and row (or number of the window) from parts and items; not for whole parts."""
        if self.chunk is None:
            return part, item
        return self.chunk[part], cast("NDArray[np.int64]", self.first)[part] + item

    def fold(self, runs: Sequence[Run]) -> Folded:
        """Return the rows of the windows in stretches of chunks."""
        chunk = np.concatenate([np.full(hi - lo, one, np.int64) for one, lo, hi in runs])
        number = np.concatenate([np.arange(lo, hi, dtype=np.int64) for _, lo, hi in runs])
        return cast("Windows", self.windows).rows(chunk, number)
