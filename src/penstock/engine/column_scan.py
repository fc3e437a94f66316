"""Read one column of a whole dataset, chunk by chunk in stored order, for what must be known before the first row.

Windows over time need every timestamp once. Chunks are read a few ahead in threads; only those few are in memory. Shows
a progress bar where that takes long.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.engine.chunk import CellLost, LostChunk
from penstock.engine.gather import Runs, gather
from penstock.engine.host import default_workers
from penstock.engine.stages import BatchOrigin, run_stages
from penstock.progress import progress

if TYPE_CHECKING:
    from collections.abc import Generator
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from penstock.engine.build import Builder


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
        raise builder.locator.read_error(found)
    num_rows = found.num_rows
    rows = Runs([found], [(0, num_rows)], views=False)
    try:
        gathered = gather(rows, builder.columns, builder.pool, None, skip=False)
        batch, _ = run_stages(builder.stages, gathered, BatchOrigin(0, 0, num_rows), builder.pool)
    except CellLost as error:
        raise builder.locator.decode_error(index, error.row, error) from error.__cause__
    return batch[builder.columns[0].name]
