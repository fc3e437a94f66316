"""Filesystems for tests: one records what is read, one is as slow as an object store, one fails as a store does.

They wrap any `pyarrow.fs` filesystem (the local one by default) and go to `penstock.open(..., filesystem=fs)`. They
change no byte. The handlers may be used from many threads at once; pyarrow calls them with the GIL held, so
their own cost is negligible unless a delay is requested.
"""

from __future__ import annotations

import io
import random
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem as LocalFsspec
from pyarrow.fs import FileSelector, FileSystemHandler, LocalFileSystem, PyFileSystem

if TYPE_CHECKING:
    from collections.abc import Callable

    FileSystem = Any  # pyarrow.fs.FileSystem: pyarrow ships no types


@dataclass(slots=True)
class Reads:
    """What was read through a recording filesystem; safe to look at while it is in use."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _opened: list[str] = field(default_factory=list)
    _ranges: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))

    def add_open(self, path: str) -> None:
        """Note that a file was opened for reading."""
        with self._lock:
            self._opened.append(path)

    def add_range(self, path: str, start: int, stop: int) -> None:
        """Note that bytes `start` to `stop - 1` of a file were read, if there are any."""
        if stop > start:
            with self._lock:
                self._ranges[path].append((start, stop))

    @property
    def opened(self) -> list[str]:
        """Paths opened for reading, in order, once for each opening."""
        with self._lock:
            return list(self._opened)

    @property
    def paths(self) -> set[str]:
        """Files of which at least one byte was read."""
        with self._lock:
            return {path for path, ranges in self._ranges.items() if ranges}

    def ranges(self, path: str) -> list[tuple[int, int]]:
        """Return the (start, stop) byte ranges read of a file, in the order of reading, repeats included."""
        with self._lock:
            return list(self._ranges.get(path, ()))

    def touched(self, path: str, start: int, stop: int) -> bool:
        """Tell whether any byte from `start` to `stop - 1` of a file was read."""
        return any(first < stop and start < last for first, last in self.ranges(path))

    @property
    def num_bytes(self) -> int:
        """Bytes read, those read twice counted twice."""
        with self._lock:
            return sum(stop - start for ranges in self._ranges.values() for start, stop in ranges)

    @property
    def num_reads(self) -> int:
        """Number of reads: round trips if it were a store."""
        with self._lock:
            return sum(map(len, self._ranges.values()))

    def clear(self) -> None:
        """Forget everything recorded so far, for example after opening."""
        with self._lock:
            self._opened.clear()
            self._ranges.clear()


class _Passing(FileSystemHandler):  # type: ignore[misc] # pyarrow ships no types
    """Passes everything on to another filesystem, after a call of the hook for the kind of request.

    Files are looked up or listed (`look`), opened for reading (`open`), read (`read`: path, start and stop, which is at
    most the size of the file), written or deleted (`change`).
    """

    def __init__(self, base: FileSystem | None, name: str = "passing", **hooks: Callable[..., None]) -> None:
        self.base, self.name, self._hooks = base or LocalFileSystem(), name, hooks

    def _before(self, kind: str, path: str, *span: int) -> None:
        if kind in self._hooks:
            self._hooks[kind](path, *span)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def get_type_name(self) -> str:
        return f"{self.name}+{self.base.type_name}"

    def normalize_path(self, path: str) -> str:
        return str(self.base.normalize_path(path))

    def get_file_info(self, paths: list[str]) -> Any:
        for path in paths[:1]:
            self._before("look", path)
        return self.base.get_file_info(paths)

    def get_file_info_selector(self, selector: Any) -> Any:
        self._before("look", selector.base_dir)
        plain = FileSelector(selector.base_dir, allow_not_found=selector.allow_not_found, recursive=selector.recursive)
        return self.base.get_file_info(plain)

    def create_dir(self, path: str, recursive: bool) -> None:
        self.base.create_dir(path, recursive=recursive)

    def delete_dir(self, path: str) -> None:
        self.base.delete_dir(path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        self.base.delete_dir_contents(path, missing_dir_ok=missing_dir_ok)

    def delete_root_dir_contents(self) -> None:
        self.base.delete_dir_contents("/", accept_root_dir=True)

    def delete_file(self, path: str) -> None:
        self._before("change", path)
        self.base.delete_file(path)

    def move(self, src: str, dest: str) -> None:
        self.base.move(src, dest)

    def copy_file(self, src: str, dest: str) -> None:
        self.base.copy_file(src, dest)

    def open_input_stream(self, path: str) -> Any:
        return self.open_input_file(path)

    def open_input_file(self, path: str) -> Any:
        self._before("open", path)
        return pa.PythonFile(
            _WatchedFile(self.base.open_input_file(path), path, partial(self._before, "read")), mode="r"
        )

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        self._before("change", path)
        return self.base.open_output_stream(path, metadata=metadata)

    def open_append_stream(self, path: str, metadata: Any) -> Any:
        return self.base.open_append_stream(path, metadata=metadata)


class _WatchedFile(io.RawIOBase):
    """A file whose reads are announced; pyarrow seeks and reads under its own lock."""

    def __init__(self, file: Any, path: str, before_read: Callable[[str, int, int], None]) -> None:
        super().__init__()
        self._file, self._path, self._before_read = file, path, before_read
        self._size = int(file.size())

    def read(self, size: int | None = -1) -> bytes:
        start = self.tell()
        stop = self._size if size is None or size < 0 else min(start + size, self._size)
        self._before_read(self._path, start, stop)
        return bytes(self._file.read(max(stop - start, 0)))

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, position: int, whence: int = 0) -> int:
        return int(self._file.seek(position, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def size(self) -> int:
        return self._size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


class ServerError(Exception):
    """An answer of a store with an HTTP status, as clients of stores raise it; `status` is 503 unless given."""

    def __init__(self, message: str = "Service Unavailable", *, status: int = 503) -> None:
        super().__init__(message)
        self.status = status


class TransientFaults:
    """Decides at random which requests fail: with a time-out, a lost connection or the HTTP status 503.

    Equal seeds give equal decisions to equal sequences of requests. Safe for threads.
    """

    num_raised: int
    """Faults so far."""

    def __init__(self, rate: float, *, seed: int = 0) -> None:
        self.rate = rate
        self.num_raised = 0
        self._random = random.Random(seed)
        self._lock = threading.Lock()

    def __call__(self, path: str) -> Exception | None:
        """Return the error that a request for a path ends with, or None."""
        with self._lock:
            if self._random.random() >= self.rate:
                return None
            self.num_raised += 1
            kinds: list[type[Exception]] = [TimeoutError, ConnectionResetError, ServerError]
            return self._random.choice(kinds)(f"request for {path} failed")


class FaultyFileSystem(PyFileSystem):  # type: ignore[misc] # pyarrow ships no types
    """A filesystem whose requests (openings, reads, looks, listings, deletions) may fail.

    `fault` is called with the path before each request, by any thread, and returns the error to raise, or None.

    >>> fs = FaultyFileSystem(fault=TransientFaults(0.1, seed=1))
    >>> ds = penstock.open("/data/digits", filesystem=fs)
    """

    def __init__(self, base: FileSystem | None = None, *, fault: Callable[[str], Exception | None]) -> None:

        def request(path: str, *_: int) -> None:
            error = fault(path)
            if error is not None:
                raise error

        super().__init__(_Passing(base, "faulty", look=request, open=request, read=request, change=request))


class FaultyFsspec(LocalFsspec):  # type: ignore[misc] # fsspec ships no types
    """The local disk as an fsspec store whose requests (looks, listings, reads, openings) may fail.

    `fault` as for `FaultyFileSystem`. Like the clients of stores, and unlike fsspec's local filesystem, it answers
    `exists`, `isdir` and `isfile` by a request.

    >>> ds = penstock.open("/data/digits", filesystem=FaultyFsspec(fault=TransientFaults(0.1, seed=1)))
    """

    protocol, cachable = "faulty", False
    exists, isdir, isfile = AbstractFileSystem.exists, AbstractFileSystem.isdir, AbstractFileSystem.isfile

    def __init__(self, *, fault: Callable[[str], Exception | None]) -> None:
        super().__init__(auto_mkdir=True)
        self._fault = fault

    def _request(self, path: str) -> None:
        error = self._fault(self._strip_protocol(path))
        if error is not None:
            raise error

    def info(self, path: str, **more: Any) -> Any:
        """See fsspec."""
        self._request(path)
        return super().info(path, **more)

    def ls(self, path: str, detail: bool = False, **more: Any) -> Any:
        """See fsspec."""
        self._request(path)
        return LocalFsspec().ls(path, detail=detail, **more)  # by one request; super() looks up each name by `info`

    def _open(self, path: str, mode: str = "rb", **more: Any) -> Any:
        self._request(path)
        return super()._open(path, mode, **more)


class RecordingFileSystem(PyFileSystem):  # type: ignore[misc] # pyarrow ships no types
    """A filesystem that notes which files are opened and which byte ranges are read.

    >>> fs = RecordingFileSystem()
    >>> ds = penstock.open("/data/digits", filesystem=fs)
    >>> fs.reads.clear()                                    # forget the footers
    >>> ds[0]
    >>> fs.reads.num_bytes, fs.reads.ranges("/data/digits/part-000000.parquet")
    """

    reads: Reads
    """What was read so far."""

    def __init__(self, base: FileSystem | None = None) -> None:
        self.reads = Reads()
        super().__init__(_Passing(base, "recording", open=self.reads.add_open, read=self.reads.add_range))


class DelayingFileSystem(PyFileSystem):  # type: ignore[misc] # pyarrow ships no types
    """A filesystem on which every opening, read and listing first takes `latency_s`; threads wait side by side.

    `latency_s=0.03` is one round trip to an object store; `bytes_per_s` bounds each read's own rate as well.
    """

    def __init__(self, base: FileSystem | None = None, *, latency_s: float, bytes_per_s: float | None = None) -> None:

        def wait(_: str, start: int = 0, stop: int = 0) -> None:
            time.sleep(latency_s + ((stop - start) / bytes_per_s if bytes_per_s else 0.0))

        super().__init__(_Passing(base, "delaying", look=wait, open=wait, read=wait))
