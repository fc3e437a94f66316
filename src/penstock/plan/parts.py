"""Items that are parts of chunks: whole parts, or the rows (or windows) in them; what Petastorm's readers deal out.

A `Grouping` in front of another one that says what parts consist of. Pure; memory is a few words for each part.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from penstock.plan.epoch import Visits
from penstock.plan.order import Grouping, ItemRows, Run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


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
