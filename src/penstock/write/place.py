"""Where a dataset is written, and how it appears: whole or not at all.

`write` fills a hidden folder beside the target (readers skip names that begin with a dot) and this module renames it
when everything is there. It knows filesystems and paths, not Parquet. Cases:

- success: one rename; with `overwrite`, old and new swap places in one step where the system can (see `exchange`), else
  by two renames, between which the old one waits under a hidden name and is moved back if the second fails;
- an error or Ctrl-C while writing: the hidden folder is removed, the target is as it was;
- a killed process: the hidden folder stays (it may be deleted by hand), the target is as it was;
- a store without folders to rename (S3 and the like): the files are moved one by one, which is not atomic.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow.fs import FileSelector, FileType, LocalFileSystem

from penstock.errors import DatasetExists
from penstock.write.exchange import exchange

if TYPE_CHECKING:
    from collections.abc import Iterator

    FileSystem = Any  # pyarrow.fs.FileSystem: pyarrow ships no types

_CANNOT = (OSError, NotImplementedError, pa.ArrowException)


@dataclass(frozen=True, slots=True)
class Place:
    """A target folder on a filesystem."""

    fs: FileSystem
    path: str
    """Without a slash at the end."""

    def hidden(self, suffix: str) -> str:
        """Return a new hidden name beside the target."""
        parent, name = posixpath.split(self.path)
        return posixpath.join(parent, f".{name}.{os.urandom(6).hex()}.{suffix}")

    @contextlib.contextmanager
    def filling(self, *, overwrite: bool) -> Iterator[str]:
        """Give a hidden folder to fill; when the block ends well it becomes the target, else it is removed.

        Raises:
            DatasetExists: something is at the target already and `overwrite` is false, or it is not a dataset.
        """
        self._check(overwrite=overwrite)
        folder = self.hidden("writing")
        self.fs.create_dir(folder, recursive=True)
        try:
            yield folder
            self._check(overwrite=overwrite)  # another writer may have been faster
            self._show(folder)
        except BaseException:
            _remove(self.fs, folder)
            raise

    def _check(self, *, overwrite: bool) -> None:
        info = self.fs.get_file_info(self.path)
        if info.type == FileType.NotFound or _is_empty(self.fs, info):
            return
        if not overwrite:
            raise DatasetExists(
                f"{self.path} exists already; write somewhere else, or pass overwrite=True to replace it"
            )
        other = _other_file(self.fs, info)
        if other is not None:
            raise DatasetExists(
                f"{self.path} holds {other!r}, which is no part of a Parquet dataset, so overwrite=True will not "
                "replace it; write somewhere else, or remove it yourself"
            )

    def _show(self, folder: str) -> None:
        info = self.fs.get_file_info(self.path)
        empty = _is_empty(self.fs, info)
        if empty:
            _remove_empty(self.fs, self.path)
        if empty or info.type == FileType.NotFound:
            _move(self.fs, folder, self.path)
        elif isinstance(self.fs, LocalFileSystem) and exchange(folder, self.path):
            _remove(self.fs, folder)
        else:
            self._replace(folder)

    def _replace(self, folder: str) -> None:
        old = self.hidden("old")
        _move(self.fs, self.path, old)
        try:
            _move(self.fs, folder, self.path)
        except BaseException:
            _move(self.fs, old, self.path)
            raise
        _remove(self.fs, old)


def _is_empty(fs: FileSystem, info: Any) -> bool:
    if info.type != FileType.Directory:
        return False
    return not fs.get_file_info(FileSelector(info.path))


def _remove_empty(fs: FileSystem, path: str) -> None:
    if isinstance(fs, LocalFileSystem):
        os.rmdir(path)  # fails where a file has appeared meanwhile; delete_dir would remove that too
    else:
        fs.delete_dir(path)


def _other_file(fs: FileSystem, info: Any) -> str | None:
    """Return the first name below a folder that no Parquet dataset would hold, or None."""
    if info.type == FileType.File:
        return None if info.path.endswith((".parquet", ".parq")) else str(info.base_name)
    for found in fs.get_file_info(FileSelector(info.path, recursive=True)):
        name = found.base_name
        known = name.startswith(("_", ".")) or name.endswith((".parquet", ".parq")) or "=" in name
        if not known and found.type == FileType.File:
            return str(found.path)[len(info.path) :].lstrip("/")
    return None


def _move(fs: FileSystem, source: str, target: str) -> None:
    """Rename a folder or file; where a store cannot rename folders, move file by file."""
    try:
        fs.move(source, target)
    except _CANNOT:
        found = fs.get_file_info(FileSelector(source, recursive=True, allow_not_found=True))
        files = [info.path for info in found if info.type == FileType.File]
        if not files or isinstance(fs, LocalFileSystem):
            raise
        for path in files:
            fs.create_dir(posixpath.dirname(target + path[len(source) :]), recursive=True)
            fs.move(path, target + path[len(source) :])
        _remove(fs, source)


def _remove(fs: FileSystem, path: str) -> None:
    """Remove a folder or file if it is there; a hidden leftover is better than hiding the error that led here."""
    with contextlib.suppress(*_CANNOT):
        if fs.get_file_info(path).type == FileType.File:
            fs.delete_file(path)
        else:
            fs.delete_dir(path)
