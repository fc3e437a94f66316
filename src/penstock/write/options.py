"""What `penstock.write` accepts, checked once into a frozen value.

The public function takes flat keywords and builds a `WriteOptions`; everything below takes that value. The defaults of
writing live here; nothing here looks at rows, files or a schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.errors import PlanError

ROW_GROUP_BYTES = 16 << 20
"""Encoded bytes of a row group: large enough to read at full speed, small enough that 24 of them fit a shuffle window
of 1 GiB with room to spare."""
FILE_BYTES = 512 << 20
"""A file is closed once it holds this many encoded bytes, where `rows_per_file` does not say otherwise."""
AUTO = "auto"

Compression = str | Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How to write a dataset: what the keywords of `penstock.write` say, checked."""

    row_group_bytes: int
    """Most encoded bytes of a row group; a single larger row still gets one."""
    rows_per_file: int | None
    """Rows of every file but the last of its folder; None: files of about `FILE_BYTES`."""
    partition_by: tuple[str, ...]
    """Columns whose values become folders, outermost first."""
    overwrite: bool
    """Replace a dataset that is there."""
    compression: Compression
    """A Parquet codec, or one for each column; None: none; "auto": snappy, and none for cells compressed already."""

    def __post_init__(self) -> None:
        if self.row_group_bytes < 1:
            raise PlanError(f"row_group_bytes must be at least 1; got {self.row_group_bytes}")
        if self.rows_per_file is not None and self.rows_per_file < 1:
            raise PlanError(f"rows_per_file must be at least 1, or None; got {self.rows_per_file}")
        if len(set(self.partition_by)) < len(self.partition_by):
            raise PlanError(f"partition_by names a column twice: {list(self.partition_by)}")
