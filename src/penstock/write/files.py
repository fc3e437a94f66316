"""Arrow batches to Parquet files: cuts row groups by encoded bytes and files by rows, one folder a partition.

Takes batches in storage form from `writer` and writes below a folder that `staging` chose. Buffers at most one row
group for each open partition, and `BUFFERED_GROUPS` row groups in all. Reports checkpoints: moments at which the rows
in finished files are exactly the first ones that came. Folders of partitions (`country=NZ/year=2024`) are %-encoded
like Hive and Spark do (Petastorm decodes none, so a space stays a space), null is `__HIVE_DEFAULT_PARTITION__`,
booleans are `true` and `false`, instants are times in UTC; a value that would not read back unchanged is refused. Makes
nothing atomic or durable itself.
"""

from __future__ import annotations

import contextlib
import datetime
import decimal
import posixpath
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.dataset.partitions import NULL, parse
from penstock.display import count_text, size_text
from penstock.errors import SchemaError, printable
from penstock.write.layout import page_options
from penstock.write.options import FILE_BYTES, WriteOptions
from penstock.write.staging import DoneFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from penstock.write.layout import StorageLayout

    Tell = Callable[[int, Sequence[DoneFile]], None]
    FileSystem = Any  # pyarrow.fs.FileSystem: pyarrow ships no types

BUFFERED_GROUPS = 4
"""Row groups of bytes that all partitions together may buffer; then the fullest is written."""
GROUP_ROWS = 1 << 20
"""Most rows of a row group: pyarrow would split it there."""
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
        # Limit buffered rows and open files for any number of partitions.
        while sum(folder.waiting_bytes for folder in self._folders.values()) > (
            BUFFERED_GROUPS * self._options.row_group_bytes
        ):
            self._flush(max(self._folders.values(), key=lambda folder: folder.waiting_bytes))
        is_open = [folder for folder in self._folders.values() if folder.writer is not None]
        for folder in is_open[: max(len(is_open) - OPEN_FILES, 0)]:
            self._close(folder)
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
        table = pa.Table.from_batches(folder.waiting, folder.waiting[0].schema).select(self._schema.names)
        # pyarrow ends a page where a chunk of the table ends: all pages but the last are to have equally many rows.
        table = table.replace_schema_metadata(self._schema.metadata).combine_chunks()
        if folder.writer is None:
            self._open(folder, page_options(table))
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

    def _open(self, folder: _Partition, pages: dict[str, int]) -> None:
        if self.check is not None:
            self.check()
        path = posixpath.join(self._root, folder.path)
        self._fs.create_dir(path, recursive=True)
        folder.file = posixpath.join(folder.path, f"{self._options.prefix}{folder.num_files:06d}.parquet")
        folder.sink = self._fs.open_output_stream(posixpath.join(self._root, folder.file))
        folder.writer = pq.ParquetWriter(folder.sink, self._schema, **self._keywords, **pages)
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


_ESCAPED = re.compile(r"""[\x00-\x1f\x7f"#%'*/:=?\\{\[\]^]""")
"""Hive's list."""
_MOST_BYTES = 255
"""Longest name of a folder on nearly all file systems."""


