"""`rewrite`: the same cells, schema and metadata in another layout; shuffled truly; nothing left behind by failures."""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import LocalFileSystem

import penstock
from penstock import Unischema, UnischemaField
from penstock.codecs import CompressedImageCodec, NdarrayCodec, ScalarCodec
from penstock.dataset.catalog import FileCatalog
from penstock.dataset.common_metadata import update_common_metadata
from penstock.doctor import rewrite
from penstock.errors import BadFile, DatasetExists, DatasetIncomplete, PlanError
from penstock.schema.stored import PETASTORM_SCHEMA_KEY, SCHEMA_KEY
from penstock.storage.locks import Lock
from penstock.testing.data import make_parquet, mixed
from tests.petastorm import expected

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = Unischema(
    "Frames",
    [
        UnischemaField("id", np.uint8, (), ScalarCodec(), False),
        UnischemaField("image", np.uint8, (8, 8, 3), CompressedImageCodec("jpeg", 80), False),
        UnischemaField("points", np.float32, (None, 3), NdarrayCodec(), True),
    ],
)


def row(i: int) -> dict[str, Any]:
    rng = np.random.default_rng(i)
    points = None if i % 5 == 0 else rng.standard_normal((i % 4, 3)).astype(np.float32)
    return {"id": i, "image": rng.integers(0, 256, (8, 8, 3), np.uint8), "points": points}


@pytest.fixture
def frames(tmp_path: Path) -> Path:
    penstock.write((row(i) for i in range(60)), tmp_path / "frames", SCHEMA, rows_per_file=20)
    return tmp_path / "frames"


def stored(folder: Path) -> pa.Table:
    """Everything as it is stored, sorted files one after another."""
    return pa.concat_tables(
        [pq.ParquetFile(file).read().replace_schema_metadata(None) for file in sorted(folder.rglob("*.parquet"))]
    ).combine_chunks()


def test_cells_and_schema_are_copied_as_they_are(frames: Path, tmp_path: Path) -> None:
    written = rewrite(frames, tmp_path / "out", row_group_bytes=4096)
    assert (written.rows, written.files) == (60, 1)
    assert written.row_groups > 3
    assert stored(tmp_path / "out").equals(stored(frames))  # a JPEG stays the same bytes
    assert penstock.open(tmp_path / "out").schema == penstock.open(frames).schema
    keys = pq.read_metadata(tmp_path / "out" / "_common_metadata").metadata
    assert {SCHEMA_KEY, PETASTORM_SCHEMA_KEY} <= set(keys)


def test_a_shuffle_is_a_permutation_and_the_same_for_any_memory(frames: Path, tmp_path: Path) -> None:
    rewrite(frames, tmp_path / "a", shuffle=True, seed=5)
    rewrite(frames, tmp_path / "b", shuffle=True, seed=5, memory_bytes=4096)
    rewrite(frames, tmp_path / "c", shuffle=True, seed=6)
    ids = stored(tmp_path / "a")["id"].to_pylist()
    assert ids != sorted(ids) == list(range(60))
    assert stored(tmp_path / "b").equals(stored(tmp_path / "a"))
    assert stored(tmp_path / "c")["id"].to_pylist() != ids
    for value, batch in zip(ids, penstock.open(tmp_path / "a").take(range(60))["image"], strict=True):
        assert np.array_equal(batch, penstock.open(frames)[value]["image"])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b", "c", "frames"]  # and no folder of waiting rows


def odd(rows: np.ndarray) -> dict[str, Any]:
    """Plain Parquet of many types, a struct and a dictionary among them."""
    listed = rows.tolist()
    return {
        **mixed(rows),
        "struct": pa.array([{"a": i, "b": {"c": str(i)}} for i in listed], pa.struct(
            [("a", pa.int32()), ("b", pa.struct([("c", pa.string())]))])),
        "zoned": pa.array(listed, pa.timestamp("ms", "Europe/Berlin")),
        "unsigned": pa.array(listed, pa.uint16()),
        "map": pa.array([[(str(i), i)] for i in listed], pa.map_(pa.string(), pa.int64())),
    }  # fmt: skip


@pytest.mark.parametrize("shuffle", [False, True])
def test_plain_parquet_keeps_its_types(tmp_path: Path, shuffle: bool) -> None:
    source = make_parquet(tmp_path / "plain", columns=odd)
    rewrite(source, tmp_path / "out", shuffle=shuffle, memory_bytes=2000 if shuffle else None)
    found, wanted = stored(tmp_path / "out"), stored(source)
    assert found.schema.equals(wanted.schema)
    if shuffle:
        assert found["id"] != wanted["id"]
        found = found.sort_by("id").combine_chunks()
    assert found.to_pylist() == wanted.to_pylist()
    assert penstock.open(tmp_path / "out").columns == penstock.open(source).columns


