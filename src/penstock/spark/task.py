"""What a Python worker of Spark runs for one partition of `penstock.spark.write`: Arrow batches in, files out.

The driver sends a `WriteTask`, which pickles, and gets the names of finished files back. Cases:

- Spark runs a task again, or twice at once: every attempt has its own file names, and the driver keeps one of them;
- the job has failed, was stopped, or has ended while an attempt still runs: the driver has closed the gate, so the
  attempt opens no further file, creates no folder, and removes what it has written;
- a killed worker: the driver removes its files.
"""

from __future__ import annotations

import contextlib
import posixpath
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.dataset.write_markers import read_json
from penstock.errors import DatasetIncomplete, SchemaError, TransformError
from penstock.spark.arrays import encoded_rows, slices, with_cells
from penstock.storage import resolve
from penstock.storage.publish import FILESYSTEM_ERRORS, can_rename, sync_file
from penstock.write.files import FileWriter
from penstock.write.options import WriteOptions
from penstock.write.tasks import table_works

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from penstock.write.layout import StorageLayout
    from penstock.write.staging import DoneFile

REPORT = "path string, num_rows long, num_row_groups long, num_bytes long"
"""What a task returns, as a Spark schema."""
_ROWS_AT_ONCE = 256
"""Rows that become Python values at a time, for a transform."""


@dataclass(frozen=True, slots=True)
class Gate:
    """Shows whether a job is still running: a small file of the driver that names its run."""

    path: str
    run: str

    def is_open(self, fs: Any) -> bool:
        """Tell whether files of this run are still wanted."""
        return (read_json(fs, self.path) or {}).get("run") == self.run


@dataclass(frozen=True, slots=True)
class Target:
    """Where tasks write, and how to reach it."""

    url: str
    storage_options: Mapping[str, Any] | None
    filesystem: Any
    folder: str
    """Path of the files on the filesystem."""
    gate: Gate


@dataclass(frozen=True, slots=True)
class WriteTask:
    """What Spark calls for one partition."""

    target: Target
    layout: StorageLayout
    options: WriteOptions
    transform: Callable[[dict[str, Any]], Mapping[str, Any]] | None = None
    columns: tuple[str, ...] | None = None
    """Names of the DataFrame's columns, in order; they replace the names in the batches."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows of a partition; yield one batch that names the files, or none."""
        from pyspark import TaskContext

        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        try:
            files = self._write(batches, partition, 0 if context is None else context.taskAttemptId())
        except (SchemaError, TransformError) as error:
            # Spark shows the traceback without causes: it must lead into the user's function.
            located = type(error)(f"partition {partition} of the DataFrame, {error}")
            raise located.with_traceback(error.__traceback__) from error
        if files:
            numbers = ("num_rows", "num_row_groups", "num_bytes")
            kinds = pa.schema([("path", pa.string()), *((name, pa.int64()) for name in numbers)])
            columns = zip(*((f.path, f.rows, f.row_groups, f.bytes) for f in files), strict=True)
            arrays = [pa.array(values, kind) for values, kind in zip(columns, kinds.types, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=kinds)

    def _write(self, batches: Iterable[pa.RecordBatch], partition: int, attempt: int) -> list[DoneFile]:
        target = self.target
        fs, _ = resolve(target.url, storage_options=target.storage_options, filesystem=target.filesystem)
        staged = _Staged(fs, target)
        done: list[DoneFile] = []

        def finished(_: int, files: Sequence[DoneFile]) -> None:
            for file in files:
                sync_file(fs, posixpath.join(target.folder, file.path))
            staged.check()  # an upload appears when it is closed, perhaps after the driver has listed the files
            done.extend(files)

        token = f"{partition:06d}-{attempt:08d}-{target.gate.run}"
        options = _TaskOptions(
            **{one.name: getattr(self.options, one.name) for one in fields(WriteOptions)}, token=token
        )
        writer = FileWriter((staged, target.folder), self.layout, options, finished)
        try:
            with ThreadPoolExecutor(1, thread_name_prefix="penstock-sync") as thread:
                writer.sync_soon = _EarlySync(fs, thread)
                first = 0
                for whole in batches:
                    named = whole if self.columns is None else whole.rename_columns(list(self.columns))
                    for batch in slices(named):
                        if self.transform is not None:
                            made = _made(self.transform, batch, first)
                            stored = encoded_rows(made, self.layout, first)
                        else:
                            cells = with_cells(batch, self.layout, first)
                            stored = (work.make() for work in table_works(cells, self.layout, first))
                        for encoded in stored:
                            writer.add(encoded)
                        first += batch.num_rows
                writer.checkpoint()
        except BaseException:
            writer.abandon()
            staged.remove()
            raise
        return done


class _EarlySync:
    """Forces a growing file to disk in a thread, so that closing it takes less time."""

    def __init__(self, fs: Any, thread: ThreadPoolExecutor) -> None:
        self._fs, self._thread = fs, thread
        self._last: Future[None] | None = None

    def __call__(self, path: str) -> None:
        if self._last is None or self._last.done():
            self._last = self._thread.submit(sync_file, self._fs, path)


class _Staged:
    """The filesystem as `FileWriter` uses it: opens files while the gate is open, and remembers them."""

    def __init__(self, fs: Any, target: Target) -> None:
        self._fs, self._target = fs, target
        self._opened: list[str] = []

    def check(self) -> None:
        """Raise DatasetIncomplete if the files are not wanted any more."""
        if not self._target.gate.is_open(self._fs):
            raise DatasetIncomplete(
                f"{self._target.url}: the Spark job that writes it has ended or was stopped; this task stops, too"
            )

    def create_dir(self, path: str, *, recursive: bool) -> None:
        """Create a folder below the folder of the files, but never that folder: the driver may have removed it."""
        self.check()
        if not can_rename(self._fs):  # a store has no folders
            self._fs.create_dir(path, recursive=recursive)
            return
        made = self._target.folder
        for name in filter(None, path[len(made) :].split("/")):
            made = posixpath.join(made, name)
            self._fs.create_dir(made, recursive=False)

    def open_output_stream(self, path: str) -> Any:
        """Open a new file."""
        self.check()
        self._opened.append(path)
        return self._fs.open_output_stream(path)

    def remove(self) -> None:
        """Remove all files that were opened."""
        for path in self._opened:
            with contextlib.suppress(*FILESYSTEM_ERRORS):
                self._fs.delete_file(path)


@dataclass(frozen=True, slots=True)
class _TaskOptions(WriteOptions):
    """Options of one attempt at a partition, with file names that no other attempt has."""

    token: str = ""

    @property
    def prefix(self) -> str:
        """Sorted by name, the files of a partition follow those of the previous one."""
        return f"part-{self.token}-"


def _made(
    transform: Callable[[dict[str, Any]], Mapping[str, Any]], batch: pa.RecordBatch, first: int
) -> Iterator[Mapping[str, Any]]:
    """Yield the result of the user's function for each row; its errors name the row."""
    index = first
    for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
        for row in batch.slice(start, _ROWS_AT_ONCE).to_pylist():
            try:
                made = transform(row)
            except Exception as error:
                text = " ".join(f"{type(error).__name__}: {error}".split())
                located = TransformError(f"row {index}: the transform raised {text}")
                raise located.with_traceback(error.__traceback__) from error
            yield made
            index += 1
