"""Parquet files as a source: the format (`index` reads a footer, `read` a row group), and what footers add to it.

`open_parquet` joins two halves: a `FileCatalog` finds the files, `ParquetFormat` reads what is in them. Plan and engine
work with the arrays of the `ParquetSource` that it returns. Tables come as Arrow, decompressed but not decoded.

On disk: Parquet files in a folder, `key=value` folders as partition columns, and beside them `_common_metadata` or
`_metadata`, which may hold the stored schema. Numbers of row groups that other writers store there are not used: they
are not row counts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from penstock.dataset.catalog import DataFile, FileCatalog
from penstock.dataset.columns import Columns, resolve_columns
from penstock.dataset.expand import MemoryLimit
from penstock.dataset.files import FileSource, fixed_bytes, open_catalog
from penstock.dataset.footer_statistics import FooterStatistics
from penstock.dataset.footers import Footer, read_footer
from penstock.dataset.read import FileTouched, StoredRowGroup, read_columns
from penstock.dataset.sizes import add_heavy_chunks, variable_bytes
from penstock.errors import UnsupportedFormat
from penstock.source import Buffers, ByteRange, Source, Split, Statistics

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from penstock.dataset.cached import CachedFiles
    from penstock.dataset.divide import Division
    from penstock.dataset.scan import Scan
    from penstock.options import OnError, Verify
    from penstock.schema.unischema import Unischema
    from penstock.storage.cache import ChunkCache


class ParquetFormat:
    """Reads Parquet: a part is a row group.

    `cache` keeps the column chunks that were read; `verify` says when page checksums are compared (`penstock.open`).
    """

    part_noun = "row group"

    def __init__(self, cache: ChunkCache | None = None, verify: Verify = "first") -> None:
        self.cache = cache
        self.verify = verify

    def index(self, file: DataFile) -> Footer:
        """Return the footer; costs one read of 64 KiB, for longer footers two. See `Format.index`."""
        return read_footer(file)

    def read(self, part: StoredRowGroup, columns: Sequence[str], buffers: Buffers | None = None) -> pa.Table:
        """Return columns of a row group, only whose pages are read. See `Format.read`."""
        if buffers:
            held = {one.start: pa.py_buffer(data) for one, data in buffers.items() if one.path == part.file.path}
            part = replace(part, held=held)
        return read_columns(part, columns)


class ParquetSource(FileSource):
    """A dataset of Parquet files; see `FileSource`. Page checksums are verified as `verify` says."""

    format: ParquetFormat

    def __init__(
        self, scan: Scan, columns: Columns, format: ParquetFormat, *, on_error: OnError, version: str | None
    ) -> None:
        super().__init__(scan, columns, format, on_error=on_error, version=version)
        self._cached = None if format.cache is None else _cached(format.cache)
        self._verified: dict[tuple[str, ...], bytearray] = {}
        """For each list of columns that was read, a byte for each chunk: 0, or the mark of the file (see `_verify`)
        whose pages were verified."""
        self._varying = frozenset(name for name, field in self._fields.items() if fixed_bytes(field) is None)
        self.division: Division | None = None
        """How row groups are divided into parts, once it was needed; see `divide.divide`."""
        self._given = scan.statistics
        self._statistics: FooterStatistics | None = None  # made by the first call that needs it

    def __getstate__(self) -> dict[str, Any]:
        """Return what travels to another process: all facts. Footers, connections and what was verified stay.

        Computes content and null counts first, because a worker would have to read all footers again for them.
        """
        self._footer_statistics().complete(self)
        return {name: value for name, value in super().__getstate__().items() if name not in ("_cached", "_verified")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._cached = None if self.format.cache is None else _cached(self.format.cache)
        self._verified = {}

    def footer(self, file: int) -> Footer:
        """Return the footer of a file, from memory or read again; raises as `index_of`."""
        return cast("Footer", self.index_of(file))

    def part(self, chunk: int) -> StoredRowGroup:
        """Return what is needed to read a chunk."""
        part = super().part(chunk)
        return StoredRowGroup(
            part.file, part.size, part.index, part.seen, part.number, part.num_rows, cached=self._cached
        )

    def split(self, *, scan: bool | None) -> Split | None:
        """Return the dataset with large row groups divided into parts; see `part_source.split_row_groups`."""
        from penstock.dataset.part_source import split_row_groups  # here: only shuffling needs it

        parts = split_row_groups(self, scan=scan)
        return None if parts is None else Split(parts, parts.chunk, parts.first_row, parts.scanned)

    def ranges(self, chunk: int, columns: Sequence[str]) -> Sequence[ByteRange]:
        """Return the bytes of the column chunks; none for partition columns. Reads the footer if it is not kept."""
        group = self.part(chunk)
        physical = [name for name in columns if name not in self._partitions]
        return [ByteRange(group.file.path, start, stop) for start, stop in group.ranges(physical).values()]

    def _read_part(self, chunk: int, columns: list[str], buffers: Buffers | None, limit_bytes: int | None) -> pa.Table:
        """Read columns, with their checksums where this is due; large ones are measured before they are expanded."""
        group = self.part(chunk)
        if limit_bytes is not None and not self._surely_fits(chunk, columns, limit_bytes):
            varying = {name: self._fields[name].type for name in columns if name in self._varying}
            fixed = sum(self._bytes_of(name) for name in columns if name not in varying) * group.num_rows
            group = replace(group, limit=MemoryLimit(int(limit_bytes - fixed), varying))
        try:
            return self._verify(group, chunk, columns, buffers)
        except FileTouched:  # once more, without watching the file: it may be touched all the time
            return self._verify(replace(group, watched=False, cached=None), chunk, columns, None)

    def _verify(self, group: StoredRowGroup, chunk: int, columns: list[str], buffers: Buffers | None) -> pa.Table:
        if self.format.verify != "first":
            return self.format.read(replace(group, verify=self.format.verify), columns, buffers)
        asked = tuple(columns)
        if asked not in self._verified:
            self._verified[asked] = bytearray(len(self.facts.chunk_rows))
        verified, mark = self._verified[asked], 1 + group.seen.times % 255
        if verified[chunk] == mark:
            return self.format.read(group, columns, buffers)
        table = self.format.read(replace(group, verify=True), columns, buffers)
        verified[chunk] = mark
        return table

    def _surely_fits(self, chunk: int, columns: Sequence[str], limit_bytes: int) -> bool:
        """Tell whether columns cannot take more memory than that, without parsing the column chunks of the footer."""
        varying = [self._fields[name].type for name in columns if name in self._varying]
        if any(kind.num_fields for kind in varying):  # nested: a row holds any number of values
            return False
        # No value is longer than all that its row group stores.
        stored = int(self._part_bytes[chunk])
        return not varying or (stored > 0 and int(self.facts.chunk_rows[chunk]) * stored * len(varying) <= limit_bytes)

    def statistics(
        self, column: str, *, bounds: bool = True, chunks: NDArray[np.int64] | None = None
    ) -> Statistics | None:
        """Return null counts and bounds from the footers; None for partition columns and nested ones.

        See `ColumnChunks.bounds` for what the bounds promise. Null counts of all columns are collected by the first
        call and kept (16 bytes for each column chunk); bounds cost some 10 microseconds for each chunk. Reads footers
        that are not kept, in threads; one that cannot be read leaves its chunks unknown.
        """
        if column in self._partitions:
            return None
        if not bounds:
            return self._footer_statistics().null_counts(self, column)
        return self._footer_statistics().bounds(self, column, chunks)

    def _footer_statistics(self) -> FooterStatistics:
        if self._statistics is None:
            self._statistics, self._given = FooterStatistics(self._given), {}
        return self._statistics

    def content(self) -> str:
        """Return a digest of offsets, sizes and statistics of all column chunks.

        It is the same for a byte copy, and differs for most files that were written again: not if their footers are
        equal and only their values differ. Computed once, in 3 to 15 microseconds for each column chunk.
        """
        return self._footer_statistics().content(self)

    def chunk_bytes(self, columns: Sequence[str]) -> NDArray[np.float64]:
        """Return the bytes that these columns of each chunk take in memory, as Arrow.

        An estimate by rows; for a row group that stores unusually many bytes, what its footer says of each column.
        """
        found = super().chunk_bytes(columns)
        varying = [name for name in columns if name in self._varying and name not in self._partitions]
        if varying:
            add_heavy_chunks(found, self, varying, self._part_bytes)
        return found

    def _measured_bytes(self, name: str) -> float:
        return variable_bytes(self.part(0), name)


def open_parquet(  # noqa: PLR0913 - what `penstock.open` takes, flat
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    storage_options: Mapping[str, Any] | None = None,
    filesystem: Any = None,
    columns: Any = None,
    schema: Unischema | None = None,
    on_error: OnError = "raise",
    cache: ChunkCache | None = None,
    verify: Verify = "first",
    as_root: bool = False,
    format: str | None = None,
) -> ParquetSource:
    """Open the dataset at a path or URL: list its files, then see `open_catalog`.

    Costs one listing and one small read for each file, in threads; none where `_metadata` lists them all. `columns`
    (see `pick_columns`) limits what must agree and be supported, not what can be read later: the fingerprint does not
    depend on it. Row groups are read through `cache`, footers are not. `verify`: see `penstock.open`. `as_root` and
    `format`: see `FileCatalog`.

    Raises:
        DatasetNotFound: Nothing is there, or no Parquet file.
        UnsupportedFormat: A Delta, Iceberg or Hudi table.
        BadFile: A file cannot be read (with on_error="skip" it is left out and listed).
        SchemaError: Files disagree, or a schema does not fit them.
        ColumnNotFound: `columns` names one that is not there.
    """
    catalog = FileCatalog(sources, storage_options, filesystem, as_root, format)
    reading = ParquetFormat(cache, verify)
    return open_catalog(catalog, reading, ParquetSource, columns=columns, schema=schema, on_error=on_error)


def source_of(scan: Scan, *, on_error: OnError) -> ParquetSource:
    """Return the source of files whose footers have been read, for tools that look at footers themselves."""
    return ParquetSource(scan, resolve_columns(scan, None, None), ParquetFormat(), on_error=on_error, version=None)


def as_parquet(source: Source) -> ParquetSource:
    """Return a source as what it is, for tools that need its files and footers.

    Raises:
        UnsupportedFormat: The rows come from somewhere else.
    """
    if not isinstance(source, ParquetSource):
        raise UnsupportedFormat(
            "only Parquet files can be measured (penstock bench), indexed, rewritten, or given a schema; the rows of "
            f"this dataset come from a {type(source).__name__}"
        )
    return source


def _cached(cache: ChunkCache) -> CachedFiles:
    from penstock.dataset.cached import CachedFiles  # late: most datasets are read without

    return CachedFiles(cache)
