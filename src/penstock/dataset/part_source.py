"""A Parquet dataset whose chunks are parts of row groups: for a shuffle that mixes many row groups in little memory.

`split_row_groups` divides the row groups of a `ParquetSource` (`parts`), and `ParquetParts` is the same dataset with
the parts as chunks: it reads them by their pages (`pages`). Columns that are better read whole, because they are narrow
or cannot be read by pages, are read once for each row group and kept for its other parts, as far as memory allows.
Facts about values, such as statistics and sizes, are those of the row groups.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.dataset.divide import divide, find_pages
from penstock.dataset.expand import MemoryLimit
from penstock.dataset.format import REOPEN
from penstock.dataset.join_leaves import count_leaves
from penstock.dataset.page_index import Unsplittable
from penstock.dataset.pages import RowGroupPages, narrow_columns, open_pages
from penstock.dataset.parquet import ParquetSource
from penstock.dataset.read import GONE, FileTouched, read_columns
from penstock.errors import BadFile, PenstockWarning
from penstock.source import ByteRange, Split, Statistics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from penstock.dataset.page_sidecar import StoredPages
    from penstock.dataset.read import StoredRowGroup
    from penstock.source import Buffers, Location
    from penstock.storage.faults import T
    from penstock.storage.store import Range

_KEPT_BYTES = 128 << 20
"""Memory for offset indexes and columns that were read whole, at most and by default; see `ParquetParts.keep`."""
_NARROW_BYTES = 4 << 20
"""A column that may take more memory than that in a row group is read by pages, however narrow it is."""
_LEAF_BYTES = 2 << 10
"""Memory of what is known about the pages of a leaf, without the pages."""
_PAGE_BYTES = 16
"""Memory of what is known about a page."""
_PART_PAGES = 2
"""Pages in a part of a row group, for an estimate."""


def split_row_groups(source: ParquetSource, *, scan: bool | None = None) -> ParquetParts | None:
    """Return a dataset with its row groups divided into parts; None if all of them are small, or cannot be divided.

    The parts follow from the footers, which are read again if they are not in memory; the source keeps the borders. A
    file whose footer is damaged, which is an error when it is read, is not divided.

    Args:
        source: What to divide.
        scan: False: divide row groups that have an offset index. True: also those without one; their pages come from
            an index that `penstock index` has stored, and on local disks otherwise from page headers, as row groups
            are read. None: as True if such an index of all pages lies beside the dataset, where all hosts see it; else
            as False, with a warning if that mixes large row groups badly.

    Raises:
        PlanError: with scan=True, if the files are not on a local disk and no index is stored for them.
    """
    found = divide(source)
    stored = None if scan is False else find_pages(source, found, scan=scan is True)
    borders = dict(found.indexed)
    if stored is not None:
        borders |= {chunk: one.borders for chunk, one in found.unindexed.items()}
    if not borders:
        return None
    every = [borders.get(chunk, np.array([0, rows], np.int64)) for chunk, rows in enumerate(source.facts.chunk_rows)]
    return ParquetParts(source, every, stored)


class _Reading(NamedTuple):
    """How columns of a row group are read."""

    pages: tuple[Any, ...]
    """Fields of a `RowGroupPages`, but for the row group, whose footer is not to be kept in memory."""
    whole: Sequence[Sequence[str]]
    """Columns that are read whole: those of each read, which take little memory together, or are one column."""


class ParquetParts(ParquetSource):
    """The same rows as a `ParquetSource`, in the same order, with parts of row groups as chunks. Safe for threads."""

    def __init__(
        self, whole: ParquetSource, borders: Sequence[NDArray[np.int64]], stored: StoredPages | None = None
    ) -> None:
        """Divide each row group at rows: `borders` has the first row of each part, and the end, for every chunk.

        `stored`: how pages of files without an offset index are found; those that it does not list are scanned. None:
        such files are not divided.
        """
        vars(self).update(vars(whole))
        counts = np.array([len(one) - 1 for one in borders], np.int64)
        self.chunk: NDArray[np.int64] = np.repeat(np.arange(len(counts)), counts)
        """Chunk of the undivided source in which each part lies."""
        self.first_row: NDArray[np.int64] = np.concatenate([one[:-1] for one in borders])
        """Where each part begins in it."""
        rows = np.concatenate([np.diff(one) for one in borders])
        self.facts = replace(
            whole.facts,
            chunk_file=whole.facts.chunk_file[self.chunk],
            chunk_part=whole.facts.chunk_part[self.chunk],
            chunk_rows=rows,
        )
        if whole.facts.selection is not None:
            selection = whole.facts.selection.split(Split(self, self.chunk, self.first_row))
            self.facts = replace(self.facts, selection=selection)
        self._whole, self._borders = whole, list(borders)
        self._stored, self.scanned = stored, stored is not None
        """Whether row groups without an offset index are divided; see `Split.scanned`."""
        self._verified = {}
        self._told: set[str] = set()
        self._kept = _RecentlyUsed(_KEPT_BYTES)

    def __reduce__(self) -> tuple[Any, ...]:
        return ParquetParts, (self._whole, self._borders, self._stored)

    def split(self, *, scan: bool | None) -> None:
        """Return None: parts are not divided again."""

    def locate(self, chunk: int, row: int | None = None) -> Location:
        """Return the path, the row group with the rows of the part, or the row within the row group."""
        start, stop = self._rows_of(chunk)
        if row is not None:
            return self._whole.locate(int(self.chunk[chunk]), start + row)
        place = self._whole.locate(int(self.chunk[chunk]))
        return (
            place if self._is_whole(chunk) else replace(place, part_name=f"{place.part_name}, rows {start} to {stop}")
        )

    def part(self, chunk: int) -> StoredRowGroup:
        """Return what is needed to read the row group of a part."""
        return self._whole.part(int(self.chunk[chunk]))

    def ranges(self, chunk: int, columns: Sequence[str]) -> Sequence[ByteRange]:
        """Return the bytes of the pages that hold the rows; of whole columns, only if they are not in memory.

        Reads the footer and the offset indexes if they are not in memory.
        """
        if self._is_whole(chunk):
            return self._whole.ranges(int(self.chunk[chunk]), columns)
        physical, group = [name for name in columns if name not in self.facts.constants], self.part(chunk)
        reading = _repeated(lambda group: self._reading(chunk, group, physical), group)
        whole = (name for names in reading.whole for name in names)
        missing = [name for name in whole if self._key(chunk, group, name) not in self._kept]
        pages = RowGroupPages(group, *reading.pages)
        found = {*pages.ranges(*self._rows_of(chunk)), *group.ranges(missing).values()}
        return [ByteRange(group.file.path, start, stop) for start, stop in sorted(found)]

    def statistics(
        self, column: str, *, bounds: bool = True, chunks: NDArray[np.int64] | None = None
    ) -> Statistics | None:
        """Return the bounds of the row groups. How many nulls are in a part is known where there are none."""
        chunks = None if chunks is None else np.unique(self.chunk[chunks])
        found = self._whole.statistics(column, bounds=bounds, chunks=chunks)
        if found is None:
            return None
        nulls, element_nulls = (np.where(one[self.chunk] == 0, 0, -1) for one in (found.nulls, found.element_nulls))
        low, high = (None if one is None else one.take(pa.array(self.chunk)) for one in (found.low, found.high))
        return Statistics(nulls, element_nulls, low, high)

    def content(self) -> str:
        """Return the digest of the undivided source."""
        return self._whole.content()

    def row_bytes(self, columns: Sequence[str] | None = None) -> float:
        """Return what the undivided source says."""
        return self._whole.row_bytes(columns)

    def chunk_bytes(self, columns: Sequence[str]) -> NDArray[np.float64]:
        """Return the bytes of each part in memory: its share of its row group, by rows."""
        shares = self.facts.chunk_rows / self._whole.facts.chunk_rows[self.chunk]
        found: NDArray[np.float64] = self._whole.chunk_bytes(columns)[self.chunk] * shares
        return found

    def kept_bytes(self, columns: Sequence[str]) -> int:
        """Return the memory for the offset indexes of all divided row groups, and for columns that may be narrow."""
        parts = np.bincount(self.chunk)
        fields = [self._fields[name] for name in columns if name not in self.facts.constants]
        leaf_bytes = (_LEAF_BYTES + _PAGE_BYTES * _PART_PAGES * parts) * (parts > 1)
        found = sum(_num_leaves(field.type) for field in fields) * float(leaf_bytes.sum())
        for field in fields:
            whole_bytes = self._whole.chunk_bytes([field.name])
            found += float(whole_bytes[(parts > 1) & (whole_bytes <= _NARROW_BYTES)].sum())
        return math.ceil(min(found, _KEPT_BYTES))

    def keep(self, most_bytes: int) -> None:
        """Keep at most so many bytes of offset indexes and whole columns between reads, from now on."""
        self._kept.limit(most_bytes)

    def _rows_of(self, chunk: int) -> tuple[int, int]:
        return int(self.first_row[chunk]), int(self.first_row[chunk] + self.facts.chunk_rows[chunk])

    def _is_whole(self, chunk: int) -> bool:
        return len(self._borders[self.chunk[chunk]]) == 2

    def _read_part(self, chunk: int, columns: list[str], buffers: Buffers | None, limit_bytes: int | None) -> pa.Table:
        if self._is_whole(chunk):
            return self._whole._read_part(int(self.chunk[chunk]), columns, buffers, limit_bytes)
        first = self.part(chunk)
        return _repeated(
            lambda group: self._read_rows(chunk, group, columns, buffers if group is first else None, limit_bytes),
            first,
        )

    def _read_rows(
        self, chunk: int, group: StoredRowGroup, columns: list[str], buffers: Buffers | None, limit_bytes: int | None
    ) -> pa.Table:
        """Read columns of a part, with their checksums where this is due."""
        asked = tuple(columns)
        if asked not in self._verified:
            self._verified[asked] = bytearray(len(self.facts.chunk_rows))
        verified, mark = self._verified[asked], 1 + group.seen.times % 255
        verify = self.format.verify
        group = replace(group, verify=verified[chunk] != mark if verify == "first" else verify)
        reading, (start, stop) = self._reading(chunk, group, columns), self._rows_of(chunk)
        pages = RowGroupPages(group, *reading.pages)
        held = {(one.start, one.stop): data for one, data in (buffers or {}).items() if one.path == group.file.path}
        try:
            table = pages.read(start, stop, _fetcher(group, held), limit_bytes=limit_bytes)
        except BadFile:
            if group.cached is None:
                raise
            # The store may have given bad bytes once: forget them, and ask it again.
            group.cached.forget_ranges(group, pages.ranges(start, stop))
            return self._read_rows(chunk, replace(group, cached=None), columns, None, limit_bytes)
        found = dict(zip(table.column_names, table.columns, strict=True))
        for names in reading.whole:
            for name, column in self._whole_columns(chunk, group, names, held, limit_bytes).items():
                # A copy: the rows may stay in memory for long, and the column must not.
                found[name] = pa.chunked_array([pa.concat_arrays(column.slice(start, stop - start).chunks)])
        verified[chunk] = mark
        return pa.table({name: found[name] for name in columns})

    def _reading(self, chunk: int, group: StoredRowGroup, columns: Sequence[str]) -> _Reading:
        """Return how columns are read; reads their offset indexes if they are not in memory."""
        key = int(self.chunk[chunk]), tuple(columns)
        found: _Reading | None = self._kept.get(key)
        if found is None:
            try:
                pages = open_pages(group, columns, _fetcher(group, {}), scan=self.scanned, sidecar=self._stored)
            except BadFile:
                if group.cached is None:
                    raise
                # The cache may hold bad bytes: ask the store. The result is kept, so this costs one request.
                return self._reading(chunk, replace(group, cached=None), columns)
            self._tell_whole(group, pages.whole)
            narrow = [name for name in narrow_columns(pages, self._borders[key[0]]) if _is_small(group, name)]
            left = pages.without(narrow)
            whole = _by_memory(group, [name for name in columns if name not in left.names])
            found = _Reading((left.names, left.whole, left.file, left.chunks, left.indexes), whole)
            self._kept.put(key, found, sum(_PAGE_BYTES * len(index) + _LEAF_BYTES for index in left.indexes))
        return found

    def _tell_whole(self, group: StoredRowGroup, whole: Mapping[str, str]) -> None:
        """Warn, once for each column, of columns that cannot be read by pages, unless they are small."""
        for name, why in whole.items():
            if name not in self._told and not _is_small(group, name):
                self._told.add(name)
                warnings.warn(
                    f"column {name!r} is read whole for all parts of a row group, and again when other row groups have "
                    f"taken its place in memory: {why} (first seen in {group.file.path})",
                    PenstockWarning,
                    stacklevel=2,
                )

    def _key(self, chunk: int, group: StoredRowGroup, name: str) -> tuple[Any, ...]:
        """Return the key of a whole column: another one once its file was written again."""
        return int(self.chunk[chunk]), group.seen.times, name

    def _whole_columns(
        self, chunk: int, group: StoredRowGroup, names: Sequence[str], held: Any, limit_bytes: int | None
    ) -> dict[str, pa.ChunkedArray]:
        """Return columns of the row group of a part; those that are not in memory are read at once, and kept."""
        found = {name: self._kept.get(self._key(chunk, group, name)) for name in names}
        missing = [name for name, column in found.items() if column is None]
        if missing:
            ranges = group.ranges(missing).values()
            if all(one in held for one in ranges):
                group = replace(group, held={one[0]: pa.py_buffer(held[one]) for one in ranges})
            if limit_bytes is not None:
                group = replace(
                    group, limit=MemoryLimit(limit_bytes, {name: self._fields[name].type for name in missing})
                )
            for name, column in zip(missing, read_columns(group, missing).columns, strict=True):
                found[name] = column
                self._kept.put(self._key(chunk, group, name), column, column.nbytes)
        return found


class _RecentlyUsed:
    """The values used last, up to a number of bytes; safe for threads."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit, self._used = limit_bytes, 0
        self._values: OrderedDict[Any, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def get(self, key: object) -> Any:
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key][0]

    def put(self, key: object, value: Any, num_bytes: int) -> None:
        with self._lock:
            if key in self._values or num_bytes > self._limit:
                return
            self._values[key] = value, num_bytes
            self._used += num_bytes
            self._shrink()

    def limit(self, limit_bytes: int) -> None:
        with self._lock:
            self._limit = limit_bytes
            self._shrink()

    def _shrink(self) -> None:
        while self._used > self._limit:
            self._used -= self._values.popitem(last=False)[1][1]


