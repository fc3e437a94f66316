"""Where a dataset is while it is written: a hidden folder beside the target, or the target itself under a marker.

Stands between `writer` and `place`: chooses the form (see `dataset.incomplete` for both), finds what an earlier writer
left, and shows or removes it. Cases:

- success: the target is complete, nothing else is left;
- an error or Ctrl-C: everything is removed, unless the writer was told to keep what is safe (`resume=True`);
- a killed process: what was there stays; the target is as it was, or says that it is incomplete;
- a process killed once the target had appeared: what it left, the old dataset maybe, is removed by whoever comes next;
- two writers at once without `part=`: each has its own hidden folder, and the second to end meets the first's dataset;
  on a store the second meets the marker of the first, and where it may overwrite it the first finds the marker not to
  be its own any more, and leaves what is there alone.

Folders of live writers are never removed: a writer holds its lock until the dataset has appeared, and both choosing a
folder and removing those of dead writers happen under the mutex of the target's parent folder (`WriteTarget.mutex`).
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyarrow.fs import FileSelector, FileType, LocalFileSystem

from penstock.dataset.incomplete import (
    ALONE,
    BEGIN,
    JOURNAL,
    SHARED,
    hidden_folders,
    incomplete,
    read_json,
    refuse_block,
    refuse_marked,
    safe_rows,
    this_process,
    writers,
)
from penstock.errors import DatasetExists, DatasetIncomplete
from penstock.storage import walk
from penstock.storage.locks import Lock
from penstock.storage.publish import FILESYSTEM_ERRORS, can_rename, put_json, remove, restore, sync_folders
from penstock.write.target import WriteTarget, claim_alone

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from penstock.write.journal import DoneFile
    from penstock.write.options import WriteOptions

_SHOWN = "shown.json"
"""In a hidden folder whose dataset is about to appear, or has: which folder it is, and how much is in it."""
_GONE = "gone"
"""What the name of a hidden folder ends with that is being removed."""


@dataclass(frozen=True, slots=True)
class StagedDataset:
    """A dataset that is being written."""

    place: WriteTarget
    folder: str | None
    """The hidden folder; None: the target itself, under its marker."""
    token: str = ""
    """What the marker of a target that is written itself says of who writes it."""

    @property
    def fs(self) -> Any:
        """The filesystem of the target."""
        return self.place.fs

    @property
    def data(self) -> str:
        """Where the files go."""
        return self.place.path if self.folder is None else posixpath.join(self.folder, "data")

    @property
    def journal(self) -> str:
        """Where the writers' records are."""
        return posixpath.join(self.place.path, JOURNAL) if self.folder is None else f"{self.folder}/journal"

    def writer(self, part: int | None) -> str:
        """Return the folder of one writer's records and lock."""
        return posixpath.join(self.journal, ALONE if part is None else f"{part:06d}")

    def make(self) -> None:
        """Make the folders; a target that is written itself gets its marker before anything else."""
        if self.folder is not None:
            remove(self.fs, f"{self.folder}/{_SHOWN}")  # of an attempt that did not come to it
        self.fs.create_dir(self.data, recursive=True)
        self.fs.create_dir(self.journal, recursive=True)
        if self.folder is None and read_json(self.fs, self.place.marker) is None:
            if self.token != SHARED:
                self._claim()
            put_json(self.fs, self.place.marker, {"version": 1, "state": "writing", "token": self.token})
        self.check()  # or another writer has begun since the target was looked at: what is there is not ours to remove

    def _claim(self) -> None:
        """Refuse to begin where another writer begins too, or has begun or ended since the target was looked at."""
        own = f"{self.journal}/claim-{self.token}.json"

        def others() -> Iterator[str]:
            for info in self.fs.get_file_info(FileSelector(self.journal, allow_not_found=True)):
                if info.type == FileType.File and info.base_name != posixpath.basename(own):
                    yield info.path

        try:
            other = claim_alone(self.fs, own, others)
            found = self.fs.get_file_info(FileSelector(self.data, recursive=True, allow_not_found=True))
            files = [info.path for info in found if info.type == FileType.File]
            alone = other is None and all(path.startswith(f"{self.journal}/") for path in files)
        except FileNotFoundError:  # another writer has ended just now, and its folders with it
            alone = False
        if not alone:
            remove(self.fs, own)
            raise DatasetExists(
                f"{self.place.path} is being written by another process; wait until it ends, or, if it has died, pass "
                "overwrite=True to replace what it left"
            )

    def check(self) -> None:
        """Raise unless this dataset is still there to be written: somebody may have discarded or replaced it."""
        if self.folder is None and not self._is_ours():
            raise DatasetExists(
                f"{self.place.path} was discarded or replaced by another writer while this one wrote; what is there "
                "now is left as it is: write it again, or somewhere else"
            )
        if self.folder is not None and self.fs.get_file_info(self.data).type == FileType.NotFound:
            raise DatasetIncomplete(
                f"{self.place.path} cannot be written any further: {self.data} is gone, by penstock.discard or another "
                "writer with overwrite=True; write it again"
            )

    def _is_ours(self) -> bool:
        found = read_json(self.fs, self.place.marker)
        return found is not None and found.get("token", "") == self.token and not found.get("from")

    def is_moving(self) -> bool:
        """Tell whether files of a hidden folder have begun to replace those of the target: nothing can be undone."""
        return self.folder is not None and (read_json(self.fs, self.place.marker) or {}).get("from") == self.data

    def keep_only(self, files: Collection[str]) -> None:
        """Remove Parquet files that are none of these (relative paths): left by whoever, they are no part of it."""
        for info in self.fs.get_file_info(FileSelector(self.data, recursive=True, allow_not_found=True)):
            relative = info.path[len(self.data) :].lstrip("/")
            if info.type == FileType.File and relative.endswith(".parquet") and relative not in files:
                self.fs.delete_file(info.path)

    def show(self, *, overwrite: bool, files: Sequence[DoneFile]) -> None:
        """Make the target appear, complete; another writer may have been faster, and then DatasetExists is raised."""
        if self.folder is None:
            self.check()
            self.place.unmark()
            return
        if not self.is_moving():
            self.place.check(overwrite=overwrite)
        sync_folders(self.fs, [self.data])
        put_json(self.fs, f"{self.folder}/{_SHOWN}", {"inode": _inode(self.fs, self.data), **numbers(files)})
        self.place.show(self.data, overwrite=overwrite, files=[file.path for file in files])
        self._forget()

    def shown(self) -> dict[str, Any] | None:
        """Return the numbers of the dataset if it has appeared already, though this folder is still there; else None.

        What lies in `data` then is the old dataset, or nothing.
        """
        found = None if self.folder is None else read_json(self.fs, f"{self.folder}/{_SHOWN}")
        if found is None or self.is_moving():
            return None
        inode = found.pop("inode")
        if inode is not None and _inode(self.fs, self.data) == inode:
            return None
        if inode is None and _has_files(self.fs, self.data):
            return None
        return found

    def _forget(self) -> None:
        """Remove the folder when the target has appeared: what says so goes last, so that it is known after a kill."""
        if self.folder is None:
            return
        folder = self.folder
        if can_rename(self.fs):  # in one step, by a name under which nobody writes
            with contextlib.suppress(*FILESYSTEM_ERRORS):  # somebody else may have been faster
                folder = self.folder.removesuffix("writing") + _GONE
                self.fs.move(self.folder, folder)
        _remove_shown(self.fs, folder)

    def remove_files(self, prefix: str, *, keep: Collection[str]) -> None:
        """Remove a writer's files, but for those to keep (relative paths)."""
        form = re.compile(re.escape(prefix) + r"\d{6}\.parquet")
        for info in self.fs.get_file_info(FileSelector(self.data, recursive=True, allow_not_found=True)):
            relative = info.path[len(self.data) :].lstrip("/")
            if info.type == FileType.File and form.fullmatch(info.base_name) and relative not in keep:
                self.fs.delete_file(info.path)

    def remove(self) -> None:
        """Remove everything that was written here, and nothing else; the marker goes last."""
        if self.folder is not None:
            restore(self.fs, self.data, self.place.path)
            remove(self.fs, self.folder)
            return
        if not self._is_ours():
            return
        before = set((read_json(self.fs, self.place.marker) or {}).get("before", ()))
        for info in self.fs.get_file_info(FileSelector(self.data, recursive=True, allow_not_found=True)):
            relative = info.path[len(self.data) :].lstrip("/")
            added = relative not in before and (not before or relative.endswith(".parquet"))
            if info.type == FileType.File and added and info.path != self.place.marker:
                self.fs.delete_file(info.path)
        remove(self.fs, self.place.marker if before else self.place.path)


