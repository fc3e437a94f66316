"""`penstock.spark.write`: a DataFrame to a dataset, encoded and written by the executors themselves.

Spark passes each partition to a Python worker as Arrow batches (`mapInArrow`); the worker encodes the cells and writes
Parquet files with the stages of `penstock.write`; the driver gets their names and publishes all of them at once. Rows
never go back to the JVM, and no RDD is used, so it works on Spark Connect too. Cases:

- success: the dataset appears complete, files in the order of the partitions;
- a task fails and Spark runs it again, or twice at once: every attempt has its own files, those of failed ones are
  removed;
- the job fails, or Ctrl-C: the job is cancelled and everything is removed, the target is unchanged; tasks that still
  run find their gate closed (see `spark/task.py`);
- the driver dies: the target is unchanged; what was written stays in a hidden folder until `penstock.discard(url)`.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyarrow.fs import FileSelector, FileType, LocalFileSystem

import penstock.errors
from penstock.dataset.write_markers import BEGIN
from penstock.errors import DatasetExists, PenstockError, PlanError, SchemaError
from penstock.schema.arrow import arrow_schema
from penstock.schema.unischema import Unischema
from penstock.spark.session import cancelled_on_error, check_columns
from penstock.spark.task import REPORT, Gate, Target, WriteTask
from penstock.storage.filesystem import first_look, resolve
from penstock.storage.publish import FILESYSTEM_ERRORS, remove
from penstock.write.cells import refuse_names, refuse_null
from penstock.write.commits import facts_of, remove_dead, write_metadata
from penstock.write.files import Written
from penstock.write.layout import plan_layout
from penstock.write.options import AUTO, ROW_GROUP_BYTES, Compression, WriteOptions
from penstock.write.staging import DoneFile, Journal, StagedDataset, claim, totals
from penstock.write.target import WriteTarget

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_CURE = {"cure": "run the Spark job again (it starts over)"}
_CLEAR_S = 5.0
"""How long to look for files of a failed job: Spark needs some 4 seconds to end the Python workers of a dead job."""


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

    Rows keep the order of the DataFrame. Every partition becomes separate files, so `df.coalesce(n)` sets their number.
    The dataset appears complete at the end, or not at all.

        >>> penstock.spark.write(df.select("id", "points", "label"), "/data/scans", schema)
        >>> penstock.spark.write(paths, "/data/scans", schema, transform=lambda row: read_scan(row["path"]))

    The column of a field with a codec may contain lists (flat, or nested as deep as the field has dimensions), ML
    vectors, the raw bytes of arrays of fixed shape, or cells that are encoded already. Other columns contain plain
    values, which are cast if nothing but digits of floats is lost.

    Args:
        df: the DataFrame, of a classic session or of Spark Connect. Its columns are the fields of the schema, in any
            order; nullable fields may be missing.
        url: folder to write, with the same name for the executors; a path or any URL that `penstock.open` takes. It may
            be an existing empty folder.
        schema: fields and codecs.
        row_group_bytes: most bytes of a row group, encoded and before Parquet's compression; at least one row.
        rows_per_file: rows of each file except the last of its partition; None: files of about 512 MiB.
        partition_by: columns that become folders (`name=value`) instead of being stored in the files.
        overwrite: replace an existing dataset at `url`, in one step. A folder with other files than Parquet is never
            replaced.
        transform: function that turns each row of the DataFrame (a dict of its columns) into a row of the schema (a
            dict, as `penstock.write` takes), on the executors: `rdd.map` of Petastorm, but not through the JVM.
        storage_options: for the filesystem of a URL; sent to the executors.
        filesystem: a pyarrow or fsspec filesystem to use instead; it must pickle.
        compression: Parquet's codec, or one for each column; "auto" is snappy, and none for images and zipped arrays.

    Raises:
        DatasetExists: something is at `url` already.
        SchemaError: a column or row does not fit the schema; names the row, its partition, and the field.
        TypeError: `df` is not a Spark DataFrame.
        TransformError: the transform raised an error; names the row of the partition.
    """
    if not all(hasattr(df, name) for name in ("mapInArrow", "sparkSession", "columns")):
        raise TypeError(
            f"penstock.spark.write wants a Spark DataFrame; got {type(df).__module__}.{type(df).__name__}. "
            "spark.createDataFrame(...) makes one of rows and of pandas; penstock.write(...) takes them without Spark"
        )
    if df.isStreaming:
        raise PlanError("a streaming DataFrame has no end and cannot be a dataset; write it to a table first")
    check_columns(df)
    if not isinstance(schema, Unischema):
        raise SchemaError(f"schema must be a Unischema; got {type(schema).__name__}")
    names = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by or ())
    options = WriteOptions(row_group_bytes, rows_per_file, names, overwrite, compression)
    layout = plan_layout(schema, arrow_schema(schema), names)
    if transform is None:
        refuse_names(df.columns, schema.fields)
        for name, field in schema.fields.items():
            if name not in df.columns:
                refuse_null(field, 0)
    facts = facts_of(layout, overwrite=overwrite)
    fs, path = resolve(url, storage_options=storage_options, filesystem=filesystem)
    first_look(fs, path, url)
    stage, lock = claim(WriteTarget.at(fs, path), options)
    journal = Journal(fs, stage.writer(None), stage.data)
    gate = Gate(posixpath.join(journal.folder, BEGIN), os.urandom(4).hex())
    try:
        journal.begin({**facts, **_CURE, "run": gate.run})
        target = Target(str(url), storage_options, filesystem, stage.data, gate)
        files = _run(df, WriteTask(target, layout, options, transform))
        journal.begin({**facts, **_CURE})  # closes the gate: an attempt that Spark no longer needs may still be running
        stage.remove_files(keep={file.path for file in files})
        files = write_metadata(stage, facts, files)
    except BaseException:
        _clear(stage, gate)
        lock.release()
        raise
    try:
        stage.publish(overwrite=overwrite, files=files)
    except DatasetExists:  # nothing was moved yet; afterwards the files belong to the target
        _clear(stage, gate)
        raise
    finally:
        lock.release()
    remove_dead(stage)
    return Written(str(url), **totals(files))


