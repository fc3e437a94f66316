"""Estimate how many bytes of memory columns of varying width take as Arrow: shuffle buffer and budget depend on it.

Called by `ParquetSource`. Every rank computes the same number from the same files, from the first row group: by its
footer, or by reading it where the footer misleads (dictionary pages were seen 125 to 2,000 times smaller than their
columns). Later row groups may differ.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.codecs.arrow_memory import cells_view, numbers, validity
from penstock.dataset.column_chunks import OFFSET_BYTES, VALIDITY_BYTES
from penstock.dataset.footer_statistics import by_file, column_chunks
from penstock.dataset.footers import READ_ERRORS, READ_OPTIONS
from penstock.errors import StoreError
from penstock.storage.faults import attempt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock.dataset.parquet import ParquetSource
    from penstock.dataset.read import StoredRowGroup

_STANDS_OUT = 1.25
"""A row group that stores more bytes for each row than this times the estimate is looked at more closely."""
_WHOLE_BYTES = 16 << 20
"""Columns up to this size are measured whole."""
_SLICE_ROWS = 1024
_MOST_AT_ONCE = 256 << 20
"""A nested column that takes more memory is measured in slices."""
_TEXTS = (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())
_SAMPLE_ROWS = 256
"""Larger ones (images that a writer tried to put in a dictionary) are estimated by footer and first rows."""


def add_heavy_chunks(
    sizes: NDArray[np.float64], source: ParquetSource, columns: Sequence[str], stored_bytes: NDArray[np.int64]
) -> None:
    """Raise the estimates of row groups that store unusually many bytes to what their footers say of these columns."""
    rows = source.facts.chunk_rows.astype(np.float64)
    heavy = np.flatnonzero(stored_bytes > _STANDS_OUT * rows * source.row_bytes())
    for file, here in by_file(source.facts, heavy):
        chunks = column_chunks(source, file)
        if chunks is None:
            continue
        known = chunks.memory_bytes[source.facts.chunk_part[here]]
        for name in columns:
            more = known[:, chunks.below(name)].sum(axis=1) - rows[here] * source.row_bytes([name])
            sizes[here] += np.fmax(more, 0)  # nothing where the footer does not tell


def known_bytes(group: StoredRowGroup, name: str) -> float | None:
    """Return the bytes that a column of varying width takes in memory, if the footer states them, else None.

    Raises:
        BadFile: the footer is damaged.
    """
    chunks = group.index.chunks
    known = float(chunks.memory_bytes[group.number, chunks.below(name)].sum())
    return None if math.isnan(known) else known


def variable_bytes(group: StoredRowGroup, name: str) -> float:
    """Return the bytes of one row of a column of varying width, estimated from one row group.

    Of a damaged one, from its footer. A store that fails is an error: a guess on one rank only would give that rank
    another order than the others.

    Raises:
        StoreUnavailable, StoreRefused: the store does not answer, or denies access.
    """
    chunks = group.index.chunks
    leaves = chunks.below(name)
    footer = float(chunks.uncompressed_bytes[group.number, leaves].sum()) / group.num_rows
    if chunks.spelled_out[group.number, leaves].all():
        return footer + VALIDITY_BYTES
    try:
        if footer * group.num_rows <= _WHOLE_BYTES:
            return attempt(lambda: _measure(group, name, group.num_rows), group.url)
        return max(footer, attempt(lambda: _measure(group, name, _SAMPLE_ROWS), group.url))
    except StoreError:
        raise
    except READ_ERRORS:
        if group.cached is not None:  # may hold bad bytes, or the file was touched
            return variable_bytes(replace(group, cached=None), name)
        return footer + VALIDITY_BYTES  # damaged: reported when it is read


def _measure(group: StoredRowGroup, name: str, num_rows: int) -> float:
    """Return the bytes of a row of the column as it is read, by its first rows.

    Text and binary that may be large are read as dictionaries: one long word may expand to gigabytes. The result equals
    `nbytes` of the expanded column to the byte, because lanes and block of an order are computed from it.
    """
    known = known_bytes(group, name)
    is_small = known is not None and known * num_rows / group.num_rows <= _WHOLE_BYTES
    kind = None if is_small else _flat_type(group, name)
    with _open(group, name, num_rows) as stream:
        if kind is not None:
            batch = _first(stream, group, name, num_rows, read_dictionary=[name])
            return _expanded_bytes(batch.column(0), kind) / float(batch.num_rows)
        if known is None or known > _MOST_AT_ONCE:
            more = {"read_dictionary": leaf_paths(group, [name])}
            slices = _slices(stream, group, name, min(num_rows, _SLICE_ROWS), **more)
            size = sum(plain_bytes(one.column(0)) for one in itertools.islice(slices, -(-num_rows // _SLICE_ROWS)))
            if size > _MOST_AT_ONCE:
                return float(size) / num_rows
        batch = _first(stream, group, name, num_rows)
        return float(batch.nbytes) / float(batch.num_rows)


def _flat_type(group: StoredRowGroup, name: str) -> pa.DataType | None:
    """Return the type as which a column of text or binary is read; None if it is another, or inside a struct."""
    schema = group.index.arrow.schema.to_arrow_schema()
    kind = schema.field(name).type if name in schema.names else pa.null()
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return kind if is_text or pa.types.is_binary(kind) or pa.types.is_large_binary(kind) else None


def _expanded_bytes(column: pa.Array, kind: pa.DataType) -> float:
    """Return `nbytes` of a dictionary column as it would be expanded."""
    if not pa.types.is_dictionary(column.type):
        return float(column.nbytes)
    data = int(value_lengths(column).sum())
    wide = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
    validity = (len(column) + 7) // 8 if column.null_count else 0
    return float(data + (8 if wide else 4) * len(column) + validity)


def leaf_paths(group: StoredRowGroup, names: Sequence[str]) -> list[str]:
    """Return the paths of the text and binary inside columns, for pyarrow's `read_dictionary`."""
    chunks = group.index.chunks
    leaves = [chunks.leaves[index] for name in names for index in chunks.below(name)]
    return [leaf.path for leaf in leaves if leaf.width is None]


