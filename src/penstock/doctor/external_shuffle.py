"""A true shuffle of more rows than fit into memory: every row gets a random number, and rows are sorted by it on disk.

Takes batches, yields the same rows in the order of one random 64-bit word each: a uniform permutation of all rows, the
same for equal seeds with any memory. Rows that do not fit are distributed over files by ranges of words, and each
file is sorted separately, or distributed again if it is still too large. Costs writing and reading the rows once more,
undecoded and compressed with LZ4, in a folder that the caller provides and removes. Holds at most `memory_bytes`.
"""

from __future__ import annotations

import itertools
import math
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.plan.permutation import stable_argsort

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    Span = tuple[int, int]

WORD = "penstock:word"
"""Name of the column of random words."""
SHUFFLE = 16
"""Last word of the Philox counter: a stream that no loader draws from."""
_PARTS = 4
"""Buffered rows, their sorted copy, what is read ahead and what the writer holds: each gets this share of the
memory."""
_MOST_FILES = 512
"""Most files that rows are distributed over at a time; more would make the writes small."""
_OUT_ROWS = 4096


@dataclass(slots=True)
class Spill:
    """Folder for rows on disk, and how many bytes of rows may be in memory."""

    folder: str
    memory_bytes: int
    count: itertools.count[int] = field(default_factory=itertools.count)
    most_bytes: int = 0
    """Most bytes of rows that were held at once: for tests."""

    @property
    def limit(self) -> int:
        """Bytes of rows that are sorted in memory; far below 2 GiB, the limit of Arrow's offsets."""
        return max(1, min(self.memory_bytes // _PARTS, 512 << 20))

    def held(self, num_bytes: int) -> None:
        """Record how much is in memory."""
        self.most_bytes = max(self.most_bytes, num_bytes)


def shuffled(
    batches: Iterable[pa.RecordBatch], *, seed: int, num_bytes: float, spill: Spill
) -> Iterator[pa.RecordBatch]:
    """Yield all rows in the order of their words; `num_bytes` is their approximate size in memory.

    The order is `stable_argsort` of the raw words of `Philox(key=[seed, 0], counter=[0, 0, 0, 16])`.
    """
    words = np.random.Philox(key=np.array([seed, 0], np.uint64), counter=np.array([0, 0, 0, SHUFFLE], np.uint64))

    def marked() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                word = pa.py_buffer(words.random_raw(batch.num_rows))
                column = pa.Array.from_buffers(pa.uint64(), batch.num_rows, [None, word])
                schema = batch.schema.append(pa.field(WORD, pa.uint64(), nullable=False))
                yield pa.RecordBatch.from_arrays([*batch.columns, column], schema=schema)

    yield from _sorted(marked(), (0, 1 << 64), num_bytes, spill)


def _sorted(batches: Iterator[pa.RecordBatch], span: Span, num_bytes: float, spill: Spill) -> Iterator[pa.RecordBatch]:
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size > spill.limit and span[1] - span[0] > 1 and sum(map(len, held)) > 1:
            yield from _through_files(itertools.chain(_given_up(held), batches), span, num_bytes, spill)
            return
    spill.held(size)
    yield from _in_order(held)


def _given_up(held: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    while held:
        yield held.pop(0)


def _in_order(held: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if not held:
        return
    table = pa.Table.from_batches(_given_up(held)).combine_chunks()
    order = stable_argsort(_words(table))
    rows = table.drop_columns([WORD]) if hasattr(table, "drop_columns") else table.drop([WORD])
    for start in range(0, len(order), _OUT_ROWS):
        yield from rows.take(_indices(order[start : start + _OUT_ROWS])).combine_chunks().to_batches()


def _words(table: pa.Table) -> NDArray[np.uint64]:
    parts = [np.frombuffer(part.buffers()[1], np.uint64)[part.offset :][: len(part)] for part in table[WORD].chunks]
    return np.concatenate(parts)


def _indices(order: NDArray[np.int64]) -> pa.Array:
    values = np.ascontiguousarray(order, np.int64)
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


# --- on disk ----------------------------------------------------------------------------------------------------------


def _through_files(
    batches: Iterator[pa.RecordBatch], span: Span, num_bytes: float, spill: Spill
) -> Iterator[pa.RecordBatch]:
    # At least 8 files: there are more rows than estimated, and it is unknown how many.
    num_files = min(_MOST_FILES, max(8, math.ceil(2 * num_bytes / spill.limit)), span[1] - span[0])
    bounds = [span[0] + (span[1] - span[0]) * index // num_files for index in range(num_files + 1)]
    paths = [os.path.join(spill.folder, f"{next(spill.count)}.arrow") for _ in range(num_files)]
    # Append every row to the file of its range, and count the bytes that the rows of each file take in memory.
    first = np.array(bounds[:-1], np.uint64)
    sizes = [0] * len(paths)
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= spill.limit:
            spill.held(size)
            _append(held, first, paths, sizes)
            size = 0
    _append(held, first, paths, sizes)
    for index, path in enumerate(paths):
        if sizes[index]:
            part = bounds[index], bounds[index + 1]
            yield from _sorted(_read(path), part, float(sizes[index]), spill)
            os.remove(path)


def _append(held: list[pa.RecordBatch], first: NDArray[np.uint64], paths: list[str], sizes: list[int]) -> None:
    if not held:
        return
    table = pa.Table.from_batches(_given_up(held)).combine_chunks()
    file = np.searchsorted(first, _words(table), side="right") - 1
    order = np.argsort(file, kind="stable")
    ends = np.cumsum(np.bincount(file, minlength=len(paths)))
    packed = pa.ipc.IpcWriteOptions(compression="lz4" if pa.Codec.is_available("lz4") else None)
    start = 0
    for index, end in enumerate(ends.tolist()):
        if end > start:
            rows = table.take(_indices(order[start:end]))
            sizes[index] += rows.nbytes
            with open(paths[index], "ab") as sink, pa.ipc.new_stream(sink, rows.schema, options=packed) as stream:
                stream.write_table(rows)
        start = end


def _read(path: str) -> Iterator[pa.RecordBatch]:
    """Yield what was appended: streams one after another, in the order in which they were written."""
    size = os.path.getsize(path)
    with open(path, "rb") as source:
        while source.tell() < size:
            with pa.ipc.open_stream(source) as stream:
                yield from stream
