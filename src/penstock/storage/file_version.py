"""Tell whether a file is still the one it was: what its store knows about its version, as short text.

A cache puts `version_of` into its keys, so that a file written again is never mistaken for its predecessor. An open
dataset remembers `identity_of` of each file and compares it whenever the file is read. Costs one look at the store
(none where a listing that fsspec keeps has it already) and reads no bytes of the file.
"""

from __future__ import annotations

import os
from typing import Any

from pyarrow.fs import FileType, LocalFileSystem

_TAGS = (
    "ETag", "etag", "e_tag", "md5Hash", "md5", "generation", "version_id", "VersionId", "LastModified",
    "Last-Modified", "last_modified", "modified", "mtime", "updated", "created",
)  # fmt: skip
"""Names that stores give to what changes when a file does; times of reading are not among them."""
_TELL_WHEN_OPENED = frozenset({"s3", "gcs", "abfs"})
"""pyarrow's filesystems that ask for the metadata of a file when they open it, so that it costs no second request."""


def open_identified(fs: Any, path: str) -> tuple[Any, str]:
    """Open a file for reading; return it, and its identity.

    The identity is asked before the first byte is read: a file that is replaced in between then counts as changed when
    it is read again. Asked afterwards, the new file's identity would stand for the old file's bytes.
    """
    if fs.type_name in _TELL_WHEN_OPENED:
        stream = fs.open_input_file(path)
        return stream, identity_of(fs, path, stream)
    identity = identity_of(fs, path, None)
    return fs.open_input_file(path), identity


def identity_of(fs: Any, path: str, stream: Any) -> str:
    """Return what distinguishes a file from one written in its place: more than `version_of` can, for this run only.

    On local disks that is the time of writing and the inode, elsewhere the entity tag or the time. Stores that pyarrow
    itself talks to have said it when the file was opened, as `stream`. "" if the store has nothing of the kind.

    Raises:
        FileNotFoundError: there is no such file any more.
    """
    if isinstance(fs, LocalFileSystem):
        found = os.stat(path)
        return f"mtime={found.st_mtime_ns} inode={found.st_ino}"
    if fs.type_name in _TELL_WHEN_OPENED:
        told = {name.decode(): value for name, value in (stream.metadata() or {}).items()}
        return " ".join(f"{name}={told[name]!r}" for name in _TAGS if name in told)
    return version_of(fs, path)[1]


def version_of(fs: Any, path: str) -> tuple[int | None, str]:
    """Return the size of a file and its version: entity tag, time of writing, or "" if the store has neither.

    Raises:
        FileNotFoundError: there is no such file.
    """
    if isinstance(fs, LocalFileSystem):
        found = os.stat(path)
        return found.st_size, f"mtime={found.st_mtime_ns}"
    behind: Any = getattr(getattr(fs, "handler", None), "fs", None)
    if hasattr(behind, "info"):
        told = behind.info(path)
        return told.get("size"), " ".join(f"{name}={told[name]}" for name in _TAGS if told.get(name) is not None)
    info = fs.get_file_info(path)
    if info.type != FileType.File:
        raise FileNotFoundError(f"{path} is not there")
    return info.size, "" if info.mtime_ns is None else f"mtime={info.mtime_ns}"
