"""Read what all footers say, once: rows of every row group, the schemas that occur, which files are bad.

Between `catalog`, which finds the files, and `parquet`, which makes a dataset of them. Works in a few threads and
keeps small facts of every file; the footers themselves go to a bounded cache. Reads no data pages.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from penstock.dataset.catalog import DataFile, Root, threads_for
from penstock.dataset.footers import READ_ERRORS, FooterCache, FooterSummary, Seen, bad_file, read_footer
from penstock.errors import BadFile, CodecError, FileChanged, MetadataError, PenstockError, SchemaError, StoreError
from penstock.halt import until
from penstock.schema.stored import SCHEMA_KEY, find_schema, partition_types

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from penstock.dataset.footers import Footer
    from penstock.schema.unischema import Unischema

SUMMARY = "_metadata"
Visit = Callable[[DataFile, "Footer", int], None]
"""Called with a file, its footer and its size."""
_SAMPLES = 4
_MOST_ROWS = 1 << 40
"""Of one row group. Damaged footers claim more, and then the sum of all rows may not fit into 64 bits."""


@dataclass(frozen=True, slots=True)
class Scan:
    """What the footers of a dataset say."""

    files: list[DataFile]
    """Those that can be read, in order."""
    sizes: list[int]
    """Bytes of each."""
    seen: dict[int, Seen]
    """What each was when its footer was read; no entry for files whose footers `_metadata` spared."""
    rows: list[Sequence[int]]
    """Rows of each row group of each file."""
    stored_bytes: list[Sequence[int]]
    """Bytes of each row group as stored, uncompressed, as its writer says."""
    schemas: list[tuple[pa.Schema, str]]
    """The Arrow schemas that occur, first the first file's, each with the first file that has it."""
    metadata: Mapping[bytes, bytes]
    """Key-value metadata of the first file."""
    stored: list[tuple[Unischema, str]]
    """The schemas that our writers stored in footers, each with the first file that has it; [] if not requested."""
    partition_types: list[tuple[Mapping[str, pa.DataType], str]]
    """The Arrow types of partition columns that go with `stored`."""
    skipped: list[tuple[str, str]]
    """Path and reason of each file left out."""
    footers: FooterCache


class _Scanner:
    def __init__(
        self, files: list[DataFile], *, stored_schemas: bool, thorough: bool, visit: Visit | None = None
    ) -> None:
        self.files = files
        self.stored_schemas = stored_schemas
        self.thorough = thorough
        self.visit = visit
        self.rows: dict[int, Sequence[int]] = {}
        self.stored_bytes: dict[int, Sequence[int]] = {}
        self.sizes: dict[int, int] = {}
        self.seen: dict[int, Seen] = {}
        self.bad: dict[int, PenstockError] = {}
        self.cache = FooterCache()
        self.base: Footer | None = None
        self.base_arrow_part: bytes | None = None
        self.base_paths: list[str] = []
        self.schemas: list[tuple[pa.Schema, int]] = []
        self.stored: dict[bytes, tuple[Unischema, Mapping[str, pa.DataType], int]] = {}
        self.halted = threading.Event()
        self._lock = threading.Lock()

    def read_all(self, indices: range) -> None:
        try:
            with until(self.halted):
                for index in indices:
                    if self.halted.is_set():
                        return
                    self.read(index)
        except BaseException:
            self.halted.set()  # a store that fails for one file is not asked for thousands of others
            raise

    def read(self, index: int) -> None:
        try:
            footer, size = read_footer(self.files[index])
            self.seen[index] = footer.seen
            if self.thorough:
                footer.chunks  # noqa: B018 - raises where it is damaged
            if self.visit is not None:
                self.visit(self.files[index], footer, size)
            self.compare(index, footer)
            self.note(index, rows_of(footer), stored_bytes_of(footer), size)
        except (FileChanged, StoreError):  # says nothing about what the file holds
            raise
        except (BadFile, MetadataError, CodecError) as exc:
            self.bad[index] = exc
        except READ_ERRORS as exc:  # a schema that is none
            self.bad[index] = bad_file(self.files[index], exc)
        else:
            self.cache.put(index, footer)

    def note(self, index: int, rows: Sequence[int], stored_bytes: Sequence[int], size: int) -> None:
        self.rows[index] = rows
        self.stored_bytes[index] = stored_bytes
        self.sizes[index] = size

    def note_stored(self, index: int, stored: bytes) -> None:
        known = self.stored.get(stored)
        if known and known[2] <= index:
            return
        path = self.files[index].path
        schema = known[0] if known else find_schema({SCHEMA_KEY: stored}, path=path)
        types = known[1] if known else partition_types(stored, path=path)
        if schema is not None:
            with self._lock:
                first = self.stored.get(stored, (schema, types, index))[2]
                self.stored[stored] = schema, types, min(first, index)

    def compare(self, index: int, footer: Footer) -> None:
        """Note the schema if it is a new one. Almost always it is that of the first file.

        Paths are compared as well, since `ParquetSchema.equals` takes the structs s.a and t.a for the same.
        """
        arrow = footer.arrow
        metadata = arrow.metadata or {}
        stored = metadata.get(SCHEMA_KEY)
        if stored is not None and self.stored_schemas:
            self.note_stored(index, stored)
        # The Arrow schema beside Parquet's has types that Parquet lacks, such as durations and time zones.
        arrow_part = metadata.get(b"ARROW:schema")
        if (
            self.base is not None
            and arrow_part == self.base_arrow_part
            and self.base.arrow.schema.equals(arrow.schema)
            and _paths(arrow.schema) == self.base_paths
        ):
            return
        schema = arrow.schema.to_arrow_schema().remove_metadata()
        if self.base is None:
            self.base, self.base_arrow_part, self.base_paths = footer, arrow_part, _paths(arrow.schema)
        with self._lock:
            for position, (known, first) in enumerate(self.schemas):
                if schema.equals(known):
                    self.schemas[position] = known, min(first, index)
                    return
            self.schemas.append((schema, index))


