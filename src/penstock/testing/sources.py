"""Sources for tests: rows in memory in parts of any size, and faults at any read of any source.

`MemorySource` is the shortest complete implementation of `penstock.source.Source`, and an example for your own:
`penstock.open(MemorySource(rows, part_rows=[4, 2, 5]))` is a dataset. `source_suite.SourceTests` checks a source.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock import Unischema
from penstock.errors import BudgetError, ColumnNotFound, close_names
from penstock.source import Buffers, ByteRange, ChunkData, Location, Source, SourceFacts, Statistics

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray


class MemorySource:
    """The rows of an Arrow table, or of a dict of columns, cut into parts. Pickles with its rows."""

    def __init__(
        self, rows: pa.Table | Mapping[str, Any], part_rows: Sequence[int], *, schema: Unischema | None = None
    ) -> None:
        table = rows if isinstance(rows, pa.Table) else pa.table(dict(rows))
        ends = np.cumsum(np.array(part_rows, np.int64))
        if sum(part_rows) != table.num_rows or min(part_rows, default=1) < 1:
            raise ValueError(f"the parts {list(part_rows)} must have 1 row or more each, {table.num_rows} together")
        self.parts = [table.take(np.arange(end - num, end)) for end, num in zip(ends.tolist(), part_rows, strict=True)]
        # Kept, because the bytes of Arrow buffers change when they are pickled.
        names = table.schema.names
        self._bytes = {name: np.array([part[name].nbytes for part in self.parts], np.float64) for name in names}
        self.facts = SourceFacts(
            files=("rows",),
            file_bytes=np.array([table.nbytes], np.int64),
            chunk_file=np.zeros(len(part_rows), np.int32),
            chunk_part=np.arange(len(part_rows), dtype=np.int32),
            chunk_rows=np.array(part_rows, np.int64),
            arrow_schema=table.schema,
            unischema=schema or Unischema.from_arrow_schema(table.schema),
            fingerprint=hashlib.blake2b(repr(list(part_rows)).encode(), digest_size=16).hexdigest(),
            part_noun="part",
        )

    def ranges(self, chunk: int, columns: Sequence[str]) -> Sequence[ByteRange]:  # noqa: ARG002 - the port
        """Return nothing: the rows are here."""
        return ()

    def read(
        self,
        chunk: int,
        columns: Sequence[str],
        buffers: Buffers | None = None,  # noqa: ARG002 - `ranges` requests none
        *,
        limit_bytes: int | None = None,
    ) -> pa.Table:
        """Return columns of a part."""
        names = self.facts.arrow_schema.names
        for name in columns:
            if name not in names:
                raise ColumnNotFound(f"no column {name!r}; {close_names(name, names)}")
        found = self.parts[chunk].select(list(columns))
        if limit_bytes is not None and found.nbytes > limit_bytes:
            raise BudgetError(f"{self.locate(chunk)} takes {found.nbytes} bytes of {limit_bytes}", least=found.nbytes)
        return found

    def statistics(
        self, column: str, *, bounds: bool = True, chunks: NDArray[np.int64] | None = None
    ) -> Statistics | None:
        """Return None: nothing is stored about the rows."""

    def row_bytes(self, columns: Sequence[str] | None = None) -> float:
        """Return the mean over all rows."""
        sizes = self.chunk_bytes(self.facts.arrow_schema.names if columns is None else columns)
        return float(sizes.sum() / max(1, self.facts.chunk_rows.sum()))

    def chunk_bytes(self, columns: Sequence[str]) -> NDArray[np.float64]:
        """Return the exact bytes of each part."""
        return sum((self._bytes[name] for name in columns), np.zeros(len(self.parts)))

    def content(self) -> str:
        """Return a digest of all values."""
        return hashlib.blake2b(repr([part.to_pylist() for part in self.parts]).encode(), digest_size=16).hexdigest()

    def locate(self, chunk: int, row: int | None = None) -> Location:
        """Return "rows, part 3, row 1"."""
        return Location("rows", chunk, f"part {chunk}", row)


class FaultySource:
    """Another source whose chunks fail when they are read: `faults` has the error of each such chunk.

    An error is raised at every read of its chunk, or at the first `times` of them. `reads` counts the reads of each
    chunk, failed ones included.
    """

    def __init__(self, source: Source, faults: Mapping[int, Exception], *, times: int | None = None) -> None:
        self.facts, self.reads = source.facts, Counter[int]()
        self._faults, self._times = dict(faults), times
        self.ranges, self.statistics, self.locate = source.ranges, source.statistics, source.locate
        self.row_bytes, self.chunk_bytes, self.content = source.row_bytes, source.chunk_bytes, source.content
        self._read = source.read

    def read(
        self, chunk: int, columns: Sequence[str], buffers: Buffers | None = None, *, limit_bytes: int | None = None
    ) -> ChunkData:
        """Raise the fault of the chunk, or read it."""
        self.reads[chunk] += 1
        if chunk in self._faults and (self._times is None or self.reads[chunk] <= self._times):
            raise self._faults[chunk]
        return self._read(chunk, columns, buffers, limit_bytes=limit_bytes)
