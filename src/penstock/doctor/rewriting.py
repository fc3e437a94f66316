"""`penstock.doctor.rewrite`: write a dataset again in a better layout, without Spark and in bounded memory.

Combines the parts: `stored` yields rows as stored, `external_shuffle` shuffles them, a `Writer` writes them. Cells are
copied and never decoded, so a JPEG keeps its bytes. The source is not changed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from typing import TYPE_CHECKING, Any, Literal

from pyarrow.fs import FileType, LocalFileSystem

from penstock.dataset.catalog import find_files
from penstock.dataset.common_metadata import update_common_metadata
from penstock.dataset.index_store import INDEX_KEY
from penstock.doctor.external_shuffle import Spill, shuffled
from penstock.doctor.stored import StoredRows
from penstock.errors import PlanError
from penstock.plan.order import check_seed
from penstock.progress import progress
from penstock.schema.petastorm_dump import ROW_GROUPS_PER_FILE_KEY
from penstock.schema.stored import PETASTORM_INDEX_KEY, PETASTORM_SCHEMA_KEY, SCHEMA_KEY
from penstock.storage import expand_glob, has_magic, resolve
from penstock.storage.locks import scratch_folder
from penstock.write.commits import SHUFFLE
from penstock.write.options import AUTO, ROW_GROUP_BYTES
from penstock.write.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from penstock.write import Written
    from penstock.write.options import Compression
    from penstock.write.sources import Tables

logger = logging.getLogger(__name__)

MEMORY_BYTES = 1 << 30
"""Bytes of rows that a shuffle holds at once."""
_REPLACED = frozenset({SCHEMA_KEY, PETASTORM_SCHEMA_KEY, ROW_GROUPS_PER_FILE_KEY})
"""Metadata that is written again."""
_INDEXES = frozenset({PETASTORM_INDEX_KEY, INDEX_KEY})
"""Metadata that names row groups, which are others afterwards."""


def rewrite(  # noqa: PLR0913 -- a public function takes flat keywords
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    url: str | os.PathLike[str],
    *,
    row_group_bytes: int = ROW_GROUP_BYTES,
    rows_per_file: int | None = None,
    shuffle: bool = False,
    seed: int | None = None,
    compression: Compression = AUTO,
    partition_by: str | Sequence[str] | None = None,
    on_error: Literal["raise", "skip"] = "raise",
    overwrite: bool = False,
    memory_bytes: int | None = None,
    temp_folder: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    filesystem: Any = None,
) -> Written:
    """Write a dataset again in another layout and return what was written; `source` is not changed.

    Rows keep their order unless `shuffle`. Cells are copied as stored; so are the schema, ours or Petastorm's, and
    everything else in `_common_metadata`, except row-group indexes, which have to be built again.

        >>> penstock.doctor.rewrite("s3://bucket/frames", "s3://bucket/frames-shuffled", shuffle=True, seed=7)

    Args:
        source: As for `penstock.open`.
        url: Where to write; not `source` itself, nor a folder inside it, nor a folder that contains files of it.
        row_group_bytes: Most bytes of a row group, encoded and before Parquet's compression.
        rows_per_file: Rows of each file except the last; default: files of about 512 MiB.
        shuffle: Permute all rows, uniformly: a true shuffle, the same for equal `seed` whatever the memory. What does
            not fit into memory goes through files: about the size of the dataset in `temp_folder`. Columns that are
            folders stay so, and rows stay in theirs, unless `partition_by` says otherwise.
        seed: Selects the permutation; default 0. Only with `shuffle`.
        compression: Parquet's codec, or one for each column; "auto" is snappy, and none for images and zipped arrays.
        partition_by: Columns that become folders; default: those of the source; [] for none.
        on_error: "skip" leaves out files that cannot be opened.
        overwrite: Replace an existing dataset at `url`.
        memory_bytes: Bytes of rows that a shuffle may hold, default 1 GiB; the writer takes a few row groups more.
        temp_folder: Folder for the files of a shuffle; default: beside a local `url`, else the system's.
        storage_options: For the filesystems of URLs.
        filesystem: A pyarrow or fsspec filesystem to use instead, for both.

    Raises:
        DatasetNotFound: Nothing is at `source`.
        DatasetExists: Something is at `url` already.
        BadFile: A file of `source` cannot be read.
        PlanError: `url` is `source`, is inside it or contains files of it, following links; or an option of a shuffle
            is given without `shuffle`.
    """
    _check_shuffle(shuffle=shuffle, seed=seed, memory_bytes=memory_bytes, temp_folder=temp_folder)
    places = {"storage_options": storage_options, "filesystem": filesystem}
    _refuse_itself(source, url, places)
    rows = StoredRows(source, on_error=on_error, **places)
    _refuse_above(rows, url, places)
    with contextlib.ExitStack() as after:
        batches = rows.batches()
        if shuffle:
            folder = after.enter_context(_temporary(temp_folder, url, places))
            spill = Spill(folder, MEMORY_BYTES if memory_bytes is None else memory_bytes)
            seen = _with_progress(batches, rows.num_rows)
            batches = shuffled(seen, seed=seed or 0, num_bytes=rows.num_bytes, spill=spill)
        writer = _Rewriter(
            url,
            row_group_bytes=row_group_bytes,
            rows_per_file=rows_per_file,
            partition_by=rows.partitions if partition_by is None else partition_by,
            overwrite=overwrite,
            compression=compression,
            **places,
        )
        with writer:
            writer.extend_once(rows.tables(batches))
    _carry_over(rows, url, places)
    return writer.written


class _Rewriter(Writer):
    """A writer that cannot be resumed: an unfinished target says to run the rewrite again."""

    def extend_once(self, tables: Tables) -> None:
        """Take all rows; the progress bar knows how many."""
        self._take(self._expect(tables), skip=0, copy=False)

    def _notes(self) -> dict[str, Any]:
        is_in_the_way = self._stage.folder is None  # on a store
        return {"cure": f"run the rewrite again{' with overwrite=True' if is_in_the_way else ''} (it starts over)"}


def _check_shuffle(*, shuffle: bool, seed: int | None, memory_bytes: int | None, temp_folder: Any) -> None:
    """Check the options of a shuffle, and refuse them without one: they would be ignored."""
    given = {"seed": seed, "memory_bytes": memory_bytes, "temp_folder": temp_folder}
    unused = [f"{name}={value}" for name, value in given.items() if value is not None]
    if unused and not shuffle:
        raise PlanError(
            f"{unused[0]} is for a shuffle, but rows keep their order without shuffle=True; pass shuffle=True too, or "
            f"leave {unused[0].partition('=')[0]} out"
        )
    check_seed(seed or 0)
    if memory_bytes is not None and memory_bytes < 1:
        raise PlanError(f"memory_bytes must be at least 1; got {memory_bytes}")
    if temp_folder is not None and not os.path.isdir(temp_folder):
        raise PlanError(f"temp_folder must be an existing folder; got {os.fspath(temp_folder)!r}")


def _with_progress(batches: Iterator[pa.RecordBatch], total: int) -> Iterator[pa.RecordBatch]:
    with progress(total, "shuffling", unit="rows") as bar:
        for batch in batches:
            yield batch
            bar.update(batch.num_rows)


def _carry_over(rows: StoredRows, url: Any, places: dict[str, Any]) -> None:
    """Keep what else was stored beside the dataset, and log what could not be kept."""
    more = {key: value for key, value in rows.common.items() if key not in _REPLACED | _INDEXES}
    if more:
        update_common_metadata(find_files(url, **places)[0], more)
    if rows.common.keys() & _INDEXES:
        logger.warning("the row-group index of the source was not copied, as row groups have changed; build it again")


def _refuse_itself(source: Any, url: Any, places: dict[str, Any]) -> None:
    """Refuse a target inside what was given as the source."""
    target = _place(*resolve(url, **places))
    for one in [source] if isinstance(source, str | os.PathLike) else source:
        fs, path = resolve(one, **places)
        matches = [path]
        if has_magic(path) and fs.get_file_info(path).type == FileType.NotFound:
            matches = [info.path for info in expand_glob(fs, path)[1]]
        if any(_is_in(target, _place(fs, match)) for match in matches):
            raise PlanError(f"{os.fspath(url)!r} lies in the dataset {os.fspath(one)!r} itself; write somewhere else")


def _refuse_above(rows: StoredRows, url: Any, places: dict[str, Any]) -> None:
    """Refuse a target that contains a file of the source: replacing it would remove that file."""
    target = _place(*resolve(url, **places))
    for fs, path in rows.places:
        if _is_in(_place(fs, path), target):
            raise PlanError(f"{path!r} of the source lies in {os.fspath(url)!r} itself; write somewhere else")


def _place(fs: Any, path: str) -> tuple[str, str]:
    """Return what identifies a place: the store, and the path on it, with links resolved if it is local."""
    real = os.path.realpath(path).replace(os.sep, "/") if isinstance(fs, LocalFileSystem) else path
    return fs.type_name, real.rstrip("/")


def _is_in(place: tuple[str, str], folder: tuple[str, str]) -> bool:
    return place[0] == folder[0] and f"{place[1]}/".startswith(f"{folder[1]}/")


def _temporary(folder: Any, url: Any, places: dict[str, Any]) -> contextlib.AbstractContextManager[str]:
    """Return a temporary folder for the shuffle, hidden if it is beside the target; removed in any case.

    After a kill, when no process holds its lock, the next shuffle in the same place or `penstock.discard(url)` removes
    it.
    """
    fs, path = resolve(url, **places)
    beside = os.path.dirname(path) if isinstance(fs, LocalFileSystem) else None
    if folder is None and beside is not None:
        os.makedirs(beside, exist_ok=True)
    return scratch_folder(os.fspath(folder or beside or tempfile.gettempdir()), SHUFFLE)
