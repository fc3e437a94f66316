"""A store gives the bytes that were asked for, of the file that was asked for, and says so when it cannot."""

import contextlib
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import fsspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow.fs import LocalFileSystem, S3FileSystem

import penstock
from penstock import halt
from penstock.errors import FileChanged, StoreUnavailable
from penstock.storage import faults, to_arrow_filesystem
from penstock.storage import remote_store as store_module
from penstock.storage.store import has_file, store_of
from penstock.testing import FaultyFileSystem, RecordingFileSystem, TransientFaults


@pytest.mark.parametrize("make", [LocalFileSystem, RecordingFileSystem], ids=["local", "wrapped"])
def test_the_time_of_writing_counts(tmp_path, make):
    path = tmp_path / "a"
    path.write_bytes(b"1234")
    os.utime(path, ns=(1, 10**18))
    found = store_of(make()).stat(str(path))
    assert found.size == 4
    assert found.lasting_version == "mtime=1000000000000000000"
    os.utime(path, ns=(1, 10**18 + 1000))
    assert store_of(make()).stat(str(path)).lasting_version != found.lasting_version
    with pytest.raises(FileNotFoundError):
        store_of(make()).stat(str(tmp_path / "b"))


def test_an_fsspec_store_tells_its_tag():
    memory = fsspec.filesystem("memory")
    memory.pipe("/version/a", b"one")
    fs = to_arrow_filesystem(memory)
    size, before = store_of(fs).stat("/version/a")
    memory.pipe("/version/a", b"two")
    assert size == 3
    assert before != ""
    assert store_of(fs).stat("/version/a")[1] != before
    with pytest.raises(FileNotFoundError):
        store_of(fs).stat("/version/none")


CONTENT = bytes(range(256)) * 2000
RANGES = st.lists(
    st.tuples(st.integers(0, len(CONTENT) - 1), st.integers(1, 60_000)).map(
        lambda r: (r[0], min(r[0] + r[1], len(CONTENT)))
    ),
    max_size=12,
)


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """The same bytes on a local disk, behind another filesystem, and on an fsspec store."""
    path = tmp_path_factory.mktemp("store") / "a"
    path.write_bytes(CONTENT)
    memory = fsspec.filesystem("memory")
    memory.pipe("/store/a", CONTENT)
    return {
        "local": (store_of(LocalFileSystem()), str(path)),
        "wrapped": (store_of(RecordingFileSystem()), str(path)),
        "fsspec": (store_of(to_arrow_filesystem(memory)), "/store/a"),
    }


KINDS = pytest.mark.parametrize("kind", ["local", "wrapped", "fsspec"])


@KINDS
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ranges=RANGES, split=st.sampled_from([1 << 24, 5000]))
def test_ranges_are_the_bytes_of_the_file_in_the_order_given(stores, monkeypatch, kind, ranges, split):
    monkeypatch.setattr(store_module, "SPLIT_BYTES", split)
    store, path = stores[kind]
    found = store.read_ranges(path, ranges, version=store.stat(path).version)
    assert [bytes(one) for one in found] == [CONTENT[start:stop] for start, stop in ranges]


@KINDS
@pytest.mark.parametrize("num_bytes", [4, 100_000, 10**9])
def test_a_tail_comes_with_size_and_version(stores, kind, num_bytes):
    store, path = stores[kind]
    tail = store.read_tail(path, num_bytes)
    assert tail == (CONTENT[-num_bytes:], len(CONTENT), store.stat(path).version)


@KINDS
def test_a_range_beyond_the_end_is_a_changed_file(stores, pauses, kind):
    store, path = stores[kind]
    with pytest.raises(FileChanged, match=rf"a has changed: it ends at byte {len(CONTENT)}"):
        store.read_ranges(path, [(len(CONTENT) - 5, len(CONTENT) + 5)])
    assert pauses == []


@KINDS
def test_another_version_is_a_changed_file(stores, kind):
    store, path = stores[kind]
    with pytest.raises(FileChanged, match="has changed: it was written again"):
        store.read_ranges(path, [(0, 5)], version="another")
    with pytest.raises(FileNotFoundError):
        store.read_ranges(f"{path}-not-there", [(0, 5)])
    assert not has_file(store, f"{path}-not-there")
    assert not has_file(store, os.path.dirname(path))
    assert has_file(store, path)


def test_only_local_files_are_read_by_pyarrow_itself(stores):
    files = {kind: store.native_file(path) for kind, (store, path) in stores.items()}
    assert files["wrapped"] is files["fsspec"] is None
    with files["local"] as file:
        assert file.read(3) == CONTENT[:3]


def test_near_ranges_are_one_request_and_long_ones_several(stores, monkeypatch):
    store, path = stores["wrapped"]
    reads = store.fs.reads
    reads.clear()
    store.read_ranges(path, [(0, 10), (1000, 1010), (400_000, 400_010)])
    assert sorted(reads.ranges(path)) == [(0, 1010), (400_000, 400_010)]
    reads.clear()
    monkeypatch.setattr(store_module, "SPLIT_BYTES", 1000)
    store.read_ranges(path, [(0, 2500)])
    assert sorted(reads.ranges(path)) == [(0, 833), (833, 1666), (1666, 2500)]


