"""Which rows of each chunk are selected: all of them, or what a filter left.

Made by `Selection.all` and by `select_rows`; the plan takes the counts, the engine the rows, the state the digest.
Frozen; holds one number for each chunk and a bitmap only for chunks that are selected in part. Reads nothing.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Selection:
    """The selected rows of every chunk."""

    counts: NDArray[np.int64]
    """Selected rows of each chunk; 0: none, the chunk is never read."""
    bitmaps: Mapping[int, NDArray[np.uint8]] = field(default_factory=dict)
    """Packed bits, lowest first (Arrow's order), for the chunks of which some rows are selected and some are not."""

    skipped: tuple[tuple[str, str], ...] = ()
    """Path and reason of each chunk that a filter could not read and left out (on_error="skip"); not in the digest."""

    @classmethod
    def all(cls, chunk_rows: NDArray[np.int64]) -> Selection:
        """Select every row."""
        return cls(np.array(chunk_rows, np.int64))

    @property
    def total(self) -> int:
        """Number of selected rows."""
        return int(self.counts.sum())

    def rows_of(self, chunk: int) -> NDArray[np.int64] | None:
        """Return the selected rows of a chunk, ascending; None: all of them. Costs one pass over the bitmap."""
        if chunk in self.bitmaps:
            return np.flatnonzero(np.unpackbits(self.bitmaps[chunk], bitorder="little")).astype(np.int64, copy=False)
        return None if self.counts[chunk] else np.empty(0, np.int64)

    def digest(self) -> str:
        """Return 32 hex digits that are equal for equal selections. Changing how breaks resumed runs."""
        sums = hashlib.blake2b(b"penstock.rows.v1\0", digest_size=16)
        sums.update(np.ascontiguousarray(self.counts, "<i8").tobytes())
        for chunk in sorted(self.bitmaps):
            sums.update(int(chunk).to_bytes(8, "little"))
            sums.update(np.ascontiguousarray(self.bitmaps[chunk]).data)
        return sums.hexdigest()


def pack(keep: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Return a mask as packed bits, lowest first; bits past the end are 0."""
    return np.packbits(keep, bitorder="little")
