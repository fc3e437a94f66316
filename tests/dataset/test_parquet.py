"""Datasets of every shape open, say what they are, and read back what was written."""

import concurrent.futures
import shutil
import time

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.dataset import open_parquet
from penstock.errors import BadFile, ColumnNotFound, DatasetNotFound, SchemaError
from penstock.testing import RecordingFileSystem
from tests.dataset.make import ids, read_all, write, write_ids, write_many_files


class TestFacts:
    def test_chunks_are_numbered_by_file_and_row_group(self, tmp_path):
        source = open_parquet(write_ids(tmp_path))
        assert source.facts.files == ("part-0.parquet", "part-1.parquet", "part-2.parquet")
        assert source.facts.chunk_file.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
        assert source.facts.chunk_part.tolist() == [0, 1, 2] * 3
        assert source.facts.chunk_rows.tolist() == [4, 4, 2] * 3
        assert (source.facts.chunk_file.dtype, source.facts.chunk_part.dtype, source.facts.chunk_rows.dtype) == (
            np.int32,
            np.int32,
            np.int64,
        )
        assert source.facts.file_bytes.tolist() == [(tmp_path / name).stat().st_size for name in source.facts.files]
        assert source.locate(4).path == f"{tmp_path.as_posix()}/part-1.parquet"
        assert read_all(source)["id"].to_pylist() == list(range(30))
        assert "files=3" in repr(source)

    def test_files_without_rows_have_no_chunks(self, tmp_path):
        empty = pa.table(ids(0, 0))
        write(tmp_path / "a.parquet", empty)
        with pq.ParquetWriter(tmp_path / "b.parquet", empty.schema):
            pass
        write(tmp_path / "c.parquet", ids(0, 5))
        source = open_parquet(tmp_path)
        assert source.facts.files == ("a.parquet", "b.parquet", "c.parquet")
        assert source.facts.chunk_file.tolist() == [2]

    def test_a_dataset_without_any_rows_opens(self, tmp_path):
        write(tmp_path / "a.parquet", ids(0, 0))
        source = open_parquet(tmp_path)
        assert len(source.facts.chunk_rows) == 0
        assert source.row_bytes() == 16 + 2 / 8
        assert source.facts.arrow_schema.names == ["id", "value"]

    def test_a_file_a_pattern_and_a_list(self, tmp_path):
        write_ids(tmp_path)
        assert open_parquet(tmp_path / "part-1.parquet").facts.chunk_rows.sum() == 10
        assert open_parquet(f"{tmp_path}/part-[01].parquet").facts.chunk_rows.sum() == 20
        source = open_parquet([tmp_path / "part-2.parquet", tmp_path / "part-0.parquet"])
        assert read_all(source)["id"].to_pylist() == [*range(20, 30), *range(10)]

    def test_sources_on_several_places(self, tmp_path):
        memory = fsspec.filesystem("memory")
        write(tmp_path / "a.parquet", ids(0, 4))
        memory.pipe("/parquet/b.parquet", write(tmp_path / "x" / "b.parquet", ids(4, 6)).read_bytes())
        source = open_parquet(["memory://parquet/b.parquet", tmp_path / "a.parquet"])
        assert read_all(source)["id"].to_pylist() == [4, 5, 0, 1, 2, 3]

    def test_nothing_there(self, tmp_path):
        with pytest.raises(DatasetNotFound):
            open_parquet(tmp_path / "x")


class TestFingerprint:
    def test_a_copy_has_the_same(self, tmp_path):
        write_ids(tmp_path / "a")
        shutil.copytree(tmp_path / "a", tmp_path / "b" / "c")
        memory = fsspec.filesystem("memory")
        memory.put(str(tmp_path / "a"), "/fingerprint/a", recursive=True)
        first = open_parquet(tmp_path / "a").facts.fingerprint
        assert open_parquet(tmp_path / "b" / "c").facts.fingerprint == first
        assert open_parquet("memory://fingerprint/a").facts.fingerprint == first
        assert open_parquet(tmp_path / "a", columns=["id"]).facts.fingerprint == first
        assert open_parquet(f"{tmp_path}/a/*.parquet").facts.fingerprint == first

    def test_other_data_has_another(self, tmp_path):
        first = open_parquet(write_ids(tmp_path / "a")).facts.fingerprint
        assert open_parquet(write_ids(tmp_path / "b", rows=11)).facts.fingerprint != first
        assert open_parquet(write_ids(tmp_path / "c", files=2)).facts.fingerprint != first
        assert open_parquet(write_ids(tmp_path / "d", rows_per_group=5)).facts.fingerprint != first
        (tmp_path / "a" / "part-0.parquet").rename(tmp_path / "a" / "part-00.parquet")
        assert open_parquet(tmp_path / "a").facts.fingerprint != first

    def test_the_order_of_a_list_counts(self, tmp_path):
        write_ids(tmp_path)
        names = [tmp_path / f"part-{i}.parquet" for i in range(3)]
        assert open_parquet(names).facts.fingerprint != open_parquet(names[::-1]).facts.fingerprint
        assert open_parquet(names).facts.fingerprint == open_parquet(tmp_path).facts.fingerprint

    def test_it_is_pinned(self):
        # Stored in the state of running jobs: changing it refuses their checkpoints.
        from types import SimpleNamespace

        from penstock.dataset.files import fingerprint_of

        files = [SimpleNamespace(relative="a=1/x.parquet"), SimpleNamespace(relative="a=2/\u00e9.parquet")]
        assert fingerprint_of(files, [1000, 2**40], [(3, 4), ()]) == "f7eacded9a12e29a2e45e3fd6c7ce8b9"


