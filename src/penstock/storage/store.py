"""Read and write the bytes of files, wherever they are: the interface `Store`, and the store of local disks.

`dataset` reads through a store and never through a filesystem. A store knows paths, byte ranges and versions, and
nothing of Parquet or caches. Stores may wrap stores. `store_of` returns the store of a filesystem: `LocalStore`, or
`remote_store.RemoteStore`.

All methods may be called from several threads. Their errors are of three kinds: `StoreUnavailable` and `StoreRefused`
(see `faults`), and FileNotFoundError or `FileChanged` for a file that is gone or was replaced.
"""

# ruff: noqa: D102 -- `Store` describes the methods of `LocalStore`

from __future__ import annotations

import contextlib
import errno
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pyarrow.fs import FileSystem, LocalFileSystem

from penstock.errors import FileChanged
from penstock.storage.faults import T, attempt
from penstock.storage.filesystem import walk

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyarrow import Buffer, NativeFile

Range = tuple[int, int]
"""Start and stop, in bytes."""
_INODE = " inode="


class Stat(NamedTuple):
    """What a store knows about a file without reading it."""

    size: int | None
    """Bytes; None where the store does not know."""
    version: str
    """Differs for another file at the same path: entity tag or time of writing, on local disks the inode too. Empty if
    the store has neither."""

    @property
    def lasting_version(self) -> str:
        """The version without what differs between hosts that share a file: for cache keys."""
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
        """Return size and version of a file; FileNotFoundError if there is none. Costs one request."""

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
        """Open a file for reading by pyarrow itself if that is faster, as on local disks; None if it is not."""

    def open_output(self, path: str) -> NativeFile:
        """Open a file for writing, replacing one that is there; on object stores it appears when it is closed.

        After a fault nothing is sent again; `write` repeats, for files that fit into memory.
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
    """What stores over a `pyarrow.fs` filesystem have in common."""

    fs: FileSystem

    def _request(self, path: str, request: Callable[[], T]) -> T:
        return attempt(request, path)

    def list_files(self, path: str) -> list[tuple[str, int | None]]:
        return walk(self.fs, path)

    def open_output(self, path: str) -> NativeFile:
        return self._request(path, lambda: self.fs.open_output_stream(path))

    def write(self, path: str, data: bytes | Buffer) -> None:
        def write() -> None:
            with self.fs.open_output_stream(path) as sink:
                sink.write(data)

        self._request(path, write)

    def delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._request(path, lambda: self.fs.delete_file(path))


class LocalStore(FileSystemStore):
    """The files of local disks. Every request is repeated while descriptors or memory are exhausted."""

    __slots__ = ()
    can_list = True

    def url(self, path: str) -> str:
        return path

    def stat(self, path: str) -> Stat:
        return attempt(lambda: _local_stat(path), path)

    def read_ranges(self, path: str, ranges: Sequence[Range], *, version: str | None = None) -> list[Buffer]:
        def read() -> list[Buffer]:
            found = []
            with self.fs.open_input_file(path) as stream:
                size = stream.size()
                for start, stop in ranges:
                    if stop > size:
                        wrong = f"it ends at byte {size}, where bytes {start} to {stop} were wanted"
                        raise file_changed(self, path, wrong)
                    stream.seek(start)
                    found.append(stream.read_buffer(stop - start))
            return found

        data = attempt(read, path)
        if version is not None and self.stat(path).version != version:
            raise file_changed(self, path)
        return data

    def read_tail(self, path: str, num_bytes: int) -> Tail:
        def read() -> Tail:
            version = _local_stat(path).version
            with self.fs.open_input_file(path) as stream:
                size = int(stream.size())
                return Tail(stream.read_at(min(size, num_bytes), max(0, size - num_bytes)), size, version)

        return attempt(read, path)

    def native_file(self, path: str) -> NativeFile | None:
        return attempt(lambda: self.fs.open_input_file(path), path)

    def create(self, path: str, data: bytes | Buffer) -> bool:
        try:
            with attempt(lambda: open(path, "xb"), path) as sink:
                sink.write(data)
        except FileExistsError:
            return False
        return True


def _local_stat(path: str) -> Stat:
    try:
        found = os.stat(path)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise FileNotFoundError(f"{path} is a link to itself") from error
        raise
    if stat.S_ISDIR(found.st_mode):
        raise FileNotFoundError(f"{path} is a folder")
    return Stat(found.st_size, f"mtime={found.st_mtime_ns}{_INODE}{found.st_ino}")


def store_of(fs: FileSystem) -> Store:
    """Return the store of a `pyarrow.fs` filesystem."""
    if isinstance(fs, LocalFileSystem):
        return LocalStore(fs)
    from penstock.storage.remote_store import RemoteStore  # late: it needs this module

    return RemoteStore(fs)


def file_changed(store: Store, path: str, wrong: str = "it was written again while it was read") -> FileChanged:
    """Return the error for a file that was replaced."""
    return FileChanged(f"{store.url(path)} has changed: {wrong}; open the dataset again", path=path)


def has_file(store: Store, path: str) -> bool:
    """Tell whether there is a file at a path. Costs one request."""
    try:
        store.stat(path)
    except FileNotFoundError:
        return False
    return True
