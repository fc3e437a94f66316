"""Read Parquet footers, keep a few of them, and explain what is wrong with a file that has none.

`parquet` asks here for the footer of a file, at opening for all of them and later again for reading; a footer costs
about 1 KB of memory for each column of each row group, so only the last ones used are kept. Reads no data pages.
"""

from __future__ import annotations

import hashlib
import inspect
import threading
import zlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.dataset.catalog import MAGIC
from penstock.dataset.column_chunks import ColumnChunks
from penstock.dataset.thrift import ThriftError
from penstock.errors import BadFile, FileChanged, StoreError
from penstock.storage.filesystem import is_utf8
from penstock.storage.store import has_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock.dataset.catalog import DataFile

CACHE_BYTES = 64 << 20
_LEAST_BYTES = 12
"""Magic, length of the footer, magic: a shorter file is no Parquet."""
_TAIL_BYTES = 64 << 10
"""Read at once from the end of a file: most footers are shorter, and a second read is a second round trip."""
_END_BYTES = 8
"""Length of the footer and magic, behind it."""
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
"""Options of every `ParquetFile` that reads pages with a footer at hand."""
if "arrow_extensions_enabled" in inspect.signature(pq.ParquetFile.__init__).parameters:
    # Columns of Parquet's JSON and UUID types that Arrow did not write would come as extension types, while the
    # footer's schema says that they are text and binary.
    READ_OPTIONS["arrow_extensions_enabled"] = False


@dataclass(slots=True)
class Seen:
    """What a file was when its footer was read, to notice when it is written again. Never stored."""

    identity: str
    """`Stat.version` of its store."""
    footer: int
    """Checksum of the footer's bytes."""
    times: int = 1
    """How many times its identity was another one, the first included."""

    def renew(self, identity: str) -> None:
        """Take a file with another identity and the same footer for the same file."""
        self.identity = identity
        self.times += 1


class Footer:
    """The footer of one file: as pyarrow parses it, for schema and reading, and its column chunks as we read them."""

    __slots__ = ("_chunks", "arrow", "path", "seen", "tail")

    def __init__(self, tail: bytes, path: str, identity: str) -> None:
        """Parse a footer; `tail` ends with its bytes, their length and the magic. `identity`: see `Seen`.

        Raises:
            READ_ERRORS: the bytes are not a footer.
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
        self._chunks: ColumnChunks | None = None

    @property
    def raw(self) -> bytes:
        """The bytes of the footer, copied: they may be megabytes."""
        return self.tail[:-_END_BYTES]

    @property
    def chunks(self) -> ColumnChunks:
        """What the footer says about its column chunks. Read on first use, which takes a while for large footers.

        Raises:
            BadFile: the footer is damaged there.
        """
        if self._chunks is None:
            try:
                self._chunks = ColumnChunks(self.raw)
            except ThriftError as exc:
                raise self.damaged(exc) from exc
        return self._chunks

    def summary(self) -> FooterSummary:
        """Return what is kept for every file; reads the column chunks, or takes them where they have been read."""
        try:
            return FooterSummary.of(self.chunks)
        except BadFile:
            return FooterSummary.of_bytes(self.raw)

    def damaged(self, wrong: object) -> BadFile:
        """Return the error for a footer that can be parsed and contradicts itself."""
        return BadFile(
            f"{self.path} cannot be read as Parquet: its footer is damaged ({wrong}); write it again or delete it, or "
            "open with on_error='skip' to leave it out",
            path=self.path,
        )


class FooterSummary(NamedTuple):
    """What all footers are looked at for: small enough to be kept for every file."""

    content: bytes
    """Digest of offsets, sizes and statistics of all column chunks. Changing how breaks resumed runs."""
    paths: list[str]
    """Of the leaves; none where the footer is damaged."""
    nulls: NDArray[np.int64]
    """Nulls and null elements of each row group and leaf: an array of shape (2, row groups, leaves)."""

    @classmethod
    def of(cls, chunks: ColumnChunks, groups: Sequence[int] | slice = slice(None)) -> FooterSummary:
        """Return the summary of row groups: all of a footer, or those of one file in `_metadata`."""
        digests = chunks.digests[groups] if isinstance(groups, slice) else [chunks.digests[group] for group in groups]
        content = hashlib.blake2b(b"".join(digests), digest_size=16).digest()
        nulls = np.stack([chunks.null_count[groups], chunks.null_elements()[groups]])
        return cls(content, [leaf.path for leaf in chunks.leaves], nulls)

    @classmethod
    def of_bytes(cls, raw: bytes) -> FooterSummary:
        """Return the summary of a footer; of a damaged one, whose error is raised by reading, a digest of its bytes."""
        try:
            return cls.of(ColumnChunks(raw))
        except ThriftError:
            return cls(hashlib.blake2b(raw, digest_size=16).digest(), [], np.empty((2, 0, 0), np.int64))


class FooterCache:
    """The footers used last, up to a number of bytes; safe for threads."""

    def __init__(self, limit_bytes: int = CACHE_BYTES) -> None:
        self.summaries: dict[int, FooterSummary] = {}
        """Of files whose footers were not read because `_metadata` has them."""
        self.packed: dict[int, bytes] = {}
        """The bytes of footers that were dropped, compressed: a fortieth of what they took, so that they need not be
        fetched again for their summaries."""
        self._limit = limit_bytes
        self._used = 0
        self._kept: OrderedDict[int, Footer] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, file: int) -> Footer | None:
        """Return the footer of that file if it is kept, and mark it as used."""
        with self._lock:
            footer = self._kept.get(file)
            if footer is not None:
                self._kept.move_to_end(file)
            return footer

    def put(self, file: int, footer: Footer) -> None:
        """Keep a footer; of the ones unused longest only their bytes stay."""
        dropped: list[tuple[int, Footer]] = []
        with self._lock:
            if file in self._kept:
                return
            self._kept[file] = footer
            self._used += footer_bytes(footer)
            while self._used > self._limit and len(self._kept) > 1:
                dropped.append(self._kept.popitem(last=False))
                self._used -= footer_bytes(dropped[-1][1])
        for old, gone in dropped:
            if old not in self.summaries and old not in self.packed:
                self.packed[old] = zlib.compress(gone.raw, 1)

    def summary(self, file: int) -> FooterSummary | None:
        """Return the summary of a footer; None if it was never read. Costs 3 to 15 microseconds a column chunk."""
        if file in self.summaries:
            return self.summaries[file]
        footer = self.get(file)
        if footer is None and file not in self.packed:
            return None
        return FooterSummary.of_bytes(zlib.decompress(self.packed[file])) if footer is None else footer.summary()


def footer_bytes(footer: Footer) -> int:
    """Estimate the memory that a parsed footer takes."""
    return 1024 * (1 + int(footer.arrow.num_columns) * max(1, int(footer.arrow.num_row_groups))) + len(footer.tail)


def read_footer(file: DataFile) -> tuple[Footer, int]:
    """Return the footer of a file and the file's size.

    Raises:
        BadFile: it cannot be read; names the file, what was found and the cure.
        StoreUnavailable, StoreRefused: its store does not answer, or denies access.
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
        return Footer(data, file.path, tail.version), tail.size
    except (FileChanged, StoreError):
        raise
    except READ_ERRORS as exc:
        raise bad_file(file, exc) from exc


