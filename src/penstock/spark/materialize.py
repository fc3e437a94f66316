"""`materialize_dataset`: a block in which Spark writes Parquet, and after which it is a dataset with its schema.

Before the block it sets the size of Spark's row groups; after it, it restores all settings, examines the files, and
stores the schema with them (`dataset/store_schema.py`). Spark itself writes the files, from the user's code.
Cases:

- success: the schema is stored, and the marker of an earlier failure is removed;
- the block raises, or what was written does not match the schema, and files were added or removed: the folder is
  marked, even if Spark's `_SUCCESS` exists (it may be from an earlier job, or the block was not finished), and the
  marker lists the files that were there before;
- the block raises, and the files are unchanged: nothing is marked;
- the driver is killed: a note beside the folder, which exists during the block, does the same;
- a later block succeeds while files of the failed one still exist: it is refused, and the marker stays.

`copy_dataset` uses it to copy a dataset: some of its columns, rows without nulls, in other files and row groups. Cells
are copied as stored, without decoding.
"""

from __future__ import annotations

import os
import posixpath
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pyarrow.fs import FileSelector, FileType

from penstock.dataset.common_metadata import COMMON_METADATA, read_common_metadata
from penstock.dataset.parquet import open_parquet
from penstock.dataset.store_schema import store_schema
from penstock.dataset.write_markers import MARKER, note_path, read_json, this_process
from penstock.engine.inputs import columns_of
from penstock.errors import (
    ColumnNotFound,
    DatasetExists,
    DatasetNotFound,
    PenstockError,
    PlanError,
    SchemaError,
    close_names,
)
from penstock.schema.stored import find_schema
from penstock.schema.unischema import Unischema, UnischemaField, schema_name
from penstock.spark.session import check_session, hadoop_settings, quoted, row_group_settings
from penstock.storage import is_hidden, resolve
from penstock.storage.publish import FILESYSTEM_ERRORS, can_rename, put_json, remove
from penstock.storage.urls import SAME_STORE
from penstock.write.target import WriteTarget

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

_AGAIN = "run the Spark job again with mode('overwrite'), in materialize_dataset(...)"


class PetastormMetadataGenerationError(PenstockError):
    """The metadata of a dataset could not be generated."""


@contextmanager
def materialize_dataset(  # noqa: PLR0913 - Petastorm's signature
    spark: Any,
    dataset_url: str,
    schema: Unischema,
    row_group_size_mb: float | None = None,
    use_summary_metadata: bool = False,
    filesystem_factory: Callable[[], Any] | None = None,
) -> Iterator[None]:
    """Make what Spark writes to `dataset_url` within the block a dataset of this schema.

        >>> with materialize_dataset(spark, url, schema, row_group_size_mb=64):
        ...     rows = spark.sparkContext.parallelize(range(1000)).map(make_row)
        ...     rows = rows.map(lambda row: dict_to_spark_row(schema, row))
        ...     spark.createDataFrame(rows, schema.as_spark_schema()).write.mode("overwrite").parquet(url)

    After the block the schema is in `_common_metadata`, as JSON and as Petastorm's pickle with its numbers of row
    groups. Hadoop's settings are restored, also after an exception; in that case no schema is stored, and a folder
    whose files have changed is marked as incomplete: `penstock.discard` removes what was added to a dataset. Old
    row-group indexes are removed; build them again afterwards.

    Args:
        spark: A session, classic or Connect (there only DataFrames are written, which have no `.rdd`).
        dataset_url: The folder that the block writes, with its name in Spark.
        schema: Fields and codecs of what is written.
        row_group_size_mb: Size of a row group in the file, in MiB (2**20 bytes); None: Parquet's default, 128.
        use_summary_metadata: Also write `_metadata`, with the footers of all files.
        filesystem_factory: Returns the pyarrow or fsspec filesystem on which the metadata is written; None: the
            URL's.

    Raises:
        PetastormMetadataGenerationError: The block wrote no Parquet to `dataset_url`, or did not remove files of an
            earlier job that failed.
        SchemaError: What was written does not match the schema, which is not stored then.
    """
    check_session(spark)
    if not isinstance(schema, Unischema):
        raise SchemaError(f"schema must be a Unischema; got {type(schema).__name__}")
    row_group_bytes = None
    if row_group_size_mb is not None:
        if not (isinstance(row_group_size_mb, int | float) and row_group_size_mb > 0):
            raise PlanError(f"row_group_size_mb must be more than 0, or None; got {row_group_size_mb!r}")
        row_group_bytes = max(1, int(row_group_size_mb * (1 << 20)))
    target = _Target(dataset_url, filesystem_factory)
    before = target.begin()
    try:
        with hadoop_settings(spark, row_group_settings(row_group_bytes, len(schema.fields))):
            yield
        target.finish(schema, before, summary=use_summary_metadata)
    except BaseException:
        target.mark_failed(before)
        raise
    finally:
        target.end()


