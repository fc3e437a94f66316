"""The size of the rows of a dataset: in memory, which a run plans with, and for the writer, which cuts row groups by
it.

Used by `examine` before it judges. Fixed widths come from the types; if a column varies, some rows of a few row
groups are read. The size function of the writer is used, so a rewrite makes what is predicted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.dataset import as_parquet
from penstock.dataset.footers import READ_ERRORS, READ_OPTIONS
from penstock.dataset.sizes import fixed_bytes
from penstock.dataset.unify_types import decoded
from penstock.errors import StoreError
from penstock.write.files import row_bytes as written_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.source import Source

SAMPLES, SAMPLE_ROWS = 8, 256
"""Row groups to read if rows vary, and rows of each."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a dataset, as far as their layout is concerned."""

    folders: NDArray[np.int64]
    """Rows of each partition folder, in order; all rows if there are none."""
    partitions: tuple[str, ...]
    """Columns that are folders."""
    memory: float
    """Bytes of a row in memory as Arrow."""
    after: float
    """The same after a rewrite: dictionaries have become plain values."""
    written: float
    """Bytes of a row as `penstock.write` counts them when it cuts row groups."""
    vary: bool
    """Whether rows differ in size, so that both are estimates."""
    disk: int
    """Bytes of all files."""

    @property
    def total(self) -> int:
        """All rows."""
        return int(self.folders.sum())


def weigh(source: Source, disk: int) -> Rows:
    """Return the sizes of the rows of a dataset; reads some rows if columns vary in width."""
    fields = [field.with_type(decoded(field.type)) for field in source.facts.arrow_schema]
    vary = any(fixed_bytes(field) is None for field in fields)
    memory = after = source.row_bytes()
    if vary or any(pa.types.is_nested(field.type) or isinstance(field.type, pa.BaseExtensionType) for field in fields):
        words = [field.name for field in source.facts.arrow_schema if pa.types.is_dictionary(field.type)]
        written, spelt = _sampled(source, words)
        after += spelt - source.row_bytes(words)
    else:
        one = pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in fields], names=[f.name for f in fields])
        written = float(written_bytes(one)[0])
    return Rows(_folders(source), tuple(source.facts.constants), memory, after, written, vary, disk)


def _folders(source: Source) -> NDArray[np.int64]:
    facts = source.facts
    rows = np.bincount(facts.chunk_file, weights=facts.chunk_rows, minlength=len(facts.files)).astype(np.int64)
    if not facts.constants:
        return np.array([rows.sum()], np.int64)
    found: dict[tuple[Any, ...], int] = {}
    for key, count in zip(zip(*facts.constants.values(), strict=True), rows.tolist(), strict=True):
        found[key] = found.get(key, 0) + count
    return np.array([count for count in found.values() if count], np.int64)


def _sampled(source: Source, words: list[str]) -> tuple[float, float]:
    """Return the bytes of a row for the writer, and those in memory of `words`, columns that were dictionaries.

    The mean over some row groups, weighted by their rows; unreadable ones are left out.
    """
    num_chunks = len(source.facts.chunk_rows)
    total, rows = np.zeros(2), 0
    for chunk in np.unique(np.linspace(0, num_chunks - 1, min(SAMPLES, num_chunks)).astype(np.int64)).tolist():
        try:
            batch, weight = _first_rows(source, chunk), int(source.facts.chunk_rows[chunk])
        except StoreError:
            raise
        except READ_ERRORS:
            continue
        spelt = sum(batch.column(name).nbytes for name in words if name in batch.schema.names) / batch.num_rows
        total += weight * np.array([written_bytes(batch).mean(), spelt])
        rows += weight
    if not rows:
        return max(1.0, source.row_bytes()), source.row_bytes(words)
    return float(total[0] / rows), float(total[1] / rows)


def _first_rows(source: Source, chunk: int) -> pa.RecordBatch:
    group, file = as_parquet(source).row_group(chunk), int(source.facts.chunk_file[chunk])
    scalars = {name: values[file] for name, values in source.facts.constants.items()}
    # Through a buffer, so that the first rows do not read the whole row group.
    with replace(group, watched=False).opened() as stream:
        reader = pq.ParquetFile(stream, metadata=group.footer.arrow, buffer_size=1 << 20, **READ_OPTIONS)
        batch = next(reader.iter_batches(SAMPLE_ROWS, row_groups=[group.index], use_threads=False), None)
    if batch is None:
        raise group.bad("no rows came", "write the file again")
    columns = [column.cast(decoded(column.type)) for column in batch.columns]
    columns += [pa.repeat(scalar, batch.num_rows).cast(decoded(scalar.type)) for scalar in scalars.values()]
    return pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names, *scalars])
