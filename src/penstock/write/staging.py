"""Where a dataset is while it is written: a hidden folder beside the target, or the target itself under a marker.

Stands between `writer` and `target`: chooses the form (`dataset.write_markers` describes both), finds what an earlier
writer left, and publishes or removes it. Cases:

- success: the target is complete, nothing else is left;
- an error or Ctrl-C: everything is removed, unless the writer has `resume=True` and keeps finished files;
- a killed process: its files stay; the target is as it was before, or says that it is incomplete;
- a process killed after the target appeared: what it left, perhaps the old dataset, is removed by the next writer;
- two writers at once without `part=`: each has its own hidden folder, and the second to finish finds the dataset of the
  first; on a store the second finds the marker of the first, and if it may overwrite it, the first notices that the
  marker is not its own any more, and leaves everything as it is.

Folders of running writers are never removed: a writer holds its lock until the dataset has appeared, and both choosing
a folder and removing those of dead writers happen under the mutex of the target's parent folder.

`Journal` records what one writer has made durable: small files, each of which names the files finished since the one
before. A writer that resumes reads from there how many rows are safe and which files contain them; all other files are
ignored. The names of the files are those of `dataset.write_markers`, which reads them for messages.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyarrow.fs import FileSelector, FileType, LocalFileSystem

from penstock.dataset.write_markers import (
    ALONE,
    BEGIN,
    DONE,
    JOURNAL,
    SHARED,
    checkpoints,
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
from penstock.storage.publish import FILESYSTEM_ERRORS, can_rename, put_json, remove, restore, sync_file, sync_folders
from penstock.write.target import WriteTarget, claim_alone, files_below

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from penstock.write.options import WriteOptions

    FileSystem = Any  # pyarrow.fs.FileSystem: pyarrow ships no types

_PUBLISHED = "shown.json"
"""Written to a hidden folder before its dataset appears: which folder it is, and how many rows and files it has."""
_GONE = "gone"
"""Suffix of hidden folders that are being removed."""


@dataclass(frozen=True, slots=True)
class StagedDataset:
    """A dataset that is being written."""

    target: WriteTarget
    folder: str | None
    """The hidden folder; None: the target itself, under its marker."""
    token: str = ""
    """Identifies the writer in the marker of a target that is written directly."""

    @property
    def fs(self) -> Any:
        """The filesystem of the target."""
        return self.target.fs

    @property
    def data(self) -> str:
        """The folder of the data files."""
        return self.target.path if self.folder is None else posixpath.join(self.folder, "data")

    @property
    def journal(self) -> str:
        """The folder of all writers' journals."""
        return posixpath.join(self.target.path, JOURNAL) if self.folder is None else f"{self.folder}/journal"

    def writer(self, part: int | None) -> str:
        """Return the folder of one writer's journal and lock."""
        return posixpath.join(self.journal, ALONE if part is None else f"{part:06d}")

    def make(self) -> None:
        """Create the folders; a target that is written directly gets its marker before anything else."""
        if self.folder is not None:
            remove(self.fs, f"{self.folder}/{_PUBLISHED}")  # of an earlier attempt that was not published
        self.fs.create_dir(self.data, recursive=True)
        self.fs.create_dir(self.journal, recursive=True)
        if self.folder is None and read_json(self.fs, self.target.marker) is None:
            if self.token != SHARED:
                self._claim()
            put_json(self.fs, self.target.marker, {"version": 1, "state": "writing", "token": self.token})
        self.check()  # another writer may have started since the target was checked

    def _claim(self) -> None:
        """Raise DatasetExists if another writer starts now, or has started or finished since the target was checked."""
        own = f"{self.journal}/claim-{self.token}.json"

        def others() -> Iterator[str]:
            for info in self.fs.get_file_info(FileSelector(self.journal, allow_not_found=True)):
                if info.type == FileType.File and info.base_name != posixpath.basename(own):
                    yield info.path

        try:
            other = claim_alone(self.fs, own, others)
            files = files_below(self.fs, self.data).values()
            alone = other is None and all(path.startswith(f"{self.journal}/") for path in files)
        except FileNotFoundError:  # another writer has just finished, and removed the folders
            alone = False
        if not alone:
            remove(self.fs, own)
            raise DatasetExists(
                f"{self.target.path} is being written by another process; wait until it finishes, or, if it has died, "
                "pass overwrite=True to replace what it left"
            )

    def check(self) -> None:
        """Raise if another process has discarded or replaced this dataset."""
        if self.folder is None and not self._is_ours():
            raise DatasetExists(
                f"{self.target.path} was discarded or replaced by another writer meanwhile; what is there now is kept: "
                "write it again, or somewhere else"
            )
        if self.folder is not None and self.fs.get_file_info(self.data).type == FileType.NotFound:
            raise DatasetIncomplete(
                f"{self.target.path} cannot be written any further: {self.data} was removed by penstock.discard or "
                "another writer with overwrite=True; write it again"
            )

    def _is_ours(self) -> bool:
        found = read_json(self.fs, self.target.marker)
        return found is not None and found.get("token", "") == self.token and not found.get("from")

    def is_moving(self) -> bool:
        """Tell whether files of the hidden folder have started to replace those of the target: no way back."""
        return self.folder is not None and (read_json(self.fs, self.target.marker) or {}).get("from") == self.data

    def remove_files(self, prefix: str | None = None, *, keep: Collection[str]) -> None:
        """Remove the files of one writer, or all Parquet files, except those to keep (relative paths)."""
        form = re.compile(r".*\.parquet" if prefix is None else re.escape(prefix) + r"\d{6}\.parquet", re.DOTALL)
        for relative, path in files_below(self.fs, self.data).items():
            if form.fullmatch(posixpath.basename(relative)) and relative not in keep:
                self.fs.delete_file(path)

    def publish(self, *, overwrite: bool, files: Sequence[DoneFile]) -> None:
        """Make the target appear, complete; raises DatasetExists if another writer was faster."""
        if self.folder is None:
            self.check()
            self.fs.delete_file(self.target.marker)
            remove(self.fs, self.journal)
            return
        if not self.is_moving():
            self.target.check(overwrite=overwrite)
        sync_folders(self.fs, [self.data])
        put_json(self.fs, f"{self.folder}/{_PUBLISHED}", {"inode": _inode(self.fs, self.data), **totals(files)})
        self.target.publish(self.data, overwrite=overwrite, files=[file.path for file in files])
        self._remove_published()

    def published(self) -> dict[str, Any] | None:
        """Return the totals of the dataset if it was published already, although this folder still exists; else None.

        `data` is then the old dataset, or gone.
        """
        found = None if self.folder is None else read_json(self.fs, f"{self.folder}/{_PUBLISHED}")
        if found is None or self.is_moving():
            return None
        inode = found.pop("inode")
        pending = files_below(self.fs, self.data) if inode is None else _inode(self.fs, self.data) == inode
        return None if pending else found

    def _remove_published(self) -> None:
        """Remove the folder of a published dataset; the file that says so goes last, in case of a kill."""
        folder = gone = str(self.folder)
        if can_rename(self.fs):  # renamed first: nobody writes in a folder of this name
            with contextlib.suppress(*FILESYSTEM_ERRORS):  # another process may be removing it
                gone = folder.removesuffix("writing") + _GONE
                self.fs.move(folder, gone)
        _remove_folder(self.fs, gone)

    def remove(self) -> None:
        """Remove everything that was written here, and nothing else; the marker goes last."""
        if self.folder is not None:
            restore(self.fs, self.data, self.target.path)
            remove(self.fs, self.folder)
            return
        if not self._is_ours():
            return
        before = set((read_json(self.fs, self.target.marker) or {}).get("before", ()))
        for relative, path in files_below(self.fs, self.data).items():
            added = relative not in before and (not before or relative.endswith(".parquet"))
            if added and path != self.target.marker:
                self.fs.delete_file(path)
        remove(self.fs, self.target.marker if before else self.target.path)


