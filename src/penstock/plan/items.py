"""Say what a plan deals out, and which rows that is: rows, stretches of chunks, whole chunks, or windows of rows.

A plan orders and deals the items of *parts*; where nothing is said a part is a chunk and an item one of its selected
rows. This translates a plan's answers into chunks and rows for the engine. Pure; holds a few words for each part.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from penstock.plan.visits import Visits, joined

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock.plan.windows import WindowTable

Run = tuple[int, int, int]


class Folded(NamedTuple):
    """The distinct rows of some windows, and which of them each window consists of."""

    chunk: NDArray[np.int64]
    row: NDArray[np.int64]
    fold: NDArray[np.int64]
    """One line for each window: numbers of the distinct rows."""


def folded(table: WindowTable, chunk: NDArray[np.int64], number: NDArray[np.int64]) -> Folded:
    """Return the rows of windows, each named by the chunk it begins in and its number there."""
    at, row = table.rows(chunk, number)
    distinct, fold = np.unique(table.row_offsets[at] + row, return_inverse=True)
    first: NDArray[np.int64] = np.searchsorted(table.row_offsets, distinct.reshape(-1), side="right") - 1
    return Folded(first, distinct - table.row_offsets[first], fold.reshape(at.shape))


def reaching(table: WindowTable, visits: Visits) -> Visits:
    """Return the stays with those of the chunks added that windows reach into from the one before."""
    far = table.last_chunks()[visits.chunk] - visits.chunk
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
    windows: WindowTable | None = None
    """What an item is made of; None: of one row."""

    @classmethod
    def of_parts(
        cls, counts: NDArray[np.int64], parts: int, *, whole: bool, windows: WindowTable | None = None
    ) -> Items:
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
        return visits if self.windows is None else reaching(self.windows, visits)

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
        return self.windows_at(chunk, number)

    def windows_at(self, chunk: NDArray[np.int64], number: NDArray[np.int64]) -> Folded:
        """Return the rows of windows, each named by the chunk it begins in and its number there."""
        return folded(cast("WindowTable", self.windows), chunk, number)
