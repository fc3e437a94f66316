"""Read and write the bytes of files, wherever they are: the interface `Store`, and its default over any filesystem.

`dataset` reads through a store and never through a filesystem, so that merging near ranges, splitting long ones,
requests in parallel and repeated attempts are in one place. A store knows paths, byte ranges and versions, and nothing
of Parquet or caches. Stores may wrap stores. `coalesce` says which reads to make for several ranges of a file, and
`open_ranges` makes a file for pyarrow's readers of ranges that are in memory already.

All methods may be called from several threads. Their errors are of three kinds: `StoreUnavailable` and `StoreRefused`
(see `faults`), and FileNotFoundError or `FileChanged` for what is gone or is another file than before.
"""

# ruff: noqa: D102 -- `Store` describes the methods of `FileSystemStore`

from __future__ import annotations

import bisect
import contextlib
import errno
import inspect
import io
import itertools
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import pyarrow as pa
from pyarrow.fs import FileType, LocalFileSystem

from penstock.errors import FileChanged
from penstock.halt import inherited
from penstock.storage.faults import attempt, fault_of
from penstock.storage.filesystem import url_of, walk

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Buffer = Any  # pyarrow.Buffer: pyarrow ships no types
    FileSystem = Any
    NativeFile = Any

T = TypeVar("T")

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
_INODE = " inode="


class Stat(NamedTuple):
    """What a store knows about a file without reading it."""

    size: int | None
    """Bytes; None where the store does not know."""
    version: str
    """Other text for another file at the same path: entity tag or time of writing, on local disks the inode too. Empty
    where the store has nothing of the kind."""

    @property
    def lasting_version(self) -> str:
        """The version without what differs between hosts that see the same file: for keys of a cache."""
        return self.version.partition(_INODE)[0]


class Tail(NamedTuple):
    """The last bytes of a file, and what the file is."""

    data: bytes
    size: int
    version: str


class Store(Protocol):
    """Files by path, on one store."""

    def url(self, path: str) -> str:
        """Return the URL of a path, for messages."""

    @property
    def can_list(self) -> bool:
        """Whether folders can be listed; web servers cannot."""

    def list_files(self, path: str) -> list[tuple[str, int | None]]:
        """Return (relative path, size) of all files below a folder, hidden ones included, in the order of `walk`.

        Raises:
            DatasetNotFound: there is no such folder.
        """

    def stat(self, path: str) -> Stat:
        """Return size and version of a file; FileNotFoundError where there is none. Costs one request."""

    def read_ranges(self, path: str, ranges: Sequence[Range], *, version: str | None = None) -> list[Buffer]:
        """Return the bytes of each range (start, stop), in the order given.

        Near ranges are read by one request and come as slices of its bytes, long ones by several requests.

        Raises:
            FileChanged: the file has another version than `version`, or ends before a range does.
            FileNotFoundError: there is no such file.
        """

    def read_tail(self, path: str, num_bytes: int) -> Tail:
        """Return the last `num_bytes` bytes of a file, all of a shorter one, with its size and its version.

        The version is that of the file before the bytes were read: a file replaced in between counts as changed.
        """

    def native_file(self, path: str) -> NativeFile | None:
        """Open a file for reading by pyarrow itself where that is faster, as on local disks; None where it is not."""

    def open_output(self, path: str) -> NativeFile:
        """Open a file for writing, replacing one that is there; on object stores it appears when it is closed.

        What was written is not sent again after a fault: `write` does that, for files that fit into memory.
        """

    def write(self, path: str, data: bytes | Buffer) -> None:
        """Write a whole file, replacing one that is there. Repeated after a fault."""

    def create(self, path: str, data: bytes | Buffer) -> bool:
        """Write a file only if there is none at the path; return whether this call has written it.

        Of several processes that create the same file at once, one gets True.

        Raises:
            NotImplementedError: the filesystem has no such operation.
        """

    def delete(self, path: str) -> None:
        """Delete a file; one that is not there is no error."""


