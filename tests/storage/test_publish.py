"""A file or folder appears under its final name complete or not at all, on local disks, SFTP-like ones and stores."""

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import fsspec
import fsspec.implementations.local
import pytest
from pyarrow.fs import FSSpecHandler, LocalFileSystem, PyFileSystem

from penstock.errors import StoreUnavailable
from penstock.storage import publish as publish_module
from penstock.storage.publish import (
    can_rename,
    exchange,
    publish_file,
    publish_folder,
    put,
    remove,
    restore,
    temporary_name,
    temporary_of,
)
from tests.depth import depth

LOCAL = LocalFileSystem()
RENAMING = PyFileSystem(FSSpecHandler(fsspec.filesystem("file")))
"""A filesystem that renames, but not by `os.rename`: stands for HDFS and SFTP."""


def folder(path: Path, text: str) -> Path:
    path.mkdir()
    (path / "x").write_text(text)
    return path


def names(path: Path) -> list[str]:
    return sorted(found.name for found in path.iterdir())


@pytest.fixture(params=["local", "renaming"])
def fs(request: pytest.FixtureRequest) -> Any:
    return LOCAL if request.param == "local" else RENAMING


def test_which_filesystems_rename() -> None:
    assert can_rename(LOCAL)
    assert can_rename(RENAMING)
    assert not can_rename(PyFileSystem(FSSpecHandler(fsspec.filesystem("memory"))))


class TestPut:
    def test_a_file_is_written_and_replaced(self, fs: Any, tmp_path: Path) -> None:
        for text in (b"old", b"new"):
            put(fs, str(tmp_path / "a"), text, sync=True)
            assert ((tmp_path / "a").read_bytes(), names(tmp_path)) == (text, ["a"])

    def test_an_object_of_a_store_is_written_and_replaced(self) -> None:
        memory = fsspec.filesystem("memory")
        for text in (b"old", b"new"):
            put(PyFileSystem(FSSpecHandler(memory)), "put/a", text)
            assert memory.cat("/put/a") == text
        assert memory.ls("/put", detail=False) == ["/put/a"]

    @pytest.mark.parametrize("failing", ["sync_file", "publish_file"])
    def test_an_error_leaves_the_old_file_alone(
        self, fs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
    ) -> None:
        def full(*_: Any, **__: Any) -> None:
            raise OSError("disk full")

        put(fs, str(tmp_path / "a"), b"old")
        monkeypatch.setattr(publish_module, failing, full)
        with pytest.raises(OSError, match="disk full"):
            put(fs, str(tmp_path / "a"), b"new", sync=True)
        assert ((tmp_path / "a").read_bytes(), names(tmp_path)) == (b"old", ["a"])

    def test_a_folder_is_never_replaced_by_a_file(self, tmp_path: Path) -> None:
        folder(tmp_path / "a", "x")
        with pytest.raises(IsADirectoryError):
            put(LOCAL, str(tmp_path / "a"), b"new")
        assert (tmp_path / "a" / "x").read_text() == "x"

    @pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL on this system")
    def test_a_killed_process_leaves_a_whole_file(self, tmp_path: Path) -> None:
        code = (
            "import itertools, sys\n"
            "from pyarrow.fs import LocalFileSystem\n"
            "from penstock.storage.publish import put_json\n"
            "for number in itertools.count():\n"
            "    put_json(LocalFileSystem(), sys.argv[1], {'text': str(number % 10) * 100_000})\n"
            "    print('put', flush=True)\n"
        )
        path = tmp_path / "a.json"
        for round in range(depth(3, 30)):
            child = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
            assert child.stdout is not None
            assert child.stdout.readline() == "put\n"
            time.sleep(0.003 * round)
            child.kill()
            child.wait()
            child.stdout.close()
            assert len(set(json.loads(path.read_text())["text"])) == 1
            assert {temporary_of(name) or name for name in names(tmp_path)} == {"a.json"}


def test_temporary_names_are_hidden_and_known() -> None:
    made = temporary_name("/data/_metadata")
    assert (os.path.dirname(made), os.path.basename(made)[0]) == ("/data", ".")
    assert temporary_of(os.path.basename(made)) == "_metadata"
    assert temporary_of("_metadata.writing") is None


