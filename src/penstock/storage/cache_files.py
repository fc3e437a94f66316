"""The files of a disk cache: the format of an entry, the names of files, and which of them belong to the cache.

`disk_cache` decides what is kept; the format and the names are here. An entry is a header and the bytes; the header has
length, key and checksums, so that torn, damaged or foreign bytes are never served. An entry is written under a
temporary name and published whole.

`UsageCounter` keeps the number of bytes in the cache in one small file that all its processes share. The number changes
only under a lock of the operating system, which is released when the process that holds it ends. After a kill it may be
too high (a file announced and never written), never too low; counting the files corrects it. Reading entries needs no
lock.

    <folder>/CACHEDIR.TAG              marks the folder as ours (and, for backup programs, as a cache)
    <folder>/usage                     the number of bytes, see `UsageCounter`
    <folder>/parts/<name>.part         entries being written
    <folder>/3f/3f07...c1.chunk        entries, in 256 folders by the first digits of the key
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
import struct
import threading
import time
import zlib
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow.fs import LocalFileSystem

from penstock.storage.locks import try_lock, unlock_and_close
from penstock.storage.publish import put, temporary_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyarrow import Buffer

FOLDER = "penstock-chunks-1"
"""Name of the folder of entries, inside the user's folder; a new format gets a new number."""
TAG = "CACHEDIR.TAG"
USAGE = "usage"
PARTS = "parts"
_SIGNATURE = "Signature: 8a477f597d28d172789f06886806bc55"  # bford.info/cachedir
_OURS = "# Made by Penstock, which may delete what it keeps here."
_MADE_PARENT = "# The folder above was made with it."

_HEADER = struct.Struct("<8sQ16sI")
_CHECK = struct.Struct("<I")
_MAGIC = b"PNSTCHK1"
HEADER_BYTES = _HEADER.size + _CHECK.size
_BLOCK_BYTES = 4096
_ENTRY = re.compile(r"[0-9a-f]{32}\.chunk")
_SHARD = re.compile(r"[0-9a-f]{2}")
_PART = re.compile(r"(?P<where>[0-9a-f]{8})-(?P<pid>\d+)-[0-9a-f]+-(?P<cost>\d+)\.part")
_ABANDONED_S = 3600.0
_numbers = itertools.count()


class BadEntry(Exception):
    """An entry whose bytes are not those that were stored."""


def cost_of(num_bytes: int) -> int:
    """Return the disk space of an entry of `num_bytes`: with its header, in whole blocks of 4 KiB."""
    return -(-(HEADER_BYTES + num_bytes) // _BLOCK_BYTES) * _BLOCK_BYTES


def remove_entry(path: str) -> int:
    """Delete an existing entry; return its disk space, computed the same way."""
    cost = cost_of(max(0, os.stat(path, follow_symlinks=False).st_size - HEADER_BYTES))
    os.unlink(path)
    return cost


def entry_path(folder: str, key: str) -> str:
    """Return the path of the entry of a key."""
    return os.path.join(folder, key[:2], f"{key}.chunk")


def write_entry(path: str, key: str, data: Buffer) -> None:
    """Write an entry to an existing temporary file."""
    view = memoryview(data)
    head = _HEADER.pack(_MAGIC, view.nbytes, bytes.fromhex(key), zlib.crc32(view))
    with open(path, "r+b") as file:
        file.write(head + _CHECK.pack(zlib.crc32(head)))
        file.write(view)


def read_entry(path: str, key: str) -> tuple[Buffer, int]:
    """Return the checked bytes of an entry, and the time of its last use in nanoseconds.

    The bytes are copied into memory before they are checked, so what was checked is what is served, whatever happens to
    the file.

    Raises:
        FileNotFoundError: there is no such entry.
        BadEntry: it is incomplete or damaged, or belongs to another key.
    """
    with open(path, "rb") as file:
        found = os.fstat(file.fileno())
        head = file.read(HEADER_BYTES)
        if len(head) < HEADER_BYTES or _CHECK.unpack_from(head, _HEADER.size)[0] != zlib.crc32(head[: _HEADER.size]):
            raise BadEntry("the header is damaged")
        magic, num_bytes, stored_key, checksum = _HEADER.unpack_from(head)
        if magic != _MAGIC or stored_key != bytes.fromhex(key):
            raise BadEntry("the entry belongs to another key")
        if found.st_size != HEADER_BYTES + num_bytes:
            raise BadEntry(f"{path} has {found.st_size} bytes, but its header says {HEADER_BYTES + num_bytes}")
        buffer = pa.allocate_buffer(num_bytes)
        view = memoryview(buffer if num_bytes else bytearray()).cast("B")
        count = file.readinto(view)
        if count < num_bytes:
            raise BadEntry(f"{path} ends after {count} of {num_bytes} bytes")
    if zlib.crc32(view) != checksum:
        raise BadEntry(f"{path} does not match its checksum")
    return buffer, found.st_mtime_ns


# -- entries being written ------------------------------------------------------------------------------------------


def new_part(folder: str, cost: int) -> str:
    """Create an empty temporary file for an entry; its name says who writes it and how large it will be."""
    token = f"{next(_numbers):x}{threading.get_ident() & 0xFFFF:04x}"
    path = os.path.join(folder, PARTS, f"{_where()}-{os.getpid()}-{token}-{cost}.part")
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | getattr(os, "O_BINARY", 0), 0o666))
    return path


@cache
def _where() -> str:
    """Return eight digits for host, boot and process namespace, within which process numbers are comparable."""
    parts = [os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "")]
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        parts.append(file.read())
    with contextlib.suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=4).hexdigest()


