"""Index all files of a dataset, once: rows of every part, the schemas that occur, which files are bad.

Takes the entries of a catalog and a format; gives a `Scan`, of which a source is made. Works in a few threads. Small
facts are kept of every file, the indexes themselves in a bounded cache. Reads no data.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.dataset.bad_files import bad_file
from penstock.dataset.catalog import DataFile, threads_for
from penstock.dataset.footers import READ_ERRORS
from penstock.dataset.metadata_file import METADATA_FILE, fill_entries
from penstock.errors import BadFile, CodecError, FileChanged, MetadataError, PenstockError, StoreError
from penstock.halt import until
from penstock.schema.stored import SCHEMA_KEY, find_schema, partition_types

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.dataset.format import FileIndex, Format, Seen
    from penstock.schema.unischema import Unischema

CACHE_BYTES = 64 << 20
"""Memory for indexes that are kept."""
Visit = Callable[[DataFile, Any], None]
"""Called with a file and its index."""


class IndexCache:
    """The indexes used last, up to a number of bytes; safe for threads."""

    def __init__(self, limit_bytes: int = CACHE_BYTES) -> None:
        self.packed: dict[int, bytes] = {}
        """What `FileIndex.pack` returned for indexes that were dropped, so that they need not be fetched again for
        statistics."""
        self._limit = limit_bytes
        self._used = 0
        self._kept: OrderedDict[int, FileIndex] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, file: int) -> Any:
        """Return the index of that file if it is in memory, and mark it as used; else None."""
        with self._lock:
            index = self._kept.get(file)
            if index is not None:
                self._kept.move_to_end(file)
            return index

    def put(self, file: int, index: FileIndex) -> None:
        """Keep an index, and drop those that were not used for the longest time."""
        dropped: list[tuple[int, FileIndex]] = []
        with self._lock:
            if file in self._kept:
                return
            self._kept[file] = index
            self._used += index.memory_bytes
            while self._used > self._limit and len(self._kept) > 1:
                dropped.append(self._kept.popitem(last=False))
                self._used -= dropped[-1][1].memory_bytes
        for old, gone in dropped:
            if old not in self.packed:
                self.packed[old] = gone.pack()


class Scan(NamedTuple):
    """What the indexes of all files say."""

    files: list[DataFile]
    """Those that can be read, in order."""
    sizes: list[int]
    """Bytes of each."""
    seen: dict[int, Seen]
    """What each was when it was indexed; no entry for files whose rows the catalog knew."""
    rows: list[Sequence[int]]
    """Rows of each part of each file."""
    part_bytes: list[Sequence[int]]
    """Bytes of each part before compression, as its writer says; 0 if unknown."""
    schemas: list[tuple[pa.Schema, str]]
    """The Arrow schemas that occur, the first file's first, each with the first file that has it."""
    metadata: Mapping[bytes, bytes]
    """Key-value metadata of the first file."""
    stored: list[tuple[Unischema, str]]
    """The schemas that our writers stored in files, each with the first file that has it; [] if not requested."""
    partition_types: list[tuple[Mapping[str, pa.DataType], str]]
    """The Arrow types of partition columns that go with `stored`."""
    skipped: list[tuple[str, str]]
    """Path and reason of each file left out."""
    indexes: IndexCache
    statistics: dict[int, Any]
    """The statistics that the catalog gave, by the number of the file."""