class TestPartitions:
    @pytest.fixture
    def root(self, tmp_path):
        for year, city in ((2023, "Bern"), (2024, "S%C3%A3o Paulo"), (2024, "__HIVE_DEFAULT_PARTITION__")):
            write(tmp_path / f"year={year}" / f"city={city}" / "x.parquet", ids(year, year + 2))
        return tmp_path

    def test_columns_come_last_and_typed(self, root):
        source = open_parquet(root)
        assert source.facts.arrow_schema.names == ["id", "value", "year", "city"]
        assert source.facts.arrow_schema.field("year") == pa.field("year", pa.int64(), nullable=False)
        assert list(source.facts.unischema.fields) == ["id", "value", "year", "city"]
        assert source.facts.constants["year"].to_pylist() == [2023, 2024, 2024]
        assert source.facts.constants["city"].to_pylist() == ["Bern", "São Paulo", None]
        assert source.facts.unischema.fields["city"].nullable

    def test_values_are_constants_in_any_place(self, root):
        source = open_parquet(root)
        table = source.read(1, ["city", "id", "year"])
        assert table.to_pydict() == {"city": ["São Paulo"] * 2, "id": [2024, 2025], "year": [2024, 2024]}
        assert source.read(2, ["city"]).to_pydict() == {"city": [None, None]}
        assert table.schema.types == [pa.string(), pa.int64(), pa.int64()]

    def test_partition_columns_alone_touch_no_file(self, root):
        fs = RecordingFileSystem()
        source = open_parquet(str(root), filesystem=fs)
        fs.reads.clear()
        assert source.read(0, ["year", "city"]).num_rows == 2
        assert source.read(0, []).num_rows == 2
        assert fs.reads.opened == []

    def test_one_file_of_a_partition_knows_its_values(self, root):
        source = open_parquet(root / "year=2023" / "city=Bern" / "x.parquet")
        assert source.read(0, ["year", "city"]).to_pydict() == {"year": [2023] * 2, "city": ["Bern"] * 2}
        assert source.facts.files == ("year=2023/city=Bern/x.parquet",)

    def test_a_column_in_the_file_wins(self, tmp_path):
        write(tmp_path / "id=07" / "x.parquet", pa.table({"id": [7, 7, 7], "value": [0.5, 1.5, 2.5]}))
        source = open_parquet(tmp_path)
        assert source.facts.arrow_schema.names == ["id", "value"]
        assert source.facts.constants == {}
        assert source.read(0, ["id"])["id"].to_pylist() == [7, 7, 7]


class TestReadChunk:
    @pytest.fixture
    def nested(self, tmp_path):
        rows = [{"a": 1, "b": {"c": "x", "d": [1, 2]}}, None, {"a": None, "b": None}]
        columns = {"s": rows, "x.y": [1, 2, 3], "l": [[{"k": 1}], [], None], "n": [1.0, 2.0, 3.0]}
        write(tmp_path / "x.parquet", columns)
        return tmp_path

    def test_leaves_of_structs_are_columns(self, nested):
        source = open_parquet(nested)
        assert source.facts.arrow_schema.names == ["s.a", "s.b.c", "s.b.d", "x.y", "l", "n"]
        table = source.read(0, ["n", "s.b.d", "x.y", "s.a", "l"])
        assert table.to_pydict() == {
            "n": [1.0, 2.0, 3.0],
            "s.b.d": [[1, 2], None, None],
            "x.y": [1, 2, 3],
            "s.a": [1, None, None],
            "l": [[{"k": 1}], [], None],
        }

    def test_only_the_leaf_asked_for_is_read(self, nested):
        fs = RecordingFileSystem()
        source = open_parquet(str(nested), filesystem=fs)
        fs.reads.clear()
        source.read(0, ["s.a"])
        path = source.locate(0).path
        group = source.footer(0).arrow.row_group(0)
        for index in range(group.num_columns):
            column = group.column(index)
            start = column.dictionary_page_offset or column.data_page_offset
            touched = fs.reads.touched(path, start, start + column.total_compressed_size)
            assert touched == (column.path_in_schema == "s.a"), column.path_in_schema

    def test_no_columns_have_rows(self, nested):
        table = open_parquet(nested).read(0, [])
        assert (table.num_rows, table.num_columns) == (3, 0)

    def test_an_unknown_column_lists_near_names(self, nested):
        with pytest.raises(ColumnNotFound, match=r"did you mean 's\.a'"):
            open_parquet(nested).read(0, ["s.aa"])

    def test_a_name_that_begins_another_reads_only_itself(self, tmp_path):
        write(tmp_path / "x.parquet", {"a": [1], "a.b": [2], "ab": [3]})
        source = open_parquet(tmp_path)
        assert source.read(0, ["a"]).to_pydict() == {"a": [1]}
        assert source.read(0, ["a.b", "a"]).to_pydict() == {"a.b": [2], "a": [1]}

    def test_threads_read_side_by_side(self, tmp_path):
        source = open_parquet(write_ids(tmp_path, files=8, rows=200, rows_per_group=10))
        chunks = list(range(len(source.facts.chunk_rows))) * 2
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            tables = list(pool.map(lambda chunk: source.read(chunk, ["id"]), chunks))
        assert [table["id"][0].as_py() for table in tables] == [10 * chunk for chunk in chunks]

    def test_few_footers_are_kept(self, tmp_path):
        from penstock.dataset.scan import IndexCache

        source = open_parquet(write_ids(tmp_path, files=6))
        source.indexes = IndexCache(limit_bytes=1)
        assert read_all(source)["id"].to_pylist() == list(range(60))
        assert len(source.indexes._kept) == 1

    def test_two_columns_of_one_name_are_refused(self, tmp_path):
        write(tmp_path / "x.parquet", pa.table([[1], [2]], names=["a", "a"]))
        with pytest.raises(SchemaError, match="'a'"):
            open_parquet(tmp_path)


