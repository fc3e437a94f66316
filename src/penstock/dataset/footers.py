"""The footer of a Parquet file: the index of its row groups, read from the end of the file.

`ParquetFormat.index` calls `read_footer`, at opening for every file and later again for files whose footer was dropped
from memory: a footer takes about 1 KB for each column of each row group. Reads no data pages.
"""

from __future__ import annotations

import inspect
import zlib
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.dataset.bad_files import bad_file
from penstock.dataset.column_chunks import ColumnChunks
from penstock.dataset.format import Seen
from penstock.dataset.thrift import ThriftError
from penstock.errors import BadFile, FileChanged, StoreError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.dataset.catalog import DataFile

_LEAST_BYTES = 12
"""Magic, length of the footer, magic: a shorter file is no Parquet."""
_TAIL_BYTES = 64 << 10
"""Read at once from the end of a file: most footers are shorter, and a second read is a second round trip."""
_END_BYTES = 8
"""Length of the footer and magic, behind it."""
_MOST_ROWS = 1 << 40
"""Of one row group. Damaged footers claim more, and then the sum of all rows may not fit into 64 bits."""
READ_ERRORS = (
    pa.ArrowInvalid,
    pa.ArrowNotImplementedError,
    pa.ArrowTypeError,
    pa.ArrowKeyError,
    pa.ArrowIndexError,
    pa.ArrowCapacityError,
    UnicodeError,
    OSError,
    EOFError,
)
"""What a damaged file makes pyarrow raise; running out of memory or Ctrl-C is not among them."""
READ_OPTIONS: dict[str, Any] = {"pre_buffer": False}
"""Options of every `ParquetFile` that reads pages with a footer in memory."""
if "arrow_extensions_enabled" in inspect.signature(pq.ParquetFile.__init__).parameters:
    # Columns of Parquet's JSON and UUID types that Arrow did not write would come as extension types, while the
    # footer's schema says that they are text and binary.
    READ_OPTIONS["arrow_extensions_enabled"] = False


class Footer:
    """The footer of one file (a `FileIndex`): as pyarrow parses it, and its column chunks as `ColumnChunks` does."""

    __slots__ = ("_chunks", "_paths", "arrow", "path", "seen", "size", "tail")

    def __init__(self, tail: bytes, path: str, identity: str, size: int) -> None:
        """Parse a footer; `tail` ends with its bytes, their length and the magic. `identity`: see `Seen`.

        Raises:
            READ_ERRORS: The bytes are not a footer.
        """
        # Every element takes a byte or more. pyarrow allocates what a length announces before it reads the elements.
        most = max(1, len(tail))
        limits = {"thrift_string_size_limit": most, "thrift_container_size_limit": most}
        # `pq.ParquetFile`, which is made of it, would map all columns as well, which takes as long again.
        reader = pq.ParquetReader()
        reader.open(pa.BufferReader(tail), **limits)
        self.arrow: Any = reader.metadata
        """`pyarrow.parquet.FileMetaData`. Never ask it for a column chunk: a damaged one ends the process."""
        whole = _length(tail) + _END_BYTES
        self.tail = tail if len(tail) == whole else tail[-whole:]
        """The bytes of the footer, their length, and the magic."""
        self.seen = Seen(identity, zlib.crc32(self.tail))  # five times as fast as a digest: footers may be megabytes
        """What its file was when it was read."""
        self.path = path
        self.size = size
        """Bytes of the file."""
        self._chunks: ColumnChunks | None = None
        self._paths: list[str] | None = None

    @property
    def schema(self) -> pa.Schema:
        """The columns of the file, without metadata."""
        return self.arrow.schema.to_arrow_schema().remove_metadata()

    @property
    def metadata(self) -> Mapping[bytes, bytes]:
        """Key-value metadata of the file."""
        return self.arrow.metadata or {}

    @property
    def part_rows(self) -> Sequence[int]:
        """Rows of each row group; BadFile for a number that no row group can have."""
        rows = tuple([self.arrow.row_group(i).num_rows for i in range(self.arrow.num_row_groups)])
        wrong = [num_rows for num_rows in rows if not 0 <= num_rows <= _MOST_ROWS]
        if wrong:
            raise self.damaged(f"a row group of {wrong[0]} rows")
        return rows

    @property
    def part_bytes(self) -> Sequence[int]:
        """Bytes of each row group before compression, as its writer says, which may be 0."""
        return tuple([self.arrow.row_group(i).total_byte_size for i in range(self.arrow.num_row_groups)])

    @property
    def memory_bytes(self) -> int:
        """Memory that the parsed footer takes, approximately."""
        return 1024 * (1 + int(self.arrow.num_columns) * max(1, int(self.arrow.num_row_groups))) + len(self.tail)

    def same_schema(self, other: Footer) -> bool:
        """Tell whether two footers have the same columns; compares Parquet's schema, which takes microseconds.

        The Arrow schema beside it has types that Parquet lacks, such as durations and time zones. Paths are compared
        too, since `ParquetSchema.equals` takes the structs s.a and t.a for the same.
        """
        key = b"ARROW:schema"
        return bool(
            self.metadata.get(key) == other.metadata.get(key)
            and self.arrow.schema.equals(other.arrow.schema)
            and self._leaf_paths() == other._leaf_paths()
        )

    def _leaf_paths(self) -> list[str]:
        if self._paths is None:
            schema = self.arrow.schema
            self._paths = [schema.column(index).path for index in range(len(schema))]
        return self._paths

    @property
    def raw(self) -> bytes:
        """The bytes of the footer, copied: they may be megabytes."""
        return self.tail[:-_END_BYTES]

    def pack(self) -> bytes:
        """Return the bytes of the footer, compressed: about a fortieth of `memory_bytes`, enough for a summary."""
        return zlib.compress(self.raw, 1)

    @property
    def chunks(self) -> ColumnChunks:
        """What the footer says about its column chunks. Parsed on first use, which takes a while for large footers.

        Raises:
            BadFile: The footer is damaged there.
        """
        if self._chunks is None:
            try:
                self._chunks = ColumnChunks(self.raw)
            except ThriftError as exc:
                raise self.damaged(exc) from exc
        return self._chunks

    def check(self) -> None:
        """Parse the column chunks too; BadFile if the footer is damaged there."""
        _ = self.chunks

    def damaged(self, wrong: object) -> BadFile:
        """Return the error for a footer that can be parsed and contradicts itself."""
        return BadFile(
            f"{self.path} cannot be read as Parquet: its footer is damaged ({wrong}); write it again or delete it, or "
            "open with on_error='skip' to leave it out",
            path=self.path,
        )


def read_footer(file: DataFile) -> Footer:
    """Return the footer of a file.

    Raises:
        BadFile: It cannot be read; names the file, what was found and the cure.
        StoreUnavailable, StoreRefused: Its store does not answer, or denies access.
    """
    if file.size is not None and file.size < _LEAST_BYTES:
        raise bad_file(file, None)
    store = file.root.store
    try:
        tail = store.read_tail(file.path, _TAIL_BYTES)
        data, whole = tail.data, min(tail.size, _length(tail.data) + _END_BYTES)
        if whole > len(data):
            [found] = store.read_ranges(file.path, [(tail.size - whole, tail.size)], version=tail.version)
            data = found.to_pybytes()
        return Footer(data, file.path, tail.version, tail.size)
    except (FileChanged, StoreError):
        raise
    except READ_ERRORS as exc:
        raise bad_file(file, exc) from exc


def _length(tail: bytes) -> int:
    """Return the bytes of the footer in front of length and magic."""
    return int.from_bytes(tail[-_END_BYTES:-4], "little")
