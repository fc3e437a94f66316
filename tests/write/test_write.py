"""What `write` stores is what went in: bytes of the codecs, order, schema, row groups, partitions."""

import datetime
import decimal
import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings

from penstock.codecs import CompressedImageCodec, CompressedNdarrayCodec, NdarrayCodec, ScalarCodec
from penstock.dataset.pages import open_pages, part_facts
from penstock.dataset.parquet import open_parquet
from penstock.dataset.parts import part_borders
from penstock.errors import PlanError, SchemaError
from penstock.schema.stored import SCHEMA_KEY, schema_from_json, schema_to_json
from penstock.schema.unischema import Unischema, UnischemaField
from penstock.testing import assert_same, mixed, random_rows, strategies
from penstock.write import Written, write
from penstock.write.layout import CHECKSUMS
from tests.depth import depth

SCHEMA = Unischema(
    "Frames",
    [
        UnischemaField("id", np.int32, (), ScalarCodec(), False),
        UnischemaField("tiny", np.uint8, (), ScalarCodec(), True),
        UnischemaField("name", np.str_, (), ScalarCodec(), True),
        UnischemaField("money", decimal.Decimal, (), ScalarCodec(pa.decimal128(10, 2)), True),
        UnischemaField("array", np.float32, (None, 3), NdarrayCodec(), True),
        UnischemaField("zipped", np.int64, (4,), CompressedNdarrayCodec(), False),
        UnischemaField("image", np.uint8, (6, 5, 3), CompressedImageCodec("png"), True),
        UnischemaField("plain", np.int16, (None,), None, True),
    ],
)
IDS = Unischema("Ids", [UnischemaField("id", np.int64, (), ScalarCodec(), False)])


def rows_of(count: int) -> list[dict[str, Any]]:
    return list(random_rows(SCHEMA, count, seed=1))


def ids(count: int) -> list[dict[str, Any]]:
    return [{"id": i} for i in range(count)]


def files(root: Path) -> list[Path]:
    return sorted(root.rglob("*.parquet"))


def group_rows(root: Path) -> list[list[int]]:
    footers = [pq.read_metadata(path) for path in files(root)]
    return [[footer.row_group(g).num_rows for g in range(footer.num_row_groups)] for footer in footers]


def read(root: Path) -> pa.Table:
    return pa.concat_tables([pq.read_table(path, partitioning=None) for path in files(root)])


def decoded(root: Path, schema: Unischema) -> list[dict[str, Any]]:
    def value(field: UnischemaField, cell: Any) -> Any:
        if cell is None:
            return None
        return np.array(cell, field.numpy_dtype) if field.codec is None else field.codec.decode(field, cell)

    return [{n: value(schema.fields[n], row[n]) for n in schema.fields} for row in read(root).to_pylist()]


def test_rows_come_back_equal_and_in_order(tmp_path: Path) -> None:
    rows = rows_of(40)
    written = write(iter(rows), tmp_path / "d", SCHEMA)
    assert (written.rows, written.files, written.row_groups) == (40, 1, 1)
    assert written.bytes == sum(path.stat().st_size for path in files(tmp_path / "d"))
    for got, row in zip(decoded(tmp_path / "d", SCHEMA), rows, strict=True):
        for name, value in row.items():
            assert (got[name] is None) == (value is None)
            if value is not None:
                assert_same(np.asarray(got[name]), np.asarray(value))


def test_cells_are_the_bytes_of_the_codecs(tmp_path: Path) -> None:
    rows = rows_of(5)
    write(rows, tmp_path / "d", SCHEMA)
    memory = io.BytesIO()
    array = next(row["array"] for row in rows if row["array"] is not None)
    np.save(memory, array)
    stored = [cell for cell in read(tmp_path / "d")["array"].to_pylist() if cell is not None]
    assert stored[0] == memory.getvalue()


def test_stored_types_and_nullability_are_petastorms(tmp_path: Path) -> None:
    write(rows_of(3), tmp_path / "d", SCHEMA)
    schema = pq.read_schema(files(tmp_path / "d")[0])
    assert [str(field.type) for field in schema][:4] == ["int32", "int16", "string", "decimal128(10, 2)"]
    assert {str(schema.field(name).type) for name in ("array", "zipped", "image")} == {"binary"}
    assert [field.nullable for field in schema] == [f.nullable for f in SCHEMA.fields.values()]


