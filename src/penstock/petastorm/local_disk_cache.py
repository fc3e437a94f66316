"""Petastorm's `LocalDiskCache`: its arguments, on the cache of this library.

A reader given one (or the arguments that make one) keeps column chunks in it. Used directly, `get` stores plain
values. Unlike Petastorm's it deletes only files that it has written, never the folder's other contents, and never
executes code from a file in the folder.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import struct
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from penstock.errors import PenstockWarning, PlanError
from penstock.petastorm.cache import CacheBase
from penstock.storage.disk_cache import DiskCache, Eviction

if TYPE_CHECKING:
    import os
    from collections.abc import Callable


__all__ = ["LocalDiskCache"]

_EVICTIONS = {
    "none": "none",
    "least-recently-stored": "lru",
    "least-recently-used": "lru",
    "least-frequently-used": "lru",
}
_ROWS_PER_SHARD = 5


class LocalDiskCache(DiskCache, CacheBase):
    """A cache in a folder, for any number of processes at once.

    Args:
        path: Folder; files that are in it already are left alone. None: the user's cache folder.
        size_limit_bytes: Most bytes on disk. None: a fifth of what is free.
        expected_row_size_bytes: Size of what is stored at once; checked against the limit as Petastorm does. None: not.
        shards: Only counts in that check; there are no shards here.
        cleanup: Whether `cleanup()` deletes what this object has stored; nothing else is ever deleted.
        settings: `eviction_policy`: "none" stores while there is room; Petastorm's three others drop the longest
            unused; without it, only what was not used since this object was made is dropped. Other settings of
            diskcache are accepted and have no effect.

    Raises:
        PlanError: (a ValueError) the limit is too small for the rows, or a policy is unknown.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        size_limit_bytes: float | None,
        expected_row_size_bytes: float | None,
        shards: int = 6,
        cleanup: bool = True,
        **settings: Any,
    ) -> None:
        eviction = _eviction(settings)
        super().__init__(path, size_limit_bytes, eviction=eviction)
        if eviction != "none" and size_limit_bytes is not None and expected_row_size_bytes is not None:
            least = _ROWS_PER_SHARD * expected_row_size_bytes * shards
            if size_limit_bytes < least:
                raise PlanError(
                    f"the opposite of Condition 'size_limit_bytes / shards < {_ROWS_PER_SHARD} * "
                    f"expected_row_size_bytes' needs to hold: a cache of {size_limit_bytes} bytes is too small for "
                    f"rows of {expected_row_size_bytes} bytes in {shards} shards; give at least {least} bytes, or "
                    "eviction_policy='none' to store only while there is room"
                )
        self._cleanup = cleanup

    def __reduce__(self) -> Any:
        policies: dict[str, Any] = {"none": "none", "lru": "least-recently-used"}
        settings = {"eviction_policy": policies[self.eviction]} if self.eviction in policies else {}
        made = partial(LocalDiskCache, cleanup=self._cleanup, **settings)
        return made, (self.path, self._limit, None)

    def get(self, key: str, fill_cache_func: Callable[[], Any]) -> Any:
        """Return the value of `key`, from the folder or from `fill_cache_func`, whose value is then kept.

        Kept are None, numbers, text, bytes, NumPy arrays and scalars, and lists, tuples and dicts of them; values of
        other kinds are computed each time.
        """
        name = hashlib.blake2b(f"value:{key}".encode(), digest_size=16).hexdigest()
        stored = self.load(name)
        if stored is not None:
            try:
                return _unpack(stored)
            except Exception:  # noqa: BLE001 -- complete, but not written by us: ignored
                self.drop(name)
        value = fill_cache_func()
        packed = _pack(value)
        if packed is not None:
            self.store(name, packed)
        return value

    def cleanup(self) -> None:
        """Delete what this object has stored, if it was made with `cleanup=True`; folders of ours go when empty."""
        if self._cleanup:
            self.clear_own()


def _eviction(settings: dict[str, Any]) -> Eviction:
    policy = settings.pop("eviction_policy", None)
    if settings:
        warnings.warn(
            f"the cache is not diskcache's any more; these settings have no effect: {', '.join(sorted(settings))}",
            PenstockWarning,
            stacklevel=3,
        )
    if policy is None:
        return "idle"
    if policy not in _EVICTIONS:
        raise PlanError(f"eviction_policy must be one of {', '.join(map(repr, _EVICTIONS))}; got {policy!r}")
    return cast("Eviction", _EVICTIONS[policy])


# -- plain values, as JSON followed by blocks of bytes: a pickle could execute code ----------------------------------


class _NotPlain(Exception):
    """A value of another kind."""


def _pack(value: Any) -> Any:
    """Return the value as bytes, or None if it is of another kind."""
    blocks: list[Any] = []
    try:
        tree = json.dumps(_describe(value, blocks)).encode()
    except (_NotPlain, RecursionError):
        return None
    sizes = [len(tree), *(memoryview(block).nbytes for block in blocks)]
    head = struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
    return pa.py_buffer(b"".join([head, tree, *blocks]))


def _describe(value: Any, blocks: list[Any]) -> list[Any]:
    """Return a value as JSON; bytes and arrays are appended to `blocks`."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return ["json", value]
    if kind is bytes:
        blocks.append(value)
        return ["bytes", len(blocks)]
    if kind in (list, tuple):
        return [kind.__name__, [_describe(one, blocks) for one in value]]
    if kind is dict:
        return ["dict", [[_describe(key, blocks), _describe(one, blocks)] for key, one in value.items()]]
    if (kind is np.ndarray or isinstance(value, np.generic)) and value.dtype.kind in "biufcmMSU":
        blocks.append(value.tobytes())
        return ["array" if kind is np.ndarray else "scalar", value.dtype.str, list(value.shape), len(blocks)]
    raise _NotPlain(kind.__name__)


def _unpack(stored: Any) -> Any:
    """Return the value; any error means that these bytes were not written by us."""
    view = memoryview(stored)
    count = struct.unpack_from("<I", view)[0]
    sizes = struct.unpack_from(f"<{count}Q", view, 4)
    ends = list(itertools.accumulate(sizes, initial=4 + 8 * count))
    blocks = [view[start:end] for start, end in itertools.pairwise(ends)]
    return _build(json.loads(bytes(blocks[0])), blocks)


def _build(tree: list[Any], blocks: list[memoryview]) -> Any:
    kind, what, *more = tree
    if kind == "json":
        return what
    if kind == "bytes":
        return bytes(blocks[what])
    if kind == "dict":
        return {_build(key, blocks): _build(one, blocks) for key, one in what}
    if kind in ("list", "tuple"):
        built = [_build(one, blocks) for one in what]
        return built if kind == "list" else tuple(built)
    shape, number = more
    array = np.frombuffer(blocks[number], np.dtype(what)).reshape(shape).copy()  # objects are refused by frombuffer
    return array if kind == "array" else array[()]