@dataclass(frozen=True, slots=True)
class FileSystemStore(Store):
    """A store over any `pyarrow.fs` filesystem, those that wrap fsspec included."""

    fs: FileSystem

    def url(self, path: str) -> str:
        return url_of(self.fs, path)

    def stat(self, path: str) -> Stat:
        return self._request(path, lambda: self._stat(path))

    @property
    def can_list(self) -> bool:
        protocol = getattr(self._fsspec, "protocol", ())
        return not {"http", "https"} & ({protocol} if isinstance(protocol, str) else set(protocol))

    def list_files(self, path: str) -> list[tuple[str, int | None]]:
        return walk(self.fs, path)

    def open_output(self, path: str) -> NativeFile:
        return self._request(path, lambda: self.fs.open_output_stream(path))

    def write(self, path: str, data: bytes | Buffer) -> None:
        def write() -> None:
            with self.fs.open_output_stream(path) as sink:
                sink.write(data)

        self._request(path, write)

    def create(self, path: str, data: bytes | Buffer) -> bool:
        """See `Store`; on local disks and with fsspec's clients that have conditional writes."""
        try:
            if self._is_local:
                with attempt(lambda: open(path, "xb"), path) as sink:
                    sink.write(data)
            elif self._fsspec is not None and "mode" in inspect.signature(self._fsspec.pipe_file).parameters:
                # Not repeated: after a lost answer the file would be taken for another process's.
                self._fsspec.pipe_file(path, bytes(data), mode="create")
            else:
                raise NotImplementedError(f"{self.fs.type_name} has no operation that only creates a file")
        except FileExistsError:
            return False
        return True

    def delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._request(path, lambda: self.fs.delete_file(path))

    def native_file(self, path: str) -> NativeFile | None:
        """See `Store`; a file on local disks."""
        return attempt(lambda: self.fs.open_input_file(path), path) if self._is_local else None

    def read_tail(self, path: str, num_bytes: int) -> Tail:
        return self._request(path, lambda: self._tail(path, num_bytes))

    def read_ranges(self, path: str, ranges: Sequence[Range], *, version: str | None = None) -> list[Buffer]:
        """See `Store`. Requests run in parallel except on local disks."""
        fetches = coalesce(ranges, max_gap_bytes=MAX_GAP_BYTES, max_fetch_bytes=MAX_FETCH_BYTES)
        parts = [_split(fetch.start, fetch.stop, whole=self._is_local) for fetch in fetches]
        requests = [part for split in parts for part in split]

        def read(part: Range) -> Buffer:
            return self._request(path, lambda: self._read(path, part, version))

        if len(requests) < 2 or self._is_local:
            data = iter([read(part) for part in requests])
        else:
            with ThreadPoolExecutor(min(len(requests), _THREADS)) as pool:
                data = iter(list(pool.map(inherited(read), requests)))
        found: list[Buffer] = [None] * len(ranges)
        for fetch, split in zip(fetches, parts, strict=True):
            whole = _joined([next(data) for _ in split])
            for index in fetch.members:
                start, stop = ranges[index]
                found[index] = whole.slice(start - fetch.start, stop - start)
        if version is not None and not self._tells_when_opened and self.stat(path).version != version:
            raise self._changed(path)
        return found

    def _request(self, path: str, request: Callable[[], T]) -> T:
        """Make a request for plain bytes or facts, again if need be."""
        if self._is_local:
            return attempt(request, path)

        def plain() -> T:
            try:
                return request()
            except OSError as error:
                # Nothing is decoded here, so that an error without any details is not one of the data either.
                if error.errno is None and type(error) is OSError and fault_of(error) is None:
                    raise ConnectionError(str(error)) from error
                raise

        return attempt(plain, self.url(path))

    @property
    def _is_local(self) -> bool:
        return isinstance(self.fs, LocalFileSystem)

    @property
    def _tells_when_opened(self) -> bool:
        """Whether opening a file asks for its metadata, so that the version costs no second request."""
        return self.fs.type_name in ("s3", "gcs", "abfs")

    @property
    def _fsspec(self) -> Any:
        behind = getattr(getattr(self.fs, "handler", None), "fs", None)
        return behind if hasattr(behind, "cat_file") else None

    def _stat(self, path: str) -> Stat:
        if self._is_local:
            try:
                found = os.stat(path)
            except OSError as error:
                if error.errno == errno.ELOOP:
                    raise FileNotFoundError(f"{path} is a link to itself") from error
                raise
            if stat.S_ISDIR(found.st_mode):
                raise FileNotFoundError(f"{path} is a folder")
            return Stat(found.st_size, f"mtime={found.st_mtime_ns}{_INODE}{found.st_ino}")
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
                    raise self._changed(path)
                stream.seek(start)
                data, size = stream.read_buffer(stop - start), int(stream.size())
        if data.size != stop - start:
            size = self._stat(path).size if size is None else size
            if size is not None and size < stop:
                raise self._changed(path, f"it ends at byte {size}, where bytes {start} to {stop} were wanted")
            raise ConnectionError(f"{data.size} bytes came where {stop - start} were requested")
        return data

    def _changed(self, path: str, wrong: str = "it was written again while it was read") -> FileChanged:
        return FileChanged(f"{self.url(path)} has changed: {wrong}; open the dataset again", path=path)


def has_file(store: Store, path: str) -> bool:
    """Tell whether there is a file at a path. Costs one request."""
    try:
        store.stat(path)
    except FileNotFoundError:
        return False
    return True


def _stat_of(stream: Any) -> Stat:
    told = {name.decode(): value for name, value in (stream.metadata() or {}).items()}
    return Stat(int(stream.size()), " ".join(f"{name}={told[name]!r}" for name in _TAGS if name in told))


def _split(start: int, stop: int, *, whole: bool) -> list[Range]:
    """Cut a range into requests of about the same length."""
    count = 1 if whole else max(1, -(-(stop - start) // SPLIT_BYTES))
    edges = [start + (stop - start) * number // count for number in range(count + 1)]
    return list(itertools.pairwise(edges))


def _joined(parts: list[Buffer]) -> Buffer:
    return parts[0] if len(parts) == 1 else pa.py_buffer(b"".join(parts))


Range = tuple[int, int]
"""Start and stop, in bytes."""


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

    def tell(self) -> int:
        return self._position

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self._held.clear()
        super().close()
