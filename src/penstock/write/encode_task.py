"""A bit of work between the user's data and the files: some rows, and how to make a stored batch of them.

`rows`, `columns` and `tables` cut what comes into works, in order; `pipeline` carries them out on all cores. Holds the
sizes they are cut to, and does nothing itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

BATCH_ROWS = 4096
"""Most rows that are encoded in one go."""
BATCH_BYTES = 8 << 20
"""Bytes of values after which a batch is closed: forty colour images of 256x256; ten of them cost a tenth more time."""
LEAST_BATCH_BYTES = 2 << 20
"""What a batch may have however small the row groups are."""
TABLE_ROWS = 1 << 16
"""Most rows of an Arrow batch that is taken as it is stored."""


@dataclass(frozen=True, slots=True)
class EncodeTask:
    """Rows that are to become one batch in storage form."""

    first: int
    """Number of the first row, counted over all that was written."""
    num_rows: int
    num_bytes: int
    """Memory that the rows hold until they are encoded, about."""
    make: Callable[[], pa.RecordBatch]
    """Encodes them; safe to call in any thread, once."""