@dataclass(frozen=True, slots=True)
class _Before:
    """The content of a folder when a block began."""

    files: Mapping[str, tuple[int, int]] | None
    """Relative names, with sizes and times; None: the folder could not be listed."""
    failed: bool = False
    """Whether an earlier job has failed there, and left its marker."""
    good: frozenset[str] = frozenset()
    """Files from before that job."""

    @property
    def kept(self) -> Collection[str] | None:
        """Names of the files that belong to a complete dataset; None: unknown."""
        return self.good if self.failed else self.files


@dataclass(frozen=True, slots=True)
class _Target:
    """The folder that a job writes."""

    url: str
    factory: Callable[[], Any] | None

    @property
    def filesystem(self) -> Any:
        """A filesystem given by the user, or None."""
        return None if self.factory is None else self.factory()

    def _place(self) -> tuple[Any, str]:
        return resolve(self.url, storage_options=None, filesystem=self.filesystem)

    def begin(self) -> _Before:
        """Return the content of the folder, and note it beside the folder; never fails: the block may create the
        folder.
        """
        before = _Before(None)
        with suppress(*FILESYSTEM_ERRORS):
            fs, path = self._place()
            files = _data_files(fs, path)
            failed = read_json(fs, posixpath.join(path, MARKER)) or read_json(fs, note_path(path)) if files else None
            before = _Before(files) if failed is None else _Before(files, True, frozenset(failed.get("before", ())))
            note = {"cure": self._cure(before), "before": sorted(before.kept or ()), "process": this_process()}
            if can_rename(fs):  # a store needs no folders, and may refuse to create them
                fs.create_dir(posixpath.dirname(path), recursive=True)
            put_json(fs, note_path(path), note)
        return before

    def end(self) -> None:
        """Remove the note: the block has ended."""
        with suppress(*FILESYSTEM_ERRORS):
            fs, path = self._place()
            remove(fs, note_path(path))

    def _cure(self, before: _Before) -> str:
        return f"{_AGAIN}, or remove what it added with penstock.discard(url)" if before.kept else _AGAIN

    def mark_failed(self, before: _Before) -> None:
        """Mark the folder as incomplete if the block has changed its files.

        Spark's usual committer leaves nothing of a failed job; others, and several jobs in one block, may.
        """
        with suppress(*FILESYSTEM_ERRORS):  # the error of the block is the one to raise
            fs, path = self._place()
            files = _data_files(fs, path)
            if not files or files == before.files:
                return
            # Discarding removes what is not listed: if nothing is known, list everything.
            kept = files if before.kept is None else before.kept
            put_json(fs, posixpath.join(path, MARKER), {"cure": self._cure(before), "before": sorted(kept)})

    def finish(self, schema: Unischema, before: _Before, *, summary: bool) -> None:
        """Store the schema with the existing files."""
        fs, path = self._place()
        # Files of a job that failed before this block, and which the block has not replaced.
        added = before.files.keys() - before.good if before.failed and before.files else set()
        left = sorted(_data_files(fs, path).keys() & added)
        if left:
            raise PetastormMetadataGenerationError(
                f"an earlier Spark job failed at {self.url}, and {len(left)} of its files are still there, {left[0]!r} "
                "for one, so that the dataset stays incomplete; remove what was added with penstock.discard(url) and "
                f"run this job again, or {_AGAIN}"
            )
        with suppress(*FILESYSTEM_ERRORS):
            fs.delete_file(posixpath.join(path, MARKER))  # of an earlier attempt
        try:
            source = open_parquet(self.url, filesystem=self.filesystem, schema=schema, as_root=True)
            # Refuses what no reader takes.
            columns_of(source.facts.unischema.fields.values(), source.facts.arrow_schema.types)
        except SchemaError as error:
            reason = str(error).rpartition("; ")[0] or str(error)  # the rest is for readers
            raise SchemaError(
                f"what was written to {self.url} does not fit the schema: {reason}; write the "
                f"columns of schema.as_spark_schema(), with the rows of dict_to_spark_row, and {_AGAIN}"
            ) from error
        except DatasetNotFound as error:
            raise PetastormMetadataGenerationError(
                f"nothing was written to {self.url} within materialize_dataset: {error}; write the DataFrame to this "
                "URL inside the block, e.g. df.write.mode('overwrite').parquet(url)"
            ) from error
        known = find_schema(read_common_metadata(source.entries[0].root), path=posixpath.join(path, COMMON_METADATA))
        if known is not None and known != schema and _data_files(fs, path) == before.files:
            raise PetastormMetadataGenerationError(
                f"nothing was written to {self.url} within materialize_dataset, and its files have another schema; use "
                "mode('overwrite'), or petastorm-generate-metadata.py for a schema that describes these files"
            )
        store_schema(source, schema, summary=summary)


