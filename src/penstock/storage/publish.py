"""Atomic publish: a file or folder appears under its final name complete, or not at all.

Used by everything that leaves files behind: `write` (journals, markers, metadata and whole datasets), `jobs`, the disk
cache, and Petastorm's converter. Three kinds of filesystems:

- the local disk: write to a temporary name in the same folder, optionally force it to disk, rename;
- filesystems that rename (HDFS, SFTP ...): the same with their `move`;
- object stores: an object becomes visible when its upload completes, so it is written under its final name at once.

A folder replaces another one by an atomic exchange where the operating system has it, else by two renames, between
which the old one waits beside the new one (`restore` brings it back after a crash). Object stores cannot rename
folders; see `write.target` for what is done there. Knows paths and bytes, not what is in them.
"""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
import re
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow.fs import FileSelector, FileSystem, FileType, LocalFileSystem, PyFileSystem, SubTreeFileSystem

from penstock.errors import StoreError
from penstock.storage.faults import attempt
from penstock.storage.store import store_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

FILESYSTEM_ERRORS = (OSError, NotImplementedError, pa.ArrowException)
"""Raised by filesystems if a path does not exist or an operation is not possible."""
_RENAMING = {"file", "local", "hdfs", "webhdfs", "arrow_hdfs", "sftp", "ssh", "smb", "ftp"}
"""fsspec protocols of filesystems that rename a folder as a whole."""
_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{12}\.writing", re.DOTALL)
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # linux/fs.h; macOS's RENAME_SWAP has the same value


def can_rename(fs: FileSystem) -> bool:
    """Tell whether a filesystem renames folders in one step; object stores do not."""
    if isinstance(fs, SubTreeFileSystem):
        return can_rename(fs.base_fs)
    if isinstance(fs, PyFileSystem):
        protocol = getattr(getattr(fs.handler, "fs", None), "protocol", ())
        return bool(_RENAMING & ({protocol} if isinstance(protocol, str) else set(protocol)))
    return fs.type_name in ("local", "hdfs")


# --- small files ------------------------------------------------------------------------------------------------------


def put(fs: FileSystem, path: str, data: bytes | pa.Buffer, *, sync: bool = False) -> None:
    """Write a file, replacing any at `path`; readers see the old content or all of the new one.

    After an error the old file is unchanged. With `sync`, a local file survives a crash of the machine once this
    returns.
    """
    made = temporary_name(path) if can_rename(fs) else path
    try:
        store_of(fs).write(made, data)
        if sync:
            sync_file(fs, made)
        if made != path:
            publish_file(fs, made, path, sync=sync)
    except BaseException:
        if made != path:
            remove(fs, made)
        raise


def put_json(fs: FileSystem, path: str, value: Mapping[str, Any]) -> None:
    """Write a JSON object with `put`, synced."""
    put(fs, path, json.dumps(value).encode(), sync=True)


def temporary_name(path: str) -> str:
    """Return a new hidden name in the folder of `path`."""
    folder, name = posixpath.split(path)
    return posixpath.join(folder, f".{name}.{os.urandom(6).hex()}.writing")


def temporary_of(name: str) -> str | None:
    """Return the final name of a temporary file that a killed process may have left; None for other names.

    >>> temporary_of("._metadata.0123456789ab.writing"), temporary_of("_metadata")
    ('_metadata', None)
    """
    match = _TEMPORARY.fullmatch(name)
    return None if match is None else match[1]


# --- files and folders that were made under another name --------------------------------------------------------------


def publish_file(fs: FileSystem, made: str, path: str, *, sync: bool = False) -> None:
    """Rename a complete file to `path`, replacing a file that is there; a folder there is an error.

    With `sync`, a local rename survives a crash of the machine once this returns.
    """
    if isinstance(fs, LocalFileSystem):
        os.replace(made, path)
        if sync:
            sync_folders(fs, [posixpath.dirname(path)])
        return
    try:
        _rename(fs, made, path)
    except FILESYSTEM_ERRORS as error:
        if isinstance(error, StoreError) or fs.get_file_info(path).type != FileType.File:
            raise
        publish_folder(fs, made, path)  # HDFS does not rename to the name of an existing file: move that aside first


def publish_folder(fs: FileSystem, made: str, path: str, *, check: Callable[[], None] | None = None) -> None:
    """Rename a complete folder to `path`; what was there before is replaced and then removed.

    `check` is called whenever something other than an empty folder is found at `path`, and raises to keep it: a folder
    that another process puts there at the same moment is never replaced unchecked. A local rename survives a crash of
    the machine once this returns. One of the two may also be a file.

    Raises:
        OSError: the filesystem cannot rename; what was at `path` is still there.
    """
    old = None
    while old is None and not _create(fs, made, path):  # repeats only if another process changes `path` meanwhile
        if check is not None:
            check()
        old = _replace(fs, made, path)
    sync_folders(fs, {posixpath.dirname(path), posixpath.dirname(made)})
    if old is not None:
        remove(fs, old)