class _Scanner:
    def __init__(self, files: Sequence[DataFile], format: Format, *, stored_schemas: bool, skip: bool) -> None:
        self.files = files
        self.format = format
        self.stored_schemas = stored_schemas
        self.skip = skip
        self.rows: dict[int, Sequence[int]] = {}
        self.part_bytes: dict[int, Sequence[int]] = {}
        self.sizes: dict[int, int] = {}
        self.seen: dict[int, Seen] = {}
        self.statistics: dict[int, Any] = {}
        self.bad: dict[int, PenstockError] = {}
        self.cache = IndexCache()
        self.base: FileIndex | None = None
        self.schemas: list[tuple[pa.Schema, int]] = []
        self.stored: dict[bytes, tuple[Unischema, Mapping[str, pa.DataType], int]] = {}
        self.halted = threading.Event()
        self._lock = threading.Lock()

    def read_all(self, numbers: Sequence[int], visit: Visit | None) -> None:
        try:
            with until(self.halted):
                for number in numbers:
                    if self.halted.is_set():
                        return
                    self.read(number, visit)
        except BaseException:
            self.halted.set()  # a store that fails for one file is not asked for thousands of others
            raise

    def read(self, number: int, visit: Visit | None) -> None:
        file = self.files[number]
        try:
            index = self.format.index(file)
            self.seen[number] = index.seen
            if self.skip:
                index.check()
            if visit is not None:
                visit(file, index)
            self.compare(number, index)
            self.rows[number], self.part_bytes[number], self.sizes[number] = (
                index.part_rows,
                index.part_bytes,
                index.size,
            )
        except (FileChanged, StoreError):  # says nothing about what the file holds
            raise
        except (BadFile, MetadataError, CodecError) as exc:
            self.bad[number] = exc
        except READ_ERRORS as exc:  # a schema that cannot be parsed
            self.bad[number] = bad_file(file, exc)
        else:
            self.cache.put(number, index)

    def compare(self, number: int, index: FileIndex) -> None:
        """Note the schema if it is a new one. Almost always it is that of the first file."""
        stored = index.metadata.get(SCHEMA_KEY)
        if stored is not None and self.stored_schemas:
            self.note_stored(number, stored)
        if self.base is None:
            self.base = index
        elif self.base.same_schema(index):
            return
        schema = index.schema
        with self._lock:
            for position, (known, first) in enumerate(self.schemas):
                if schema.equals(known):
                    self.schemas[position] = known, min(first, number)
                    return
            self.schemas.append((schema, number))

    def note_stored(self, number: int, stored: bytes) -> None:
        known = self.stored.get(stored)
        if known and known[2] <= number:
            return
        path = self.files[number].path
        schema = known[0] if known else find_schema({SCHEMA_KEY: stored}, path=path)
        types = known[1] if known else partition_types(stored, path=path)
        if schema is not None:
            with self._lock:
                first = self.stored.get(stored, (schema, types, number))[2]
                self.stored[stored] = schema, types, min(first, number)

    def note_known(self, number: int, entry: DataFile) -> bool:
        """Take the facts about a file from its catalog entry; return False if it does not have them."""
        if entry.part_rows is None or entry.size is None or self.skip:
            return False
        self.rows[number], self.sizes[number] = entry.part_rows, entry.size
        self.part_bytes[number] = entry.part_bytes or (0,) * len(entry.part_rows)
        if entry.statistics is not None:
            self.statistics[number] = entry.statistics
        return True


def scan_files(
    files: Sequence[DataFile], format: Format, *, on_error: str, stored_schemas: bool, visit: Visit | None = None
) -> Scan:
    """Index all files but those whose rows the catalog knows; the first one always, for its schema.

    With `on_error="skip"` bad files are left out and listed, and every file is indexed: the catalog does not know which
    are bad. The result then may have no files. With `stored_schemas` the schemas stored in files are read too, and a
    file whose schema is damaged is a bad file. `visit` is called with each index, from several threads; a file for
    which it raises BadFile is a bad file.

    Raises:
        BadFile: A file cannot be read, the first one in order; not with "skip".
        MetadataError, CodecError: The same for the schema that a file stores.
        StoreUnavailable, StoreRefused: A store does not answer, or denies access; with "skip" too.
    """
    skip = on_error == "skip"
    scanner = _Scanner(files, format, stored_schemas=stored_schemas, skip=skip)
    first = 0
    for first in range(len(files)):  # up to the first good file: the others are compared with it
        scanner.read(first, visit)
        if first in scanner.rows or not skip:
            break
    if first in scanner.rows:
        entries = files
        if not skip and scanner.base is not None and METADATA_FILE in (files[0].root.names or ()):
            entries = fill_entries(files, scanner.base) or files
        rest = [number for number in range(first + 1, len(files)) if not scanner.note_known(number, entries[number])]
        with ThreadPoolExecutor(threads_for(files[0].root.fs)) as pool:
            # In slices: one task for each of thousands of small files costs as much as reading it.
            slices = [rest[start : start + 64] for start in range(0, len(rest), 64)]
            list(pool.map(lambda numbers: scanner.read_all(numbers, visit), slices))
    if scanner.bad and not skip:
        raise scanner.bad[min(scanner.bad)]
    return _collect(scanner)


def _collect(scanner: _Scanner) -> Scan:
    good = sorted(scanner.rows)
    cache = scanner.cache
    if scanner.bad:  # the files after a bad one get other numbers
        cache = IndexCache()
        for new, old in enumerate(good):
            index = scanner.cache.get(old)
            if index is not None:
                cache.put(new, index)
            else:
                cache.packed[new] = scanner.cache.packed[old]
    files = scanner.files
    stored = sorted(scanner.stored.values(), key=lambda one: one[2])
    return Scan(
        files=[files[number] for number in good],
        sizes=[scanner.sizes[number] for number in good],
        seen={new: scanner.seen[old] for new, old in enumerate(good) if old in scanner.seen},
        rows=[scanner.rows[number] for number in good],
        part_bytes=[scanner.part_bytes[number] for number in good],
        schemas=[(schema, files[number].path) for schema, number in sorted(scanner.schemas, key=lambda pair: pair[1])],
        metadata={} if scanner.base is None else scanner.base.metadata,
        stored=[(schema, files[number].path) for schema, _, number in stored],
        partition_types=[(types, files[number].path) for _, types, number in stored],
        skipped=[(files[number].path, str(scanner.bad[number])) for number in sorted(scanner.bad)],
        indexes=cache,
        statistics=scanner.statistics,
    )