def split(batch: pa.RecordBatch, names: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield each folder and its rows, folders by first appearance, rows in order; without names the batch itself."""
    if not names:
        yield "", batch
        return
    folders, inverse = _folders(batch, names)
    if len(folders) == 1:
        yield folders[0], batch
        return
    order = np.argsort(inverse, kind="stable")
    counts = np.bincount(inverse, minlength=len(folders))
    first = np.cumsum(counts) - counts
    indices = np.ascontiguousarray(order, np.int64)
    rows = batch.take(pa.Array.from_buffers(pa.int64(), len(indices), [None, pa.py_buffer(indices)]))
    for i in np.argsort(order[first], kind="stable").tolist():
        yield folders[i], rows.slice(int(first[i]), int(counts[i]))


def _folders(batch: pa.RecordBatch, names: Sequence[str]) -> tuple[list[str], NDArray[np.intp]]:
    """Return the distinct folders and, for each row, the index of its folder."""
    codes = np.zeros(batch.num_rows, np.int64)
    texts: list[list[str]] = []
    for name in names:
        words, numbers = _segments(name, batch.column(batch.schema.get_field_index(name)))
        codes = codes * len(words) + numbers
        texts.append(words)
    distinct, inverse = np.unique(codes, return_inverse=True)
    levels = zip(texts, np.unravel_index(distinct, [len(words) for words in texts]), strict=True)
    folders = zip(*([words[digit] for digit in digits.tolist()] for words, digits in levels), strict=True)
    return list(map("/".join, folders)), inverse.reshape(-1)


def _segments(name: str, column: pa.Array) -> tuple[list[str], NDArray[np.int64]]:
    """Return the distinct `name=value` texts of a column and, for each row, the index of its text."""
    values, codes = _distinct(column)
    used, rows = np.unique(codes, return_inverse=True)
    numbers: dict[str, int] = {}  # by text: 0.0 equals -0.0 and nan does not equal nan
    texts = [NULL if code < 0 else segment(name, values[code], column.type) for code in used.tolist()]
    found = np.array([numbers.setdefault(text, len(numbers)) for text in texts], np.int64)
    return [f"{_escaped(name)}={text}" for text in numbers], found[rows.reshape(-1)]


def _distinct(column: pa.Array) -> tuple[pa.Array, NDArray[np.int64]]:
    """Return the values of a column, most of them once, and for each row the index of its value, -1 for null."""
    if pa.types.is_dictionary(column.type):
        values, indices = column.dictionary, column.indices
    elif pa.types.is_floating(column.type):  # by their bits: 0.0 equals -0.0
        encoded = column.view(f"uint{column.type.bit_width}").dictionary_encode()
        values, indices = encoded.dictionary.view(column.type), encoded.indices
    else:
        encoded = column.dictionary_encode()
        values, indices = encoded.dictionary, encoded.indices
    codes = indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    if values.null_count:
        nulls = values.is_null().to_numpy(zero_copy_only=False)
        codes = np.where((codes >= 0) & nulls[codes], -1, codes)
    return values, codes


def segment(name: str, value: pa.Scalar, kind: pa.DataType) -> str:
    """Return the text of a partition value in a folder name; raises SchemaError if it would not read back the same."""
    text = _text(name, value)
    escaped = _escaped(text)
    if text in ("", NULL):
        raise SchemaError(
            f"partition_by: column {name!r} has the value {text!r}, which reads back as null; use another value or None"
        )
    if len(f"{_escaped(name)}={escaped}".encode()) > _MOST_BYTES:
        raise SchemaError(
            f"partition_by: column {name!r} has the value {text[:40]!r}..., whose folder name would be longer than "
            f"{_MOST_BYTES} bytes, the limit of most file systems; use a shorter value"
        )
    try:
        same = parse(text, kind).equals(value) or text == "nan"
    except (ValueError, NotImplementedError):  # pyarrow's are both
        same = False
    if not same:
        raise SchemaError(f"partition_by: column {name!r} has the value {text}, which a folder name cannot represent")
    return escaped


def _text(name: str, value: pa.Scalar) -> str:
    kind = value.type
    try:
        if pa.types.is_timestamp(kind) and kind.unit == "ns":
            value = value.cast(pa.timestamp("us", kind.tz))
        found = value.as_py()
    except pa.ArrowInvalid as error:
        raise SchemaError(
            f"partition_by: column {name!r} has nanoseconds, which folder names cannot represent ({error}); round it "
            "to microseconds"
        ) from error
    except (OverflowError, ValueError) as error:
        raise SchemaError(f"partition_by: column {name!r} has a date outside the years 1 to 9999 ({error})") from error
    if isinstance(found, bool):
        return "true" if found else "false"
    if isinstance(found, decimal.Decimal):
        return format(found, "f")  # as digits: not every reader takes 1E-7
    if isinstance(found, datetime.datetime):
        if found.tzinfo is not None:
            found = found.astimezone(datetime.UTC).replace(tzinfo=None)
        return str(found)[:23] if kind.unit == "ms" else str(found)
    return str(found)


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)
