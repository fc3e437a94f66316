"""What is in a file: the interface of file formats, and the values that its methods exchange.

A `Catalog` says which files belong to a dataset, a `Format` what one of them holds: `index` finds its parts (the row
groups of a Parquet file, some samples of a shard), `read` returns columns of one part. `FileSource` makes a source of
a catalog's files and a format. The formats themselves are elsewhere: `parquet` has the one of Parquet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from penstock.dataset.catalog import DataFile
    from penstock.source import Buffers


REOPEN = "open the dataset again"
OTHER_INDEX = "the file has changed: it was written again since the dataset was opened"


@dataclass(slots=True)
class Seen:
    """What a file was when it was indexed, to notice that it was written again since. Never stored."""

    identity: str
    """`Stat.version` of its store."""
    checksum: int
    """Of the index as stored; differs for a file with another index."""
    times: int = 1
    """How many identities the file has had, the first included."""

    def renew(self, identity: str) -> None:
        """Accept a file with another identity and the same index as the same file."""
        self.identity = identity
        self.times += 1


class FileIndex(Protocol):
    """What a format has found in one file. It may be large: only the indexes used last stay in memory."""

    @property
    def size(self) -> int:
        """Bytes of the file."""

    @property
    def seen(self) -> Seen:
        """What the file was when it was indexed."""

    @property
    def schema(self) -> pa.Schema:
        """All columns as the file stores them, without metadata. May be computed each time."""

    @property
    def metadata(self) -> Mapping[bytes, bytes]:
        """Key-value metadata of the file, where a schema may be stored."""

    @property
    def part_rows(self) -> Sequence[int]:
        """Rows of each part; BadFile if they cannot be right. Parts without rows are never read."""

    @property
    def part_bytes(self) -> Sequence[int]:
        """Bytes of each part before compression; 0 if unknown."""

    @property
    def memory_bytes(self) -> int:
        """Memory that this object takes, approximately."""

    def same_schema(self, other: Any) -> bool:
        """Tell whether another file's index has the same schema; False where that is not found out quickly."""

    def check(self) -> None:
        """Check what is otherwise read on demand; called with on_error="skip", to find bad files at opening.

        Raises:
            BadFile: The index is damaged.
        """

    def pack(self) -> bytes:
        """Return the bytes to keep for each file whose index is dropped from memory; may be empty."""


@dataclass(frozen=True, slots=True)
class FilePart:
    """One part of a file, to be read by its format."""

    file: DataFile
    size: int
    """Bytes of the file when the dataset was opened."""
    index: Any
    """What `Format.index` returned for the file."""
    seen: Seen
    """What the file was at that time."""
    number: int
    """Number of the part within the file."""
    num_rows: int


class Format(Protocol):
    """How to read files of one kind. Stateless or safe for threads, and picklable."""

    @property
    def part_noun(self) -> str:
        """What a part is called in messages, such as "row group"."""

    def index(self, file: DataFile) -> FileIndex:
        """Find the parts of a file. Called once for each file at opening, in threads, and again if it was dropped.

        Raises:
            BadFile: The file is damaged, or of another format.
            StoreUnavailable, StoreRefused: Its store does not answer, or denies access.
        """

    def read(self, part: Any, columns: Sequence[str], buffers: Buffers | None = None) -> pa.Table:
        """Return columns of a part with the types that the file stores. `buffers`: see `Source.read`.

        Raises:
            BadFile: The part is damaged; names the file, the part and the column.
            FileChanged: The file is not the one that was indexed.
            StoreUnavailable, StoreRefused: Its store does not answer, or denies access.
        """
