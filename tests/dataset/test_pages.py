"""Rows of a row group read from its pages equal the same rows of a whole read, whatever the types and the writer."""

import base64
import inspect
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.dataset.page_index import read_page_header
from penstock.dataset.pages import RowGroupPages, narrow_columns, open_pages
from penstock.dataset.parquet import open_parquet
from penstock.dataset.read import CAN_VERIFY
from penstock.errors import BadFile, BudgetError
from tests.dataset.random_tables import random_table, write_options
from tests.depth import depth
from tests.house import ROOT


def pages_of(path: Path, names: list[str] | None = None, group: int = 0) -> RowGroupPages:
    stored = open_parquet(path).part(group)
    return open_pages(stored, pq.read_schema(path).names if names is None else names)


def write(path: Path, table: pa.Table, **options) -> Path:
    pq.write_table(table, path, **{"write_page_index": True, **options})
    return path


def images(num_rows: int = 1_000) -> pa.Table:
    rng = np.random.default_rng(0)
    return pa.table(
        {
            "id": np.arange(num_rows),
            "label": [f"class {i // 40}" for i in range(num_rows)],
            "image": pa.array([rng.bytes(int(k)) for k in rng.integers(200, 600, num_rows)], pa.binary()),
        }
    )


@pytest.mark.parametrize("seed", range(depth(25, 600)))
def test_any_range_of_rows_equals_a_whole_read(tmp_path, seed):
    rng = np.random.default_rng(seed)
    table, options = random_table(rng, int(rng.integers(1, 300))), write_options(rng)
    path = write(tmp_path / "a.parquet", table, row_group_size=200, **options)
    for group in range(pq.read_metadata(path).num_row_groups):
        pages = pages_of(path, group=group)
        whole = pq.ParquetFile(path).read_row_group(group)
        assert not pages.whole
        for _ in range(6):
            start = int(rng.integers(len(whole)))
            stop = int(rng.integers(start + 1, len(whole) + 1))
            part = pages.read(start, stop)
            part.validate(full=True)
            wanted = whole.slice(start, stop - start)
            assert part.schema.equals(wanted.schema.remove_metadata(), check_metadata=True)
            assert part.to_pylist() == wanted.to_pylist(), options


def test_columns_come_in_the_order_requested_and_leaves_of_structs_by_path(tmp_path):
    rows = [{"bytes": bytes(50 + i), "path": str(i), "size": {"h": i, "w": None}} for i in range(200)]
    table = pa.table({"id": range(200), "image": [None if i == 5 else row for i, row in enumerate(rows)]})
    path = write(tmp_path / "a.parquet", table, data_page_size=100, write_batch_size=8, use_dictionary=False)
    names = ["image.size.w", "id", "image.path"]
    source = open_parquet(path)
    part = open_pages(source.part(0), names).read(3, 9)
    assert part.equals(source.read(0, names).slice(3, 6))
    assert part.column("image.path").to_pylist() == ["3", "4", None, "6", "7", "8"]


def test_a_list_of_structs_is_read_by_pages_of_each_leaf(tmp_path):
    turns = [[{"role": "user", "content": "hello " * (i % 50)} for _ in range(i % 4)] for i in range(500)]
    path = write(tmp_path / "a.parquet", pa.table({"turns": turns}), data_page_size=500, write_batch_size=10)
    pages = pages_of(path)
    assert len({len(index) for index in pages.indexes}) == 2, "the leaves have different pages"
    assert pages.read(201, 207).column("turns").to_pylist() == turns[201:207]


def test_a_struct_that_is_not_nullable_inside_of_a_null_one(tmp_path):
    inner = pa.struct([pa.field("map", pa.map_(pa.string(), pa.int8())), pa.field("x", pa.struct([("y", pa.int32())]))])
    outer = pa.struct([pa.field("a", pa.list_(pa.int32()), False), pa.field("b", inner, False)])
    rows = [None if i % 3 else {"a": [i], "b": {"map": [("k", 1)], "x": {"y": i}}} for i in range(60)]
    table = pa.table({"s": pa.array(rows, outer)})
    pages = pages_of(write(tmp_path / "a.parquet", table, data_page_size=300, write_batch_size=4))
    for start in range(50):
        assert pages.read(start, start + 10).equals(table.slice(start, 10))