def _length(tail: bytes) -> int:
    """Return the bytes of the footer in front of length and magic."""
    return int.from_bytes(tail[-_END_BYTES:-4], "little")


def bad_file(file: DataFile, cause: Exception | None) -> BadFile:
    """Return the error for a file without a usable footer; reads its first and last bytes again."""
    wrong, cure = _diagnose(file, cause)
    return BadFile(f"{file.path} cannot be read as Parquet: {wrong}; {cure}", path=file.path)


def _diagnose(file: DataFile, cause: Exception | None) -> tuple[str, str]:
    """Return what is wrong with a file and what to do about it."""
    cure = "write it again or delete it, or open with on_error='skip' to leave it out"
    if not is_utf8(file.path):
        return "its name is not UTF-8, which pyarrow cannot open", "rename it, or open with on_error='skip'"
    if isinstance(cause, FileNotFoundError) or (
        file.size == 0 and cause is None and not has_file(file.root.store, file.path)
    ):
        return "it is not there (deleted, or a link to nothing)", "fetch or write it again, or open the dataset again"
    if file.size == 0:
        return "it has 0 bytes", cure
    head, tail = _ends(file)
    found = f"{file.size} bytes, begins with {head!r} and ends with {tail!r}"
    if head != MAGIC and head[:3] != b"PAR":
        return f"{found}, where Parquet begins and ends with {MAGIC!r}", f"{cure}; other formats are not read"
    if tail == b"PARE":
        return f"{found}: its footer is encrypted", "decrypt it first"
    if tail != MAGIC:
        return f"{found}, where Parquet ends with {MAGIC!r}: it is truncated", cure
    return f"{found}, and its footer is damaged ({cause or 'too short'})", cure


def _ends(file: DataFile) -> tuple[bytes, bytes]:
    """Return the first and last four bytes, empty where they cannot be read."""
    store = file.root.store
    try:
        end = store.read_tail(file.path, 4)
        [begin] = store.read_ranges(file.path, [(0, min(4, end.size))])
        return bytes(begin), end.data
    except StoreError:
        raise
    except OSError:
        return b"", b""