def plain_bytes(array: pa.Array) -> float:
    """Return the approximate bytes of an array once dictionaries of text and binary inside it are expanded."""
    kind = array.type
    if pa.types.is_dictionary(kind) and kind.value_type in _TEXTS:
        return float(value_lengths(array).sum()) + OFFSET_BYTES * len(array)
    if pa.types.is_struct(kind):
        return float(sum(map(plain_bytes, array.flatten())))
    if pa.types.is_map(kind):
        first, last = (int(array.offsets[end].as_py()) for end in (0, -1))
        parts = (part.slice(first, last - first) for part in (array.keys, array.items))
        return sum(map(plain_bytes, parts)) + OFFSET_BYTES * len(array)
    if kind.num_fields:  # not is_nested: for pyarrow 14 lists of fixed size are not
        return plain_bytes(array.flatten()) + OFFSET_BYTES * len(array)
    return float(array.nbytes)


def value_lengths(column: pa.DictionaryArray) -> NDArray[np.int64]:
    """Return the bytes of each value of a dictionary column of text or binary, 0 for nulls.

    Without pyarrow.compute: importing it takes as long as everything else before the first batch.
    """
    lengths: NDArray[np.int64] = np.diff(cells_view(column.dictionary)[1]).astype(np.int64)
    indices = column.indices
    places, valid = numbers(indices, np.dtype(f"i{indices.type.bit_width // 8}")), validity(indices)
    found: NDArray[np.int64] = np.zeros(len(places), np.int64)
    if valid is None:
        found[:] = lengths[places]
    else:
        found[valid] = lengths[places[valid]]
    return found


def _slices(stream: Any, group: StoredRowGroup, name: str, num_rows: int, **more: Any) -> Any:
    # Through a buffer, so that the first rows do not cost the whole column.
    reader = pq.ParquetFile(stream, metadata=group.index.arrow, buffer_size=1 << 20, **READ_OPTIONS, **more)
    return reader.iter_batches(num_rows, row_groups=[group.number], columns=[name], use_threads=False)


def _first(stream: Any, group: StoredRowGroup, name: str, num_rows: int, **more: Any) -> Any:
    batch = next(_slices(stream, group, name, num_rows, **more), None)
    if batch is None:
        raise pa.ArrowInvalid("no rows came")
    return batch


def _open(group: StoredRowGroup, name: str, num_rows: int) -> Any:
    """Open the file; through the cache, and all of the column at once, only where the whole column is read anyway."""
    whole = num_rows == group.num_rows
    if group.cached is None or not whole:
        group = replace(group, cached=None, watched=False)
    return group.opened([name] if whole else ())
