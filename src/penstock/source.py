"""The way in: what plan and engine see of data, and what a third party implements to bring its own.

A `Source` is a list of chunks (a row group, some samples of a shard) with the facts about them and a way to read one.
`penstock.dataset` implements it for Parquet, `penstock.testing.MemorySource` for rows in memory;
`penstock.register_source` adds others. Everything above (plan, engine, `Dataset`, frameworks) uses these names only.

A source is a value: it pickles, is the same in every process that opens the same data, and all its methods may be
called from several threads at once. `penstock.testing.source_suite.SourceTests` checks one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np

from penstock.codecs import Cells
from penstock.errors import PenstockError, SourceError

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from penstock.schema import Unischema

__all__ = [
    "Buffers",
    "ByteRange",
    "Caching",
    "ChunkData",
    "Location",
    "Selection",
    "Source",
    "SourceFacts",
    "Split",
    "Splittable",
    "Statistics",
    "may_hold_nulls",
    "pack_mask",
    "read_chunk",
    "read_table",
]


@dataclass(frozen=True, slots=True)
class Selection:
    """The selected rows of every chunk: all of them, or those that a filter has kept.

    Frozen; holds a number for each chunk, and a bitmap only for chunks that are selected in part. The plan uses the
    counts, the engine the rows, and states the digest.
    """

    counts: NDArray[np.int64]
    """Selected rows of each chunk; a chunk without any is never read."""
    bitmaps: Mapping[int, NDArray[np.uint8]] = field(default_factory=dict)
    """Packed bits, lowest first (Arrow's order), of the chunks that are selected in part."""
    skipped: tuple[tuple[str, str], ...] = ()
    """Path and reason of each chunk that a filter could not read (on_error="skip"); not part of the digest."""

    @classmethod
    def all(cls, chunk_rows: NDArray[np.int64]) -> Selection:
        """Select every row."""
        return cls(np.array(chunk_rows, np.int64))

    @property
    def total(self) -> int:
        """Number of selected rows."""
        return int(self.counts.sum())

    def rows_of(self, chunk: int) -> NDArray[np.int64] | None:
        """Return the selected rows of a chunk, ascending; None: all of them. Costs one pass over the bitmap."""
        if chunk in self.bitmaps:
            return np.flatnonzero(np.unpackbits(self.bitmaps[chunk], bitorder="little")).astype(np.int64, copy=False)
        return None if self.counts[chunk] else np.empty(0, np.int64)

    def split(self, split: Split) -> Selection:
        """Return the same rows of the parts into which a source divides its chunks."""
        counts = np.where(self.counts[split.chunk] > 0, split.source.facts.chunk_rows, 0)
        bitmaps: dict[int, NDArray[np.uint8]] = {}
        for chunk, bits in self.bitmaps.items():
            keep = np.unpackbits(bits, bitorder="little")
            for part in range(*np.searchsorted(split.chunk, (chunk, chunk + 1)).tolist()):
                here = keep[split.first_row[part] :][: counts[part]]
                counts[part] = np.count_nonzero(here)
                if 0 < counts[part] < len(here):
                    bitmaps[part] = np.packbits(here, bitorder="little")
        return Selection(counts, bitmaps, self.skipped)

    def digest(self) -> str:
        """Return 32 hex digits, equal for equal selections. Changing the computation breaks resumed runs."""
        sums = hashlib.blake2b(b"penstock.rows.v1\0", digest_size=16)
        sums.update(np.ascontiguousarray(self.counts, "<i8").tobytes())
        for chunk in sorted(self.bitmaps):
            sums.update(int(chunk).to_bytes(8, "little"))
            sums.update(np.ascontiguousarray(self.bitmaps[chunk]).data)
        return sums.hexdigest()


def pack_mask(keep: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Return a mask as the packed bits of `Selection.bitmaps`."""
    return np.packbits(keep, bitorder="little")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFacts:
    """What is known about the data before any of it is read."""

    files: tuple[str, ...]
    """Names of the files, relative to the dataset, in order; a source without files has one name for all of it."""
    file_bytes: NDArray[np.int64]
    """Bytes of each file as stored."""
    chunk_file: NDArray[np.int32]
    """File of each chunk, ascending. Chunks have at least one row each."""
    chunk_part: NDArray[np.int32]
    """Number of each chunk within its file: the `row_group` of errors and of `Loader.skipped`. Parts of a chunk
    (`Split`) share its number."""
    chunk_rows: NDArray[np.int64]
    """Rows of each chunk."""
    arrow_schema: pa.Schema
    """All columns as `Source.read` gives them, constants included."""
    unischema: Unischema
    """The same columns, in the same order, as fields."""
    fingerprint: str
    """Digest of what the dataset is: equal for a copy elsewhere, different for other files. States are bound to it."""
    constants: Mapping[str, pa.Array] = field(default_factory=dict)
    """Columns with one value for each file (partition columns); those of a dictionary type hold plain values here."""
    declared: frozenset[str] | None = None
    """Columns that a stored or given schema describes; None where all fields are inferred."""
    skipped: tuple[tuple[str, str], ...] = ()
    """Path and reason of each file that was left out under on_error="skip"."""
    on_error: Literal["raise", "skip"] = "raise"
    """What becomes of a chunk that proves damaged while a filter is evaluated: an error, or it is left out."""
    version: str | None = None
    """The version of the table that the files belong to; None where there are no versions."""
    part_noun: str = "row group"
    """What a chunk is called in messages."""
    selection: Selection | None = None
    """The rows that belong to the dataset, where the files also hold deleted ones; None: all rows."""


class ByteRange(NamedTuple):
    """Bytes to fetch before a chunk can be read."""

    path: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Statistics:
    """What is stored about the values of one column: an entry for each chunk of the dataset."""

    nulls: NDArray[np.int64]
    """Null rows; -1 where that is not known. For lists an upper bound, which counts empty lists and null elements."""
    element_nulls: NDArray[np.int64]
    """Null elements of lists, -1 where that is not known; for other columns the same as `nulls`."""
    low: pa.Array | None = None
    """No value is less than this (of lists: no element); null where that is not known. None: not requested."""
    high: pa.Array | None = None
    """No value is greater than this; null where `low` is."""


@dataclass(frozen=True, slots=True)
class Location:
    """Where a chunk or a row lies, for messages."""

    path: str
    """The whole path of the file."""
    part: int
    """Number of the chunk within the file; of a part of a chunk (`Split`), the number of that chunk."""
    part_name: str
    """The chunk in words, such as "row group 3" or "samples 120-180"."""
    row: int | None = None
    """Row within the chunk of that number, counted before any filter."""

    def __str__(self) -> str:
        return f"{self.path}, {self.part_name}" + ("" if self.row is None else f", row {self.row}")


Buffers: TypeAlias = "Mapping[ByteRange, Any]"
"""The bytes of ranges, as objects with the buffer protocol (`pa.Buffer`, `bytes`)."""

ChunkData: TypeAlias = "pa.Table | Mapping[str, pa.Array | pa.ChunkedArray | Cells]"
"""The columns of a chunk: an Arrow table, or Arrow arrays and `Cells` by name. Encoded cells (of fields with a codec)
may be `Cells` of one buffer, with `start` and `stop` as int32 or int64. They need not lie next to each other, so that a
tar shard is one buffer and two arrays, without a copy; a sample without the field is null."""


class Source(Protocol):
    """Chunks of rows, with facts about them. All methods are safe for threads."""

    @property
    def facts(self) -> SourceFacts:
        """What is known about the data. Costs nothing; never changes."""

    def ranges(self, chunk: int, columns: Sequence[str]) -> Sequence[ByteRange]:
        """Return the bytes that `read` needs for these columns; empty where the source reads by itself only."""

    def read(
        self, chunk: int, columns: Sequence[str], buffers: Buffers | None = None, *, limit_bytes: int | None = None
    ) -> ChunkData:
        """Return all rows of a chunk: these columns, in this order, with the types of `facts.arrow_schema`.

        Reads in the calling thread and nothing but these columns. With `buffers`, which hold the `ranges` of the same
        columns, it does not wait for the network. No columns give a table without columns that has the chunk's rows.

        Raises:
            ColumnNotFound: There is no such column.
            BadFile: The chunk is damaged; with on_error="skip" its rows are left out.
            FileChanged: The file is not the one that was opened.
            StoreUnavailable: The store does not answer; never skipped.
            BudgetError: The columns take more than `limit_bytes` in memory; raised before they do.
        """

    def statistics(
        self, column: str, *, bounds: bool = True, chunks: NDArray[np.int64] | None = None
    ) -> Statistics | None:
        """Return what is stored about the values of a column; None where nothing is (constants, no statistics).

        With `bounds=False`, null counts only. With `chunks`, the entries of other chunks may be left unknown. Reads
        indexes that are not in memory, never data. What cannot be read is unknown here, and an error in `read`.
        """

    def row_bytes(self, columns: Sequence[str] | None = None) -> float:
        """Return the bytes that a row of these columns (None: all) takes in memory, on average.

        Lanes and block of a shuffled order are computed from that of all columns, so it must be the same in every
        process and every version of the source.
        """

    def chunk_bytes(self, columns: Sequence[str]) -> NDArray[np.float64]:
        """Return the bytes that these columns of each chunk take in memory: an estimate for the memory budget."""

    def content(self) -> str:
        """Return a digest that differs, as far as the source can tell, once values change; stored in states."""

    def locate(self, chunk: int, row: int | None = None) -> Location:
        """Return where a chunk, or a row of it, lies: for messages."""


def read_chunk(source: Source, chunk: int, columns: Sequence[str], *, limit_bytes: int | None = None) -> ChunkData:
    """Return what `source.read` returns, once it is known to have the rows and columns that were requested.

    The engine, random access and filters read through this function. Costs nothing for each row.

    Raises:
        SourceError: The source returned something else; never skipped.
        StoreUnavailable, StoreRefused: It raised an error that says so, such as TimeoutError; never skipped.
        PenstockError: As the source raised it. `BadFile`, except for `FileChanged`, may be skipped.
        Exception: Any other error of the source, unchanged but for a note of the location; never skipped.
    """
    try:
        data = source.read(chunk, columns, limit_bytes=limit_bytes)
    except PenstockError:
        raise
    except Exception as error:
        from penstock.storage.fault_kinds import store_error  # late: only errors need it

        place = source.locate(chunk)
        known = store_error(error, place.path)
        if known is not None:
            raise known from error
        if isinstance(error, StopIteration):  # would end the loop of the consumer
            raise SourceError(f"cannot read {place}: the source raised StopIteration") from error
        error.add_note(f"while reading {place}")
        raise
    import pyarrow as pa

    num_rows = int(source.facts.chunk_rows[chunk])
    if isinstance(data, pa.Table):
        if data.num_rows == num_rows and data.column_names == list(columns):
            return data
        came = f"{data.num_rows} rows of the columns {data.column_names}"
    elif not isinstance(data, Mapping):
        came = f"a {type(data).__name__}"
    else:
        kinds = pa.Array | pa.ChunkedArray | Cells
        lengths = {name: len(one) if isinstance(one, kinds) else type(one).__name__ for name, one in data.items()}
        if lengths == dict.fromkeys(columns, num_rows):
            return data
        came = f"columns of these lengths: {lengths}"
    raise SourceError(
        f"{source.locate(chunk)}: the source returned {came}; wanted, by its facts, are {num_rows} rows of the columns "
        f"{list(columns)}, as a pyarrow.Table or as Arrow arrays and Cells by name; this is a defect of "
        f"{type(source).__name__}.read, or the data has changed"
    )


@dataclass(frozen=True, slots=True)
class Split:
    """A source in smaller chunks (*parts*), for a shuffle that mixes better in the same memory."""

    source: Source
    """The same rows in the same order; every chunk of it lies within one chunk of the source that was divided."""
    chunk: NDArray[np.int64]
    """The undivided chunk that each part lies in, ascending."""
    first_row: NDArray[np.int64]
    """Where each part begins in it."""
    scanned: bool = False
    """Whether `split(scan=False)` would give other parts: then states say so, and the run is resumed with scan=True."""


@runtime_checkable
class Splittable(Protocol):
    """What a source implements besides `Source` if its chunks can be read in parts."""

    def split(self, *, scan: bool | None) -> Split | None:
        """Return the source in parts; None where all chunks are small already, or cannot be read in parts.

        The parts follow from stored facts: for one value of `scan` other than None they are the same in every process,
        whatever columns are read, and on every store.

        Args:
            scan: False: only parts that the indexes in the data show. True: all parts; whatever has to be read to find
                them may be read. None: the better one of both that costs nothing to find, on any host.

        Raises:
            PlanError: with scan=True, if finding the parts would cost too much on this store; says what to do.
        """


@runtime_checkable
class Caching(Protocol):
    """What a source implements besides `Source` if it keeps data in memory between reads."""

    def kept_bytes(self, columns: Sequence[str]) -> int:
        """Return the memory that this may take while these columns are read, if there is enough: an estimate."""

    def keep(self, most_bytes: int) -> None:
        """Keep at most so many bytes from now on. With 0 bytes reads give the same data, only more slowly."""


def read_table(source: Source, chunk: int, columns: Sequence[str]) -> pa.Table:
    """Return columns of a chunk as one Arrow table; `Cells` are copied into it. Raises as `read_chunk`."""
    data = read_chunk(source, chunk, columns)
    import pyarrow as pa

    if isinstance(data, pa.Table):
        return data
    schema = source.facts.arrow_schema
    arrays = [
        values.to_arrow(schema.field(name).type) if isinstance(values, Cells) else values
        for name, values in data.items()
    ]
    return pa.table(dict(zip(data, arrays, strict=True)))


def may_hold_nulls(source: Source, columns: Iterable[str]) -> frozenset[str]:
    """Return the columns that may hold nulls: nullable by their field, and not proven free of nulls by statistics.

    The only place where this is decided: these columns come masked in every batch, the others as plain arrays. The
    answer is the same in every process that opens the same data. Costs nothing without nullable fields; otherwise the
    first call looks at the statistics of all chunks (`Source.statistics`).
    """
    facts = source.facts

    def may(name: str) -> bool:
        if not facts.unischema.fields[name].nullable:
            return False
        if name in facts.constants:
            return bool(facts.constants[name].null_count)
        known = source.statistics(name, bounds=False)
        return known is None or bool(known.nulls.any())  # -1: not known

    return frozenset(name for name in columns if may(name))
