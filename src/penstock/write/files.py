"""Arrow batches to Parquet files: cuts row groups by encoded bytes and files by rows, one folder a partition.

Takes batches in storage form from `pipeline` and writes below a folder that `staging` chose. Buffers at most one row
group for each open partition, and `BUFFERED_GROUPS` row groups in all. Reports checkpoints: moments at which the rows
in finished files are exactly the first ones that came. Makes nothing atomic or durable itself.
"""

from __future__ import annotations

import contextlib
import posixpath
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.display import count_text, size_text
from penstock.errors import printable
from penstock.write.journal import DoneFile
from penstock.write.options import FILE_BYTES, WriteOptions
from penstock.write.partitions import split

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from penstock.write.layout import StorageLayout

    Tell = Callable[[int, Sequence[DoneFile]], None]

    FileSystem = Any  # pyarrow.fs.FileSystem: pyarrow ships no types

BUFFERED_GROUPS = 4
"""Row groups of bytes that all partitions together may buffer; then the fullest is written."""
GROUP_ROWS = 1 << 20
"""Most rows of a row group: pyarrow would cut it there by itself."""
OPEN_FILES = 64
"""Most open files; a partition that comes back later gets a new file."""


@dataclass(frozen=True, slots=True)
class Written:
    """What `penstock.write` wrote."""

    path: str
    """The dataset, as given."""
    rows: int
    files: int
    row_groups: int
    bytes: int
    """Total size of the files."""

    def __str__(self) -> str:
        return printable(
            f"{self.path}: {count_text(self.rows, 'row')} in {count_text(self.row_groups, 'row group')}, "
            f"{count_text(self.files, 'file')}, {size_text(self.bytes)}"
        )


