"""Arrow batches to Parquet files: cuts row groups by their encoded bytes and files by rows, one folder a partition.

Takes batches in storage form from `inputs` and writes below a folder that `place` gives. Keeps at most one row group
for each open partition, and all of them together within `BUFFERED_GROUPS` row groups. Makes nothing atomic itself.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.display import count_text, size_text
from penstock.write.options import FILE_BYTES, WriteOptions
from penstock.write.partitions import split

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.write.layout import Layout

    FileSystem = Any  # pyarrow.fs.FileSystem: pyarrow ships no types

BUFFERED_GROUPS = 4
"""Row groups' worth of bytes that all partitions together may hold back; then the fullest is written."""
GROUP_ROWS = 1 << 20
"""Rows that a row group never exceeds: pyarrow would cut it there by itself."""
OPEN_FILES = 64
"""Files open at a time; a partition that comes back later gets a new file."""


@dataclass(frozen=True, slots=True)
class Written:
    """What `penstock.write` wrote."""

    path: str
    """The dataset, as given."""
    rows: int
    files: int
    row_groups: int
    bytes: int
    """Size of the files together."""

    def __str__(self) -> str:
        return (
            f"{self.path}: {count_text(self.rows, 'row')} in {count_text(self.row_groups, 'row group')}, "
            f"{count_text(self.files, 'file')}, {size_text(self.bytes)}"
        )


def row_bytes(batch: pa.RecordBatch) -> NDArray[np.int64]:
    """Return the encoded bytes of each row, before compression.

    Exact for fixed-width and for binary and string columns; nested ones count their average. Never 0.
    """
    total = np.ones(batch.num_rows, np.int64)
    for column in batch.columns:
        total += _cell_bytes(column)
    return total


