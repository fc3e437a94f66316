"""After a crash nothing opens as if it were whole, finished files are kept, and writing goes on after them."""

import itertools
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.codecs import ScalarCodec
from penstock.errors import DatasetExists, DatasetIncomplete, StateMismatch
from penstock.schema.unischema import Unischema, UnischemaField
from penstock.testing import RecordingFileSystem
from penstock.write import files as files_module
from tests.depth import depth
from tests.write.ids import IDS, ids, rows


def fail_after(url: str, count: int, **options: Any) -> None:
    """Write and fail; `resume=True` keeps what is safe, as a killed process would."""

    def some() -> Iterator[dict[str, Any]]:
        yield from rows(0, count)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        penstock.write(some(), url, IDS, resume=True, **options)


def test_write_again_with_resume_finishes(url: str) -> None:
    fail_after(url, 20_000, rows_per_file=500)
    asked = []

    def all_rows() -> Iterator[dict[str, Any]]:
        for i in range(20_100):
            asked.append(i)
            yield {"id": i}

    written = penstock.write(all_rows(), url, IDS, resume=True, rows_per_file=500)
    assert (written.rows, written.files) == (20_100, 41)
    assert len(asked) == 20_100
    assert ids(url) == list(range(20_100))


def test_the_writer_says_how_many_rows_are_safe(url: str) -> None:
    fail_after(url, 20_000, rows_per_file=500)
    with penstock.Writer(url, IDS, resume=True, rows_per_file=500) as writer:
        assert writer.rows == writer.safe_rows
        assert writer.rows % 500 == 0
        assert 16_000 <= writer.rows <= 20_000  # all but the batch that was being filled
        for row in rows(writer.rows, 20_001):
            writer.append(row)
    assert ids(url) == list(range(20_001))
    assert writer.written.rows == 20_001


def test_the_dataset_is_that_of_one_go(url: str, tmp_path: Path) -> None:
    fail_after(url, 20_000, rows_per_file=3000)
    penstock.write(rows(0, 20_000), url, IDS, resume=True, rows_per_file=3000)
    penstock.write(rows(0, 20_000), tmp_path / "one", IDS, rows_per_file=3000)
    assert penstock.open(url).fingerprint == penstock.open(tmp_path / "one").fingerprint


@pytest.mark.parametrize("kind", ["table", "columns", "reader", "batches"])
def test_every_source_is_passed_over(tmp_path: Path, kind: str) -> None:
    fail_after(str(tmp_path / "d"), 20_000, rows_per_file=700)
    table = pa.table({"id": range(20_000)})
    data: Any = {
        "table": table,
        "columns": {"id": np.arange(20_000)},
        "reader": table.to_reader(999),
        "batches": iter(table.to_batches(999)),
    }[kind]
    penstock.write(data, tmp_path / "d", IDS, resume=True, rows_per_file=700)
    assert ids(str(tmp_path / "d")) == list(range(20_000))


def test_without_anything_to_resume_it_begins(url: str) -> None:
    assert penstock.write(rows(0, 5), url, IDS, resume=True).rows == 5
    with pytest.raises(DatasetExists, match="already exists"):
        penstock.write(rows(0, 5), url, IDS, resume=True)


def test_an_unfinished_dataset_does_not_open(url: str) -> None:
    fail_after(url, 20_000, rows_per_file=500)
    with pytest.raises(DatasetIncomplete) as caught:
        penstock.open(url)
    for words in ("incomplete", "rows are in finished files", "resume=True", "penstock.discard(url)", "overwrite=True"):
        assert words in str(caught.value)
    with pytest.raises(FileNotFoundError):
        penstock.open(f"{url}/*.parquet")


def test_discard_removes_it(url: str, tmp_path: Path) -> None:
    fail_after(url, 20_000, rows_per_file=500)
    assert penstock.discard(url) == 1
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(penstock.errors.DatasetNotFound, match="nothing at"):
        penstock.open(url)
    assert penstock.discard(url) == 0
    penstock.write(rows(0, 3), url, IDS)
    assert penstock.discard(url) == 0
    assert ids(url) == [0, 1, 2]


