"""The files of a disk cache: the format of an entry, the names of files, and which of them belong to the cache.

`disk_cache` decides what is kept; the format and the names are here. An entry is a header and the bytes; the header has
length, key and checksums, so that torn, damaged or foreign bytes are never served. An entry is written under a
temporary name and published whole. Nothing here locks or counts.

    <folder>/CACHEDIR.TAG              marks the folder as ours (and, for backup programs, as a cache)
    <folder>/usage                     see `usage_counter`
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
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow.fs import LocalFileSystem

from penstock.storage.publish import put, temporary_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    Buffer = Any

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


def file_cost(path: str) -> int:
    """Return the disk space of an existing entry, computed the same way."""
    return cost_of(max(0, os.stat(path, follow_symlinks=False).st_size - HEADER_BYTES))


def entry_path(folder: str, key: str) -> str:
    """Return the path of the entry of a key."""
    return os.path.join(folder, key[:2], f"{key}.chunk")


def write_entry(path: str, key: str, data: Buffer) -> None:
    """Write an entry to an existing temporary file."""
    view = memoryview(data)
    head = _HEADER.pack(_MAGIC, view.nbytes, bytes.fromhex(key), zlib.crc32(view))
    with open(path, "r+b", buffering=0) as file:
        _write_all(file, memoryview(head + _CHECK.pack(zlib.crc32(head))))
        _write_all(file, view)


def _write_all(file: Any, view: memoryview) -> None:
    while view.nbytes:
        view = view[file.write(view) :]


def read_entry(path: str, key: str) -> tuple[Buffer, int]:
    """Return the checked bytes of an entry, and the time of its last use in nanoseconds.

    The bytes are copied into memory before they are checked, so what was checked is what is served, whatever happens to
    the file.

    Raises:
        FileNotFoundError: there is no such entry.
        BadEntry: it is incomplete or damaged, or belongs to another key.
    """
    with open(path, "rb", buffering=0) as file:
        found = os.fstat(file.fileno())
        num_bytes, checksum = _parse_head(file.read(HEADER_BYTES), key)
        if found.st_size != HEADER_BYTES + num_bytes:
            raise BadEntry(f"{path} has {found.st_size} bytes, but its header says {HEADER_BYTES + num_bytes}")
        buffer = pa.allocate_buffer(num_bytes)
        view = memoryview(buffer).cast("B") if num_bytes else memoryview(b"")
        start = 0
        while start < num_bytes:
            count = file.readinto(view[start:])
            if not count:
                raise BadEntry(f"{path} ends after {start} of {num_bytes} bytes")
            start += count
    if zlib.crc32(view) != checksum:
        raise BadEntry(f"{path} does not match its checksum")
    return buffer, found.st_mtime_ns


def _parse_head(head: bytes, key: str) -> tuple[int, int]:
    if len(head) < HEADER_BYTES or _CHECK.unpack_from(head, _HEADER.size)[0] != zlib.crc32(head[: _HEADER.size]):
        raise BadEntry("the header is damaged")
    magic, num_bytes, stored_key, checksum = _HEADER.unpack_from(head)
    if magic != _MAGIC or stored_key != bytes.fromhex(key):
        raise BadEntry("the entry belongs to another key")
    return num_bytes, checksum


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
    for file in _files(os.path.join(folder, PARTS)):
        part = _PART.fullmatch(file.name)
        if part is None:
            continue
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
        for file in _files(shard):
            if _ENTRY.fullmatch(file.name) is None:
                continue
            with contextlib.suppress(OSError):
                found = file.stat(follow_symlinks=False)
                yield CacheEntry(found.st_mtime_ns, file.path, cost_of(max(0, found.st_size - HEADER_BYTES)))


def _folders(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as found:
            return [one.path for one in found if _SHARD.fullmatch(one.name) and one.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _files(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return [one for one in found if one.is_file(follow_symlinks=False)]
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