class TestChangedFiles:
    """A file that is not what it was when the dataset was opened."""

    @pytest.fixture
    def source(self, tmp_path):
        return open_parquet(write_ids(tmp_path))

    def test_another_size(self, source, tmp_path):
        write(tmp_path / "part-1.parquet", ids(0, 500))
        with pytest.raises(BadFile, match=r"part-1\.parquet.*has changed.*open the dataset again") as caught:
            source.read(4, ["id"])
        assert (caught.value.row_group, caught.value.path) == (1, source.locate(4).path)

    def test_gone(self, source, tmp_path):
        (tmp_path / "part-1.parquet").unlink()
        with pytest.raises(BadFile, match="not there any more"):
            source.read(4, ["id"])

    def test_cut_off(self, source, tmp_path):
        data = (tmp_path / "part-1.parquet").read_bytes()
        (tmp_path / "part-1.parquet").write_bytes(data[:100])
        with pytest.raises(BadFile, match="has changed"):
            source.read(5, ["value"])

    def test_row_groups_gone_and_footer_forgotten(self, source, tmp_path):
        from penstock.dataset.scan import IndexCache

        source.indexes = IndexCache()
        write(tmp_path / "part-1.parquet", ids(10, 20))
        with pytest.raises(BadFile, match=r"3 row groups of 10 rows were known, 1 of 10"):
            source.read(5, ["id"])


def test_opening_thousands_of_files_is_quick(tmp_path):
    write_many_files(tmp_path)
    start = time.perf_counter()
    source = open_parquet(tmp_path)
    took = time.perf_counter() - start
    assert len(source.facts.chunk_rows) == 3678
    assert took < 15  # ten times the limit; bench/ measures


@pytest.mark.skipif(not hasattr(pa, "json_"), reason="pyarrow without JSON")
def test_json_and_uuid_of_writers_that_store_no_arrow_schema_are_text_and_bytes(tmp_path):
    text, name = pa.array(["{}", None, "[1]"]), pa.array([b"a" * 16, b"b" * 16, None], pa.binary(16))
    columns = {
        "json": pa.ExtensionArray.from_storage(pa.json_(), text),
        "uuid": pa.ExtensionArray.from_storage(pa.uuid(), name),
    }
    write(tmp_path / "a.parquet", columns, store_schema=False)
    table = read_all(open_parquet(tmp_path))
    assert table.schema.types == [pa.string(), pa.binary(16)]
    assert table.to_pydict() == {"json": text.to_pylist(), "uuid": name.to_pylist()}
    with penstock.open(tmp_path).loader(batch_size=3, memory_bytes=1 << 20) as loader:
        assert [batch["json"].tolist() for batch in loader] == [text.to_pylist()]


class PointType(pa.ExtensionType):
    """An extension type that is stored as a struct."""

    def __init__(self):
        super().__init__(pa.struct([("x", pa.float64()), ("y", pa.float64())]), "penstock.tests.point")

    def __arrow_ext_serialize__(self):
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type, serialized):
        return cls()


def test_an_extension_type_that_is_stored_as_a_struct_is_read_as_its_fields(tmp_path):
    pa.register_extension_type(PointType())
    try:
        points = pa.array([{"x": 1.0, "y": 2.0}, {"x": 3.0, "y": 4.0}], PointType().storage_type)
        write(tmp_path / "a.parquet", {"point": pa.ExtensionArray.from_storage(PointType(), points)})
        with penstock.open(tmp_path).loader(batch_size=2, rank=0, world=1) as loader:
            [batch] = loader
    finally:
        pa.unregister_extension_type("penstock.tests.point")
    assert {name: values.tolist() for name, values in batch.items()} == {"point.x": [1.0, 3.0], "point.y": [2.0, 4.0]}