def test_the_schema_is_in_every_footer_and_beside_them(tmp_path: Path) -> None:
    write(rows_of(10), tmp_path / "d", SCHEMA, rows_per_file=3)
    places = [*files(tmp_path / "d"), tmp_path / "d" / "_common_metadata"]
    assert len(places) == 5
    for path in places:
        stored = pq.read_metadata(path).metadata[SCHEMA_KEY]
        assert schema_to_json(schema_from_json(stored)) == schema_to_json(SCHEMA)


def test_row_groups_are_cut_by_bytes(tmp_path: Path) -> None:
    schema = Unischema("S", [UnischemaField("x", np.uint8, (872,), NdarrayCodec(), False)])  # cells of 1,000 bytes
    rows = [{"x": np.full(872, i % 250, np.uint8)} for i in range(25)]
    write(rows, tmp_path / "d", schema, row_group_bytes=10_050)
    assert group_rows(tmp_path / "d") == [[10, 10, 5]]
    write(rows[:3], tmp_path / "one", schema, row_group_bytes=1)
    assert group_rows(tmp_path / "one") == [[1, 1, 1]]


def test_uneven_cells_fill_row_groups_up_to_the_limit(tmp_path: Path) -> None:
    schema = Unischema("S", [UnischemaField("x", np.uint8, (None,), NdarrayCodec(), False)])
    sizes = np.random.default_rng(0).integers(1, 5_000, 300)
    write(({"x": np.zeros(n, np.uint8)} for n in sizes), tmp_path / "d", schema, row_group_bytes=20_000)
    cells = [len(cell) + 1 for cell in read(tmp_path / "d")["x"].to_pylist()]
    at = 0
    for count in group_rows(tmp_path / "d")[0]:
        assert sum(cells[at : at + count]) <= 20_000
        assert sum(cells[at : at + count + 1]) > 20_000 or at + count == 300
        at += count


def test_files_are_cut_by_rows(tmp_path: Path) -> None:
    write(ids(25), tmp_path / "d", IDS, rows_per_file=10)
    assert group_rows(tmp_path / "d") == [[10], [10], [5]]
    write(ids(25), tmp_path / "e", IDS, rows_per_file=10, row_group_bytes=4 * 9)
    assert group_rows(tmp_path / "e") == [[4, 4, 2], [4, 4, 2], [4, 1]]
    assert read(tmp_path / "e")["id"].to_pylist() == list(range(25))


def test_a_long_stream_is_cut_across_batches(tmp_path: Path) -> None:
    write(iter(ids(20_000)), tmp_path / "d", IDS, row_group_bytes=9 * 7_000)
    assert group_rows(tmp_path / "d") == [[7_000, 7_000, 6_000]]
    assert read(tmp_path / "d")["id"].to_pylist() == list(range(20_000))


def test_memory_is_bounded_by_row_groups(tmp_path: Path) -> None:
    schema = Unischema("S", [UnischemaField("x", np.uint8, (100_000,), NdarrayCodec(), False)])
    rows = ({"x": np.full(100_000, i % 256, np.uint8)} for i in range(600))
    before = pa.default_memory_pool().max_memory()
    write(rows, tmp_path / "d", schema, row_group_bytes=1 << 20, compression=None, workers=2)
    assert pa.default_memory_pool().max_memory() - before < 30 << 20  # of 60 MB
    assert len(group_rows(tmp_path / "d")[0]) == 60


@pytest.mark.parametrize("kind", ["table", "batch", "reader"])
def test_arrow_data_needs_no_schema(tmp_path: Path, kind: str) -> None:
    table = pa.table(mixed(np.arange(50)))
    data = {"table": table, "batch": table.to_batches()[0], "reader": table.to_reader(7)}[kind]
    assert write(data, tmp_path / "d").rows == 50
    assert read(tmp_path / "d").replace_schema_metadata(None).equals(table)
    stored = schema_from_json(pq.read_metadata(files(tmp_path / "d")[0]).metadata[SCHEMA_KEY])
    assert list(stored.fields) == table.column_names


def test_anything_that_gives_arrow_is_taken(tmp_path: Path) -> None:
    class Frame:
        def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
            return pa.table({"x": [1, 2]}).__arrow_c_stream__(requested_schema)

    assert write(Frame(), tmp_path / "d").rows == 2


def test_row_groups_have_no_more_rows_than_pyarrow_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write({"x": np.zeros(1_500_000, np.int8)}, tmp_path / "d", row_group_bytes=1 << 30)
    assert group_rows(tmp_path / "d") == [[1 << 20, 1_500_000 - (1 << 20)]]


