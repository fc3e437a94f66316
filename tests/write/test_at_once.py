"""Several writers of one target at once: one dataset, whole; nothing in use is removed, nothing replaced unasked."""

import itertools
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from pyarrow.fs import FSSpecHandler, LocalFileSystem, PyFileSystem

import penstock
from penstock.dataset.write_markers import hidden_folders
from penstock.errors import DatasetExists, DatasetIncomplete, DatasetNotFound
from penstock.storage import locks as locks_module
from penstock.storage import publish as publish_module
from penstock.storage.locks import Lock, mutex
from penstock.write.staging import StagedDataset
from penstock.write.target import WriteTarget
from tests.depth import depth
from tests.write.ids import IDS, ids, rows

WRITER = """
import json, sys, numpy as np, penstock
from penstock.codecs import ScalarCodec
from penstock.testing import RecordingFileSystem
url, form, first, overwrite, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "yes", int(sys.argv[5])
schema = penstock.Unischema("Ids", [penstock.UnischemaField("id", np.int64, (), ScalarCodec(), False)])
fs = RecordingFileSystem() if form == "store" else None       # not known to rename: a store, on the local disk
for round in range(rounds):
    print("ready", flush=True)
    sys.stdin.readline()
    data = {"id": np.arange(first, first + 7 + first // 100)}
    try:
        penstock.write(data, f"{url}{round}", schema, rows_per_file=2, overwrite=overwrite, filesystem=fs)
        print("written", flush=True)
    except Exception as error:
        print(json.dumps([type(error).__name__, str(error)]), flush=True)
"""


def at_once(url: Path, form: str, count: int, overwrite: bool, rounds: int) -> Iterator[list[str]]:
    """Let processes write `url0`, `url1` ..., each round at the same time; yield what each says of a round."""
    words = [[str(url), form, str(100 * k), "yes" if overwrite else "no", str(rounds)] for k in range(count)]
    children = [
        subprocess.Popen([sys.executable, "-c", WRITER, *w], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for w in words
    ]
    try:
        for _ in range(rounds):
            for child in children:
                assert child.stdout.readline() == "ready\n"
            for child in children:
                child.stdin.write("go\n")
                child.stdin.flush()
            yield [child.stdout.readline().strip() for child in children]
    finally:
        for child in children:
            child.communicate()


def written_by(url: Path, count: int) -> int:
    """Return whose dataset it is; every row must be that writer's, and none may be missing."""
    found = ids(url)
    return [list(range(100 * k, 100 * k + 7 + k)) for k in range(count)].index(found)


@pytest.mark.parametrize("form", ["folder", "store"])
def test_of_two_without_overwrite_one_is_told_that_the_other_was_faster(tmp_path: Path, form: str) -> None:
    for round, said in enumerate(at_once(tmp_path / "d", form, 2, False, depth(5, 100))):
        winner = written_by(tmp_path / f"d{round}", 2)
        assert [one == "written" for one in said] == [k == winner for k in range(2)], said
        assert json.loads(said[1 - winner])[0] == "DatasetExists", said
    assert {path.name[0] for path in tmp_path.iterdir()} == {"d"}


def test_six_overwrites_at_once_all_succeed(tmp_path: Path) -> None:
    for round, said in enumerate(at_once(tmp_path / "d", "folder", 6, True, depth(3, 50))):
        assert said == ["written"] * 6
        written_by(tmp_path / f"d{round}", 6)
    assert {path.name[0] for path in tmp_path.iterdir()} == {"d"}


@pytest.mark.parametrize("before", [False, True])
def test_six_overwrites_at_once_on_a_store_leave_one_dataset(tmp_path: Path, before: bool) -> None:
    """Some are told that another was faster; if a live one was taken for dead, the target may say it is incomplete."""
    rounds = depth(3, 50)
    if before:
        for round in range(rounds):
            penstock.write(rows(1000, 1050), tmp_path / f"d{round}", IDS, rows_per_file=5)
    for round, said in enumerate(at_once(tmp_path / "d", "store", 6, True, rounds)):
        errors = [json.loads(one) for one in said if one != "written"]
        assert {name for name, _ in errors} <= {"DatasetExists", "DatasetIncomplete"}
        try:
            written_by(tmp_path / f"d{round}", 6)
        except DatasetIncomplete:
            assert errors


@pytest.mark.parametrize("moment", ["check", "rename"])
def test_what_appears_in_the_last_moment_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    writer = penstock.Writer(tmp_path / "d", IDS)
    writer.extend(rows(0, 3))
    owner, name = (WriteTarget, "check") if moment == "check" else (publish_module, "_remove_empty")
    real = getattr(owner, name)

    def overtaken(*args: Any, **options: Any) -> None:
        monkeypatch.setattr(owner, name, real)
        if moment == "check":
            real(*args, **options)
        penstock.write(rows(100, 105), tmp_path / "d", IDS)

    monkeypatch.setattr(owner, name, overtaken)
    with pytest.raises(DatasetExists, match="already exists"):
        writer.commit()
    assert ids(tmp_path / "d") == [*range(100, 105)]
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


@pytest.mark.parametrize("can_exchange", [True, False])
def test_an_overwrite_that_is_overtaken_replaces_what_came_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_exchange: bool
) -> None:
    """The faster one tidies up, and must not take the folder of the slower one for a dead writer's."""
    if not can_exchange:
        monkeypatch.setattr(publish_module, "exchange", lambda *_: False)
    writer = penstock.Writer(tmp_path / "d", IDS, overwrite=True)
    writer.extend(rows(0, 3))
    real = StagedDataset.publish

    def overtaken(stage: StagedDataset, **options: Any) -> None:
        monkeypatch.setattr(StagedDataset, "publish", real)
        penstock.write(rows(100, 105), tmp_path / "d", IDS, overwrite=True)
        real(stage, **options)

    monkeypatch.setattr(StagedDataset, "publish", overtaken)
    writer.commit()
    assert ids(tmp_path / "d") == [0, 1, 2]
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_a_target_that_vanishes_between_two_renames_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    penstock.write(rows(100, 105), tmp_path / "d", IDS)
    real, calls = publish_module._rename, itertools.count()

    def vanished(fs: Any, source: str, target: str) -> None:
        if next(calls) == 0:
            real(fs, source, str(tmp_path / "elsewhere"))  # another writer was about to replace it
        real(fs, source, target)

    monkeypatch.setattr(publish_module, "exchange", lambda *_: False)
    monkeypatch.setattr(publish_module, "_rename", vanished)
    penstock.write(rows(0, 3), tmp_path / "d", IDS, overwrite=True)
    assert ids(tmp_path / "d") == [0, 1, 2]