def test_ranges_are_the_pages_that_hold_the_rows_and_the_dictionary_only_if_they_use_it(tmp_path):
    rng = np.random.default_rng(0)
    table = pa.table({"x": pa.array([rng.bytes(100) for _ in range(1_000)])})
    path = write(
        tmp_path / "a.parquet", table, data_page_size=1_000, write_batch_size=10, dictionary_pagesize_limit=2_000
    )
    pages = pages_of(path)
    index = pages.indexes[0]
    assert 0 < index.dictionary_pages < len(index), "the writer gave up on the dictionary"
    assert index.offsets[0] > index.start
    late = pages.ranges(990, 991)
    assert late == [(int(index.offsets[-2]), int(index.offsets[-1]))]
    assert pages.ranges(0, 1) == [(index.start, int(index.offsets[1]))]
    assert len(pages.ranges(int(index.rows[1]), int(index.rows[1]) + 1)) == (2 if index.dictionary_pages > 1 else 1)
    fetched = []
    pages.read(990, 991, lambda ranges: fetched.extend(ranges) or pages.group.fetch(ranges))
    assert fetched == late


def test_a_dictionary_that_the_footer_does_not_announce_is_fetched(tmp_path):
    table = pa.table({"x": ["a", "b"] * 500})
    pages = pages_of(write(tmp_path / "a.parquet", table, data_page_size=1, write_batch_size=100))
    wrong = [replace(index, dictionary_pages=0) for index in pages.indexes]
    pages = replace(pages, indexes=wrong)
    assert len(wrong[0]) == 10
    assert pages.ranges(500, 503) == [(int(wrong[0].offsets[5]), int(wrong[0].offsets[6]))]
    assert pages.read(500, 503).column("x").to_pylist() == ["a", "b", "a"]


def test_no_columns_give_rows_without_columns(tmp_path):
    path = write(tmp_path / "a.parquet", images(10))
    table = pages_of(path, []).read(2, 7)
    assert (table.num_rows, table.num_columns) == (5, 0)


@pytest.mark.parametrize("rows", [(0, 0), (3, 2), (-1, 2), (0, 11), (10, 12)])
def test_rows_that_are_not_there_are_refused(tmp_path, rows):
    with pytest.raises(IndexError, match="of a row group of 10"):
        pages_of(write(tmp_path / "a.parquet", images(10))).read(*rows)


def test_files_without_an_offset_index_say_so(tmp_path):
    path = write(tmp_path / "a.parquet", images(10), write_page_index=False)
    pages = pages_of(path)
    assert pages.whole == dict.fromkeys(["id", "label", "image"], "it has no offset index")
    assert pages.names == ()


def test_narrow_columns_are_those_of_which_every_part_needs_most_pages(tmp_path):
    path = write(
        tmp_path / "a.parquet", images(1_000), data_page_size=4_000, write_batch_size=10, use_dictionary=["label"]
    )
    pages = pages_of(path)
    borders = np.arange(0, 1_001, 100)
    assert [len(index) > 50 for index in pages.indexes] == [False, False, True]
    assert narrow_columns(pages, borders) == ["label"]
    assert narrow_columns(pages, borders, most=0) == ["id", "label", "image"]
    assert narrow_columns(pages, np.array([0, 1_000])) == ["id", "label", "image"]
    for index in pages.indexes:
        needed = [sum(b - a for a, b in index.ranges(i, i + 100)) for i in range(0, 1_000, 100)]
        assert index.bytes_of(borders).tolist() == needed
    assert pages.bytes_of(borders).sum() == sum(index.bytes_of(borders).sum() for index in pages.indexes)


def test_a_damaged_page_names_file_row_group_and_column(tmp_path):
    path = write(
        tmp_path / "a.parquet", images(), row_group_size=500, data_page_size=1_000, compression="zstd",
        use_dictionary=False, write_batch_size=10,
    )  # fmt: skip
    pages = pages_of(path, ["id", "image"], 1)
    index = pages.indexes[1]
    data = bytearray(path.read_bytes())
    body = read_page_header(bytes(data), int(index.offsets[3])).stop
    data[body : int(index.offsets[4])] = b"\xff" * (int(index.offsets[4]) - body)
    fetch = lambda ranges: [bytes(data[a:b]) for a, b in ranges]  # noqa: E731 -- one line
    assert pages.read(0, int(index.rows[3]), fetch).num_rows == index.rows[3]
    where = rf"a\.parquet, row group 1, column 'image': rows 0 to {index.rows[4]}: its pages cannot be decoded"
    with pytest.raises(BadFile, match=where) as info:
        pages.read(0, int(index.rows[4]), fetch)
    assert "parts=False" not in str(info.value), "whole row groups hold the same page"
    assert (info.value.row_group, info.value.column) == (1, "image")


