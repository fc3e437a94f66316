"""Tell when a rank needs which chunk: the stays of chunks in memory, counted in the rank's own items.

Made by `lanes` and `lines`; the engine reads ahead and evicts by it, and `plan` counts reads and the window with it.
Holds three words for each stay and nothing for rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Visits:
    """Stays of chunks: `chunk[k]` may be needed for the rank's items in [first[k], last[k]); sorted by `first`."""

    chunk: NDArray[np.int64]
    """Chunk number; a chunk may come more than once (cut by a lane border, say)."""
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
