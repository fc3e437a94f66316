"""Copy a dataset with Spark: some of its columns, rows without nulls, in other files and row groups.

Cells are copied as they are stored, without decoding; what is written is a dataset again, with its schema. Reading and
writing are Spark's, the metadata is `materialize_dataset`'s.
"""

from __future__ import annotations

import os
import posixpath
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from penstock.dataset.parquet import open_parquet
from penstock.errors import ColumnNotFound, PlanError, SchemaError, close_names
from penstock.schema.unischema import Unischema, UnischemaField
from penstock.spark.materialize import materialize_dataset
from penstock.storage import resolve

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_SAME_STORE = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "abfss"}
"""Schemes that lead to one store."""


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
        overwrite_output: Replace what is at `target_url`; else Spark refuses where something is.
        partitions_count: Number of files; None: as Spark reads them.
        row_group_size_mb: Size of the row groups; None: Parquet's own.
        hdfs_driver: Petastorm's; without effect.
        storage_options: Passed to fsspec for reading the source's schema.
        filesystem: A pyarrow or fsspec filesystem for the same.

    Raises:
        SchemaError: (a ValueError) No field matches `field_regex`.
        ColumnNotFound: `not_null_fields` names a field that is not copied.
        PlanError: (a ValueError) Source and target are one folder, or one lies in the other.
    """
    _refuse_overlap(source_url, target_url)
    source = open_parquet(source_url, storage_options=storage_options, filesystem=filesystem)
    schema = _chosen(source.unischema, field_regex, list(not_null_fields or ()))
    frame = spark.read.option("mergeSchema", "false").parquet(source_url)
    frame = frame.select(*[_column(frame, field, field.name in source.partitions) for field in schema.fields.values()])
    if not_null_fields:
        frame = frame.dropna(subset=list(not_null_fields))
    if partitions_count:
        frame = frame.repartition(partitions_count)
    mode = "overwrite" if overwrite_output else "error"
    with materialize_dataset(spark, target_url, schema, row_group_size_mb, filesystem_factory=None):
        frame.write.mode(mode).option("compression", "none").parquet(target_url)


def _refuse_overlap(source_url: str, target_url: str) -> None:
    """Refuse to write into, over or around the dataset that is read: Spark would delete it, or read its own files."""
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
    """Return (store, host) and path of a URL, one for each place, without asking a store."""
    text = os.fspath(url)
    parts = urlsplit(text)
    if text.lower().startswith("dbfs:"):  # a mount, by another name
        text = parts.path if parts.path.startswith("/Volumes/") else f"/dbfs{parts.path}"
    if text.lower().startswith("file:/") or "://" not in text:
        local = resolve(text, storage_options=None, filesystem=None)[1]
        return ("file", "localhost"), os.path.realpath(local).replace(os.sep, "/")
    scheme = parts.scheme.lower()
    path = posixpath.normpath(f"/{parts.path.strip('/')}")
    return (_SAME_STORE.get(scheme, scheme), parts.netloc.lower()), path


def _chosen(schema: Unischema, field_regex: Iterable[str] | None, not_null: list[str]) -> Unischema:
    fields = list(schema.fields.values())
    if field_regex is not None:
        wanted = [field_regex] if isinstance(field_regex, str) else list(field_regex)
        fields = list(schema.create_schema_view(wanted).fields.values())
        if not fields:
            raise SchemaError(f"no field matches {wanted}; the dataset has {', '.join(schema.fields)}")
    names = [field.name for field in fields]
    for name in not_null:
        if name not in names:
            raise ColumnNotFound(f"not_null_fields: no field {name!r} is copied; {close_names(name, names)}")
    fields = [field._replace(nullable=False) if field.name in not_null else field for field in fields]
    return Unischema(schema._name, [UnischemaField(*field) for field in fields])


def _column(frame: Any, field: UnischemaField, is_partition: bool) -> Any:
    """Return the column as Spark reads it; Spark guesses the types of folder names, which the schema knows."""
    column = frame[f"`{field.name}`"]
    if not is_partition:
        return column
    [kind] = Unischema("one", [field]).as_spark_schema().fields
    return column.cast(kind.dataType).alias(field.name)