def _data_files(fs: Any, path: str) -> dict[str, tuple[int, int]]:
    """Return the relative names of the files in a folder, with sizes and times; {} if there is no folder."""
    found = fs.get_file_info(FileSelector(path, recursive=True, allow_not_found=True))
    named = {info.path[len(path) :].lstrip("/"): info for info in found if info.type == FileType.File}
    return {name: (info.size, info.mtime_ns) for name, info in named.items() if not is_hidden(name)}


def copy_dataset(  # noqa: PLR0913 - Petastorm's signature, and two keywords
    spark: Any,
    source_url: str,
    target_url: str,
    field_regex: Iterable[str] | None = None,
    not_null_fields: Iterable[str] | None = None,
    overwrite_output: bool = False,
    partitions_count: int | None = None,
    row_group_size_mb: float | None = None,
    hdfs_driver: str = "libhdfs3",  # noqa: ARG001
    *,
    storage_options: Mapping[str, Any] | None = None,
    filesystem: Any = None,
) -> None:
    """Copy a dataset, or some of its columns and rows; partition columns become ordinary columns.

    Args:
        spark: A session, classic or Connect.
        source_url: The dataset to copy.
        target_url: The dataset to write.
        field_regex: Regular expressions that match whole names of fields to copy; None: all.
        not_null_fields: Rows with a null in one of these fields are left out, and in the copy's schema
            these fields are not nullable.
        overwrite_output: Replace the dataset at `target_url`; a folder with other files than Parquet is never replaced.
        partitions_count: Number of files; None: as many as Spark's partitions of the source.
        row_group_size_mb: Size of the row groups in MiB; None: Parquet's default.
        hdfs_driver: An argument of Petastorm; has no effect.
        storage_options: Passed to fsspec when the schema of the source is read.
        filesystem: A pyarrow or fsspec filesystem to read the schema from instead.

    Raises:
        DatasetExists: Something is at `target_url` that may not be replaced.
        SchemaError: (a ValueError) No field matches `field_regex`.
        ColumnNotFound: `not_null_fields` names a field that is not copied.
        PlanError: (a ValueError) Source and target are the same folder, or one contains the other.
    """
    check_session(spark)
    _refuse_overlap(source_url, target_url)
    mode = _mode(target_url, overwrite=overwrite_output)
    source = open_parquet(source_url, storage_options=storage_options, filesystem=filesystem)
    not_null = [not_null_fields] if isinstance(not_null_fields, str) else list(not_null_fields or ())
    schema = _chosen(source.facts.unischema, field_regex, not_null)
    frame = _read(spark, source_url, source.facts.constants)
    paths = {leaf: path for field in frame.schema.fields for leaf, path in _leaves(field.name, field.dataType)}
    kept = frame
    for name in not_null:
        kept = kept.where(_column(paths[name]).isNotNull())
    kept = kept.select(*_columns(frame.schema, schema, source.facts.constants))
    if partitions_count:
        kept = kept.repartition(partitions_count)
    with materialize_dataset(spark, target_url, schema, row_group_size_mb, filesystem_factory=None):
        kept.write.mode(mode).option("compression", "none").parquet(target_url)


