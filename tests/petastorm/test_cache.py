"""A reader's five cache arguments, and Petastorm's small cache classes."""

import os
import pickle

import numpy as np
import pytest

import penstock
from penstock.errors import PenstockWarning
from penstock.petastorm.cache import CacheBase, NullCache, make_cache
from penstock.petastorm.local_disk_cache import LocalDiskCache
from penstock.storage.cache import ChunkCache, MemoryCache
from penstock.storage.disk_cache import DiskCache


class TestMakeCache:
    @pytest.mark.parametrize("kind", [None, "null"])
    def test_none_is_none(self, kind):
        assert make_cache(kind, None, None, None, None) is None

    def test_local_disk_alone_takes_the_users_cache_folder(self, tmp_path, monkeypatch):
        monkeypatch.setattr("sys.platform", "linux")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        cache = make_cache("local-disk", None, None, None, None)
        assert isinstance(cache, DiskCache)
        assert cache.path == str(tmp_path / "penstock")
        assert cache.size_limit > 0
        assert os.listdir(tmp_path) == []

    def test_petastorms_arguments(self, tmp_path):
        cache = make_cache("local-disk", tmp_path, 10**6, 100, {"shards": 2, "eviction_policy": "none"})
        assert isinstance(cache, LocalDiskCache)
        assert (cache.path, cache.size_limit, cache.eviction) == (str(tmp_path), 10**6, "none")

    def test_memory(self):
        cache = make_cache("memory", None, 12345, None, None)
        assert isinstance(cache, MemoryCache)
        assert cache.size_limit == 12345
        assert make_cache("memory", None, None, None, None).size_limit == 1 << 30
        with pytest.raises(ValueError, match="leave out cache_location='here'"):
            make_cache("memory", "here", None, None, None)

    def test_another_type_is_refused(self):
        with pytest.raises(ValueError, match="Unknown cache_type 'redis'; use None, 'null', 'local-disk' or 'memory'"):
            make_cache("redis", None, None, None, None)

    def test_a_dataset_reads_through_it(self, tmp_path):
        penstock.write({"x": np.arange(100)}, tmp_path / "d")
        for hits in (0, 1):
            cache = make_cache("local-disk", tmp_path / "cache", 10**6, None, None)
            assert penstock.open(tmp_path / "d", cache=cache)[7]["x"] == 7
            assert cache.stats["hits"] == hits
            cache.cleanup()  # what a reader does at its end: the next run finds what this one stored

    def test_defect_5_2_8_the_users_folder_is_not_deleted(self, tmp_path):
        penstock.write({"x": np.arange(100)}, tmp_path / "d")
        place = tmp_path / "mine"
        place.mkdir()
        (place / "notes.txt").write_text("keep me")
        for settings in ({"cleanup": True}, {"cleanup": False}):
            cache = make_cache("local-disk", place, 10**6, None, settings)
            penstock.open(tmp_path / "d", cache=cache).head()
            cache.cleanup()
            assert (place / "notes.txt").read_text() == "keep me"
            assert len(list(place.rglob("*.chunk"))) == (0 if settings["cleanup"] else 1)


