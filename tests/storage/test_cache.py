"""What every cache promises: bytes as they were, one read for many threads, and never a failure of its own."""

import os
import pickle
import threading
import time

import pyarrow as pa
import pytest

from penstock.errors import PlanError
from penstock.storage.cache import MemoryCache, as_cache
from penstock.storage.disk_cache import DiskCache


def key(number: int) -> str:
    return f"{number:032x}"


def data(number: int, size: int = 1000) -> pa.Buffer:
    return pa.py_buffer(bytes([number % 256]) * size)


@pytest.fixture(params=["memory", "disk"])
def cache(request, tmp_path):
    return MemoryCache(10**6) if request.param == "memory" else DiskCache(tmp_path / "cache", 10**6)


class TestEveryCache:
    def test_what_was_read_once_is_not_read_again(self, cache):
        asked = []

        def read(missing):
            asked.append(list(missing))
            return [data(index) for index in missing]

        for _ in range(2):
            assert cache.fetch([key(0), key(1)], read) == [data(0), data(1)]
        assert cache.fetch([key(0), key(2), key(1)], lambda missing: [data(9) for _ in missing])[1] == data(9)
        assert asked == [[0, 1]]
        assert cache.stats["hits"] == 4
        assert cache.stats["misses"] == 3
        assert cache.stats["hit_bytes"] == 4000

    def test_the_same_key_twice_in_one_call(self, cache):
        assert cache.fetch([key(1), key(1)], lambda missing: [data(1) for _ in missing]) == [data(1), data(1)]

    def test_empty_bytes_are_kept_too(self, cache):
        empty = pa.py_buffer(b"")
        cache.store(key(1), empty)
        assert cache.load(key(1)).size == 0

    def test_what_is_dropped_is_gone(self, cache):
        cache.store(key(1), data(1))
        used = cache.used_bytes
        cache.drop(key(1))
        cache.drop(key(2))
        assert cache.load(key(1)) is None
        assert cache.used_bytes < used

    def test_what_is_larger_than_the_cache_is_served_and_not_kept(self, cache):
        large = data(1, 2 * 10**6)
        assert cache.fetch([key(1)], lambda _: [large]) == [large]
        assert cache.load(key(1)) is None

    def test_threads_read_the_same_range_once(self, cache):
        reads, results = [], []
        ready = threading.Barrier(8)

        def read(missing):
            reads.extend(missing)
            time.sleep(0.1)
            return [data(index) for index in missing]

        def work():
            ready.wait()
            results.append(cache.fetch([key(0), key(1), key(2)], read))

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(reads) == [0, 1, 2]
        assert results == [[data(0), data(1), data(2)]] * 8

    def test_threads_that_want_different_columns_at_once_do_not_wait_for_each_other_for_ever(self, cache):
        def work(order):
            for _ in range(50):
                cache.fetch([key(n) for n in order], lambda missing: [data(order[i]) for i in missing])
                for n in order:
                    cache.drop(key(n))

        threads = [threading.Thread(target=work, args=(order,)) for order in ([0, 1, 2], [2, 1, 0], [1, 2, 3])]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()

    def test_one_that_fails_leaves_the_others_to_read_for_themselves(self, cache):
        reading, go_on = threading.Event(), threading.Event()
        errors, results = [], []

        def bad(missing):
            reading.set()
            go_on.wait(10)
            raise OSError("the store is away")

        def first():
            try:
                cache.fetch([key(0)], bad)
            except OSError as exc:
                errors.append(str(exc))

        threads = [threading.Thread(target=first)]
        threads[0].start()
        reading.wait(10)
        threads.append(threading.Thread(target=lambda: results.append(cache.fetch([key(0)], lambda _: [data(5)]))))
        threads[1].start()
        time.sleep(0.05)
        go_on.set()
        for thread in threads:
            thread.join(10)
        assert errors == ["the store is away"]
        assert results == [[data(5)]]

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
    @pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
    def test_a_forked_child_does_not_wait_for_a_thread_that_it_does_not_have(self, cache):
        reading, go_on = threading.Event(), threading.Event()

        def slow(missing):
            reading.set()
            go_on.wait(10)
            return [data(1)]

        thread = threading.Thread(target=cache.fetch, args=([key(1)], slow))
        thread.start()
        reading.wait(10)
        child = os.fork()
        if child == 0:
            found = cache.fetch([key(1)], lambda _: [data(2)])
            os._exit(0 if found == [data(2)] else 1)
        for _ in range(100):
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                break
            time.sleep(0.1)
        else:
            os.kill(child, 9)
            os.waitpid(child, 0)
        go_on.set()
        thread.join()
        assert pid == child
        assert status == 0


class TestMemory:
    def test_none_keeps_what_came_first(self):
        cache = MemoryCache(3500)
        for _ in range(3):
            for number in range(10):
                cache.fetch([key(number)], lambda _, n=number: [data(n)])
        assert cache.stats["hits"] == 6
        assert cache.used_bytes == 3000

    def test_lru_keeps_what_came_last(self):
        cache = MemoryCache(3500, eviction="lru")
        for number in (0, 1, 2, 0, 3):
            cache.fetch([key(number)], lambda _, n=number: [data(n)])
        assert [number for number in range(4) if cache.load(key(number))] == [0, 2, 3]
        cache.clear()
        assert cache.used_bytes == 0
        assert cache.load(key(0)) is None

    def test_a_slice_does_not_keep_the_whole_read(self):
        whole = pa.py_buffer(bytes(10**6))
        before = pa.total_allocated_bytes()
        cache = MemoryCache(10**4)
        cache.store(key(1), whole.slice(10, 100))
        kept = cache.load(key(1))
        assert kept.size == 100
        assert kept.parent is None or kept.parent.size == 100
        assert pa.total_allocated_bytes() <= before + 100

    def test_it_says_what_it_is_and_does_not_travel(self):
        assert repr(MemoryCache(10)) == "MemoryCache(size_limit=10, eviction='none', used=0)"
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(MemoryCache(10))


class TestArguments:
    def test_words_make_caches(self, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert as_cache(None) is None
        assert isinstance(as_cache("memory"), MemoryCache)
        assert isinstance(as_cache("local-disk"), DiskCache)
        mine = MemoryCache(10)
        assert as_cache(mine) is mine
        assert list(tmp_path.iterdir()) == []  # nothing is made before it is needed

    def test_others_are_refused(self):
        with pytest.raises(PlanError, match=r'"local-disk".*got \'disk\''):
            as_cache("disk")
        with pytest.raises(TypeError, match="got int"):
            as_cache(7)

    @pytest.mark.parametrize("limit", [0, -1, "1 GB", True, None, float("nan"), float("inf")])
    def test_a_limit_is_a_number_of_bytes(self, limit):
        with pytest.raises(ValueError, match="size limit of a cache must be"):
            MemoryCache(limit)
        assert MemoryCache(1e3).size_limit == 1000

    def test_an_eviction_is_one_of_a_few(self, tmp_path):
        with pytest.raises(ValueError, match="eviction must be one of 'lru', 'none'"):
            MemoryCache(10, eviction="fifo")
        with pytest.raises(ValueError, match="'idle', 'lru', 'none'"):
            DiskCache(tmp_path, 10, eviction="fifo")
