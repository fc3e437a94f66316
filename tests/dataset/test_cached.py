"""Reading through a cache: the same tables, from fewer bytes of the source, and never those of another file."""

import os
import shutil
from concurrent.futures import ThreadPoolExecutor

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock
from penstock.dataset import open_parquet
from penstock.errors import BadFile
from penstock.storage.cache import MemoryCache
from penstock.storage.disk_cache import DiskCache
from penstock.testing.filesystems import RecordingFileSystem
from tests.dataset.make import ids, read_all, write, write_ids


def nested(rows: int) -> pa.Table:
    """Columns of every layout: dictionaries, lists, structs, nulls, long and short cells."""
    number = range(rows)
    return pa.table({
        "id": pa.array(number),
        "word": pa.array([["a", "b", None][i % 3] for i in number]).dictionary_encode(),
        "blob": pa.array([os.urandom(300) for _ in number]),
        "list": pa.array([[i] * (i % 4) for i in number]),
        "s": pa.array([{"a": i, "b": {"c": str(i)}} for i in number]),
        "s_more": pa.array([None] * rows, pa.string()),
    })  # fmt: skip


NAMES = ["id", "word", "blob", "list", "s.a", "s.b.c", "s_more"]


@pytest.fixture(params=["memory", "disk"])
def cache(request, tmp_path):
    return MemoryCache(10**8) if request.param == "memory" else DiskCache(tmp_path / "cache", 10**8)


