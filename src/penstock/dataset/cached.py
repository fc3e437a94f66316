"""Read column chunks through a cache: the bytes of each, as stored, under a key that says exactly what they are.

`read` opens a row group here when the dataset has a cache. The footer tells where the column chunks lie; those that
the cache has come from it, neighbours among the others are read together and kept. What pyarrow gets is a file that
has these bytes at hand; should it ask for others, they come from the source. A file is looked at once before its first
bytes are used, so that a file written again is never mixed up with its predecessor. Decodes nothing.
"""

from __future__ import annotations

import bisect
import hashlib
import io
import threading
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow.fs import LocalFileSystem

from penstock.dataset.read import FileTouched
from penstock.storage.file_version import version_of
from penstock.storage.ranges import coalesce

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.dataset.read import RowGroup
    from penstock.storage.cache import ChunkCache

    Buffer = Any

MAX_GAP_BYTES = 16 << 10
"""Columns between two that are wanted are read over up to this size: a second round trip costs more."""
MAX_FETCH_BYTES = 32 << 20
"""Neighbours are joined up to this size; all bytes of a read stay in memory until the last column of it is decoded."""


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of a file since it was looked at."""

    digest: bytes
    """Of place, size, version and footer."""
    version: str
    paths: tuple[str, ...]
    """Dotted path of every column."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The column chunks of one read, in the order of the columns."""

    keys: list[str]
    ranges: list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class CachedFiles:
    """Opens the files of one dataset through a cache; safe for threads."""

    cache: ChunkCache
    _known: dict[int, _Known] = field(default_factory=dict)
    _paths: dict[tuple[str, ...], tuple[str, ...]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def open(self, group: RowGroup, names: Sequence[str]) -> Any:
        """Return a file that has these columns of the row group at hand, to be read by pyarrow and closed.

        Opens the source only if the cache lacks one of them.

        Raises:
            FileChanged: the file is not the one that was opened.
            FileTouched: it was touched or written again meanwhile.
            OSError: it cannot be read, or is gone.
        """
        wanted = self._wanted(group, names)
        source = _Source(group, self._look(group).version)
        try:
            data = self.cache.fetch(wanted.keys, lambda missing: source.read([wanted.ranges[i] for i in missing]))
        except BaseException as error:
            source.close()
            if isinstance(error, FileTouched):
                self._known.pop(id(group.file), None)
            raise
        held = {start: buffer for (start, _), buffer in zip(wanted.ranges, data, strict=True)}
        return pa.PythonFile(_HeldFile(held, source, group.size), mode="r")

    def forget(self, group: RowGroup, names: Sequence[str]) -> None:
        """Drop these columns of the row group from the cache: they could not be decoded."""
        for key in self._wanted(group, names).keys:
            self.cache.drop(key)

    def _wanted(self, group: RowGroup, names: Sequence[str]) -> _Wanted:
        known = self._look(group)
        chunks = group.footer.chunks
        wanted = _Wanted([], [])
        for index in _leaves(known.paths, tuple(names)):
            start, stop = chunks.range_of(group.index, index)
            if 0 <= start < stop <= group.size:  # else the footer is damaged, as pyarrow will say
                place = f"{group.index}:{start}:{stop}:{known.paths[index]}".encode("utf-8", "surrogateescape")
                wanted.keys.append(hashlib.blake2b(known.digest + place, digest_size=16).hexdigest())
                wanted.ranges.append((start, stop))
        return wanted

    def _look(self, group: RowGroup) -> _Known:
        """Return what tells this file from all others; asks the store once for each file."""
        known = self._known.get(id(group.file))  # the dataset holds its files as long as this object
        if known is None:
            known = self._known[id(group.file)] = self._identify(group)
        return known

    def _identify(self, group: RowGroup) -> _Known:
        fs, path = group.file.root.fs, group.file.path
        size, version = version_of(fs, path)
        if size is not None and size != group.size:
            raise group.resized(size)
        digest = hashlib.blake2b(digest_size=16)
        place = f"{fs.type_name}://{path}".encode("utf-8", "surrogateescape")
        for part in (place, str(group.size).encode(), version.encode(), group.footer.raw):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
        paths = tuple(leaf.path for leaf in group.footer.chunks.leaves)
        with self._lock:
            return _Known(digest.digest(), version, self._paths.setdefault(paths, paths))


@lru_cache(maxsize=64)
def _leaves(paths: tuple[str, ...], names: tuple[str, ...]) -> tuple[int, ...]:
    """Return the leaves of these columns: of a struct or list, all that lie below it."""
    prefixes = tuple(f"{name}." for name in names)
    return tuple(index for index, path in enumerate(paths) if f"{path}.".startswith(prefixes))


class _Source:
    """The file itself, opened when something is read from it."""

    def __init__(self, group: RowGroup, version: str) -> None:
        self._group = group
        self._version = version
        self._stream: Any = None

    def read(self, ranges: Sequence[tuple[int, int]]) -> list[Buffer]:
        """Return the bytes of each range; neighbours come in one read, as slices of it."""
        found: list[Buffer] = [None] * len(ranges)
        for fetch in coalesce(ranges, max_gap_bytes=MAX_GAP_BYTES, max_fetch_bytes=MAX_FETCH_BYTES):
            data = self.read_at(fetch.start, fetch.stop)
            for index in fetch.members:
                start, stop = ranges[index]
                found[index] = data.slice(start - fetch.start, stop - start)
        self._check_unchanged()
        return found

    def read_at(self, start: int, stop: int) -> Buffer:
        """Return the bytes from `start` to `stop`.

        Raises:
            EOFError: the file ends before.
        """
        if self._stream is None:
            self._stream = self._group.open()
        self._stream.seek(start)
        data = self._stream.read_buffer(stop - start)
        if data.size != stop - start:
            raise EOFError(f"bytes {start} to {stop} were wanted, {data.size} of them came")
        return data

    def _check_unchanged(self) -> None:
        """Keep nothing of a file that was written again since its footer was read, or since its version was asked."""
        self._group.check(self._stream)
        file = self._group.file
        if isinstance(file.root.fs, LocalFileSystem) and version_of(file.root.fs, file.path)[1] != self._version:
            raise FileTouched(file.path)

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()


class _HeldFile(io.RawIOBase):
    """A file of which some ranges are at hand; each is handed over once, without a copy, and forgotten."""

    def __init__(self, held: dict[int, Buffer], source: _Source, size: int) -> None:
        super().__init__()
        self._held, self._source, self._size = held, source, size
        self._starts = sorted(held)
        self._position = 0

    def read(self, size: int | None = -1) -> Any:
        start = self._position
        stop = self._size if size is None or size < 0 else min(start + size, self._size)
        self._position = max(start, stop)
        return self._take(start, stop) if stop > start else b""

    def _take(self, start: int, stop: int) -> Buffer:
        whole = self._held.get(start)
        if whole is not None and whole.size == stop - start:
            return self._held.pop(start)
        near = bisect.bisect_right(self._starts, start) - 1
        if near >= 0:
            first = self._starts[near]
            data = self._held.get(first)
            if data is not None and stop <= first + data.size:
                return data.slice(start - first, stop - start)
        return self._source.read_at(start, stop)

    def seek(self, position: int, whence: int = 0) -> int:
        base = {0: 0, 1: self._position, 2: self._size}[whence]
        self._position = base + position
        return self._position

    def tell(self) -> int:
        return self._position

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        if not self.closed:
            self._held.clear()
            self._source.close()
        super().close()
