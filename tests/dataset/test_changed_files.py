"""A file that is written again while its dataset is open is noticed, at the same size too; a `touch` does no harm."""

import os
import time

import fsspec
import numpy as np
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.dataset import open_parquet
from penstock.dataset.read import CAN_VERIFY
from penstock.dataset.scan import IndexCache
from penstock.doctor import rewrite
from penstock.errors import BadFile, FileChanged
from penstock.predicates import in_lambda
from penstock.storage.cache import MemoryCache
from penstock.testing.filesystems import RecordingFileSystem
from tests.dataset.make import ids, read_all, write

NAMES = ["id", "value"]
CHANGED = r"part-1\.parquet, row group \d: the file has changed: it was written again since the dataset was opened"


def write_plain(path, start, **more):
    """Write ten rows whose file has the same size wherever they start."""
    return write(path, ids(start, start + 10), rows_per_group=5, compression="none", use_dictionary=False, **more)


def write_three(root, **more):
    for number in range(3):
        write_plain(root / f"part-{number}.parquet", 10 * number, **more)
    return root


def touch(path):
    later = path.stat().st_mtime_ns + 10**9
    os.utime(path, ns=(later, later))


def write_again(path, start, *, how, **more):
    """Put other rows of the same size into the place of a file: over its bytes, or by a rename."""
    size = path.stat().st_size
    if how == "in place":
        write_plain(path, start, **more)
        touch(path)
    else:
        before = path.stat()
        other = write_plain(path.with_name("_other"), start, **more)
        os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))  # the inode alone tells
        other.replace(path)
    assert path.stat().st_size == size


HOW = pytest.mark.parametrize("how", ["in place", "by rename"])


@HOW
@pytest.mark.parametrize("make", [dict, lambda: {"cache": MemoryCache(10**7)}], ids=["plain", "cached"])
def test_another_footer_is_an_error(tmp_path, how, make):
    source = open_parquet(write_three(tmp_path), **make())
    source.read(2, NAMES)
    write_again(tmp_path / "part-1.parquet", 500, how=how)
    with pytest.raises(FileChanged, match=CHANGED):
        source.read(3, NAMES)
    with pytest.raises(FileChanged, match=CHANGED):
        source.read(3, ["id"])
    assert source.read(4, NAMES)["id"].to_pylist() == [20, 21, 22, 23, 24]


@HOW
@pytest.mark.parametrize("pool", ["thread", "process", "serial"])
def test_a_loader_never_skips_it(tmp_path, how, pool):
    ds = penstock.open(write_three(tmp_path))
    write_again(tmp_path / "part-1.parquet", 500, how=how)
    got = []
    with ds.loader(batch_size=4, pool=pool, workers=1, on_error="skip") as loader:
        with pytest.raises(FileChanged, match=CHANGED):
            got.extend(batch["id"] for batch in loader)
        assert loader.skipped == []
    assert np.concatenate(got).tolist() == list(range(8))


def test_nor_does_it_skip_a_file_of_another_size(tmp_path):
    ds = penstock.open(write_three(tmp_path))
    write(tmp_path / "part-1.parquet", ids(0, 3))
    with (
        ds.loader(batch_size=4, on_error="skip") as loader,
        pytest.raises(FileChanged, match=r"has changed: \d+ bytes at opening, \d+ now"),
    ):
        list(loader)


@pytest.mark.parametrize("filters", [[("value", "!=", 7.0)], in_lambda(["value"], lambda value: value != 7)])
def test_nor_does_a_filter(tmp_path, filters):
    ds = penstock.open(write_three(tmp_path), on_error="skip")
    write_again(tmp_path / "part-1.parquet", 500, how="in place")
    with pytest.raises(FileChanged, match=CHANGED):
        ds.where(filters)
    assert ds.skipped == []


def test_a_file_that_has_lost_its_footer_is_changed_not_damaged(tmp_path):
    ds = penstock.open(write_three(tmp_path))
    path = tmp_path / "part-1.parquet"
    path.write_bytes(bytes(path.stat().st_size))
    touch(path)
    with (
        ds.loader(batch_size=4, on_error="skip") as loader,
        pytest.raises(FileChanged, match=CHANGED + r", and now .*cannot be read as Parquet"),
    ):
        list(loader)


@pytest.mark.parametrize("make", [dict, lambda: {"cache": MemoryCache(10**7)}], ids=["plain", "cached"])
def test_a_touch_does_not_end_a_run(tmp_path, make):
    ds = penstock.open(write_three(tmp_path), **make())
    with ds.loader(batch_size=4, epochs=3, memory_bytes=2000, shuffle_bytes=200) as loader:
        got = []
        for batch in loader:
            got.extend(batch["id"].tolist())
            for path in tmp_path.glob("*.parquet"):
                touch(path)
    assert got == [*range(30)] * 3


