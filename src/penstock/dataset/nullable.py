"""Which columns may hold nulls, before a row is read: by their fields, partitions and the statistics of footers.

For faces that must say what a batch looks like before there is one. The answer is the same in every process that sees
the same files; where it is not known, a column counts as one that holds nulls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
