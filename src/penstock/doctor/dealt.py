"""What a shuffled run deals out of a dataset: row groups, or the parts into which they are divided.

`find_dealt` asks the source how it divides its row groups now, and how it would if the pages of all files were indexed.
`checks` plans runs over both. Reads footers and stored indexes of pages, no data.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock.dataset import as_parquet
from penstock.dataset.divide import divide
from penstock.errors import PenstockWarning

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from penstock.source import Source

INDEX = "find the pages of row groups once, without writing the files again: penstock index --beside URL"
"""The cure for large row groups without an offset index."""


class Chunks(NamedTuple):
    """Chunks of a run."""

    rows: NDArray[np.int64]
    """Rows of each."""
    groups: NDArray[np.int64] | None = None
    """The row group of each; None: they are row groups."""


class Dealt(NamedTuple):
    """How the row groups of a dataset are dealt out."""

    now: Chunks
    indexed: Chunks | None
    """The same after `penstock index`; None if that changes nothing."""
    whole: str | None
    """Why the first large row group that cannot be divided has to be read whole; None: there is none."""


def find_dealt(source: Source) -> Dealt:
    """Return how the row groups of a dataset are divided."""
    rows = source.facts.chunk_rows
    parquet = as_parquet(source)
    division = divide(parquet)
    with warnings.catch_warnings():  # what it warns of is reported as a finding
        warnings.simplefilter("ignore", PenstockWarning)
        split = parquet.split(scan=None)
    now = Chunks(rows) if split is None else Chunks(split.source.facts.chunk_rows, split.chunk)
    indexed = None
    if division.unindexed and not (split is not None and split.scanned):
        unindexed = {chunk: one.borders for chunk, one in division.unindexed.items()}
        indexed = _divided(rows, {**division.indexed, **unindexed})
    why = next((f"column {one.column!r} cannot be read in parts: {one.why}" for one in division.whole.values()), None)
    return Dealt(now, indexed, why)


def _divided(rows: NDArray[np.int64], borders: Mapping[int, NDArray[np.int64]]) -> Chunks:
    parts = [np.diff(borders[chunk]) if chunk in borders else rows[chunk : chunk + 1] for chunk in range(len(rows))]
    return Chunks(np.concatenate(parts), np.repeat(np.arange(len(rows)), [len(one) for one in parts]))