def test_a_touched_file_is_looked_into_once(tmp_path):
    fs = RecordingFileSystem()
    source = open_parquet(str(write_three(tmp_path)), filesystem=fs)
    read_all(source)
    touch(tmp_path / "part-1.parquet")
    fs.reads.clear()
    for _ in range(3):
        read_all(source)
    data = sum(pq.read_metadata(path).row_group(g).total_byte_size for path in tmp_path.iterdir() for g in (0, 1))
    opened = [path for path in fs.reads.opened if path.endswith("part-1.parquet")]
    assert len(opened) == 3 * 2 + 1 + 1  # each row group three times; once more, and the footer, when it was noticed
    assert fs.reads.num_bytes < 5 * data + os.path.getsize(tmp_path / "part-1.parquet")


def test_other_values_under_the_same_footer_are_read(tmp_path):
    ds = penstock.open(write_three(tmp_path, write_statistics=False))
    assert ds[10]["id"] == 10
    write_again(tmp_path / "part-1.parquet", 500, how="in place", write_statistics=False)
    assert ds[10]["id"] == 500


@pytest.mark.skipif(not CAN_VERIFY, reason="pyarrow 14 has no page checksums")
def test_a_file_written_again_is_verified_again(tmp_path):
    options = {"write_statistics": False, "write_page_checksum": True}
    source = open_parquet(write_three(tmp_path, **options))
    read_all(source)
    path = tmp_path / "part-1.parquet"
    info = pq.read_metadata(path).row_group(1).column(0)
    data = bytearray(path.read_bytes())
    data[info.data_page_offset + info.total_compressed_size - 1] ^= 1
    path.write_bytes(data)
    touch(path)
    assert source.read(2, NAMES).num_rows == 5  # not damaged
    with pytest.raises(BadFile, match="CRC checksum"):
        source.read(3, NAMES)


def test_a_footer_that_was_dropped_and_read_again_must_be_the_same(tmp_path):
    source = open_parquet(write_three(tmp_path))
    source.indexes = IndexCache(limit_bytes=1)
    write_again(tmp_path / "part-1.parquet", 500, how="in place")
    touch(tmp_path / "part-2.parquet")
    with pytest.raises(FileChanged, match="the file has changed"):
        source.read(2, NAMES)
    assert source.read(4, NAMES)["id"].to_pylist() == [20, 21, 22, 23, 24]


def test_files_listed_in_a_summary_are_watched_from_their_first_read(tmp_path):
    write_three(tmp_path)
    collected = []
    for path in sorted(tmp_path.iterdir()):
        footer = pq.read_metadata(path)
        footer.set_file_path(path.name)
        collected.append(footer)
    pq.write_metadata(pq.read_schema(tmp_path / "part-0.parquet"), tmp_path / "_metadata", collected)
    source = open_parquet(tmp_path)
    read_all(source)
    write_again(tmp_path / "part-1.parquet", 500, how="in place")
    with pytest.raises(FileChanged, match=CHANGED):
        source.read(2, NAMES)


def test_stores_that_tell_a_time_or_tag_are_watched_too(tmp_path):
    memory = fsspec.filesystem("memory")
    write_three(tmp_path)
    for path in tmp_path.iterdir():
        memory.pipe(f"/changed/{path.name}", path.read_bytes())
    source = open_parquet("/changed", filesystem=memory)
    read_all(source)
    good = memory.cat("/changed/part-1.parquet")
    time.sleep(0.01)  # its clock counts microseconds
    memory.pipe("/changed/part-1.parquet", good)
    assert read_all(source).num_rows == 30
    time.sleep(0.01)
    memory.pipe("/changed/part-1.parquet", write_plain(tmp_path / "x", 500).read_bytes())
    with pytest.raises(FileChanged, match=CHANGED):
        source.read(2, NAMES)
    memory.rm("/changed", recursive=True)


def test_rewrite_does_not_mix_two_files(tmp_path, monkeypatch):
    from penstock.doctor.rewriting import StoredRows

    root = write_three(tmp_path / "a")
    before = StoredRows._conform

    def meddle(self, batch, constants):
        if batch.column(0)[0].as_py() == 10:
            write_again(root / "part-1.parquet", 500, how="by rename")
        return before(self, batch, constants)

    monkeypatch.setattr(StoredRows, "_conform", meddle)
    with pytest.raises(FileChanged, match=r"part-1\.parquet"):
        rewrite(root, tmp_path / "b")
    assert not (tmp_path / "b").exists()
