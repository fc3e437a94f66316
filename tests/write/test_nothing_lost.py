"""Whatever writers do to a target, rows that are safe, files of others and datasets that are whole stay as they are."""

import json
import shutil
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.dataset.write_markers import this_process
from penstock.errors import DatasetExists, DatasetIncomplete, DatasetNotFound, StateMismatch
from penstock.storage import publish as publish_module
from penstock.write import staging as stage_module
from penstock.write.staging import StagedDataset
from tests.write.ids import IDS, ids, rows


def interrupted(url: str, count: int, **options: Any) -> None:
    """Leave `count` rows behind, all of them safe."""
    writer = penstock.Writer(url, IDS, resume=True, **options)
    writer.extend({"id": np.arange(count)})
    writer.checkpoint()
    writer.abort()


# --- what an earlier writer has left ----------------------------------------------------------------------------------


def test_safe_rows_are_not_thrown_away_by_a_writer_that_knows_nothing_of_them(url: str) -> None:
    interrupted(url, 7)
    with pytest.raises(DatasetExists, match=r"7 rows are in finished files.*resume=True"):
        penstock.write(rows(0, 5), url, IDS)
    assert penstock.write(rows(0, 9), url, IDS, resume=True).rows == 9
    assert ids(url) == list(range(9))


def test_safe_rows_are_replaced_where_that_is_asked_for(url: str) -> None:
    interrupted(url, 7)
    penstock.write(rows(100, 105), url, IDS, overwrite=True)
    assert ids(url) == [*range(100, 105)]


def test_finished_parts_are_not_thrown_away_either(tmp_path: Path) -> None:
    penstock.write(rows(0, 5), tmp_path / "d", IDS, part=0)
    with pytest.raises(DatasetExists, match="1 of the 1 parts begun are finished"):
        penstock.write(rows(0, 9), tmp_path / "d", IDS)
    penstock.commit(tmp_path / "d")
    assert ids(tmp_path / "d") == [*range(5)]


@pytest.mark.parametrize("form", ["rows", "list", "columns", "batches"])
def test_data_that_is_shorter_than_what_is_safe_is_not_the_same_data(url: str, form: str) -> None:
    interrupted(url, 7)
    table = pa.table({"id": np.arange(3)})
    data: Any = {
        "rows": rows(0, 3),
        "list": list(rows(0, 3)),
        "columns": {"id": np.arange(3)},
        "batches": iter([table]),
    }
    with pytest.raises(StateMismatch, match="ended after 3 rows, but the writer to be resumed has 7 safe rows"):
        penstock.write(data[form], url, IDS, resume=True)
    assert penstock.write(rows(0, 9), url, IDS, resume=True).rows == 9


def test_rows_appended_one_by_one_are_safe_when_their_file_is_full(url: str) -> None:
    writer = penstock.Writer(url, IDS, resume=True, rows_per_file=10)
    for row in rows(0, 1005):
        writer.append(row)
    writer.abort()
    with penstock.Writer(url, IDS, resume=True, rows_per_file=10) as writer:
        assert writer.rows == 1000
        writer.extend(rows(1000, 1010))
    assert ids(url) == [*range(1010)]


def test_files_that_no_journal_names_do_not_become_part_of_the_dataset(tmp_path: Path) -> None:
    with penstock.Writer(tmp_path / "d", IDS) as writer:
        writer.extend(rows(0, 5))
        data = next(tmp_path.glob(".d.*.writing")) / "data"
        pq.write_table(pa.table({"id": [77]}), data / "part-00001-stray.parquet")
    assert ids(tmp_path / "d") == [*range(5)]


def test_a_hidden_folder_without_a_journal_is_nothing_to_go_on_with(tmp_path: Path) -> None:
    data = tmp_path / ".d.0123456789ab.writing" / "data"
    data.mkdir(parents=True)
    pq.write_table(pa.table({"id": [77]}), data / "part-000000.parquet")
    penstock.write(rows(0, 5), tmp_path / "d", IDS, resume=True)
    assert ids(tmp_path / "d") == [*range(5)]
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


# --- what somebody else has written -----------------------------------------------------------------------------------


def test_a_writer_that_was_overtaken_leaves_the_new_dataset_alone(url: str) -> None:
    slow = penstock.Writer(url, IDS)
    slow.extend(rows(0, 3))
    penstock.write(rows(100, 105), url, IDS, overwrite=True)
    with pytest.raises(DatasetExists):
        slow.commit()
    slow.abort()
    assert ids(url) == [*range(100, 105)]


def test_a_writer_whose_folder_was_discarded_says_so(tmp_path: Path) -> None:
    writer = penstock.Writer(tmp_path / "d", IDS)
    writer.extend(rows(0, 3))
    shutil.rmtree(next(tmp_path.glob(".d.*.writing")))
    with pytest.raises(DatasetIncomplete, match=r"was removed.*write it again"):
        writer.commit()
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(
    "other", [".env", "_notes.txt", "lr=0.1.ckpt", "_x/_y.bin", "train/part-0.parquet", "k=1/notes.txt"]
)
def test_a_folder_with_anything_but_parquet_is_not_replaced(tmp_path: Path, other: str) -> None:
    penstock.write(rows(0, 3), tmp_path / "d", IDS)
    file = tmp_path / "d" / other
    file.parent.mkdir(exist_ok=True)
    file.write_text("precious")
    with pytest.raises(DatasetExists, match="not part of a Parquet dataset"):
        penstock.write(rows(0, 5), tmp_path / "d", IDS, overwrite=True)
    assert file.read_text() == "precious"


