"""What one writer has made durable: a folder of small files, in which each checkpoint names the files finished since.

`files` reports finished files, in order; this module forces them to disk and only then records them, in a thread of its
own. A writer that resumes reads from here how many rows are safe and which files contain them; all other files are
ignored. The names of the files are those of `dataset.write_markers`, which reads them for messages.
"""

from __future__ import annotations

import posixpath
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.dataset.write_markers import BEGIN, DONE, checkpoints, read_json
from penstock.storage.publish import put_json, remove, sync_file, sync_folders

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    FileSystem = Any  # pyarrow.fs.FileSystem: pyarrow ships no types

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
