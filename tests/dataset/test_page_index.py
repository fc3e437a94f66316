"""Offset indexes and page headers: what they say, what is refused, and what wrong ones do."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.dataset.column_chunks import ColumnChunks
from penstock.dataset.page_index import (
    ChunkPages,
    DamagedPages,
    PageIndex,
    Unsplittable,
    make_page_index,
    parse_offset_index,
    read_page_header,
    scan_pages,
)
from penstock.dataset.thrift import I32, I64, LIST, STRUCT, integer_bytes, list_bytes, struct_bytes
from tests.dataset.random_tables import random_table, write_options
from tests.depth import depth

CHUNK = ChunkPages(
    path="x", num_rows=30, start=100, stop=400, uncompressed_bytes=500, codec=0, repeated=False, width=8,
    index=(500, 600), data_pages=3, dictionary_pages=-1, dictionary_bytes=10, can_be_scanned=True,
)  # fmt: skip
PLACES = [(0, 110, 90), (10, 200, 100), (20, 300, 100)]


def stored(places) -> bytes:
    one = [
        struct_bytes([(1, I64, integer_bytes(offset)), (2, I32, integer_bytes(size)), (3, I64, integer_bytes(row))])
        for row, offset, size in places
    ]
    return struct_bytes([(1, LIST, list_bytes(STRUCT, one))])


def file_of(table: pa.Table, **options) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def chunk_of(data: bytes, leaf: int = 0, group: int = 0) -> ChunkPages:
    footer = data[-8 - int.from_bytes(data[-8:-4], "little") :]
    num_rows = pq.read_metadata(io.BytesIO(data)).row_group(group).num_rows
    return ChunkPages.of(footer, ColumnChunks(footer[:-8]), group, leaf, num_rows=num_rows)


def same(left: PageIndex, right: PageIndex) -> bool:
    return np.array_equal(left.rows, right.rows) and np.array_equal(left.offsets, right.offsets)


class TestOffsetIndex:
    def test_says_rows_and_bytes_of_pages(self):
        index = parse_offset_index(stored(PLACES), CHUNK)
        assert len(index) == 3
        assert index.rows.tolist() == [0, 10, 20, 30]
        assert index.offsets.tolist() == [110, 200, 300, 400]
        assert (index.start, index.dictionary_pages) == (100, 3)

    @pytest.mark.parametrize(
        ("rows", "pages"), [((0, 1), (0, 1)), ((9, 11), (0, 2)), ((10, 20), (1, 2)), ((29, 30), (2, 3))]
    )
    def test_span(self, rows, pages):
        assert parse_offset_index(stored(PLACES), CHUNK).span(*rows) == pages

    def test_pages_without_rows_belong_to_those_before_them(self):
        places = [(0, 100, 100), (10, 200, 50), (10, 250, 50), (30, 300, 100)]
        index = parse_offset_index(stored(places), CHUNK)
        assert index.span(0, 10) == (0, 2)
        assert index.span(10, 11) == (2, 3)
        assert index.span(0, 30) == (0, 4)
        assert index.bytes_of(np.array([0, 10, 30])).tolist() == [150, 150]

    @pytest.mark.parametrize(
        "places",
        [
            [],
            [(1, 110, 90), *PLACES[1:]],
            [PLACES[0], (31, 200, 100), PLACES[2]],
            [PLACES[0], (20, 200, 100), (10, 300, 100)],
            [PLACES[0], (-5, 200, 100), PLACES[2]],
            [PLACES[0], PLACES[2]],
            PLACES[:2],
            [*PLACES[:2], (20, 300, 101)],
            [*PLACES[:2], (20, 300, 99)],
            [(0, 90, 110), *PLACES[1:]],
            [PLACES[0], (10, 201, 99), PLACES[2]],
            [PLACES[0], (10, 200, -100), PLACES[2]],
            [(0, 110, 1 << 62), *PLACES[1:]],
            [(0, 110, 0), (10, 110, 190), PLACES[2]],
        ],
    )
    def test_that_contradicts_itself_or_the_footer_is_refused(self, places):
        with pytest.raises(DamagedPages, match="its offset index is damaged"):
            parse_offset_index(stored(places), CHUNK)

    @pytest.mark.parametrize("data", [b"", b"\0", b"\xff" * 20, stored(PLACES)[:-5], b"\x19\x15\x02\x00"])
    def test_that_is_not_one_is_refused(self, data):
        with pytest.raises(DamagedPages, match="offset index"):
            parse_offset_index(data, CHUNK)

    def test_every_changed_number_is_noticed(self):
        data, rng = stored(PLACES), np.random.default_rng(0)
        sound = parse_offset_index(data, CHUNK)
        noticed = 0
        for place in range(len(data)):
            for _ in range(8):
                changed = bytearray(data)
                changed[place] ^= int(rng.integers(1, 256))
                try:
                    found = parse_offset_index(bytes(changed), CHUNK)
                except DamagedPages:
                    noticed += 1
                    continue
                # Rows in order are all that remains possible: the pages themselves are compared when they are read.
                assert np.array_equal(found.offsets, sound.offsets)
                assert found.rows[0] == 0
                assert found.rows[-1] == 30
        assert noticed > 4 * len(data)

    def test_huge_lengths_are_refused_before_they_are_read(self):
        import dataclasses

        for size in (1 << 20, 1 << 50):
            with pytest.raises(DamagedPages, match=f"would lie at bytes 10 to {10 + (1 << 40)} of a file of {size}"):
                dataclasses.replace(CHUNK, index=(10, 10 + (1 << 40))).index_range(size)
        with pytest.raises(Unsplittable, match="no offset index"):
            dataclasses.replace(CHUNK, index=None).index_range(1 << 20)


class TestScan:
    @pytest.mark.parametrize("seed", range(depth(12, 200)))
    def test_gives_what_the_offset_index_says(self, seed):
        rng = np.random.default_rng(seed)
        table, options = random_table(rng, int(rng.integers(1, 200)), depth=2), write_options(rng)
        data = file_of(table, **options)
        for leaf in range(pq.read_metadata(io.BytesIO(data)).num_columns):
            chunk = chunk_of(data, leaf)
            start, stop = chunk.index_range(len(data))
            wanted = parse_offset_index(data[start:stop], chunk)
            lists = chunk.repeated and options["data_page_version"] == "1.0"
            if lists:
                with pytest.raises(Unsplittable, match="it holds lists and has no offset index"):
                    scan_pages(chunk, lambda a, b: data[a:b])
                continue
            found = scan_pages(chunk, lambda a, b: data[a:b])
            assert same(found, wanted)
            assert found.dictionary_pages == wanted.dictionary_pages

    def test_long_statistics_in_headers_are_read_to_their_end(self):
        table = pa.table({"x": ["a" * 4_000 + str(i) for i in range(40)]})
        data = file_of(table, data_page_size=1, write_batch_size=5, use_dictionary=False)
        chunk = chunk_of(data)
        header = read_page_header(data, chunk.start)
        assert header.stop - chunk.start > 4_096, "the header is longer than what is read at first"
        assert scan_pages(chunk, lambda a, b: data[a:b]).rows.tolist() == [0, 5, 10, 15, 20, 25, 30, 35, 40]

    def test_reads_little_of_the_pages(self):
        rng = np.random.default_rng(0)
        table = pa.table({"x": [rng.bytes(20_000) for _ in range(200)]})
        data = file_of(table, data_page_size=1 << 18, write_batch_size=10, use_dictionary=False)
        fetched = []
        index = scan_pages(chunk_of(data), lambda a, b: fetched.append(b - a) or data[a:b])
        assert len(index) == 10
        assert sum(fetched) < len(data) / 20

    @pytest.mark.parametrize("place", ["first", "later"])
    def test_damaged_headers_are_refused(self, place):
        table = pa.table({"x": np.arange(1_000)})
        data = bytearray(file_of(table, data_page_size=800, write_batch_size=100, use_dictionary=False))
        chunk = chunk_of(bytes(data))
        index = scan_pages(chunk, lambda a, b: bytes(data[a:b]))
        where = int(index.offsets[0 if place == "first" else 3])
        data[where : where + 4] = b"\xff\xff\xff\xff"
        with pytest.raises(DamagedPages):
            scan_pages(chunk, lambda a, b: bytes(data[a:b]))


class TestFooter:
    def test_says_where_index_and_pages_are(self):
        data = file_of(pa.table({"x": ["a", "b"] * 100, "y": range(200)}), write_page_index=True)
        chunk = chunk_of(data)
        assert chunk.path == "x"
        assert chunk.num_rows == 200
        assert chunk.index is not None
        assert (chunk.data_pages, chunk.dictionary_pages, chunk.codec) == (1, 1, 1)
        assert 4 == chunk.start < chunk.stop <= chunk_of(data, 1).start

    def test_files_without_an_index_have_none(self):
        assert chunk_of(file_of(pa.table({"x": [1, 2]}))).index is None

    def test_rows_are_those_of_the_footer(self):
        with pytest.raises(DamagedPages, match="the row group has 30 rows"):
            make_page_index(CHUNK, *np.empty((3, 0), np.int64))


@pytest.mark.parametrize("data", [b"\0", b"\x15\x0a\x15\x02\x15\x02\0", b"\x15\x00\x15\x02\x15\x02\0", b"\xff\xff"])
def test_bytes_that_are_not_a_page_header_are_refused(data):
    with pytest.raises((DamagedPages, IndexError)):
        read_page_header(data, 0)
