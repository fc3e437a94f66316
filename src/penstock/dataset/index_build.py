"""Build row-group indexes: read the columns that indexers ask for, row group by row group.

`build_indexes` does it in threads here; Spark calls `index_chunk` and `merge` on its own machines (see
`petastorm/etl/rowgroup_indexing.py`). The shipped indexers work on whole columns; others get decoded rows. Stores
nothing.
"""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.codecs.row_values import row_values
from penstock.dataset.index_indexers import (
    NOT_NULL,
    FieldNotNullIndexer,
    RowGroupIndexerBase,
    SingleFieldIndexer,
    indexed_elements,
)
from penstock.dataset.row_views import ChunkRows
from penstock.errors import ColumnNotFound, close_names
from penstock.progress import progress

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Indexers = list[RowGroupIndexerBase]
    from penstock.source import Source


def check_indexers(indexers: Iterable[RowGroupIndexerBase], names: Sequence[str]) -> Indexers:
    """Return the indexers as a list.

    Raises:
        ValueError: There are none, two have one name, or one is no indexer.
        ColumnNotFound: One asks for a column that is not among `names`.
    """
    found = list(indexers)
    for indexer in found:
        if not isinstance(indexer, RowGroupIndexerBase):
            raise ValueError(f"an indexer is wanted (as SingleFieldIndexer makes one); got {indexer!r}")  # noqa: TRY004 -- as for all arguments
        for name in indexer.column_names:
            if name not in names:
                raise ColumnNotFound(
                    f"no column {name!r} for the index {indexer.index_name!r}; {close_names(name, names)}"
                )
    if not found or len({indexer.index_name for indexer in found}) < len(found):
        raise ValueError(f"give at least one indexer, each with a name of its own; got {found}")
    return found


def build_indexes(source: Source, indexers: Iterable[RowGroupIndexerBase], *, workers: int) -> Indexers:
    """Return indexers that know every row group; those given are not changed.

    Reads the columns concerned once, in threads; a bar is drawn on a terminal when that takes long.
    """
    given = check_indexers(indexers, source.facts.arrow_schema.names)
    chunks = range(len(source.facts.chunk_rows))
    found: list[Indexers] = []
    pool = ThreadPoolExecutor(max(1, workers))
    try:
        with progress(len(chunks), "index", unit="row groups") as bar:
            for one in pool.map(partial(index_chunk, source, given), chunks):
                found.append(one)
                bar.update()
    finally:  # an error or Ctrl-C stops the rest
        pool.shutdown(wait=True, cancel_futures=True)
    return merge_all(found) if found else copy.deepcopy(given)


def index_chunk(source: Source, indexers: Sequence[RowGroupIndexerBase], chunk: int) -> Indexers:
    """Return copies of indexers that know one row group."""
    view = ChunkRows(source, chunk, None)
    view.load(name for indexer in indexers for name in indexer.column_names)
    return [_built(copy.deepcopy(indexer), view, chunk) for indexer in indexers]


def _built(indexer: RowGroupIndexerBase, view: ChunkRows, chunk: int) -> RowGroupIndexerBase:
    if type(indexer) is SingleFieldIndexer:
        for value in _distinct(view.column(*indexer.column_names)):
            indexer.add(value, [chunk])
    elif type(indexer) is FieldNotNullIndexer:  # nothing needs decoding
        column = view.stored(*indexer.column_names)
        if column.null_count < len(column):
            indexer.add(NOT_NULL, [chunk])
    else:
        names = list(indexer.column_names)
        rows = zip(*[row_values(view.column(name)) for name in names], strict=True)
        indexer.build_index([dict(zip(names, row, strict=True)) for row in rows], chunk)
    return indexer


def _distinct(column: Any) -> list[Any]:
    """Return the values of a column, or of its elements, without nulls; repeats left out where that is cheap."""
    if isinstance(column, np.ndarray) and column.dtype.kind in "biufmM":
        return list(np.unique(np.ma.compressed(column) if isinstance(column, np.ma.MaskedArray) else column))
    values = row_values(column)
    if all(isinstance(value, str | bytes) or value is None for value in values):
        return [value for value in dict.fromkeys(values) if value is not None]
    return [element for value in values for element in indexed_elements(value)]


def merge(one: Indexers, other: Indexers) -> Indexers:
    """Return two lists of indexers merged pair by pair."""
    return [a + b for a, b in zip(one, other, strict=True)]


def merge_all(parts: list[Indexers]) -> Indexers:
    """Merge many lists of indexers, neighbours first: each value is copied as often as the tree is deep."""
    while len(parts) > 1:
        pairs = [merge(*pair) for pair in zip(parts[::2], parts[1::2], strict=False)]
        parts = pairs + (parts[-1:] if len(parts) % 2 else [])
    return parts[0]