def test_a_rename_that_does_not_overwrite_files_is_helped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on HDFS."""
    base = fsspec.filesystem("file")
    monkeypatch.setattr(type(base), "mv", lambda _, a, b, **__: os.link(a, b) or os.unlink(a))
    for name, text in (("made", "new"), ("a", "old")):
        (tmp_path / name).write_text(text)
    publish_file(PyFileSystem(FSSpecHandler(base)), str(tmp_path / "made"), str(tmp_path / "a"))
    assert ((tmp_path / "a").read_text(), names(tmp_path)) == ("new", ["a"])


class Unreliable(fsspec.implementations.local.LocalFileSystem):
    """An SFTP server whose renames fail: before the server has renamed, after it, or by refusing to overwrite."""

    protocol = ("sftp",)
    cachable = False

    def __init__(self, *faults: str) -> None:
        super().__init__()
        self.faults = list(faults)

    def mv(self, path1: str, path2: str, **_: Any) -> None:
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "down":
            raise TimeoutError("timed out")
        if fault == "refuses" and os.path.exists(path2):
            raise OSError(f"{path2} exists")
        os.rename(path1, path2)
        if fault == "lost":
            raise TimeoutError("timed out")


@pytest.mark.parametrize(
    ("faults", "text"),
    [
        (["lost"], "new"),
        (["down", "lost"], "new"),
        (["refuses", "lost", "lost"], "new"),
        (["refuses", "down", "", "down", ""], "new"),
        (["down"] * 99, "old"),
        (["refuses"] + ["down"] * 8, "old"),
        (["refuses", ""] + ["down"] * 8, "old"),
    ],
)
def test_a_rename_whose_answer_is_lost_or_never_comes_loses_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faults: list[str], text: str
) -> None:
    monkeypatch.setattr("penstock.storage.faults._FIRST_PAUSE_S", 0.0)
    (tmp_path / "a").write_text("old")
    with contextlib.nullcontext() if text == "new" else pytest.raises(StoreUnavailable, match="timed out"):
        put(PyFileSystem(FSSpecHandler(Unreliable(*faults))), str(tmp_path / "a"), b"new")
    assert ((tmp_path / "a").read_text(), names(tmp_path)) == (text, ["a"])


def test_a_file_that_is_not_there_is_not_published(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    with pytest.raises(FileNotFoundError):
        publish_file(PyFileSystem(FSSpecHandler(Unreliable())), str(tmp_path / "gone"), str(tmp_path / "a"))
    assert ((tmp_path / "a").read_text(), names(tmp_path)) == ("old", ["a"])


class TestPublishFolder:
    @pytest.mark.parametrize("there", ["nothing", "empty", "folder", "file", "link"])
    @pytest.mark.parametrize("can_exchange", [True, False])
    def test_a_folder_takes_any_place(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: str, can_exchange: bool
    ) -> None:
        if not can_exchange:
            monkeypatch.setattr(publish_module, "exchange", lambda *_: False)
        folder(tmp_path / "other", "kept")
        path = tmp_path / "a"
        if there == "empty":
            path.mkdir()
        elif there == "folder":
            folder(path, "old")
        elif there == "file":
            path.write_text("old")
        elif there == "link":
            path.symlink_to(tmp_path / "other")
        folder(tmp_path / "made", "new")
        publish_folder(LOCAL, str(tmp_path / "made"), str(path))
        assert ((path / "x").read_text(), names(tmp_path)) == ("new", ["a", "other"])
        assert (tmp_path / "other" / "x").read_text() == "kept"

    def test_a_filesystem_that_only_renames_replaces_folders(self, tmp_path: Path) -> None:
        folder(tmp_path / "a", "old")
        folder(tmp_path / "made", "new")
        publish_folder(RENAMING, str(tmp_path / "made"), str(tmp_path / "a"))
        assert ((tmp_path / "a" / "x").read_text(), names(tmp_path)) == ("new", ["a"])

    def test_a_folder_that_another_process_puts_there_meanwhile_is_checked_too(self, tmp_path: Path) -> None:
        class Late(Unreliable):
            def mv(self, path1: str, path2: str, **_: Any) -> None:
                if not (tmp_path / "a").exists():
                    folder(tmp_path / "a", "other")
                shutil.move(path1, path2)  # into a folder that is there, as HDFS does

        def refuse() -> None:
            raise FileExistsError("keep it")

        folder(tmp_path / "made", "new")
        fs = PyFileSystem(FSSpecHandler(Late()))
        with pytest.raises(FileExistsError, match="keep it"):
            publish_folder(fs, str(tmp_path / "made"), str(tmp_path / "a"), check=refuse)
        assert (names(tmp_path / "a"), (tmp_path / "a" / "x").read_text()) == (["x"], "other")
        assert (tmp_path / "made" / "x").read_text() == "new"

    def test_the_check_is_asked_before_anything_is_replaced(self, fs: Any, tmp_path: Path) -> None:
        def refuse() -> None:
            raise FileExistsError("keep it")

        folder(tmp_path / "a", "old")
        folder(tmp_path / "made", "new")
        with pytest.raises(FileExistsError, match="keep it"):
            publish_folder(fs, str(tmp_path / "made"), str(tmp_path / "a"), check=refuse)
        assert [(tmp_path / name / "x").read_text() for name in ("a", "made")] == ["old", "new"]
        publish_folder(fs, str(tmp_path / "made"), str(tmp_path / "b"), check=refuse)
        assert names(tmp_path) == ["a", "b"]

    def test_of_several_processes_at_once_each_replaces_a_whole_folder(self, tmp_path: Path) -> None:
        code = (
            "import os, sys\n"
            "from pyarrow.fs import LocalFileSystem\n"
            "from penstock.storage.publish import publish_folder\n"
            "for number in range(int(sys.argv[3])):\n"
            "    made = f'{sys.argv[1]}.{sys.argv[2]}.{number}'\n"
            "    os.mkdir(made)\n"
            "    for name in 'xy':\n"
            "        with open(f'{made}/{name}', 'w') as file:\n"
            "            file.write(made)\n"
            "    publish_folder(LocalFileSystem(), made, sys.argv[1])\n"
        )
        command = [sys.executable, "-c", code, str(tmp_path / "a")]
        children = [subprocess.Popen([*command, str(k), str(depth(20, 200))]) for k in range(3)]
        assert [child.wait() for child in children] == [0, 0, 0]
        assert (tmp_path / "a" / "x").read_text() == (tmp_path / "a" / "y").read_text()
        assert names(tmp_path) == ["a"]

    def test_a_failed_second_rename_moves_the_old_folder_back(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rename, calls = publish_module._rename, itertools.count()

        def failing(*args: Any) -> None:
            if next(calls) == 1:
                raise OSError("disk on fire")
            rename(*args)

        monkeypatch.setattr(publish_module, "exchange", lambda *_: False)
        monkeypatch.setattr(publish_module, "_rename", failing)
        folder(tmp_path / "a", "old")
        folder(tmp_path / "made", "new")
        with pytest.raises(OSError, match="fire"):
            publish_folder(LOCAL, str(tmp_path / "made"), str(tmp_path / "a"))
        assert [(tmp_path / name / "x").read_text() for name in ("a", "made")] == ["old", "new"]

    def test_a_folder_left_aside_by_a_kill_is_moved_back(self, fs: Any, tmp_path: Path) -> None:
        folder(tmp_path / "made.old", "old")
        restore(fs, str(tmp_path / "made"), str(tmp_path / "a"))
        assert ((tmp_path / "a" / "x").read_text(), names(tmp_path)) == ("old", ["a"])
        folder(tmp_path / "made.old", "older")
        restore(fs, str(tmp_path / "made"), str(tmp_path / "a"))
        assert (tmp_path / "a" / "x").read_text() == "old"


def test_exchange_swaps_or_returns_false(tmp_path: Path) -> None:
    folder(tmp_path / "a", "x")
    (tmp_path / "b").mkdir()
    done = exchange(str(tmp_path / "a"), str(tmp_path / "b"))
    assert (tmp_path / ("b" if done else "a") / "x").exists()
    assert not exchange(str(tmp_path / "a"), str(tmp_path / "none"))


def test_a_system_without_exchange_returns_false(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "sunos5")
    assert not exchange(str(tmp_path), str(tmp_path))


def test_remove_deletes_a_link_and_not_what_it_leads_to(tmp_path: Path) -> None:
    folder(tmp_path / "a", "kept")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    remove(LOCAL, str(tmp_path / "link"))
    remove(LOCAL, str(tmp_path / "none"))
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a" / "x").read_text() == "kept"
