"""A dataset of files as a source: the facts of a catalog and a format, and a way to read one part.

`FileSource` is all that a format needs to be read by plan and engine: it numbers the chunks, leaves out deleted rows,
adds constant columns, casts types that differ between files, and notices files that were written again. What a format
knows beyond that (statistics, exact sizes, byte ranges) it adds in a subclass, as `ParquetSource` does.
"""

from __future__ import annotations

import hashlib
import threading
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from penstock.dataset.column_chunks import VALIDITY_BYTES
from penstock.dataset.columns import Columns, resolve_columns
from penstock.dataset.format import OTHER_INDEX, REOPEN, FilePart, Format, Seen
from penstock.dataset.partitions import other_value, python_values
from penstock.dataset.scan import IndexCache, Scan, scan_files
from penstock.dataset.unify_types import cast_column, same_values
from penstock.errors import BadFile, BudgetError, ColumnNotFound, FileChanged, MetadataError, SchemaError, close_names
from penstock.source import Buffers, ByteRange, Location, Selection, SourceFacts, Statistics, pack_mask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock.dataset.catalog import Catalog, DataFile
    from penstock.options import OnError
    from penstock.schema.unischema import Unischema


S = TypeVar("S", bound="FileSource")


def open_catalog(  # noqa: PLR0913 - what is opened, and what `penstock.open` takes
    catalog: Catalog,
    format: Any,
    source_type: type[S],
    *,
    columns: Any = None,
    schema: Unischema | None = None,
    on_error: OnError = "raise",
) -> S:
    """Return the source of a catalog's files: index them by the format, decide the columns.

    `source_type` is `FileSource` for any `Format`, or a subclass that belongs to the format: `ParquetSource`, which
    adds statistics, for `ParquetFormat`. Options and errors are those of `open_parquet`.
    """
    scan = scan_files(catalog.entries(), format, on_error=on_error, stored_schemas=schema is None)
    found = resolve_columns(scan, columns, schema)
    return source_type(scan, found, format, on_error=on_error, version=catalog.version)


