"""Narrow a selection by a predicate: rule chunks out unread, evaluate the rest once.

The predicate's counterpart of `filters.select`. `predicates_prune` says what partition values and statistics know; what
remains is read in threads, the predicate's own columns only, decoded and evaluated; the answer is kept as bitmaps. Rows
that were not selected before are neither decoded nor shown to the predicate.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from penstock.codecs.decode import decoded_bytes
from penstock.dataset.predicates import PredicateBase, check_predicate
from penstock.dataset.predicates_mask import mask_of
from penstock.dataset.predicates_prune import known_of
from penstock.dataset.predicates_view import ChunkView
from penstock.dataset.selection import Selection, pack
from penstock.errors import BadFile, ColumnNotFound, FileChanged, SchemaError, close_names
from penstock.halt import until
from penstock.progress import progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock.dataset.parquet import ParquetSource

_BLOCK_BYTES = 32 << 20
"""Decoded cells that one thread holds at once where a predicate looks at arrays or images, row by row."""


def predicate_columns(predicate: PredicateBase, names: Sequence[str]) -> list[str]:
    """Return the columns that a predicate needs, each once, in its own order.

    Raises:
        ColumnNotFound: it names one that is not among `names`.
        SchemaError: it names none.
    """
    found: list[str] = []
    for one in dict.fromkeys(predicate.get_fields()):
        name = one if isinstance(one, str) else getattr(one, "name", one)
        if name not in names:
            raise ColumnNotFound(f"no column {name!r} for the predicate {predicate!r}; {close_names(str(name), names)}")
        found.append(name)
    if not found:
        raise SchemaError(f"the predicate {predicate!r} names no fields; its get_fields() must say what it looks at")
    return found


def select_predicate(
    source: ParquetSource, predicate: PredicateBase, before: Selection, *, workers: int, batched: bool
) -> Selection:
    """Return the rows of `before` that the predicate keeps.

    Costs one read of the predicate's own columns in each chunk that partition values and statistics cannot decide; none
    where only partition columns are named. Functions of the user's are called in several threads: row by row with
    decoded values, or with `batched` once for each chunk, with pandas Series of its rows. A bar is drawn on a terminal
    when that takes long.

    Raises:
        ValueError: it is no predicate.
        ColumnNotFound: it names a column that is not there.
        SchemaError: it does not fit its columns, or gives something other than truth values.
        DecodeError: a cell that it needs cannot be decoded.
        BadFile: a chunk cannot be read; in a source opened with on_error="skip" it is left out and listed instead.
    """
    names = predicate_columns(check_predicate(predicate), source.arrow_schema.names)
    chunks = np.flatnonzero(before.counts)
    known = known_of(source, predicate, chunks, batched=batched)
    counts = np.zeros_like(before.counts)
    sure = chunks[~known.may_fail]
    counts[sure] = before.counts[sure]
    bitmaps = {int(chunk): before.bitmaps[chunk] for chunk in sure.tolist() if chunk in before.bitmaps}
    open_chunks = chunks[known.may_pass & known.may_fail].tolist()
    work = _Work(source, predicate, before, _block_rows(source, names, batched=batched), batched)
    pool = ThreadPoolExecutor(max(1, workers))
    try:
        with progress(len(open_chunks), "predicate", unit="row groups") as bar:
            for chunk, (count, bitmap) in zip(open_chunks, pool.map(work.pass_chunk, open_chunks), strict=True):
                counts[chunk] = count
                if bitmap is not None:
                    bitmaps[chunk] = bitmap
                bar.update()
    finally:  # an error or Ctrl-C stops the rest, after the call of the user's function it is in
        work.halted.set()
        pool.shutdown(wait=True, cancel_futures=True)
    return Selection(counts, bitmaps)


def _block_rows(source: ParquetSource, names: Sequence[str], *, batched: bool) -> int | None:
    """Return how many rows to decode at once; None: the whole chunk, which a batched function must see in any case."""
    row_bytes = sum(decoded_bytes(field, field.codec) for field in map(source.unischema.fields.__getitem__, names))
    return None if batched or not row_bytes else max(1, _BLOCK_BYTES // row_bytes)


@dataclass(frozen=True, slots=True)
class _Work:
    """Evaluates a predicate over one chunk; called from several threads."""

    source: ParquetSource
    predicate: PredicateBase
    before: Selection
    block_rows: int | None
    batched: bool
    halted: threading.Event = field(default_factory=threading.Event)

    def pass_chunk(self, chunk: int) -> tuple[int, NDArray[np.uint8] | None]:
        """Return the number of rows that pass, and their bitmap if that is some but not all."""
        rows = self.before.rows_of(chunk)
        try:
            with until(self.halted):
                mask = self._mask(ChunkView(self.source, chunk, rows))
        except BadFile as exc:
            if self.source.on_error != "skip" or isinstance(exc, FileChanged):
                raise
            self.source.skipped.append((exc.path, str(exc)))
            return 0, None
        except Exception as exc:
            group = int(self.source.chunk_group[chunk])
            exc.add_note(f"in the predicate {self.predicate!r}, on {self.source.path_of(chunk)}, row group {group}")
            raise
        num_rows, count = int(self.source.chunk_rows[chunk]), int(np.count_nonzero(mask))
        if count in (0, num_rows):
            return count, None
        return count, pack(mask if rows is None else _spread(mask, rows, num_rows))

    def _mask(self, view: ChunkView) -> NDArray[np.bool_]:
        step = self.block_rows or view.num_rows
        if step >= view.num_rows:
            return mask_of(self.predicate, view, batched=self.batched)
        blocks = (np.arange(a, min(a + step, view.num_rows)) for a in range(0, view.num_rows, step))
        return np.concatenate([mask_of(self.predicate, view.narrowed(b), batched=self.batched) for b in blocks])


def _spread(mask: NDArray[np.bool_], rows: NDArray[np.int64], num_rows: int) -> NDArray[np.bool_]:
    whole = np.zeros(num_rows, np.bool_)
    whole[rows[mask]] = True
    return whole