def _inode(fs: Any, path: str) -> int | None:
    """Return what identifies a local folder under whatever name; None on stores, or if it does not exist."""
    if isinstance(fs, LocalFileSystem):
        with contextlib.suppress(FileNotFoundError):
            return os.stat(path).st_ino
    return None


def totals(files: Sequence[DoneFile]) -> dict[str, int]:
    """Return the fields of `Written` for some files."""
    return {
        "rows": sum(file.rows for file in files),
        "files": len(files),
        "row_groups": sum(file.row_groups for file in files),
        "bytes": sum(file.bytes for file in files),
    }


def remove_published(target: WriteTarget) -> dict[str, dict[str, Any]]:
    """Remove what writers left that were killed after publishing; return totals by hidden folder."""
    found = {}
    for folder in hidden_folders(target.fs, target.path):
        stage = StagedDataset(target, folder)
        published = stage.published()
        if published is not None:
            found[folder] = published
            stage._remove_published()
    for folder in hidden_folders(target.fs, target.path, _GONE):
        published = read_json(target.fs, f"{folder}/{_PUBLISHED}")
        if published is not None:
            published.pop("inode")
            found[folder.removesuffix(_GONE) + "writing"] = published
        _remove_folder(target.fs, folder)
    return found


def _remove_folder(fs: Any, folder: str) -> None:
    for info in fs.get_file_info(FileSelector(folder, allow_not_found=True)):
        if info.base_name != _PUBLISHED:
            remove(fs, info.path)
    remove(fs, folder)


