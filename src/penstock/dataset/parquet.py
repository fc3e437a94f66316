"""A Parquet dataset as facts and a way to read one row group: files, chunks, columns, fingerprint, `read`.

`open_parquet` finds the files, reads their footers and decides the columns; plan and engine work on the arrays of the
`ParquetSource` it gives. Tables come out as Arrow, decompressed but not decoded. It knows nothing of order or batches.

On disk: Parquet files below a folder, `key=value` folders as partition columns, and beside them `_common_metadata` or
`_metadata`, which may hold the stored schema. Numbers of row groups that other writers store there are not used: they
are no row counts.
"""

from __future__ import annotations

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.codecs.arrow_kinds import leaf_of
from penstock.dataset.catalog import DataFile, Root, find_files, threads_for
from penstock.dataset.expand import MemoryLimit
from penstock.dataset.footers import FooterCache, read_footer
from penstock.dataset.partitions import cast_partition, find_partitions, keys_of, other_value, python_values
from penstock.dataset.read import OTHER_FOOTER, REOPEN, FileTouched, StoredRowGroup, read_columns
from penstock.dataset.resolve_schema import Columns, Known, check_stored, decide_columns, naming_file
from penstock.dataset.scan import Scan, partition_types_of, rows_of, scan_files
from penstock.dataset.sizes import fixed_bytes, variable_bytes
from penstock.dataset.unify_types import cast_column, check_agreement, decoded, merge_schemas, same_values
from penstock.errors import (
    BadFile,
    ColumnNotFound,
    FileChanged,
    MetadataError,
    SchemaError,
    UnsupportedFormat,
    close_names,
)
from penstock.schema.arrow import flatten_structs
from penstock.schema.stored import find_schema
from penstock.source import ByteRange, Location, SourceFacts, Statistics
from penstock.storage.store import has_file

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from penstock.dataset.cached import CachedFiles
    from penstock.dataset.column_chunks import ColumnChunks
    from penstock.dataset.footers import Footer, FooterSummary, Seen
    from penstock.options import OnError, Verify
    from penstock.schema.unischema import Unischema
    from penstock.source import Buffers, Source
    from penstock.storage.cache import ChunkCache


_STAYS = ("_cached", "_verified", "_footers", "_lock")
"""Attributes that belong to one process."""
_STANDS_OUT = 1.25
"""A row group that stores more bytes for each row than this times the estimate is looked at more closely."""


