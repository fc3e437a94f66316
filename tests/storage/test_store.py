"""A file written again has another version, on every kind of store."""

import os

import fsspec
import pytest
from pyarrow.fs import LocalFileSystem

from penstock.storage import to_arrow_filesystem
from penstock.storage.store import FileSystemStore
from penstock.testing.filesystems import RecordingFileSystem


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
