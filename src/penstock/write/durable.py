"""What has to outlive a crash of the machine: small files that appear whole, and files and folders forced to disk.

Used by `journal`, `stage` and `finish`. On the local filesystem a small file is written beside its place, forced to
disk and renamed; a store shows an object only when it is complete, and has nothing to force. Knows no dataset.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow.fs import FileType, LocalFileSystem

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    FileSystem = Any  # pyarrow.fs.FileSystem: pyarrow ships no types

CANNOT = (OSError, NotImplementedError, pa.ArrowException)
"""What filesystems raise where something is not there or not possible."""


def put_json(fs: FileSystem, path: str, value: Mapping[str, Any]) -> None:
    """Write a JSON object so that readers see all of it or none; durable when this returns."""
    text = json.dumps(value).encode()
    if not isinstance(fs, LocalFileSystem):
        with fs.open_output_stream(path) as sink:
            sink.write(text)
        return
    hidden = f"{path}.writing"
    with open(hidden, "wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(hidden, path)
    sync_folders(fs, [os.path.dirname(path)])


def sync_file(fs: FileSystem, path: str) -> None:
    """Force a closed file to disk, where the filesystem is the local one."""
    if isinstance(fs, LocalFileSystem):
        file = os.open(path, os.O_RDWR)
        try:
            os.fsync(file)
        finally:
            os.close(file)


def sync_folders(fs: FileSystem, paths: Iterable[str]) -> None:
    """Force the names in local folders to disk; systems that cannot open a folder (Windows) keep them by themselves."""
    if not isinstance(fs, LocalFileSystem):
        return
    for path in paths:
        with contextlib.suppress(OSError):
            folder = os.open(path, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)


def remove(fs: FileSystem, path: str) -> None:
    """Remove a folder or file if it is there; a leftover is better than hiding the error that led here."""
    with contextlib.suppress(*CANNOT):
        kind = fs.get_file_info(path).type
        if kind == FileType.File:
            fs.delete_file(path)
        elif kind == FileType.Directory:
            fs.delete_dir(path)


class Lock:
    """Says that a process is at work in a local folder; the system takes it back when the process dies.

    Stores have no locks, and neither has Windows here: `take` succeeds there whatever others do.
    """

    def __init__(self, fs: FileSystem, folder: str) -> None:
        self._path = os.path.join(folder, "lock") if isinstance(fs, LocalFileSystem) else None
        self._file: int | None = None

    def __enter__(self) -> bool:
        """Take the lock; tells whether it is surely ours, which it is not where there are no locks."""
        return self.take() and self._file is not None

    def __exit__(self, *_: object) -> None:
        self.give_back()

    def take(self) -> bool:
        """Take the lock, or tell that another writer has it; a folder that is not there is made."""
        if self._path is None or self._file is not None:
            return True
        try:
            import fcntl
        except ImportError:  # Windows
            return True
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        file = os.open(self._path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        except OSError:  # a filesystem without locks
            os.close(file)
            return True
        self._file = file
        return True

    def give_back(self) -> None:
        """Let others have it; twice does no harm."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
