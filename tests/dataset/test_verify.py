"""Pages whose checksums do not fit are damaged: noticed the first time, every time, or never, as `verify` says."""

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.dataset import open_parquet
from penstock.dataset.read import CAN_VERIFY
from penstock.doctor import rewrite
from penstock.errors import BadFile, PlanError
from penstock.storage.cache import MemoryCache
from tests.dataset.make import ids, read_all, write

needs_checksums = pytest.mark.skipif(not CAN_VERIFY, reason="pyarrow 14 neither writes nor verifies page checksums")
NAMES = ["id", "value"]


def write_checked(path, *, checksums=True):
    """Write two row groups of ten rows as plain values, which no decoder finds fault with."""
    options = {"write_page_checksum": True} if checksums else {}
    return write(path, ids(0, 20), rows_per_group=10, compression="none", use_dictionary=False, **options)


def damage(path, *, group, column=1):
    """Flip a bit of the last value of a column, and leave the file as old as it was."""
    info = pq.read_metadata(path).row_group(group).column(column)
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(info.data_page_offset + info.total_compressed_size - 1)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([last ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@needs_checksums
class TestWhen:
    def test_by_default_damage_is_an_error_that_names_the_column(self, tmp_path):
        path = write_checked(tmp_path / "a.parquet")
        damage(path, group=1)
        source = open_parquet(path)
        assert source.read(0, NAMES).num_rows == 10
        with pytest.raises(BadFile, match=r"a\.parquet, row group 1, column 'value'.*CRC checksum") as caught:
            source.read(1, NAMES)
        assert (caught.value.row_group, caught.value.column) == (1, "value")
        with pytest.raises(BadFile, match="CRC checksum"):  # a row group that failed is not taken for verified
            source.read(1, NAMES)
        assert source.read(1, ["id"])["id"].to_pylist() == list(range(10, 20))

    def test_first_verifies_each_row_group_once(self, tmp_path):
        path = write_checked(tmp_path / "a.parquet")
        source = open_parquet(path, verify="first")
        right = source.read(0, NAMES)
        damage(path, group=0)
        damage(path, group=1)
        assert not source.read(0, NAMES).equals(right)  # what "first" does not see
        with pytest.raises(BadFile, match=r"row group 1.*CRC checksum"):
            source.read(1, NAMES)

    def test_columns_that_are_read_later_are_verified_then(self, tmp_path):
        path = write_checked(tmp_path / "a.parquet")
        source = open_parquet(path)
        source.read(0, ["id"])
        damage(path, group=0)
        with pytest.raises(BadFile, match=r"column 'value'.*CRC checksum"):
            source.read(0, ["value"])

    def test_true_verifies_every_time(self, tmp_path):
        path = write_checked(tmp_path / "a.parquet")
        source = open_parquet(path, verify=True)
        source.read(0, NAMES)
        damage(path, group=0)
        with pytest.raises(BadFile, match="CRC checksum"):
            source.read(0, NAMES)

    def test_false_never_does(self, tmp_path):
        path = write_checked(tmp_path / "a.parquet")
        right = read_all(open_parquet(path))
        damage(path, group=0)
        assert not read_all(open_parquet(path, verify=False)).equals(right)

    @pytest.mark.parametrize("verify", ["first", True, False])
    @pytest.mark.parametrize("checksums", [True, False])
    def test_good_files_read_the_same_with_and_without_checksums(self, tmp_path, verify, checksums):
        path = write_checked(tmp_path / "a.parquet", checksums=checksums)
        source = open_parquet(path, verify=verify)
        for _ in range(2):
            assert read_all(source).equals(pq.read_table(path))


@needs_checksums
class TestWhere:
    @pytest.mark.parametrize("pool", ["thread", "process", "serial"])
    def test_a_loader_stops_or_leaves_the_rows_out(self, tmp_path, pool):
        path = write_checked(tmp_path / "a.parquet")
        damage(path, group=1)
        ds = penstock.open(path)
        with ds.loader(batch_size=5, pool=pool, workers=1) as loader, pytest.raises(BadFile, match="CRC checksum"):
            list(loader)
        with ds.loader(batch_size=5, pool=pool, workers=1, on_error="skip") as loader:
            assert np.concatenate([batch["id"] for batch in loader]).tolist() == list(range(10))
            assert {(one.row_group, one.column) for one in loader.skipped} == {(1, "value")}
        with penstock.open(path, verify=False).loader(batch_size=5, pool=pool, workers=1) as loader:
            assert sum(len(batch["id"]) for batch in loader) == 20

    def test_a_filter_verifies_what_it_reads(self, tmp_path):
        path = write_checked(tmp_path / "a.parquet")
        damage(path, group=1)
        with pytest.raises(BadFile, match="CRC checksum"):
            penstock.open(path, filters=[("value", ">", 0.25)])

    def test_damaged_bytes_do_not_stay_in_a_cache(self, tmp_path):
        path = write_checked(tmp_path / "a.parquet")
        right = read_all(open_parquet(path))
        good = path.read_bytes()
        before = path.stat()
        damage(path, group=1)
        cache = MemoryCache(10**7)
        with pytest.raises(BadFile, match="CRC checksum"):
            open_parquet(path, cache=cache).read(1, NAMES)
        path.write_bytes(good)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert read_all(open_parquet(path, cache=cache)).equals(right)

    def test_rewrite_does_not_copy_damage(self, tmp_path):
        path = write_checked(tmp_path / "a" / "a.parquet")
        damage(path, group=1)
        with pytest.raises(BadFile, match="CRC checksum"):
            rewrite(tmp_path / "a", tmp_path / "b")
        assert not (tmp_path / "b").exists()


def test_other_words_are_refused(tmp_path):
    path = write(tmp_path / "a.parquet", ids(0, 5))
    for verify in ("always", None, 1):
        with pytest.raises(PlanError, match="verify must be one of 'first', True, False"):
            penstock.open(path, verify=verify)


@pytest.mark.skipif(CAN_VERIFY, reason="this pyarrow can")
def test_a_pyarrow_that_cannot_verify_refuses_true(tmp_path):
    path = write(tmp_path / "a.parquet", ids(0, 5))
    with pytest.raises(PlanError, match=f"needs pyarrow 15 or newer; this is {pa.__version__}"):
        penstock.open(path, verify=True)
    assert read_all(open_parquet(path)).num_rows == 5
