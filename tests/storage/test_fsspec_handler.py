"""fsspec stores whose requests fail: an error says so; nothing vanishes, and no dataset is taken for a free place."""

import errno

import fsspec
import numpy as np
import pytest
from pyarrow.fs import FileSelector, FileType, FSSpecHandler, PyFileSystem

import penstock
from penstock.errors import BadFile, DatasetExists, DatasetNotFound, FileChanged, StoreRefused, StoreUnavailable
from penstock.storage import to_arrow_filesystem, walk
from penstock.storage.faults import ATTEMPTS
from penstock.storage.store import FileSystemStore
from penstock.testing import FaultyFsspec, TransientFaults
from tests.depth import depth

ROWS, FOLDERS = 200, 20


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr("penstock.storage.faults._FIRST_PAUSE_S", 0.0)


@pytest.fixture
def root(tmp_path):
    path = tmp_path / "data"
    penstock.write({"id": np.arange(ROWS), "day": np.arange(ROWS) // (ROWS // FOLDERS)}, path, partition_by="day")
    return str(path)


def ids(ds):
    return sorted(int(row["id"]) for row in ds)


@pytest.mark.parametrize("seed", range(depth(3, full=40)))
@pytest.mark.parametrize("wrap", [lambda fs: fs, lambda fs: PyFileSystem(FSSpecHandler(fs))], ids=["fsspec", "pyarrow"])
def test_listings_that_fail_now_and_then_lose_no_folder(root, seed, wrap):
    faults = TransientFaults(0.1, seed=seed)
    ds = penstock.open(root, filesystem=wrap(FaultyFsspec(fault=faults)))
    assert ids(ds) == list(range(ROWS))
    assert faults.num_raised > 0
    assert ds.skipped == []


@pytest.mark.parametrize(
    ("error", "kind"),
    [(TimeoutError("no answer"), StoreUnavailable), (PermissionError(13, "403 Forbidden"), StoreRefused)],
)
@pytest.mark.parametrize("where", ["", "/day=7"])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_folder_that_cannot_be_listed_is_an_error_of_the_store(root, error, kind, where, on_error):
    fs = FaultyFsspec(fault=lambda path: error if path == root + where else None)
    with pytest.raises(kind) as caught:
        penstock.open(root, filesystem=fs, on_error=on_error)
    assert caught.value.url.endswith(f"data{where}")
    if kind is StoreUnavailable:
        assert caught.value.attempts == ATTEMPTS


@pytest.mark.parametrize("pattern", ["day=*/*.parquet", "**/*.parquet", "day=7/*"])
def test_a_pattern_whose_folders_cannot_be_listed_is_an_error_of_the_store(root, pattern):
    fs = FaultyFsspec(fault=lambda path: TimeoutError("no answer") if path.endswith("day=7") else None)
    with pytest.raises(StoreUnavailable, match="day=7 is unavailable after"):
        penstock.open(f"{root}/{pattern}", filesystem=fs)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_writer_does_not_take_a_folder_that_it_cannot_list_for_a_free_one(root, overwrite):
    with open(f"{root}/thesis.txt", "w") as file:
        file.write("years of work")
    listing = []

    class Failing(FaultyFsspec):
        def ls(self, path, **more):
            listing.append(path)
            raise TimeoutError("no answer")

    with pytest.raises(StoreUnavailable, match="unavailable after"):
        penstock.write({"id": np.arange(3)}, root, filesystem=Failing(fault=lambda _: None), overwrite=overwrite)
    assert listing
    with open(f"{root}/thesis.txt") as file:
        assert file.read() == "years of work"
    assert ids(penstock.open(f"{root}/day=*")) == list(range(ROWS))


@pytest.mark.parametrize("seed", range(depth(3, full=40)))
def test_a_writer_sees_an_existing_dataset_whatever_request_fails_once(root, seed):
    fs = FaultyFsspec(fault=TransientFaults(0.2, seed=seed))
    with pytest.raises(DatasetExists):
        penstock.write({"id": np.arange(3)}, root, filesystem=fs)
    assert ids(penstock.open(root)) == list(range(ROWS))


def test_what_does_not_exist_is_not_a_fault(tmp_path):
    fs = to_arrow_filesystem(FaultyFsspec(fault=lambda _: None))
    missing = str(tmp_path / "missing")
    assert fs.get_file_info(missing).type == FileType.NotFound
    assert fs.get_file_info(FileSelector(missing, allow_not_found=True, recursive=True)) == []
    with pytest.raises(FileNotFoundError):
        fs.get_file_info(FileSelector(missing))
    with pytest.raises(FileNotFoundError):
        fs.open_input_file(missing)
    with pytest.raises(DatasetNotFound):
        penstock.open(missing, filesystem=FaultyFsspec(fault=lambda _: None))


def test_a_file_is_not_a_folder(tmp_path):
    (tmp_path / "a").write_bytes(b"x")
    fs = to_arrow_filesystem(FaultyFsspec(fault=lambda _: None))
    for recursive in (False, True):
        with pytest.raises(NotADirectoryError):
            fs.get_file_info(FileSelector(str(tmp_path / "a"), recursive=recursive))


def test_an_empty_folder_is_a_folder(tmp_path):
    fs = to_arrow_filesystem(FaultyFsspec(fault=lambda _: None))
    assert fs.get_file_info(FileSelector(str(tmp_path))) == []


def test_opening_and_deleting_fail_with_the_store(tmp_path):
    (tmp_path / "a").write_bytes(b"x")
    fs = to_arrow_filesystem(FaultyFsspec(fault=lambda _: TimeoutError("no answer")))
    for request in (fs.open_input_file, fs.open_input_stream, FileSystemStore(fs).delete):
        with pytest.raises(StoreUnavailable):
            request(str(tmp_path / "a"))
    assert (tmp_path / "a").exists()


def test_a_file_to_write_is_opened_again_after_a_fault(tmp_path):
    faults = iter([TimeoutError("no answer"), ConnectionResetError("reset"), None])
    fs = to_arrow_filesystem(FaultyFsspec(fault=lambda _: next(faults)))
    with fs.open_output_stream(str(tmp_path / "a")) as sink:
        sink.write(b"all of it")
    assert (tmp_path / "a").read_bytes() == b"all of it"


class ObjectStore(fsspec.get_filesystem_class("memory")):
    """Lists all that begins with a prefix by one request, as s3fs does; there are no folders, but markers of them."""

    protocol, cachable, store, pseudo_dirs = "objects", False, {}, [""]
    error = None
    calls = 0

    def find(self, path, maxdepth=None, withdirs=False, detail=False, **more):
        type(self).calls += 1
        if self.error is not None:
            raise self.error
        return super().find(path, withdirs=withdirs, detail=True)


def test_an_object_store_is_listed_by_one_request(monkeypatch):
    store = ObjectStore()
    store.pipe({"/b/d/a.parquet": b"1", "/b/d/k=1/b.parquet": b"12", "/b/other": b"1"})
    assert walk(to_arrow_filesystem(store), "/b/d") == [("a.parquet", 1), ("k=1/b.parquet", 2)]
    assert ObjectStore.calls == 1
    monkeypatch.setattr(ObjectStore, "error", ConnectionResetError("reset by peer"))
    with pytest.raises(StoreUnavailable):
        walk(to_arrow_filesystem(store), "/b/d")


class Answer(OSError):
    def __init__(self, status):
        super().__init__(f"{status} error")
        self.status = status


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (EOFError(), StoreUnavailable),
        (OSError(errno.ENOSPC, "No space left on device"), StoreUnavailable),
        (OSError("something odd"), StoreUnavailable),
        (Answer(400), StoreUnavailable),
        (Answer(416), FileChanged),
        (Answer(412), FileChanged),
    ],
    ids=["EOFError", "ENOSPC", "no errno", "400", "416", "412"],
)
def test_no_answer_of_a_store_counts_as_damage(root, error, kind):
    faults = []
    ds = penstock.open(root, filesystem=FaultyFsspec(fault=lambda _: faults[0] if faults else None))
    with ds.loader(batch_size=10, on_error="skip", rank=0, world=1) as loader:
        faults.append(error)
        with pytest.raises(kind, match=r"data/day="):
            list(loader)
        assert loader.skipped == []


@pytest.mark.parametrize("error", [Answer(404), Answer(410), FileNotFoundError("gone")], ids=["404", "410", "local"])
def test_a_file_that_is_gone_is_said_to_be(root, error):
    fs = FaultyFsspec(fault=lambda path: error if "day=7/" in path else None)
    with pytest.raises(BadFile, match="it is not there"):
        penstock.open(root, filesystem=fs)
