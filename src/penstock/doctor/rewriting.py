"""`penstock.doctor.rewrite`: write a dataset again in a better layout, without Spark and in bounded memory.

Combines the parts: `StoredRows` yields rows as stored, in natural order and small batches (row groups that need
rewriting may be larger than memory), `external_shuffle` shuffles them, a `Writer` writes them. Cells are copied and
never decoded, so a JPEG keeps its bytes. The source is not changed.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import tempfile
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileType, LocalFileSystem

from penstock.dataset import open_parquet
from penstock.dataset.catalog import FileCatalog
from penstock.dataset.common_metadata import read_common_metadata, update_common_metadata
from penstock.dataset.footers import READ_ERRORS, READ_OPTIONS
from penstock.dataset.index_store import INDEX_KEY
from penstock.dataset.partitions import other_value
from penstock.dataset.read import FileTouched, StoredRowGroup, verifying
from penstock.dataset.unify_types import cast_column, decoded, merge_schemas
from penstock.doctor.external_shuffle import Spill, shuffled
from penstock.errors import BadFile, PlanError, StoreError
from penstock.plan.order import check_seed
from penstock.progress import progress
from penstock.schema.arrow import flatten_structs
from penstock.schema.petastorm_dump import ROW_GROUPS_PER_FILE_KEY
from penstock.schema.stored import PETASTORM_INDEX_KEY, PETASTORM_SCHEMA_KEY, SCHEMA_KEY
from penstock.storage import expand_glob, has_magic, resolve
from penstock.storage.locks import scratch_folder
from penstock.write.commits import SHUFFLE
from penstock.write.options import AUTO, ROW_GROUP_BYTES, Compression
from penstock.write.sources import Tables
from penstock.write.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from penstock.options import OnError
    from penstock.schema.unischema import Unischema
    from penstock.write import Written

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
        shuffle: Permute all rows, uniformly: a true shuffle, the same for equal `seed` with any memory. What does
            not fit into memory goes through files: about the size of the dataset in `temp_folder`. Columns that are
            folders stay so, and rows stay in them, unless `partition_by` is given.
        seed: Selects the permutation; default 0. Only with `shuffle`.
        compression: Parquet's codec, or one for each column; "auto" is snappy, and none for images and zipped arrays.
        partition_by: Columns that become folders; default: as in the source; [] for none.
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
    places = {"storage_options": storage_options, "filesystem": filesystem}
    rows = _open_apart(source, url, on_error, places)
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
    # Keep what else was stored beside the dataset, and log what could not be kept.
    more = {key: value for key, value in rows.common.items() if key not in _REPLACED | _INDEXES}
    if more:
        update_common_metadata(FileCatalog(url, **places).entries()[0], more)
    if rows.common.keys() & _INDEXES:
        logger.warning("the row-group index of the source was not copied, as row groups have changed; build it again")
    return writer.written


def _open_apart(source: Any, url: Any, on_error: Literal["raise", "skip"], places: dict[str, Any]) -> StoredRows:
    """Open the source; PlanError if the target lies inside it, or would replace a folder above one of its files."""
    target = _place(*resolve(url, **places))
    for one in [source] if isinstance(source, str | os.PathLike) else source:
        fs, path = resolve(one, **places)
        matches = [path]
        if has_magic(path) and fs.get_file_info(path).type == FileType.NotFound:
            matches = [info.path for info in expand_glob(fs, path)[1]]
        if any(_is_in(target, _place(fs, match)) for match in matches):
            raise PlanError(f"{os.fspath(url)!r} is inside the dataset {os.fspath(one)!r} itself; write somewhere else")
    rows = StoredRows(source, on_error=on_error, **places)
    for fs, path in rows.places:
        if _is_in(_place(fs, path), target):
            raise PlanError(f"{path!r} of the source is inside {os.fspath(url)!r} itself; write somewhere else")
    return rows


class _Rewriter(Writer):
    """A writer that cannot be resumed: the error of an unfinished target asks to run the rewrite again."""

    def extend_once(self, tables: Tables) -> None:
        """Take all rows; the progress bar knows how many."""
        self._take(self._expect(tables), skip=0, copy=False)

    def _notes(self) -> dict[str, Any]:
        is_in_the_way = self._stage.folder is None  # on a store
        return {"cure": f"run the rewrite again{' with overwrite=True' if is_in_the_way else ''} (it starts over)"}


def _with_progress(batches: Iterator[pa.RecordBatch], total: int) -> Iterator[pa.RecordBatch]:
    with progress(total, "shuffling", unit="rows") as bar:
        for batch in batches:
            yield batch
            bar.update(batch.num_rows)


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


BATCH_BYTES = 8 << 20
"""Approximate bytes of a batch."""
MOST_ROWS = 1 << 16
_VERIFY = verifying(verify=True)
"""Copied data is read once and gets new checksums: damage must not be copied."""
_STREAM_BYTES = 1 << 20
"""Read-ahead of each column, so that a row group is streamed and not read whole."""


class StoredRows:
    """The rows of a dataset; may be read several times."""

    def __init__(self, url: Any, *, on_error: OnError, **options: Any) -> None:
        self.source = open_parquet(url, on_error=on_error, **options)
        skipped = {path for path, _ in self.source.facts.skipped}
        found = FileCatalog(url, **options).entries()
        self._files = [file for file in found if file.path not in skipped]
        self.places = [(file.root.fs, file.path) for file in found]
        """Filesystem and path of every file, including unreadable ones."""
        self.common = {} if self._files[0].root.names is None else read_common_metadata(self._files[0].root)
        self.partitions = tuple(self.source.facts.constants)
        stored = {**(self.source.footer(0).arrow.metadata or {}), **self.common}
        self.unischema: Unischema | None = None
        """The schema that is stored with the dataset, which names fields of structs by path; None for plain Parquet."""
        if stored.keys() & {SCHEMA_KEY, PETASTORM_SCHEMA_KEY}:
            self.unischema = self.source.facts.unischema
        self.schema = self._schema()

    @property
    def num_rows(self) -> int:
        """Rows of the dataset."""
        return int(self.source.facts.chunk_rows.sum())

    @property
    def num_bytes(self) -> float:
        """Approximate bytes of all rows in memory."""
        return self.num_rows * self.source.row_bytes()

    def _schema(self) -> pa.Schema:
        footers = (self.source.footer(file).arrow.schema for file in range(len(self._files)))
        schemas = (footer.to_arrow_schema().remove_metadata() for footer in footers)
        merged = functools.reduce(lambda one, other: one if one.equals(other) else merge_schemas(one, other), schemas)
        fields = [*merged, *(self.source.facts.arrow_schema.field(name) for name in self.partitions)]
        return pa.schema([field.with_type(decoded(field.type)) for field in fields])

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows in natural order.

        Raises:
            BadFile: a page cannot be read, or a file has changed.
            StoreUnavailable, StoreRefused: the store does not answer, or denies access.
        """
        rows = max(1, min(MOST_ROWS, int(BATCH_BYTES // max(self.source.row_bytes(), 1.0))))
        for file in range(len(self._files)):
            yield from self._of_file(file, rows)

    def tables(self, batches: Iterator[pa.RecordBatch]) -> Tables:
        """Return batches of these rows in the form that `Writer` takes: with the schema, and the number of rows."""
        empty = pa.RecordBatch.from_pylist([], schema=self.schema)  # carries the schema of a dataset without rows
        return Tables(empty, batches, self.unischema, self.num_rows)

    def _of_file(self, file: int, batch_rows: int) -> Iterator[pa.RecordBatch]:
        footer, size = self.source.footer(file), int(self.source.facts.file_bytes[file])
        group = StoredRowGroup(self._files[file], size, footer, self.source.seen[file], 0, 0)
        constants = {name: self.source.facts.constants[name][file] for name in self.partitions}
        try:
            with replace(group, watched=False).opened() as stream:
                options = {"buffer_size": _STREAM_BYTES, **READ_OPTIONS, **_VERIFY}
                reader = pq.ParquetFile(stream, metadata=footer.arrow, **options)
                first = 0
                for batch in reader.iter_batches(batch_rows):
                    self._check_folder(batch, file, first)
                    first += batch.num_rows
                    yield self._conform(batch, constants)
        except StoreError:
            raise
        except READ_ERRORS as error:
            _check(group)
            if isinstance(error, BadFile):
                raise  # has a message already
            raise group.bad(f"cannot be read ({error})", "write the file again, or leave it out") from error
        _check(group)

    def _check_folder(self, batch: pa.RecordBatch, file: int, first: int) -> None:
        if not self.source.repeated:
            return
        table = flatten_structs(pa.Table.from_batches([batch]))
        for name in self.source.repeated:
            wrong = other_value(table.column(name), name, self.source.facts.files[file], first)
            if wrong is not None:
                path = self._files[file].path
                message = f"{path}, column {name!r}: {wrong}; move the file, or write it again"
                raise BadFile(message, path=path, column=name)

    def _conform(self, batch: pa.RecordBatch, constants: dict[str, pa.Scalar]) -> pa.RecordBatch:
        """Return a batch with the columns and types of `schema`."""
        table = pa.Table.from_batches([batch])
        columns = []
        for field in self.schema:
            if field.name in constants:
                column = pa.chunked_array([pa.repeat(constants[field.name], table.num_rows)])
            else:
                column = table.column(field.name)
            column = column if column.type == field.type else cast_column(column, field.type)
            columns.append(column)
        whole = pa.Table.from_arrays(columns, schema=self.schema).combine_chunks()
        return whole.to_batches()[0] if whole.num_rows else pa.RecordBatch.from_pylist([], schema=self.schema)


def _check(group: StoredRowGroup) -> None:
    """Make sure that the file has the footer that it is read with."""
    with contextlib.suppress(FileTouched):
        group.check()
