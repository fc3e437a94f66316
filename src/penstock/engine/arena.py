"""Memory of our own for the narrow columns of chunks that will be used many times.

Chunks are copied into equal slots right after they are read, while they are still in the cache, so that Arrow's memory
is used again for the next read. A slot comes back when its chunk leaves the window. Two layouts:

- `Records`, for the lane order: all values of a row lie side by side. Rows picked from anywhere cost one visit to
  memory each, instead of one for each column: with 40 columns four cache lines a row instead of forty, which matters
  most where several processes share the cache.
- `Shelf`, for line orders that keep what they read for the next epoch: column by column, copied out in slices.

A chunk that finds no slot stays as it was read, and spans that touch it are gathered chunk by chunk (`gather.Picks`,
the plain twin).
"""

from __future__ import annotations

import heapq
import math
import mmap
import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, cast

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock.engine.chunk import FixedPart, Part
    from penstock.engine.columns import Column

NARROW_BYTES = 64
"""Wider values gain nothing: copying one costs more than finding it."""
_MOST_WASTE = 1.3
"""Slots are as large as the largest chunk; with uneven chunks that wastes too much, and there is no arena."""
_LEAST_COLUMNS = 4
"""With fewer columns a take for each column is as good as records."""
_BLOCK_BYTES = 1 << 19
"""Rows are turned into columns in blocks of this size, which stay in the second-level cache meanwhile."""


class Arena(ABC):
    """Slots for chunks; `put` fills one, `free` gives it back. Any thread may call either."""

    def __init__(self, slot_rows: int, num_slots: int) -> None:
        self.slot_rows = slot_rows
        self._lock = threading.Lock()
        self._free = list(range(num_slots))  # a heap: low slots first keeps the touched memory small

    def put(self, parts: Sequence[Part]) -> int:
        """Copy the narrow columns of a chunk into a free slot and point the parts there; -1 if no slot is free."""
        with self._lock:
            if not self._free:
                return -1
            slot = heapq.heappop(self._free)
        self._fill(slot * self.slot_rows, parts)
        return slot

    def free(self, slot: int) -> None:
        """Give a slot back; its chunk must not be gathered from any more."""
        with self._lock:
            heapq.heappush(self._free, slot)

    @abstractmethod
    def _fill(self, first: int, parts: Sequence[Part]) -> None:
        """Copy the values of the narrow columns to the rows from `first` on, and point the parts there."""


class Records(Arena):
    """Rows as records, from which `take` gathers."""

    def __init__(self, columns: Sequence[Column], slot_rows: int, num_slots: int) -> None:
        super().__init__(slot_rows, num_slots)
        dtype = record_dtype(columns)
        # Untouched pages of np.empty cost nothing: memory is taken as slots fill.
        self._records: NDArray[Any] = np.empty(num_slots * slot_rows, dtype)
        self._rows = self._records.view(f"V{dtype.itemsize}")
        self._block_rows = max(256, min(4096, _BLOCK_BYTES // dtype.itemsize))
        self._names = [(int(name), name) for name in cast("tuple[str, ...]", dtype.names)]
        self.columns = frozenset(number for number, _ in self._names)
        """Numbers of the columns that lie here."""

    def _fill(self, first: int, parts: Sequence[Part]) -> None:
        mine = [(cast("FixedPart", parts[number]), name) for number, name in self._names]
        num_rows = len(mine[0][0].values)
        there = self._records[first : first + num_rows]
        for start in range(0, num_rows, self._block_rows):
            block = there[start : start + self._block_rows]
            for part, name in mine:
                block[name] = part.values[start : start + self._block_rows]
        for part, name in mine:
            part.values = there[name]

    def take(self, rows: NDArray[np.int64], out: dict[int, NDArray[Any]]) -> None:
        """Gather rows, given by their place in the arena, into one array for each column."""
        block: NDArray[Any] = np.empty(self._block_rows, self._records.dtype)
        raw = block.view(self._rows.dtype)
        fields = [(block[name], out[number]) for number, name in self._names]
        for first in range(0, len(rows), self._block_rows):
            some = rows[first : first + self._block_rows]
            count = len(some)
            self._rows.take(some, 0, raw[:count], "clip")
            for values, column in fields:
                column[first : first + count] = values[:count]


class Shelf(Arena):
    """Columns side by side."""

    def __init__(self, columns: Sequence[Column], slot_rows: int, num_slots: int) -> None:
        super().__init__(slot_rows, num_slots)
        self._arrays: list[tuple[int, NDArray[Any]]] = [
            (number, _untouched((num_slots * slot_rows, *column.shape), column.dtype))
            for number, column in enumerate(columns)
            if is_narrow(column)
        ]

    def _fill(self, first: int, parts: Sequence[Part]) -> None:
        for number, array in self._arrays:
            part = cast("FixedPart", parts[number])
            there = array[first : first + len(part.values)]
            there[...] = part.values
            part.values = there


def _untouched(shape: tuple[int, ...], dtype: np.dtype[Any] | None) -> NDArray[Any]:
    """Return memory whose pages are taken one by one as they are written.

    NumPy asks the system for huge pages, which pay for random access. Read in order they gain little, and their first
    touch is a gamble: 400 MB were seen to take 0.12 s to 1.0 s with them and 0.3 s without.
    """
    num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    return np.ndarray(shape, dtype, mmap.mmap(-1, max(1, num_bytes)))


def is_narrow(column: Column) -> bool:
    """Tell whether a column belongs into an arena."""
    return column.form == "fixed" and column.item_bytes <= NARROW_BYTES


def record_dtype(columns: Sequence[Column]) -> np.dtype[Any]:
    """Return the record of the narrow columns, named by their numbers; widest values first, so that all are aligned."""
    narrow = [(number, column) for number, column in enumerate(columns) if is_narrow(column)]
    narrow.sort(key=lambda one: -cast("np.dtype[Any]", one[1].dtype).itemsize)
    return np.dtype([(str(number), column.dtype, column.shape) for number, column in narrow], align=True)


def make_arena(
    columns: Sequence[Column], counts: NDArray[np.int64], budget_bytes: int, *, records: bool
) -> Arena | None:
    """Return an arena for these chunks within a budget, or None where it would not pay."""
    used = counts[counts > 0]
    narrow = sum(map(is_narrow, columns))
    if narrow < (_LEAST_COLUMNS if records else 1) or not len(used):
        return None
    slot_rows = int(used.max())
    slots = int(min(len(used), budget_bytes // (record_dtype(columns).itemsize * slot_rows)))
    if slots < 2 or slot_rows * len(used) > _MOST_WASTE * used.sum():
        return None
    return Records(columns, slot_rows, slots) if records else Shelf(columns, slot_rows, slots)
