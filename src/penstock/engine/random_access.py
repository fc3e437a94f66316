"""Read without a plan: a few rows by their place, or one whole column.

`take_rows` is what `Dataset.take` and `ds[i]` do: it reads each chunk concerned once, in threads if there are several,
keeps only the requested rows, and returns one batch in the requested order. `scan_column` reads a column in stored
order, a few chunks ahead, for what must be known before the first row: windows over time need every timestamp once.
Both share reading, gathering and decoding with the loader.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.engine.finish import within
from penstock.engine.gather import Chunk, LostChunk, Runs, gather, make_chunk
from penstock.engine.gather_values import CellLost
from penstock.engine.host import default_workers
from penstock.engine.picks import Picks
from penstock.engine.stages import Batch, BatchOrigin, run_stages
from penstock.progress import progress
from penstock.source import read_chunk

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from numpy.typing import NDArray

    from penstock.engine.build import Builder


def row_numbers(indices: Iterable[int]) -> NDArray[Any]:
    """Return row numbers as a flat array of int64, or of Python integers if int64 cannot hold them all.

    Raises:
        TypeError: they are not a flat list of integers.
    """
    listed = indices if isinstance(indices, np.ndarray) else list(indices)
    wanted = np.asarray(listed)
    if wanted.ndim != 1:
        raise TypeError(f"take() wants a flat list of rows, got {wanted.ndim} dimensions")
    # NumPy makes floats or objects of integers too large for one dtype, and compares uint64 with int64 as floats.
    if (
        wanted.size
        and wanted.dtype.kind in "fO"
        and all(type(one) is int or isinstance(one, np.integer) for one in listed)
    ):
        return np.array([int(one) for one in listed], object)
    if wanted.dtype == np.bool_ or (wanted.size and wanted.dtype.kind not in "iu"):
        raise TypeError(f"take() wants whole numbers, got {wanted.dtype}; a mask becomes indices by np.flatnonzero")
    return wanted.astype(object) if wanted.dtype == np.uint64 else wanted.astype(np.int64)


def take_rows(builder: Builder, chunk: NDArray[np.int64], row: NDArray[np.int64]) -> Batch:
    """Return the rows `row[i]` (among the selected ones) of `chunk[i]` as one batch."""
    distinct, part = np.unique(chunk, return_inverse=True)
    part = part.astype(np.intp).reshape(-1)
    wanted = [np.unique(row[part == number]) for number in range(len(distinct))]
    places = np.empty(len(row), np.int64)
    for number, rows in enumerate(wanted):
        here = part == number
        places[here] = np.searchsorted(rows, row[here])
    chunks = _read_all(builder, list(zip(distinct.tolist(), wanted, strict=True)))
    try:
        gathered = gather(Picks(chunks, part, places), builder.columns, builder.pool, None, skip=False)
        gathered, _, _ = within(builder.room, builder.columns, gathered, skip=False)
        return run_stages(builder.stages, gathered, BatchOrigin(0, 0, len(row)), builder.pool)[0]
    except CellLost as error:
        raise builder.locator.decode_error(int(chunk[error.row]), int(row[error.row]), error) from error.__cause__


def _read_all(builder: Builder, wanted: list[tuple[int, NDArray[np.int64]]]) -> list[Chunk]:
    if len(wanted) < 2:
        return [_read(builder, *one) for one in wanted]
    with ThreadPoolExecutor(min(default_workers(), len(wanted))) as threads:
        return list(threads.map(lambda one: _read(builder, *one), wanted))


def _read(builder: Builder, chunk: int, rows: NDArray[np.int64]) -> Chunk:
    names = [column.name for column in builder.columns]
    data, selected = (
        read_chunk(builder.source, chunk, names, limit_bytes=builder.limit_bytes),
        builder.selection.rows_of(chunk),
    )
    try:
        return make_chunk(chunk, data, builder.columns, rows if selected is None else selected[rows], skip=False)
    except CellLost as error:
        raise builder.locator.decode_error(chunk, int(rows[error.row]), error) from error


def scan_column(builder: Builder, counts: NDArray[np.int64]) -> Generator[NDArray[Any], None, None]:
    """Give the values of the builder's only column, the selected rows of each chunk in order; empty where none is."""
    workers = default_workers()
    empty = np.empty(0, builder.columns[0].dtype)
    waiting: deque[Future[Any] | None] = deque()
    with ThreadPoolExecutor(workers) as threads, progress(len(counts), "reading timestamps") as bar:
        for chunk, count in enumerate([*counts.tolist(), *[None] * 2 * workers]):
            if count is not None:
                waiting.append(threads.submit(_values, builder, chunk) if count else None)
            if waiting and (count is None or len(waiting) > 2 * workers):
                found = waiting.popleft()
                bar.update(1)
                yield empty if found is None else found.result()


def _values(builder: Builder, index: int) -> Any:
    found = builder.read(index, last=True)
    if isinstance(found, LostChunk):
        raise found.error
    rows = Runs([found], [(0, found.num_rows)], views=False)
    try:
        gathered = gather(rows, builder.columns, builder.pool, None, skip=False)
        batch, _ = run_stages(builder.stages, gathered, BatchOrigin(0, 0, found.num_rows), builder.pool)
    except CellLost as error:
        raise builder.locator.decode_error(index, error.row, error) from error.__cause__
    return batch[builder.columns[0].name]