def _paths(schema: Any) -> list[str]:
    return [schema.column(index).path for index in range(len(schema))]


def rows_of(footer: Footer) -> Sequence[int]:
    """Return the rows of each row group.

    Raises:
        BadFile: there are less than none, or more than any row group has.
    """
    arrow = footer.arrow
    rows = tuple([arrow.row_group(i).num_rows for i in range(arrow.num_row_groups)])
    wrong = [num_rows for num_rows in rows if not 0 <= num_rows <= _MOST_ROWS]
    if wrong:
        raise footer.damaged(f"a row group of {wrong[0]} rows")
    return rows


def stored_bytes_of(footer: Footer) -> Sequence[int]:
    """Return the bytes of each row group as stored, uncompressed; what its writer says, which may be 0."""
    arrow = footer.arrow
    return tuple([arrow.row_group(i).total_byte_size for i in range(arrow.num_row_groups)])


def scan_files(files: list[DataFile], *, on_error: str, stored_schemas: bool, visit: Visit | None = None) -> Scan:
    """Read the footers of all files, or `_metadata` in place of them where it lists every file.

    With `on_error="skip"` bad files are left out and listed, and `_metadata` is not used: it would not show them. The
    result then may have no files. With `stored_schemas` the schemas in footers are read too, and a file whose schema is
    damaged is a bad file. `visit` is called with each footer that is read, from several threads; a file for which it
    raises BadFile is a bad file.

    Raises:
        BadFile: a file cannot be read, the first one in order; not under "skip".
        MetadataError, CodecError: likewise for the schema that a file stores.
        StoreUnavailable, StoreRefused: a store does not answer, or denies access; under "skip" too.
    """
    skip = on_error == "skip"
    scanner = _Scanner(files, stored_schemas=stored_schemas, thorough=skip, visit=visit)
    first = 0
    for first in range(len(files)):  # up to the first good file: the others are compared with it
        scanner.read(first)
        if first in scanner.rows or not skip:
            break
    if first in scanner.rows and (skip or not _use_summaries(scanner)):
        rest = range(first + 1, len(files))
        with ThreadPoolExecutor(threads_for(files[0].root.fs)) as pool:
            # In slices: one task for each of thousands of small files costs as much as reading it.
            list(pool.map(scanner.read_all, [rest[start : start + 64] for start in range(0, len(rest), 64)]))
    if scanner.bad and not skip:
        raise scanner.bad[min(scanner.bad)]
    return _collect(scanner)


def _collect(scanner: _Scanner) -> Scan:
    good = sorted(scanner.rows)
    cache = scanner.cache
    if scanner.bad:  # numbers shift
        cache = FooterCache()
        for new, old in enumerate(good):
            footer = scanner.cache.get(old)
            if footer is not None:
                cache.put(new, footer)
            else:
                cache.packed[new] = scanner.cache.packed[old]
    stored = sorted(scanner.stored.values(), key=lambda one: one[2])
    return Scan(
        files=[scanner.files[index] for index in good],
        sizes=[scanner.sizes[index] for index in good],
        seen={new: scanner.seen[old] for new, old in enumerate(good) if old in scanner.seen},
        rows=[scanner.rows[index] for index in good],
        stored_bytes=[scanner.stored_bytes[index] for index in good],
        schemas=[
            (schema, scanner.files[index].path) for schema, index in sorted(scanner.schemas, key=lambda pair: pair[1])
        ],
        metadata=(scanner.base and scanner.base.arrow.metadata) or {},
        stored=[(schema, scanner.files[index].path) for schema, _, index in stored],
        partition_types=[(types, scanner.files[index].path) for _, types, index in stored],
        skipped=[(scanner.files[index].path, str(scanner.bad[index])) for index in sorted(scanner.bad)],
        footers=cache,
    )


