"""A dataset appears whole or not at all, whatever happens while it is written."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from penstock.codecs import ScalarCodec
from penstock.errors import DatasetExists
from penstock.schema.unischema import Unischema, UnischemaField
from penstock.storage import publish as publish_module
from penstock.write import discard, write
from tests.depth import depth

SCHEMA = Unischema("Ids", [UnischemaField("id", np.int64, (), ScalarCodec(), False)])


def ids(start: int, stop: int) -> Iterator[dict[str, Any]]:
    return ({"id": i} for i in range(start, stop))


def read(root: Path) -> list[int]:
    return [i for path in sorted(root.glob("*.parquet")) for i in pq.read_table(path)["id"].to_pylist()]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_nothing_but_the_dataset_is_left(tmp_path: Path) -> None:
    write(ids(0, 5), tmp_path / "d", SCHEMA)
    assert names(tmp_path) == ["d"]
    assert names(tmp_path / "d") == ["_common_metadata", "part-000000.parquet"]


def test_parents_are_made_and_urls_work(tmp_path: Path) -> None:
    write(ids(0, 5), f"file://{tmp_path}/a b/c/d/", SCHEMA)
    assert read(tmp_path / "a b" / "c" / "d") == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("there", ["nothing", "folder", "dataset"])
def test_a_link_stays_and_what_it_leads_to_is_written(tmp_path: Path, there: str) -> None:
    disk, link = tmp_path / "disk" / "d", tmp_path / "d"
    disk.parent.mkdir()
    link.symlink_to(disk)
    if there == "folder":
        disk.mkdir()
    if there == "dataset":
        write(ids(0, 3), disk, SCHEMA)
    write(ids(0, 5), link, SCHEMA, overwrite=there == "dataset")
    assert link.is_symlink()
    assert read(disk) == [0, 1, 2, 3, 4]
    assert names(tmp_path / "disk") == ["d"]
    assert names(tmp_path) == ["d", "disk"]


def test_the_target_is_not_there_while_it_is_written(tmp_path: Path) -> None:
    seen = []

    def rows() -> Iterator[dict[str, Any]]:
        for i in range(3):
            seen.append((tmp_path / "d").exists())
            yield {"id": i}

    write(rows(), tmp_path / "d", SCHEMA)
    assert seen == [False, False, False]


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), SystemExit(1)])
def test_an_error_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    def rows() -> Iterator[dict[str, Any]]:
        yield from ids(0, 10_000)
        raise error

    with pytest.raises(type(error)):
        write(rows(), tmp_path / "d", SCHEMA, rows_per_file=100)
    assert names(tmp_path) == []


def test_a_dataset_that_is_there_is_not_touched(tmp_path: Path) -> None:
    write(ids(0, 5), tmp_path / "d", SCHEMA)

    def rows() -> Iterator[dict[str, Any]]:
        pytest.fail("rows were asked for before the target was looked at")
        yield {}

    with pytest.raises(DatasetExists, match="overwrite=True"):
        write(rows(), tmp_path / "d", SCHEMA)
    assert read(tmp_path / "d") == [0, 1, 2, 3, 4]


def test_an_empty_folder_may_be_there(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    write(ids(0, 5), tmp_path / "d", SCHEMA)
    assert read(tmp_path / "d") == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("can_exchange", [True, False])
def test_overwriting_replaces_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_exchange: bool) -> None:
    if not can_exchange:
        monkeypatch.setattr(publish_module, "exchange", lambda *_: False)
    write(ids(0, 50), tmp_path / "d", SCHEMA, rows_per_file=10)
    write(ids(7, 9), tmp_path / "d", SCHEMA, overwrite=True)
    assert read(tmp_path / "d") == [7, 8]
    assert names(tmp_path) == ["d"]
    write(ids(1, 2), tmp_path / "new", SCHEMA, overwrite=True)
    assert read(tmp_path / "new") == [1]


def test_the_old_dataset_can_be_read_while_it_is_overwritten(tmp_path: Path) -> None:
    write(ids(0, 5), tmp_path / "d", SCHEMA)
    write(({"id": i + 1} for i in read(tmp_path / "d")), tmp_path / "d", SCHEMA, overwrite=True)
    assert read(tmp_path / "d") == [1, 2, 3, 4, 5]


def test_a_failed_overwrite_leaves_the_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(ids(0, 5), tmp_path / "d", SCHEMA)

    def rows() -> Iterator[dict[str, Any]]:
        yield {"id": 1}
        raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        write(rows(), tmp_path / "d", SCHEMA, overwrite=True)
    assert (read(tmp_path / "d"), names(tmp_path)) == ([0, 1, 2, 3, 4], ["d"])


def test_a_failed_second_rename_brings_the_old_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(ids(0, 5), tmp_path / "d", SCHEMA)
    move = publish_module._rename

    def fail_once(fs: Any, source: str, target: str) -> None:
        if source.endswith(".writing/data"):
            raise OSError("disk on fire")
        move(fs, source, target)

    monkeypatch.setattr(publish_module, "exchange", lambda *_: False)
    monkeypatch.setattr(publish_module, "_rename", fail_once)
    with pytest.raises(OSError, match="fire"):
        write(ids(7, 9), tmp_path / "d", SCHEMA, overwrite=True)
    assert (read(tmp_path / "d"), names(tmp_path)) == ([0, 1, 2, 3, 4], ["d"])


def test_a_folder_of_other_things_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "home" / "letters").mkdir(parents=True)
    (tmp_path / "home" / "letters" / "love.txt").write_text("dear")
    with pytest.raises(DatasetExists, match=r"contains 'letters/love.txt'"):
        write(ids(0, 5), tmp_path / "home", SCHEMA, overwrite=True)
    (tmp_path / "file").write_text("x")
    with pytest.raises(DatasetExists, match="contains 'file'"):
        write(ids(0, 5), tmp_path / "file", SCHEMA, overwrite=True)
    assert (tmp_path / "home" / "letters" / "love.txt").read_text() == "dear"


def test_two_writers_do_not_mix(tmp_path: Path) -> None:
    def rows() -> Iterator[dict[str, Any]]:
        yield {"id": 1}
        write(ids(5, 8), tmp_path / "d", SCHEMA)

    with pytest.raises(DatasetExists):
        write(rows(), tmp_path / "d", SCHEMA)
    assert (read(tmp_path / "d"), names(tmp_path)) == ([5, 6, 7], ["d"])


KILLED = """
import sys, numpy as np
from penstock.codecs import ScalarCodec
from penstock.schema.unischema import Unischema, UnischemaField
from penstock.write import discard, write
schema = Unischema("Ids", [UnischemaField("id", np.int64, (), ScalarCodec(), False)])
def rows():
    for i in range(10**9):
        if i == 30_000:
            print("going", flush=True)
        yield {"id": i}
