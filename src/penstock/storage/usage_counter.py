"""The number of bytes that a disk cache holds, in one small file shared by all its processes.

`disk_cache` asks before it writes and reports what it has deleted. The number changes only under a lock of the
operating system, which is released when the process that holds it ends. After a kill it may be too high (a file
announced and never written), never too low; counting the files corrects it. Reading entries needs no lock.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
import time
import zlib
from typing import TYPE_CHECKING

from penstock.storage.locks import try_lock, unlock_and_close

if TYPE_CHECKING:
    from collections.abc import Iterator

_RECORD = struct.Struct("<8sQ")
_CHECK = struct.Struct("<I")
_MAGIC = b"PNSTUSE1"
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.0005, 0.02


class LockedUsage:
    """The number while the lock is held."""

    __slots__ = ("_fd", "used")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.used: int | None = _parse(os.read(fd, _RECORD.size + _CHECK.size))
        """Bytes in use; None: unknown, count the files."""

    def write(self, used: int) -> None:
        """Set the number."""
        self.used = max(0, used)
        record = _RECORD.pack(_MAGIC, self.used)
        os.lseek(self._fd, 0, os.SEEK_SET)
        os.write(self._fd, record + _CHECK.pack(zlib.crc32(record)))


class UsageCounter:
    """The usage counter of one cache folder; safe for threads and processes."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._mutex = threading.Lock()  # on some network filesystems file locks work between processes only

    def peek(self) -> int | None:
        """Return the number without a lock, so possibly outdated; None if it is unknown."""
        try:
            with open(self._path, "rb", buffering=0) as file:
                return _parse(file.read(_RECORD.size + _CHECK.size))
        except OSError:
            return None

    @contextlib.contextmanager
    def hold(self, timeout_s: float) -> Iterator[LockedUsage | None]:
        """Hold the lock and give the usage, or None if others held the lock for `timeout_s`.

        A process that is stopped while it has the lock does not block the others: they store nothing meanwhile.
        """
        deadline = time.monotonic() + timeout_s
        if not self._mutex.acquire(timeout=timeout_s):
            yield None
            return
        try:
            fd = self._locked(deadline)
            if fd is None:
                yield None
                return
            try:
                yield LockedUsage(fd)
            finally:
                unlock_and_close(fd)
        finally:
            self._mutex.release()

    def _locked(self, deadline: float) -> int | None:
        """Return the open file, locked; None after the deadline. A file that was deleted meanwhile is opened again."""
        wait_s = _FIRST_WAIT_S
        while True:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
            try:
                while try_lock(fd) is False:
                    if time.monotonic() >= deadline:
                        os.close(fd)
                        return None
                    time.sleep(wait_s)
                    wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(fd), os.stat(self._path)):
                        return fd
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)


def _parse(record: bytes) -> int | None:
    if len(record) != _RECORD.size + _CHECK.size:
        return None
    magic, used = _RECORD.unpack_from(record)
    good = magic == _MAGIC and _CHECK.unpack_from(record, _RECORD.size)[0] == zlib.crc32(record[: _RECORD.size])
    return int(used) if good else None