def claim(target: WriteTarget, options: WriteOptions) -> tuple[StagedDataset, Lock]:
    """Choose where to write, and take this writer's lock there before another process can consider it dead.

    Raises:
        DatasetExists: something is at the target that may not be replaced, or another process writes the same part.
    """
    if isinstance(target.fs, LocalFileSystem):
        os.makedirs(posixpath.dirname(target.path), exist_ok=True)  # the folder of the mutex
    with target.mutex():
        try:
            stage = choose(target, options)
        except FileNotFoundError as error:
            if can_rename(target.fs):
                raise
            raise DatasetExists(
                f"{target.path} is being written or replaced by another process; wait until it finishes"
            ) from error
        lock = Lock(target.fs, stage.writer(options.part))
        if not lock.acquire():
            raise DatasetExists(
                f"{target.path} is being written by another process"
                + ("" if options.part is None else f", also as part {options.part}")
                + "; wait until it finishes, or end it"
            )
    return stage, lock


def choose(target: WriteTarget, options: WriteOptions) -> StagedDataset:
    """Return where to write, created: new, or what an earlier writer or the writers of other parts have started.

    Raises:
        DatasetExists: something is at the target, complete or not, that may not be replaced.
    """
    remove_published(target)
    stage = _marked(target)
    by_spark = "cure" in (read_json(target.fs, target.marker) or {})
    if stage is not None and (by_spark or (options.part is None and not options.resume)):
        if not options.overwrite:
            raise DatasetExists(_why(target))
        if by_spark or stage.folder is not None:
            stage.remove()
        stage = None  # files in the target itself stay until the new ones replace them: their writer may be running
    if stage is None:
        if options.resume and not options.overwrite and not target.is_free():
            raise DatasetExists(
                f"{target.path} already exists, and there is nothing to resume; write somewhere else, or pass "
                "overwrite=True to replace it"
            )
        target.check(overwrite=options.overwrite)
        remove(target.fs, target.note)  # of a Spark block that has ended, or was killed
        if options.part is None and not options.resume and not options.overwrite:
            for folder in hidden_folders(target.fs, target.path):  # finished files can be resumed
                journal = posixpath.join(folder, "journal")
                for writer in writers(target.fs, journal):
                    facts = read_json(target.fs, posixpath.join(writer, BEGIN)) or {}
                    is_kept = facts.get("resume") or posixpath.basename(writer) != ALONE
                    if is_kept and safe_rows(target.fs, writer):
                        raise DatasetExists(str(incomplete(target.fs, target.path, journal)))
        token = os.urandom(6).hex() if options.part is None else SHARED  # parts start at the same time
        hidden = _folder(target, options) if can_rename(target.fs) or not target.is_free() else None
        stage = StagedDataset(target, hidden, token)
    stage.make()
    names = {posixpath.basename(folder) for folder in writers(stage.fs, stage.journal)}
    if (ALONE in names) if options.part is not None else (names - {ALONE}):
        others = "with part=" if options.part is None else "without part="
        raise DatasetExists(
            f"{target.path} is being written {others}, or was and is incomplete; finish that, or penstock.discard(url)"
        )
    return stage


