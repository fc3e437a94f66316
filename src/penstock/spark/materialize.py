"""`materialize_dataset`: a block in which Spark writes Parquet, and after which it is a dataset with its schema.

Before the block it sets how large Spark makes row groups; after it, it puts all settings back, looks at the files, and
stores the schema with them (`dataset/store_schema.py`). Spark itself writes the files, wherever the user's code says.
What a failed job leaves behind is marked, so that it does not open as if it were whole.
"""

from __future__ import annotations

import json
import posixpath
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.dataset.incomplete import MARKER
from penstock.dataset.parquet import open_parquet
from penstock.dataset.store_schema import store_schema
from penstock.errors import DatasetNotFound, PenstockError, PlanError, SchemaError
from penstock.schema.unischema import Unischema
from penstock.spark.session import hadoop_settings, row_group_settings
from penstock.storage import is_hidden, resolve, walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SUCCESS = "_SUCCESS"


class PetastormMetadataGenerationError(PenstockError):
    """Metadata could not be made for a dataset."""


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

    After the block the schema lies in `_common_metadata`, as JSON of ours and as Petastorm's pickle with its numbers of
    row groups. Hadoop's settings are as they were, also after an exception; then no schema is stored, and files that
    the failed job left are marked as incomplete. Row-group indexes are built afterwards, and older ones are removed.

    Args:
        spark: A session, classic or Connect (there only DataFrames are written, which have no `.rdd`).
        dataset_url: The folder that the block writes, as Spark calls it.
        schema: Fields and codecs of what is written.
        row_group_size_mb: Size of a row group in the file, in MiB (2**20 bytes); None: Parquet's own, 128.
        use_summary_metadata: Also write `_metadata`, which holds the footers of all files.
        filesystem_factory: Gives the pyarrow or fsspec filesystem on which the metadata is written; None: the URL's.

    Raises:
        PetastormMetadataGenerationError: The block wrote no Parquet to `dataset_url`.
        SchemaError: What was written does not fit the schema; no schema is stored then.
    """
    row_group_bytes = _checked_size(schema, row_group_size_mb)
    target = _Target(dataset_url, filesystem_factory)
    before = target.data_files()
    try:
        with hadoop_settings(spark, row_group_settings(row_group_bytes, len(schema.fields))):
            yield
    except BaseException:
        target.mark_failed(before)
        raise
    target.finish(schema, summary=use_summary_metadata)


def _checked_size(schema: Any, row_group_size_mb: float | None) -> int | None:
    if not isinstance(schema, Unischema):
        raise SchemaError(f"schema must be a Unischema; got {type(schema).__name__}")
    if row_group_size_mb is None:
        return None
    if not row_group_size_mb > 0:
        raise PlanError(f"row_group_size_mb must be more than 0, or None; got {row_group_size_mb!r}")
    return max(1, int(row_group_size_mb * (1 << 20)))


@dataclass(frozen=True, slots=True)
class _Target:
    """The folder that a job writes."""

    url: str
    factory: Callable[[], Any] | None

    @property
    def filesystem(self) -> Any:
        """A filesystem that the user wants used, or None."""
        return None if self.factory is None else self.factory()

    def data_files(self) -> frozenset[str]:
        """Return what the folder holds before the block; nothing where it is not there, or cannot be asked."""
        with suppress(OSError):
            fs, path = resolve(self.url, storage_options=None, filesystem=self.filesystem)
            if fs.get_file_info(path).type.name == "Directory":
                return frozenset(name for name, _ in walk(fs, path) if not is_hidden(name))
        return frozenset()

    def mark_failed(self, before: frozenset[str]) -> None:
        """Mark the folder as incomplete if the block has put files there and no job has said that it succeeded.

        Spark's usual committer leaves nothing of a failed job; others, and several jobs in one block, may.
        """
        with suppress(OSError):  # what made the block fail is the error to be seen
            fs, path = resolve(self.url, storage_options=None, filesystem=self.filesystem)
            if not (self.data_files() - before) or fs.get_file_info(posixpath.join(path, _SUCCESS)).is_file:
                return
            note = {"cure": "run the Spark job again with mode('overwrite'), in materialize_dataset(...)"}
            with fs.open_output_stream(posixpath.join(path, MARKER)) as sink:
                sink.write(json.dumps(note).encode())

    def finish(self, schema: Unischema, *, summary: bool) -> None:
        """Store the schema with the files that are there."""
        fs, path = resolve(self.url, storage_options=None, filesystem=self.filesystem)
        with suppress(OSError):
            fs.delete_file(posixpath.join(path, MARKER))  # of an earlier attempt
        try:
            source = open_parquet(self.url, filesystem=self.filesystem, schema=schema)
        except DatasetNotFound as error:
            raise PetastormMetadataGenerationError(
                f"nothing was written to {self.url} within materialize_dataset: {error}; write the DataFrame to this "
                "URL inside the block, e.g. df.write.mode('overwrite').parquet(url)"
            ) from error
        store_schema(source, schema, summary=summary)
