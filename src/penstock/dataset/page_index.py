"""Where the pages of a column chunk lie and which rows they hold: what is needed to read some rows of a row group.

A Parquet file may have an offset index for each column chunk: a list of its pages, which Spark always writes and
pyarrow when asked. `ChunkPages.of` says where that index lies, `parse_offset_index` checks it and returns a
`PageIndex`; for files without one, `scan_pages` makes the same from the page headers. `pages` reads rows by it.

An index that contradicts itself, the footer or a page raises `DamagedPages`; what is sound but cannot be read page by
page raises `Unsplittable`. Reads no files itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock.dataset.thrift import Struct, ThriftError, read_struct

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from numpy.typing import NDArray

    from penstock.dataset.column_chunks import ColumnChunks
    from penstock.storage.store import Range

    Integers = NDArray[np.int64]

# Field numbers of parquet.thrift.
_CHUNK_FILE, _CHUNK_META, _CHUNK_INDEX, _CHUNK_INDEX_BYTES, _CHUNK_ENCRYPTED = 1, 3, 4, 5, (8, 9)
_META_CODEC, _META_DATA, _META_PAGES = 4, 9, 13
_PAGES_TYPE, _PAGES_ENCODING, _PAGES_COUNT = 1, 2, 3
_INDEX_LOCATIONS, _LOCATION_OFFSET, _LOCATION_BYTES, _LOCATION_ROW = 1, 1, 2, 3
_HEADER_TYPE, _HEADER_UNCOMPRESSED, _HEADER_COMPRESSED = 1, 2, 3
_HEADER_V1, _HEADER_DICTIONARY, _HEADER_V2 = 5, 7, 8
_ENCODING, _V2_ROWS, _V2_ENCODING = 2, 3, 4

DATA_PAGE, _INDEX_PAGE, DICTIONARY_PAGE, DATA_PAGE_V2 = range(4)
_BY_DICTIONARY = frozenset({2, 8})
"""Encodings PLAIN_DICTIONARY and RLE_DICTIONARY."""
_MOST_INDEX_BYTES = 64 << 20
"""Of one offset index. At 10 bytes a page, that is a column chunk of millions of pages: a damaged length."""
_HEADER_GUESS = 4 << 10
"""Bytes in which most page headers end; longer ones hold long values as statistics."""
_MOST_HEADER_BYTES = 16 << 20


LISTS_WITHOUT_INDEX = (
    "it holds lists and has no offset index, without which their rows cannot be found in its pages "
    "(write_page_index=True)"
)


class Unsplittable(ValueError):
    """The pages of a column cannot be read one by one. The message is the reason; reading it whole works."""


class DamagedPages(ValueError):
    """An offset index or a page contradicts itself or the footer. The message says how."""

    def __init__(self, wrong: str, leaf: int | None = None) -> None:
        super().__init__(wrong)
        self.leaf = leaf
        """Place of the leaf in the list that was given; None where there was only one."""


@dataclass(frozen=True, slots=True)
class ChunkPages:
    """What the footer says about the pages of one column chunk."""

    path: str
    """The leaf that the column chunk belongs to."""
    num_rows: int
    """Rows of the row group."""
    start: int
    """First byte of the column chunk: of its dictionary page, if there is one."""
    stop: int
    uncompressed_bytes: int
    codec: int
    """Number of the compression."""
    repeated: bool
    """Whether a row may hold any number of values."""
    width: int | None
    """Bytes of a value; None if they vary."""
    index: Range | None
    """Where the offset index lies in the file; None: there is none."""
    data_pages: int
    """How many data pages there are; -1 where the writer has not noted it."""
    dictionary_pages: int
    """How many of them use the dictionary: the first ones, for writers give up on a dictionary once and for all. -1
    where the writer has not noted it."""
    dictionary_bytes: int
    """Bytes in front of the first data page, if some pages may use the dictionary."""
    can_be_scanned: bool
    """Whether the headers of pages count rows: all but those of lists in version 1."""

    @classmethod
    def of(cls, footer: bytes, chunks: ColumnChunks, group: int, leaf: int, *, num_rows: int) -> ChunkPages:
        """Return what a footer says about a column chunk; `footer` holds its bytes from the first on.

        Raises:
            Unsplittable: the column chunk is encrypted, or in another file.
            ThriftError: the footer is damaged.
        """
        try:
            found, _ = read_struct(footer, int(chunks.positions[group][leaf]))
        except IndexError:
            raise ThriftError("the footer ends within a column chunk") from None
        meta = found.get(_CHUNK_META)
        if not found.keys().isdisjoint(_CHUNK_ENCRYPTED) or not isinstance(meta, dict):
            raise Unsplittable("it is encrypted")
        if found.get(_CHUNK_FILE):
            raise Unsplittable("it lies in another file than its footer")
        place, size = found.get(_CHUNK_INDEX), found.get(_CHUNK_INDEX_BYTES)
        index = (place, place + size) if type(place) is int and type(size) is int and place > 0 and size > 0 else None
        start, stop = chunks.range_of(group, leaf)
        noted, by_dictionary = meta.get(_META_PAGES), _count_pages(meta.get(_META_PAGES), _BY_DICTIONARY)
        first = _integer(meta, _META_DATA, "its first data page")
        return cls(
            path=chunks.leaves[leaf].path,
            num_rows=num_rows,
            start=start,
            stop=stop,
            uncompressed_bytes=int(chunks.uncompressed_bytes[group, leaf]),
            codec=_integer(meta, _META_CODEC, "the compression"),
            repeated=chunks.leaves[leaf].repeated,
            width=chunks.leaves[leaf].width,
            index=index,
            data_pages=_count_pages(noted),
            dictionary_pages=by_dictionary,
            dictionary_bytes=min(max(0, first - start), stop - start) if by_dictionary else 0,
            can_be_scanned=not chunks.leaves[leaf].repeated or _count_pages(noted, kinds=(DATA_PAGE,)) == 0,
        )

    def index_range(self, file_bytes: int) -> Range:
        """Return where the offset index lies in its file.

        Raises:
            Unsplittable: there is none.
            DamagedPages: it cannot lie there.
        """
        if self.index is None:
            raise Unsplittable("it has no offset index")
        start, stop = self.index
        if stop > file_bytes or stop - start > _MOST_INDEX_BYTES:
            raise DamagedPages(f"its offset index would lie at bytes {start} to {stop} of a file of {file_bytes}")
        return self.index


@dataclass(frozen=True, slots=True)
class PageIndex:
    """The data pages of one column chunk. They lie one behind the other, and each begins with a row."""

    rows: Integers
    """First row of each page, and behind the last one the rows of the row group."""
    offsets: Integers
    """First byte of each page in the file, header included, and behind the last one the end of the column chunk."""
    start: int
    """First byte of the column chunk. A dictionary page lies between it and the first data page, if anything does."""
    dictionary_pages: int
    """How many pages may use the dictionary: the first ones."""

    def __len__(self) -> int:
        return len(self.rows) - 1

    def span(self, start: int, stop: int) -> tuple[int, int]:
        """Return the pages that hold rows `start` to `stop`, of which there is at least one: the first, and the stop.

        Raises:
            IndexError: the row group has no such rows.
        """
        if not 0 <= start < stop <= self.rows[-1]:
            raise IndexError(f"rows {start} to {stop} were requested of a row group of {self.rows[-1]}")
        first, last = self._spans(np.array([start]), np.array([stop]))
        return int(first[0]), int(last[0])

    def ranges(self, start: int, stop: int) -> list[Range]:
        """Return the bytes that hold rows `start` to `stop`: pages, behind the dictionary page where they need it."""
        first, last = self.span(start, stop)
        pages = int(self.offsets[first]), int(self.offsets[last])
        dictionary = self.start, int(self.offsets[0])
        if first >= self.dictionary_pages or dictionary[0] == dictionary[1]:
            return [pages]
        return [(self.start, pages[1])] if first == 0 else [dictionary, pages]

    def bytes_of(self, borders: Integers) -> Integers:
        """Return the bytes that `ranges` has for each part of the row group; `borders` are those of its rows."""
        first, last = self._spans(borders[:-1], borders[1:])
        dictionary = np.where(first < self.dictionary_pages, int(self.offsets[0]) - self.start, 0)
        found: Integers = self.offsets[last] - self.offsets[first] + dictionary
        return found

    def _spans(self, start: Integers, stop: Integers) -> tuple[Integers, Integers]:
        """Return the first pages, and the stops. Pages without rows belong to those before them.

        pyarrow writes such pages, which are empty. A row that goes on in the next page, which a file with an offset
        index must not have, would make one too: it is read, so that it is noticed.
        """
        first = np.searchsorted(self.rows, start, "right") - 1
        last = np.searchsorted(self.rows, stop, "left")
        return first, np.maximum(last, np.searchsorted(self.rows[1:], stop, "right"))


def make_page_index(chunk: ChunkPages, rows: Integers, offsets: Integers, sizes: Integers) -> PageIndex:
    """Return the index of pages that begin with these rows, at these bytes, with these sizes; checks everything.

    Raises:
        DamagedPages: they are not the pages of this column chunk.
    """
    if not len(rows):
        raise DamagedPages(f"it lists no pages, and the row group has {chunk.num_rows} rows")
    rows, ends = np.append(rows, chunk.num_rows), offsets + sizes
    if rows[0] != 0 or (np.diff(rows) < 0).any():
        raise DamagedPages(f"its pages do not begin with ascending rows from 0 up to {chunk.num_rows}")
    wrong = np.flatnonzero(np.append(ends[:-1] != offsets[1:], ends[-1] != chunk.stop) | (sizes <= 0))
    if len(wrong) or offsets[0] < chunk.start:
        page = int(wrong[0]) if len(wrong) else 0
        raise DamagedPages(
            f"page {page} of {len(offsets)} is listed at bytes {offsets[page]} to {ends[page]}, which does not fit the "
            f"pages beside it or the column chunk at bytes {chunk.start} to {chunk.stop}"
        )
    most = len(offsets) if chunk.dictionary_pages < 0 else min(chunk.dictionary_pages, len(offsets))
    return PageIndex(rows, np.append(offsets, chunk.stop), chunk.start, most)


def parse_offset_index(data: Any, chunk: ChunkPages) -> PageIndex:
    """Return the pages that an offset index lists; `data` is that index as stored.

    Raises:
        DamagedPages: it is damaged, or does not fit the column chunk.
    """
    try:
        found, _ = read_struct(bytes(data), 0)
        places = [
            (place[_LOCATION_ROW], place[_LOCATION_OFFSET], place[_LOCATION_BYTES]) for place in found[_INDEX_LOCATIONS]
        ]
        rows, offsets, sizes = np.array(places, np.int64).reshape(-1, 3).T
    except (ThriftError, IndexError, KeyError, TypeError, ValueError, OverflowError) as exc:
        raise DamagedPages(f"its offset index cannot be parsed ({type(exc).__name__}: {exc})") from exc
    try:
        return make_page_index(chunk, rows, offsets, sizes)
    except DamagedPages as exc:
        raise DamagedPages(f"its offset index is damaged: {exc}") from None


class PageHeader(NamedTuple):
    """What stands in front of a page."""

    kind: int
    stop: int
    """Position behind the header."""
    compressed_bytes: int
    """Bytes of the page behind its header."""
    uncompressed_bytes: int
    values: int
    """Values, nulls included; of lists, with one for each empty or null list."""
    rows: int
    """-1 where the header does not tell: in pages of version 1, in which only values are counted."""
    encoding: int

    @property
    def uses_dictionary(self) -> bool:
        """Whether values are numbers of entries of the dictionary."""
        return self.encoding in _BY_DICTIONARY


def read_page_header(data: Any, position: int) -> PageHeader:
    """Return the header of the page that begins at a position.

    Raises:
        DamagedPages: there is none.
        IndexError: the bytes end within it.
    """
    try:
        header, stop = read_struct(data, position)
    except ThriftError as exc:
        raise DamagedPages(f"a page header cannot be parsed ({exc})") from exc
    kind, uncompressed = _integer(header, _HEADER_TYPE, "its type"), _integer(header, _HEADER_UNCOMPRESSED, "its size")
    compressed = _integer(header, _HEADER_COMPRESSED, "its compressed size")
    number = {DATA_PAGE: _HEADER_V1, DICTIONARY_PAGE: _HEADER_DICTIONARY, DATA_PAGE_V2: _HEADER_V2}.get(kind)
    more = None if number is None else header.get(number)
    if not isinstance(more, dict):
        raise DamagedPages(f"a page header has the type {kind}, which is not a dictionary or data page")
    values = _integer(more, 1, "its number of values")
    rows = _integer(more, _V2_ROWS, "its rows") if kind == DATA_PAGE_V2 else -1
    encoding = _integer(more, _V2_ENCODING if kind == DATA_PAGE_V2 else _ENCODING, "its encoding")
    return PageHeader(kind, stop, compressed, uncompressed, values, rows, encoding if kind != DICTIONARY_PAGE else -1)


def scan_pages(chunk: ChunkPages, fetch: Callable[[int, int], Any]) -> PageIndex:
    """Return the pages of a column chunk of a file without an offset index, from the headers of its pages.

    `fetch` returns the bytes between two places of the file. Reads some kilobytes for each page.

    Raises:
        Unsplittable: the column holds lists in pages of version 1, whose headers do not count rows.
        DamagedPages: the headers are damaged, or do not fit the column chunk.
    """
    reader, places = _HeaderReader(chunk, fetch), []
    row, position, used = 0, chunk.start, 0
    while position < chunk.stop:  # also behind the last row: pyarrow writes empty pages
        header = reader.at(position)
        size = header.stop + header.compressed_bytes
        if header.kind == DICTIONARY_PAGE and position == chunk.start:
            position += size
            continue
        if header.rows < 0 and chunk.repeated:
            raise Unsplittable(LISTS_WITHOUT_INDEX)
        if header.kind == DICTIONARY_PAGE:
            raise DamagedPages(f"a second dictionary page lies at byte {position}")
        places.append((row, position, size))
        used = len(places) if header.uses_dictionary else used
        row, position = row + (header.values if header.rows < 0 else header.rows), position + size
    found = make_page_index(chunk, *np.array(places, np.int64).reshape(-1, 3).T)
    if row != chunk.num_rows:
        raise DamagedPages(f"its pages hold {row} rows, the row group {chunk.num_rows}")
    return PageIndex(found.rows, found.offsets, found.start, used)


class _HeaderReader:
    """Reads page headers of one column chunk, some kilobytes at a time."""

    def __init__(self, chunk: ChunkPages, fetch: Callable[[int, int], Any]) -> None:
        self._chunk, self._fetch = chunk, fetch
        self._start, self._data = chunk.start, b""

    def at(self, position: int) -> PageHeader:
        """Return the header at a place of the file; its `stop` counts from there."""
        size = _HEADER_GUESS
        while position < self._chunk.stop and size <= _MOST_HEADER_BYTES:
            try:
                header = read_page_header(self._data, position - self._start)
            except (IndexError, DamagedPages):
                if position == self._start and len(self._data) >= self._chunk.stop - position:
                    raise DamagedPages(f"there is no page header at byte {position}") from None
                self._start = position
                self._data = bytes(self._fetch(position, min(position + size, self._chunk.stop)))
                size *= 8
                continue
            if min(header.compressed_bytes, header.uncompressed_bytes, header.values) < 0:
                raise DamagedPages(f"the page header at byte {position} has a negative size")
            return header._replace(stop=header.stop - (position - self._start))
        raise DamagedPages(f"its pages end at byte {position}, before all rows have come")


def _integer(struct: Struct, number: int, what: str) -> int:
    value = struct.get(number)
    if type(value) is not int:
        raise DamagedPages(f"a page header or column chunk lacks {what}")
    return value


def _count_pages(
    statistics: Any, encodings: Collection[int] | None = None, kinds: Collection[int] = (DATA_PAGE, DATA_PAGE_V2)
) -> int:
    """Return how many data pages of some encodings (None: of all) and kinds a writer has noted; -1: it has not."""
    if not isinstance(statistics, list) or not statistics:
        return -1
    count = 0
    for one in statistics:
        numbers = [one.get(field) for field in (_PAGES_TYPE, _PAGES_ENCODING, _PAGES_COUNT)]
        if not all(type(number) is int and number >= 0 for number in numbers):
            return -1
        kind, encoding, pages = numbers
        if kind in kinds and (encodings is None or encoding in encodings):
            count += pages
    return count
