"""Locks of the operating system on local files and folders, released when the process that holds them ends or dies.

Used to tell folders of running processes from those of dead ones (`Lock`), to make a few file operations exclusive
(`mutex`), and by the disk cache around its usage counter. A folder is created together with its lock, and folders of
dead processes are removed, only under the `mutex` of the parent folder: else a new folder could be taken for a dead
one before its lock is held. Stores and Windows have no such locks: there, nobody is ever excluded.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from typing import TYPE_CHECKING

from pyarrow.fs import FileSystem, LocalFileSystem

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Iterator

_MUTEX_WAIT_S = 10.0
_POLL_S = 0.005


def try_lock(file: int) -> bool | None:
    """Lock an open file or folder; False if another process holds the lock, None if there are no locks here."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a filesystem without locks
        return None
    return True


def unlock_and_close(file: int) -> None:
    """Release the lock of an open file, if it has one, and close it."""
    if fcntl is not None:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)  # closing is not enough: a forked child may have the file open too
    os.close(file)


class Lock:
    """A file whose lock says that a process is working in a local folder.

    The file stays after `release`, unless `remove` deletes it. On stores and Windows `acquire` always succeeds.
    """

    def __init__(self, fs: FileSystem, folder: str, name: str = "lock") -> None:
        self._path = os.path.join(folder, name) if isinstance(fs, LocalFileSystem) else None
        self._file: int | None = None

    def acquire(self) -> bool:
        """Take the lock, creating its folder if needed; return False if another process holds it."""
        if self._path is None or self._file is not None:
            return True
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        file = os.open(self._path, os.O_RDWR | os.O_CREAT)
        locked = try_lock(file)
        if locked:
            self._file = file
        else:
            os.close(file)
        return locked is not False

    def is_held(self) -> bool | None:
        """Tell whether a running process holds the lock, None if that cannot be known here; creates nothing.

        Call it under the `mutex` of a folder above, since it takes the lock for a moment.
        """
        if self._path is None:
            return None
        try:
            file = os.open(self._path, os.O_RDWR)
        except FileNotFoundError:
            return False
        locked = try_lock(file)
        unlock_and_close(file)
        return None if locked is None else not locked

    def release(self) -> None:
        """Release the lock; does nothing if it is not held."""
        if self._file is not None:
            unlock_and_close(self._file)
            self._file = None

    def remove(self) -> None:
        """Delete the file of a lock that is held, and release it."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        self.release()


@contextlib.contextmanager
def mutex(fs: FileSystem, folder: str) -> Iterator[bool]:
    """Hold the lock of a local folder itself for a few file operations; gives whether it is held.

    It is not if there are no locks here, the folder does not exist, or another process keeps it for ten seconds.
    """
    file = None
    if isinstance(fs, LocalFileSystem):
        with contextlib.suppress(OSError):  # no such folder, or Windows, which cannot open one
            file = os.open(folder, os.O_RDONLY)
    if file is None:
        yield False
        return
    end = time.monotonic() + _MUTEX_WAIT_S
    while (locked := try_lock(file)) is False and time.monotonic() < end:
        time.sleep(_POLL_S)
    try:
        yield bool(locked)
    finally:
        unlock_and_close(file)


@contextlib.contextmanager
def scratch_folder(parent: str, prefix: str) -> Iterator[str]:
    """Create a local temporary folder for this process; removed at the end, or after a kill by the next call."""
    fs = LocalFileSystem()
    with mutex(fs, parent):
        remove_dead_scratch(parent, prefix)
        made = tempfile.mkdtemp(prefix=prefix, dir=parent)
        lock = Lock(fs, made)
        lock.acquire()
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        lock.release()


def remove_dead_scratch(parent: str, prefix: str) -> None:
    """Remove scratch folders of killed processes; call it under the `mutex` of `parent`.

    A folder without a lock file stays: it is empty, or was not made by `scratch_folder`.
    """
    for entry in list(os.scandir(parent)):
        if entry.name.startswith(prefix) and os.path.exists(os.path.join(entry.path, "lock")):
            with contextlib.suppress(OSError):  # another user's
                if Lock(LocalFileSystem(), entry.path).is_held() is False:
                    shutil.rmtree(entry.path, ignore_errors=True)