def _inode(fs: Any, path: str) -> int | None:
    """Return what tells a local folder from others, under whatever name; None elsewhere, or where there is none."""
    if not isinstance(fs, LocalFileSystem):
        return None
    try:
        return os.stat(path).st_ino
    except FileNotFoundError:
        return None


def _has_files(fs: Any, path: str) -> bool:
    found = fs.get_file_info(FileSelector(path, recursive=True, allow_not_found=True))
    return any(info.type == FileType.File for info in found)


def numbers(files: Sequence[DoneFile]) -> dict[str, int]:
    """Return what `Written` says of some files."""
    return {
        "rows": sum(file.rows for file in files),
        "files": len(files),
        "row_groups": sum(file.row_groups for file in files),
        "bytes": sum(file.bytes for file in files),
    }


def forget_shown(place: WriteTarget) -> dict[str, dict[str, Any]]:
    """Remove what writers left that were killed when the target had appeared; return the folders and their numbers."""
    found = {}
    for folder in hidden_folders(place.fs, place.path):
        stage = StagedDataset(place, folder)
        shown = stage.shown()
        if shown is not None:
            found[folder] = shown
            stage._forget()
    for folder in hidden_folders(place.fs, place.path, _GONE):
        shown = read_json(place.fs, f"{folder}/{_SHOWN}")
        if shown is not None:
            shown.pop("inode")
            found[folder.removesuffix(_GONE) + "writing"] = shown
        _remove_shown(place.fs, folder)
    return found