class TestLocalDiskCache:
    def test_it_is_both_kinds_of_cache(self, tmp_path):
        cache = LocalDiskCache(tmp_path, 10**6, 10)
        assert isinstance(cache, CacheBase)
        assert isinstance(cache, ChunkCache)

    @pytest.mark.parametrize("value", [
        None, True, 7, -(2**70), 1.5, "text \u00fc\ud800", b"bytes", [1, "a", None], (1, (2, b"")), {"a": [1], 2: (3,)},
        np.float32(1.5), np.datetime64("2024-01-01"), np.str_("x"),
    ])  # fmt: skip
    def test_values_come_back_as_they_were(self, tmp_path, value):
        assert LocalDiskCache(tmp_path, 10**6, 10).get("key", lambda: value) == value
        again = LocalDiskCache(tmp_path, 10**6, 10).get("key", _must_not_be_called)
        assert again == value
        assert type(again) is type(value)

    def test_arrays_come_back_and_are_writable(self, tmp_path):
        rows = {
            "image": np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
            "t": np.array(["2024"], "M8[D]"),
            "e": np.ones((0, 3)),
        }
        LocalDiskCache(tmp_path, 10**6, 10).get("key", lambda: [rows])
        [again] = LocalDiskCache(tmp_path, 10**6, 10).get("key", _must_not_be_called)
        for name, values in rows.items():
            np.testing.assert_array_equal(again[name], values)
            assert again[name].dtype == values.dtype
            assert again[name].flags.writeable

    @pytest.mark.parametrize("value", [object(), {1, 2}, np.array([object()]), np.zeros(2, "i4,f4"), ChunkCache])
    def test_values_of_other_kinds_are_made_anew(self, tmp_path, value):
        cache, calls = LocalDiskCache(tmp_path, 10**6, 10), []
        for _ in range(2):
            assert cache.get("key", lambda: calls.append(1) or value) is value
        assert len(calls) == 2

    def test_a_stored_pickle_is_not_run(self, tmp_path):
        import pyarrow as pa

        class Bomb:
            def __reduce__(self):
                return os.mkdir, (str(tmp_path / "boom"),)

        cache = LocalDiskCache(tmp_path / "c", 10**6, 10)
        cache.get("key", lambda: 1)
        [entry] = (tmp_path / "c").rglob("*.chunk")
        cache.drop(entry.stem)
        cache.store(entry.stem, pa.py_buffer(pickle.dumps(Bomb())))
        assert cache.get("key", lambda: 2) == 2
        assert not (tmp_path / "boom").exists()

    def test_the_size_rule(self, tmp_path):
        with pytest.raises(ValueError, match="in 6 shards; give at least 3000 bytes"):
            LocalDiskCache(tmp_path, 2999, 100)
        LocalDiskCache(tmp_path, 3000, 100)
        LocalDiskCache(tmp_path, 500, 100, shards=1)
        LocalDiskCache(tmp_path, 1, 100, eviction_policy="none")

    def test_policies(self, tmp_path):
        made = {
            p: LocalDiskCache(tmp_path, 10**6, 1, eviction_policy=p).eviction for p in ("none", "least-recently-used")
        }
        assert made == {"none": "none", "least-recently-used": "lru"}
        assert LocalDiskCache(tmp_path, 10**6, 1).eviction == "idle"
        with pytest.raises(ValueError, match="eviction_policy must be one of"):
            LocalDiskCache(tmp_path, 10**6, 1, eviction_policy="fifo")

    def test_settings_of_diskcache_are_accepted_with_one_warning(self, tmp_path):
        with pytest.warns(PenstockWarning, match="no effect: cull_limit, statistics") as told:
            LocalDiskCache(tmp_path, 10**6, 1, cull_limit=10, statistics=1)
        assert len(told) == 1
        assert told[0].filename == __file__

    def test_cleanup_deletes_what_it_stored_unless_told_not_to(self, tmp_path):
        for cleanup in (False, True):
            cache = LocalDiskCache(tmp_path / str(cleanup), 10**6, 1, cleanup=cleanup)
            cache.get("key", lambda: 1)
            cache.cleanup()
            assert (tmp_path / str(cleanup)).exists() != cleanup

    def test_it_travels_by_its_settings(self, tmp_path):
        cache = LocalDiskCache(tmp_path, 10**6, 1, cleanup=False, eviction_policy="least-recently-used")
        cache.get("key", lambda: 5)
        other = pickle.loads(pickle.dumps(cache))
        assert other.get("key", _must_not_be_called) == 5
        assert (other.eviction, other.size_limit) == ("lru", 10**6)
        other.cleanup()
        assert other.get("key", _must_not_be_called) == 5


def test_the_null_cache_keeps_nothing():
    cache = NullCache()
    assert [cache.get("key", lambda: 1), cache.get("key", lambda: 2)] == [1, 2]
    cache.cleanup()


def _must_not_be_called():
    raise AssertionError("the value is in the cache")