@pytest.mark.parametrize(
    "other",
    [
        "_SUCCESS",
        "._SUCCESS.crc",
        ".part-000000.parquet.crc",
        "_metadata",
        "_started_12",
        "._common_metadata.0123456789ab.writing",  # left by a killed process, as is the next
        "._penstock_writing.json.0123456789ab.writing",
    ],
)
def test_what_belongs_to_datasets_is_replaced_with_them(tmp_path: Path, other: str) -> None:
    penstock.write(rows(0, 3), tmp_path / "d", IDS)
    (tmp_path / "d" / other).write_text("")
    penstock.write(rows(0, 5), tmp_path / "d", IDS, overwrite=True)
    assert not (tmp_path / "d" / other).exists()


# --- cut short in the last step ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_store_that_fails_while_files_are_moved_keeps_the_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    url = f"memory://moved-{abs(hash(str(tmp_path)))}/d"
    penstock.write(rows(0, 10), url, IDS, rows_per_file=2)
    memory = type(fsspec.filesystem("memory"))
    move, moved = memory.mv, []

    def failing(self: Any, source: str, target: str, **options: Any) -> None:
        moved.append(source)
        if len(moved) == 3:
            raise error("cut")
        move(self, source, target, **options)

    with monkeypatch.context() as patched:
        patched.setattr(memory, "mv", failing)
        with pytest.raises(error, match="cut"):
            penstock.write(rows(100, 120), url, IDS, rows_per_file=2, overwrite=True)
    with pytest.raises(DatasetIncomplete, match="20 rows are in finished files"):
        penstock.open(url)
    penstock.write(rows(100, 120), url, IDS, rows_per_file=2, overwrite=True, resume=True)
    assert ids(url) == [*range(100, 120)]


def test_discard_brings_an_old_dataset_back_that_waited_between_two_renames(tmp_path: Path) -> None:
    penstock.write(rows(0, 5), tmp_path / "d", IDS)
    interrupted(str(tmp_path / "d"), 3, overwrite=True)
    hidden = next(tmp_path.glob(".d.*.writing"))
    (tmp_path / "d").rename(hidden / "data.old")  # and here the process died
    penstock.discard(tmp_path / "d")
    assert ids(tmp_path / "d") == [*range(5)]


@pytest.mark.parametrize("way", ["exchange", "two renames"])
@pytest.mark.parametrize("num_old", [0, 3, 50])
def test_a_commit_cut_short_when_the_dataset_was_there_is_not_undone_by_the_next(
    url: str, num_old: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if num_old:
        penstock.write(rows(1000, 1000 + num_old), url, IDS)
    if way == "two renames":
        monkeypatch.setattr(publish_module, "exchange", lambda *_: False)
    for part in range(2):
        penstock.write(rows(10 * part, 10 * part + 10), url, IDS, part=part, overwrite=True)
    with monkeypatch.context() as patch:
        patch.setattr(StagedDataset, "_remove_published", killed)
        if num_old or "://" not in url:  # a new target on a store has no folder of its own
            with pytest.raises(KeyboardInterrupt):
                penstock.commit(url)
    assert penstock.commit(url, parts=2).rows == 20
    assert ids(url) == list(range(20))
    with pytest.raises(DatasetNotFound, match="complete"):
        penstock.commit(url)


def test_a_commit_cut_short_while_it_tidied_up_is_over(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    penstock.write(rows(1000, 1003), url, IDS)
    for part in range(2):
        penstock.write(rows(10 * part, 10 * part + 10), url, IDS, part=part, overwrite=True)
    with monkeypatch.context() as patch:
        patch.setattr(stage_module, "remove", killed)
        with pytest.raises(KeyboardInterrupt):
            penstock.commit(url)
    assert ids(url) == list(range(20))
    penstock.write(rows(0, 5), url, IDS, part=0, overwrite=True)
    assert penstock.commit(url, parts=1).rows == 5
    assert ids(url) == list(range(5))
    if "://" not in url:
        assert [path.name for path in Path(url).parent.iterdir()] == ["d"]


@pytest.mark.parametrize("num_old", [3, 50])
def test_a_resumed_write_that_replaces_does_not_bring_the_old_rows_back(
    url: str, num_old: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    penstock.write(rows(1000, 1000 + num_old), url, IDS)
    with monkeypatch.context() as patch:
        patch.setattr(StagedDataset, "_remove_published", killed)
        with pytest.raises(KeyboardInterrupt):
            penstock.write(rows(0, 20), url, IDS, overwrite=True, resume=True)
    assert ids(url) == list(range(20))
    assert penstock.write(rows(0, 20), url, IDS, overwrite=True, resume=True).rows == 20
    assert ids(url) == list(range(20))
    assert penstock.discard(url) == 0


def killed(*_: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_note_of_a_killed_block_of_spark_costs_no_dataset_its_rows(tmp_path: Path, when: str) -> None:
    note = tmp_path / ".d.block.json"
    text = json.dumps({"cure": "run it again", "before": [], "process": ["elsewhere", 1, "x"]})
    if when == "before":
        note.write_text(text)
    penstock.write(rows(0, 5), tmp_path / "d", IDS)
    assert not note.exists()
    if when == "after":
        note.write_text(text)
    assert penstock.discard(tmp_path / "d") == 0
    assert ids(tmp_path / "d") == list(range(5))
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_what_a_live_block_of_spark_writes_is_not_discarded(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    note = tmp_path / ".d.block.json"
    note.write_text(json.dumps({"cure": "run it again", "before": [], "process": this_process()}))
    with pytest.raises(DatasetExists, match=r"block of materialize_dataset.*remove .*\.d\.block\.json"):
        penstock.discard(tmp_path / "d")
    machine, number, token = this_process()
    note.write_text(json.dumps({"cure": "", "before": [], "process": [machine, number, "not " + token]}))
    assert penstock.discard(tmp_path / "d") == 0  # a container that was started again has the old one's number
    assert not note.exists()
