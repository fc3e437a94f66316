"""What a loader knows of its dataset: where to read, which rows, which columns, and how large they are.

Filled in by `api` from a source and a selection; a frozen value that the engine and the plan work from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from penstock.engine.build import RowFilter, Source
    from penstock.engine.columns import Column


@dataclass(frozen=True, slots=True)
class Facts:
    """What a loader knows of its dataset."""

    source: Source
    selection: RowFilter
    columns: tuple[Column, ...]
    counts: NDArray[np.int64]
    """Selected rows of each chunk."""
    chunk_rows: NDArray[np.int64]
    """All rows of each chunk."""
    row_bytes: float
    """Bytes of a row in memory, all columns: decides lanes and block, which must not depend on the columns read."""
    column_bytes: float
    """Bytes of a row in memory, the columns read: decides what fits."""
    dataset: str
    """Fingerprint."""
    rows: str
    """Digest of the selection."""