def test_dictionaries_and_files_in_another_dress_become_plain(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    words = pa.array(["a", "b", None, "a"])
    pq.write_table(pa.table({"w": words.dictionary_encode()}), tmp_path / "d" / "0.parquet")
    pq.write_table(pa.table({"w": words.cast(pa.large_string())}), tmp_path / "d" / "1.parquet")
    rewrite(tmp_path / "d", tmp_path / "out", shuffle=True)
    found = stored(tmp_path / "out")["w"]
    assert found.type == pa.string()
    assert sorted(found.to_pylist(), key=str) == sorted([*words.to_pylist(), *words.to_pylist()], key=str)


@pytest.mark.parametrize("name", sorted(expected.KEYS))
def test_what_petastorm_wrote_stays_what_it_was(name: str, tmp_path: Path) -> None:
    rewrite(expected.url(name), tmp_path / "out", shuffle=True)
    found, key = penstock.open(tmp_path / "out"), expected.KEYS[name]
    before = penstock.open(expected.url(name))
    assert found.schema.fields == before.schema.fields
    rows = {int(found[i][key]): found[i] for i in range(len(found))}
    assert len(rows) == len(before)
    for i in range(len(before)):
        want = before[i]
        got = rows[int(want[key])]
        assert repr(got) == repr({field: want[field] for field in got})


def test_other_metadata_is_kept_and_an_index_is_not(frames: Path, tmp_path: Path, caplog: Any) -> None:
    from penstock.petastorm.etl.rowgroup_indexers import SingleFieldIndexer
    from penstock.petastorm.etl.rowgroup_indexing import build_rowgroup_index

    build_rowgroup_index(f"file://{frames}", None, [SingleFieldIndexer("by_id", "id")])
    update_common_metadata(FileCatalog(frames).entries()[0], {b"mine": b"kept"})
    with caplog.at_level(logging.WARNING):
        rewrite(frames, tmp_path / "out")
    assert "build it again" in caplog.text
    pairs = pq.read_metadata(tmp_path / "out" / "_common_metadata").metadata
    assert pairs[b"mine"] == b"kept"
    assert not [key for key in pairs if b"index" in key]


def test_partitions_are_kept_changed_or_dissolved(tmp_path: Path) -> None:
    columns = {"x": np.arange(12), "k": np.arange(12) % 3, "m": np.arange(12) % 2}
    penstock.write(columns, tmp_path / "k", partition_by="k")
    rewrite(tmp_path / "k", tmp_path / "kept")
    rewrite(tmp_path / "k", tmp_path / "changed", partition_by=["m"], shuffle=True)
    rewrite(tmp_path / "k", tmp_path / "none", partition_by=[])
    folders = {name: sorted(p.name for p in (tmp_path / name).iterdir() if p.is_dir()) for name in ("kept", "changed")}
    assert folders == {"kept": ["k=0", "k=1", "k=2"], "changed": ["m=0", "m=1"]}
    assert [p.suffix for p in (tmp_path / "none").glob("*.parquet")] == [".parquet"]
    for name in ("kept", "changed", "none"):
        batch = penstock.open(tmp_path / name).take(range(12))
        assert sorted(zip(*(batch[c].tolist() for c in "xkm"), strict=True)) == [(i, i % 3, i % 2) for i in range(12)]


def test_layout_options_reach_the_files(frames: Path, tmp_path: Path) -> None:
    written = rewrite(frames, tmp_path / "out", rows_per_file=7, compression="zstd")
    assert written.files == 9
    footer = pq.ParquetFile(tmp_path / "out" / "part-000000.parquet").metadata
    assert footer.num_rows == 7
    assert footer.row_group(0).column(0).compression == "ZSTD"


def test_a_dataset_without_rows(tmp_path: Path) -> None:
    penstock.write(iter(()), tmp_path / "none", SCHEMA)
    assert rewrite(tmp_path / "none", tmp_path / "out", shuffle=True).rows == 0
    assert penstock.open(tmp_path / "out").schema == SCHEMA


def test_it_does_not_write_into_its_source(frames: Path, tmp_path: Path) -> None:
    for target in (frames, frames / "deep", f"{frames}/../frames"):
        with pytest.raises(PlanError, match="is inside the dataset"):
            rewrite(frames, target, overwrite=True)
    rewrite(frames, tmp_path / "frames2")  # a name that only begins alike
    with pytest.raises(DatasetExists):
        rewrite(frames, tmp_path / "frames2")


def test_no_file_of_the_source_is_in_the_way_of_the_target(frames: Path, tmp_path: Path) -> None:
    before = stored(frames)
    (tmp_path / "link").symlink_to(frames)
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "x.parquet").symlink_to(frames / "part-000000.parquet")
    cases: list[tuple[Any, Path]] = [
        ([frames / "part-000000.parquet"], frames),
        (frames / "*.parquet", frames),
        (frames, tmp_path),
        (tmp_path / "fr*", frames / "deep"),
        (frames, tmp_path / "link"),
        (tmp_path / "link", frames / "deep"),
        (tmp_path / "linked", frames),
    ]
    for source, target in cases:
        with pytest.raises(PlanError, match=r"is inside .*write somewhere else"):
            rewrite(source, target, overwrite=True)
    assert stored(frames).equals(before)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["frames", "link", "linked"]


