"""What `penstock.write` and `penstock.Writer` accept, checked once into a frozen value; the sizes of batches.

The public functions take flat keywords and build a `WriteOptions`; everything below takes that value. The defaults of
writing are here. `tasks` cuts the input into `EncodeTask`s, which `Pipeline` runs. Nothing here looks at rows, files or
a schema.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.engine.host import cores
from penstock.errors import PlanError

if TYPE_CHECKING:
    import pyarrow as pa

ROW_GROUP_BYTES = 16 << 20
"""Encoded bytes of a row group: large enough to read at full speed, small enough that 24 of them fit a shuffle window
of 1 GiB with room to spare."""
FILE_BYTES = 512 << 20
"""A file is closed at this many encoded bytes, unless `rows_per_file` is given."""
MOST_PARTS = 1_000_000
"""Six digits keep a million files, and as many parts, sorted by name."""
AUTO = "auto"
CODECS = ("snappy", "zstd", "gzip", "brotli", "lz4", "none", "uncompressed")
"""Names of compression codecs; the last two mean the same."""

Compression = str | Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How to write a dataset: the checked keywords of `penstock.write`."""

    row_group_bytes: int
    """Most encoded bytes of a row group; a single larger row is still one."""
    rows_per_file: int | None
    """Rows of every file except the last of its folder; None: files of about `FILE_BYTES`."""
    partition_by: tuple[str, ...]
    """Columns whose values become folders, outermost first."""
    overwrite: bool
    """Replace an existing dataset."""
    compression: Compression
    """A Parquet codec, or one for each column; None: none; "auto": snappy, and none for cells that are compressed
    already."""
    resume: bool = False
    """Continue where an earlier writer stopped, and keep finished files if this one stops."""
    part: int | None = None
    """Which of several writers this is; None: the only one."""
    workers: int | None = None
    """Threads that encode; None: one for each core."""

    def __post_init__(self) -> None:
        for name, none in (
            ("row_group_bytes", ""),
            ("rows_per_file", ", or None"),
            ("workers", ", or None for one a core"),
        ):
            value = getattr(self, name)
            if (value is not None or not none) and not (_is_whole(value) and value >= 1):
                raise PlanError(f"{name} must be a whole number of at least 1{none}; got {value!r}")
        given = self.compression
        for codec in given.values() if isinstance(given, Mapping) else [given]:
            if codec not in (None, AUTO) and str(codec).lower() not in CODECS:
                raise PlanError(
                    f"compression must be one of {', '.join(map(repr, CODECS))}, None, 'auto', or a dict of column to "
                    f"one of them; got {codec!r}"
                )
        if len(set(self.partition_by)) < len(self.partition_by):
            raise PlanError(f"partition_by names a column twice: {list(self.partition_by)}")
        if self.part is not None and not (_is_whole(self.part) and 0 <= self.part < MOST_PARTS):
            raise PlanError(f"part must be a whole number from 0 to {MOST_PARTS - 1}, or None; got {self.part!r}")

    @property
    def threads(self) -> int:
        """Threads that encode."""
        return self.workers or cores()

    @property
    def batch(self) -> tuple[int, int]:
        """Rows and bytes that are encoded at once: at most a file's rows, and about a row group's bytes."""
        rows = min(BATCH_ROWS, self.rows_per_file or BATCH_ROWS)
        return rows, min(BATCH_BYTES, max(self.row_group_bytes, LEAST_BATCH_BYTES))

    @property
    def prefix(self) -> str:
        """Prefix of this writer's file names; sorted by name, the parts are in order."""
        return "part-" if self.part is None else f"part-{self.part:06d}-"


def _is_whole(value: object) -> bool:
    """Tell whether a value is an integer, of Python or NumPy; booleans are not."""
    return hasattr(value, "__index__") and not isinstance(value, bool)


BATCH_ROWS = 4096
"""Most rows that are encoded at once."""
BATCH_BYTES = 8 << 20
"""A batch is closed at this many bytes of values: forty colour images of 256x256; ten take a tenth more time."""
LEAST_BATCH_BYTES = 2 << 20
"""A batch may have at least this many bytes, however small the row groups are."""
TABLE_ROWS = 1 << 16
"""Most rows of an Arrow batch that is stored without encoding."""


@dataclass(frozen=True, slots=True)
class EncodeTask:
    """Rows that become one batch in storage form."""

    first: int
    """Index of the first row, counted over everything written."""
    num_rows: int
    num_bytes: int
    """Approximate memory of the rows until they are encoded."""
    make: Callable[[], pa.RecordBatch]
    """Encodes them; may be called in any thread, once."""
