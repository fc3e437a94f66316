"""The memory that a run needs at once: its window, one read in flight and two batches.

One answer for the loader, which refuses a smaller budget, and for the printed plan, which names it. Arithmetic only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.options import READ_COST

if TYPE_CHECKING:
    from penstock.engine.facts import Facts
    from penstock.options import Pool


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes that a run needs."""

    window_bytes: int
    """Chunks that must be in memory at once."""
    read_bytes: int
    """One read in flight, of the largest chunk."""
    batch_bytes: int
    """One batch, with what its making takes."""

    @property
    def least(self) -> int:
        """The smallest budget that will do."""
        return self.window_bytes + self.read_bytes + 2 * self.batch_bytes


def count_needs(facts: Facts, window_bytes: int, batch_size: int, pool: Pool) -> Needs:
    """Return what a run with a window of that many bytes needs."""
    largest = float(facts.chunk_bytes[facts.selected > 0].max(initial=0))
    row_bytes = facts.decoded_bytes
    if pool == "process":  # gathered and packed for the process, then in its answer
        row_bytes += 2 * facts.column_bytes
    batch_rows = min(batch_size, max(1, int(facts.selected.sum())))
    return Needs(
        window_bytes,
        math.ceil(READ_COST * largest * facts.slack),
        math.ceil(row_bytes * batch_rows) + facts.excess_bytes,
    )
