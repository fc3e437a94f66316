"""A unit of work between the user's data and the files: some rows, and the function that encodes them.

`rows`, `columns` and `tables` cut the input into tasks, in order; `pipeline` runs them on all cores. Contains the sizes
to cut to, and does nothing itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

BATCH_ROWS = 4096
"""Most rows that are encoded at once."""
BATCH_BYTES = 8 << 20
"""A batch is closed at this many bytes of values: forty colour images of 256x256; ten take a tenth more time."""
LEAST_BATCH_BYTES = 2 << 20
"""A batch may have at least this many bytes, however small the row groups are."""
TABLE_ROWS = 1 << 16
"""Most rows of an Arrow batch that is stored without encoding."""


@dataclass(frozen=True, slots=True)
class EncodeTask:
    """Rows that become one batch in storage form."""

    first: int
    """Index of the first row, counted over everything written."""
    num_rows: int
    num_bytes: int
    """Approximate memory of the rows until they are encoded."""
    make: Callable[[], pa.RecordBatch]
    """Encodes them; may be called in any thread, once."""
