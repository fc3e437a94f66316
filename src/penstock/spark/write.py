"""`penstock.spark.write`: a DataFrame to a dataset, encoded and written by the executors themselves.

Spark hands each partition to a Python worker as Arrow batches (`mapInArrow`); the worker encodes the cells and writes
Parquet files with the stages of `penstock.write`; the driver learns their names and shows all of them at once. Rows
never go back to the JVM, and no RDD is used, so it works on Spark Connect too. Cases:

- success: the dataset appears whole, files in the order of the partitions;
- a task fails and Spark runs it again, or twice at once: every attempt has files of its own, those that did not end
  well are removed;
- the job fails, or Ctrl-C: everything is removed, the target is as it was;
- the driver dies: the target is as it was; what was written stays in a hidden folder until `penstock.discard(url)`.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyarrow.fs import FileSelector, FileType

import penstock.errors
from penstock.dataset.incomplete import ALONE
from penstock.errors import PenstockError, SchemaError
from penstock.schema.arrow import arrow_schema
from penstock.schema.unischema import Unischema
from penstock.spark.arrays import slices, with_cells
from penstock.spark.rows import encoded_rows
from penstock.storage import resolve
from penstock.write.cells import refuse_names, refuse_null
from penstock.write.durable import Lock, sync_file
from penstock.write.files import FileWriter, Written
from penstock.write.finish import facts_of, finish
from penstock.write.journal import DoneFile, Journal
from penstock.write.layout import Layout, plan_layout
from penstock.write.options import AUTO, ROW_GROUP_BYTES, Compression, WriteOptions
from penstock.write.place import Place
from penstock.write.stage import Stage, choose
from penstock.write.tables import table_works
from penstock.write.writer import summary

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

_ROWS_AT_ONCE = 256
"""Rows that become Python values at a time, for a transform."""
_REPORT = "path string, num_rows long, num_row_groups long, num_bytes long"


def write(  # noqa: PLR0913 - the public factory takes flat keywords
    df: Any,
    url: str | os.PathLike[str],
    schema: Unischema,
    *,
    row_group_bytes: int = ROW_GROUP_BYTES,
    rows_per_file: int | None = None,
    partition_by: str | Sequence[str] | None = None,
    overwrite: bool = False,
    transform: Callable[[dict[str, Any]], Mapping[str, Any]] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    filesystem: Any = None,
    compression: Compression = AUTO,
) -> Written:
    """Write a Spark DataFrame as a dataset of this schema; return what was written.

    Rows keep the order of the DataFrame. Every partition gives files of its own, so `df.coalesce(n)` decides their
    number. The dataset appears whole at the end, or not at all.

        >>> penstock.spark.write(df.select("id", "points", "label"), "/data/scans", schema)
        >>> penstock.spark.write(paths, "/data/scans", schema, transform=lambda row: read_scan(row["path"]))

    A column of a field with a codec may hold lists (nested as deep as the field has dimensions, or flat), ML vectors,
    the raw bytes of arrays of fixed shape, or cells that the codec has encoded already. Other columns hold plain
    values, which are cast where nothing is lost but digits of floats.

    Args:
        df: the DataFrame, of a classic session or of Spark Connect. Its columns are the schema's fields, in any order;
            fields that may be null may be missing.
        url: folder to write, which the executors reach under the same name; a path or any URL that `penstock.open`
            takes. An empty folder may be there.
        schema: fields and codecs.
        row_group_bytes: most bytes of a row group, encoded and before Parquet's compression; at least one row is in.
        rows_per_file: rows of each file but the last of its partition; None: files of about 512 MiB.
        partition_by: columns that become folders (`name=value`) instead of being stored in the files.
        overwrite: replace the dataset at `url` if there is one; old or new is there at any time. A folder with anything
            but Parquet in it is never replaced.
        transform: makes a row of the schema's values (a dict, as `penstock.write` takes) of each row of the DataFrame
            (a dict of its columns), on the executors: what `rdd.map` is in Petastorm, without the way through the JVM.
        storage_options: for the filesystem of a URL; sent to the executors.
        filesystem: a pyarrow or fsspec filesystem to use instead; it must pickle.
        compression: Parquet's codec, or one for each column; "auto" is snappy, and none for images and zipped arrays.

    Raises:
        DatasetExists: something is at `url` already.
        SchemaError: a column or row does not fit the schema; names the row, its partition, and the field.
    """
    if not isinstance(schema, Unischema):
        raise SchemaError(f"schema must be a Unischema; got {type(schema).__name__}")
    names = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by or ())
    options = WriteOptions(row_group_bytes, rows_per_file, names, overwrite, compression)
    layout = plan_layout(schema, arrow_schema(schema), names)
    if transform is None:
        _check_columns(df.columns, layout)
    fs, path = resolve(url, storage_options=storage_options, filesystem=filesystem)
    stage = choose(Place(fs, path.rstrip("/") or path), options)
    facts = facts_of(layout, overwrite=overwrite)
    journal = Journal(fs, posixpath.join(stage.journal, ALONE), stage.data)
    lock = Lock(fs, journal.folder)
    try:
        lock.take()
        journal.begin({**facts, "cure": "run the Spark job again (it begins anew)"})
        target = _Target(str(url), storage_options, filesystem, stage.data)
        files = _run(df, _Task(target, layout, options, transform))
        _remove_others(stage, {file.path for file in files})
        files = finish(stage, facts, files)
        lock.give_back()
        stage.show(overwrite=overwrite)
    except BaseException:
        lock.give_back()
        stage.remove()
        raise
    return summary(str(url), files)


def _check_columns(columns: Sequence[str], layout: Layout) -> None:
    """Refuse columns that the schema lacks, and fields that are missing and may not be null, before a job runs."""
    refuse_names(columns, layout.unischema.fields)
    for name, field in layout.unischema.fields.items():
        if name not in columns:
            refuse_null(field, 0)


def _run(df: Any, task: _Task) -> list[DoneFile]:
    """Run the job; return the files of the attempts that ended well, in order."""
    try:
        rows = df.mapInArrow(task, _REPORT).collect()
    except Exception as error:
        own = _own_error(str(error))
        if own is None:
            raise
        raise own from error
    return sorted((DoneFile(*row) for row in rows), key=lambda file: posixpath.basename(file.path))


def _own_error(text: str) -> PenstockError | None:
    """Return an error of ours that a task raised, which Spark has put into a long text."""
    found = re.search(r"^penstock\.errors\.(\w+): (.+)$", text, re.MULTILINE)
    kind = getattr(penstock.errors, found[1], None) if found else None
    if found is None or not (isinstance(kind, type) and issubclass(kind, PenstockError)):
        return None
    return kind(found[2])


def _remove_others(stage: Stage, keep: set[str]) -> None:
    """Remove files of attempts that did not end well: Spark has run their tasks again."""
    for info in stage.fs.get_file_info(FileSelector(stage.data, recursive=True)):
        relative = info.path[len(stage.data) :].lstrip("/")
        if info.type == FileType.File and relative.endswith(".parquet") and relative not in keep:
            stage.fs.delete_file(info.path)


# -- on the executors ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Target:
    """Where tasks write; what they need to get there."""

    url: str
    storage_options: Mapping[str, Any] | None
    filesystem: Any
    folder: str
    """Path of the files on the filesystem."""


@dataclass(frozen=True, slots=True)
class _TaskOptions(WriteOptions):
    """Options of one attempt at a partition, whose files have names that no other attempt has."""

    token: str = ""

    @property
    def prefix(self) -> str:
        """Sorted by name, the files of a partition follow those of the one before."""
        return f"part-{self.token}-"


@dataclass(frozen=True, slots=True)
class _Task:
    """What a Python worker of Spark runs for one partition: Arrow batches in, names of finished files out. Pickles."""

    target: _Target
    layout: Layout
    options: WriteOptions
    transform: Callable[[dict[str, Any]], Mapping[str, Any]] | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        try:
            files = self._write(batches, partition, 0 if context is None else context.taskAttemptId())
        except SchemaError as error:
            raise type(error)(f"partition {partition} of the DataFrame, {error}") from error
        if files:
            yield _report(files)

    def _write(self, batches: Iterable[pa.RecordBatch], partition: int, attempt: int) -> list[DoneFile]:
        target = self.target
        fs, _ = resolve(target.url, storage_options=target.storage_options, filesystem=target.filesystem)
        done: list[DoneFile] = []

        def finished(_: int, files: Sequence[DoneFile]) -> None:
            for file in files:
                sync_file(fs, posixpath.join(target.folder, file.path))
            done.extend(files)

        options = _task_options(self.options, f"{partition:06d}-{attempt:08d}")
        writer = FileWriter((fs, target.folder), self.layout, options, finished)
        try:
            self._pump(batches, writer)
            writer.checkpoint()
        except BaseException:
            writer.abandon()
            raise
        return done

    def _pump(self, batches: Iterable[pa.RecordBatch], writer: FileWriter) -> None:
        first = 0
        for whole in batches:
            for batch in slices(whole):
                for stored in self._stored(batch, first):
                    writer.add(stored)
                first += batch.num_rows

    def _stored(self, batch: pa.RecordBatch, first: int) -> Iterator[pa.RecordBatch]:
        """Give the rows of a batch in storage form."""
        if self.transform is not None:
            rows = (self.transform(row) for row in _each(batch))
            yield from encoded_rows(rows, self.layout, first)
            return
        for work in table_works(with_cells(batch, self.layout, first), self.layout, first):
            yield work.make()


def _each(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
        yield from batch.slice(start, _ROWS_AT_ONCE).to_pylist()


def _task_options(options: WriteOptions, token: str) -> _TaskOptions:
    return _TaskOptions(
        options.row_group_bytes,
        options.rows_per_file,
        options.partition_by,
        options.overwrite,
        options.compression,
        token=token,
    )


def _report(files: Sequence[DoneFile]) -> pa.RecordBatch:
    import pyarrow as pa

    columns = list(zip(*((f.path, f.rows, f.row_groups, f.bytes) for f in files), strict=True))
    kinds = [("path", pa.string()), ("num_rows", pa.int64()), ("num_row_groups", pa.int64()), ("num_bytes", pa.int64())]
    return pa.RecordBatch.from_arrays(
        [pa.array(c, kind) for c, (_, kind) in zip(columns, kinds, strict=True)], schema=pa.schema(kinds)
    )
