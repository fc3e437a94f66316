"""Delta, Iceberg and Hudi tables are refused, since their folders hold rows that the tables have deleted."""

import fsspec
import pyarrow as pa
import pytest
from pyarrow.fs import LocalFileSystem, PyFileSystem

import penstock
from penstock.dataset import open_parquet
from penstock.errors import PlanError, UnsupportedFormat
from penstock.petastorm import make_batch_reader, make_reader
from penstock.testing.filesystems import RecordingFileSystem, _Passing
from tests.dataset.make import ids, write

# The files that deltalake 1.6, pyiceberg 0.12 and Hudi 1.0 leave beside the data, and how they lay out partitions.
TRACES = {
    "Delta": ["_delta_log/00000000000000000000.json", "_delta_log/_last_checkpoint"],
    "Iceberg": ["metadata/00001-42d32d05-d8e9-41b4-bb82-c876604b3ba2.metadata.json", "metadata/snap-1.avro"],
    "Hudi": [".hoodie/hoodie.properties", ".hoodie/20240101.commit"],
}
READERS = {"Delta": r"deltalake\.DeltaTable\('.*table'\)\.file_uris", "Iceberg": "pyiceberg", "Hudi": "spark"}


@pytest.fixture(params=TRACES)
def kind(request):
    return request.param


def leave(root, names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("{}")


@pytest.fixture
def table(tmp_path, kind):
    """Files with and without partitions, below `data` in an Iceberg table."""
    root = tmp_path / "all" / "table"
    data = root / "data" if kind == "Iceberg" else root
    for day in "ab":
        write(data / f"day={day}" / "x.parquet", ids(0, 5))
    leave(root, TRACES[kind])
    return root


def places(table):
    """Return the ways to name files of the table other than one by one."""
    data = table / "data" if (table / "data").exists() else table
    return [
        table, data, data / "day=a", f"{data}/*/*.parquet", f"{data}/day=a/*.parquet", f"{table}/**", table.parent,
        f"{table.parent}/t*", f"{table.parent}/*/**/*.parquet", f"{data.parent}/{data.name[:2]}*/day=a/x.parquet",
        [data / "day=a" / "x.parquet", data / "day=b"],
    ]  # fmt: skip


@pytest.mark.parametrize("number", range(11))
@pytest.mark.parametrize("filesystem", ["local", "store"])
def test_it_is_refused_however_it_is_named(table, kind, number, filesystem):
    place = places(table)[number]
    fs = RecordingFileSystem() if filesystem == "store" else None
    with pytest.raises(UnsupportedFormat, match=rf"table is an? {kind} table \(.*{READERS[kind]}.*format=.parquet"):
        penstock.open(place, filesystem=fs)
    opened = penstock.open(place, filesystem=fs, format="parquet")
    assert len(opened) == 5 * len(opened.files)


@pytest.mark.parametrize("part", ["", "0000000001.0000000002."])
def test_a_delta_table_is_known_by_its_checkpoint_too(tmp_path, part):
    write(tmp_path / "x.parquet", ids(0, 5))
    leave(tmp_path, [f"_delta_log/00000000000000000010.checkpoint.{part}parquet"])
    with pytest.raises(UnsupportedFormat, match="a Delta table"):
        penstock.open(tmp_path)


def test_files_that_its_reader_names_one_by_one_are_opened(table, kind):
    found = sorted(map(str, table.rglob("*.parquet")))
    opened = penstock.open(found)
    assert len(opened) == 10
    assert opened[0]["day"] == "a"


def test_petastorms_factories_refuse_it_and_take_format(table, kind):
    url = f"file://{table}"
    for make in (make_reader, make_batch_reader):
        with pytest.raises(UnsupportedFormat, match=kind):
            make(url)
    with make_batch_reader(url, format="parquet") as reader:
        assert sum(len(batch.id) for batch in reader) == 10
    with make_reader(url, format="parquet") as reader:
        assert sum(1 for _ in reader) == 10


def test_other_formats_are_not_known(tmp_path):
    write(tmp_path / "x.parquet", ids(0, 5))
    for call in (penstock.open, make_batch_reader):
        with pytest.raises(PlanError, match="format must be one of None, 'parquet'; got 'delta'"):
            call(f"file://{tmp_path}", format="delta")


@pytest.mark.parametrize("name", ["_delta_log/readme.txt", "metadata/notes.json", ".hoodie/aux", "_delta_log"])
def test_names_that_only_resemble_a_log_are_no_table(tmp_path, name):
    write(tmp_path / "data" / "x.parquet", ids(0, 5))
    leave(tmp_path, [name])
    for place in (tmp_path, tmp_path / "data", f"{tmp_path}/*/*.parquet"):
        assert len(penstock.open(place)) == 5


def test_a_folder_of_a_hudi_table_whose_name_has_no_key(tmp_path):
    write(tmp_path / "2024" / "01" / "x.parquet", ids(0, 5))
    leave(tmp_path / "2024" / "01", [".hoodie_partition_metadata"])
    for place in (tmp_path / "2024" / "01", f"{tmp_path}/2024/01/*.parquet", tmp_path / "2024"):
        with pytest.raises(UnsupportedFormat, match="Hudi"):
            penstock.open(place)


def test_a_table_on_a_store(table, kind):
    memory = fsspec.filesystem("memory")
    memory.put(str(table), "/tables", recursive=True)
    try:
        with pytest.raises(UnsupportedFormat, match=kind):
            penstock.open("memory://tables")
        assert len(penstock.open("memory://tables", format="parquet")) == 10
    finally:
        memory.rm("/tables", recursive=True)


class _Counting(_Passing):
    def __init__(self):
        super().__init__(LocalFileSystem())
        self.lists, self.looks = [], []

    def get_file_info(self, paths):
        self.looks.append(paths)
        return super().get_file_info(paths)

    def get_file_info_selector(self, selector):
        self.lists.append(selector.base_dir)
        return super().get_file_info_selector(selector)


def asked(place, **more):
    handler = _Counting()
    open_parquet(place, filesystem=PyFileSystem(handler), **more)
    return handler


def test_a_plain_dataset_on_a_store_is_listed_no_more_than_before(tmp_path):
    for day in range(3):
        write(tmp_path / f"day={day}" / "x.parquet", pa.table(ids(0, 5)))
    folder = asked(str(tmp_path))
    assert len(folder.lists) == 1
    assert len(folder.looks) == len(asked(str(tmp_path), format="parquet").looks)
    for place in (f"{tmp_path}/day=1", f"{tmp_path}/day=*/*.parquet", f"{tmp_path}/day=1/*.parquet"):
        now, before = asked(place), asked(place, format="parquet")
        assert now.lists == before.lists
        assert len(now.looks) == len(before.looks) + 1  # one look at the root for all formats
