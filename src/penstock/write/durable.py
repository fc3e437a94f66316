"""What has to outlive a crash of the machine: small files that appear whole, and files and folders forced to disk.

Used by `journal`, `stage` and `finish`. On the local filesystem a small file is written beside its place, forced to
disk and renamed; a store shows an object only when it is complete, and has nothing to force. Knows no dataset.

Locks tell what is alive: a process holds the `Lock` of each folder it works in, and the system releases it when the
process dies. Making such a folder together with its lock, and removing folders whose lock nobody holds, are done under
the `mutex` of the folder around them: else a folder could be taken for dead in the moment before its lock is held.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import tempfile
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow.fs import FileType, LocalFileSystem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    FileSystem = Any  # pyarrow.fs.FileSystem: pyarrow ships no types

CANNOT = (OSError, NotImplementedError, pa.ArrowException)
"""What filesystems raise where something is not there or not possible."""
SHUFFLE = ".penstock-shuffle-"
"""Begins the names of folders in which a shuffle lets rows wait for their turn."""
_PATIENCE_S = 10.0
_PAUSE_S = 0.005
_TRIES = 8


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


def claim_alone(fs: FileSystem, path: str, others: Callable[[], Iterable[str]]) -> str | None:
    """Put a small file that says that one writer is at work, on a store that has no locks; None: nobody else is.

    `others` lists the claims of other writers. Each puts its own before it looks for others, so of two at once at
    least one sees the other; it takes its claim back and tries again after a while. Returns a claim that stays.
    """
    for _ in range(_TRIES):
        put_json(fs, path, {"process": os.getpid()})
        other = next(iter(others()), None)
        if other is None:
            return None
        remove(fs, path)
        time.sleep(random.uniform(0, 2 * _PAUSE_S * _TRIES))
    return other


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

    The file stays when the lock is given back, unless `remove` does it.

    Stores have no locks, and neither has Windows here: `take` succeeds there whatever others do.
    """

    def __init__(self, fs: FileSystem, folder: str, name: str = "lock") -> None:
        self._path = os.path.join(folder, name) if isinstance(fs, LocalFileSystem) else None
        self._file: int | None = None

    def take(self) -> bool:
        """Take the lock, or tell that another writer has it; a folder that is not there is made."""
        if self._path is None or self._file is not None:
            return True
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        file = os.open(self._path, os.O_RDWR | os.O_CREAT)
        taken = _flock(file)
        if taken:
            self._file = file
        else:
            os.close(file)
        return taken is not False

    def is_held(self) -> bool | None:
        """Tell whether a live process has the lock; None: nobody can tell here. Makes nothing.

        To be asked under the `mutex` of a folder above: the process that asks has the lock for a moment.
        """
        if self._path is None:
            return None
        try:
            file = os.open(self._path, os.O_RDWR)
        except FileNotFoundError:
            return False
        taken = _flock(file)
        _unlock(file) if taken else os.close(file)
        return None if taken is None else not taken

    def give_back(self) -> None:
        """Let others have it; twice does no harm."""
        if self._file is not None:
            _unlock(self._file)
            self._file = None

    def remove(self) -> None:
        """Remove the file of a lock that is held, and give it back."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        self.give_back()


def _flock(file: int) -> bool | None:
    """Lock an open file or folder; False: another process holds it; None: there are no locks here."""
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a filesystem without locks
        return None
    return True


def _unlock(file: int) -> None:
    import fcntl

    fcntl.flock(file, fcntl.LOCK_UN)  # closing is not enough: a process that was forked meanwhile has the file open
    os.close(file)


@contextlib.contextmanager
def mutex(fs: FileSystem, folder: str) -> Iterator[bool]:
    """Hold the lock of a local folder itself for a few file operations; tells whether it is held.

    It is not where there are no locks, where the folder is not there, or where another process keeps it for long.
    """
    file = None
    if isinstance(fs, LocalFileSystem):
        with contextlib.suppress(OSError):  # no such folder, or Windows, which cannot open one
            file = os.open(folder, os.O_RDONLY)
    held = None if file is None else _flock(file)
    end = time.monotonic() + _PATIENCE_S
    while file is not None and held is False and time.monotonic() < end:
        time.sleep(_PAUSE_S)
        held = _flock(file)
    try:
        yield bool(held)
    finally:
        if file is not None:
            _unlock(file) if held else os.close(file)


@contextlib.contextmanager
def scratch_folder(where: str, prefix: str) -> Iterator[str]:
    """Give a new local folder below `where` to one process; removed at the end, or after a kill by the next call."""
    fs = LocalFileSystem()
    with mutex(fs, where):
        remove_dead_scratch(where, prefix)
        made = tempfile.mkdtemp(prefix=prefix, dir=where)
        lock = Lock(fs, made)
        lock.take()
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        lock.give_back()


def remove_dead_scratch(where: str, prefix: str) -> None:
    """Remove scratch folders that killed processes left; to be called under the `mutex` of `where`.

    One without a lock file stays: it is not ours, or it is empty.
    """
    for entry in list(os.scandir(where)):
        if entry.name.startswith(prefix) and os.path.exists(os.path.join(entry.path, "lock")):
            with contextlib.suppress(OSError):  # another user's
                if Lock(LocalFileSystem(), entry.path).is_held() is False:
                    shutil.rmtree(entry.path, ignore_errors=True)
