"""Read and write files on remote stores, by few requests that run in parallel and are repeated after faults.

`RemoteStore` implements `Store` over any `pyarrow.fs` filesystem. `coalesce` merges neighbouring ranges, long ones are
split; `open_ranges` makes a file for pyarrow's readers of ranges that are in memory already.
"""

# ruff: noqa: D102 -- `Store` describes the methods of `RemoteStore`

from __future__ import annotations

import bisect
import inspect
import io
import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyarrow.fs import FileType

from penstock.errors import PenstockError
from penstock.halt import inherited
from penstock.storage.fault_kinds import fault_of
from penstock.storage.faults import T, attempt
from penstock.storage.store import FileSystemStore, Range, Stat, Tail, file_changed
from penstock.storage.urls import url_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyarrow import Buffer


MAX_GAP_BYTES = 16 << 10
"""Bytes between two ranges are read too up to this size: a second request costs more."""
MAX_FETCH_BYTES = 32 << 20
"""Ranges are merged up to this size: all bytes of a request stay in memory until the last range of it is used."""
SPLIT_BYTES = 16 << 20
"""A longer range is read by several requests at once: one connection to a store gives some 100 MB/s."""
_THREADS = 8
"""Requests of one call that run at the same time."""

_TAGS = (
    "ETag", "etag", "e_tag", "md5Hash", "md5", "generation", "version_id", "VersionId", "LastModified",
    "Last-Modified", "last_modified", "modified", "mtime", "updated", "created",
)  # fmt: skip
"""Names that stores give to what changes when a file does; times of reading are not among them."""


class RemoteStore(FileSystemStore):
    """A store over any `pyarrow.fs` filesystem but local disks, those that wrap fsspec included."""

    __slots__ = ()

    def url(self, path: str) -> str:
        return url_of(self.fs, path)

    def stat(self, path: str) -> Stat:
        return self._request(path, lambda: self._stat(path))

    @property
    def can_list(self) -> bool:
        protocol = getattr(self._fsspec, "protocol", ())
        return not {"http", "https"} & ({protocol} if isinstance(protocol, str) else set(protocol))

    def create(self, path: str, data: bytes | Buffer) -> bool:
        """See `Store`; only with fsspec's clients that have conditional writes."""
        try:
            if self._fsspec is not None and "mode" in inspect.signature(self._fsspec.pipe_file).parameters:
                # Not repeated: after a lost answer the file would be taken for another process's.
                self._fsspec.pipe_file(path, bytes(data), mode="create")
            else:
                raise NotImplementedError(f"{self.fs.type_name} has no operation that only creates a file")
        except FileExistsError:
            return False
        return True

    def native_file(self, path: str) -> None:
        """Return None: pyarrow would wait for the network with each small read."""

    def read_tail(self, path: str, num_bytes: int) -> Tail:
        return self._request(path, lambda: self._tail(path, num_bytes))

    def read_ranges(self, path: str, ranges: Sequence[Range], *, version: str | None = None) -> list[Buffer]:
        """See `Store`. Requests run in parallel."""
        fetches = coalesce(ranges, max_gap_bytes=MAX_GAP_BYTES, max_fetch_bytes=MAX_FETCH_BYTES)
        parts = [_split(fetch.start, fetch.stop) for fetch in fetches]
        requests = [part for split in parts for part in split]

        def read(part: Range) -> Buffer:
            return self._request(path, lambda: self._read(path, part, version))

        if len(requests) < 2:
            data = iter([read(part) for part in requests])
        else:
            with ThreadPoolExecutor(min(len(requests), _THREADS)) as pool:
                data = iter(list(pool.map(inherited(read), requests)))
        found: list[Buffer] = [None] * len(ranges)
        for fetch, split in zip(fetches, parts, strict=True):
            bodies = [next(data) for _ in split]
            whole = bodies[0] if len(bodies) == 1 else pa.py_buffer(b"".join(bodies))
            for index in fetch.members:
                start, stop = ranges[index]
                found[index] = whole.slice(start - fetch.start, stop - start)
        if version is not None and not self._tells_when_opened and self.stat(path).version != version:
            raise file_changed(self, path)
        return found

    def _request(self, path: str, request: Callable[[], T]) -> T:
        """Make a request for plain bytes or facts, again if need be."""

        def plain() -> T:
            try:
                return request()
            except (
                PenstockError,
                FileExistsError,
                FileNotFoundError,
                IsADirectoryError,
                NotADirectoryError,
                ValueError,
            ):
                raise
            except Exception as error:
                fault = fault_of(error)
                if fault == "gone":
                    raise FileNotFoundError(f"{path} is not there: {error}") from error
                if fault == "changed":
                    raise file_changed(self, path, f"the store answered: {error}") from error
                if fault is None and isinstance(error, OSError):
                    # Nothing is decoded here: any other error, such as a full disk of a local copy, is not of the data.
                    raise ConnectionError(f"{type(error).__name__}: {error}") from error
                raise

        return attempt(plain, self.url(path))

    @property
    def _tells_when_opened(self) -> bool:
        """Whether opening a file asks for its metadata, so that the version costs no second request."""
        return self.fs.type_name in ("s3", "gcs", "abfs")

    @property
    def _fsspec(self) -> Any:
        behind = getattr(getattr(self.fs, "handler", None), "fs", None)
        return behind if hasattr(behind, "cat_file") else None

    def _stat(self, path: str) -> Stat:
        if self._tells_when_opened:
            with self.fs.open_input_file(path) as stream:
                return _stat_of(stream)
        if self._fsspec is not None:
            told = self._fsspec.info(path)
            if told.get("type") == "directory":
                raise FileNotFoundError(f"{path} is a folder")
            tags = " ".join(f"{name}={told[name]}" for name in _TAGS if told.get(name) is not None)
            return Stat(told.get("size"), tags)
        info = self.fs.get_file_info(path)
        if info.type != FileType.File:
            raise FileNotFoundError(f"{path} is not there")
        return Stat(info.size, "" if info.mtime_ns is None else f"mtime={info.mtime_ns}")

    def _tail(self, path: str, num_bytes: int) -> Tail:
        before = None if self._tells_when_opened else self._stat(path)
        if self._fsspec is not None and before is not None and before.size is not None:
            start = max(0, before.size - num_bytes)
            return Tail(bytes(self._read(path, (start, before.size), None)), before.size, before.version)
        with self.fs.open_input_file(path) as stream:
            size, version = int(stream.size()), (before or _stat_of(stream)).version
            return Tail(stream.read_at(min(size, num_bytes), max(0, size - num_bytes)), size, version)

    def _read(self, path: str, part: Range, version: str | None) -> Buffer:
        """Make one request."""
        start, stop = part
        if self._fsspec is not None:  # not opened: fsspec's files read ahead by megabytes
            data = pa.py_buffer(self._fsspec.cat_file(path, start=start, end=stop))
            size = None
        else:
            with self.fs.open_input_file(path) as stream:
                if version is not None and self._tells_when_opened and _stat_of(stream).version != version:
                    raise file_changed(self, path)
                stream.seek(start)
                data, size = stream.read_buffer(stop - start), int(stream.size())
        if data.size != stop - start:
            size = self._stat(path).size if size is None else size
            if size is not None and size < stop:
                raise file_changed(self, path, f"it ends at byte {size}, where bytes {start} to {stop} were wanted")
            raise ConnectionError(f"{data.size} bytes came where {stop - start} were requested")
        return data