class TestSameTables:
    @pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
    @pytest.mark.parametrize("version", ["1.0", "2.0"])
    def test_a_cached_read_equals_a_plain_one(self, tmp_path, cache, compression, version):
        write(tmp_path / "d" / "a.parquet", nested(100), rows_per_group=30, compression=compression,
              data_page_version=version, write_page_index=True, use_dictionary=version == "1.0")  # fmt: skip
        plain, cached = open_parquet(tmp_path / "d"), open_parquet(tmp_path / "d", cache=cache)
        for _ in range(2):
            assert read_all(cached).equals(read_all(plain))
        assert cache.stats["hits"] == cache.stats["misses"] == 4 * 7

    @settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        asked=st.lists(
            st.lists(st.sampled_from(NAMES), min_size=1, unique=True),
            max_size=6,
        )
    )  # fmt: skip
    def test_any_columns_in_any_order(self, tmp_path, asked):
        if not (tmp_path / "d").exists():
            write(tmp_path / "d" / "a.parquet", nested(50), rows_per_group=20)
        cache = MemoryCache(10**8)
        plain, cached = open_parquet(tmp_path / "d"), open_parquet(tmp_path / "d", cache=cache)
        for columns in asked:
            assert cached.read(1, columns).equals(plain.read(1, columns))

    def test_partition_columns_need_no_cache(self, tmp_path, cache):
        penstock.write({"x": np.arange(10), "day": np.arange(10) // 5}, tmp_path / "d", partition_by="day")
        cached = open_parquet(tmp_path / "d", cache=cache)
        assert cached.read(1, ["day"])["day"].to_pylist() == [1] * 5
        assert cache.stats["misses"] == 0
        assert cached.read(1, ["day", "x"])["x"].to_pylist() == [5, 6, 7, 8, 9]

    def test_loaders_filters_and_rows_go_through_it(self, tmp_path, cache):
        penstock.write({"x": np.arange(1000), "y": np.arange(1000) * 2}, tmp_path / "d", row_group_bytes=1600)
        ds = penstock.open(tmp_path / "d", cache=cache)

        def epoch():
            with ds.where([("y", ">=", 1000)]).loader(batch_size=64, shuffle=True, seed=1) as loader:
                return np.concatenate([batch["x"] for batch in loader]).tolist()

        first = epoch()
        missed = cache.stats["misses"]
        assert sorted(first) == list(range(500, 1000))
        assert epoch() == first
        assert ds[700]["y"] == 1400
        assert cache.stats["misses"] == missed
        assert cache.stats["hits"] > 0


class TestBytesOfTheSource:
    def test_what_is_cached_is_not_read_again(self, tmp_path, cache):
        write_ids(tmp_path / "d", files=2, rows=1000, rows_per_group=250)
        fs = RecordingFileSystem()
        source = open_parquet(str(tmp_path / "d"), filesystem=fs, cache=cache)
        fs.reads.clear()
        read_all(source, ["value"])
        assert fs.reads.num_reads == 8
        opened = len(fs.reads.opened)
        read_all(source, ["value"])
        assert fs.reads.num_reads == 8
        assert len(fs.reads.opened) == opened  # not even looked at
        read_all(source, ["id", "value"])  # the columns missing, no others
        assert fs.reads.num_reads == 16

    def test_a_second_run_reads_footers_only(self, tmp_path):
        write_ids(tmp_path / "d", files=2, rows=1000, rows_per_group=250)
        for run in range(2):
            fs = RecordingFileSystem()
            source = open_parquet(str(tmp_path / "d"), filesystem=fs, cache=DiskCache(tmp_path / "cache", 10**6))
            fs.reads.clear()
            read_all(source)
            assert (fs.reads.num_reads > 0) == (run == 0)

    def test_weighing_rows_goes_through_the_cache(self, tmp_path, cache):
        penstock.write({"word": ["one", "three", "three"] * 100, "x": np.arange(300)}, tmp_path / "d")
        weights = []
        for run in range(2):
            fs = RecordingFileSystem()
            ds = penstock.open(str(tmp_path / "d"), filesystem=fs, cache=cache)
            fs.reads.clear()
            with ds.loader(batch_size=100, shuffle=True) as loader:
                assert sum(len(batch["x"]) for batch in loader) == 300
            assert (fs.reads.num_reads > 0) == (run == 0)
            weights.append(ds.source.row_bytes())
        assert weights == [open_parquet(tmp_path / "d").row_bytes()] * 2

    def test_neighbours_are_read_together(self, tmp_path, cache):
        columns = {f"c{i}": np.random.default_rng(i).random(5000) for i in range(6)}
        write(tmp_path / "a.parquet", columns, use_dictionary=False)
        fs = RecordingFileSystem()
        source = open_parquet(str(tmp_path / "a.parquet"), filesystem=fs, cache=cache)
        fs.reads.clear()
        source.read(0, ["c0", "c1", "c2", "c5"])
        assert fs.reads.num_reads == 2  # c3 and c4 are too much to read over
        source.read(0, [f"c{i}" for i in range(6)])
        assert fs.reads.num_reads == 3
        assert fs.reads.num_bytes <= os.path.getsize(tmp_path / "a.parquet")

    def test_threads_read_a_chunk_once(self, tmp_path, cache):
        write_ids(tmp_path / "d", files=1, rows=1000, rows_per_group=1000)
        fs = RecordingFileSystem()
        source = open_parquet(str(tmp_path / "d"), filesystem=fs, cache=cache)
        fs.reads.clear()
        with ThreadPoolExecutor(8) as pool:
            tables = list(pool.map(lambda _: source.read(0, ["id", "value"]), range(16)))
        assert all(table.equals(tables[0]) for table in tables)
        assert cache.stats["misses"] == 2

    def test_without_a_cache_a_store_is_read_every_time_by_one_request(self, tmp_path):
        write_ids(tmp_path / "d", files=1, rows=100, rows_per_group=100)
        fs = RecordingFileSystem()
        source = open_parquet(str(tmp_path / "d"), filesystem=fs)
        fs.reads.clear()
        read_all(source)
        read_all(source)
        assert fs.reads.num_reads == 2


class TestIdentity:
    def test_defect_5_2_8_the_key_knows_columns_rows_and_file(self, tmp_path, cache):
        write(tmp_path / "a" / "x.parquet", ids(0, 10), rows_per_group=5)
        write(tmp_path / "b" / "x.parquet", ids(100, 110), rows_per_group=5)
        for _ in range(2):
            for folder, start in (("a", 0), ("b", 100)):
                source = open_parquet(tmp_path / folder, cache=cache)
                assert source.read(1, ["value"])["value"].to_pylist() == [(start + i) / 2 for i in range(5, 10)]
                assert source.read(1, ["id"])["id"].to_pylist() == list(range(start + 5, start + 10))
                assert source.read(0, ["id"])["id"].to_pylist() == list(range(start, start + 5))

    def test_a_file_written_again_is_another_one_even_with_the_same_footer(self, tmp_path, cache):
        path = tmp_path / "a.parquet"
        options = {"compression": "none", "use_dictionary": False, "write_statistics": False}
        write(path, {"blob": [b"old" * 100] * 10}, **options)
        os.utime(path, ns=(1, 10**18))
        size = path.stat().st_size
        assert open_parquet(path, cache=cache).read(0, ["blob"])["blob"][0].as_py() == b"old" * 100
        write(path, {"blob": [b"new" * 100] * 10}, **options)
        os.utime(path, ns=(1, 10**18 + 10**9))
        assert path.stat().st_size == size
        assert open_parquet(path, cache=cache).read(0, ["blob"])["blob"][0].as_py() == b"new" * 100

    def test_the_same_file_elsewhere_is_another_one(self, tmp_path, cache):
        write(tmp_path / "a" / "x.parquet", ids(0, 10))
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        for folder in "ab":
            read_all(open_parquet(tmp_path / folder, cache=cache))
        assert cache.stats["hits"] == 0

    def test_a_file_that_shrank_since_opening_is_an_error_as_without_a_cache(self, tmp_path, cache):
        path = write(tmp_path / "a.parquet", ids(0, 100))
        source = open_parquet(path, cache=cache)
        write(path, ids(0, 50))
        with pytest.raises(BadFile, match="the file has changed"):
            source.read(0, ["id"])
        path.unlink()
        with pytest.raises(BadFile, match="not there any more"):
            source.read(0, ["id"])

    def test_a_file_written_again_while_it_is_read_is_not_kept(self, tmp_path, cache):
        path = write(tmp_path / "a.parquet", ids(0, 100), rows_per_group=50)
        source = open_parquet(path, cache=cache)
        source.read(0, ["id"])
        os.utime(path, ns=(1, 10**18))
        assert source.read(1, ["id"])["id"].to_pylist() == list(range(50, 100))
        assert cache.stats["misses"] == 1
        assert source.read(1, ["id"])["id"].to_pylist() == list(range(50, 100))
        assert cache.stats["misses"] == 2  # the file as it is now is kept again

    def test_a_file_of_an_fsspec_store(self, cache):
        memory = fsspec.filesystem("memory")
        for word in ("old", "new"):
            sink = pa.BufferOutputStream()
            pq.write_table(pa.table({"blob": [word] * 10}), sink, write_statistics=False)
            memory.pipe("/cached/x.parquet", sink.getvalue().to_pybytes())
            for _ in range(2):
                source = open_parquet("memory://cached", cache=cache)
                assert source.read(0, ["blob"])["blob"][0].as_py() == word
        assert cache.stats["hits"] == 2


class TestDamage:
    def test_bytes_that_do_not_decode_are_read_again_from_the_source(self, tmp_path, cache):
        path = write(tmp_path / "a.parquet", ids(0, 100))
        source = open_parquet(path, cache=cache)
        group = source.part(0)
        wanted = source._cached._wanted(group, ["id", "value"])
        for key, (start, stop) in wanted.items():
            cache.store(key, pa.py_buffer(b"?" * (stop - start)))
        assert source.read(0, ["id", "value"])["id"].to_pylist() == list(range(100))
        assert all(cache.load(key) is None for key in wanted)
        source.read(0, ["id", "value"])
        assert source.read(0, ["id", "value"])["id"].to_pylist() == list(range(100))
        assert cache.stats["hits"] == 4  # twice the bad bytes, twice the good ones

    def test_a_damaged_source_is_named_as_without_a_cache(self, tmp_path, cache):
        path = write(tmp_path / "a.parquet", ids(0, 100), compression="zstd")
        source = open_parquet(path, cache=cache)
        [(start, stop)] = source.part(0).ranges(["value"]).values()
        content = bytearray(path.read_bytes())
        content[start:stop] = bytes(stop - start)
        path.write_bytes(content)
        for _ in range(2):
            with pytest.raises(BadFile, match=r"row group 0, column 'value': cannot be read"):
                source.read(0, ["id", "value"])

    def test_a_range_that_the_footer_did_not_tell_comes_from_the_source(self, tmp_path, cache):
        path = write(tmp_path / "a.parquet", ids(0, 100))
        source = open_parquet(path, cache=cache)
        group = source.part(0)
        with source._cached.open(group, ["id"]) as file:
            assert file.size() == path.stat().st_size
            whole = path.read_bytes()
            [(start, stop)] = group.ranges(["id"]).values()
            for first, last in ((0, 4), (start + 1, stop - 1), (start, stop), (start, stop), (start - 1, stop + 9)):
                assert file.read_at(last - first, first) == whole[first:last]
            file.seek(len(whole) - 4)
            assert file.read() == b"PAR1"
            assert file.read(10) == b""
