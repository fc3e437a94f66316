"""Read some rows of a row group from the pages that hold them.

`open_pages` reads the offset indexes of some columns of a row group (`page_index`) and returns a `RowGroupPages`: it
has the byte ranges of any range of rows, and reads from their bytes a table of exactly these rows, equal to the same
rows of a whole read. Columns that cannot be read by pages are listed with the reason; those of which every part of the
row group would need most pages (`narrow_columns`) are better read whole. Every page that is used is compared with the
index first: a wrong one raises an error and never gives other rows. How a row group is divided is decided elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.dataset.column_chunks import OFFSET_BYTES, VALIDITY_BYTES
from penstock.dataset.join_leaves import innermost, join_leaves
from penstock.dataset.page_file import LeafPages, PageFile
from penstock.dataset.page_index import (
    DICTIONARY_PAGE,
    LISTS_WITHOUT_INDEX,
    ChunkPages,
    DamagedPages,
    PageHeader,
    PageIndex,
    Unsplittable,
    parse_offset_index,
    read_page_header,
    scan_pages,
)
from penstock.dataset.parts import MOST_READ, PAGE_BYTES, LeafFacts, PartFacts, may_be_divided
from penstock.dataset.read import verifying
from penstock.dataset.sizes import plain_bytes
from penstock.dataset.thrift import ThriftError
from penstock.errors import BudgetError
from penstock.schema.arrow import flatten_structs

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from penstock.dataset.page_sidecar import StoredPages
    from penstock.dataset.read import StoredRowGroup
    from penstock.errors import BadFile
    from penstock.storage.store import Range

    Fetch = Callable[[Sequence[Range]], Sequence[Any]]

_CURE = "write the file again, or load with on_error='skip' to leave these rows out"
_INDEX_CURE = "write the file again, or load with parts=False, which needs no index, or on_error='skip'"
_ARROW_SCHEMA = b"ARROW:schema"
_MOST_WASTE = 1.25
"""Rows in memory for each row that is read, at most; for more, the rows are copied."""
_LARGE = 8
"""So many column chunks, the largest ones, are looked at one by one."""
_SPELLED_OUT = frozenset({0, 6, 9})
"""Encodings PLAIN, DELTA_LENGTH_BYTE_ARRAY and BYTE_STREAM_SPLIT: every value with all its bytes."""
_READ_AS_DICTIONARY = frozenset({0, 2, 8})
"""Encodings PLAIN, PLAIN_DICTIONARY and RLE_DICTIONARY: pyarrow cannot make dictionaries of text in any other."""
_TEXTS = (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())


@dataclass(frozen=True, slots=True)
class RowGroupPages:
    """The pages of some columns of a row group; safe for threads. Takes some 16 bytes of memory for each page."""

    group: StoredRowGroup
    names: tuple[str, ...]
    """The columns that are read, leaves of structs by path."""
    whole: Mapping[str, str]
    """The columns that cannot be read by pages, and why."""
    file: PageFile | None
    """None without columns."""
    chunks: Sequence[ChunkPages]
    """Of each leaf of `file`."""
    indexes: Sequence[PageIndex]
    """Of each leaf of `file`."""

    def ranges(self, start: int, stop: int) -> list[Range]:
        """Return the bytes that `read` needs for rows `start` to `stop`, at least one row, in order of the file."""
        return sorted({found for index in self.indexes for found in index.ranges(start, stop)})

    def read(self, start: int, stop: int, fetch: Fetch | None = None, *, limit_bytes: float | None = None) -> pa.Table:
        """Return rows `start` to `stop`, at least one, of the columns.

        `fetch` returns the bytes of `ranges`, and in rare cases of other ranges; None: of the row group's own file.

        Raises:
            BadFile: an index or page is damaged; names file, row group and column.
            FileChanged, FileTouched, StoreUnavailable, StoreRefused: as `StoredRowGroup.fetch`.
            BudgetError: the rows would take more than `limit_bytes` of memory, as Arrow.
        """
        if self.file is None:
            return pa.table({"": pa.nulls(stop - start)}).select([])
        fetch = self.group.fetch if fetch is None else fetch
        wanted = self.ranges(start, stop)
        held = dict(zip(wanted, map(pa.py_buffer, fetch(wanted)), strict=True))
        pages = [self._pages_of(leaf, (start, stop), held, fetch) for leaf in range(len(self.indexes))]
        # Dictionaries may expand to thousands of times their bytes: what may be too much is decoded as a dictionary and
        # measured before it is expanded; where pyarrow cannot do that, it is measured when it is in memory.
        most = [one.most_bytes * (stop - start) / one.rows for one in pages]
        large = limit_bytes is not None and sum(most) > limit_bytes
        unknown = [leaf for leaf, one in enumerate(pages) if large and not one.is_exact]
        known = sum(size for size, one in zip(most, pages, strict=True) if large and one.is_exact)
        self._check_memory((start, stop), known, limit_bytes)
        try:
            as_dictionaries = [leaf for leaf in unknown if pages[leaf].may_be_dictionary]
            leaves = self.file.decode(pages, verifying(verify=self.group.verify), as_dictionaries)
        except DamagedPages as exc:
            path, rows = self.chunks[exc.leaf or 0].path, f"rows {start} to {stop}: "
            raise self.group.bad(rows + str(exc), _CURE, column=path) from exc
        for leaf, (index, column) in enumerate(zip(self.indexes, leaves, strict=True)):
            if len(column) != pages[leaf].rows:
                wrong = f"its pages hold {len(column)} rows, the offset index says {pages[leaf].rows}"
                raise self._damaged(DamagedPages(wrong), leaf)
            column = column.slice(start - int(index.rows[index.span(start, stop)[0]]), stop - start)
            # A slice keeps all rows of its pages in memory: copied if that is much more than it should take.
            wasteful = pages[leaf].rows > _MOST_WASTE * (stop - start)
            leaves[leaf] = pa.chunked_array([pa.concat_arrays(column.chunks)]) if wasteful else column
        for leaf in unknown:
            column, kind = leaves[leaf], self.file.types[leaf]
            known += column.nbytes if column.type == kind else sum(map(plain_bytes, column.chunks))
            self._check_memory((start, stop), known, limit_bytes)
            leaves[leaf] = column if column.type == kind else column.cast(kind)
        return self._joined(leaves)

    def _check_memory(self, rows: tuple[int, int], num_bytes: float, limit_bytes: float | None) -> None:
        if limit_bytes is not None and num_bytes > limit_bytes:
            raise BudgetError(
                f"{self.group.file.path}, row group {self.group.number}, rows {rows[0]} to {rows[1]}: the columns take "
                f"{int(num_bytes):,} bytes or more in memory, where memory_bytes leaves {int(limit_bytes):,} for one "
                "part of a row group; raise memory_bytes, or leave large columns out",
                least=int(num_bytes),
            )

    def without(self, names: Collection[str]) -> RowGroupPages:
        """Return the pages of the columns but for some."""
        left = tuple(name for name in self.names if name not in names)
        if self.file is None or left == self.names:
            return self
        file = _page_file(*_schema_of(self.group), left) if left else None
        places = [] if file is None else [self.file.leaves.index(leaf) for leaf in file.leaves]
        chunks, indexes = [self.chunks[place] for place in places], [self.indexes[place] for place in places]
        return RowGroupPages(self.group, left, self.whole, file, chunks, indexes)

    def bytes_of(self, borders: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bytes that each part of the row group needs; `borders`: first row of each, and the end."""
        return sum((index.bytes_of(borders) for index in self.indexes), start=np.zeros(len(borders) - 1, np.int64))

    def _pages_of(self, leaf: int, rows: tuple[int, int], held: Mapping[Range, pa.Buffer], fetch: Fetch) -> LeafPages:
        """Return the pages of a leaf after a look at their headers."""
        assert self.file is not None
        chunk, index = self.chunks[leaf], self.indexes[leaf]
        first, last = index.span(*rows)
        ranges = index.ranges(*rows)
        data = held[ranges[-1]]
        if data.size != ranges[-1][1] - ranges[-1][0]:
            raise self._damaged(DamagedPages(f"{data.size} bytes came for bytes {ranges[-1]}"), leaf)
        skip = int(index.offsets[first]) - ranges[-1][0]  # of the dictionary page, where both are one range
        try:
            headers = _check_pages(data, skip, (first, last), chunk, index)
            dictionary = data.slice(0, skip) if skip else None
            if dictionary is None and any(header.uses_dictionary for header in headers):
                place = index.start, int(index.offsets[0])
                if place[0] == place[1]:
                    raise DamagedPages("a page needs a dictionary, and there is none")
                dictionary = held[place] if place in held else pa.py_buffer(fetch([place])[0])
                data = pa.py_buffer(b"".join((dictionary, data)))
            entries = 0 if dictionary is None else _check_dictionary(dictionary)
        except DamagedPages as exc:
            raise self._damaged(exc, leaf) from exc
        values, num_rows = sum(header.values for header in headers), int(index.rows[last] - index.rows[first])
        most_bytes, is_exact = _memory_of(headers, chunk, entries)
        may_be_dictionary = _READ_AS_DICTIONARY.issuperset(header.encoding for header in headers) and (
            innermost(self.file.types[leaf]) in _TEXTS  # views cannot be made of dictionaries
        )
        return LeafPages(data, chunk.codec, values, num_rows, most_bytes, is_exact, may_be_dictionary)

    def _joined(self, leaves: list[pa.ChunkedArray]) -> pa.Table:
        """Return the columns that the leaves make up, in the order of `names`."""
        assert self.file is not None
        columns, first = [], 0
        for field, count in zip(self.file.fields, self.file.counts, strict=True):
            if count == 1:
                columns.append(leaves[first])
            else:
                try:
                    columns.append(
                        join_leaves(field.type, [_one_array(leaf) for leaf in leaves[first : first + count]])
                    )
                except DamagedPages as exc:
                    raise self._damaged(exc, first) from exc
            first += count
        table = pa.Table.from_arrays(columns, schema=pa.schema(self.file.fields))
        if any("." in name for name in self.names):
            table = flatten_structs(table)
        return table if table.column_names == list(self.names) else table.select(self.names)

    def _damaged(self, wrong: DamagedPages, leaf: int) -> BadFile:
        return _bad(self.group, self.chunks[leaf].path, wrong)


