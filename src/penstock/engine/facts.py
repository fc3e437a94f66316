"""What a loader knows of its dataset: where to read, which rows, which columns, and how large they are.

Filled in by `api` from a source and a selection; a frozen value that the engine and the plan work from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.dataset.selection import Selection
    from penstock.engine.columns import Column
    from penstock.plan.grouping import Grouping
    from penstock.source import Source


_BUFFER_SLACK = 1.4
"""A buffer that grew by doubling keeps up to twice its bytes when it is cut to length; 1.31 was seen for JPEG cells."""
_MOST_BYTES = 1 << 50
"""Beyond any memory: damaged footers declare sizes whose sums do not fit into 64 bits."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a loader knows of its dataset."""

    source: Source
    selection: Selection
    columns: tuple[Column, ...]
    items: Grouping
    """What is dealt out."""
    selected: NDArray[np.int64]
    """Selected rows of each chunk."""
    chunk_rows: NDArray[np.int64]
    """All rows of each chunk."""
    row_bytes: float
    """Bytes of a row in memory, all columns: decides lanes and block, which must not depend on the columns read."""
    column_bytes: float
    """Bytes of a row in memory, the columns read; of a typical row group."""
    chunk_bytes: NDArray[np.float64]
    """Bytes of all rows of each chunk in memory, the columns read."""
    dataset: str
    """Fingerprint."""
    rows: str
    """Digest of the selection."""

    @property
    def counts(self) -> NDArray[np.int64]:
        """Items of each part: what the plan orders."""
        return self.items.counts

    @property
    def variable_bytes(self) -> float:
        """Bytes of a row in the columns of variable size."""
        return max(0.0, self.column_bytes - sum(c.item_bytes for c in self.columns if c.form == "fixed"))

    @property
    def slack(self) -> float:
        """How much more memory a chunk takes than its buffers are long."""
        return 1 + (_BUFFER_SLACK - 1) * self.variable_bytes / max(1.0, self.column_bytes)

    @property
    def held_bytes(self) -> float:
        """Bytes that a row takes while its chunk is in memory: decides what fits."""
        return self.column_bytes * self.slack

    @property
    def held_chunk_bytes(self) -> NDArray[np.int64]:
        """Bytes that the selected rows of each chunk take while they are in memory."""
        share = self.selected / np.maximum(1, self.chunk_rows)
        return np.minimum(np.ceil(self.chunk_bytes * share * self.slack), _MOST_BYTES).astype(np.int64)

    @property
    def excess_bytes(self) -> int:
        """Bytes that the heaviest chunk takes beyond typical ones of its rows: one row of it may hold them all.

        0 unless it takes at least twice as much, so that ordinary scatter does not count.
        """
        typical = self.chunk_rows * self.column_bytes
        heavy = (self.chunk_bytes - typical)[(self.selected > 0) & (self.chunk_bytes > 2 * typical)]
        return int(heavy.max(initial=0))

    @property
    def decoded_bytes(self) -> float:
        """Bytes of a row in a batch; objects take at least what they take in a chunk."""
        objects = self.variable_bytes if any(c.form == "objects" for c in self.columns) else 0.0
        return sum(c.item_bytes for c in self.columns) + objects