def test_overwrite_begins_anew(url: str) -> None:
    fail_after(url, 20_000, rows_per_file=500)
    penstock.write(rows(7, 9), url, IDS, overwrite=True)
    assert ids(url) == [7, 8]
    assert penstock.discard(url) == 0


def test_another_schema_is_not_resumed(url: str) -> None:
    fail_after(url, 20_000, rows_per_file=500)
    with pytest.raises(StateMismatch, match="another schema"):
        penstock.write({"id": np.arange(3), "x": np.arange(3)}, url, resume=True)
    penstock.write(rows(0, 20_000), url, IDS, resume=True)
    assert ids(url) == list(range(20_000))


def test_a_checkpoint_makes_rows_safe(url: str) -> None:
    writer = penstock.Writer(url, IDS, resume=True)
    writer.extend(rows(0, 10))
    assert (writer.safe_rows, writer.checkpoint(), writer.safe_rows) == (0, 10, 10)
    assert writer.checkpoint() == 10
    writer.extend(rows(10, 15))
    writer.abort()
    with penstock.Writer(url, IDS, resume=True) as writer:
        assert writer.rows == 10
        writer.extend(rows(10, 20))
    assert ids(url) == list(range(20))
    assert writer.written.files == 2


def test_partitions_are_safe_together(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint ends the files of all partitions, so that safe rows are always the first ones."""
    monkeypatch.setattr(files_module, "FILE_BYTES", 20_000)
    schema = Unischema("S", [*IDS.fields.values(), UnischemaField("k", np.int32, (), ScalarCodec(), False)])
    data = [{"id": i, "k": (i * i) % 7} for i in range(40_000)]

    def failing() -> Iterator[dict[str, Any]]:
        yield from data[:30_000]
        raise ZeroDivisionError

    options: dict[str, Any] = {"partition_by": "k", "row_group_bytes": 5_000, "resume": True}
    with pytest.raises(ZeroDivisionError):
        penstock.write(failing(), url, schema, **options)
    with penstock.Writer(url, schema, **options) as writer:
        assert 0 < writer.rows <= 30_000
        writer.extend(data[writer.rows :])
    dataset = penstock.open(url)
    got = dataset.take(np.arange(len(dataset)))
    assert sorted(zip(got["id"].tolist(), got["k"].tolist(), strict=True)) == [(r["id"], r["k"]) for r in data]


def test_a_part_resumes(url: str) -> None:
    penstock.write(rows(0, 10), url, IDS, part=0)
    writer = penstock.Writer(url, IDS, part=1, resume=True, rows_per_file=100)
    writer.extend(rows(100, 450))
    writer.checkpoint()
    writer.abort()
    with penstock.Writer(url, IDS, part=1, resume=True, rows_per_file=100) as writer:
        assert writer.rows == 350
        writer.extend(rows(450, 500))
    penstock.commit(url)
    assert ids(url) == [*range(10), *range(100, 500)]


def test_a_damaged_checkpoint_is_not_trusted(tmp_path: Path) -> None:
    writer = penstock.Writer(tmp_path / "d", IDS, resume=True)
    for start in (0, 10, 20):
        writer.extend(rows(start, start + 10))
        writer.checkpoint()
    writer.abort()
    [second] = tmp_path.glob(".d.*.writing/journal/alone/000001.json")
    second.write_text('{"rows": 2')
    with penstock.Writer(tmp_path / "d", IDS, resume=True) as writer:
        assert writer.rows == 10
        writer.extend(rows(10, 35))
    assert ids(str(tmp_path / "d")) == list(range(35))


def test_a_live_writer_is_neither_resumed_nor_discarded(tmp_path: Path) -> None:
    writer = penstock.Writer(tmp_path / "d", IDS)
    with pytest.raises(DatasetExists, match="being written by another process"):
        penstock.Writer(tmp_path / "d", IDS, resume=True)
    with pytest.raises(DatasetExists, match="running process"):
        penstock.discard(tmp_path / "d")
    writer.append({"id": 1})
    writer.commit()
    assert ids(str(tmp_path / "d")) == [1]


def test_a_store_that_is_replaced_and_cut_short_is_finished_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Old files are deleted and new ones moved under a marker; whatever is left undone is done by the next commit."""
    url = "memory://penstock-replace/d"
    memory = fsspec.filesystem("memory")
    move, moved = type(memory).mv, []

    def fail_at_the_third(*args: Any, **options: Any) -> Any:
        moved.append(args)
        if len(moved) == 3:
            raise OSError("the line is cut")
        return move(*args, **options)

    try:
        penstock.write(rows(0, 5), url, IDS, rows_per_file=1)
        with monkeypatch.context() as patched:
            patched.setattr(type(memory), "mv", fail_at_the_third)
            with pytest.raises(OSError, match="cut"):
                penstock.write(rows(10, 20), url, IDS, rows_per_file=2, overwrite=True, resume=True)
        with pytest.raises(DatasetIncomplete, match="10 rows are in finished files"):
            penstock.open(url)
        assert penstock.write(rows(10, 20), url, IDS, rows_per_file=2, overwrite=True, resume=True).rows == 10
        assert ids(url) == list(range(10, 20))
        assert not [path for path in memory.find("/penstock-replace") if "writing" in path]
    finally:
        memory.rm("/penstock-replace", recursive=True)


def test_what_spark_began_is_not_resumed(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "part-00000-x.parquet").write_bytes(b"half")
    (tmp_path / "d" / "_penstock_writing.json").write_text('{"cure": "run the job again"}')
    for options in ({}, {"resume": True}, {"part": 0}):
        with pytest.raises(DatasetExists, match="run the job again"):
            penstock.write(rows(0, 3), tmp_path / "d", IDS, **options)
    penstock.write(rows(0, 3), tmp_path / "d", IDS, overwrite=True)
    assert ids(str(tmp_path / "d")) == [0, 1, 2]
    hidden = tmp_path / ".e.0123456789ab.writing" / "journal" / "alone"
    hidden.mkdir(parents=True)
    (hidden / "begin.json").write_text('{"cure": "run the job again"}')
    penstock.write(rows(0, 3), tmp_path / "e", IDS, resume=True)
    assert ids(str(tmp_path / "e")) == [0, 1, 2]


KILLED = """
import sys, numpy as np, penstock
from penstock.codecs import ScalarCodec
schema = penstock.Unischema("Ids", [penstock.UnischemaField("id", np.int64, (), ScalarCodec(), False)])
def rows():
    print("going", flush=True)
    for i in range(30_000):
        yield {"id": i}
from penstock.testing import RecordingFileSystem
fs = RecordingFileSystem() if sys.argv[2] == "store" else None       # not known to rename: a store, on the local disk
penstock.write(rows(), sys.argv[1], schema, rows_per_file=500, resume=True, filesystem=fs)
print("done", flush=True)
"""
MOMENTS = depth(4, 20)
WHOLE_S = 0.6
"""About what the whole writing takes."""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL on this system")
@pytest.mark.parametrize("form", ["folder", "store"])
@pytest.mark.parametrize("moment", range(MOMENTS))
def test_killed_at_any_moment_it_is_complete_or_says_that_it_is_not(tmp_path: Path, moment: int, form: str) -> None:
    target = tmp_path / "d"
    pause = random.Random(moment).uniform(moment, moment + 1) / MOMENTS * WHOLE_S
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(target), form], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "going\n"
    time.sleep(pause)
    child.kill()
    child.wait()
    child.stdout.close()
    if (target / "_common_metadata").exists() and not (target / "_penstock_writing.json").exists():
        assert ids(str(target)) == list(range(30_000))
        return
    with pytest.raises(DatasetIncomplete, match="resume=True"):
        penstock.open(target)
    fs = RecordingFileSystem() if form == "store" else None
    before = sum(pq.read_metadata(path).num_rows for path in _readable(tmp_path))
    with penstock.Writer(target, IDS, resume=True, rows_per_file=500, filesystem=fs) as writer:
        assert writer.rows <= before
        writer.extend(itertools.islice(rows(0, 30_000), writer.rows, None))
    assert ids(str(target)) == list(range(30_000))
    assert [path.name for path in tmp_path.iterdir()] == ["d"]
    assert {path.name.partition("-")[0] for path in target.iterdir()} == {"_common_metadata", "part"}


def _readable(root: Path) -> Iterator[Path]:
    for path in root.rglob("*.parquet"):
        try:
            pq.read_metadata(path)
        except pa.ArrowInvalid:
            continue
        yield path