def restore(fs: FileSystem, made: str, path: str) -> None:
    """Move the old folder back if `publish_folder` was killed between its two renames."""
    aside = f"{made}.old"
    gone = fs.get_file_info(path).type == FileType.NotFound
    if gone and fs.get_file_info(aside).type != FileType.NotFound:
        _rename(fs, aside, path)


def is_free(fs: FileSystem, path: str) -> bool:
    """Tell whether nothing is at `path`, or an empty folder."""
    kind = fs.get_file_info(path).type
    return kind == FileType.NotFound or (
        kind == FileType.Directory and not fs.get_file_info(FileSelector(path, allow_not_found=True))
    )


def exchange(one: str, other: str) -> bool:
    """Swap what two local paths name, atomically; returns False, with nothing changed, if the system cannot."""
    import ctypes

    a, b = os.fsencode(one), os.fsencode(other)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if sys.platform.startswith("linux"):
            return bool(libc.renameat2(_AT_FDCWD, a, _AT_FDCWD, b, _RENAME_EXCHANGE) == 0)
        return sys.platform == "darwin" and bool(libc.renamex_np(a, b, _RENAME_EXCHANGE) == 0)
    except (OSError, AttributeError, TypeError):  # no such function in this libc; TypeError: CDLL(None) on Windows
        return False


def _create(fs: FileSystem, made: str, path: str) -> bool:
    """Rename a folder to `path`; False if something other than an empty folder is there."""
    if not is_free(fs, path):
        return False
    with contextlib.suppress(*FILESYSTEM_ERRORS):
        _remove_empty(fs, path)
    try:
        _rename(fs, made, path)
    except FILESYSTEM_ERRORS:
        if fs.get_file_info(path).type == FileType.NotFound:
            raise
        return False  # another process was faster: a folder cannot be renamed to one that is not empty
    if isinstance(fs, LocalFileSystem) or fs.get_file_info(path).type != FileType.Directory:
        return True
    inside = posixpath.join(path, posixpath.basename(made))
    if fs.get_file_info(inside).type != FileType.NotFound:
        _rename(fs, inside, made)  # HDFS and fsspec move a folder into an existing one
        return False
    return True


def _replace(fs: FileSystem, made: str, path: str) -> str | None:
    """Put a folder in the place of another one; return where the old one is now, None if another process took it."""
    if isinstance(fs, LocalFileSystem) and exchange(made, path):
        return made
    aside = f"{made}.old"
    try:
        _rename(fs, path, aside)
    except FILESYSTEM_ERRORS:
        if fs.get_file_info(path).type == FileType.NotFound:
            return None
        raise
    try:
        done = _create(fs, made, path)
    except BaseException:
        _rename(fs, aside, path)
        raise
    if done:
        return aside
    remove(fs, aside)  # another process has put a newer one there
    return None


def _rename(fs: FileSystem, source: str, target: str) -> None:
    if isinstance(fs, LocalFileSystem):
        os.rename(source, target)
        return

    has_failed = False

    def move() -> None:
        nonlocal has_failed
        try:
            fs.move(source, target)
        except FILESYSTEM_ERRORS as error:
            # The store may have renamed before its answer was lost. Where there never was a source it has not.
            may_be_done = has_failed or not isinstance(error, FileNotFoundError)
            has_failed = True
            here, there = (fs.get_file_info(path).type != FileType.NotFound for path in (source, target))
            if here or not there or not may_be_done:
                raise

    attempt(move, target)


def _remove_empty(fs: FileSystem, path: str) -> None:
    if isinstance(fs, LocalFileSystem):
        os.rmdir(path)  # fails if a file has appeared meanwhile; delete_dir would remove that as well
    elif fs.get_file_info(path).type == FileType.Directory:
        fs.delete_dir(path)


# --- durability and removal -------------------------------------------------------------------------------------------


def sync_file(fs: FileSystem, path: str) -> None:
    """Force a closed local file to disk; a store has nothing to force."""
    if isinstance(fs, LocalFileSystem):
        _fsync(path, os.O_RDWR)


def sync_folders(fs: FileSystem, paths: Iterable[str]) -> None:
    """Force the names in local folders to disk; Windows, which cannot open a folder, does so by itself."""
    for path in paths if isinstance(fs, LocalFileSystem) else ():
        with contextlib.suppress(OSError):
            _fsync(path, os.O_RDONLY)


def _fsync(path: str, flags: int) -> None:
    opened = os.open(path, flags)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def remove(fs: FileSystem, path: str) -> None:
    """Remove a file or folder if it exists; errors are ignored, so that they do not hide the one that led here."""
    with contextlib.suppress(*FILESYSTEM_ERRORS):
        kind = fs.get_file_info(path).type
        if isinstance(fs, LocalFileSystem) and os.path.islink(path):
            os.unlink(path)
        elif kind == FileType.File:
            store_of(fs).delete(path)
        elif kind == FileType.Directory:
            fs.delete_dir(path)