def _remove_shown(fs: Any, folder: str) -> None:
    for info in fs.get_file_info(FileSelector(folder, allow_not_found=True)):
        if info.base_name != _SHOWN:
            remove(fs, info.path)
    remove(fs, folder)


def claim(place: WriteTarget, options: WriteOptions) -> tuple[StagedDataset, Lock]:
    """Choose the stage to write in, and take this writer's lock in it before anybody can take it for a dead one's.

    Raises:
        DatasetExists: something is at the target that may not be replaced, or another process writes this very part.
    """
    if isinstance(place.fs, LocalFileSystem):
        os.makedirs(posixpath.dirname(place.path), exist_ok=True)  # the folder of the mutex
    with place.mutex():
        try:
            stage = choose(place, options)
        except FileNotFoundError as error:
            if can_rename(place.fs):
                raise
            raise DatasetExists(
                f"{place.path} is being written or replaced by another process at the same time; wait until it ends"
            ) from error
        lock = Lock(place.fs, stage.writer(options.part))
        if not lock.acquire():
            raise DatasetExists(
                f"{place.path} is being written by another process"
                + ("" if options.part is None else f" as part {options.part} too")
                + "; wait until it ends, or end it"
            )
    return stage, lock


def choose(place: WriteTarget, options: WriteOptions) -> StagedDataset:
    """Return the stage to write in, made: a new one, or one that an earlier writer or other parts have begun.

    Raises:
        DatasetExists: something is at the target, whole or unfinished, that may not be replaced.
    """
    forget_shown(place)
    stage = _marked(place)
    by_spark = "cure" in (read_json(place.fs, place.marker) or {})
    if stage is not None and (by_spark or (options.part is None and not options.resume)):
        if not options.overwrite:
            raise DatasetExists(_why(place))
        if by_spark or stage.folder is not None:
            stage.remove()
        stage = None  # files in the target itself stay until the new ones replace them: their writer may be alive
    if stage is None:
        if options.resume and not options.overwrite and not place.is_free():
            raise DatasetExists(
                f"{place.path} exists already, and nothing is left to resume; write somewhere else, or pass "
                "overwrite=True to replace it"
            )
        place.check(overwrite=options.overwrite)
        remove(place.fs, place.note)  # of a block of Spark that is over, or was killed
        if options.part is None and not options.resume and not options.overwrite:
            _refuse_losing(place)
        token = os.urandom(6).hex() if options.part is None else SHARED  # parts begin at the same time
        stage = StagedDataset(
            place, _folder(place, options) if can_rename(place.fs) or not place.is_free() else None, token
        )
    stage.make()
    _refuse_mixing(stage, options.part)
    return stage


