"""Memory of our own for chunks that will be used many times.

Chunks are copied right after they are read, while they are still in the cache, so that Arrow's memory is used again
for the next read. Two layouts:

- `Records`, for the lane order: all narrow values of a row lie side by side. Rows picked from anywhere cost one visit
  to memory each, instead of one for each column: with 40 columns four cache lines a row instead of forty, which matters
  most where several processes share the cache. Slots are equal; one comes back when its chunk leaves the window. A
  chunk that finds no slot stays as it was read, and spans that touch it are gathered chunk by chunk (`gather.Picks`,
  the plain twin).
- `Shelf`, for line orders that keep what they read for the next epoch: column by column, copied out a chunk at a time.
  Batches are views of that copy, as they are views of a chunk just read. A chunk that finds no room is read again (the
  plain twin).
"""

from __future__ import annotations

import heapq
import mmap
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from penstock.engine.gather import BlockPool, Chunk, Cutter, FixedPart, Part, aligned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock.engine.inputs import Column

NARROW_BYTES = 64
"""Wider values gain nothing: copying one costs more than finding it."""
_MOST_WASTE = 1.3
"""Slots are as large as the largest chunk; with uneven chunks that wastes too much, and there is no arena."""
_LEAST_COLUMNS = 4
"""With fewer columns a take for each column is as good as records."""
_BLOCK_BYTES = 1 << 19
"""Rows are turned into columns in blocks of this size, which fit into the second-level cache."""


class Records:
    """Slots for chunks, rows as records; `put` fills a slot, `free` gives it back, `take` gathers. For any thread."""

    def __init__(self, columns: Sequence[Column], slot_rows: int, num_slots: int) -> None:
        self.slot_rows = slot_rows
        self._lock = threading.Lock()
        self._free = list(range(num_slots))  # a heap: low slots first keeps the touched memory small
        dtype = record_dtype(columns)
        # Untouched pages of np.empty cost nothing: memory is taken as slots fill.
        self._records: NDArray[Any] = np.empty(num_slots * slot_rows, dtype)
        self._rows = self._records.view(f"V{dtype.itemsize}")
        self._block_rows = max(256, min(4096, _BLOCK_BYTES // dtype.itemsize))
        self._names = [(int(name), name) for name in cast("tuple[str, ...]", dtype.names)]
        self.columns = frozenset(number for number, _ in self._names)
        """Numbers of the columns that lie here."""

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


class Shelf:
    """Chunks that line orders keep for later epochs; their memory is never handed out. Safe for threads."""

    def __init__(self, limit_bytes: int, slack: float, pool: BlockPool) -> None:
        self._limit_bytes = limit_bytes
        self._slack = slack
        self._pool = pool
        self._lock = threading.Lock()
        self._bytes = 0
        self._kept: dict[int, tuple[Chunk, NDArray[np.uint8] | None]] = {}
        """Chunk, and the block that its stacked columns lie in."""

    def __contains__(self, index: int) -> bool:
        return index in self._kept

    def put(self, chunk: Chunk) -> None:
        """Keep a chunk as it is now, as long as there is room: its stacked columns are copied, the rest is shared."""
        num_bytes = int(chunk.num_bytes * self._slack)
        with self._lock:
            if chunk.index in self._kept or self._bytes + num_bytes > self._limit_bytes:
                return
            self._bytes += num_bytes
        fixed = [part.values for part in chunk.parts if isinstance(part, FixedPart)]
        block = _untouched(sum(aligned(values.nbytes) for values in fixed)) if fixed else None
        kept = _moved(chunk, block)
        for part, there in zip(chunk.parts, kept.parts, strict=True):
            if isinstance(part, FixedPart):
                cast("FixedPart", there).values[...] = part.values
        self._kept[chunk.index] = kept, block

    def get(self, index: int, *, last: bool) -> Chunk | None:
        """Return a private copy of a chunk, or the chunk itself at its last use; None if it was not kept."""
        kept = self._kept.pop(index, None) if last else self._kept.get(index)
        if kept is None:
            return None
        chunk, block = kept
        if last or block is None:  # without stacked columns nothing of it is ever handed out
            return chunk
        mine = self._pool.lease(block.size)
        mine[...] = block  # all columns in one go: with a copy for each, threads would spend their time on the GIL
        return _moved(chunk, mine)

    def clear(self) -> None:
        """Let everything go."""
        self._kept.clear()


def _moved(chunk: Chunk, block: NDArray[np.uint8] | None) -> Chunk:
    """Return the chunk with its stacked columns in a block, one after another; their values are not copied here."""
    if block is None:
        return chunk
    cut = Cutter(block).cut
    parts = [
        FixedPart(cut(part.values.shape, part.values.dtype, part.values.nbytes), part.valid)
        if isinstance(part, FixedPart)
        else part
        for part in chunk.parts
    ]
    return replace(chunk, parts=tuple(parts))


def _untouched(num_bytes: int) -> NDArray[np.uint8]:
    """Return memory whose pages are taken one by one as they are written.

    NumPy asks the system for huge pages, which pay for random access. Read in order they gain little, and their first
    touch is a gamble: 400 MB were seen to take 0.05 s to 1.0 s with them and 0.2 s to 0.3 s without. Shared memory,
    the default of `mmap`, costs more to touch and to free.
    """
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    return np.frombuffer(mmap.mmap(-1, max(1, num_bytes), **private), np.uint8)


def is_narrow(column: Column) -> bool:
    """Tell whether a column belongs into an arena."""
    return column.form == "fixed" and column.item_bytes <= NARROW_BYTES


def record_dtype(columns: Sequence[Column]) -> np.dtype[Any]:
    """Return the record of the narrow columns, named by their numbers; widest values first, so that all are aligned."""
    narrow = [(number, column) for number, column in enumerate(columns) if is_narrow(column)]
    narrow.sort(key=lambda one: -cast("np.dtype[Any]", one[1].dtype).itemsize)
    return np.dtype([(str(number), column.dtype, column.shape) for number, column in narrow], align=True)


def make_records(columns: Sequence[Column], counts: NDArray[np.int64], budget_bytes: int) -> Records | None:
    """Return an arena for these chunks within a budget, or None where it would not pay."""
    used = counts[counts > 0]
    if sum(map(is_narrow, columns)) < _LEAST_COLUMNS or not len(used):
        return None
    slot_rows = int(used.max())
    slots = int(min(len(used), budget_bytes // (record_dtype(columns).itemsize * slot_rows)))
    if slots < 2 or slot_rows * len(used) > _MOST_WASTE * used.sum():
        return None
    return Records(columns, slot_rows, slots)