def _why(target: WriteTarget) -> str:
    try:
        refuse_marked(target.fs, target.path)
    except DatasetIncomplete as error:
        return str(error)
    return f"{target.path} is incomplete"


def _folder(target: WriteTarget, options: WriteOptions) -> str:
    """Return the hidden folder for a new writer, or the one to resume."""
    if options.part is not None:
        return target.hidden(SHARED)
    if options.resume:
        alone = {folder: posixpath.join(folder, "journal", ALONE) for folder in hidden_folders(target.fs, target.path)}
        facts = {folder: read_json(target.fs, posixpath.join(writer, BEGIN)) for folder, writer in alone.items()}
        # What Spark began cannot be resumed: its journal says what to do instead.
        found = [folder for folder, fact in facts.items() if fact is not None and "cure" not in fact]
        free = [folder for folder in found if is_idle(target.fs, alone[folder])]
        if found and not free:
            raise DatasetExists(
                f"{target.path} is being written by another process, in {found[0]}; wait until it finishes, or end it"
            )
        if free:
            return max(free, key=lambda folder: safe_rows(target.fs, alone[folder]))
    return target.hidden(os.urandom(6).hex())


def is_idle(fs: Any, folder: str) -> bool:
    """Tell whether no running process is known to hold the lock of this writer's folder."""
    return not Lock(fs, folder).is_held()


def _marked(target: WriteTarget) -> StagedDataset | None:
    """Return the unfinished dataset whose marker is in the target, None if there is no marker."""
    marker = read_json(target.fs, target.marker)
    if marker is None:
        return None
    folder = str(marker["from"]).rpartition("/")[0] if marker.get("from") else None
    return StagedDataset(target, folder, str(marker.get("token", "")))


def adopt_note(target: WriteTarget) -> None:
    """Turn the note of a `materialize_dataset` block whose driver was killed into a marker in the target.

    Only if the target does not open because of it: a dataset that was written since then is complete.

    Raises:
        DatasetExists: the process of the block, on this machine, is still running.
    """
    note = read_json(target.fs, target.note)
    if note is None:
        return
    if _is_running(note.get("process")):
        raise DatasetExists(
            f"{target.path} is being written in a block of materialize_dataset; end that first, or, if there is none, "
            f"remove {target.note}"
        )
    try:
        if not target.is_free():
            refuse_block(target.fs, target.path, [name for name, _ in walk(target.fs, target.path)])
    except DatasetIncomplete:
        if read_json(target.fs, target.marker) is None:
            put_json(target.fs, target.marker, {"cure": note["cure"], "before": note["before"]})
    remove(target.fs, target.note)


def _is_running(process: Any) -> bool:
    """Tell whether the process that `this_process` described is running; False if it is on another machine."""
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


def unfinished(target: WriteTarget) -> list[StagedDataset]:
    """Return every unfinished write of a target, that of several parts first."""
    marked = _marked(target)
    folders = hidden_folders(target.fs, target.path)
    folders.sort(key=lambda folder: folder != target.hidden(SHARED))
    found = [] if marked is None else [marked]
    return found + [StagedDataset(target, folder) for folder in folders if marked is None or folder != marked.folder]


