"""The rows of a dataset as they are stored: cells not decoded, structs whole, in natural order, in small batches.

What `rewrite` copies. Unlike `Source.read` it never holds a whole row group, since those that need rewriting may be
larger than memory. Dictionaries become plain values; partition columns become columns.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.dataset import open_parquet
from penstock.dataset.catalog import find_files
from penstock.dataset.common_metadata import read_common_metadata
from penstock.dataset.footers import READ_ERRORS, READ_OPTIONS
from penstock.dataset.partitions import other_value
from penstock.dataset.read import FileTouched, StoredRowGroup, verifying
from penstock.dataset.unify_types import cast_column, decoded, merge_schemas
from penstock.errors import BadFile, StoreError
from penstock.schema.arrow import flatten_structs
from penstock.schema.stored import PETASTORM_SCHEMA_KEY, SCHEMA_KEY
from penstock.write.sources import Tables

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.options import OnError
    from penstock.schema.unischema import Unischema

BATCH_BYTES = 8 << 20
"""Approximate bytes of a batch."""
MOST_ROWS = 1 << 16
_VERIFY = verifying(verify=True)
"""Copied data is read once and gets new checksums: damage must not be copied."""
_STREAM_BYTES = 1 << 20
"""Read-ahead of each column, so that a row group is streamed and not read whole."""


class StoredRows:
    """The rows of a dataset; may be read several times."""

    def __init__(self, url: Any, *, on_error: OnError, **options: Any) -> None:
        self.source = open_parquet(url, on_error=on_error, **options)
        skipped = {path for path, _ in self.source.facts.skipped}
        found = find_files(url, **options)
        self._files = [file for file in found if file.path not in skipped]
        self.places = [(file.root.fs, file.path) for file in found]
        """Filesystem and path of every file, including unreadable ones."""
        self.common = {} if self._files[0].root.names is None else read_common_metadata(self._files[0].root)
        self.partitions = tuple(self.source.facts.constants)
        stored = {**(self.source.footer(0).arrow.metadata or {}), **self.common}
        self.unischema: Unischema | None = None
        """The schema that is stored with the dataset, which names fields of structs by path; None for plain Parquet."""
        if stored.keys() & {SCHEMA_KEY, PETASTORM_SCHEMA_KEY}:
            self.unischema = self.source.facts.unischema
        self.schema = self._schema()

    @property
    def num_rows(self) -> int:
        """Rows of the dataset."""
        return int(self.source.facts.chunk_rows.sum())

    @property
    def num_bytes(self) -> float:
        """Approximate bytes of all rows in memory."""
        return self.num_rows * self.source.row_bytes()

    def _schema(self) -> pa.Schema:
        merged: pa.Schema | None = None
        for file in range(len(self._files)):
            found = self.source.footer(file).arrow.schema.to_arrow_schema().remove_metadata()
            if merged is None:
                merged = found
            elif not merged.equals(found):
                merged = merge_schemas(merged, found)
        fields = [field.with_type(decoded(field.type)) for field in merged or ()]
        fields += [self.source.facts.arrow_schema.field(name) for name in self.partitions]
        return pa.schema([field.with_type(decoded(field.type)) for field in fields])

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows in natural order.

        Raises:
            BadFile: a page cannot be read, or a file has changed.
            StoreUnavailable, StoreRefused: the store does not answer, or denies access.
        """
        rows = max(1, min(MOST_ROWS, int(BATCH_BYTES // max(self.source.row_bytes(), 1.0))))
        for file in range(len(self._files)):
            yield from self._of_file(file, rows)

    def tables(self, batches: Iterator[pa.RecordBatch]) -> Tables:
        """Return batches of these rows in the form that `Writer` takes: with the schema, and the number of rows."""
        empty = pa.RecordBatch.from_pylist([], schema=self.schema)  # carries the schema of a dataset without rows
        return Tables(empty, batches, self.unischema, self.num_rows)

    def _of_file(self, file: int, batch_rows: int) -> Iterator[pa.RecordBatch]:
        footer, size = self.source.footer(file), int(self.source.facts.file_bytes[file])
        group = StoredRowGroup(self._files[file], size, footer, self.source.seen[file], 0, 0)
        constants = {name: self.source.facts.constants[name][file] for name in self.partitions}
        try:
            with replace(group, watched=False).opened() as stream:
                options = {"buffer_size": _STREAM_BYTES, **READ_OPTIONS, **_VERIFY}
                reader = pq.ParquetFile(stream, metadata=footer.arrow, **options)
                first = 0
                for batch in reader.iter_batches(batch_rows):
                    self._check_folder(batch, file, first)
                    first += batch.num_rows
                    yield self._conform(batch, constants)
        except StoreError:
            raise
        except READ_ERRORS as error:
            _check(group)
            if isinstance(error, BadFile):
                raise  # has a message already
            raise group.bad(f"cannot be read ({error})", "write the file again, or leave it out") from error
        _check(group)

    def _check_folder(self, batch: pa.RecordBatch, file: int, first: int) -> None:
        if not self.source.repeated:
            return
        table = flatten_structs(pa.Table.from_batches([batch]))
        for name in self.source.repeated:
            wrong = other_value(table.column(name), name, self.source.facts.files[file], first)
            if wrong is not None:
                path = self._files[file].path
                message = f"{path}, column {name!r}: {wrong}; move the file, or write it again"
                raise BadFile(message, path=path, column=name)

    def _conform(self, batch: pa.RecordBatch, constants: dict[str, pa.Scalar]) -> pa.RecordBatch:
        """Return a batch with the columns and types of `schema`."""
        table = pa.Table.from_batches([batch])
        columns = []
        for field in self.schema:
            if field.name in constants:
                column = pa.chunked_array([pa.repeat(constants[field.name], table.num_rows)])
            else:
                column = table.column(field.name)
            column = column if column.type == field.type else cast_column(column, field.type)
            columns.append(column)
        whole = pa.Table.from_arrays(columns, schema=self.schema).combine_chunks()
        return whole.to_batches()[0] if whole.num_rows else pa.RecordBatch.from_pylist([], schema=self.schema)


def _check(group: StoredRowGroup) -> None:
    """Make sure that the file has the footer that it is read with."""
    with contextlib.suppress(FileTouched):
        group.check()