def _mode(target_url: str, *, overwrite: bool) -> str:
    """Return Spark's mode for the target; raises DatasetExists if something is there that may not be replaced."""
    fs, path = resolve(target_url, storage_options=None, filesystem=None)
    place = WriteTarget.at(fs, path)
    if place.is_free():
        there = fs.get_file_info(place.path).type != FileType.NotFound
        return "append" if there else "error"  # "error" refuses an empty folder too
    if not overwrite:
        raise DatasetExists(
            f"{target_url} exists already, and nothing was copied; copy to another folder, or pass "
            "overwrite_output=True (petastorm-copy-dataset.py: --overwrite-output) to replace it"
        )
    try:
        place.check(overwrite=True)
    except DatasetExists as error:
        raise DatasetExists(str(error).replace("overwrite=True", "overwrite_output=True")) from error
    return "overwrite"


def _refuse_overlap(source_url: str, target_url: str) -> None:
    """Refuse a target inside, over or around the dataset that is read: Spark would delete it, or read its own files."""
    (source_host, source), (target_host, target) = _place(source_url), _place(target_url)
    same_host = source_host[1] == target_host[1] or "" in (source_host[1], target_host[1])
    if source_host[0] != target_host[0] or not same_host:
        return
    inside, outside = (
        f"{target}/".startswith(f"{source.rstrip('/')}/"),
        f"{source}/".startswith(f"{target.rstrip('/')}/"),
    )
    if inside or outside:
        how = "is" if inside and outside else "is inside" if inside else "contains"
        raise PlanError(
            f"copy_dataset: the target {target_url} {how} the dataset to copy, {source_url}; nothing was done. Copy it "
            "to a folder beside it"
        )


def _place(url: str | os.PathLike[str]) -> tuple[tuple[str, str], str]:
    """Return (store, host) and path of a URL, unique for each place, without requests to a store."""
    text = os.fspath(url)
    parts = urlsplit(text)
    if text.lower().startswith("dbfs:"):  # a mount, by another name
        text = parts.path if parts.path.startswith("/Volumes/") else f"/dbfs{parts.path}"
    if text.lower().startswith("file:/") or "://" not in text:
        local = resolve(text, storage_options=None, filesystem=None)[1]
        return ("file", "localhost"), os.path.realpath(local).replace(os.sep, "/")
    scheme = parts.scheme.lower()
    path = posixpath.normpath(f"/{parts.path.strip('/')}")
    return (SAME_STORE.get(scheme, scheme), parts.netloc.lower()), path


def _chosen(schema: Unischema, field_regex: Iterable[str] | None, not_null: list[str]) -> Unischema:
    fields = list(schema.fields.values())
    if field_regex is not None:
        wanted = [field_regex] if isinstance(field_regex, str) else list(field_regex)
        fields = list(schema.create_schema_view(wanted).fields.values())
        if not fields:
            raise SchemaError(
                f"the patterns {wanted} do not match any fields; the dataset has {', '.join(schema.fields)}"
            )
    names = [field.name for field in fields]
    for name in not_null:
        if name not in names:
            raise ColumnNotFound(f"not_null_fields: no field {name!r} is copied; {close_names(name, names)}")
    fields = [field._replace(nullable=False) if field.name in not_null else field for field in fields]
    return Unischema(schema_name(schema), [UnischemaField(*field) for field in fields])