def _stat_of(stream: Any) -> Stat:
    told = {name.decode(): value for name, value in (stream.metadata() or {}).items()}
    return Stat(int(stream.size()), " ".join(f"{name}={told[name]!r}" for name in _TAGS if name in told))


def _split(start: int, stop: int) -> list[Range]:
    """Cut a range into requests of about the same length."""
    count = max(1, -(-(stop - start) // SPLIT_BYTES))
    edges = [start + (stop - start) * number // count for number in range(count + 1)]
    return list(itertools.pairwise(edges))


class Fetch(NamedTuple):
    """One read, and which of the ranges asked for lie in it."""

    start: int
    stop: int
    members: tuple[int, ...]
    """Indices of the ranges, by their place in the file."""


def coalesce(ranges: Sequence[Range], *, max_gap_bytes: int, max_fetch_bytes: int) -> list[Fetch]:
    """Return the reads that cover all ranges, in the order of the file; every range lies in exactly one.

    Ranges at most `max_gap_bytes` apart (or overlapping) are read together, unless that makes a read of more than
    `max_fetch_bytes`; a range that is larger by itself stays whole.

    >>> coalesce([(10, 20), (0, 10), (90, 99)], max_gap_bytes=5, max_fetch_bytes=100)
    [Fetch(start=0, stop=20, members=(1, 0)), Fetch(start=90, stop=99, members=(2,))]
    """
    found: list[Fetch] = []
    for index in sorted(range(len(ranges)), key=ranges.__getitem__):
        start, stop = ranges[index]
        last = found[-1] if found else None
        if last is not None and start - last.stop <= max_gap_bytes:
            end = max(stop, last.stop)
            if end - last.start <= max_fetch_bytes:
                found[-1] = Fetch(last.start, end, (*last.members, index))
                continue
        found.append(Fetch(start, stop, (index,)))
    return found


def open_ranges(held: Mapping[int, Buffer], size: int, fetch: Callable[[Range], Buffer]) -> pa.PythonFile:
    """Return a file of `size` bytes to be read by one thread and closed.

    `held` has ranges by their start. Each is handed over once, without a copy, and forgotten: pyarrow reads a column
    chunk once. `fetch` returns other ranges.
    """
    return pa.PythonFile(_RangeFile(dict(held), size, fetch), mode="r")


class _RangeFile(io.RawIOBase):
    def __init__(self, held: dict[int, Buffer], size: int, fetch: Callable[[Range], Buffer]) -> None:
        super().__init__()
        self._held, self._size, self._fetch = held, size, fetch
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
        return self._fetch((start, stop))

    def seek(self, position: int, whence: int = 0) -> int:
        self._position = {0: 0, 1: self._position, 2: self._size}[whence] + position
        return self._position

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._held.clear()
        super().close()