def _repeated(read: Callable[[StoredRowGroup], T], group: StoredRowGroup) -> T:
    """Call `read` with a row group, and once more if its file was touched meanwhile.

    Raises:
        BadFile: the file is gone.
    """
    try:
        try:
            return read(group)
        except FileTouched:  # once more, without watching the file: it may be touched all the time
            return read(replace(group, watched=False, cached=None))
    except FileNotFoundError as exc:
        raise group.bad(GONE, REOPEN) from exc


def _fetcher(group: StoredRowGroup, held: Mapping[Range, Any]) -> Callable[[Sequence[Range]], Sequence[Any]]:
    """Return a function that returns ranges of the file: those at hand, others through the cache or from the store."""
    cached = group.cached
    fetch = group.fetch if cached is None else lambda ranges: cached.fetch(group, ranges)

    def found(ranges: Sequence[Range]) -> Sequence[Any]:
        missing = [one for one in ranges if one not in held]
        more = dict(zip(missing, fetch(missing), strict=True)) if missing else {}
        return [held[one] if one in held else more[one] for one in ranges]

    return found


def _num_leaves(kind: pa.DataType) -> int:
    try:
        return count_leaves(kind)
    except Unsplittable:
        return 1


def _is_small(group: StoredRowGroup, name: str) -> bool:
    """Tell whether a whole column surely takes little memory."""
    return _most_bytes(group, name) <= _NARROW_BYTES


def _most_bytes(group: StoredRowGroup, name: str) -> float:
    """Return the memory that a whole column takes, at most."""
    chunks, leaves = group.index.chunks, group.index.chunks.below(name)
    known = chunks.memory_bytes[group.number, leaves]
    values, stored = (
        one[group.number, leaves].astype(np.float64) for one in (chunks.num_values, chunks.uncompressed_bytes)
    )
    # No value is longer than its column chunk, dictionary included.
    return float(np.where(np.isnan(known), values * stored, known).sum())


def _by_memory(group: StoredRowGroup, names: Sequence[str]) -> list[list[str]]:
    """Return columns in lists that take no more memory than one narrow column may; larger ones are alone."""
    found: list[list[str]] = []
    room = 0.0
    for name in names:
        size = _most_bytes(group, name)
        if not found or size > room:
            found.append([])
            room = _NARROW_BYTES
        found[-1].append(name)
        room -= size
    return found