def open_pages(
    group: StoredRowGroup,
    names: Sequence[str],
    fetch: Fetch | None = None,
    *,
    scan: bool = False,
    sidecar: StoredPages | None = None,
) -> RowGroupPages:
    """Return the pages of columns of a row group. Reads their offset indexes: a few bytes for each page.

    With `scan`, columns without an offset index are read by pages too. Their pages are taken from `sidecar`; for others
    the page headers are read, which takes some kilobytes and a request for each page.

    Raises:
        BadFile: an offset index or the footer is damaged.
        FileChanged, StoreUnavailable, StoreRefused: as `StoredRowGroup.fetch`.
    """
    chunks, tail = group.index.chunks, group.index.tail
    fetch = group.fetch if fetch is None else fetch
    whole = dict(_whole_columns(*_schema_of(group), tuple(names)))
    found: dict[int, ChunkPages] = {}
    indexes: dict[int, PageIndex] = {}
    for name in names:
        try:
            for leaf in chunks.below(name) if name not in whole else ():
                found[leaf] = ChunkPages.of(tail, chunks, group.number, leaf, num_rows=group.num_rows)
                if scan and found[leaf].index is None:
                    known = None if sidecar is None else sidecar.find(group, leaf, found[leaf])
                    if known is None:
                        known = scan_pages(found[leaf], lambda start, stop: fetch([(start, stop)])[0])
                    indexes[leaf] = known
                else:
                    found[leaf].index_range(group.size)
        except Unsplittable as exc:
            whole[name] = str(exc)
        except DamagedPages as exc:
            raise _bad(group, name, exc) from exc
        except ThriftError as exc:
            raise group.index.damaged(exc) from exc
    split = tuple(name for name in names if name not in whole)
    file = _page_file(*_schema_of(group), split) if split else None
    leaves = [] if file is None else file.leaves
    stored = [leaf for leaf in leaves if leaf not in indexes]
    ranges = [found[leaf].index_range(group.size) for leaf in stored]
    for leaf, data in zip(stored, fetch(ranges) if ranges else (), strict=True):
        try:
            indexes[leaf] = parse_offset_index(data, found[leaf])
        except DamagedPages as exc:
            raise _bad(group, found[leaf].path, exc) from exc
    return RowGroupPages(
        group, split, whole, file, [found[leaf] for leaf in leaves], [indexes[leaf] for leaf in leaves]
    )


