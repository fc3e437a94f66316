"""`materialize_dataset`: a block in which Spark writes Parquet, and after which it is a dataset with its schema.

Before the block it sets the size of Spark's row groups; after it, it restores all settings, examines the files, and
stores the schema with them (`dataset/store_schema.py`). Spark itself writes the files, wherever the user's code says.
Cases:

- success: the schema is stored, and the marker of an earlier failure is removed;
- the block raises, or what was written does not match the schema, and files were added or removed: the folder is
  marked, whatever Spark's `_SUCCESS` says (it may be that of an earlier job, or the block was not finished), and the
  marker lists the files that were there before;
- the block raises, and the files are unchanged: nothing is marked;
- the driver is killed: a note beside the folder, which exists during the block, does the same;
- a later block succeeds while files of the failed one still exist: it is refused, and the marker stays.
"""

from __future__ import annotations

import posixpath
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyarrow.fs import FileSelector, FileType

from penstock.dataset.common_metadata import COMMON_METADATA, read_common_metadata
from penstock.dataset.parquet import open_parquet
from penstock.dataset.store_schema import store_schema
from penstock.dataset.write_markers import MARKER, note_path, read_json, this_process
from penstock.engine.columns import columns_of
from penstock.errors import DatasetNotFound, PenstockError, PlanError, SchemaError
from penstock.schema.stored import find_schema
from penstock.schema.unischema import Unischema
from penstock.spark.session import check_session, hadoop_settings, row_group_settings
from penstock.storage import is_hidden, resolve
from penstock.storage.publish import FILESYSTEM_ERRORS, can_rename, put_json, remove

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

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
    check_session(spark)
    row_group_bytes = _checked_size(schema, row_group_size_mb)
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


def _checked_size(schema: Any, row_group_size_mb: float | None) -> int | None:
    if not isinstance(schema, Unischema):
        raise SchemaError(f"schema must be a Unischema; got {type(schema).__name__}")
    if row_group_size_mb is None:
        return None
    if not (isinstance(row_group_size_mb, int | float) and row_group_size_mb > 0):
        raise PlanError(f"row_group_size_mb must be more than 0, or None; got {row_group_size_mb!r}")
    return max(1, int(row_group_size_mb * (1 << 20)))


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
        left = self._left_by_failed(fs, path, before)
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
            columns_of(
                source.facts.unischema.fields.values(), source.facts.arrow_schema.types
            )  # refuses what no reader takes
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

    def _left_by_failed(self, fs: Any, path: str, before: _Before) -> list[str]:
        """Return files of a job that failed before this block, and which the block has not replaced."""
        if not before.failed or not before.files:
            return []
        return sorted(_data_files(fs, path).keys() & (before.files.keys() - before.good))


def _data_files(fs: Any, path: str) -> dict[str, tuple[int, int]]:
    """Return the relative names of the files in a folder, with sizes and times; {} if there is no folder."""
    found = fs.get_file_info(FileSelector(path, recursive=True, allow_not_found=True))
    named = {info.path[len(path) :].lstrip("/"): info for info in found if info.type == FileType.File}
    return {name: (info.size, info.mtime_ns) for name, info in named.items() if not is_hidden(name)}