def _is_abandoned(part: re.Match[str], age_s: float) -> bool:
    """Tell whether nobody will finish this part: its process is gone, or it is older than an hour."""
    if age_s > _ABANDONED_S:
        return True
    if part["where"] != _where() or os.name == "nt":  # os.kill(pid, 0) would end the process there
        return False
    with contextlib.suppress(OSError, OverflowError):
        try:
            os.kill(int(part["pid"]), 0)
        except ProcessLookupError:
            return True
    return False


def sweep_parts(folder: str) -> tuple[int, int]:
    """Delete abandoned parts; return the cost of the others, and the cost of the deleted ones.

    Call it under the lock, so that the usage counter can follow.
    """
    live, freed = 0, 0
    for file, part in _files(os.path.join(folder, PARTS), _PART):
        with contextlib.suppress(OSError):
            if _is_abandoned(part, time.time() - file.stat(follow_symlinks=False).st_mtime):
                os.unlink(file.path)
                freed += int(part["cost"])
            else:
                live += int(part["cost"])
    return live, freed


# -- all entries ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, order=True)
class CacheEntry:
    """An entry as listed; entries sort by their last use."""

    used_ns: int
    path: str
    cost: int


def entries(folder: str) -> Iterator[CacheEntry]:
    """Yield every entry in no particular order, ignoring other files. Costs one `stat` a file."""
    for shard in _folders(folder):
        for file, _ in _files(shard, _ENTRY):
            with contextlib.suppress(OSError):
                found = file.stat(follow_symlinks=False)
                yield CacheEntry(found.st_mtime_ns, file.path, cost_of(max(0, found.st_size - HEADER_BYTES)))


def _folders(folder: str) -> list[str]:
    return [one.path for one, _ in _named(folder, _SHARD, lambda one: one.is_dir(follow_symlinks=False))]


def _files(folder: str, names: re.Pattern[str]) -> list[tuple[os.DirEntry[str], re.Match[str]]]:
    return _named(folder, names, lambda one: one.is_file(follow_symlinks=False))


def _named(
    folder: str, names: re.Pattern[str], is_kind: Callable[[os.DirEntry[str]], bool]
) -> list[tuple[os.DirEntry[str], re.Match[str]]]:
    """Return the entries of a kind whose names match, with the match; none if the folder cannot be listed."""
    try:
        with os.scandir(folder) as found:
            return [(one, name) for one in found if (name := names.fullmatch(one.name)) and is_kind(one)]
    except OSError:
        return []


# -- the folder -----------------------------------------------------------------------------------------------------


def check_folder(folder: str) -> bool:
    """Create the folder of a cache if it does not exist; return whether its parent was created too.

    Raises:
        FileExistsError: a folder of that name exists, with files that do not belong to a cache.
        OSError: it cannot be created.
    """
    made = not os.path.isdir(os.path.dirname(folder))
    os.makedirs(folder, exist_ok=True)
    if not is_ours(folder) and _strange(folder, {USAGE, PARTS}) and not is_ours(folder):  # twice: it may grow
        raise FileExistsError(f"{folder} contains files that do not belong to a cache")
    return made


def mark_folder(folder: str, *, made_parent: bool) -> None:
    """Write the tag file and create the folder of parts; call it under the lock, like `remove_folder`."""
    if not is_ours(folder):
        text = "\n".join([_SIGNATURE, _OURS, *([_MADE_PARENT] if made_parent else [])]) + "\n"
        put(LocalFileSystem(), os.path.join(folder, TAG), text.encode())
    os.makedirs(os.path.join(folder, PARTS), exist_ok=True)


def _strange(folder: str, known: set[str]) -> list[str]:
    """Return the names in a folder that are neither known nor temporary names of the tag."""
    return [name for name in os.listdir(folder) if name not in known and temporary_of(name) != TAG]


def is_ours(folder: str) -> bool:
    """Tell whether the folder has our tag."""
    return _OURS in _tag(folder)


def _tag(folder: str) -> list[str]:
    try:
        with open(os.path.join(folder, TAG), encoding="utf-8", errors="replace") as file:
            return file.read(4096).splitlines()
    except OSError:
        return []


def remove_folder(folder: str) -> None:
    """Remove the folder if it has no entries left, and its parent if that was created with it and is empty too.

    Only empty folders and our own files are removed. Call it under the lock: the locked file goes last, so that nobody
    stores in a folder that is half removed.
    """
    tag = _tag(folder)
    if _OURS not in tag:
        return
    with contextlib.suppress(OSError):
        for shard in [*_folders(folder), os.path.join(folder, PARTS)]:
            with contextlib.suppress(OSError):
                os.rmdir(shard)
        if _strange(folder, {TAG, USAGE}):
            return
        for name in sorted(os.listdir(folder)):  # TAG before USAGE
            os.unlink(os.path.join(folder, name))
        os.rmdir(folder)
        if _MADE_PARENT in tag:
            os.rmdir(os.path.dirname(folder))


_RECORD = struct.Struct("<8sQ")
_USAGE_MAGIC = b"PNSTUSE1"
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
        record = _RECORD.pack(_USAGE_MAGIC, self.used)
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
        with contextlib.ExitStack() as held:
            fd = None
            if self._mutex.acquire(timeout=timeout_s):
                held.callback(self._mutex.release)
                fd = self._locked(deadline)
            if fd is not None:
                held.callback(unlock_and_close, fd)
            yield None if fd is None else LockedUsage(fd)

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
    good = magic == _USAGE_MAGIC and _CHECK.unpack_from(record, _RECORD.size)[0] == zlib.crc32(record[: _RECORD.size])
    return int(used) if good else None
