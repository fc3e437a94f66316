"""A store gives the bytes that were asked for, of the file that was asked for, and says so when it cannot."""

import os
import pickle
import threading

import fsspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow.fs import LocalFileSystem, S3FileSystem

from penstock import halt
from penstock.errors import FileChanged, StoreUnavailable
from penstock.storage import store as store_module
from penstock.storage import to_arrow_filesystem
from penstock.storage.store import FileSystemStore, has_file
from penstock.testing import FaultyFileSystem, RecordingFileSystem


@pytest.mark.parametrize("make", [LocalFileSystem, RecordingFileSystem], ids=["local", "wrapped"])
def test_the_time_of_writing_counts(tmp_path, make):
    path = tmp_path / "a"
    path.write_bytes(b"1234")
    os.utime(path, ns=(1, 10**18))
    found = FileSystemStore(make()).stat(str(path))
    assert found.size == 4
    assert found.lasting_version == "mtime=1000000000000000000"
    os.utime(path, ns=(1, 10**18 + 1000))
    assert FileSystemStore(make()).stat(str(path)).lasting_version != found.lasting_version
    with pytest.raises(FileNotFoundError):
        FileSystemStore(make()).stat(str(tmp_path / "b"))


def test_an_fsspec_store_tells_its_tag():
    memory = fsspec.filesystem("memory")
    memory.pipe("/version/a", b"one")
    fs = to_arrow_filesystem(memory)
    size, before = FileSystemStore(fs).stat("/version/a")
    memory.pipe("/version/a", b"two")
    assert size == 3
    assert before != ""
    assert FileSystemStore(fs).stat("/version/a")[1] != before
    with pytest.raises(FileNotFoundError):
        FileSystemStore(fs).stat("/version/none")


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
        "local": (FileSystemStore(LocalFileSystem()), str(path)),
        "wrapped": (FileSystemStore(RecordingFileSystem()), str(path)),
        "fsspec": (FileSystemStore(to_arrow_filesystem(memory)), "/store/a"),
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
    [found] = FileSystemStore(to_arrow_filesystem(memory)).read_ranges("/store/cut", [(0, 100)])
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
        FileSystemStore(FaultyFileSystem(fault=fault)).read_ranges(path, [(0, 10), (400_000, 400_010)])
    assert len(failed) <= 2  # each was requested once at most


def test_a_store_travels_to_another_process(stores):
    store, path = stores["local"]
    assert pickle.loads(pickle.dumps(store)).stat(path) == store.stat(path)


def test_messages_name_the_url():
    assert FileSystemStore(LocalFileSystem()).url("/a/b") == "/a/b"
    assert FileSystemStore(to_arrow_filesystem(fsspec.filesystem("memory"))).url("/a/b") == "memory:///a/b"
    s3 = S3FileSystem(anonymous=True, region="us-east-1")
    assert FileSystemStore(s3).url("bucket/key") == "s3://bucket/key"
