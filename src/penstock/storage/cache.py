"""Keep byte ranges that were read once, so that they are not fetched from their source again.

`dataset` asks with keys that name a range of one version of one file; it gets the bytes from the cache, or from the
reader that it passes along. A cache never makes reading fail and never changes what is read: what it does not have,
cannot store or does not trust any more comes from the source. It knows nothing of Parquet, columns or order.

Contains what all caches share (`ChunkCache`), the cache in memory, and what `penstock.open(cache=...)` accepts; the
cache on disk is in `disk_cache`.
"""

from __future__ import annotations

import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.errors import PlanError
from penstock.options import one_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyarrow import Buffer

    Read = Callable[[Sequence[int]], Sequence[Buffer]]

MEMORY_CACHE_BYTES = 1 << 30
"""Default size limit of a `MemoryCache`."""


class ChunkCache(ABC):
    """Bytes by key, for any number of threads; keys are 32 hexadecimal digits.

    A subclass implements how bytes are kept: `load`, `store` and `drop`. All may be called by many threads at once, and
    must not raise if the cache itself fails.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._reset_locks()
        _LIVE.add(self)

    def _reset_locks(self) -> None:
        """Forget which thread waits for which: also in a forked child, where those threads do not exist."""
        self._flights: dict[str, Future[Buffer | None]] = {}
        """Ranges that one thread is fetching and others may be waiting for; None once that thread has failed."""
        self._flights_lock = threading.Lock()

    @abstractmethod
    def load(self, key: str) -> Buffer | None:
        """Return the bytes of `key`, or None if they are not in the cache or damaged."""

    @abstractmethod
    def store(self, key: str, data: Buffer) -> None:
        """Keep the bytes if there is room, by the rules of the cache."""

    @abstractmethod
    def drop(self, key: str) -> None:
        """Remove the bytes of `key`, if present."""

    @property
    def stats(self) -> dict[str, int]:
        """Counts since this object was created: hits, misses, and the bytes of both; more by kind of cache."""
        with self._flights_lock:
            return {name: self._counts[name] for name in ("hits", "misses", "hit_bytes", "miss_bytes")} | self._counts

    def fetch(self, keys: Sequence[str], read: Read) -> list[Buffer]:
        """Return the bytes of all keys: the cached ones, and the others by one call of `read` with their indices.

        What `read` returns is cached. Threads that need the same key at the same time read it once; if that thread
        fails, each of the others reads for itself. Raises what `read` raises.
        """
        flights, mine = self._claim(keys)
        try:
            self._serve(keys, flights, mine, read)
        finally:
            for index in mine:
                with self._flights_lock:
                    self._flights.pop(keys[index], None)
                if not flights[index].done():
                    flights[index].set_result(None)
        return [self._await(flight, index, keys[index], read) for index, flight in enumerate(flights)]

    def _claim(self, keys: Sequence[str]) -> tuple[list[Future[Buffer | None]], list[int]]:
        """Return the flight of every key, and the indices of those that this thread has started."""
        flights, mine = [], []
        with self._flights_lock:
            for index, key in enumerate(keys):
                flight = self._flights.get(key)
                if flight is None:
                    flight = self._flights[key] = Future()
                    mine.append(index)
                flights.append(flight)
        return flights, mine

    def _serve(self, keys: Sequence[str], flights: list[Future[Buffer | None]], mine: list[int], read: Read) -> None:
        missing = []
        for index in mine:
            data = self.load(keys[index])
            if data is None:
                missing.append(index)
            else:
                flights[index].set_result(data)
                self._count(hits=1, hit_bytes=data.size)
        if not missing:
            return
        for index, data in zip(missing, read(missing), strict=True):
            flights[index].set_result(data)  # waiting threads need not wait for the storing
            self._count(misses=1, miss_bytes=data.size)
            self.store(keys[index], data)

    def _await(self, flight: Future[Buffer | None], index: int, key: str, read: Read) -> Buffer:
        data = flight.result()
        if data is None:  # the thread that was fetching it has failed
            data = self.load(key)
        return read([index])[0] if data is None else data

    def _count(self, **more: int) -> None:
        with self._flights_lock:
            self._counts.update(more)


_LIVE: weakref.WeakSet[ChunkCache] = weakref.WeakSet()


def _after_fork() -> None:
    for cache in list(_LIVE):
        cache._reset_locks()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class MemoryCache(ChunkCache):
    """Keeps encoded column chunks in the memory of this process, up to `size_limit` bytes.

    They count in addition to a loader's `memory_bytes`. With eviction="none" what came first stays: epochs over a
    dataset larger than the limit find the same part of it every time. With "lru" the least recently used makes room,
    which for such epochs may mean that nothing is ever found.
    """

    def __init__(self, size_limit: float = MEMORY_CACHE_BYTES, *, eviction: str = "none") -> None:
        one_of("eviction", eviction, ("lru", "none"))
        self.size_limit = whole_bytes(size_limit)
        self.eviction = eviction
        self._kept: OrderedDict[str, Buffer] = OrderedDict()
        self._used = 0
        super().__init__()

    def __repr__(self) -> str:
        return f"MemoryCache(size_limit={self.size_limit}, eviction={self.eviction!r}, used={self._used})"

    def __reduce__(self) -> Any:
        raise TypeError("a MemoryCache cannot be pickled or copied; create another one in the other process")

    def _reset_locks(self) -> None:
        super()._reset_locks()
        self._lock = threading.Lock()

    @property
    def used_bytes(self) -> int:
        """Bytes held now."""
        return self._used

    def load(self, key: str) -> Buffer | None:
        """Return the bytes of `key` without a copy, or None."""
        with self._lock:
            data = self._kept.get(key)
            if data is not None:
                self._kept.move_to_end(key)
            return data

    def store(self, key: str, data: Buffer) -> None:
        """Keep a copy if there is room: the bytes may be a slice of a larger read, which would stay in memory whole."""
        if data.size + (0 if self.eviction == "lru" else self._used) > self.size_limit:
            return
        copy = pa.py_buffer(bytes(memoryview(data)))
        with self._lock:
            if key in self._kept:
                return
            while self._kept and self.eviction == "lru" and self._used + copy.size > self.size_limit:
                self._used -= self._kept.popitem(last=False)[1].size
            if self._used + copy.size <= self.size_limit:
                self._kept[key] = copy
                self._used += copy.size

    def drop(self, key: str) -> None:
        """Remove the bytes of `key`."""
        with self._lock:
            data = self._kept.pop(key, None)
            self._used -= 0 if data is None else data.size

    def clear(self) -> None:
        """Remove everything."""
        with self._lock:
            self._kept.clear()
            self._used = 0


def whole_bytes(size_limit: Any) -> int:
    """Return a limit in bytes as an int, also if it was given as a float such as 10e9.

    Raises:
        PlanError: it is not a number, or less than one byte.
    """
    try:
        number = int(size_limit)
    except (TypeError, ValueError, OverflowError):
        raise PlanError(f"the size limit of a cache must be a number of bytes; got {size_limit!r}") from None
    if number < 1 or isinstance(size_limit, str | bytes | bool):
        raise PlanError(f"the size limit of a cache must be at least 1 byte; got {size_limit!r}")
    return number


def as_cache(cache: Any) -> ChunkCache | None:
    """Return the cache that `penstock.open(cache=...)` means: None, "local-disk", "memory", or a cache object.

    Raises:
        PlanError: another word.
        TypeError: another type.
    """
    if cache is None or isinstance(cache, ChunkCache):
        return cache
    if cache == "memory":
        return MemoryCache()
    if cache == "local-disk":
        from penstock.storage.disk_cache import DiskCache

        return DiskCache()
    wanted = 'None, "local-disk", "memory", or a cache such as penstock.DiskCache(path, size_limit=10e9)'
    if isinstance(cache, str):
        raise PlanError(f"cache= takes {wanted}; got {cache!r}")
    raise TypeError(f"cache= takes {wanted}; got {type(cache).__name__}")