def _refuse_losing(place: WriteTarget) -> None:
    """Raise DatasetExists where an earlier writer has left rows for another to go on with."""
    for folder in hidden_folders(place.fs, place.path):
        journal = posixpath.join(folder, "journal")
        for writer in writers(place.fs, journal):
            facts = read_json(place.fs, posixpath.join(writer, BEGIN)) or {}
            is_kept = facts.get("resume") or posixpath.basename(writer) != ALONE
            if is_kept and safe_rows(place.fs, writer):
                raise DatasetExists(str(incomplete(place.fs, place.path, journal)))


def _why(place: WriteTarget) -> str:
    try:
        refuse_marked(place.fs, place.path)
    except DatasetIncomplete as error:
        return str(error)
    return f"{place.path} is incomplete"


def _folder(place: WriteTarget, options: WriteOptions) -> str:
    if options.part is not None:
        return place.hidden(SHARED)
    if options.resume:
        found = [folder for folder in hidden_folders(place.fs, place.path) if _can_resume(place, folder)]
        free = [folder for folder in found if is_idle(place.fs, posixpath.join(folder, "journal", ALONE))]
        if found and not free:
            raise DatasetExists(
                f"{place.path} is being written by another process, in {found[0]}; wait until it ends, or end it"
            )
        if free:
            return max(free, key=lambda folder: safe_rows(place.fs, posixpath.join(folder, "journal", ALONE)))
    return place.hidden(os.urandom(6).hex())


def _can_resume(place: WriteTarget, folder: str) -> bool:
    """Tell whether a hidden folder is that of a writer without part=; what Spark began says its own cure."""
    facts = read_json(place.fs, posixpath.join(folder, "journal", ALONE, BEGIN))
    return facts is not None and folder != place.hidden(SHARED) and "cure" not in facts


def is_idle(fs: Any, folder: str) -> bool:
    """Tell whether no live process is known to hold the lock of this writer's folder."""
    return not Lock(fs, folder).is_held()


def _refuse_mixing(stage: StagedDataset, part: int | None) -> None:
    names = {posixpath.basename(folder) for folder in writers(stage.fs, stage.journal)}
    alone = ALONE in names
    if (part is not None and alone) or (part is None and names - {ALONE}):
        others = "one writer without part=" if alone else "writers with part="
        raise DatasetExists(
            f"{stage.place.path} is being written by {others}, or was and is incomplete; finish that, "
            "or penstock.discard(url)"
        )


def _marked(place: WriteTarget) -> StagedDataset | None:
    """Return the unfinished dataset whose marker is in the target, None where there is none."""
    marker = read_json(place.fs, place.marker)
    if marker is None:
        return None
    folder = str(marker["from"]).rpartition("/")[0] if marker.get("from") else None
    return StagedDataset(place, folder, str(marker.get("token", "")))


def adopt_note(place: WriteTarget) -> None:
    """Put the note that a block of `materialize_dataset` left, whose driver was killed, into the target as its marker.

    Only where the target does not open for that reason: a dataset that somebody has written since is complete.

    Raises:
        DatasetExists: the block's process, on this machine, is alive.
    """
    note = read_json(place.fs, place.note)
    if note is None:
        return
    if _is_alive(note.get("process")):
        raise DatasetExists(
            f"{place.path} is being written in a block of materialize_dataset; end that first, or, if there is none, "
            f"remove {place.note}"
        )
    try:
        if not place.is_free():
            refuse_block(place.fs, place.path, [name for name, _ in walk(place.fs, place.path)])
    except DatasetIncomplete:
        if read_json(place.fs, place.marker) is None:
            put_json(place.fs, place.marker, {"cure": note["cure"], "before": note["before"]})
    remove(place.fs, place.note)


def _is_alive(process: Any) -> bool:
    """Tell whether a process is, as `this_process` has told of it; of other machines nobody knows."""
    mine = this_process()
    if not isinstance(process, list) or process[:1] != mine[:1]:
        return False
    if process[1] == mine[1]:
        return bool(process == mine)
    try:
        os.kill(int(process[1]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def unfinished(place: WriteTarget) -> list[StagedDataset]:
    """Return every unfinished writing of a target, those of several parts first."""
    marked = _marked(place)
    folders = hidden_folders(place.fs, place.path)
    folders.sort(key=lambda folder: folder != place.hidden(SHARED))
    found = [] if marked is None else [marked]
    return found + [StagedDataset(place, folder) for folder in folders if marked is None or folder != marked.folder]