class FileSource:
    """The facts of a dataset, as arrays, and a reader of its parts. Safe for threads; changes nothing on disk."""

    facts: SourceFacts
    """What is known about the data."""
    entries: Sequence[DataFile]
    """The files, in order."""
    seen: dict[int, Seen]
    """What each file was when it was indexed, by its number."""
    repeated: frozenset[str]
    """Columns that the files hold and folder names repeat: both must have the same values."""

    def __init__(self, scan: Scan, columns: Columns, format: Format, *, on_error: OnError, version: str | None) -> None:
        counts = np.fromiter(map(len, scan.rows), np.int64, len(scan.rows))
        total = int(counts.sum())
        rows = np.fromiter((n for parts in scan.rows for n in parts), np.int64, total)
        file = np.repeat(np.arange(len(scan.rows)), counts)
        part = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
        some = rows > 0
        self.facts = SourceFacts(
            files=tuple([one.relative for one in scan.files]),
            file_bytes=np.array(scan.sizes, np.int64),
            chunk_file=file[some].astype(np.int32),
            chunk_part=part[some].astype(np.int32),
            chunk_rows=rows[some],
            arrow_schema=columns.arrow_schema,
            unischema=columns.unischema,
            fingerprint=fingerprint_of(scan.files, scan.sizes, scan.rows),
            constants={name: one.values for name, one in columns.partitions.items()},
            declared=columns.declared,
            skipped=tuple(scan.skipped),
            on_error=on_error,
            version=version,
            part_noun=format.part_noun,
            selection=_without_deleted(scan) if any(one.deleted is not None for one in scan.files) else None,
        )
        self.entries = scan.files
        self.seen = scan.seen
        self.format = format
        self._rows = scan.rows
        self._part_bytes = np.fromiter((n for parts in scan.part_bytes for n in parts), np.int64, total)[some]
        self.indexes = scan.indexes
        """Indexes that are in memory."""
        self._partitions = columns.partitions
        self.repeated = columns.repeated
        self._fields = {field.name: field for field in columns.arrow_schema}
        self._row_bytes: dict[str, float] = {}
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        """Return what travels to another process: all facts. Indexes and connections stay."""
        return {name: value for name, value in vars(self).items() if name not in ("indexes", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.indexes = IndexCache()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        rows = self.facts.chunk_rows
        return f"{type(self).__name__}(files={len(self.entries)}, chunks={len(rows)}, rows={rows.sum()})"

    def locate(self, chunk: int, row: int | None = None) -> Location:
        """Return the path, the part and the row, for messages."""
        part = int(self.facts.chunk_part[chunk])
        path = str(self.entries[self.facts.chunk_file[chunk]].path)
        return Location(path, part, f"{self.facts.part_noun} {part}", row)

    def index_of(self, file: int) -> Any:
        """Return the index of a file, from memory or read again.

        Raises:
            BadFile: It cannot be read.
            FileChanged: It is not the index that was read before, or the catalog says other rows.
        """
        index = self.indexes.get(file)
        if index is None:
            entry = self.entries[file]
            index = self.format.index(entry)
            now, then = index.part_rows, self._rows[file]
            if tuple(now) != tuple(then):
                noun = self.facts.part_noun
                raise FileChanged(
                    f"{entry.path} has changed since the dataset was opened, or its catalog (`_metadata`) is outdated: "
                    f"{len(then)} {noun}s of {sum(then)} rows were known, {len(now)} of {sum(now)} are there; {REOPEN} "
                    "(and delete an outdated `_metadata`)",
                    path=entry.path,
                )
            before = self.seen.setdefault(file, index.seen)
            if before.checksum != index.seen.checksum:
                raise FileChanged(f"{entry.path}: {OTHER_INDEX}; {REOPEN}", path=entry.path)
            if before.identity != index.seen.identity:
                before.renew(index.seen.identity)
            self.indexes.put(file, index)
        return index

    def part(self, chunk: int) -> FilePart:
        """Return what the format needs to read a chunk."""
        facts, file = self.facts, int(self.facts.chunk_file[chunk])
        index = self.index_of(file)
        number, num_rows = int(facts.chunk_part[chunk]), int(facts.chunk_rows[chunk])
        return FilePart(self.entries[file], int(facts.file_bytes[file]), index, self.seen[file], number, num_rows)

    def ranges(self, chunk: int, columns: Sequence[str]) -> Sequence[ByteRange]:  # noqa: ARG002 - the port
        """Return nothing: the format reads by itself."""
        return ()

    def read(
        self, chunk: int, columns: Sequence[str], buffers: Buffers | None = None, *, limit_bytes: int | None = None
    ) -> pa.Table:
        """Return the columns of a chunk, in the order given; partition columns come as constants.

        Reads in the calling thread, and nothing at all for constants alone or for no columns. The fields are those of
        the Arrow schema.

        Raises:
            ColumnNotFound: The dataset has no such column.
            BadFile: The part cannot be read.
            FileChanged: The file is not the one that was opened.
            BudgetError: The columns would take more than `limit_bytes` of memory, as Arrow.
        """
        try:
            schema = pa.schema([self._fields[name] for name in columns])
        except KeyError as exc:
            raise ColumnNotFound(f"no column {exc.args[0]!r}; {close_names(exc.args[0], self._fields)}") from None
        physical = [name for name in columns if name not in self._partitions]
        if not columns:
            return pa.table({"": pa.nulls(int(self.facts.chunk_rows[chunk]))}).select([])
        table: Any = self._read_part(chunk, physical, buffers, limit_bytes) if physical else None
        for name in physical:
            if name in self.repeated:
                self._check_folder(table, chunk, name)
        if table is not None and table.schema.equals(schema):
            return table
        file, num_rows = int(self.facts.chunk_file[chunk]), int(self.facts.chunk_rows[chunk])
        arrays = [
            self._partitions[field.name].constant(file, num_rows)
            if field.name in self._partitions
            else self._cast(table.column(field.name), chunk, field)
            for field in schema
        ]
        return pa.Table.from_arrays(arrays, schema=schema)

    def _read_part(self, chunk: int, columns: list[str], buffers: Buffers | None, limit_bytes: int | None) -> pa.Table:
        """Read columns by the format; their size is known only afterwards."""
        table = self.format.read(self.part(chunk), columns, buffers)
        if limit_bytes is not None and table.nbytes > limit_bytes:
            raise BudgetError(
                f"{self.locate(chunk)}: its columns take {table.nbytes:,} bytes of memory, where memory_bytes leaves "
                f"{limit_bytes:,}; raise memory_bytes, or leave large columns out",
                least=table.nbytes,
            )
        return table

    def _cast(self, column: pa.ChunkedArray, chunk: int, field: pa.Field) -> pa.ChunkedArray:
        """Return a column with the type of the dataset, where the type in this file holds the same values.

        Checked here too: files whose rows the catalog knew were not compared at opening.
        """
        if column.type == field.type:
            return column
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

    def _check_folder(self, table: Any, chunk: int, name: str) -> None:
        """Check that a column has the value of the `key=value` folder that the file is in."""
        wrong = other_value(table.column(name), name, self.facts.files[self.facts.chunk_file[chunk]])
        if wrong is not None:
            place = self.locate(chunk)
            raise BadFile(
                f"{place}, column {name!r}: {wrong}; move the file, or write it again; open with columns= that leave "
                "it out to read the others",
                path=place.path,
                row_group=place.part,
                column=name,
            )

    def statistics(
        self,
        column: str,  # noqa: ARG002 - the port
        *,
        bounds: bool = True,  # noqa: ARG002
        chunks: NDArray[np.int64] | None = None,  # noqa: ARG002
    ) -> Statistics | None:
        """Return None: the format knows none."""
        return None

    def content(self) -> str:
        """Return the fingerprint: the format knows nothing about values that could change."""
        return self.facts.fingerprint

    def row_bytes(self, columns: Sequence[str] | None = None) -> float:
        """Return the bytes of one row of these columns (None: all) in memory, as Arrow; the same on every rank."""
        return sum((self._bytes_of(name) for name in (self._fields if columns is None else columns)), 0.0)

    def chunk_bytes(self, columns: Sequence[str]) -> NDArray[np.float64]:
        """Return the bytes that these columns of each chunk take in memory, as Arrow: an estimate by rows."""
        return self.facts.chunk_rows.astype(np.float64) * self.row_bytes(columns)

    def _bytes_of(self, name: str) -> float:
        with self._lock:
            if name not in self._row_bytes:
                fixed = fixed_bytes(self._fields[name])
                self._row_bytes[name] = self._varying_bytes(name) if fixed is None else fixed
            return self._row_bytes[name]

    def _varying_bytes(self, name: str) -> float:
        rows = self.facts.chunk_rows
        if not len(rows):
            return 0.0
        if name in self._partitions:
            values = python_values(self._partitions[name].values)
            lengths = np.array([len(str(value or "").encode()) for value in values])
            return 4 + float((lengths[self.facts.chunk_file] * rows).sum() / rows.sum())
        return self._measured_bytes(name)

    def _measured_bytes(self, name: str) -> float:
        """Return the bytes of a row of a column of varying width, measured on the first chunk."""
        return float(self.format.read(self.part(0), [name]).nbytes / self.facts.chunk_rows[0])


def fixed_bytes(field: pa.Field) -> float | None:
    """Return the bytes of one value of a fixed-width column, validity included; None: the width varies."""
    width = _width(field.type)
    return None if width is None else width + (VALIDITY_BYTES if field.nullable else 0)


def _width(arrow_type: pa.DataType) -> float | None:
    if isinstance(arrow_type, pa.BaseExtensionType):
        return _width(arrow_type.storage_type)
    if pa.types.is_null(arrow_type):
        return 0
    if pa.types.is_dictionary(arrow_type):
        return None
    if pa.types.is_fixed_size_list(arrow_type):
        inner = _width(arrow_type.value_type)
        return None if inner is None else inner * arrow_type.list_size
    try:
        return float(arrow_type.bit_width) / 8
    except ValueError:
        return None


def fingerprint_of(files: Sequence[DataFile], sizes: Sequence[int], rows: Sequence[Sequence[int]]) -> str:
    """Digest what a dataset is, wherever it is stored. Changing the computation breaks resumed runs."""
    sums = hashlib.blake2b(b"penstock.dataset.v1\0", digest_size=16)
    for file, size, parts in zip(files, sizes, rows, strict=True):
        path = file.relative.encode("utf-8", "surrogateescape")
        sums.update(np.array([len(path), size, len(parts), *parts], "<i8").tobytes() + path)
    return sums.hexdigest()


def _without_deleted(scan: Scan) -> Selection:
    """Select all rows but those that the catalog says are deleted."""
    counts: list[int] = []
    bitmaps: dict[int, NDArray[np.uint8]] = {}
    for file, parts in zip(scan.files, scan.rows, strict=True):
        keep = np.ones(sum(parts), np.bool_)
        deleted = np.array([] if file.deleted is None else file.deleted, np.int64)
        if len(deleted) and not (deleted.min() >= 0 and deleted.max() < len(keep)):
            raise MetadataError(
                f"{file.path} has {len(keep)} rows, and its catalog says that row {deleted.max()} is deleted; the "
                "catalog belongs to another version of the file"
            )
        keep[deleted] = False
        for mask in np.split(keep, np.cumsum(parts)[:-1]):
            if len(mask):
                if 0 < mask.sum() < len(mask):
                    bitmaps[len(counts)] = pack_mask(mask)
                counts.append(int(mask.sum()))
    return Selection(np.array(counts, np.int64), bitmaps)