def test_a_filesystem_that_moves_into_a_folder_does_not_mix_datasets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As HDFS and fsspec do where a folder has appeared at the target."""
    real = publish_module._remove_empty

    def overtaken(*_: Any) -> None:
        monkeypatch.setattr(publish_module, "_remove_empty", real)
        penstock.write(rows(5, 8), tmp_path / "d", IDS)

    monkeypatch.setattr(publish_module, "_remove_empty", overtaken)
    place = WriteTarget(PyFileSystem(FSSpecHandler(fsspec.filesystem("file"))), str(tmp_path / "d"))
    (tmp_path / "staged" / "data").mkdir(parents=True)
    (tmp_path / "staged" / "data" / "x.parquet").write_bytes(b"")
    with pytest.raises(DatasetExists, match="already exists"):
        place.publish(str(tmp_path / "staged" / "data"), overwrite=False)
    assert ids(tmp_path / "d") == [5, 6, 7]
    assert [path.name for path in (tmp_path / "staged").rglob("*")] == ["data", "x.parquet"]


# --- stores -----------------------------------------------------------------------------------------------------------


def test_files_of_a_replacement_that_was_killed_do_not_mix_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"memory://mixed-{abs(hash(str(tmp_path)))}/d"
    penstock.write(rows(0, 10), url, IDS, rows_per_file=2)
    memory = type(fsspec.filesystem("memory"))
    move, moved = memory.mv, itertools.count()

    def failing(self: Any, source: str, target: str, **options: Any) -> None:
        if next(moved) == 6:
            raise KeyboardInterrupt
        move(self, source, target, **options)

    with monkeypatch.context() as patched:
        patched.setattr(memory, "mv", failing)
        with pytest.raises(KeyboardInterrupt):
            penstock.write(rows(100, 120), url, IDS, rows_per_file=2, overwrite=True)
    penstock.write(rows(200, 203), url, IDS, rows_per_file=2, overwrite=True)
    assert ids(url) == [200, 201, 202]


def test_a_store_that_another_writer_is_replacing_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"memory://replaced-{abs(hash(str(tmp_path)))}/d"
    penstock.write(rows(0, 4), url, IDS, rows_per_file=2)
    slow = penstock.Writer(url, IDS, overwrite=True, rows_per_file=2)
    slow.extend(rows(100, 104))
    memory = type(fsspec.filesystem("memory"))
    move, said = memory.mv, []

    def meanwhile(self: Any, source: str, target: str, **options: Any) -> None:
        if not said:
            said.append("")
            with pytest.raises(DatasetExists, match="is being replaced by another writer, from"):
                slow.commit()
        move(self, source, target, **options)

    monkeypatch.setattr(memory, "mv", meanwhile)
    penstock.write(rows(200, 209), url, IDS, rows_per_file=2, overwrite=True)
    assert said
    assert ids(url) == [*range(200, 209)]


def test_a_store_on_which_another_dataset_has_appeared_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"memory://appeared-{abs(hash(str(tmp_path)))}/d"
    real = StagedDataset.make

    def overtaken(stage: StagedDataset) -> None:
        monkeypatch.setattr(StagedDataset, "make", real)
        penstock.write(rows(100, 105), url, IDS)
        real(stage)

    monkeypatch.setattr(StagedDataset, "make", overtaken)
    with pytest.raises(DatasetExists, match="is being written by another process"):
        penstock.write(rows(0, 3), url, IDS)
    assert ids(url) == [*range(100, 105)]


# --- what is alive and what is dead -----------------------------------------------------------------------------------


def test_a_folder_is_not_taken_for_dead_before_its_lock_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process that tidies up waits until the writer has its lock."""
    code = "import sys, penstock; print(penstock.discard(sys.argv[1]))"
    children = []
    real = Lock.acquire

    def slow(lock: Lock) -> bool:
        command = [sys.executable, "-c", code, str(tmp_path / "d")]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        children.append(child)
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(depth(3, 5))
        return real(lock)

    monkeypatch.setattr(Lock, "acquire", slow)
    writer = penstock.Writer(tmp_path / "d", IDS)
    [child] = children
    assert "is being written by a running process" in child.communicate()[1]
    writer.extend(rows(0, 3))
    writer.commit()
    assert ids(tmp_path / "d") == [0, 1, 2]