class ParquetSource:
    """The facts of a dataset, as arrays, and a reader of its row groups. Safe for threads; changes nothing on disk."""

    facts: SourceFacts
    """What is known about the data."""
    entries: Sequence[DataFile]
    """The files, in order."""
    seen: dict[int, Seen]
    """What each file was when its footer was read, by its number."""
    repeated: frozenset[str]
    """Columns that the files hold and folder names repeat: both have to say the same."""

    def __init__(
        self, scan: Scan, columns: Columns, *, on_error: OnError, cache: ChunkCache | None, verify: Verify
    ) -> None:
        chunk_file, chunk_part, chunk_rows = _chunks(scan.rows)
        files = tuple(file.relative for file in scan.files)
        self.facts = SourceFacts(
            files=files,
            file_bytes=np.array(scan.sizes, np.int64),
            chunk_file=chunk_file,
            chunk_part=chunk_part,
            chunk_rows=chunk_rows,
            arrow_schema=columns.arrow_schema,
            unischema=columns.unischema,
            fingerprint=_fingerprint(scan),
            constants={name: part.values for name, part in columns.partitions.items()},
            declared=columns.declared,
            skipped=tuple(scan.skipped),
            on_error=on_error,
        )
        self.cache = cache
        self._cached = None if cache is None else _cached(cache)
        self.verify = verify
        self._verified: dict[tuple[str, ...], bytearray] = {}
        """For each list of columns that was read, a byte for each chunk: 0, or the mark of the file (see `_verify`)
        whose pages were verified."""
        self.entries = scan.files
        self.seen = scan.seen
        self._rows = scan.rows
        self._stored_bytes = _of_chunks(scan.stored_bytes, scan.rows)
        self._partitions = columns.partitions
        self._footers = scan.footers
        self._fields = {field.name: field for field in columns.arrow_schema}
        folders = dict.fromkeys(relative.rpartition("/")[0] for relative in files)
        keys = frozenset(key for folder in folders for key in keys_of(f"{folder}/"))
        self.repeated = keys & self._fields.keys() - self._partitions.keys()
        self._varying = frozenset(name for name, field in self._fields.items() if fixed_bytes(field) is None)
        self._bytes: dict[str, float] = {}
        self._content: str | None = None
        self._nulls: tuple[dict[str, list[int]], NDArray[np.int64]] | None = None
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        """Return what travels to another process: all facts. Footers, connections and what was verified stay here.

        Computes content and null counts first, because a worker would have to read all footers again for them.
        """
        self.content()
        self._null_counts()
        return {name: value for name, value in vars(self).items() if name not in _STAYS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._cached = None if self.cache is None else _cached(self.cache)
        self._verified = {}
        self._footers = FooterCache()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        rows = self.facts.chunk_rows
        return f"ParquetSource(files={len(self.entries)}, chunks={len(rows)}, rows={rows.sum()})"

    def locate(self, chunk: int, row: int | None = None) -> Location:
        """Return the path, row group and row, for messages."""
        part = int(self.facts.chunk_part[chunk])
        return Location(str(self.entries[self.facts.chunk_file[chunk]].path), part, f"row group {part}", row)

    def ranges(self, chunk: int, columns: Sequence[str]) -> Sequence[ByteRange]:
        """Return the bytes of the column chunks; none for partition columns. Reads the footer if it is not kept."""
        group = self.row_group(chunk)
        physical = [name for name in columns if name not in self._partitions]
        return [ByteRange(group.file.path, start, stop) for start, stop in group.ranges(physical).values()]

    def read(
        self,
        chunk: int,
        columns: Sequence[str],
        buffers: Buffers | None = None,
        *,
        limit_bytes: int | None = None,
    ) -> pa.Table:
        """Return the columns of a chunk, in the order given; partition columns come as constants.

        Reads in the calling thread, only the pages of these columns, and nothing at all for partition columns alone or
        for no columns. The fields are those of the Arrow schema. Page checksums are verified as `verify` says.

        Raises:
            ColumnNotFound: the dataset has no such column.
            BadFile: the row group cannot be read.
            FileChanged: the file is not the one that was opened.
            BudgetError: the columns would take more than `limit_bytes` of memory, as Arrow.
        """
        schema = self._schema_of(columns)
        physical = [name for name in columns if name not in self._partitions]
        if not columns:
            return pa.table({"": pa.nulls(int(self.facts.chunk_rows[chunk]))}).select([])
        table = self._read(chunk, physical, buffers, limit_bytes) if physical else None
        for name in physical:
            if name in self.repeated:
                self._check_folder(table, chunk, name)
        if table is not None and table.schema.equals(schema):
            return table
        arrays = [self._column(table, chunk, field) for field in schema]
        return pa.Table.from_arrays(arrays, schema=schema)

    def _read(self, chunk: int, columns: list[str], buffers: Buffers | None, limit_bytes: int | None) -> pa.Table:
        group = self.row_group(chunk)
        if buffers:
            held = {one.start: pa.py_buffer(data) for one, data in buffers.items() if one.path == group.file.path}
            group = replace(group, held=held)
        if limit_bytes is not None and not self._surely_fits(chunk, columns, limit_bytes):
            varying = {name: self._fields[name].type for name in columns if name in self._varying}
            fixed = sum(self._bytes_of(name) for name in columns if name not in varying) * group.num_rows
            group = replace(group, limit=MemoryLimit(int(limit_bytes - fixed), varying))
        try:
            return self._verify(group, chunk, columns)
        except FileTouched:  # once more, whatever happens to the file meanwhile: it may be touched all the time
            return self._verify(replace(group, watched=False, cached=None, held=None), chunk, columns)

    def _surely_fits(self, chunk: int, columns: Sequence[str], limit_bytes: int) -> bool:
        """Tell whether columns cannot take more memory than that, without a closer look at the footer."""
        varying = [self._fields[name].type for name in columns if name in self._varying]
        if any(kind.num_fields for kind in varying):  # nested: a row holds any number of values
            return False
        # No value is longer than all that its row group stores.
        stored = int(self._stored_bytes[chunk])
        return not varying or (stored > 0 and int(self.facts.chunk_rows[chunk]) * stored * len(varying) <= limit_bytes)

    def _verify(self, group: StoredRowGroup, chunk: int, columns: list[str]) -> pa.Table:
        """Read columns, with their checksums where this is due."""
        if self.verify != "first":
            return read_columns(replace(group, verify=self.verify), columns)
        asked = tuple(columns)
        if asked not in self._verified:
            self._verified[asked] = bytearray(len(self.facts.chunk_rows))
        verified, mark = self._verified[asked], 1 + group.seen.times % 255
        if verified[chunk] == mark:
            return read_columns(group, columns)
        table = read_columns(replace(group, verify=True), columns)
        verified[chunk] = mark
        return table

    def _schema_of(self, columns: Sequence[str]) -> pa.Schema:
        try:
            return pa.schema([self._fields[name] for name in columns])
        except KeyError as exc:
            raise ColumnNotFound(f"no column {exc.args[0]!r}; {close_names(exc.args[0], self._fields)}") from None

    def _column(self, table: Any, chunk: int, field: pa.Field) -> pa.Array | pa.ChunkedArray:
        if field.name in self._partitions:
            return self._partitions[field.name].constant(
                int(self.facts.chunk_file[chunk]), int(self.facts.chunk_rows[chunk])
            )
        column = table.column(field.name)
        return column if column.type == field.type else self._cast(column, chunk, field)

    def _check_folder(self, table: Any, chunk: int, name: str) -> None:
        wrong = other_value(table.column(name), name, self.facts.files[self.facts.chunk_file[chunk]])
        if wrong is not None:
            cure = "move the file, or write it again; open with columns= that leave it out to read the others"
            raise self.row_group(chunk).bad(wrong, cure, column=name)

    def _cast(self, column: pa.ChunkedArray, chunk: int, field: pa.Field) -> pa.ChunkedArray:
        """Cast a column whose type in this file differs from the dataset's but holds the same values.

        Checked here too: where `_metadata` spared reading the footers, opening has not compared them.
        """
        try:
            if not same_values(field.type, column.type):
                raise pa.ArrowInvalid(f"{column.type} is not read as {field.type}")
            return cast_column(column, field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as exc:
            raise SchemaError(
                f"the files disagree: column {field.name!r} has type {column.type} in {self.locate(chunk).path} but "
                f"{field.type} in {self.locate(0).path}; write one of them again, or open with columns= that leave it "
                "out"
            ) from exc

    def row_group(self, chunk: int) -> StoredRowGroup:
        """Return what is needed to read a chunk."""
        file, group = int(self.facts.chunk_file[chunk]), int(self.facts.chunk_part[chunk])
        size, num_rows = int(self.facts.file_bytes[file]), int(self.facts.chunk_rows[chunk])
        footer = self.footer(file)
        return StoredRowGroup(self.entries[file], size, footer, self.seen[file], group, num_rows, self._cached)

    def footer(self, file: int) -> Footer:
        """Return the footer of a file, from memory or read again.

        Raises:
            BadFile: it cannot be read.
            FileChanged: it is not the footer that was read before, or `_metadata` says other rows.
        """
        footer = self._footers.get(file)
        if footer is None:
            footer, _ = read_footer(self.entries[file])
            if tuple(rows_of(footer)) != tuple(self._rows[file]):
                raise _changed(self.entries[file], rows_of(footer), self._rows[file])
            before = self.seen.setdefault(file, footer.seen)
            if before.footer != footer.seen.footer:
                path = self.entries[file].path
                raise FileChanged(f"{path}: {OTHER_FOOTER}; {REOPEN}", path=path)
            if before.identity != footer.seen.identity:
                before.renew(footer.seen.identity)
            self._footers.put(file, footer)
        return footer

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
            below, nulls = self._null_counts()
            leaves = below.get(column, ())
            return Statistics(*nulls[:, :, leaves[0]]) if len(leaves) == 1 else None
        facts = self.facts
        kind = decoded(leaf_of(self._fields[column].type))
        kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
        nulls = np.full((2, len(facts.chunk_rows)), -1, np.int64)
        found: list[tuple[pa.Scalar | None, pa.Scalar | None]] = [(None, None)] * len(facts.chunk_rows)
        for file, here in self._by_file(np.arange(len(facts.chunk_rows)) if chunks is None else chunks):
            known = self._column_chunks(file)
            leaves = [] if known is None else known.below(column)
            if known is not None and len(leaves) == 1:
                groups = facts.chunk_part[here]
                nulls[:, here] = known.null_count[groups, leaves[0]], known.null_elements()[groups, leaves[0]]
                for chunk, group in zip(here.tolist(), groups.tolist(), strict=True):
                    found[chunk] = known.bounds(group, leaves[0], kind) or (None, None)
        return Statistics(*nulls, *(pa.array([one[end] for one in found], kind) for end in (0, 1)))

    def _null_counts(self) -> tuple[dict[str, list[int]], NDArray[np.int64]]:
        """Return the leaves of each column, and of all leaves their nulls and null elements in every chunk."""
        if self._nulls is None:
            facts = self.facts

            def look(file: int) -> FooterSummary | None:
                try:
                    return self._summary(file)
                except BadFile:  # raised when the file is read
                    return None

            with ThreadPoolExecutor(threads_for(self.entries[0].root.fs)) as pool:
                summaries = list(pool.map(look, range(len(self.entries))))
            paths: dict[str, int] = {}
            for path in (path for known in summaries if known is not None for path in known.paths):
                paths.setdefault(path, len(paths))
            nulls = np.full((2, len(facts.chunk_rows), len(paths)), -1, np.int64)
            for file, here in self._by_file(np.arange(len(facts.chunk_rows))):
                known = summaries[file]
                if known is not None and known.paths:
                    leaves = np.array([paths[path] for path in known.paths], np.int64)
                    nulls[:, here[:, None], leaves] = known.nulls[:, facts.chunk_part[here]]
            below: dict[str, list[int]] = {}
            for path, place in paths.items():
                for depth in range(1, path.count(".") + 2):
                    below.setdefault(".".join(path.split(".")[:depth]), []).append(place)
            self._nulls = below, nulls
        return self._nulls

    def _summary(self, file: int) -> FooterSummary:
        """Return what is kept of a footer, which is read if it has not been; BadFile if it cannot be."""
        return self._footers.summary(file) or self.footer(file).summary()

    def _by_file(self, chunks: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Return each file that has some of the chunks (ascending), with those chunks."""
        files, first = np.unique(self.facts.chunk_file[chunks], return_index=True)
        return zip(files.tolist(), np.split(chunks, first[1:]), strict=False)  # no chunks: one part without a file

    def _column_chunks(self, file: int) -> ColumnChunks | None:
        """Return what the footer of a file says about its column chunks; None if it cannot be read (see `read`)."""
        try:
            return self.footer(file).chunks
        except BadFile:
            return None

    def content(self) -> str:
        """Return a digest of offsets, sizes and statistics of all column chunks.

        The same for a byte copy, and other for most files that were written again: not if their footers are equal and
        only their values differ. Computed once, which takes 3 to 15 microseconds for each column chunk.
        """
        if self._content is None:
            sums = hashlib.blake2b(b"penstock.content.v1\0", digest_size=16)
            for file in range(len(self.entries)):
                sums.update(self._summary(file).content)
            self._content = sums.hexdigest()
        return self._content

    def row_bytes(self, columns: Sequence[str] | None = None) -> float:
        """Return the bytes of one row of these columns (None: all) in memory, as Arrow; the same on every rank."""
        return sum((self._bytes_of(name) for name in (self._fields if columns is None else columns)), 0.0)

    def chunk_bytes(self, columns: Sequence[str]) -> NDArray[np.float64]:
        """Return the bytes that these columns of each chunk take in memory, as Arrow.

        An estimate by rows; where a row group stands out by its size as stored, what its footer says of each column.
        """
        rows = self.facts.chunk_rows.astype(np.float64)
        found: NDArray[np.float64] = rows * self.row_bytes(columns)
        varying = [name for name in columns if name in self._varying and name not in self._partitions]
        if not varying:
            return found
        heavy = np.flatnonzero(self._stored_bytes > _STANDS_OUT * rows * self.row_bytes())
        for file, here in self._by_file(heavy):
            chunks = self._column_chunks(file)
            if chunks is None:
                continue
            known = chunks.memory_bytes[self.facts.chunk_part[here]]
            for name in varying:
                more = known[:, chunks.below(name)].sum(axis=1) - rows[here] * self._bytes_of(name)
                found[here] += np.fmax(more, 0)  # nothing where the footer does not tell
        return found

    def _bytes_of(self, name: str) -> float:
        with self._lock:
            if name not in self._bytes:
                self._bytes[name] = self._estimate(name)
            return self._bytes[name]

    def _estimate(self, name: str) -> float:
        fixed = fixed_bytes(self._fields[name])
        if fixed is not None:
            return fixed
        if not len(self.facts.chunk_rows):
            return 0.0
        if name in self._partitions:
            values = python_values(self._partitions[name].values)
            lengths = np.array([len(str(value or "").encode()) for value in values])
            return 4 + float(
                (lengths[self.facts.chunk_file] * self.facts.chunk_rows).sum() / self.facts.chunk_rows.sum()
            )
        return variable_bytes(self.row_group(0), name)


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
    """Open a dataset: list its files, read its footers, decide its columns.

    Costs one listing and one small read for each file, in threads; none where `_metadata` lists them all. `columns`
    (see `pick_columns`) limits what must agree and be supported, not what can be read later: the fingerprint does not
    depend on it. Row groups are read through `cache`, footers are not. `verify`: see `penstock.open`. `as_root` and
    `format`: see `find_files`.

    Raises:
        DatasetNotFound: nothing there, or no Parquet in it.
        UnsupportedFormat: a Delta, Iceberg or Hudi table.
        BadFile: a file that cannot be read (with on_error="skip" it is left out and listed).
        SchemaError: files that disagree, or a schema that does not fit them.
        ColumnNotFound: `columns` names one that is not there.
    """
    files = find_files(sources, storage_options=storage_options, filesystem=filesystem, as_root=as_root, format=format)
    scan = scan_files(files, on_error=on_error, stored_schemas=schema is None)
    return source_of(scan, columns=columns, schema=schema, on_error=on_error, cache=cache, verify=verify)


def source_of(  # noqa: PLR0913 - what `penstock.open` takes, flat
    scan: Scan,
    *,
    columns: Iterable[Any] | None = None,
    schema: Unischema | None = None,
    on_error: OnError = "raise",
    cache: ChunkCache | None = None,
    verify: Verify = "first",
) -> ParquetSource:
    """Return the source of files whose footers have been read: decides columns, types and partitions.

    Raises: As `open_parquet`.
    """
    if not scan.files:
        [(path, reason), *_] = scan.skipped
        raise BadFile(f"none of the {len(scan.skipped)} files can be read; the first: {reason}", path=path)
    base = _flatten(scan.schemas[0][0], scan.schemas[0][1])
    partitions = find_partitions([file.relative for file in scan.files])
    # A column that the files hold is read from them; the folder name only repeats it (see `_check_folder`).
    partitions = {name: part for name, part in partitions.items() if name not in base.names}
    types = partition_types_of(scan)
    partitions = {name: cast_partition(part, types.get(name, part.field.type)) for name, part in partitions.items()}
    typed = frozenset(types) & partitions.keys()
    stored, stored_in = _stored_schema(scan) if schema is None else (None, "")
    known = Known(base, partitions, stored, stored_in, schema, scan.files[0].path, typed)
    wanted = known.wanted(columns)
    if schema is None:
        check_stored(_all_stored(scan), wanted)
    physical = _agreed(base, scan, wanted)
    known = replace(known, physical=physical)
    return ParquetSource(scan, decide_columns(known, wanted), on_error=on_error, cache=cache, verify=verify)


def as_parquet(source: Source) -> ParquetSource:
    """Return a source as what it is, for tools that need its files and footers.

    Raises:
        UnsupportedFormat: The rows come from somewhere else.
    """
    if not isinstance(source, ParquetSource):
        raise UnsupportedFormat(f"this works on Parquet files only, and the dataset comes from {source!r}")
    return source


def _agreed(base: pa.Schema, scan: Scan, wanted: list[str] | None) -> pa.Schema:
    """Check that all files agree on the columns wanted; return the schema that covers them all."""
    for schema, path in scan.schemas[1:]:
        other = _flatten(schema, path)
        check_agreement(base, other, paths=(scan.schemas[0][1], path), wanted=wanted)
        base = merge_schemas(base, other)
    return base


def _flatten(schema: pa.Schema, path: str) -> pa.Schema:
    with naming_file(path):
        flat = flatten_structs(schema)
    if len(set(flat.names)) < len(flat.names):
        twice = next(name for name in flat.names if flat.names.count(name) > 1)
        raise SchemaError(f"{path} has two columns called {twice!r}; rename one of them and write the file again")
    return flat


def _stored_schema(scan: Scan) -> tuple[Unischema | None, str]:
    """Return the schema stored with the dataset and the file: a folder's `_common_metadata`, else the first data file.

    For files and patterns the footer comes first, since they may have been taken from anywhere.
    """
    first = scan.files[0]
    names = first.root.names
    if names is not None:
        found = _schema_beside(first.root, [name for name in ("_common_metadata", "_metadata") if name in names])
        return found if found[0] is not None else (find_schema(scan.metadata, path=first.path), first.path)
    stored = find_schema(scan.metadata, path=first.path)
    return (stored, first.path) if stored is not None else _schema_beside(first.root, ("_common_metadata",))


def _all_stored(scan: Scan) -> list[tuple[Unischema, str]]:
    """Return every schema that is stored with the dataset, once each, with the place where it is."""
    roots = list({id(file.root): file.root for file in scan.files if file.root.names}.values())
    beside = [_schema_beside(root, ("_common_metadata",)) for root in roots if len(roots) > 1]
    return scan.stored + [(schema, place) for schema, place in beside if schema is not None]


def _schema_beside(root: Root, names: Iterable[str]) -> tuple[Unischema | None, str]:
    for name in names:
        file = DataFile(root, name, None)
        if not has_file(root.store, file.path):
            continue
        try:
            footer, _ = read_footer(file)
        except BadFile as exc:
            raise MetadataError(f"{exc}; it only holds the schema: delete it, or pass schema=") from exc
        found = find_schema(footer.arrow.metadata, path=file.path)
        if found is not None:
            return found, file.path
    return None, ""


def _chunks(rows: Sequence[Sequence[int]]) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]]:
    counts = np.fromiter(map(len, rows), np.int64, len(rows))
    total = int(counts.sum())
    sizes = np.fromiter((n for groups in rows for n in groups), np.int64, total)
    file = np.repeat(np.arange(len(rows)), counts)
    group = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    some = sizes > 0
    return file[some].astype(np.int32), group[some].astype(np.int32), sizes[some]


def _of_chunks(figures: Sequence[Sequence[int]], rows: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    """Return a figure of each chunk, from one of each row group of each file."""
    total = sum(map(len, rows))
    counts = np.fromiter((n for groups in rows for n in groups), np.int64, total)
    return np.fromiter((n for groups in figures for n in groups), np.int64, total)[counts > 0]


def _fingerprint(scan: Scan) -> str:
    """Digest what the dataset is, wherever it lies. Changing how breaks resumed runs."""
    sums = hashlib.blake2b(b"penstock.dataset.v1\0", digest_size=16)
    for file, size, rows in zip(scan.files, scan.sizes, scan.rows, strict=True):
        path = file.relative.encode("utf-8", "surrogateescape")
        sums.update(np.array([len(path), size, len(rows), *rows], "<i8").tobytes() + path)
    return sums.hexdigest()


def _changed(file: DataFile, now: Sequence[int], then: Sequence[int]) -> FileChanged:
    return FileChanged(
        f"{file.path} has changed since the dataset was opened, or `_metadata` is older than it: {len(then)} row "
        f"groups of {sum(then)} rows were known, {len(now)} of {sum(now)} are there; open the dataset again (and "
        "delete an outdated `_metadata`)",
        path=file.path,
    )


def _cached(cache: ChunkCache) -> CachedFiles:
    from penstock.dataset.cached import CachedFiles  # late: most datasets are read without

    return CachedFiles(cache)