def _run(df: Any, task: WriteTask) -> list[DoneFile]:
    """Run the job; return the files of successful attempts, in order.

    Spark takes a dot in the name of a column for a struct: so columns are passed to the task by number, and it knows
    their names.
    """
    numbered = df.toDF(*(f"c{index}" for index in range(len(df.columns))))
    task = replace(task, columns=tuple(df.columns))
    try:
        with cancelled_on_error(df.sparkSession, f"penstock-write-{task.target.gate.run}"):
            rows = numbered.mapInArrow(task, REPORT).collect()
    except Exception as error:
        own = _own_error(str(error))
        if own is None:
            raise
        raise own from error
    return sorted((DoneFile(*row) for row in rows), key=lambda file: posixpath.basename(file.path))


def _own_error(text: str) -> PenstockError | None:
    """Return an error of ours that a task raised, which Spark has put into a long text with its causes."""
    found = re.findall(r"^penstock\.errors\.(\w+): (.+)$", text, re.MULTILINE)
    found.sort(key=lambda one: not one[1].startswith("partition "))  # its cause does not name the place
    kind = getattr(penstock.errors, found[0][0], None) if found else None
    return kind(found[0][1]) if isinstance(kind, type) and issubclass(kind, PenstockError) else None


def _clear(stage: StagedDataset, gate: Gate) -> None:
    """Remove everything that a failed job wrote, and what its last tasks may still add.

    When the gate is gone, a local task can only add the file that it was just opening. Elsewhere a file may appear when
    it is closed: it is looked for until Spark has ended all tasks.
    """
    remove(stage.fs, gate.path)
    end = time.monotonic() + _CLEAR_S
    stage.remove()
    while time.monotonic() < end and not (
        isinstance(stage.fs, LocalFileSystem)
        and stage.fs.get_file_info(stage.folder or stage.data).type == FileType.NotFound
    ):
        time.sleep(0.1)
        _remove_run(stage, gate.run)


def _remove_run(stage: StagedDataset, run: str) -> None:
    """Remove what is left of one run; in a target that is written directly, no file of another writer."""
    if stage.folder is not None:
        remove(stage.fs, stage.folder)
        return
    with contextlib.suppress(*FILESYSTEM_ERRORS):
        for info in stage.fs.get_file_info(FileSelector(stage.data, recursive=True, allow_not_found=True)):
            is_parquet = info.type == FileType.File and info.path.endswith(".parquet")
            if is_parquet and f"-{run}-" in info.path[len(stage.data) :]:
                stage.fs.delete_file(info.path)
