"""Which columns may hold nulls, before a row is read: by their fields, partitions and the statistics of footers.

For faces that must say what a batch looks like before there is one. The answer is the same in every process that sees
the same files; where it is not known, a column counts as one that holds nulls.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.codecs.arrow_kinds import form_of, leaf_of
from penstock.dataset.discover import threads_for
from penstock.errors import BadFile

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.dataset.column_chunks import ColumnChunks
    from penstock.dataset.parquet import ParquetSource

_MOST_FILES = 256
"""The footers of so many files are asked; beyond, a nullable field counts as one that has nulls."""


def may_be_null(source: ParquetSource, names: Iterable[str]) -> frozenset[str]:
    """Return those of the columns that may hold nulls: the field says so, and the footers do not know better."""
    left = {name for name in names if source.unischema.fields[name].nullable}
    files = range(len(source.files))
    parted = {name for name in left if name in source.partitions}
    found = {name for name in parted if any(not source.partition_scalar(name, file).is_valid for file in files)}
    left -= parted
    if len(files) > _MOST_FILES:
        return frozenset(found | left)
    for file in files:
        if not left:
            break
        try:
            now = _with_nulls(source.footer(file).chunks, left)
        except BadFile:
            return frozenset(found | left)
        found, left = found | now, left - now
    return frozenset(found)


def _with_nulls(chunks: ColumnChunks, names: set[str]) -> set[str]:
    """Return the columns that hold nulls in a file, or whose footer does not say."""

    def has_nulls(name: str) -> bool:
        leaf = chunks.flat.get(name)
        if leaf is None:  # a list: its values, of which an empty list counts as a null one
            below = chunks.below(name)
            if len(below) != 1:
                return True
            leaf = below[0]
        return bool((chunks.null_count[:, leaf] != 0).any())

    return {name for name in names if has_nulls(name)}


@dataclass(frozen=True, slots=True)
class Held:
    """What the footers say about the values of a column; in lists about their elements."""

    has_nulls: bool
    """Whether it may hold nulls."""
    largest: int | None
    """No 64-bit integer is farther from 0 than this; None where that is not known."""


_ANYTHING = Held(has_nulls=True, largest=None)


def held_values(source: ParquetSource, names: Iterable[str]) -> dict[str, Held]:
    """Return what is known about the columns over all files; the same in every process that sees the same files.

    An empty or null list counts as a null element where the footer does not tell them apart: without size statistics,
    which newer writers store. Reads footers that are not kept, in threads.
    """
    found: dict[str, Held] = {}
    stored: dict[str, bool] = {}  # columns to look up in footers, and whether they hold 64-bit integers
    for name in names:
        field = source.arrow_schema.field(name)
        if name in source.partitions:
            found[name] = _of_partition(source.partitions[name])
        elif field.nullable or form_of(field.type) in ("list", "fixed_list"):  # a list may hold null elements
            stored[name] = leaf_of(field.type) in (pa.int64(), pa.uint64())
        else:
            found[name] = Held(has_nulls=False, largest=None)
    if stored:
        with ThreadPoolExecutor(threads_for(source._files[0].root.fs)) as pool:
            files = list(pool.map(lambda file: _of_file(source, file, stored), range(len(source.files))))
        found |= {name: _together([one[name] for one in files]) for name in stored}
    return found


def _of_partition(values: Any) -> Held:
    there = [value for value in values if value is not None]
    numbers = all(isinstance(value, int | np.integer) for value in there)
    return Held(len(there) < len(values), max((abs(int(value)) for value in there), default=0) if numbers else None)


def _of_file(source: ParquetSource, file: int, names: dict[str, bool]) -> dict[str, Held]:
    try:
        chunks = source.footer(file).chunks
    except BadFile:  # raised when the file is read
        return dict.fromkeys(names, _ANYTHING)
    nulls = chunks.null_elements()
    unknown, some = (set(np.flatnonzero(found.any(axis=0)).tolist()) for found in (nulls < 0, nulls > 0))
    held: dict[str, Held] = {}
    for name, integers in names.items():
        leaves = [chunks.flat[name]] if name in chunks.flat else chunks.below(name)
        if len(leaves) != 1:
            held[name] = _ANYTHING
            continue
        leaf = leaves[0]
        believed = not source.unischema.fields[name].nullable and not chunks.leaves[leaf].repeated
        largest = chunks.largest_integer(leaf) if integers else None
        held[name] = Held(leaf in some or (leaf in unknown and not believed), largest)
    return held


def _together(parts: list[Held]) -> Held:
    """Return what holds for all files."""
    largest = [part.largest for part in parts if part.largest is not None]
    return Held(any(part.has_nulls for part in parts), max(largest) if len(largest) == len(parts) else None)