def part_facts(group: StoredRowGroup, *, scan: bool = False) -> PartFacts:
    """Return what the footer says about a row group that decides into how many parts it is divided.

    With `scan`, row groups without an offset index may be divided too; see `open_pages`.

    Raises:
        BadFile: the footer is damaged.
    """
    chunks, index = group.index.chunks, group.number
    num_bytes, stored = int(chunks.uncompressed_bytes[index].sum()), chunks.compressed_bytes[index].astype(np.int64)
    if not may_be_divided(num_bytes, int(stored.max(initial=0))):
        return PartFacts(group.num_rows, num_bytes, ())
    by_size = np.argsort(-stored, kind="stable")
    large, others = np.split(by_size, [_LARGE])
    try:
        leaves = [_leaf_facts(group, leaf, scan=scan) for leaf in large.tolist()]
    except (ThriftError, DamagedPages) as exc:
        raise group.index.damaged(exc) from exc
    # Read by pages, but for lists that were scanned in vain.
    again = [
        stored[leaf] if scan and chunks.leaves[leaf].repeated else min(stored[leaf], PAGE_BYTES) for leaf in others
    ]
    return PartFacts(group.num_rows, num_bytes, leaves, int(stored[others].sum()), int(sum(again)))


def _leaf_facts(group: StoredRowGroup, leaf: int, *, scan: bool) -> LeafFacts:
    chunks = group.index.chunks
    num_bytes = int(chunks.compressed_bytes[group.number, leaf])
    try:
        found = ChunkPages.of(group.index.tail, chunks, group.number, leaf, num_rows=group.num_rows)
    except Unsplittable:
        return LeafFacts(num_bytes, 0, 0)
    if found.index is None and not (scan and found.can_be_scanned):
        return LeafFacts(num_bytes, 0, 0)
    uses = found.dictionary_pages / found.data_pages if found.dictionary_pages > 0 and found.data_pages > 0 else 1
    return LeafFacts(num_bytes, found.data_pages, int(found.dictionary_bytes * min(1, uses)))


