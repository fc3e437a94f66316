"""Copy a dataset with Spark: some of its columns, rows without nulls, in other files and row groups.

Cells are copied as stored, without decoding; the copy is a dataset with a schema. Spark reads and writes,
`materialize_dataset` adds the metadata.
"""

from __future__ import annotations

import os
import posixpath
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pyarrow.fs import FileType

from penstock.dataset.parquet import open_parquet
from penstock.errors import ColumnNotFound, DatasetExists, PlanError, SchemaError, close_names
from penstock.schema.unischema import Unischema, UnischemaField, schema_name
from penstock.spark.materialize import materialize_dataset
from penstock.spark.session import check_session, quoted
from penstock.storage import resolve
from penstock.storage.filesystem import SAME_STORE
from penstock.write.target import WriteTarget

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


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
    """Copy a dataset, or some columns and rows of it; partition columns become ordinary ones.

    Args:
        spark: A session, classic or Connect.
        source_url: The dataset to copy.
        target_url: Where the copy goes.
        field_regex: Regular expressions over whole names of the fields to copy; None for all.
        not_null_fields: Rows with a null in one of these fields are left out, and the copy's schema says so.
        overwrite_output: Replace the dataset at `target_url`; a folder with anything but Parquet in it is never
            replaced.
        partitions_count: Number of files; None: as Spark reads them.
        row_group_size_mb: Size of the row groups; None: Parquet's own.
        hdfs_driver: Petastorm's; without effect.
        storage_options: Passed to fsspec for reading the source's schema.
        filesystem: A pyarrow or fsspec filesystem for the same.

    Raises:
        DatasetExists: Something is at `target_url` that may not be replaced.
        SchemaError: (a ValueError) No field matches `field_regex`.
        ColumnNotFound: `not_null_fields` names a field that is not copied.
        PlanError: (a ValueError) Source and target are one folder, or one lies in the other.
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
    if source_host != target_host and "" not in (source_host[1], target_host[1]):
        return
    if source_host[0] != target_host[0]:
        return
    how = None
    if source == target:
        how = "is the dataset itself"
    elif _is_below(target, source):
        how = "lies in the dataset"
    elif _is_below(source, target):
        how = "holds the dataset"
    if how is not None:
        raise PlanError(
            f"copy_dataset: the target {target_url} {how} that is to be copied, {source_url}; nothing was done. Copy "
            "it to a folder beside it"
        )


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")


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
        if field.name in partitions:
            column = _from_text(_column(quoted(field.name)), schema.fields[field.name])
        else:
            column = _without(field, set(leaves) - set(chosen))
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
