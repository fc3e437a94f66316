"""Petastorm's `cache`: its interface, the cache that keeps nothing, and what a reader's cache arguments mean here.

Readers keep encoded column chunks (`penstock.storage`), not decoded rows as Petastorm did: columns, transforms,
predicates and order never matter to what is found. `make_cache` turns the five arguments into the object that
`penstock.open(cache=...)` takes. Nothing is read or written here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from penstock.errors import PlanError
from penstock.storage.cache import ChunkCache, MemoryCache

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping


__all__ = ["CacheBase", "NullCache", "clean_up_after", "make_cache"]

LOCAL_DISK_CACHE = "local-disk"
MEMORY_CACHE = "memory"
NULL_CACHE = "null"


class CacheBase(ABC):
    """What Petastorm calls a cache: values by key, made by a function where they are not there."""

    @abstractmethod
    def get(self, key: str, fill_cache_func: Callable[[], Any]) -> Any:
        """Return the value of `key`, or what `fill_cache_func()` returns, which may be kept."""

    def cleanup(self) -> None:  # noqa: B027 -- most caches have nothing to delete
        """Delete what the cache has made; nothing here."""


class NullCache(CacheBase):
    """Keeps nothing."""

    def get(self, key: str, fill_cache_func: Callable[[], Any]) -> Any:  # noqa: ARG002
        """Return what `fill_cache_func()` returns."""
        return fill_cache_func()


def clean_up_after(error: BaseException | None, cleanup: Callable[[], None]) -> None:
    """Call `cleanup` at the end of a `with` block; what it raises does not replace the `error` of the block.

    It becomes a note of that error; without one it is raised.
    """
    try:
        cleanup()
    except Exception as failure:
        if error is None:
            raise
        error.add_note(f"afterwards the cache was not cleaned up: {failure!r}")


def make_cache(
    cache_type: str | None,
    cache_location: str | os.PathLike[str] | None,
    cache_size_limit: float | None,
    cache_row_size_estimate: float | None,
    cache_extra_settings: Mapping[str, Any] | None,
) -> ChunkCache | None:
    """Return the cache that these arguments of a reader select, or None. Touches no disk.

    With "local-disk" everything else may be left out: the user's cache folder, a fifth of the free disk. What is kept
    stays for the next run unless `cache_extra_settings={"cleanup": True}` is given. "memory" takes the size
    limit only.

    Raises:
        PlanError: (a ValueError) another type, or arguments that do not fit it.
    """
    settings = dict(cache_extra_settings or {})
    if cache_type is None or cache_type == NULL_CACHE:
        return None
    if cache_type == LOCAL_DISK_CACHE:
        from penstock.petastorm.local_disk_cache import LocalDiskCache

        settings.setdefault("cleanup", False)
        return LocalDiskCache(cache_location, cache_size_limit, cache_row_size_estimate, **settings)
    if cache_type == MEMORY_CACHE:
        if cache_location is not None:
            raise PlanError(f"cache_type='memory' has no place on disk; leave out cache_location={cache_location!r}")
        if settings or cache_row_size_estimate is not None:
            raise PlanError(
                "cache_type='memory' takes cache_size_limit only; leave out cache_row_size_estimate and "
                "cache_extra_settings"
            )
        return MemoryCache() if cache_size_limit is None else MemoryCache(cache_size_limit)
    raise PlanError(f"Unknown cache_type {cache_type!r}; use None, 'null', 'local-disk' or 'memory'")