def test_a_table_with_a_schema_is_cast_to_its_stored_types(tmp_path: Path) -> None:
    table = pa.table({"id": pa.array([1, 2], pa.int64()), "zipped": pa.array([b"a", b"b"])})
    write(table, tmp_path / "d", SCHEMA)
    got = read(tmp_path / "d")
    assert got["id"].type == pa.int32()
    assert got["name"].null_count == 2


def test_structs_stay_structs(tmp_path: Path) -> None:
    table = pa.table({"s": pa.array([{"a": 1, "b": "x"}, None], pa.struct([("a", pa.int32()), ("b", pa.string())]))})
    write(table, tmp_path / "d")
    assert read(tmp_path / "d").to_pylist() == table.to_pylist()
    assert list(schema_from_json(pq.read_metadata(files(tmp_path / "d")[0]).metadata[SCHEMA_KEY]).fields) == [
        "s.a",
        "s.b",
    ]


def test_a_dict_of_arrays_is_inferred(tmp_path: Path) -> None:
    data = {
        "number": np.arange(5, dtype=np.uint16),
        "maybe": np.ma.array([1.5, 2, 3, 4, 5], mask=[0, 1, 0, 0, 0]),
        "image": np.arange(5 * 4, dtype=np.uint8).reshape(5, 2, 2),
        "text": ["a", "b", None, "d", "e"],
        "when": np.array(["2024-01-01", "NaT", "2024-01-03", "2024-01-04", "2024-01-05"], "M8[ms]"),
    }
    write(data, tmp_path / "d")
    got = read(tmp_path / "d").to_pydict()
    assert got["number"] == [0, 1, 2, 3, 4]
    assert got["maybe"] == [1.5, None, 3, 4, 5]
    assert got["text"] == ["a", "b", None, "d", "e"]
    assert got["when"][:2] == [datetime.datetime(2024, 1, 1), None]
    assert_same(np.load(io.BytesIO(got["image"][2])), data["image"][2])


def test_a_dict_of_arrays_is_encoded_by_a_schema(tmp_path: Path) -> None:
    rows = rows_of(30)
    columns = {name: [row[name] for row in rows] for name in SCHEMA.fields}
    columns["id"] = np.array(columns["id"], np.int32)
    write(columns, tmp_path / "columns", SCHEMA)
    write(rows, tmp_path / "rows", SCHEMA)
    assert read(tmp_path / "columns").equals(read(tmp_path / "rows"))


@pytest.mark.parametrize("data", [[], pa.table({"id": pa.array([], pa.int64())}), {"id": np.zeros(0, np.int64)}])
def test_no_rows_give_a_dataset_without_rows(tmp_path: Path, data: Any) -> None:
    assert write(data, tmp_path / "d", IDS).rows == 0
    assert group_rows(tmp_path / "d") == [[]]
    assert pq.read_schema(files(tmp_path / "d")[0]).names == ["id"]


def test_images_are_not_compressed_again(tmp_path: Path) -> None:
    write(rows_of(10), tmp_path / "d", SCHEMA)
    group = pq.read_metadata(files(tmp_path / "d")[0]).row_group(0)
    packed = {group.column(c).path_in_schema: group.column(c).compression for c in range(group.num_columns)}
    assert (packed["image"], packed["zipped"]) == ("UNCOMPRESSED", "UNCOMPRESSED")
    assert {packed[name] for name in ("id", "name", "array", "plain.list.element")} == {"SNAPPY"}
    write(rows_of(10), tmp_path / "e", SCHEMA, compression="zstd")
    assert pq.read_metadata(files(tmp_path / "e")[0]).row_group(0).column(0).compression == "ZSTD"


def test_encoded_cells_have_no_dictionary_and_no_statistics(tmp_path: Path) -> None:
    write(rows_of(10), tmp_path / "d", SCHEMA)
    group = pq.read_metadata(files(tmp_path / "d")[0]).row_group(0)
    by_name = {group.column(c).path_in_schema: group.column(c) for c in range(group.num_columns)}
    assert not by_name["image"].is_stats_set
    assert by_name["id"].is_stats_set
    assert not any("DICT" in encoding for encoding in by_name["image"].encodings)


