"""The target of a write: whether it may be written or replaced, and how the finished dataset gets there.

`stage` fills a hidden folder and this module puts it in the target's place; the dataset appears whole or not at all.
It knows filesystems and paths, not Parquet:

- filesystems that rename: `storage.publish` does it, and a target that appeared meanwhile is checked again;
- object stores: a marker is written to the target, the old files are deleted, the new ones moved one by one, and the
  marker is deleted last; a dataset with a marker does not open, and committing again continues. One writer at a time
  does so: others are refused.
"""

from __future__ import annotations

import os
import posixpath
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyarrow.fs import FileSelector, FileType, LocalFileSystem

from penstock.dataset.incomplete import JOURNAL, MARKER, hidden_folders, hidden_name, note_path, read_json
from penstock.errors import DatasetExists
from penstock.storage.locks import mutex
from penstock.storage.publish import can_rename, is_free, publish_folder, put_json, remove, temporary_of

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable, Iterable, Iterator

    FileSystem = Any  # pyarrow.fs.FileSystem: pyarrow ships no types

_PARQUET = (".parquet", ".parq")
_METADATA = {"_SUCCESS", "_metadata", "_common_metadata", MARKER}
_DATABRICKS = ("_committed_", "_started_")
_CLAIM = "claim.json"
"""In a hidden folder on a store whose files are replacing those of the target."""
_MOVES = 16
"""Files moved at a time on a store, where a move is a request or two."""
_CLAIM_TRIES = 8
_CLAIM_PAUSE_S = 0.08


def claim_alone(fs: FileSystem, path: str, others: Callable[[], Iterable[str]]) -> str | None:
    """Claim exclusive access on a store, which has no locks, by a small file; None: this process has it.

    `others` lists the claims of other writers. Each writes its own claim before it looks for others, so of two at once
    at least one sees the other; it withdraws its claim and tries again after a while. Returns a claim that stays.
    """
    for _ in range(_CLAIM_TRIES):
        put_json(fs, path, {"process": os.getpid()})
        other = next(iter(others()), None)
        if other is None:
            return None
        remove(fs, path)
        time.sleep(random.uniform(0, _CLAIM_PAUSE_S))
    return other