@pytest.mark.skipif(
    "write_page_checksum" not in inspect.signature(pq.write_table).parameters, reason="this pyarrow writes no checksums"
)
def test_checksums_are_verified_where_the_row_group_asks_for_it(tmp_path):
    path = write(
        tmp_path / "a.parquet", images(100), data_page_size=1_000, write_batch_size=10, compression="none",
        write_page_checksum=True, use_dictionary=False,
    )  # fmt: skip
    pages = pages_of(path, ["image"])
    data = bytearray(path.read_bytes())
    data[int(pages.indexes[0].offsets[1]) - 3] ^= 1  # a byte of the last picture of page 0
    fetch = lambda ranges: [bytes(data[a:b]) for a, b in ranges]  # noqa: E731 -- one line
    assert pages.read(0, 5, fetch).num_rows == 5
    checked = replace(pages, group=replace(pages.group, verify=True))
    with pytest.raises(BadFile, match=r"column 'image'.*(?i:crc|checksum)"):
        checked.read(0, 5, fetch)
    assert checked.read(50, 55, fetch).equals(images(100).select(["image"]).slice(50, 5))


class PointType(pa.ExtensionType):
    """A pair of numbers, which Parquet stores as two leaves."""

    def __init__(self):
        super().__init__(pa.struct([("x", pa.float32()), ("y", pa.float32())]), "penstock.tests.point")

    def __arrow_ext_serialize__(self):
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type, serialized):
        return cls()


@pytest.mark.parametrize("registered", [False, True])
def test_extension_types(tmp_path, registered):
    points = pa.array([None if i % 7 == 0 else {"x": i, "y": -i} for i in range(200)], PointType().storage_type)
    tensor = pa.fixed_shape_tensor(pa.int32(), [2, 2])
    tensors = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(800, dtype=np.int32)), 4)
    table = pa.table(
        {
            f"point {registered}": pa.ExtensionArray.from_storage(PointType(), points),
            "tensor": pa.ExtensionArray.from_storage(tensor, tensors),
        }
    )
    path = write(tmp_path / "a.parquet", table, data_page_size=300, write_batch_size=8, use_dictionary=False)
    group = open_parquet(path).part(0)
    if registered:
        pa.register_extension_type(PointType())
    try:
        whole = pq.ParquetFile(path).read_row_group(0)
        assert isinstance(whole.schema.field(0).type, pa.ExtensionType) == registered
        pages = open_pages(group, table.column_names)
        for start in range(0, 190, 9):
            part, wanted = pages.read(start, start + 10), whole.slice(start, 10)
            assert part.schema.equals(wanted.schema.remove_metadata(), check_metadata=True)
            assert part.equals(wanted)
    finally:
        if registered:
            pa.unregister_extension_type("penstock.tests.point")


def test_rows_do_not_keep_much_larger_pages_in_memory(tmp_path):
    path = write(tmp_path / "a.parquet", images(), use_dictionary=False)
    part = pages_of(path).read(10, 20)
    kept = sum(buffer.size for column in part.columns for buffer in column.chunk(0).buffers() if buffer is not None)
    assert kept < 2 * part.nbytes


