"""A queue that takes Arrow tables of any length and gives tables of one length, rows in order.

For programs that batch tables themselves; the readers and loaders of Penstock do not use it. Copies nothing: what comes
out refers to the memory that went in.
"""

from __future__ import annotations

from collections import deque

import pyarrow as pa

__all__ = ["BatchingTableQueue"]


class BatchingTableQueue:
    """First in, first out; tables of exactly `batch_size` rows out. For one thread."""

    def __init__(self, batch_size: int) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self._batch_size = batch_size
        self._tables: deque[pa.Table] = deque()
        self._num_rows = 0

    def put(self, table: pa.Table | pa.RecordBatch) -> None:
        """Add rows at the end; all tables with rows must have one schema. Costs nothing per row.

        Raises:
            ValueError: The schema differs from that of the waiting rows.
        """
        if isinstance(table, pa.RecordBatch):
            table = pa.Table.from_batches([table])
        if not table.num_rows:  # filters leave such tables, at times with other types: they add nothing
            return
        if self._tables and not self._tables[0].schema.equals(table.schema):
            raise ValueError(
                f"a table of schema {table.schema} does not fit the rows waiting: {self._tables[0].schema}"
            )
        self._tables.append(table)
        self._num_rows += table.num_rows

    def empty(self) -> bool:
        """Return whether fewer rows than one batch are left; those wait for more."""
        return self._num_rows < self._batch_size

    def get(self) -> pa.Table:
        """Return the next `batch_size` rows; IndexError where fewer are left."""
        if self.empty():
            raise IndexError(
                f"only {self._num_rows} rows are waiting, a batch has {self._batch_size}; check empty() first"
            )
        parts, missing = [], self._batch_size
        while missing:
            table = self._tables.popleft()
            parts.append(table.slice(0, missing))
            if table.num_rows > missing:
                self._tables.appendleft(table.slice(missing))
            missing -= parts[-1].num_rows
        self._num_rows -= self._batch_size
        return pa.concat_tables(parts)