VERSION = 1


@dataclass(frozen=True, slots=True)
class DoneFile:
    """A finished file."""

    path: str
    """Relative to the dataset."""
    rows: int
    row_groups: int
    bytes: int


class Journal:
    """The journal of one writer; `record` may be called from any one thread."""

    def __init__(self, fs: FileSystem, folder: str, data: str) -> None:
        self._fs, self.folder, self._data = fs, folder, data
        self.files: list[DoneFile] = []
        """Files of all checkpoints so far, in order."""
        self.rows = 0
        """Rows in them: the first ones that were given."""
        self._number = 0
        self._pool: ThreadPoolExecutor | None = None
        self._last: Future[None] | None = None
        self._early: Future[None] | None = None

    def load(self) -> None:
        """Read what a writer has made durable; stops at a checkpoint that is damaged or missing."""
        for path in checkpoints(self._fs, self.folder):
            found = read_json(self._fs, path)
            if found is None or posixpath.basename(path) != _name(self._number):
                return
            self.files += [DoneFile(*file) for file in found["files"]]
            self.rows, self._number = int(found["rows"]), self._number + 1

    def start(self, *, resume: bool) -> None:
        """Read what an earlier writer has made durable, to continue it; without `resume`, remove it."""
        if resume:
            self.load()
        remove(self._fs, self._path(DONE))
        for path in checkpoints(self._fs, self.folder)[self._number :]:
            remove(self._fs, path)

    def facts(self) -> dict[str, Any] | None:
        """Return what `begin` has stored, None if nothing."""
        return read_json(self._fs, self._path(BEGIN))

    def begin(self, facts: Mapping[str, Any]) -> None:
        """Store what all files of this writer have in common."""
        self._fs.create_dir(self.folder, recursive=True)
        put_json(self._fs, self._path(BEGIN), {"version": VERSION, **facts})

    def sync_soon(self, path: str) -> None:
        """Start to force an open file to disk, unless one is in progress; closing it then takes less time."""
        if self._early is None or self._early.done():
            self._early = self._threads().submit(sync_file, self._fs, path)

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="penstock-journal")
        return self._pool

    def record(self, rows: int, files: Sequence[DoneFile]) -> None:
        """Make `files` durable, then record that the first `rows` rows are; returns at once, `wait` raises failures."""
        if self._last is not None and self._last.done():
            self._last.result()
        # In order: a checkpoint counts only together with all those before it.
        self._last = self._threads().submit(self._record, self._last, rows, list(files))

    def _record(self, before: Future[None] | None, rows: int, files: list[DoneFile]) -> None:
        if before is not None:
            before.result()
        for file in files:
            sync_file(self._fs, posixpath.join(self._data, file.path))
        folders = sorted({posixpath.dirname(posixpath.join(self._data, file.path)) for file in files})
        sync_folders(self._fs, [*folders, self._data])
        stored = [[file.path, file.rows, file.row_groups, file.bytes] for file in files]
        put_json(self._fs, self._path(_name(self._number)), {"rows": rows, "files": stored})
        self.files += files
        self.rows, self._number = rows, self._number + 1

    def wait(self) -> None:
        """Return when everything recorded is durable."""
        if self._last is not None:
            self._last.result()

    def end(self) -> None:
        """Record that this writer has no more rows."""
        self.wait()
        put_json(self._fs, self._path(DONE), {"rows": self.rows, "checkpoints": self._number})

    def is_done(self) -> bool:
        """Tell whether `end` was called and `load` found everything that it counted."""
        found = read_json(self._fs, self._path(DONE))
        return found is not None and (found["rows"], found["checkpoints"]) == (self.rows, self._number)

    def close(self) -> None:
        """End the thread, after everything recorded is finished."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _path(self, name: str) -> str:
        return posixpath.join(self.folder, name)


def _name(number: int) -> str:
    return f"{number:06d}.json"
