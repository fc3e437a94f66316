"""Read columns of unknown size without exceeding a memory limit.

`read` calls this with a row group and a limit. Dictionary pages may expand to thousands of times their bytes: a file of
58 KB was seen to hold 2.9 GiB of text. Where the footer states the expanded size, it is compared before anything is
read. Otherwise a column of text or binary is read as a dictionary, measured, and expanded only if it fits; a nested
column, one of an extension type or delta-encoded text is read and measured in slices. `BudgetError` is raised before
the memory is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.dataset.sizes import known_bytes, leaf_paths, plain_bytes, value_lengths
from penstock.errors import BudgetError
from penstock.schema.arrow import flatten_structs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from penstock.dataset.read import StoredRowGroup

_SLICE_ROWS = 1024
_MOST_OF_AN_ARRAY = 1 << 30
"""Bytes of text in one array at most; 32-bit offsets reach to twice as many."""


_NO_DICTIONARIES = "Not yet implemented"
"""What pyarrow says of delta-encoded text, of which it makes no dictionaries: it is read and measured in slices."""


class MemoryLimit(NamedTuple):
    """How much memory the columns of one row group may take."""

    num_bytes: int
    """Bytes of the columns of varying width together."""
    varying: Mapping[str, pa.DataType]
    """Names and types of these columns; the others take what their types say."""


class Measure:
    """Adds up the bytes of a row group's columns as they become known."""

    def __init__(self, group: StoredRowGroup, limit: MemoryLimit) -> None:
        self._group = group
        self._limit = limit.num_bytes
        self._bytes = 0.0

    def add(self, num_bytes: float, column: str) -> None:
        """Count what a column takes.

        Raises:
            BudgetError: that is more than the limit.
        """
        self._bytes += num_bytes
        if self._bytes > self._limit:
            group = self._group
            raise BudgetError(
                f"{group.file.path}, row group {group.number}: its columns take {int(self._bytes):,} bytes or more in "
                f"memory, counted up to {column!r}, where memory_bytes leaves {self._limit:,} for one row group; raise "
                "memory_bytes, leave large columns out, or write smaller row groups",
                least=int(self._bytes),
            )

    @property
    def left(self) -> float:
        """What is left of the limit."""
        return self._limit - self._bytes


class Unknown(NamedTuple):
    """The columns of a row group whose size is not in the footer and may exceed the limit."""

    flat: list[str]
    """Text and binary: read as dictionaries."""
    sliced: list[str]
    """Lists of such, and extension types: read in slices."""
    measure: Measure


def unknown_sizes(group: StoredRowGroup, names: Sequence[str]) -> Unknown | None:
    """Count the columns whose size is in the footer, and return the others; None if all fit in any case.

    Raises:
        BudgetError: the columns take more than the limit.
        BadFile: the footer is damaged.
    """
    limit = group.limit
    varying = [] if limit is None else [name for name in names if name in limit.varying]
    if limit is None or not varying:
        return None
    chunks, measure = group.index.chunks, Measure(group, limit)
    unknown: list[tuple[str, float]] = []
    for name in varying:
        known = known_bytes(group, name)
        if known is not None:
            measure.add(known, name)
            continue
        leaves = chunks.below(name)
        stored = np.maximum(0, chunks.uncompressed_bytes[group.number, leaves]).astype(np.float64)
        # No value is longer than its column chunk, dictionary included.
        unknown.append((name, float((chunks.num_values[group.number, leaves] * stored).sum())))
    large = [name for name, most in unknown if most > measure.left / len(unknown)]
    if not large:
        return None
    # pyarrow does not read extension types as dictionaries.
    flat = [n for n in large if n in chunks.flat and not isinstance(limit.varying[n], pa.BaseExtensionType)]
    return Unknown(flat, [name for name in large if name not in flat], measure)


def expanded(column: pa.ChunkedArray, name: str, measure: Measure) -> pa.ChunkedArray:
    """Return a dictionary column as plain values.

    Raises:
        BudgetError: they take more than the limit; nothing was expanded.
    """
    lengths = [value_lengths(part) for part in column.chunks]
    for one in lengths:
        measure.add(float(one.sum()) + 4 * len(one), name)
    slices = [found for part, one in zip(column.chunks, lengths, strict=True) for found in _slices(part, one)]
    return pa.chunked_array(slices, column.type.value_type)


def _slices(part: pa.DictionaryArray, lengths: Any) -> Iterator[pa.Array]:
    start, ends = 0, np.cumsum(lengths)
    while start < len(part):
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + _MOST_OF_AN_ARRAY, "right")))
        yield part.slice(start, stop - start).dictionary_decode()
        start = stop


def in_slices(reader: Any, group: StoredRowGroup, name: str, measure: Measure) -> pa.Table:
    """Read a column some rows at a time; `reader` gives text and binary inside it as dictionaries (`leaf_paths`).

    Raises:
        BudgetError: it takes more than the limit; nothing was expanded beyond it.
    """
    stored = flatten_structs(group.index.arrow.schema.to_arrow_schema().empty_table())
    kind = stored.schema.field(name).type
    slices: list[pa.Array] = []
    for batch in reader.iter_batches(_SLICE_ROWS, row_groups=[group.number], columns=[name], use_threads=False):
        column = flatten_structs(pa.Table.from_batches([batch])).column(name)
        if column.type != kind:
            measure.add(sum(map(plain_bytes, column.chunks)), name)
            column = column.cast(kind)
        else:
            measure.add(column.nbytes, name)
        slices += column.chunks
    if not slices:
        raise pa.ArrowInvalid("no rows came")
    return pa.table({name: pa.chunked_array(slices)}).combine_chunks()


def read_unknown(group: StoredRowGroup, names: Sequence[str], unknown: Unknown) -> pa.Table:
    """Read columns some of which may be too large for memory."""
    try:
        return _read_unknown(group, names, unknown, [*unknown.flat, *leaf_paths(group, unknown.sliced)])
    except OSError as exc:
        if _NO_DICTIONARIES not in str(exc):
            raise
        unknown = unknown_sizes(group, names) or unknown  # with nothing measured yet
        return _read_unknown(group, names, Unknown([], unknown.flat + unknown.sliced, unknown.measure), [])


def _read_unknown(
    group: StoredRowGroup, names: Sequence[str], unknown: Unknown, dictionaries: Sequence[str]
) -> pa.Table:
    at_once = [name for name in names if name not in unknown.sliced]
    with group.opened(names) as stream:
        reader = group.reader(stream, read_dictionary=list(dictionaries))
        tables = [reader.read_row_group(group.number, columns=at_once, use_threads=False)] if at_once else []
        tables += [in_slices(reader, group, name, unknown.measure) for name in unknown.sliced]
    columns: dict[str, pa.ChunkedArray] = {}
    for table in map(flatten_structs, tables):
        columns |= dict(zip(table.column_names, table.columns, strict=True))
    for name in unknown.flat:
        columns[name] = expanded(columns[name], name, unknown.measure)
    return pa.table({name: columns[name] for name in names})