def test_the_summary_reads_well() -> None:
    assert str(Written("d", 1000, 2, 3, 4_500_000)) == "d: 1,000 rows in 3 row groups, 2 files, 4.3 MiB"
    assert str(Written("d", 1, 1, 1, 900)) == "d: 1 row in 1 row group, 1 file, 900 B"


@pytest.mark.parametrize("bad", [{"row_group_bytes": 0}, {"rows_per_file": 0}, {"partition_by": ["id", "id"]}])
def test_options_are_checked_before_anything_is_written(tmp_path: Path, bad: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match=next(iter(bad))):
        write(ids(3), tmp_path / "d", IDS, **bad)
    assert list(tmp_path.iterdir()) == []


def test_rows_need_a_schema(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"pass schema=Unischema"):
        write(ids(3), tmp_path / "d")
    with pytest.raises(SchemaError, match="must be a Unischema or None; got list"):
        write(ids(3), tmp_path / "d", [])


@settings(max_examples=depth(25, 300), deadline=None)
@given(data=strategies.st.data())
def test_any_schema_comes_back(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    schema = data.draw(strategies.unischemas())
    rows = data.draw(strategies.rows(schema))
    root = tmp_path_factory.mktemp("any") / "d"
    limit = data.draw(strategies.st.integers(1, 500))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write(rows, root, schema, row_group_bytes=limit, rows_per_file=data.draw(strategies.st.integers(1, 10)))
    for got, row in zip(decoded(root, schema), rows, strict=True):
        for name, value in row.items():
            assert (got[name] is None) == (value is None)
            if value is not None:
                assert_same(np.asarray(got[name]), np.asarray(value))


@pytest.mark.skipif(not CHECKSUMS, reason="pyarrow writes no checksums before version 15")
def test_pages_have_checksums(tmp_path: Path) -> None:
    data = {"id": np.arange(5000), "image": [bytes([i % 256]) * 20 for i in range(5000)]}
    write(data, tmp_path / "d")
    [file] = tmp_path.glob("d/*.parquet")
    stored = file.read_bytes()
    footer = pq.read_metadata(file).row_group(0)
    for index in range(footer.num_columns):
        column = footer.column(index)
        place = (column.dictionary_page_offset or column.data_page_offset) + column.total_compressed_size - 10
        damaged = stored[:place] + bytes([stored[place] ^ 1]) + stored[place + 1 :]
        with pytest.raises(OSError, match=r"(?i)checksum|crc"):
            pq.read_table(pa.BufferReader(damaged), page_checksum_verification=True)


@pytest.mark.parametrize(
    ("cell_bytes", "page_rows"), [(8, 1024), (700, 1024), (5_000, 256), (20_000, 64), (400_000, 2), (3_000_000, 1)]
)
def test_pages_have_about_a_megabyte_and_an_offset_index(tmp_path: Path, cell_bytes: int, page_rows: int) -> None:
    count = min(5_000, 12_000_000 // cell_bytes)
    rng = np.random.default_rng(0)
    cells = [rng.bytes(int(size)) for size in rng.integers(int(cell_bytes * 0.8), int(cell_bytes * 1.2), count)]
    write({"id": np.arange(count), "image": cells}, tmp_path / "d")
    pages = open_pages(open_parquet(tmp_path / "d").part(0), ["id", "image"])
    assert not pages.whole
    index = pages.indexes[1]
    assert (index.rows[:-1] % page_rows == 0).all(), "parts can begin where pages begin"
    sizes = np.diff(index.offsets)
    assert len(sizes) == 1 or np.median(sizes) > 512 << 10
    assert (sizes < max(2 << 20, 1.3 * cell_bytes)).all()
    borders = part_borders(part_facts(pages.group))
    assert (borders[:-1] % page_rows == 0).all()
    assert pages.read(count // 2, count // 2 + 1).column("image").to_pylist() == [cells[count // 2]]


def test_all_pages_of_pictures_have_as_many_rows_in_whatever_chunks_they_come(tmp_path):
    rng = np.random.default_rng(0)
    cells = [rng.bytes(18_000) for _ in range(900)]
    tables = [pa.table({"image": pa.array(cells[at : at + 70], pa.binary())}) for at in range(0, 900, 70)]
    write(pa.concat_tables(tables), tmp_path / "out", row_group_bytes=6 << 20)
    source = open_parquet(tmp_path / "out")
    for chunk in range(len(source.facts.chunk_rows)):
        rows = np.diff(open_pages(source.part(chunk), ["image"]).indexes[0].rows)
        assert set(rows[:-1].tolist()) == {64}
