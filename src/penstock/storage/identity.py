"""Tell whether a file is still the one it was: what its store knows about its version, as short text.

A cache puts this into its keys, so that a file written again is never mistaken for its predecessor. Costs one look at
the store (none where a listing that fsspec keeps has it already) and reads no bytes of the file.
"""

from __future__ import annotations

import os
from typing import Any

from pyarrow.fs import FileType, LocalFileSystem

_TAGS = (
    "ETag", "etag", "e_tag", "md5Hash", "md5", "generation", "version_id", "VersionId", "LastModified",
    "last_modified", "modified", "mtime", "updated", "created",
)  # fmt: skip
"""Names that the stores of fsspec give to what changes when a file does; times of reading are not among them."""


def version_of(fs: Any, path: str) -> tuple[int | None, str]:
    """Return the size of a file and its version: entity tag, time of writing, or "" where the store tells neither.

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