def test_a_body_that_is_cut_is_requested_again(pauses):
    class Cutting(fsspec.get_filesystem_class("memory")):
        protocol = "cutting"
        cuts = 2

        def cat_file(self, path, start=None, end=None, **more):
            Cutting.cuts -= 1
            return super().cat_file(path, start=start, end=end - 1 if Cutting.cuts >= 0 else end, **more)

    memory = Cutting()
    memory.pipe("/store/cut", CONTENT)
    [found] = store_of(to_arrow_filesystem(memory)).read_ranges("/store/cut", [(0, 100)])
    assert bytes(found) == CONTENT[:100]
    assert len(pauses) == 2


def test_parallel_requests_end_with_the_work_that_asked_for_them(stores):
    _, path = stores["local"]
    halted, failed = threading.Event(), []

    def fault(_):
        failed.append(1)
        halted.set()
        return TimeoutError("slow")

    with halt.until(halted), pytest.raises(StoreUnavailable):
        store_of(FaultyFileSystem(fault=fault)).read_ranges(path, [(0, 10), (400_000, 400_010)])
    assert len(failed) <= 2  # each was requested once at most


def test_a_store_travels_to_another_process(stores):
    store, path = stores["local"]
    assert pickle.loads(pickle.dumps(store)).stat(path) == store.stat(path)


def test_messages_name_the_url():
    assert store_of(LocalFileSystem()).url("/a/b") == "/a/b"
    assert store_of(to_arrow_filesystem(fsspec.filesystem("memory"))).url("/a/b") == "memory:///a/b"
    s3 = S3FileSystem(anonymous=True, region="us-east-1")
    assert store_of(s3).url("bucket/key") == "s3://bucket/key"


class TestWriting:
    @pytest.fixture(params=["local", "wrapped", "fsspec"])
    def target(self, request, tmp_path):
        fs = {
            "local": LocalFileSystem,
            "wrapped": RecordingFileSystem,
            "fsspec": lambda: to_arrow_filesystem(fsspec.filesystem("memory")),
        }
        return store_of(fs[request.param]()), tmp_path.as_posix()

    def test_files_are_written_listed_and_deleted(self, target):
        store, folder = target
        store.fs.create_dir(f"{folder}/b", recursive=True)
        store.write(f"{folder}/a", b"old")
        store.write(f"{folder}/a", b"newer")
        with store.open_output(f"{folder}/b/_c") as sink:
            sink.write(b"12")
            sink.write(b"3")
        assert store.can_list
        assert store.list_files(folder) == [("a", 5), ("b/_c", 3)]
        assert bytes(store.read_ranges(f"{folder}/a", [(0, 5)])[0]) == b"newer"
        for _ in range(2):
            store.delete(f"{folder}/a")
        assert store.list_files(folder) == [("b/_c", 3)]

    def test_a_file_is_created_once(self, target):
        store, folder = target
        store.fs.create_dir(folder, recursive=True)
        try:
            found = [store.create(f"{folder}/claim", one) for one in (b"one", b"two")]
        except NotImplementedError:
            assert not has_file(store, f"{folder}/claim")
        else:
            assert found == [True, False]
            assert store.read_tail(f"{folder}/claim", 9).data == b"one"

    def test_only_one_of_many_creates_a_local_file(self, tmp_path):
        store, path = store_of(LocalFileSystem()), str(tmp_path / "claim")
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda number: store.create(path, b"%d" % number), range(32)))
        assert sum(found) == 1

    def test_a_file_is_written_again_after_faults(self, tmp_path, pauses):
        fault = TransientFaults(0.5, seed=4)
        store = store_of(FaultyFileSystem(fault=fault))
        for number in range(10):
            store.write(str(tmp_path / f"{number}"), b"data")
        assert sorted(path.read_bytes() for path in tmp_path.iterdir()) == [b"data"] * 10
        for number in range(10):
            store.delete(str(tmp_path / f"{number}"))
        assert not list(tmp_path.iterdir())
        assert fault.num_raised == len(pauses) > 0


def test_web_servers_have_no_listings():
    class Web(fsspec.get_filesystem_class("memory")):
        protocol = ("http", "https")

    assert not store_of(to_arrow_filesystem(Web())).can_list


def test_reading_local_files_waits_for_descriptors(tmp_path, monkeypatch):
    resource = pytest.importorskip("resource")
    penstock.write({"id": np.arange(100)}, tmp_path / "d")
    ds = penstock.open(tmp_path / "d", on_error="skip")
    hogs = []

    def free(_seconds):
        while hogs:
            os.close(hogs.pop())
        return False

    monkeypatch.setattr(faults, "pause", free)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ds.loader(batch_size=100, on_error="skip", pool="serial") as loader:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(limits[0], 256), limits[1]))
        try:
            with contextlib.suppress(OSError):
                while True:
                    hogs.append(os.open(tmp_path, os.O_RDONLY))
            [batch] = loader
        finally:
            free(0)
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert loader.skipped == []
    assert batch["id"].tolist() == list(range(100))
