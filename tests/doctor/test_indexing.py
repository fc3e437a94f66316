"""`penstock index`: pages of files without an offset index are found once, stored, and never used for other files."""

import errno
import fnmatch
import glob
import json
import os
import pickle

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import penstock
from penstock.cli import main
from penstock.dataset import divide, part_source, parts
from penstock.dataset.page_sidecar import SIDECAR, SIDECAR_SCHEMA
from penstock.dataset.parquet import open_parquet
from penstock.dataset.part_source import split_row_groups
from penstock.dataset.read import CAN_VERIFY
from penstock.doctor import index_pages
from penstock.errors import BadFile, PenstockWarning, PlanError, StateMismatch, StoreRefused
from penstock.storage.store import LocalStore
from tests.dataset.random_tables import random_table, write_options
from tests.depth import depth

OPTIONS = {"batch_size": 50, "shuffle": True, "seed": 5, "rank": 0, "world": 1}
ROWS = 500


@pytest.fixture(autouse=True)
def cache_folder(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder / "penstock" / "pages"


def rows(number, num_rows=ROWS):
    """Return 8 MB of rows: strings with a dictionary, nested columns, pictures."""
    rng = np.random.default_rng(number)
    return pa.table(
        {
            "id": np.arange(num_rows) + number * num_rows,
            "label": [f"class {i % 7}" for i in range(num_rows)],
            "box": [None if i % 9 == 0 else {"x": i, "name": f"box {i}"} for i in range(num_rows)],
            "tags": [[f"tag {k}" for k in range(i % 4)] for i in range(num_rows)],
            "image": pa.array([rng.bytes(16_000) for _ in range(num_rows)], pa.binary()),
        }
    )


def write_file(path, number=0, filesystem=None, **more):
    keywords = {"use_dictionary": ["label"], "data_page_size": 1 << 19, "write_batch_size": 64, **more}
    pq.write_table(rows(number), path, filesystem=filesystem, **keywords)


@pytest.fixture
def folder(tmp_path):
    """Two files without an offset index, one with."""
    path = tmp_path / "data"
    path.mkdir()
    for number in range(3):
        write_file(path / f"{number}.parquet", number, write_page_index=number == 1)
    return path


def order_of(url, **options):
    return penstock.open(url).loader(**OPTIONS, **options).order


def ids(loader):
    with loader:
        return [int(i) for batch in loader for i in batch["id"]]


class _Requests:
    """Counts the ranges of local files that are read."""

    def __init__(self, monkeypatch):
        self.paths = []
        read = LocalStore.read_ranges

        def counting(store, path, ranges, **keywords):
            self.paths += [os.path.basename(path)] * len(ranges)
            return read(store, path, ranges, **keywords)

        monkeypatch.setattr(LocalStore, "read_ranges", counting)


def open_all(url, **options):
    """Open the pages of all row groups of a divided dataset, without reading any."""
    divided = split_row_groups(open_parquet(url), **options)
    for chunk in range(len(divided.facts.chunk_rows)):
        divided.ranges(chunk, ["image", "label", "box", "tags"])


def test_an_index_beside_the_dataset_divides_its_files_by_default(folder):
    assert not order_of(folder).scanned
    found = index_pages(folder, beside=True)
    assert found.paths == (f"{folder}/{SIDECAR}",)
    assert (found.row_groups, found.scanned) == (2, 2)
    assert found.pages > 10
    assert order_of(folder).scanned
    assert order_of(folder) == order_of(folder, parts=True)
    assert penstock.open(folder).files == ("0.parquet", "1.parquet", "2.parquet")  # the index is no data file


def test_other_readers_and_patterns_do_not_take_the_index_for_data(folder):
    index_pages(folder, beside=True)
    assert (folder / SIDECAR).exists()
    for pattern in ("*.parquet", "*"):
        assert len(penstock.open(sorted(glob.glob(f"{folder}/{pattern}")))) == 3 * ROWS
        assert len(penstock.open(f"{folder}/{pattern}")) == 3 * ROWS
    assert pads.dataset(folder).count_rows() == 3 * ROWS
    assert pq.read_table(folder, columns=["id"]).num_rows == 3 * ROWS
    assert not fnmatch.fnmatch(SIDECAR, "*.parquet")  # which also finds hidden files in some tools


def test_hugging_face_datasets_loads_an_indexed_folder(folder, tmp_path):
    datasets = pytest.importorskip("datasets")
    index_pages(folder, beside=True)
    for where in ({"data_dir": str(folder)}, {"data_files": f"{folder}/*.parquet"}):
        found = datasets.load_dataset("parquet", **where, cache_dir=str(tmp_path / "hugging_face"))
        assert found["train"].num_rows == 3 * ROWS


def test_an_overwritten_dataset_is_not_read_by_the_old_index(folder):
    index_pages(folder, beside=True)
    penstock.write({"id": np.arange(9)}, folder, overwrite=True)
    assert not (folder / SIDECAR).exists()
    assert sorted(ids(penstock.open(folder).loader(**OPTIONS))) == list(range(9))


def test_rows_read_by_a_stored_index_are_those_of_a_plain_read(folder):
    index_pages(folder, beside=True)
    source = open_parquet(folder)
    divided, names = split_row_groups(source), source.facts.arrow_schema.names
    assert len(divided.facts.chunk_rows) > 6
    for chunk in range(len(divided.facts.chunk_rows)):
        start, count = int(divided.first_row[chunk]), int(divided.facts.chunk_rows[chunk])
        wanted = source.read(int(divided.chunk[chunk]), names).slice(start, count)
        assert divided.read(chunk, names).equals(wanted)
    copy = pickle.loads(pickle.dumps(divided))
    assert copy.read(1, names).equals(divided.read(1, names))


def test_page_headers_are_not_read_again(folder, monkeypatch):
    def requests():
        seen = _Requests(monkeypatch)
        open_all(folder, scan=True)
        return seen.paths.count("0.parquet")

    scanned = requests()
    index_pages(folder)
    assert requests() == 0 < scanned


def test_an_index_in_the_cache_never_changes_the_order_of_a_default_run(folder, cache_folder):
    before = ids(penstock.open(folder).loader(**OPTIONS))
    found = index_pages(folder)
    assert [str(cache_folder / name) for name in os.listdir(cache_folder)] == list(found.paths)
    assert os.listdir(folder).count(SIDECAR) == 0
    assert not order_of(folder).scanned
    assert ids(penstock.open(folder).loader(**OPTIONS)) == before


def test_a_run_resumes_with_its_parts_whether_the_index_comes_or_goes(folder):
    def half(parts=None):
        with penstock.open(folder).loader(**OPTIONS, parts=parts) as loader:
            batches = iter(loader)
            seen = [int(i) for _ in range(9) for i in next(batches)["id"]]
            return seen, json.loads(json.dumps(loader.state_dict()))

    def resumed(state):
        loader = penstock.open(folder).loader(**OPTIONS)
        loader.load_state_dict(state)
        return ids(loader)

    whole, (seen, state) = ids(penstock.open(folder).loader(**OPTIONS)), half()
    index_pages(folder, beside=True)
    assert seen + resumed(state) == whole
    divided, (seen, state) = ids(penstock.open(folder).loader(**OPTIONS)), half()
    assert divided != whole
    (folder / SIDECAR).unlink()
    assert seen + resumed(state) == divided


def test_only_new_and_changed_files_are_scanned_again(folder, monkeypatch):
    index_pages(folder)
    write_file(folder / "0.parquet", 7)
    write_file(folder / "3.parquet", 3)
    seen = _Requests(monkeypatch)
    found = index_pages(folder)
    assert (found.row_groups, found.scanned) == (3, 2)
    assert "2.parquet" not in seen.paths
    (folder / "3.parquet").unlink()
    assert index_pages(folder).scanned == 0
    assert set(pq.read_table(found.paths[0])["file"].to_pylist()) == {"0.parquet", "2.parquet"}


def test_a_pattern_adds_to_the_index_of_its_folder(folder):
    index_pages(f"{folder}/0*.parquet", beside=True)
    with pytest.warns(PenstockWarning, match=rf"2\.parquet is not listed in .* run `penstock index --beside {folder}`"):
        assert not order_of(folder).scanned
    assert order_of(f"{folder}/0.parquet").scanned
    index_pages(f"{folder}/2*.parquet", beside=True)
    assert order_of(folder).scanned


def test_a_file_that_was_written_again_is_never_read_by_its_old_index(folder):
    index_pages(folder, beside=True)
    write_file(folder / "0.parquet", 7, data_page_size=1 << 18, write_batch_size=32)
    with pytest.warns(
        PenstockWarning,
        match=r"0.parquet has changed since its pages were indexed, so row groups without an offset index are read "
        rf"whole, in all files: run `penstock index --beside {folder}` again",
    ):
        assert not order_of(folder).scanned
    wanted = sorted(i for number in (7, 1, 2) for i in rows(number)["id"].to_pylist())
    with pytest.warns(PenstockWarning, match="has changed"):
        assert sorted(ids(penstock.open(folder).loader(**OPTIONS, parts=True))) == wanted


@pytest.mark.parametrize("damage", ["cut", "bytes", "other"])
def test_a_damaged_index_is_ignored_with_a_warning_and_replaced(folder, damage):
    index_pages(folder, beside=True)
    path = folder / SIDECAR
    data = path.read_bytes()
    if damage == "other":
        pq.write_table(pa.table({"file": ["a"]}), path)
    else:
        path.write_bytes(data[:-100] if damage == "cut" else data[:-60] + b"x" * 60)
    with pytest.warns(
        PenstockWarning, match=rf"{SIDECAR} cannot be read .*; run `penstock index --beside {folder}` again"
    ):
        assert not order_of(folder).scanned
    assert index_pages(folder, beside=True).scanned == 2
    assert order_of(folder).scanned


@pytest.mark.parametrize("wrong", ["rows", "moved", "sizes", "dictionary", "null"])
def test_wrong_entries_of_an_index_are_errors_and_never_other_rows(folder, wrong):
    index_pages(folder, beside=True)
    table = pq.read_table(folder / SIDECAR).to_pylist()
    for row in table:
        if wrong == "rows":
            row["page_rows"] = [count + 1 for count in row["page_rows"]]
        elif wrong == "moved" and len(row["page_rows"]) > 2:
            row["page_rows"][0] -= 1
            row["page_rows"][1] += 1
        elif wrong == "sizes":
            row["page_bytes"] = [size + 3 for size in row["page_bytes"]]
        elif wrong == "dictionary":
            row["dictionary_pages"] = 1_000
        elif wrong == "null":
            row["page_bytes"] = None
    pq.write_table(pa.Table.from_pylist(table, SIDECAR_SCHEMA), folder / SIDECAR)
    divided = split_row_groups(open_parquet(folder))
    with pytest.raises(BadFile, match=r"0\.parquet, row group 0.*(penstock index|parts=False)"):
        divided.read(0, ["image"])


def test_lists_without_row_counts_are_read_whole_and_named(folder):
    found = index_pages(folder)
    assert "holds lists and has no offset index" in found.whole["tags"]
    assert "column 'tags' is read whole: it holds lists" in str(found)
    assert not any(row["page_rows"] for row in pq.read_table(found.paths[0]).to_pylist() if row["reason"])


@pytest.mark.skipif(not CAN_VERIFY, reason="pyarrow has no checksums")
def test_a_flipped_bit_in_the_index_is_noticed(folder):
    index_pages(folder, beside=True)
    column = pq.read_metadata(folder / SIDECAR).row_group(0).column(SIDECAR_SCHEMA.names.index("page_rows"))
    data = bytearray((folder / SIDECAR).read_bytes())
    data[(column.dictionary_page_offset or column.data_page_offset) + column.total_compressed_size - 3] ^= 1
    (folder / SIDECAR).write_bytes(data)
    with pytest.warns(PenstockWarning, match="cannot be read"):
        assert not order_of(folder).scanned


def test_a_column_that_is_read_whole_is_told_once(folder, monkeypatch):
    index_pages(folder, beside=True)
    monkeypatch.setattr(part_source, "_NARROW_BYTES", 1_000)
    with pytest.warns(PenstockWarning) as found:
        open_all(folder)
    [text] = [str(one.message) for one in found if "read whole" in str(one.message)]
    assert text.startswith("column 'tags' is read whole for all parts of a row group")
    assert "holds lists and has no offset index" in text
    assert "0.parquet" in text


def test_a_loader_names_a_large_column_that_it_reads_whole(folder, monkeypatch):
    index_pages(folder, beside=True)
    monkeypatch.setattr(part_source, "_NARROW_BYTES", 1_000)
    with pytest.warns(PenstockWarning) as found:
        ids(penstock.open(folder, columns=["id", "tags", "image"]).loader(**OPTIONS))
    texts = [str(one.message) for one in found]
    assert ["column 'tags' is read whole for all parts of a row group" in text for text in texts] == [True]


def test_a_dataset_with_offset_indexes_needs_no_other(tmp_path, capsys):
    write_file(tmp_path / "a.parquet", write_page_index=True)
    assert main(["index", "--beside", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("nothing to index")
    assert os.listdir(tmp_path) == ["a.parquet"]


class TestRowGroupsThatCannotBeDivided:
    """Row groups without an offset index that no scan can divide are counted, with the column and the reason."""

    @pytest.fixture
    def lists(self, tmp_path):
        """Two row groups of 8 MB, mostly a column of lists."""
        path = tmp_path / "lists"
        path.mkdir()
        table = pa.table({"id": np.arange(800), "emb": [*np.random.default_rng(0).random((800, 2_500))]})
        pq.write_table(table, path / "a.parquet", row_group_size=400, use_dictionary=False)
        return path

    @pytest.fixture
    def large_pages(self, tmp_path):
        """A row group of 8 MB in two pages."""
        path = tmp_path / "large_pages"
        path.mkdir()
        write_file(path / "a.parquet", data_page_size=5 << 20)
        return path

    @pytest.fixture
    def lists_beside_images(self, tmp_path):
        """A row group of 10 MB whose images could be read in parts, and whose lists would be read again for each."""
        path = tmp_path / "beside"
        path.mkdir()
        table = rows(0).append_column("points", pa.array([*np.random.default_rng(0).random((ROWS, 500))]))
        pq.write_table(table, path / "a.parquet", data_page_size=1 << 19, write_batch_size=64)
        return path

    def test_by_the_command(self, lists, large_pages, folder, capsys):
        assert main(["index", str(lists)]) == 0
        out = capsys.readouterr().out
        assert out.startswith("nothing to index\n2 row groups without an offset index cannot be read in parts: column")
        assert "'emb', it holds lists and has no offset index" in out
        found = index_pages([*sorted(folder.glob("[02].parquet")), large_pages / "a.parquet"])
        assert (found.row_groups, [*found.undivided.values()]) == (2, [1])
        assert "1 row group without an offset index cannot be read in parts: column 'image', its pages are" in str(
            found
        )

    def test_by_a_loader_that_was_asked_for_parts(self, lists, large_pages, lists_beside_images):
        with pytest.warns(PenstockWarning, match=r"2 of the 2 row groups .*Column 'emb': it holds lists .*a\.parquet"):
            assert not order_of(lists, parts=True).parts
        with pytest.warns(PenstockWarning, match=r"Column 'points': it holds lists"):
            assert not order_of(lists_beside_images, parts=True).parts
        with pytest.warns(PenstockWarning, match=r"Column 'image': its pages are so large"):
            assert not order_of(large_pages, parts=True).parts

    @pytest.mark.filterwarnings("error::penstock.errors.PenstockWarning")
    def test_not_by_one_that_was_not(self, lists):
        order_of(lists)


def test_the_command_stores_where_it_says(folder, capsys, cache_folder):
    assert main(["index", str(folder)]) == 0
    assert f"stored in {cache_folder}" in capsys.readouterr().out
    assert main(["index", str(folder), "--beside"]) == 0
    assert f"stored in {folder}/{SIDECAR}" in capsys.readouterr().out


class _ReadOnly(MemoryFileSystem):
    """A store that one may only read."""

    cachable = False

    def _open(self, path, mode="rb", **keywords):
        if mode != "rb":
            raise PermissionError(errno.EACCES, "no write access")
        return super()._open(path, mode, **keywords)


def test_a_store_that_may_not_be_written_to_names_the_cache():
    fs = MemoryFileSystem()
    fs.makedirs("/read_only", exist_ok=True)
    write_file("/read_only/0.parquet", filesystem=fs)
    try:
        with pytest.raises(StoreRefused, match=r"run `penstock index memory:.*read_only` on every host.* parts=True"):
            index_pages("/read_only", beside=True, filesystem=_ReadOnly())
        assert index_pages("/read_only", filesystem=_ReadOnly()).scanned == 1
    finally:
        fs.rm("/read_only", recursive=True)


def test_a_disk_that_is_mounted_to_read_only_names_the_cache(folder, monkeypatch):
    def write(store, path, data):
        raise OSError(errno.EROFS, "Read-only file system", path)

    monkeypatch.setattr(LocalStore, "write", write)
    with pytest.raises(StoreRefused, match=rf"Read-only file system.*run `penstock index {folder}` on every host"):
        index_pages(folder, beside=True)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="every folder may be written to")
def test_a_local_folder_that_may_not_be_written_to_names_the_cache(folder):
    folder.chmod(0o500)
    try:
        with pytest.raises(StoreRefused, match=rf"run `penstock index {folder}` on every host"):
            index_pages(folder, beside=True)
    finally:
        folder.chmod(0o700)


def test_damaged_page_headers_name_the_file(folder):
    with (folder / "2.parquet").open("r+b") as file:
        file.seek(pq.read_metadata(folder / "2.parquet").row_group(0).column(0).dictionary_page_offset or 4)
        file.write(b"\xff" * 64)
    with pytest.raises(BadFile, match=r"2\.parquet, row group 0, column 'id'"):
        index_pages(folder)


def test_random_tables_are_read_by_a_stored_index_as_by_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "TARGET_BYTES", 500)
    monkeypatch.setattr(parts, "LEAST_BYTES", 100)
    monkeypatch.setattr(parts, "MOST_READ", 100)
    indexed = 0
    for seed in range(depth(20, 400)):
        rng = np.random.default_rng(seed)
        path = tmp_path / str(seed)
        path.mkdir()
        options = write_options(rng) | {"write_page_index": False, "data_page_size": 200, "write_batch_size": 7}
        table = random_table(rng, 150, depth=2).append_column("cell", pa.array([rng.bytes(200) for _ in range(150)]))
        pq.write_table(table, path / "a.parquet", row_group_size=100, **options)
        indexed += index_pages(path, beside=True).row_groups
        source = open_parquet(path)
        divided, names = split_row_groups(source), source.facts.arrow_schema.names
        for chunk in range(0 if divided is None else len(divided.facts.chunk_rows)):
            start, count = int(divided.first_row[chunk]), int(divided.facts.chunk_rows[chunk])
            wanted = source.read(int(divided.chunk[chunk]), names).slice(start, count)
            assert divided.read(chunk, names).to_pylist() == wanted.to_pylist(), f"seed {seed}, part {chunk}"
    assert indexed > 10


class TestStores:
    """Files that are not on a local disk are never scanned as they are read."""

    @pytest.fixture
    def url(self):
        fs = fsspec.filesystem("memory")
        fs.makedirs("/indexed", exist_ok=True)
        for number in range(2):
            write_file(f"/indexed/{number}.parquet", number, filesystem=fs)
        yield "memory://indexed"
        fs.rm("/indexed", recursive=True)

    def test_parts_need_an_index(self, url):
        assert not order_of(url).parts
        with pytest.raises(
            PlanError, match=r"2 large row groups of memory:.*run `penstock index memory:.*indexed` on every host"
        ):
            order_of(url, parts=True)

    def test_advice_for_whole_row_groups_names_the_command_only(self, url):
        [text, *_] = penstock.open(url).plan(batch_size=8, shuffle=True, shuffle_bytes=1 << 16).warnings
        assert "run `penstock index --beside URL` once to read row groups in parts, or start the run" in text
        assert "parts=True" not in text

    @pytest.mark.parametrize("beside", [True, False])
    def test_parts_use_an_index_beside_them_or_in_the_cache(self, url, beside):
        wanted = sorted(i for number in range(2) for i in rows(number)["id"].to_pylist())
        index_pages(url, beside=beside)
        assert sorted(ids(penstock.open(url).loader(**OPTIONS, parts=True))) == wanted
        assert order_of(url).scanned is beside

    def test_a_state_of_such_parts_needs_an_index_too(self, url, cache_folder):
        index_pages(url)
        state = penstock.open(url).loader(**OPTIONS, parts=True).state_dict()
        for name in os.listdir(cache_folder):
            os.unlink(cache_folder / name)
        cure = r"run `penstock index memory:.*`penstock index --beside memory:.*a new run can also load with parts=None"
        with pytest.raises(StateMismatch, match=rf"cannot resume: .*{cure}") as found:
            penstock.open(url).loader(**OPTIONS).load_state_dict(state)
        assert "write_page_index" not in str(found.value)  # that makes other files

    def test_a_changed_file_is_named_and_not_read_by_parts(self, url):
        index_pages(url)
        write_file("/indexed/1.parquet", 5, filesystem=fsspec.filesystem("memory"))
        with pytest.raises(PlanError, match=r"indexed/1\.parquet has changed since .*run `penstock index memory:"):
            order_of(url, parts=True)


class TestAdvice:
    """A dataset of large row groups that are shuffled as a whole is told so, once."""

    @pytest.fixture(autouse=True)
    def any_size_is_large(self, monkeypatch):
        monkeypatch.setattr(divide, "FEW_GROUPS", 1)
        monkeypatch.setattr(divide, "LARGE_BYTES", 1 << 20)

    def test_files_without_an_index(self, folder):
        dataset = penstock.open(folder)
        with pytest.warns(PenstockWarning) as found:  # noqa: PT031 - once for all of them
            dataset.loader(**OPTIONS)
            dataset.select(["id"]).loader(**OPTIONS)
            dataset.plan(batch_size=8, shuffle=True)
        [text] = [str(one.message) for one in found if "offset index" in str(one.message)]
        assert f"2 large row groups of {folder} have no offset index" in text
        assert f"run `penstock index --beside {folder}` once, or load with parts=True" in text
        assert found[0].filename == __file__

    @pytest.mark.filterwarnings("error::penstock.errors.PenstockWarning")
    def test_nothing_is_said_where_parts_are_read_or_not_wanted(self, folder):
        order_of(folder, parts=False)
        order_of(folder, parts=True)
        penstock.open(folder).loader(**OPTIONS | {"shuffle": "groups"})
        index_pages(folder, beside=True)
        order_of(folder)

    def test_a_large_column_that_cannot_be_read_by_pages(self, tmp_path):
        table = pa.table({"x": [*np.random.default_rng(0).random((1_600, 2_000))]})
        pq.write_table(table, tmp_path / "a.parquet", row_group_size=400, use_dictionary=False)
        with pytest.warns(
            PenstockWarning, match=r"4 of the 4 row groups .* cannot be read in parts .*Column 'x': it holds lists"
        ):
            assert not order_of(tmp_path).parts

    def test_advice_that_row_groups_should_be_smaller_comes_with_the_reason(self, tmp_path, monkeypatch):
        monkeypatch.setattr(divide, "FEW_GROUPS", 100)
        table = pa.table({"x": [*np.random.default_rng(0).random((1_600, 2_000))]})
        pq.write_table(table, tmp_path / "a.parquet", row_group_size=400, use_dictionary=False)
        with pytest.warns(PenstockWarning, match=r"cannot be read in parts .*Column 'x': it holds lists"):
            plan = penstock.open(tmp_path).plan(batch_size=8, shuffle=True, shuffle_bytes=1 << 20)
        assert "write smaller row groups" in plan.warnings[0]
