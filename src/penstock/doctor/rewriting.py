"""`penstock.doctor.rewrite`: write a dataset again in a better layout, without Spark and in bounded memory.

Puts the parts together: `stored` gives rows as they lie, `spill` shuffles them, `penstock.write` writes them. Cells are
copied and never decoded, so that a JPEG stays the same bytes. The source is not changed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
from typing import TYPE_CHECKING, Any, Literal

from pyarrow.fs import FileType, LocalFileSystem

from penstock.dataset.common_metadata import update_common_metadata
from penstock.dataset.discover import find_files
from penstock.dataset.index_store import INDEX_KEY
from penstock.doctor.spill import Spill, shuffled
from penstock.doctor.stored import StoredRows
from penstock.errors import PlanError
from penstock.plan.order import check_seed
from penstock.progress import progress
from penstock.schema.petastorm_dump import ROW_GROUPS_PER_FILE_KEY
from penstock.schema.stored import PETASTORM_INDEX_KEY, PETASTORM_SCHEMA_KEY, SCHEMA_KEY
from penstock.storage import expand_glob, has_magic, resolve
from penstock.write import write
from penstock.write.options import AUTO, ROW_GROUP_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from penstock.write import Written
    from penstock.write.options import Compression

logger = logging.getLogger(__name__)

MEMORY_BYTES = 1 << 30
"""Bytes of rows that a shuffle holds at once."""
_REPLACED = frozenset({SCHEMA_KEY, PETASTORM_SCHEMA_KEY, ROW_GROUPS_PER_FILE_KEY})
"""Metadata that is written anew."""
_INDEXES = frozenset({PETASTORM_INDEX_KEY, INDEX_KEY})
"""Metadata that names row groups, which are others now."""


def rewrite(  # noqa: PLR0913 -- a public function takes flat keywords
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    url: str | os.PathLike[str],
    *,
    row_group_bytes: int = ROW_GROUP_BYTES,
    rows_per_file: int | None = None,
    shuffle: bool = False,
    seed: int = 0,
    compression: Compression = AUTO,
    partition_by: str | Sequence[str] | None = None,
    on_error: Literal["raise", "skip"] = "raise",
    overwrite: bool = False,
    memory_bytes: int = MEMORY_BYTES,
    temp_folder: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    filesystem: Any = None,
) -> Written:
    """Write a dataset again in another layout and return what was written; `source` is not changed.

    Rows keep their order unless `shuffle`. Cells are copied as they are stored; so are the schema, ours or Petastorm's,
    and whatever else `_common_metadata` holds, but for row-group indexes, which have to be built again.

        >>> penstock.doctor.rewrite("s3://bucket/frames", "s3://bucket/frames-shuffled", shuffle=True, seed=7)

    Args:
        source: As for `penstock.open`.
        url: Where to write; not `source` itself, nor a place inside of it, nor a folder that holds files of it.
        row_group_bytes: Most bytes of a row group, encoded and before Parquet's compression.
        rows_per_file: Rows of each file but the last; default: files of about 512 MiB.
        shuffle: Permute all rows, uniformly: a true shuffle, the same for equal `seed` whatever the memory. What does
            not fit memory goes through files: about the size of the dataset in `temp_folder`.
        seed: Picks the permutation.
        compression: Parquet's codec, or one for each column; "auto" is snappy, and none for images and zipped arrays.
        partition_by: Columns that become folders; default: those of the source; [] for none.
        on_error: "skip" leaves out files that cannot be opened.
        overwrite: Replace a dataset that is at `url`.
        memory_bytes: Bytes of rows that a shuffle may hold; the writer takes a few row groups more.
        temp_folder: Where rows wait for their turn; default: beside a local `url`, else the system's.
        storage_options: For the filesystems of URLs.
        filesystem: A pyarrow or fsspec filesystem to use instead, for both.

    Raises:
        DatasetNotFound: Nothing is at `source`.
        DatasetExists: Something is at `url` already.
        BadFile: A file of `source` cannot be read.
        PlanError: `url` is `source`, lies in it or holds files of it, links followed.
    """
    check_seed(seed)
    if memory_bytes < 1:
        raise PlanError(f"memory_bytes must be at least 1; got {memory_bytes}")
    places = {"storage_options": storage_options, "filesystem": filesystem}
    _refuse_itself(source, url, places)
    rows = StoredRows(source, on_error=on_error, **places)
    _refuse_above(rows, url, places)
    with contextlib.ExitStack() as after:
        batches = rows.batches()
        if shuffle:
            spill = Spill(after.enter_context(_temporary(temp_folder, url, places)), memory_bytes)
            seen = _with_progress(batches, rows.num_rows)
            batches = shuffled(seen, seed=seed, num_bytes=rows.num_bytes, spill=spill)
        written = write(
            rows.tables(batches),
            url,
            row_group_bytes=row_group_bytes,
            rows_per_file=rows_per_file,
            partition_by=rows.partitions if partition_by is None else partition_by,
            overwrite=overwrite,
            compression=compression,
            **places,
        )
    _carry_over(rows, url, places)
    return written


def _with_progress(batches: Iterator[pa.RecordBatch], total: int) -> Iterator[pa.RecordBatch]:
    with progress(total, "shuffling", unit="rows") as bar:
        for batch in batches:
            yield batch
            bar.update(batch.num_rows)


def _carry_over(rows: StoredRows, url: Any, places: dict[str, Any]) -> None:
    """Keep what else was stored beside the dataset, and say what could not be kept."""
    more = {key: value for key, value in rows.common.items() if key not in _REPLACED | _INDEXES}
    if more:
        update_common_metadata(find_files(url, **places)[0], more)
    if rows.common.keys() & _INDEXES:
        logger.warning("the row-group index of the source names row groups that are others now; build it again")


def _refuse_itself(source: Any, url: Any, places: dict[str, Any]) -> None:
    """Refuse a target inside of what was named as the source."""
    target = _place(*resolve(url, **places))
    for one in [source] if isinstance(source, str | os.PathLike) else source:
        fs, path = resolve(one, **places)
        matches = [path]
        if has_magic(path) and fs.get_file_info(path).type == FileType.NotFound:
            matches = [info.path for info in expand_glob(fs, path)[1]]
        if any(_is_in(target, _place(fs, match)) for match in matches):
            raise PlanError(f"{os.fspath(url)!r} lies in the dataset {os.fspath(one)!r} itself; write somewhere else")


def _refuse_above(rows: StoredRows, url: Any, places: dict[str, Any]) -> None:
    """Refuse a target that holds a file of the source: replacing it would remove that file."""
    target = _place(*resolve(url, **places))
    for fs, path in rows.places:
        if _is_in(_place(fs, path), target):
            raise PlanError(f"{path!r} of the source lies in {os.fspath(url)!r} itself; write somewhere else")


def _place(fs: Any, path: str) -> tuple[str, str]:
    """Return what tells one place from another: the store, and the path on it, without links where it is local."""
    real = os.path.realpath(path).replace(os.sep, "/") if isinstance(fs, LocalFileSystem) else path
    return fs.type_name, real.rstrip("/")


def _is_in(place: tuple[str, str], folder: tuple[str, str]) -> bool:
    return place[0] == folder[0] and f"{place[1]}/".startswith(f"{folder[1]}/")


@contextlib.contextmanager
def _temporary(folder: Any, url: Any, places: dict[str, Any]) -> Iterator[str]:
    """Give a folder for rows that wait; removed in any case. Hidden, where it lies beside the target."""
    fs, path = resolve(url, **places)
    beside = os.path.dirname(path) if isinstance(fs, LocalFileSystem) else None
    if folder is None and beside is not None:
        os.makedirs(beside, exist_ok=True)
    made = tempfile.mkdtemp(prefix=".penstock-shuffle-", dir=folder or beside)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