@dataclass(frozen=True, slots=True)
class WriteTarget:
    """A target folder on a filesystem."""

    fs: FileSystem
    path: str
    """Without a slash at the end."""

    @classmethod
    def at(cls, fs: FileSystem, path: str) -> WriteTarget:
        """Return the place that a path means: where it is a link, that which it leads to."""
        path = path.rstrip("/") or path
        if isinstance(fs, LocalFileSystem) and os.path.islink(path):
            path = os.path.realpath(path).replace(os.sep, "/")
        return cls(fs, path)

    @property
    def marker(self) -> str:
        """The file that says that the target is not complete."""
        return posixpath.join(self.path, MARKER)

    @property
    def note(self) -> str:
        """The file beside the target that says that Spark writes it in a block."""
        return note_path(self.path)

    def hidden(self, token: str) -> str:
        """Return the hidden folder beside the target that has this token."""
        parent, name = posixpath.split(self.path)
        return posixpath.join(parent, hidden_name(name, token))

    def mutex(self) -> contextlib.AbstractContextManager[bool]:
        """Hold the lock of the folder that holds the target: see `storage.locks`."""
        return mutex(self.fs, posixpath.dirname(self.path))

    def is_free(self) -> bool:
        """Tell whether nothing is there, or an empty folder."""
        return is_free(self.fs, self.path)

    def check(self, *, overwrite: bool) -> None:
        """Raise DatasetExists if something is there that may not be replaced."""
        if self.is_free():
            return
        if not overwrite:
            raise DatasetExists(
                f"{self.path} exists already; write somewhere else, or pass overwrite=True to replace it"
            )
        other = self._other_file()
        if other is not None:
            raise DatasetExists(
                f"{self.path} holds {other!r}, which is no part of a Parquet dataset, so overwrite=True will not "
                "replace it; write somewhere else, or remove it yourself"
            )

    def _other_file(self) -> str | None:
        """Return the first name below the target that no Parquet dataset would hold, or None."""
        while True:
            info = self.fs.get_file_info(self.path)
            if info.type == FileType.File:
                return None if info.path.endswith(_PARQUET) else str(info.base_name)
            try:
                listed = self.fs.get_file_info(FileSelector(self.path, recursive=True, allow_not_found=True))
            except FileNotFoundError:  # another writer has just replaced it
                continue
            files = [str(found.path)[len(self.path) :].lstrip("/") for found in listed if found.type == FileType.File]
            return next((relative for relative in files if not _belongs(relative)), None)

    def show(self, folder: str, *, overwrite: bool, files: Iterable[str] = ()) -> None:
        """Put a complete folder, which holds these files (relative paths), in the target's place.

        Raises:
            DatasetExists: something is there that may not be replaced, also if it appeared a moment ago.
        """
        if not can_rename(self.fs):
            try:
                self._move_files(folder, files)
            except FileNotFoundError as error:  # another writer has taken this one for dead, and removed its files
                raise self._taken(None) from error
            return
        publish_folder(self.fs, folder, self.path, check=lambda: self.check(overwrite=overwrite))

    def _move_files(self, folder: str, wanted: Iterable[str]) -> None:
        """Replace the files of a target on a store; a target whose marker says `moving` has no old files left.

        One writer at a time: the claim in its hidden folder goes with that folder.
        """
        fs, mine = self.fs, posixpath.dirname(folder)

        def claims() -> Iterator[str]:
            for other in hidden_folders(fs, self.path):
                if other != mine and fs.get_file_info(f"{other}/{_CLAIM}").type != FileType.NotFound:
                    yield other

        other = claim_alone(fs, f"{mine}/{_CLAIM}", claims)
        if other is not None:
            raise self._taken(other)
        found = read_json(fs, self.marker) or {}
        if (found.get("state"), found.get("from")) != ("moving", folder):
            put_json(fs, self.marker, {"version": 1, "state": "removing", "from": folder})
            for path in _files(fs, self.path):
                if path != self.marker:
                    fs.delete_file(path)
            self._check_mover(folder)
            put_json(fs, self.marker, {"version": 1, "state": "moving", "from": folder})

        def move(path: str) -> None:
            target = self.path + path[len(folder) :]
            fs.create_dir(posixpath.dirname(target), recursive=True)
            fs.move(path, target)

        files = _files(fs, folder)
        with ThreadPoolExecutor(_MOVES) as pool:
            for start in range(0, len(files), _MOVES):
                self._check_mover(folder)
                list(pool.map(move, files[start : start + _MOVES]))
        self._check_mover(folder)
        there = set(_files(fs, self.path))
        if not all(posixpath.join(self.path, name) in there for name in wanted):
            raise self._taken(None)
        fs.delete_file(self.marker)

    def _check_mover(self, folder: str) -> None:
        """Raise where another writer has begun anew on a target that it took for one that was left incomplete."""
        found = (read_json(self.fs, self.marker) or {}).get("from")
        if found != folder:
            raise self._taken(found)

    def _taken(self, other: str | None) -> DatasetExists:
        return DatasetExists(
            f"{self.path} is being replaced by another writer"
            + (f", from {other}" if other else "")
            + "; what is there now is left as it is: write it again when that one has ended, or, if it has died, after "
            "penstock.discard(url)"
        )

    def unmark(self) -> None:
        """Say that the files in the target itself are all there."""
        self.fs.delete_file(self.marker)
        remove(self.fs, posixpath.join(self.path, JOURNAL))


def _files(fs: FileSystem, folder: str) -> list[str]:
    found = fs.get_file_info(FileSelector(folder, recursive=True, allow_not_found=True))
    return [info.path for info in found if info.type == FileType.File]


def _belongs(relative: str) -> bool:
    """Tell whether a file is one that Parquet datasets have: data in the folders of partitions, or known metadata."""
    *folders, name = relative.split("/")
    if folders[:1] == [JOURNAL] or folders[:1] == ["_temporary"]:
        return True
    known = name.endswith(_PARQUET) or name in _METADATA or (name[0] in "._" and name.endswith(".crc"))
    known = known or name.startswith(_DATABRICKS) or temporary_of(name) in _METADATA
    return known and all("=" in folder for folder in folders)
