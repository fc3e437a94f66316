"""The target of a write: whether it may be written or replaced, and how the finished dataset gets there.

`staging` fills a hidden folder and this module puts it in the target's place: the dataset appears complete or not at
all. It knows filesystems and paths, not Parquet:

- filesystems that rename: `storage.publish` does it, and checks again a target that appeared meanwhile;
- object stores: a marker is written to the target, the old files are deleted, the new ones moved one by one, and the
  marker is deleted last. A dataset with a marker does not open, and committing again continues. Only one writer at a
  time may do so; others are refused.
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

from penstock.dataset.page_sidecar import SIDECAR
from penstock.dataset.write_markers import JOURNAL, MARKER, hidden_folders, hidden_name, note_path, read_json
from penstock.errors import DatasetExists
from penstock.storage.locks import mutex
from penstock.storage.publish import can_rename, is_free, publish_folder, put_json, remove, temporary_of

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable, Iterable, Iterator

    FileSystem = Any  # pyarrow.fs.FileSystem: pyarrow ships no types

_PARQUET = (".parquet", ".parq")
_METADATA = {"_SUCCESS", "_metadata", "_common_metadata", MARKER, SIDECAR}
_DATABRICKS = ("_committed_", "_started_")
_CLAIM = "claim.json"
"""In a hidden folder on a store whose files are replacing those of the target."""
_MOVES = 16
"""Files moved at a time on a store, where a move is a request or two."""
_CLAIM_TRIES = 8
_CLAIM_PAUSE_S = 0.08


def files_below(fs: FileSystem, folder: str) -> dict[str, str]:
    """Return the path of every file below a folder by its relative path; {} if there is no such folder."""
    found = fs.get_file_info(FileSelector(folder, recursive=True, allow_not_found=True))
    return {info.path[len(folder) :].lstrip("/"): info.path for info in found if info.type == FileType.File}


def claim_alone(fs: FileSystem, path: str, others: Callable[[], Iterable[str]]) -> str | None:
    """Claim exclusive access on a store, which has no locks, by a small file; returns None if this process has it.

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
    """The folder that a dataset is written to, on its filesystem."""

    fs: FileSystem
    path: str
    """Without a trailing slash."""

    @classmethod
    def at(cls, fs: FileSystem, path: str) -> WriteTarget:
        """Return the target of a path; a symbolic link is followed and stays."""
        path = path.rstrip("/") or path
        if isinstance(fs, LocalFileSystem) and os.path.islink(path):
            path = os.path.realpath(path).replace(os.sep, "/")
        return cls(fs, path)

    @property
    def marker(self) -> str:
        """The file that marks the target as incomplete."""
        return posixpath.join(self.path, MARKER)

    @property
    def note(self) -> str:
        """The file beside the target that exists while Spark writes it in a `materialize_dataset` block."""
        return note_path(self.path)

    def hidden(self, token: str) -> str:
        """Return the hidden folder beside the target that has this token."""
        parent, name = posixpath.split(self.path)
        return posixpath.join(parent, hidden_name(name, token))

    def mutex(self) -> contextlib.AbstractContextManager[bool]:
        """Hold the lock of the target's parent folder: see `storage.locks`."""
        return mutex(self.fs, posixpath.dirname(self.path))

    def is_free(self) -> bool:
        """Tell whether nothing is there, or an empty folder."""
        return is_free(self.fs, self.path)

    def check(self, *, overwrite: bool) -> None:
        """Raise DatasetExists if something is there that may not be replaced."""
        if self.is_free():
            return
        if not overwrite:
            raise DatasetExists(f"{self.path} already exists; write somewhere else, or pass overwrite=True")
        other = self._other_file()
        if other is not None:
            raise DatasetExists(
                f"{self.path} contains {other!r}, which is not part of a Parquet dataset, so overwrite=True does not "
                "replace it; write somewhere else, or remove it yourself"
            )

    def _other_file(self) -> str | None:
        """Return the first name below the target that a Parquet dataset would not contain, or None."""
        while True:
            info = self.fs.get_file_info(self.path)
            if info.type == FileType.File:
                return None if info.path.endswith(_PARQUET) else str(info.base_name)
            try:
                return next((name for name in files_below(self.fs, self.path) if not _belongs(name)), None)
            except FileNotFoundError:  # another writer has just replaced it
                continue

    def publish(self, folder: str, *, overwrite: bool, files: Iterable[str] = ()) -> None:
        """Put a complete folder, which holds these files (relative paths), in the target's place.

        Raises:
            DatasetExists: something is there that may not be replaced, even if it appeared a moment ago.
        """
        if can_rename(self.fs):
            publish_folder(self.fs, folder, self.path, check=lambda: self.check(overwrite=overwrite))
            return
        try:
            self._move_files(folder, files)
        except FileNotFoundError as error:  # another writer considered this one dead, and removed its files
            raise self._taken(None) from error

    def _move_files(self, folder: str, wanted: Iterable[str]) -> None:
        """Replace the files of a target on a store; a target whose marker has the state `moving` has no old files left.

        One writer at a time: its claim lies in its hidden folder and is removed with it.
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
            for path in files_below(fs, self.path).values():
                if path != self.marker:
                    fs.delete_file(path)
            self._check_mover(folder)
            put_json(fs, self.marker, {"version": 1, "state": "moving", "from": folder})

        def move(relative: str) -> None:
            target = posixpath.join(self.path, relative)
            fs.create_dir(posixpath.dirname(target), recursive=True)
            fs.move(posixpath.join(folder, relative), target)

        files = list(files_below(fs, folder))
        with ThreadPoolExecutor(_MOVES) as pool:
            for start in range(0, len(files), _MOVES):
                self._check_mover(folder)
                list(pool.map(move, files[start : start + _MOVES]))
        self._check_mover(folder)
        if not set(wanted) <= files_below(fs, self.path).keys():
            raise self._taken(None)
        fs.delete_file(self.marker)

    def _check_mover(self, folder: str) -> None:
        """Raise if another writer has started over because it considered this one dead."""
        found = (read_json(self.fs, self.marker) or {}).get("from")
        if found != folder:
            raise self._taken(found)

    def _taken(self, other: str | None) -> DatasetExists:
        return DatasetExists(
            f"{self.path} is being replaced by another writer"
            + (f", from {other}" if other else "")
            + "; what is there now is kept: write it again when that writer has finished, or, if it has died, after "
            "penstock.discard(url)"
        )


def _belongs(relative: str) -> bool:
    """Tell whether a file is one that Parquet datasets have: data in partition folders, or known metadata."""
    *folders, name = relative.split("/")
    if folders[:1] == [JOURNAL] or folders[:1] == ["_temporary"]:
        return True
    known = (
        name.endswith(_PARQUET)
        or name.startswith(_DATABRICKS)
        or (name[0] in "._" and name.endswith(".crc"))
        or name in _METADATA
        or temporary_of(name) in _METADATA
    )
    return known and all("=" in folder for folder in folders)