write(rows(), sys.argv[1], schema, rows_per_file=500, overwrite=True)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL on this system")
@pytest.mark.parametrize("round", range(depth(2, 20)))
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("after", ["write", "discard"])
def test_a_killed_writer_leaves_old_or_nothing(tmp_path: Path, before: bool, round: int, after: str) -> None:
    if before:
        write(ids(0, 5), tmp_path / "d", SCHEMA)
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path / "d")], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "going\n"
    time.sleep(0.02 * round)
    child.kill()
    child.wait()
    child.stdout.close()
    assert (tmp_path / "d").exists() == before
    assert not before or read(tmp_path / "d") == [0, 1, 2, 3, 4]
    assert all(name.startswith(".") for name in names(tmp_path) if name != "d")
    if after == "write":
        write(ids(0, 3), tmp_path / "d", SCHEMA, overwrite=True)  # the leftover is in nobody's way
        assert read(tmp_path / "d") == [0, 1, 2]
        assert names(tmp_path) == ["d"]
    else:
        assert discard(tmp_path / "d") == 1
        assert names(tmp_path) == ["d"] * before


def test_other_filesystems(tmp_path: Path) -> None:
    write(ids(0, 5), "deep/d", SCHEMA, filesystem=SubTreeFileSystem(str(tmp_path), LocalFileSystem()))
    assert (read(tmp_path / "deep" / "d"), names(tmp_path / "deep")) == ([0, 1, 2, 3, 4], ["d"])


@pytest.mark.parametrize("overwrite", [False, True])
def test_fsspec_urls(overwrite: bool) -> None:
    memory = fsspec.filesystem("memory")
    url = f"memory://penstock-{os.getpid()}-{overwrite}/d"
    try:
        if overwrite:
            write(ids(7, 9), url, SCHEMA)
        write(ids(0, 5), url, SCHEMA, rows_per_file=2, overwrite=overwrite)
        with pytest.raises(DatasetExists):
            write(ids(0, 5), url, SCHEMA)
        found = sorted(memory.find(url))
        assert [path.rsplit("/d/", 1)[1] for path in found] == [
            "_common_metadata",
            *(f"part-00000{i}.parquet" for i in range(3)),
        ]
        with memory.open(found[-1]) as stream:
            assert pq.read_table(stream)["id"].to_pylist() == [4]
    finally:
        memory.rm(url.rsplit("/", 1)[0], recursive=True)
