"""Read a few rows by their place: what `Dataset.take` and `ds[i]` do.

Reads each chunk concerned once, in threads if there are several, keeps only the requested rows, and returns one batch
in the requested order. Shares reading, gathering and decoding with the loader; needs no plan.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.engine.chunk import CellLost, make_chunk
from penstock.engine.gather import Picks, gather
from penstock.engine.host import default_workers
from penstock.engine.room import within
from penstock.engine.stages import BatchOrigin, run_stages

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from penstock.engine.build import Builder
    from penstock.engine.chunk import Chunk
    from penstock.engine.stages import Batch


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
        builder.source.read(chunk, names, limit_bytes=builder.limit_bytes),
        builder.selection.rows_of(chunk),
    )
    try:
        return make_chunk(chunk, data, builder.columns, rows if selected is None else selected[rows], skip=False)
    except CellLost as error:
        raise builder.locator.decode_error(chunk, int(rows[error.row]), error) from error