def _cell_bytes(column: pa.Array) -> NDArray[np.int64] | int:
    kind = column.type
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        return _offsets(column, np.int32)
    if pa.types.is_large_binary(kind) or pa.types.is_large_string(kind):
        return _offsets(column, np.int64)
    try:
        return int((kind.bit_width + 7) // 8)
    except ValueError:  # nested and dictionary types have no width
        return int(column.nbytes // max(len(column), 1))


def _offsets(column: pa.Array, kind: type[np.signedinteger[Any]]) -> NDArray[np.int64]:
    buffer = column.buffers()[1]
    if buffer is None or not len(column):
        return np.zeros(len(column), np.int64)
    offsets = np.frombuffer(buffer, kind)[column.offset : column.offset + len(column) + 1]
    return np.diff(offsets).astype(np.int64)


@dataclass(slots=True)
class _Folder:
    """One partition: rows waiting for their row group, and the open file."""

    path: str
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    waiting_bytes: int = 0
    waiting_rows: int = 0
    writer: Any = None
    sink: Any = None
    file_rows: int = 0
    file_bytes: int = 0
    num_files: int = 0


class FileWriter:
    """Writes batches below one folder; a context manager that closes its files, on errors too."""

    def __init__(self, fs: FileSystem, root: str, layout: Layout, options: WriteOptions) -> None:
        self._fs, self._root, self._layout, self._options = fs, root, layout, options
        self._schema = layout.in_files
        self._keywords = layout.parquet_options(options.compression)
        self._folders: dict[str, _Folder] = {}  # least recently used first
        self.rows = self.files = self.row_groups = 0

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        for folder in self._folders.values():
            if kind is None:
                self._flush(folder)
            self._close(folder)
        if kind is None:
            self._finish()

    def add(self, batch: pa.RecordBatch) -> None:
        """Take the next rows, in order; writes whatever row groups they complete."""
        for path, part in split(batch, self._layout.partition_by):
            self._append(self._folder(path), part)
        self._relieve()
        self.rows += batch.num_rows

    def _folder(self, path: str) -> _Folder:
        folder = self._folders.pop(path, None) or _Folder(path)
        self._folders[path] = folder
        return folder

    def _append(self, folder: _Folder, batch: pa.RecordBatch) -> None:
        ends = np.cumsum(row_bytes(batch))
        start = 0
        while start < batch.num_rows:
            before = int(ends[start - 1]) if start else 0
            stop = self._cut(folder, ends, start, before)
            if stop > start:
                folder.waiting.append(batch.slice(start, stop - start))
                folder.waiting_rows += stop - start
                folder.waiting_bytes += int(ends[stop - 1]) - before
            if stop < batch.num_rows or self._is_full(folder):
                self._flush(folder)
            start = stop

    def _cut(self, folder: _Folder, ends: NDArray[np.int64], start: int, before: int) -> int:
        """Return where the waiting row group ends within the batch: by bytes, and by the rows left in the file."""
        room = self._options.row_group_bytes - folder.waiting_bytes + before
        stop = min(int(np.searchsorted(ends, room, side="right")), start + GROUP_ROWS - folder.waiting_rows)
        if self._options.rows_per_file is not None:
            stop = min(stop, start + self._options.rows_per_file - folder.file_rows - folder.waiting_rows)
        return max(stop, start if folder.waiting_rows else start + 1)

    def _is_full(self, folder: _Folder) -> bool:
        return folder.file_rows + folder.waiting_rows == self._options.rows_per_file

    def _flush(self, folder: _Folder) -> None:
        """Write what waits as one row group; close the file if it is full."""
        if not folder.waiting_rows:
            return
        if folder.writer is None:
            self._open(folder, self._schema)
        table = pa.Table.from_batches(folder.waiting, folder.waiting[0].schema).select(self._schema.names)
        table = table.replace_schema_metadata(self._schema.metadata)
        folder.writer.write_table(table, row_group_size=folder.waiting_rows)
        self.row_groups += 1
        folder.file_rows += folder.waiting_rows
        folder.file_bytes += folder.waiting_bytes
        folder.waiting, folder.waiting_rows, folder.waiting_bytes = [], 0, 0
        if self._is_file_full(folder):
            self._close(folder)

    def _is_file_full(self, folder: _Folder) -> bool:
        if self._options.rows_per_file is not None:
            return folder.file_rows >= self._options.rows_per_file
        return folder.file_bytes >= FILE_BYTES

    def _open(self, folder: _Folder, schema: pa.Schema) -> None:
        path = posixpath.join(self._root, folder.path)
        self._fs.create_dir(path, recursive=True)
        # Six digits keep a million files in order when sorted by name.
        folder.sink = self._fs.open_output_stream(posixpath.join(path, f"part-{folder.num_files:06d}.parquet"))
        folder.writer = pq.ParquetWriter(folder.sink, schema, **self._keywords)
        folder.file_rows = folder.file_bytes = 0
        folder.num_files += 1
        self.files += 1

    def _close(self, folder: _Folder) -> None:
        writer, sink = folder.writer, folder.sink
        folder.writer = folder.sink = None
        folder.file_rows = folder.file_bytes = 0
        try:
            if writer is not None:
                writer.close()
        finally:
            if sink is not None:
                sink.close()

    def _relieve(self) -> None:
        """Keep rows held back and files held open within bounds, whatever the number of partitions."""
        while sum(folder.waiting_bytes for folder in self._folders.values()) > (
            BUFFERED_GROUPS * self._options.row_group_bytes
        ):
            self._flush(max(self._folders.values(), key=lambda folder: folder.waiting_bytes))
        is_open = [folder for folder in self._folders.values() if folder.writer is not None]
        for folder in is_open[: max(len(is_open) - OPEN_FILES, 0)]:
            self._close(folder)

    def _finish(self) -> None:
        """Write the schema beside the files; a dataset without rows still gets one file, so that it opens."""
        if not self.files:
            empty = _Folder("")
            self._open(empty, self._layout.whole)
            self._close(empty)
        with self._fs.open_output_stream(posixpath.join(self._root, "_common_metadata")) as sink:
            pq.write_metadata(self._schema, sink)
