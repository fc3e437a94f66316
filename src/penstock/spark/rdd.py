"""The rows of a dataset as an RDD: row groups are distributed to Spark's tasks, which read and decode them.

For code that continues in Spark with decoded values. Takes the dataset as the driver sees it and gives the rows of a
reader, in the same order. Spark reads no Parquet here; its machines need Penstock and the dataset at this URL.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.api import Dataset, dataset_of
from penstock.codecs.row_values import row_values
from penstock.dataset.parquet import open_parquet
from penstock.errors import MetadataError, SchemaError
from penstock.schema.rows import row_type
from penstock.schema.unischema import Unischema, schema_name
from penstock.source import Selection, Source
from penstock.spark.session import context_of
from penstock.storage import resolve

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


MOST_TASKS = 2000
"""Spark's driver schedules this many tasks without trouble."""
BATCH_ROWS = 256
"""Rows that a task decodes at a time."""


def dataset_as_rdd(  # noqa: PLR0913 - Petastorm's signature, and two keywords
    dataset_url: str,
    spark_session: Any,
    schema_fields: Iterable[Any] | None = None,
    hdfs_driver: str = "libhdfs3",  # noqa: ARG001
    *,
    storage_options: Mapping[str, Any] | None = None,
    filesystem: Any = None,
) -> Any:
    """Return an RDD of the decoded rows of a dataset, as named tuples, in the order of the files.

    Costs reading the footers here; row groups are read where the RDD is computed, one file at a time in each task.

    Args:
        dataset_url: The folder of the dataset.
        spark_session: A classic session: Spark Connect has no RDDs.
        schema_fields: Fields or regular expressions over whole names; None for all.
        hdfs_driver: Petastorm's; without effect.
        storage_options: Passed to fsspec for URLs.
        filesystem: A pyarrow or fsspec filesystem to use instead of the URL's; must pickle.

    Raises:
        NotImplementedError: The session is one of Spark Connect.
        PlanError: (a ValueError) `spark_session` is not a session; a SparkContext is not one.
        SchemaError: No field matches.
    """
    context = context_of(spark_session, "dataset_as_rdd")
    source = open_parquet(dataset_url, storage_options=storage_options, filesystem=filesystem)
    schema = source.facts.unischema
    view = schema.create_schema_view(list(schema.fields.values()) if schema_fields is None else schema_fields)
    if not view.fields:
        raise SchemaError(f"no field matches {schema_fields!r}; the dataset has {', '.join(schema.fields)}")
    groups = dataset_of(source).chunks
    task = _ReadTask(dataset_url, storage_options, filesystem, schema, schema_name(view), tuple(view.fields))
    return context.parallelize(groups, max(1, min(len(groups), MOST_TASKS))).mapPartitions(task)


@dataclass(frozen=True, slots=True)
class _ReadTask:
    """What Spark runs for some row groups (relative path, index in the file, rows). Pickles."""

    url: str
    storage_options: Mapping[str, Any] | None
    filesystem: Any
    schema: Unischema
    name: str
    columns: tuple[str, ...]

    def __call__(self, groups: Iterable[tuple[str, int, int]]) -> Iterator[Any]:
        fs, root = resolve(self.url, storage_options=self.storage_options, filesystem=self.filesystem)
        for path, some in groupby(groups, key=lambda group: group[0]):
            whole = f"{root}/{path}" if path else root
            source = open_parquet([whole], filesystem=fs, schema=self.schema)
            yield from self._rows(source, path, list(some))

    def _rows(self, source: Source, path: str, groups: list[tuple[str, int, int]]) -> Iterator[Any]:
        known = dict(zip(source.facts.chunk_part.tolist(), range(len(source.facts.chunk_rows)), strict=True))
        counts = np.zeros(len(source.facts.chunk_rows), np.int64)
        for _, group, rows in groups:
            if group not in known or source.facts.chunk_rows[known[group]] != rows:
                raise MetadataError(f"{path} is not the file that the driver saw; write nothing while it is read")
            counts[known[group]] = rows
        make = row_type(self.name, self.columns)._make
        ds = Dataset(source, Selection(counts), self.columns)
        with ds.loader(batch_size=BATCH_ROWS, pool="serial", rank=0, world=1) as loader:
            for batch in loader:
                yield from map(make, zip(*(row_values(batch[name]) for name in self.columns), strict=True))
