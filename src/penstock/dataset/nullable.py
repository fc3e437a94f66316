"""Which columns may hold nulls, before a row is read: by their fields, partitions and the statistics of footers.

For faces that must say what a batch looks like before there is one. The answer is the same in every process that sees
the same files; where it is not known, a column counts as one that holds nulls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.dataset.prune import leaf_indices
from penstock.errors import BadFile

if TYPE_CHECKING:
    from collections.abc import Iterable

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
            now = _with_nulls(source.footer(file), left)
        except BadFile:
            return frozenset(found | left)
        found, left = found | now, left - now
    return frozenset(found)


def _with_nulls(footer: Any, names: set[str]) -> set[str]:
    """Return the columns that hold nulls in a file, or of which it does not tell."""
    leaves, groups = leaf_indices(footer), range(footer.num_row_groups)
    paths = [footer.schema.column(index).path for index in range(len(footer.schema))]

    def has_nulls(name: str) -> bool:
        index = leaves.get(name)
        if index is None:  # a list: its values, of which an empty list counts as a null one
            below = [number for number, path in enumerate(paths) if path.startswith(f"{name}.")]
            if len(below) != 1:
                return True
            index = below[0]
        told = (footer.row_group(group).column(index).statistics for group in groups)
        return any(one is None or not one.has_null_count or one.null_count > 0 for one in told)

    return {name for name in names if has_nulls(name)}
