"""Petastorm's `petastorm.etl.rowgroup_indexing`: build row-group indexes, with or without Spark, and read them.

Indexes are stored in `_common_metadata` as JSON; indexes that Petastorm stored are read, too. Work on one row
group is in `dataset/index_build.py`; here it is spread over threads or Spark. Imports no Spark: takes what it is given.
"""

from __future__ import annotations

import os
from collections import namedtuple
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.dataset.index_build import build_indexes, check_indexers, index_chunk, merge
from penstock.dataset.index_store import check_folder, load_indexes, store_indexes
from penstock.dataset.parquet import open_parquet
from penstock.engine.host import default_workers
from penstock.errors import MetadataError
from penstock.petastorm.etl._datasets import source_of
from penstock.schema.stored import PETASTORM_INDEX_KEY

if TYPE_CHECKING:
    from penstock.dataset.index_indexers import RowGroupIndexerBase
    from penstock.source import Source

__all__ = ["PARALLEL_SLICE_NUM", "ROWGROUPS_INDEX_KEY", "PieceInfo", "build_rowgroup_index", "get_row_group_indexes"]

ROWGROUPS_INDEX_KEY = PETASTORM_INDEX_KEY
"""Where Petastorm stored its index; ours has its own key, which Petastorm ignores."""
PARALLEL_SLICE_NUM = 2000
"""Most tasks that Spark is given."""

PieceInfo = namedtuple("PieceInfo", ["piece_index", "path", "row_group", "partition_keys"])


def build_rowgroup_index(  # noqa: PLR0913 -- Petastorm's signature, and two keywords
    dataset_url: str,
    spark_context: Any,
    indexers: Iterable[RowGroupIndexerBase],
    hdfs_driver: str = "libhdfs3",  # noqa: ARG001
    *,
    storage_options: Mapping[str, Any] | None = None,
    filesystem: Any = None,
) -> None:
    """Build row-group indexes of a dataset and store them beside it, in place of those that were there.

    Reads the indexed columns of all row groups once. Files and fingerprint stay as they are.

    Args:
        dataset_url: The folder of the dataset.
        spark_context: Builds on Spark's machines, which need Penstock and the dataset at this URL; None: in threads
            here.
        indexers: What to index, each under its own name; they are not changed.
        hdfs_driver: Petastorm's, without effect: one driver is left.
        storage_options: Passed to fsspec for URLs.
        filesystem: A pyarrow or fsspec filesystem to use instead of the URL's; must pickle for Spark.

    Raises:
        TypeError: The arguments are in another order, or a session was given for its context.
        ValueError: No indexers, or two of one name.
        ColumnNotFound: An indexer names a column that does not exist.
        MetadataError: The URL is not the folder of a whole dataset.
    """
    _check_order(dataset_url, spark_context, indexers)
    source = open_parquet(dataset_url, storage_options=storage_options, filesystem=filesystem)
    check_folder(source)
    given = check_indexers(indexers, source.facts.arrow_schema.names)
    if spark_context is None or not len(source.facts.chunk_rows):
        built = build_indexes(source, given, workers=default_workers())
    else:
        task = _IndexTask(dataset_url, storage_options, filesystem, source.facts.fingerprint, given)
        num_chunks = len(source.facts.chunk_rows)
        chunks = spark_context.parallelize(range(num_chunks), min(num_chunks, PARALLEL_SLICE_NUM))
        built = chunks.mapPartitions(task).reduce(merge)
    store_indexes(source, built)


def _check_order(dataset_url: Any, spark_context: Any, indexers: Any) -> None:
    """Refuse arguments in another order, a session in place of its context, and one indexer without a list."""
    form = "build_rowgroup_index(dataset_url, spark_context, indexers)"
    if not isinstance(dataset_url, str | os.PathLike):
        raise TypeError(f"{form} takes the URL of a dataset first; got {type(dataset_url).__name__}")
    if spark_context is not None and not hasattr(spark_context, "parallelize"):
        session = "; that is a session: pass spark.sparkContext" if hasattr(spark_context, "createDataFrame") else ""
        raise TypeError(
            f"{form} takes a SparkContext second, or None to build in threads here (as with Spark Connect, which has "
            f"none); got {type(spark_context).__name__}{session}"
        )
    if not isinstance(indexers, Iterable):
        raise TypeError(f"{form} takes a list of indexers last; got {type(indexers).__name__}")


@dataclass(frozen=True, slots=True)
class _IndexTask:
    """What Spark runs for some row groups: opens the dataset there and indexes them one by one. Pickles."""

    url: str
    storage_options: Mapping[str, Any] | None
    filesystem: Any
    fingerprint: str
    indexers: list[RowGroupIndexerBase]

    def __call__(self, chunks: Iterable[int]) -> Iterator[list[RowGroupIndexerBase]]:
        source = self._open()
        for chunk in chunks:
            yield index_chunk(source, self.indexers, chunk)

    def _open(self) -> Source:
        source = open_parquet(self.url, storage_options=self.storage_options, filesystem=self.filesystem)
        if source.facts.fingerprint != self.fingerprint:
            raise MetadataError(
                f"a Spark executor sees another dataset at {self.url} than the driver does; give a URL that is the "
                "same everywhere, and write nothing while the index is built"
            )
        return source


def get_row_group_indexes(dataset: Any) -> dict[str, RowGroupIndexerBase]:
    """Return the indexes stored with a dataset, by name: ours, else those that Petastorm built.

    Takes a URL, a `penstock.Dataset`, its source, or a pyarrow dataset.

    Raises:
        MetadataError: (a ValueError) There are none, or the dataset has changed since.
    """
    return load_indexes(source_of(dataset))