def row_bytes(batch: pa.RecordBatch) -> NDArray[np.int64]:
    """Return the encoded bytes of each row, before compression.

    Exact for fixed-width, binary and string columns; nested ones count their average. Never 0.
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
class _Partition:
    """One folder: rows that wait for their row group, and the open file."""

    path: str
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    waiting_bytes: int = 0
    waiting_rows: int = 0
    writer: Any = None
    sink: Any = None
    file: str = ""
    file_rows: int = 0
    file_bytes: int = 0
    file_groups: int = 0
    num_files: int = 0


class FileWriter:
    """Writes batches below one folder. Call `checkpoint` at the end, or `abandon`."""

    sync_soon: Callable[[str], None] | None = None
    """Called with the path of an open file that has grown by a row group."""
    check: Callable[[], None] | None = None
    """Called before each new file; raises if no more files are wanted."""

    def __init__(
        self, place: tuple[FileSystem, str], layout: StorageLayout, options: WriteOptions, checkpoint: Tell
    ) -> None:
        self._fs, self._root = place
        self._layout, self._options, self._tell = layout, options, checkpoint
        self._schema = layout.in_files
        self._keywords = layout.parquet_options(options.compression)
        self._folders: dict[str, _Partition] = {}  # least recently used first
        self._fresh: list[DoneFile] = []
        self._fresh_bytes = 0
        self._safe_rows = 0

    def go_on(self, files: Sequence[DoneFile]) -> None:
        """Continue after these files of an earlier writer."""
        for file in files:
            folder = self._folder(posixpath.dirname(file.path))
            folder.num_files = max(folder.num_files, int(file.path[-len("000000.parquet") : -len(".parquet")]) + 1)
            self._safe_rows += file.rows

    def add(self, batch: pa.RecordBatch) -> None:
        """Take the next rows, in order; writes the row groups that they complete."""
        for path, part in split(batch, self._layout.partition_by):
            self._append(self._folder(path), part)
        self._relieve()
        if self._layout.partition_by and self._options.rows_per_file is None:
            # With partitions, all files are closed together, once the open ones are full on average.
            num_open = sum(folder.writer is not None for folder in self._folders.values())
            if self._fresh_bytes >= FILE_BYTES * max(num_open, 1):
                self.checkpoint()

    def checkpoint(self) -> None:
        """Close all open files, so that every row that came is in a finished one."""
        for folder in self._folders.values():
            self._flush(folder)
            self._close(folder)
        self._mark()

    def abandon(self) -> None:
        """Close what is open, whatever it contains."""
        for folder in self._folders.values():
            for opened in (folder.writer, folder.sink):
                with contextlib.suppress(OSError, ValueError, pa.ArrowException):
                    if opened is not None:
                        opened.close()
            folder.writer = folder.sink = None

    def _mark(self) -> None:
        if self._fresh:
            self._tell(self._safe_rows, self._fresh)
            self._fresh, self._fresh_bytes = [], 0

    def _folder(self, path: str) -> _Partition:
        folder = self._folders.pop(path, None) or _Partition(path)
        self._folders[path] = folder
        return folder

    def _append(self, folder: _Partition, batch: pa.RecordBatch) -> None:
        ends = np.cumsum(row_bytes(batch))
        start = 0
        while start < batch.num_rows:
            before = int(ends[start - 1]) if start else 0
            stop = self._cut(folder, ends, start, before)
            if stop > start:
                folder.waiting.append(batch.slice(start, stop - start))
                folder.waiting_rows += stop - start
                folder.waiting_bytes += int(ends[stop - 1]) - before
            if stop < batch.num_rows or folder.file_rows + folder.waiting_rows == self._options.rows_per_file:
                self._flush(folder)
            start = stop

    def _cut(self, folder: _Partition, ends: NDArray[np.int64], start: int, before: int) -> int:
        """Return where the buffered row group ends within the batch: by bytes, and by the rows left in the file."""
        room = self._options.row_group_bytes - folder.waiting_bytes + before
        stop = min(int(np.searchsorted(ends, room, side="right")), start + GROUP_ROWS - folder.waiting_rows)
        if self._options.rows_per_file is not None:
            stop = min(stop, start + self._options.rows_per_file - folder.file_rows - folder.waiting_rows)
        return max(stop, start if folder.waiting_rows else start + 1)

    def _flush(self, folder: _Partition) -> None:
        """Write the buffered rows as one row group; close the file if it is full."""
        if not folder.waiting_rows:
            return
        if folder.writer is None:
            self._open(folder, self._schema)
        table = pa.Table.from_batches(folder.waiting, folder.waiting[0].schema).select(self._schema.names)
        table = table.replace_schema_metadata(self._schema.metadata)
        folder.writer.write_table(table, row_group_size=folder.waiting_rows)
        folder.file_groups += 1
        self._fresh_bytes += folder.waiting_bytes
        folder.file_rows += folder.waiting_rows
        folder.file_bytes += folder.waiting_bytes
        folder.waiting, folder.waiting_rows, folder.waiting_bytes = [], 0, 0
        most = self._options.rows_per_file
        if folder.file_bytes >= FILE_BYTES if most is None else folder.file_rows >= most:
            self._close(folder)
        elif self.sync_soon is not None:
            self.sync_soon(posixpath.join(self._root, folder.file))

    def _open(self, folder: _Partition, schema: pa.Schema) -> None:
        if self.check is not None:
            self.check()
        path = posixpath.join(self._root, folder.path)
        self._fs.create_dir(path, recursive=True)
        folder.file = posixpath.join(folder.path, f"{self._options.prefix}{folder.num_files:06d}.parquet")
        folder.sink = self._fs.open_output_stream(posixpath.join(self._root, folder.file))
        folder.writer = pq.ParquetWriter(folder.sink, schema, **self._keywords)
        folder.file_rows = folder.file_bytes = folder.file_groups = 0
        folder.num_files += 1

    def _close(self, folder: _Partition) -> None:
        writer, sink = folder.writer, folder.sink
        if writer is None:
            return
        folder.writer = folder.sink = None
        try:
            writer.close()
            size = sink.tell()
        finally:
            sink.close()
        self._fresh.append(DoneFile(folder.file, folder.file_rows, folder.file_groups, size))
        self._safe_rows += folder.file_rows
        folder.file_rows = folder.file_bytes = 0
        if not self._layout.partition_by:
            self._mark()

    def _relieve(self) -> None:
        """Limit buffered rows and open files, whatever the number of partitions."""
        while sum(folder.waiting_bytes for folder in self._folders.values()) > (
            BUFFERED_GROUPS * self._options.row_group_bytes
        ):
            self._flush(max(self._folders.values(), key=lambda folder: folder.waiting_bytes))
        is_open = [folder for folder in self._folders.values() if folder.writer is not None]
        for folder in is_open[: max(len(is_open) - OPEN_FILES, 0)]:
            self._close(folder)
