"""One array for each narrow column, in which all chunks of the window lie side by side.

A row picked from anywhere in the window is then one index, and a span is one `take` a column instead of one a column
and chunk: on a table of 40 columns and 40 chunks that is 40 calls instead of 1,600. Chunks are copied into equal slots
when they are read and give the slot back when they leave. A chunk that finds no slot stays as it was read, and spans
that touch it are gathered chunk by chunk (`gather.Picks`, the plain twin).
"""

from __future__ import annotations

import heapq
import threading
from typing import TYPE_CHECKING, Any, cast

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock.engine.chunk import FixedPart, Part
    from penstock.engine.columns import Column

NARROW_BYTES = 64
"""Wider rows gain nothing: copying them costs more than the call around it."""
_MOST_WASTE = 1.3
"""Slots are as large as the largest chunk; with uneven chunks that wastes too much, and there is no arena."""


class Arena:
    """Slots for chunks; `put` fills one, `free` gives it back. Any thread may call either."""

    def __init__(self, columns: Sequence[Column], slot_rows: int, num_slots: int) -> None:
        self.slot_rows = slot_rows
        self._lock = threading.Lock()
        self._free = list(range(num_slots))  # a heap: low slots first keeps the touched memory small
        self.arrays: dict[int, NDArray[Any]] = {
            # Untouched pages of np.empty cost nothing: memory is taken as slots fill.
            i: np.empty((num_slots * slot_rows, *column.shape), cast("np.dtype[Any]", column.dtype))
            for i, column in enumerate(columns)
            if is_narrow(column)
        }

    def put(self, parts: Sequence[Part]) -> int:
        """Copy the narrow columns of a chunk into a free slot and point the parts there; -1 if no slot is free."""
        with self._lock:
            if not self._free:
                return -1
            slot = heapq.heappop(self._free)
        first = slot * self.slot_rows
        for i, array in self.arrays.items():
            part = cast("FixedPart", parts[i])
            there = array[first : first + len(part.values)]
            there[...] = part.values
            part.values = there
        return slot

    def free(self, slot: int) -> None:
        """Give a slot back; its chunk must not be gathered from any more."""
        with self._lock:
            heapq.heappush(self._free, slot)


def is_narrow(column: Column) -> bool:
    """Tell whether a column belongs into an arena."""
    return column.form == "fixed" and column.item_bytes <= NARROW_BYTES


def make_arena(columns: Sequence[Column], counts: NDArray[np.int64], budget_bytes: int) -> Arena | None:
    """Return an arena for these chunks within a budget, or None where it would not pay."""
    row_bytes = sum(column.item_bytes for column in columns if is_narrow(column))
    used = counts[counts > 0]
    if not row_bytes or not len(used) or used.max() * len(used) > _MOST_WASTE * used.sum():
        return None
    slots = min(len(used), budget_bytes // (row_bytes * int(used.max())))
    return Arena(columns, int(used.max()), int(slots)) if slots > 1 else None