def why_whole(group: StoredRowGroup) -> tuple[str, str]:
    """Return the column for which a row group is not divided, not even after a scan, and why.

    Raises:
        BadFile: the footer is damaged.
    """
    chunks, stored = group.index.chunks, group.index.chunks.compressed_bytes[group.number].astype(np.int64)
    by_size = np.argsort(-stored, kind="stable")
    widest, why = int(by_size[0]), "its pages are so large that parts would read much of it twice"
    for leaf in by_size[:_LARGE].tolist():
        if leaf != widest and stored[leaf] <= (MOST_READ - 1) * stored.sum():  # it could be read for two parts
            break
        try:
            found = ChunkPages.of(group.index.tail, chunks, group.number, leaf, num_rows=group.num_rows)
            if found.index is None and not found.can_be_scanned:
                raise Unsplittable(LISTS_WITHOUT_INDEX)
        except Unsplittable as exc:
            widest, why = leaf, str(exc)
            break
        except (ThriftError, DamagedPages) as exc:
            raise group.index.damaged(exc) from exc
    names = (name for name in group.index.schema.names if widest in chunks.below(name))
    return next(names, chunks.leaves[widest].path), why


def narrow_columns(pages: RowGroupPages, borders: NDArray[np.int64], most: float = 0.5) -> list[str]:
    """Return the columns of which a part of the row group needs more than `most` of all bytes, on average.

    They are so narrow that few pages hold all their rows, or their dictionary is most of them. Reading them once for
    the whole row group costs less. A pure function of the offset indexes and the borders of the parts.
    """
    found = []
    for name in pages.names:
        indexes = [index for chunk, index in zip(pages.chunks, pages.indexes, strict=True) if _below(chunk.path, name)]
        total = sum(int(index.offsets[-1]) - index.start for index in indexes)
        if sum(float(index.bytes_of(borders).mean()) for index in indexes) > most * total:
            found.append(name)
    return found