# -- columns as Spark names them ------------------------------------------------------------------------------------


def _read(spark: Any, url: str, partitions: Mapping[str, Any]) -> Any:
    """Return the source as Spark reads it, with partition values as text: Spark would convert 007 to 7."""
    reader = spark.read.option("mergeSchema", "false")
    frame = reader.parquet(url)
    if not partitions:
        return frame
    from pyspark.sql.types import StringType, StructField, StructType

    fields = [StructField(f.name, StringType()) if f.name in partitions else f for f in frame.schema.fields]
    return reader.schema(StructType(fields)).parquet(url)


def _leaves(name: str, kind: Any, above: str = "") -> Iterator[tuple[str, str]]:
    """Yield the columns that readers see in one of Spark's (a field of a struct: "s.a"), and their quoted paths."""
    path = above + quoted(name)
    inner = _struct(kind)
    if inner is None:
        yield name, path
        return
    for child in inner.fields:
        for leaf, below in _leaves(child.name, child.dataType, f"{path}."):
            yield f"{name}.{leaf}", below


def _struct(kind: Any) -> Any:
    """Return the struct that a type is, or that Spark stores it as (an ML vector); None for others."""
    kind = kind.sqlType() if hasattr(kind, "sqlType") else kind
    return kind if hasattr(kind, "fields") else None


def _columns(stored: Any, schema: Unischema, partitions: Mapping[str, Any]) -> list[Any]:
    """Return what is copied, in the order of the schema: whole columns, and structs without the fields not chosen."""
    places = list(schema.fields)
    found = []
    for field in stored.fields:
        leaves = [leaf for leaf, _ in _leaves(field.name, field.dataType)]
        chosen = [leaf for leaf in leaves if leaf in schema.fields]
        if not chosen:
            continue
        column = (
            _from_text(_column(quoted(field.name)), schema.fields[field.name])
            if field.name in partitions
            else _without(field, set(leaves) - set(chosen))
        )
        found.append((places.index(chosen[0]), column.alias(field.name)))
    return [column for _, column in sorted(found, key=lambda one: one[0])]


def _column(path: str) -> Any:
    from pyspark.sql import functions

    return functions.col(path)


def _without(field: Any, dropped: set[str]) -> Any:
    """Return a struct column without some of its fields."""
    column = _column(quoted(field.name))
    if not dropped:
        return column
    if hasattr(field.dataType, "sqlType"):
        raise SchemaError(
            f"column {field.name!r} is one value to Spark ({field.dataType.simpleString()}) and is copied whole or not "
            f"at all; field_regex leaves out {', '.join(sorted(dropped))}"
        )
    return column.dropFields(*_drops(field.name, field.dataType, dropped))


def _drops(name: str, kind: Any, dropped: set[str], above: str = "") -> Iterator[str]:
    """Yield the paths below a struct to drop so that these columns are gone: whole structs if nothing is left."""
    for child in kind.fields:
        whole = f"{name}.{child.name}"
        leaves = {f"{name}.{leaf}" for leaf, _ in _leaves(child.name, child.dataType)}
        if leaves <= dropped:
            yield above + quoted(child.name)
        elif leaves & dropped:
            yield from _drops(whole, _struct(child.dataType), dropped, f"{above}{quoted(child.name)}.")


def _from_text(text: Any, field: UnischemaField) -> Any:
    """Return partition values in the type of the schema; times in them are UTC."""
    from pyspark.sql import functions

    [kind] = Unischema("one", [field]).as_spark_schema().fields
    if type(kind.dataType).__name__ == "TimestampType":  # Spark would assume the time zone of the session
        text = functions.when(text.contains(":"), functions.concat(text, functions.lit("Z"))).otherwise(text)
    return text.cast(kind.dataType)
