"""Apply a row filter to a dataset: rule chunks out unread, evaluate the rest once.

`select_rows` narrows a `Selection`. `statistics.judge` decides what it can; the other chunks are read in threads, only
the columns that the filter names, and the answers are kept as bitmaps. Rows that were not selected before are neither
decoded nor shown to users' functions.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from penstock.codecs.decode import decoded_bytes
from penstock.dataset.arrow_filter import ArrowFilter
from penstock.dataset.row_views import ChunkRows
from penstock.dataset.statistics import judge
from penstock.errors import BadFile, FileChanged
from penstock.halt import until
from penstock.progress import progress
from penstock.source import Selection, Source, pack_mask

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.dataset.row_filter import RowFilter

BLOCK_BYTES = 32 << 20
"""Decoded cells that one thread holds at once where a predicate looks at arrays or images row by row."""


def select_rows(source: Source, row_filter: RowFilter, before: Selection, *, workers: int) -> Selection:
    """Return the rows of `before` that the filter keeps.

    Costs one read of the filter's own columns in each chunk that partition values and statistics cannot decide; none
    where only partition columns are named. Users' functions are called in several threads: row by row, or for
    `batched` filters once for each chunk. A progress bar is drawn on a terminal if that takes long.

    Raises:
        SchemaError: the filter cannot be evaluated, or a function returned something other than truth values.
        DecodeError: a cell that it needs cannot be decoded.
        BadFile: a chunk cannot be read; in a source opened with on_error="skip" it is left out and listed instead.
    """
    chunks = np.flatnonzero(before.counts)
    known = judge(source, row_filter, chunks)
    counts = np.zeros_like(before.counts)
    sure = chunks[~known.may_fail]
    counts[sure] = before.counts[sure]
    bitmaps = {int(chunk): before.bitmaps[chunk] for chunk in sure.tolist() if chunk in before.bitmaps}
    undecided = chunks[known.may_pass & known.may_fail].tolist()
    task = _ChunkTask(source, row_filter, before, _block_rows(source, row_filter))
    pool = ThreadPoolExecutor(max(1, workers))
    try:
        with progress(len(undecided), "filter", unit=f"{source.facts.part_noun}s") as bar:
            for chunk, (count, bitmap) in zip(undecided, pool.map(task.run, undecided), strict=True):
                counts[chunk] = count
                if bitmap is not None:
                    bitmaps[chunk] = bitmap
                bar.update()
    finally:  # an error or Ctrl-C stops the rest, after the call of the user's function that is running
        task.halted.set()
        pool.shutdown(wait=True, cancel_futures=True)
    return Selection(counts, bitmaps, before.skipped + tuple(task.skipped))


def _block_rows(source: Source, row_filter: RowFilter) -> int | None:
    """Return how many rows to decode at once; None: the whole chunk, which Arrow and batched functions need."""
    fields = [source.facts.unischema.fields[name] for name in row_filter.fields]
    row_bytes = sum(decoded_bytes(field, field.codec) for field in fields)
    whole = row_filter.batched or not row_bytes or isinstance(row_filter.predicate, ArrowFilter)
    return None if whole else max(1, BLOCK_BYTES // row_bytes)


@dataclass(frozen=True, slots=True)
class _ChunkTask:
    """Evaluates a filter over one chunk; called from several threads."""

    source: Source
    row_filter: RowFilter
    before: Selection
    block_rows: int | None
    skipped: list[tuple[str, str]] = field(default_factory=list)
    halted: threading.Event = field(default_factory=threading.Event)

    def run(self, chunk: int) -> tuple[int, NDArray[np.uint8] | None]:
        """Return the number of rows that pass, and their bitmap if that is some but not all."""
        rows = self.before.rows_of(chunk)
        view = ChunkRows(self.source, chunk, rows)
        step = self.block_rows or view.num_rows
        try:
            with until(self.halted):
                blocks = [np.arange(a, min(a + step, view.num_rows)) for a in range(0, view.num_rows, step)]
                views = [view] if len(blocks) == 1 else map(view.narrowed, blocks)
                passed = np.concatenate([self.row_filter.mask(block) for block in views])
        except BadFile as exc:
            if self.source.facts.on_error != "skip" or isinstance(exc, FileChanged):
                raise
            self.skipped.append((exc.path, str(exc)))
            return 0, None
        except Exception as exc:
            exc.add_note(f"in the filter {self.row_filter.predicate!r}{view.place}")
            raise
        num_rows, count = int(self.source.facts.chunk_rows[chunk]), int(np.count_nonzero(passed))
        if count in (0, num_rows):
            return count, None
        keep = np.zeros(num_rows, np.bool_)
        keep[slice(None) if rows is None else rows] = passed
        return count, pack_mask(keep)