def _schema_of(group: StoredRowGroup) -> tuple[bytes, bytes | None]:
    """Return the schema of a file and its Arrow schema, as stored."""
    start, stop = group.index.chunks.schema_range
    return group.index.tail[start:stop], group.index.metadata.get(_ARROW_SCHEMA)


@lru_cache(maxsize=256)
def _page_file(schema: bytes, arrow_schema: bytes | None, names: tuple[str, ...]) -> PageFile:
    """Return what decodes pages of these columns: the same for all files of one schema.

    Extension types are those that are registered at the first call.
    """
    return PageFile(schema, arrow_schema, names)


@lru_cache(maxsize=256)
def _whole_columns(schema: bytes, arrow_schema: bytes | None, names: tuple[str, ...]) -> dict[str, str]:
    """Return the columns that cannot be cut into leaves, and why."""
    try:
        _page_file(schema, arrow_schema, names)
    except Unsplittable as exc:
        if len(names) == 1:
            return {names[0]: str(exc)}
        return {key: why for name in names for key, why in _whole_columns(schema, arrow_schema, (name,)).items()}
    return {}


def _below(path: str, name: str) -> bool:
    return path == name or path.startswith(f"{name}.")


def _check_pages(
    data: pa.Buffer, skip: int, span: tuple[int, int], chunk: ChunkPages, index: PageIndex
) -> list[PageHeader]:
    """Compare pages with the index; return their headers.

    Raises:
        DamagedPages: they are not the pages that the index lists.
    """
    view, headers = _view(data), []
    base = int(index.offsets[span[0]]) - skip
    for page in range(*span):
        start, stop = int(index.offsets[page]) - base, int(index.offsets[page + 1]) - base
        try:
            header = read_page_header(view, start)
        except IndexError:
            raise DamagedPages(f"the header of page {page} does not end") from None
        num_rows = int(index.rows[page + 1] - index.rows[page])
        known = header.values if header.rows < 0 and not chunk.repeated else header.rows
        if header.kind == DICTIONARY_PAGE or header.stop + header.compressed_bytes != stop:
            raise DamagedPages(f"page {page} is not a data page of {stop - start} bytes, as its offset index says")
        if not 0 <= header.uncompressed_bytes <= chunk.uncompressed_bytes or header.values < num_rows:
            raise DamagedPages(f"the header of page {page} has sizes that do not fit the column chunk")
        if known not in (-1, num_rows) or (header.values != num_rows and not (chunk.repeated and num_rows)):
            raise DamagedPages(f"page {page} holds {max(known, header.values)} rows, the offset index says {num_rows}")
        headers.append(header)
    return headers


def _check_dictionary(data: pa.Buffer) -> int:
    """Return the bytes of all entries of a dictionary page, before compression."""
    try:
        header = read_page_header(_view(data), 0)
    except IndexError:
        raise DamagedPages("the header of the dictionary page does not end") from None
    if header.kind != DICTIONARY_PAGE or header.stop + header.compressed_bytes != data.size:
        raise DamagedPages("what lies in front of the first data page is not a dictionary page of that size")
    return max(0, header.uncompressed_bytes)


def _memory_of(headers: Sequence[PageHeader], chunk: ChunkPages, entries: int) -> tuple[float, bool]:
    """Return the most bytes that pages take in memory, and whether they take about that many."""
    values = sum(header.values for header in headers)
    around = values * (OFFSET_BYTES + VALIDITY_BYTES)
    if chunk.width is not None:
        return values * chunk.width + around, True
    stored = sum(header.uncompressed_bytes for header in headers)
    if all(header.encoding in _SPELLED_OUT for header in headers):
        return stored + around, True
    # No value is longer than all entries of the dictionary, or than its page.
    return values * (entries + stored) + around, False


def _view(data: pa.Buffer) -> memoryview:
    return memoryview(data).cast("B")  # pyarrow's own have signed bytes


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _bad(group: StoredRowGroup, path: str, wrong: Exception) -> BadFile:
    return group.bad(str(wrong), _INDEX_CURE, column=path)
