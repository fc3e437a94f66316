"""A file written again has another version, on every kind of store."""

import os

import fsspec
import pytest
from pyarrow.fs import LocalFileSystem

from penstock.storage import to_arrow_filesystem
from penstock.storage.file_version import version_of
from penstock.testing.filesystems import RecordingFileSystem


@pytest.mark.parametrize("make", [LocalFileSystem, RecordingFileSystem], ids=["local", "wrapped"])
def test_the_time_of_writing_counts(tmp_path, make):
    path = tmp_path / "a"
    path.write_bytes(b"1234")
    os.utime(path, ns=(1, 10**18))
    size, before = version_of(make(), str(path))
    assert size == 4
    assert before == "mtime=1000000000000000000"
    os.utime(path, ns=(1, 10**18 + 1000))
    assert version_of(make(), str(path))[1] != before
    with pytest.raises(FileNotFoundError):
        version_of(make(), str(tmp_path / "b"))


def test_an_fsspec_store_tells_its_tag():
    memory = fsspec.filesystem("memory")
    memory.pipe("/version/a", b"one")
    fs = to_arrow_filesystem(memory)
    size, before = version_of(fs, "/version/a")
    memory.pipe("/version/a", b"two")
    assert size == 3
    assert before != ""
    assert version_of(fs, "/version/a")[1] != before
    with pytest.raises(FileNotFoundError):
        version_of(fs, "/version/none")
