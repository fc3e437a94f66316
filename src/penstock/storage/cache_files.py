"""The files of a cache on disk: what an entry looks like, what files are called, which of them are ours.

`disk_cache` decides what is kept; here are the format and the names. An entry is a header and the bytes; the header
holds length, key and checksums, so that bytes that are torn, damaged or another key's are never taken for good. An
entry is written under a name of its own and moved into place whole. Nothing here locks or counts.

    <folder>/CACHEDIR.TAG              says that the folder is ours (and, to backup programs, that it is a cache)
    <folder>/usage                     see `ledger`
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
"""Name of the folder that entries lie in, below the one that the user names; another format gets another number."""
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
    """Return what an entry of so many bytes takes on disk: header, and whole blocks of 4 KiB."""
    return -(-(HEADER_BYTES + num_bytes) // _BLOCK_BYTES) * _BLOCK_BYTES


def file_cost(path: str) -> int:
    """Return what an entry that is there takes on disk, in the same way."""
    return cost_of(max(0, os.stat(path, follow_symlinks=False).st_size - HEADER_BYTES))


def entry_path(folder: str, key: str) -> str:
    """Return where the entry of a key lies."""
    return os.path.join(folder, key[:2], f"{key}.chunk")


def write_entry(path: str, key: str, data: Buffer) -> None:
    """Write an entry to a file that exists already; not yet where readers look for it."""
    view = memoryview(data)
    head = _HEADER.pack(_MAGIC, view.nbytes, bytes.fromhex(key), zlib.crc32(view))
    with open(path, "r+b", buffering=0) as file:
        _write_all(file, memoryview(head + _CHECK.pack(zlib.crc32(head))))
        _write_all(file, view)


def _write_all(file: Any, view: memoryview) -> None:
    while view.nbytes:
        view = view[file.write(view) :]


def read_entry(path: str, key: str) -> tuple[Buffer, int]:
    """Return the bytes of an entry, checked, and the time of its last use in nanoseconds.

    The bytes are copied into memory before they are checked, so that what was checked is what is served, whatever
    happens to the file.

    Raises:
        FileNotFoundError: there is no such entry.
        BadEntry: it is not whole, or not this key's.
    """
    with open(path, "rb", buffering=0) as file:
        found = os.fstat(file.fileno())
        num_bytes, checksum = _parse_head(file.read(HEADER_BYTES), key)
        if found.st_size != HEADER_BYTES + num_bytes:
            raise BadEntry(f"{path} has {found.st_size} bytes where its header says {HEADER_BYTES + num_bytes}")
        buffer = pa.allocate_buffer(num_bytes)
        view = memoryview(buffer).cast("B") if num_bytes else memoryview(b"")
        start = 0
        while start < num_bytes:
            count = file.readinto(view[start:])
            if not count:
                raise BadEntry(f"{path} ends after {start} of {num_bytes} bytes")
            start += count
    if zlib.crc32(view) != checksum:
        raise BadEntry(f"{path} has bytes that its checksum does not fit")
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
    """Make an empty file to write an entry to; its name says who writes it and what it will cost."""
    token = f"{next(_numbers):x}{threading.get_ident() & 0xFFFF:04x}"
    path = os.path.join(folder, PARTS, f"{_where()}-{os.getpid()}-{token}-{cost}.part")
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | getattr(os, "O_BINARY", 0), 0o666))
    return path


@cache
def _where() -> str:
    """Return eight digits for where process numbers mean what they mean here: host, boot and namespace."""
    parts = [os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "")]
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        parts.append(file.read())
    with contextlib.suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=4).hexdigest()


def _is_abandoned(part: re.Match[str], age_s: float) -> bool:
    """Tell whether nobody will finish this part: its process is gone, or it has been lying there for an hour."""
    if age_s > _ABANDONED_S:
        return True
    if part["where"] != _where() or os.name == "nt":  # os.kill(pid, 0) would end the process there
        return False
    try:
        os.kill(int(part["pid"]), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False


def sweep_parts(folder: str) -> tuple[int, int]:
    """Delete the parts that nobody will finish; return what the others will cost, and what these would have.

    Under the lock, so that the total can follow.
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
    """An entry as a listing tells it; they sort by their last use."""

    used_ns: int
    path: str
    cost: int


def entries(folder: str) -> Iterator[CacheEntry]:
    """Yield every entry, in no order; files that are not ours are passed over. Costs a look at each file."""
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
    """Make the folder of a cache where there is none; return whether the folder above was made for it.

    Raises:
        FileExistsError: a folder of that name is there, with files in it that are not a cache's.
        OSError: it cannot be made.
    """
    made = not os.path.isdir(os.path.dirname(folder))
    os.makedirs(folder, exist_ok=True)
    if not is_ours(folder) and _strange(folder, {USAGE, PARTS}) and not is_ours(folder):  # looked at twice: it may grow
        raise FileExistsError(f"{folder} holds files that are not a cache's")
    return made


def mark_folder(folder: str, *, made_parent: bool) -> None:
    """Put our mark into the folder, and a place for parts; under the lock, as `remove_folder`."""
    if not is_ours(folder):
        text = "\n".join([_SIGNATURE, _OURS, *([_MADE_PARENT] if made_parent else [])]) + "\n"
        put(LocalFileSystem(), os.path.join(folder, TAG), text.encode())
    os.makedirs(os.path.join(folder, PARTS), exist_ok=True)


def _strange(folder: str, known: set[str]) -> list[str]:
    """Return the names in a folder that are neither known nor tags being written."""
    return [name for name in os.listdir(folder) if name not in known and temporary_of(name) != TAG]


def is_ours(folder: str) -> bool:
    """Tell whether the folder carries our mark."""
    return _OURS in _tag(folder)


def _tag(folder: str) -> list[str]:
    try:
        with open(os.path.join(folder, TAG), encoding="utf-8", errors="replace") as file:
            return file.read(4096).splitlines()
    except OSError:
        return []


def remove_folder(folder: str) -> None:
    """Remove the folder if no entry is left in it, and the one above if it was made with it and is empty as well.

    Only folders that are empty go, and only files whose names are ours; anything else stays, and so does what is
    around it. Under the lock: the file that is locked goes last, so that nobody stores in a folder half gone.
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