def test_a_file_may_be_rewritten_beside_itself(frames: Path) -> None:
    """A folder may hold several datasets of one file each."""
    assert rewrite(frames / "part-000000.parquet", frames / "first").rows == 20
    assert rewrite(str(frames / "part-*.parquet"), frames / "all").rows == 60


@pytest.mark.parametrize("shuffle", [False, True])
def test_structs_of_a_dataset_with_a_schema_stay(tmp_path: Path, shuffle: bool) -> None:
    kind = pa.struct([("a", pa.int32()), ("b", pa.struct([("c", pa.string())]))])
    structs = [None if i % 3 == 0 else {"a": i, "b": None if i % 3 == 1 else {"c": str(i)}} for i in range(30)]
    penstock.write(pa.table({"id": range(30), "st": pa.array(structs, kind)}), tmp_path / "in", rows_per_file=10)
    assert penstock.open(tmp_path / "in").columns == ("id", "st.a", "st.b.c")
    rewrite(tmp_path / "in", tmp_path / "out", shuffle=shuffle)
    found = stored(tmp_path / "out").sort_by("id").combine_chunks()
    assert found.schema.equals(stored(tmp_path / "in").schema)
    assert found["st"].to_pylist() == structs
    assert penstock.open(tmp_path / "out").schema == penstock.open(tmp_path / "in").schema


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_damaged_source_leaves_nothing_behind(frames: Path, tmp_path: Path, shuffle: bool) -> None:
    path = frames / "part-000001.parquet"
    damaged = bytearray(path.read_bytes())
    damaged[200:2000] = b"\xff" * 1800
    path.write_bytes(damaged)
    with pytest.raises(BadFile, match=r"part-000001.parquet.*cannot be read"):
        rewrite(frames, tmp_path / "out", shuffle=shuffle)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["frames"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 0}, "seed=0 is for a shuffle, .* pass shuffle=True too, or leave seed out"),
        ({"memory_bytes": 1 << 20}, "memory_bytes=1048576 is for a shuffle"),
        ({"temp_folder": "."}, "temp_folder=. is for a shuffle"),
        ({"shuffle": True, "seed": -1}, "seed must be"),
        ({"shuffle": True, "memory_bytes": 0}, "memory_bytes must be at least 1; got 0"),
        ({"shuffle": True, "temp_folder": "no-such-folder"}, "must be an existing folder; got 'no-such-folder'"),
    ],
)
def test_options_that_mean_nothing_are_refused(frames: Path, tmp_path: Path, options: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        rewrite(frames, tmp_path / "out", **options)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["frames"]


def killed_rewrite(source: Path, target: str, shuffle: bool = False) -> None:
    """Rewrite in a process that is killed once the first file is there, waiting for more rows."""
    code = (
        "import os, signal, sys, fsspec; from penstock.doctor import rewrite, rewriting\n"
        "real = rewriting.StoredRows.batches\n"
        "def batches(self):\n"
        "    yield from real(self)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "rewriting.StoredRows.batches = batches\n"
        "rewrite(sys.argv[1], sys.argv[2], rows_per_file=10, shuffle=bool(sys.argv[3]))\n"
    )
    command = [sys.executable, "-c", code, str(source), target, "yes" if shuffle else ""]
    ran = subprocess.run(command, check=False, capture_output=True)
    assert ran.returncode == -9, ran.stderr


def test_a_killed_rewrite_says_to_run_it_again(frames: Path, tmp_path: Path) -> None:
    killed_rewrite(frames, str(tmp_path / "out"))
    with pytest.raises(DatasetIncomplete) as caught:
        penstock.open(tmp_path / "out")
    assert "To go on, run the rewrite again (it starts over)" in str(caught.value)
    assert "resume=True" not in str(caught.value)
    written = penstock.write((row(i) for i in range(20)), tmp_path / "out", SCHEMA, resume=True)
    assert written.rows == 20  # of these rows, and not of those that the rewrite left
    assert sorted(p.name for p in tmp_path.iterdir()) == ["frames", "out"]


def test_a_killed_rewrite_is_run_again(frames: Path, tmp_path: Path) -> None:
    killed_rewrite(frames, str(tmp_path / "out"))
    assert rewrite(frames, tmp_path / "out").rows == 60
    assert sorted(p.name for p in tmp_path.iterdir()) == ["frames", "out"]
    assert stored(tmp_path / "out").equals(stored(frames))


def test_what_a_killed_shuffle_left_is_removed_by_the_next_and_what_another_uses_is_not(
    frames: Path, tmp_path: Path
) -> None:
    killed_rewrite(frames, str(tmp_path / "out"), shuffle=True)
    assert len(list(tmp_path.glob(".penstock-shuffle-*/lock"))) == 1
    (tmp_path / ".penstock-shuffle-mine").mkdir()  # no lock: not ours to judge
    (alive := tmp_path / ".penstock-shuffle-alive").mkdir()
    lock = Lock(LocalFileSystem(), str(alive))
    assert lock.acquire()
    rewrite(frames, tmp_path / "out", shuffle=True)
    left = sorted(path.name for path in tmp_path.glob(".penstock-shuffle-*"))
    assert left == [".penstock-shuffle-alive", ".penstock-shuffle-mine"]
    lock.release()
    rewrite(frames, tmp_path / "again", shuffle=True)
    assert [path.name for path in tmp_path.glob(".penstock-shuffle-*")] == [".penstock-shuffle-mine"]
    assert stored(tmp_path / "again").equals(stored(tmp_path / "out"))


@pytest.mark.parametrize("how", ["discard", "write"])
def test_what_a_killed_shuffle_left_is_removed_without_another_shuffle(frames: Path, tmp_path: Path, how: str) -> None:
    killed_rewrite(frames, str(tmp_path / "out"), shuffle=True)
    if how == "discard":
        assert penstock.discard(tmp_path / "out") == 1
    else:
        rewrite(frames, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["frames"] + ["out"] * (how == "write")


def test_on_a_store_it_is_run_again_with_overwrite(frames: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(penstock.Writer, "abort", lambda writer: writer._close())  # as if it were killed
    url = "memory://killed-rewrite"
    with monkeypatch.context() as patch:
        patch.setattr(penstock.Writer, "commit", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            rewrite(frames, url)
    with pytest.raises(DatasetIncomplete, match=r"run the rewrite again with overwrite=True \(it starts over\)"):
        penstock.open(url)
    with pytest.raises(DatasetExists):
        rewrite(frames, url)
    assert rewrite(frames, url, overwrite=True).rows == 60


def test_files_without_a_footer_may_be_left_out(frames: Path, tmp_path: Path) -> None:
    (frames / "part-000001.parquet").write_bytes(b"PAR1 and then the disk was full")
    with pytest.raises(BadFile):
        rewrite(frames, tmp_path / "out")
    assert rewrite(frames, tmp_path / "out", on_error="skip").rows == 40


def test_a_row_group_larger_than_memory_is_streamed(tmp_path: Path) -> None:
    """64 MiB in one row group, shuffled with 8 MiB; Arrow's memory stays far below the row group."""
    source = tmp_path / "large"
    source.mkdir()
    rng = np.random.default_rng(0)
    with pq.ParquetWriter(source / "a.parquet", pa.schema([("id", pa.int64()), ("cell", pa.binary())]),
                          use_dictionary=False) as writer:  # fmt: skip
        cells = [rng.bytes(4096) for _ in range(256)]
        table = pa.table(
            {"id": np.arange(16384), "cell": pa.array([cells[i % 256] for i in range(16384)], pa.binary())}
        )
        writer.write_table(table, row_group_size=1 << 20)
    code = (
        "import sys, pyarrow as pa; from penstock.doctor import rewrite; "
        "rewrite(sys.argv[1], sys.argv[2], shuffle=True, memory_bytes=8 << 20, row_group_bytes=1 << 20); "
        "print(pa.default_memory_pool().max_memory())"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(source), str(tmp_path / "out")], capture_output=True, text=True, check=True
    )
    assert int(ran.stdout) < 40 << 20
    found = stored(tmp_path / "out")
    assert sorted(found["id"].to_pylist()) == list(range(16384))
    assert all(cells[i % 256] == cell.as_py() for i, cell in zip(found["id"].to_pylist(), found["cell"], strict=True))
