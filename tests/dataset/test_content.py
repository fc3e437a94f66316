"""The digest of a dataset's content: other where files were written again, the same however it was found out."""

import functools
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.dataset import footer_statistics, footers, open_parquet, scan
from penstock.dataset.scan import IndexCache
from penstock.doctor.facts import gather_facts
from penstock.errors import BadFile
from penstock.testing.filesystems import RecordingFileSystem
from tests.dataset.make import write

LEGACY = Path(__file__).parents[1] / "data" / "petastorm" / "0.13.1" / "all_codecs"


def every_type(rows: int) -> pa.Table:
    """Columns of the kinds whose statistics writers treat in different ways."""
    number = np.arange(rows)
    return pa.table({
        "id": number,
        "half": (number / 2).astype(np.float32),
        "zero": np.where(number % 2, 0.0, -0.0),
        "nan": np.where(number % 3, number / 3, np.nan),
        "null": pa.array([None] * rows, pa.int32()),
        "word": pa.array([["a", "b", None][i % 3] for i in number]).dictionary_encode(),
        "long": [f"{'word ' * 60}{i}" for i in number],
        "blob": [bytes([255, i % 256]) for i in number],
        "flag": number % 2 == 0,
        "time": pa.array(number, pa.timestamp("us", "UTC")),
        "list": [[i] * (i % 3) for i in number],
        "s": [{"a": i, "b": str(i)} for i in number.tolist()],
    })  # fmt: skip


def write_files(root: Path, *, files: int = 3, **more) -> Path:
    for number in range(files):
        table = every_type(60).slice(number * 20, 20)
        write(root / f"part-{number}.parquet", table, rows_per_group=8, **more)
    return root


def write_summary(root: Path) -> Path:
    collected = []
    for path in sorted(root.glob("*.parquet")):
        collected.append(pq.read_metadata(path))
        collected[-1].set_file_path(path.name)
    pq.write_metadata(pq.read_schema(root / "part-0.parquet"), root / "_metadata", collected)
    return root


def test_it_is_pinned():
    # In people's checkpoints: states of unchanged datasets must stay acceptable.
    assert open_parquet(LEGACY).content() == "c7e697103a76041ef9e8dc9a4049a94e"


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("statistics", [True, False, ["id", "nan"]])
def test_it_is_the_same_through_footers_and_through_a_summary(tmp_path, compression, statistics):
    write_files(tmp_path / "a", compression=compression, write_statistics=statistics)
    footers = open_parquet(tmp_path / "a")
    summary = open_parquet(write_summary(tmp_path / "a"))
    assert len(footers.seen) == 3
    assert len(summary.seen) == 1  # the others' footers were not read
    assert summary.content() == footers.content()
    assert len(summary.seen) == 1


def test_a_copy_has_the_same_and_a_file_written_again_another(tmp_path):
    root = write_files(tmp_path / "a", compression="none", use_dictionary=False)
    content, fingerprint = open_parquet(root).content(), open_parquet(root).facts.fingerprint
    assert open_parquet(shutil.copytree(root, tmp_path / "b")).content() == content
    changed = pq.read_table(root / "part-1.parquet")
    ids = changed["id"].to_pylist()
    changed = changed.set_column(0, "id", pa.array([ids[0] - 1, *ids[1:]]))
    write(root / "part-1.parquet", changed, rows_per_group=8, compression="none", use_dictionary=False)
    again = open_parquet(root)
    assert again.facts.fingerprint == fingerprint  # paths, sizes and rows are the same
    assert again.content() != content


def test_who_wrote_a_file_does_not_count(tmp_path):
    root = write_files(tmp_path / "a")
    content = open_parquet(root).content()
    path = root / "part-1.parquet"
    data = path.read_bytes()
    name = pq.read_metadata(path).created_by.encode()
    path.write_bytes(data.replace(name, b"x" * len(name)))
    assert pq.read_metadata(path).created_by == "x" * len(name)
    assert open_parquet(root).content() == content


def test_a_summary_that_is_older_than_a_file_is_not_asked(tmp_path):
    root = write_summary(write_files(tmp_path / "a", compression="none", use_dictionary=False))
    for number in range(3):
        table = pq.read_table(root / f"part-{number}.parquet")
        table = table.set_column(0, "id", pa.array(np.arange(1000, 1020)))
        write(root / f"part-{number}.parquet", table, rows_per_group=8, compression="none", use_dictionary=False)
    opened = open_parquet(root)
    (root / "_metadata").unlink()
    assert opened.content() == open_parquet(root).content()


@pytest.mark.parametrize("bad", [False, True], ids=["all good", "one left out"])
def test_footers_that_do_not_fit_into_memory_are_not_read_again(tmp_path, monkeypatch, bad):
    root = write_files(tmp_path / "a", files=6)
    if bad:  # the files after it get other numbers than they were read under
        (root / "part-2.parquet").write_bytes(b"")
    content = open_parquet(root, on_error="skip").content()
    monkeypatch.setattr(scan, "IndexCache", functools.partial(IndexCache, 1))
    fs = RecordingFileSystem()
    source = open_parquet(str(root), filesystem=fs, on_error="skip")
    fs.reads.clear()
    assert source.content() == content
    assert fs.reads.opened == []


@pytest.mark.parametrize("kept_bytes", [scan.CACHE_BYTES, 1])
def test_opening_does_not_read_column_chunks(tmp_path, monkeypatch, kept_bytes):
    monkeypatch.setattr(scan, "IndexCache", functools.partial(IndexCache, kept_bytes))
    root = write_files(tmp_path / "a")
    before, read = footers.ColumnChunks, []
    for module in (footers, footer_statistics):
        monkeypatch.setattr(module, "ColumnChunks", lambda raw: read.append(raw) or before(raw))
    source = open_parquet(root)
    assert len(read) == 0
    content = source.content()
    assert len(read) == 3
    assert source.content() == content
    assert len(read) == 3


def test_a_damaged_footer_does_not_keep_a_state_from_being_saved(tmp_path):
    write(tmp_path / "a.parquet", {"id": [1, 2, 3]})
    path = write(tmp_path / "b.parquet", {"id": [4, 5, 6]})
    data = path.read_bytes()
    start = data.index(b"\x1c\x15\x04\x19", len(data) - 8 - int.from_bytes(data[-8:-4], "little"))
    path.write_bytes(data[: start + 2] + b"\x02" + data[start + 3 :])  # a column chunk claims another physical type
    source = open_parquet(tmp_path)
    with pytest.raises(BadFile, match="physical type"):
        _ = source.footer(1).chunks
    assert source.content() == open_parquet(tmp_path).content()


def test_a_summary_with_less_than_no_rows_is_not_used(tmp_path):
    table = pa.table({"a": range(1000)})
    for number in range(2):
        pq.write_table(table, tmp_path / f"part-{number}.parquet")
    write_summary(tmp_path)
    raw = bytearray((tmp_path / "_metadata").read_bytes())
    raw[raw.rindex(b"\x16\xd0\x0f") + 1] ^= 1  # the last row group's rows: 1000, as Thrift stores it
    (tmp_path / "_metadata").write_bytes(raw)
    assert pq.read_metadata(tmp_path / "_metadata").row_group(1).num_rows == -1001
    assert open_parquet(tmp_path).facts.chunk_rows.tolist() == [1000, 1000]
    assert gather_facts(tmp_path, None, None)[0].summary_rows == {}
