"""`materialize_dataset`: a block in which Spark writes Parquet, and after which it is a dataset with its schema.

Before the block it sets how large Spark makes row groups; after it, it puts all settings back, looks at the files, and
stores the schema with them (`dataset/store_schema.py`). Spark itself writes the files, wherever the user's code says.
Cases:

- success: the schema is stored, and the marker of an earlier failure goes;
- the block raises, and files were added or removed: the folder is marked, whatever Spark's `_SUCCESS` says (it may be
  an earlier job's, or the block's work was not over), and the marker lists the files that were there before;
- the block raises, and the files are as they were: nothing is marked;
- a later block succeeds while files of the failed one are still there: it is refused, and the marker stays.
"""

from __future__ import annotations

import posixpath
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.dataset.incomplete import MARKER, read_json
from penstock.dataset.parquet import open_parquet
from penstock.dataset.store_schema import store_schema
from penstock.errors import DatasetNotFound, PenstockError, PlanError, SchemaError
from penstock.schema.unischema import Unischema
from penstock.spark.session import hadoop_settings, row_group_settings
from penstock.storage import is_hidden, resolve, walk
from penstock.write.durable import put_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_AGAIN = "run the Spark job again with mode('overwrite'), in materialize_dataset(...)"


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
    row groups. Hadoop's settings are as they were, also after an exception; then no schema is stored, and a folder
    whose files have changed is marked as incomplete: `penstock.discard` removes what was added to a dataset. Row-group
    indexes are built afterwards, and older ones are removed.

    Args:
        spark: A session, classic or Connect (there only DataFrames are written, which have no `.rdd`).
        dataset_url: The folder that the block writes, as Spark calls it.
        schema: Fields and codecs of what is written.
        row_group_size_mb: Size of a row group in the file, in MiB (2**20 bytes); None: Parquet's own, 128.
        use_summary_metadata: Also write `_metadata`, which holds the footers of all files.
        filesystem_factory: Gives the pyarrow or fsspec filesystem on which the metadata is written; None: the URL's.

    Raises:
        PetastormMetadataGenerationError: The block wrote no Parquet to `dataset_url`, or has left files of an earlier
            job there that failed.
        SchemaError: What was written does not fit the schema; no schema is stored then.
    """
    row_group_bytes = _checked_size(schema, row_group_size_mb)
    target = _Target(dataset_url, filesystem_factory)
    before = target.look()
    try:
        with hadoop_settings(spark, row_group_settings(row_group_bytes, len(schema.fields))):
            yield
    except BaseException:
        target.mark_failed(before)
        raise
    target.finish(schema, before, summary=use_summary_metadata)


def _checked_size(schema: Any, row_group_size_mb: float | None) -> int | None:
    if not isinstance(schema, Unischema):
        raise SchemaError(f"schema must be a Unischema; got {type(schema).__name__}")
    if row_group_size_mb is None:
        return None
    if not row_group_size_mb > 0:
        raise PlanError(f"row_group_size_mb must be more than 0, or None; got {row_group_size_mb!r}")
    return max(1, int(row_group_size_mb * (1 << 20)))


@dataclass(frozen=True, slots=True)
class _Before:
    """What a folder held when a block began."""

    files: frozenset[str] | None
    """Relative names; None: the folder could not be asked."""
    failed: bool = False
    """Whether an earlier job has failed there, and left its marker."""
    good: frozenset[str] = frozenset()
    """Files from before that job."""


@dataclass(frozen=True, slots=True)
class _Target:
    """The folder that a job writes."""

    url: str
    factory: Callable[[], Any] | None

    @property
    def filesystem(self) -> Any:
        """A filesystem that the user wants used, or None."""
        return None if self.factory is None else self.factory()

    def _place(self) -> tuple[Any, str]:
        return resolve(self.url, storage_options=None, filesystem=self.filesystem)

    def look(self) -> _Before:
        """Return what the folder holds; never fails, as the block may be what makes the folder reachable."""
        with suppress(OSError):
            fs, path = self._place()
            files = _data_files(fs, path)
            marker = read_json(fs, posixpath.join(path, MARKER)) if files else None
            if marker is None:
                return _Before(files)
            return _Before(files, True, frozenset(marker.get("before", ())))
        return _Before(None)

    def mark_failed(self, before: _Before) -> None:
        """Mark the folder as incomplete if the block has changed its files.

        Spark's usual committer leaves nothing of a failed job; others, and several jobs in one block, may.
        """
        with suppress(OSError):  # what made the block fail is the error to be seen
            fs, path = self._place()
            files = _data_files(fs, path)
            if not files or files == before.files:
                return
            good = before.good if before.failed else before.files
            cure = f"{_AGAIN}, or remove what it added with penstock.discard(url)" if good else _AGAIN
            # Discarding removes what is not listed: where nobody knows, all that is there is.
            note = {"cure": cure, "before": sorted(files if good is None else good)}
            put_json(fs, posixpath.join(path, MARKER), note)

    def finish(self, schema: Unischema, before: _Before, *, summary: bool) -> None:
        """Store the schema with the files that are there."""
        fs, path = self._place()
        left = self._left_by_failed(fs, path, before)
        if left:
            raise PetastormMetadataGenerationError(
                f"an earlier Spark job failed at {self.url}, and {len(left)} of its files are still there, {left[0]!r} "
                "for one, so that the dataset stays incomplete; remove what was added with penstock.discard(url) and "
                f"run this job again, or {_AGAIN}"
            )
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

    def _left_by_failed(self, fs: Any, path: str, before: _Before) -> list[str]:
        """Return files that a job has left which failed before this block, and which the block has not replaced."""
        if not before.failed or not before.files:
            return []
        return sorted(_data_files(fs, path) & (before.files - before.good))


def _data_files(fs: Any, path: str) -> frozenset[str]:
    """Return the relative names of the files in a folder; none where there is no folder."""
    if fs.get_file_info(path).type.name != "Directory":
        return frozenset()
    return frozenset(name for name, _ in walk(fs, path) if not is_hidden(name))