class TestLimit:
    LONG = "long " * 20_000

    @pytest.fixture(params=["flat", "nested", "struct", "dictionary"])
    def pages(self, request, tmp_path) -> RowGroupPages:
        """A few kilobytes that are a hundred megabytes of text in memory."""
        words = [self.LONG, "short"] * 1_000
        columns = {
            "flat": pa.array(words),
            "nested": pa.array([[word, None] for word in words]),
            "struct": pa.array([{"a": word, "b": 1} for word in words]),
            "dictionary": pa.array(words).dictionary_encode(),
        }
        table = pa.table({"id": range(2_000), "x": columns[request.param]})
        return pages_of(write(tmp_path / "a.parquet", table, data_page_size=1, write_batch_size=100))

    def test_what_does_not_fit_is_refused_before_it_is_in_memory(self, pages):
        if pa.types.is_dictionary(pages.file.types[1]):
            assert pages.read(0, 2_000, limit_bytes=1_000_000).num_rows == 2_000
            return
        before = pa.default_memory_pool().max_memory()
        with pytest.raises(BudgetError, match=r"row group 0, rows 300 to 1700: the columns take .* bytes or more"):
            pages.read(300, 1_700, limit_bytes=10_000_000)
        assert pa.default_memory_pool().max_memory() - before < 10_000_000

    def test_what_fits_is_read(self, pages):
        part = pages.read(300, 340, limit_bytes=10_000_000)
        assert part.schema.field("x").type == pages.file.fields[1].type
        assert part.to_pylist() == pages.read(300, 340).to_pylist()

    def test_values_that_are_stored_with_all_their_bytes_are_counted_before_they_are_decoded(self, tmp_path):
        pages = pages_of(write(tmp_path / "a.parquet", images(), use_dictionary=False, write_batch_size=100))
        assert pages.read(0, 1_000, limit_bytes=600_000).num_rows == 1_000
        with pytest.raises(BudgetError, match="rows 0 to 1000") as info:
            pages.read(0, 1_000, limit_bytes=300_000)
        assert 300_000 < info.value.least < 600_000

    def test_text_of_which_pyarrow_makes_no_dictionaries_is_measured_too(self, tmp_path):
        texts = [f"{i // 7} of a text of which the next one repeats the beginning, {i}" for i in range(2_000)]
        table = pa.table({"text": texts, "nested": [[text, None] for text in texts]})
        names = ["text", "nested.list.element"]
        pages = pages_of(
            write(
                tmp_path / "a.parquet", table, use_dictionary=False, data_page_size=1_000, write_batch_size=100,
                column_encoding=dict.fromkeys(names, "DELTA_BYTE_ARRAY"), data_page_version="2.0",
            )
        )  # fmt: skip
        assert pages.read(200, 900, limit_bytes=200_000).equals(table.slice(200, 700))
        with pytest.raises(BudgetError, match="rows 200 to 900: the columns take"):
            pages.read(200, 900, limit_bytes=60_000)

    @pytest.mark.skipif(not hasattr(pa, "string_view"), reason="this pyarrow has no views")
    def test_views_that_may_be_too_large_are_read(self, tmp_path):
        texts = pa.array(
            [None if i % 7 == 0 else f"a text that is too long to be inlined, {i % 300}" for i in range(2_000)]
        )
        offsets = pa.array(range(0, 2_001, 2), pa.int32())
        table = pa.table(
            {
                "text": texts.cast(pa.string_view())[:1_000],
                "nested": pa.ListArray.from_arrays(offsets, texts.cast(pa.string_view())),
            }
        )
        try:
            pages = pages_of(write(tmp_path / "a.parquet", table, data_page_size=100, write_batch_size=100))
        except pa.ArrowNotImplementedError:
            pytest.skip("this pyarrow does not write views")
        assert pages.read(200, 900, limit_bytes=200_000).to_pylist() == table.slice(200, 700).to_pylist()


SPARK_FILES = sorted((ROOT / "tests/data/spark_pages").glob("*.parquet"))


@pytest.mark.parametrize("path", SPARK_FILES, ids=lambda path: path.stem)
def test_files_that_spark_wrote(path):
    rng = np.random.default_rng(0)
    source, file = open_parquet(path), pq.ParquetFile(path)
    assert file.metadata.created_by.startswith("parquet-mr version 1.1")
    for number in range(file.num_row_groups):
        pages = open_pages(replace(source.part(number), verify=CAN_VERIFY), file.schema_arrow.names)
        whole = file.read_row_group(number)
        assert not pages.whole
        assert max(len(index) for index in pages.indexes) > len(whole) / 60
        for _ in range(depth(15, 400)):
            start = int(rng.integers(len(whole)))
            stop = int(rng.integers(start + 1, len(whole) + 1))
            part = pages.read(start, stop)
            assert part.equals(whole.slice(start, stop - start).replace_schema_metadata(None))


def test_spark_gives_up_dictionaries_and_cuts_leaves_differently():
    [path] = [one for one in SPARK_FILES if one.stem == "spark-4.2-v1"]
    pages = pages_of(path)
    assert any(0 < index.dictionary_pages < len(index) for index in pages.indexes)
    assert any(index.dictionary_pages == len(index) for index in pages.indexes)
    leaves = [
        index for chunk, index in zip(pages.chunks, pages.indexes, strict=True) if chunk.path.startswith("turns.")
    ]
    assert len(leaves) == 2
    assert leaves[0].rows.tolist() != leaves[1].rows.tolist()


def test_encrypted_columns_are_left_to_a_whole_read(tmp_path):
    encryption = pytest.importorskip("pyarrow.parquet.encryption")

    class Kms(encryption.KmsClient):
        def wrap_key(self, key_bytes, master_key_identifier):
            return base64.b64encode(key_bytes)

        def unwrap_key(self, wrapped_key, master_key_identifier):
            return base64.b64decode(wrapped_key)

    config = encryption.EncryptionConfiguration(
        footer_key="footer", column_keys={"column": ["label"]}, plaintext_footer=True
    )
    factory, connection = encryption.CryptoFactory(lambda _: Kms()), encryption.KmsConnectionConfig()
    properties = factory.file_encryption_properties(connection, config)
    path = write(tmp_path / "a.parquet", images(), encryption_properties=properties, write_batch_size=100)
    pages = pages_of(path)
    assert pages.whole == {"label": "it is encrypted"}
    assert pages.read(5, 9).equals(images().select(["id", "image"]).slice(5, 4))