def _use_summaries(scanner: _Scanner) -> bool:
    """Take rows from `_metadata` instead of footers, if every file is in one that agrees; else change nothing."""
    roots = {id(file.root): file.root for file in scanner.files}.values()
    if not all(root.names and SUMMARY in root.names for root in roots):
        return False
    listed = {id(root): _read_summary(scanner, root) for root in roots}
    found: dict[int, _Listed] = {}
    for index, file in enumerate(scanner.files):
        one = listed[id(file.root)].get(file.relative)
        if one is None or file.size is None or file.size < one.least_size:
            return False
        found[index] = one
    if not _samples_agree(scanner, found):
        return False
    for index, one in found.items():
        scanner.note(index, tuple(one.rows), tuple(one.stored_bytes), scanner.files[index].size or 0)
        scanner.cache.summaries[index] = cast("FooterSummary", one.summary)
    return True


@dataclass(slots=True)
class _Listed:
    """What `_metadata` says about one file."""

    rows: list[int] = field(default_factory=list)
    """Of each row group."""
    stored_bytes: list[int] = field(default_factory=list)
    """Of each row group, uncompressed."""
    groups: list[int] = field(default_factory=list)
    """Their numbers in `_metadata`."""
    summary: FooterSummary | None = None
    least_size: int = 0
    """Where the last column chunk ends: a shorter file is another one."""


def _read_summary(scanner: _Scanner, root: Root) -> dict[str, _Listed]:
    """Return what `_metadata` says about each file; {} if it cannot be used."""
    try:
        footer, _ = read_footer(DataFile(root, SUMMARY, None))
        chunks, rows = footer.chunks, rows_of(footer)
        if not _equal_types(footer, scanner.base):
            return {}
    except StoreError:
        raise
    except (BadFile, *READ_ERRORS):
        return {}
    listed: dict[str, _Listed] = {}
    groups = zip(chunks.file_paths, rows, stored_bytes_of(footer), strict=True)
    for group, (path, num_rows, stored_bytes) in enumerate(groups):
        one = listed.setdefault(path, _Listed())
        one.rows.append(num_rows)
        one.stored_bytes.append(stored_bytes)
        one.groups.append(group)
        if chunks.leaves:
            one.least_size = max(one.least_size, chunks.range_of(group, len(chunks.leaves) - 1)[1])
    for one in listed.values():
        one.summary = FooterSummary.of(chunks, one.groups)
    return listed


def _equal_types(a: Footer, b: Footer | None) -> bool:
    if b is None:
        return False
    return bool(a.arrow.schema.to_arrow_schema().equals(b.arrow.schema.to_arrow_schema(), check_metadata=False))


def _samples_agree(scanner: _Scanner, listed: Mapping[int, _Listed]) -> bool:
    """Look at a few footers: an outdated `_metadata` lists files that have other rows, types or content."""
    last = len(scanner.files) - 1
    for index in sorted({last * step // max(1, _SAMPLES - 1) for step in range(_SAMPLES)}):
        try:
            footer, _ = read_footer(scanner.files[index])
            known = listed[index]
            if list(rows_of(footer)) != known.rows or not _equal_types(footer, scanner.base):
                return False
            if known.summary is None or footer.summary().content != known.summary.content:
                return False
        except StoreError:
            raise
        except (BadFile, *READ_ERRORS):
            return False
    return True


def partition_types_of(scan: Scan) -> dict[str, pa.DataType]:
    """Return the types with which partition columns were written, as far as files store them.

    Raises:
        SchemaError: files were written with different types.
    """
    found: dict[str, tuple[pa.DataType, str]] = {}
    for types, path in scan.partition_types:
        for name, kind in types.items():
            known, where = found.setdefault(name, (kind, path))
            if known != kind:
                raise SchemaError(
                    f"the files disagree: the partition column {name!r} was written as {kind} in {path} but as "
                    f"{known} in {where}; open them apart, or give {name!r} one type through schema="
                )
    return {name: kind for name, (kind, _) in found.items()}