def test_asking_whether_a_writer_is_alive_makes_no_folder(tmp_path: Path) -> None:
    assert Lock(LocalFileSystem(), str(tmp_path / "gone")).is_held() is False
    assert list(tmp_path.iterdir()) == []


def test_a_lock_is_free_once_it_is_given_back_though_a_forked_process_has_it_open(tmp_path: Path) -> None:
    code = """
import os, sys, time
from pyarrow.fs import FSSpecHandler, LocalFileSystem, PyFileSystem
from penstock.storage.locks import Lock, mutex
lock = Lock(LocalFileSystem(), sys.argv[1])
with mutex(LocalFileSystem(), sys.argv[1]) as held:
    taken = lock.acquire()
    read, write = os.pipe()
    if os.fork() == 0:
        os.read(read, 1)
        os._exit(0)
lock.release()
with mutex(LocalFileSystem(), sys.argv[1]) as again:
    print(held, taken, Lock(LocalFileSystem(), sys.argv[1]).is_held(), again)
os.write(write, b"x")
os.wait()
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "False", "True"]


def test_a_mutex_is_not_held_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks_module, "_MUTEX_WAIT_S", 0.05)
    fs = LocalFileSystem()
    with mutex(fs, str(tmp_path)) as first, mutex(fs, str(tmp_path)) as second:
        assert (first, second) == (True, False)
    with mutex(fs, str(tmp_path)) as third, mutex(fs, str(tmp_path / "none")) as nowhere:
        assert (third, nowhere) == (True, False)


# --- commit, killed ---------------------------------------------------------------------------------------------------

COMMIT = """
import os, signal, sys, penstock
from penstock.write import staging as stage
def die(*args, **options):
    os.kill(os.getpid(), signal.SIGKILL)
class Dying:
    def __init__(self, real): self.real = real
    def __call__(self, *args):
        self.real(*args)
        die()
moment = sys.argv[2]
if moment == "shown":
    stage.StagedDataset._remove_published = die
if moment == "renamed":
    stage._remove_folder = die
if moment == "removing":
    stage.remove = Dying(stage.remove)
penstock.commit(sys.argv[1], parts=2)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL on this system")
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("moment", ["shown", "renamed", "removing"])
def test_a_commit_killed_after_its_rename_can_be_called_again(tmp_path: Path, moment: str, before: bool) -> None:
    url = tmp_path / "d"
    if before:
        penstock.write(rows(1000, 1003), url, IDS)
    for part in range(2):
        penstock.write(rows(10 * part, 10 * part + 10), url, IDS, part=part, overwrite=before)
    killed = subprocess.run([sys.executable, "-c", COMMIT, str(url), moment], capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert ids(url) == list(range(20))
    again = penstock.commit(url, parts=2)
    assert (again.rows, again.files) == (20, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["d"]
    with pytest.raises(DatasetNotFound, match="it is complete"):
        penstock.commit(url, parts=2)


def test_of_two_commits_at_once_one_finds_no_parts(tmp_path: Path) -> None:
    code = """
import sys, penstock
try:
    print(penstock.commit(sys.argv[1]).rows)
except penstock.errors.DatasetNotFound as error:
    print(error)
"""
    for round in range(depth(2, 20)):
        url = tmp_path / f"d{round}"
        for part in range(2):
            penstock.write({"id": np.arange(10)}, url, IDS, part=part)
        command = [sys.executable, "-c", code, str(url)]
        children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        said = sorted(child.communicate()[0].strip() for child in children)
        assert said[0] == "20"
        assert "it is complete" in said[1]
        assert len(ids(url)) == 20
        assert hidden_folders(LocalFileSystem(), str(url)) == []
