"""Selectors: whole row groups chosen by the values that an index knows, and the selection they leave.

The user makes a selector; `select_row_groups` loads the indexes it names and narrows a `Selection` by it. Ordinals are
chunk numbers of the whole dataset, so they stay right whatever filters came before. Names are Petastorm's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from penstock.dataset.index_store import load_indexes
from penstock.errors import MetadataError, close_names
from penstock.source import Selection, Source

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.dataset.index_indexers import RowGroupIndexerBase


class RowGroupSelectorBase(ABC):
    """Chooses row groups by indexes; subclass it with both methods."""

    @abstractmethod
    def get_index_names(self) -> Iterable[str]:
        """Return the names of the indexes that it asks."""

    @abstractmethod
    def select_row_groups(self, index_dict: Mapping[str, RowGroupIndexerBase]) -> set[int]:
        """Return the ordinals of the chosen row groups, given the indexes by name."""


class SingleIndexSelector(RowGroupSelectorBase):
    """Choose the row groups that hold one of some values, by one index."""

    def __init__(self, index_name: str, values_list: Iterable[Any]) -> None:
        if isinstance(values_list, str | bytes) or not hasattr(values_list, "__iter__"):
            raise ValueError(f"SingleIndexSelector takes a list of values; got {values_list!r}: put it into [ ]")
        self._index_name = index_name
        self._values_list = list(values_list)

    def get_index_names(self) -> list[str]:
        """Return the one index."""
        return [self._index_name]

    def select_row_groups(self, index_dict: Mapping[str, RowGroupIndexerBase]) -> set[int]:
        """Return the row groups of all values together."""
        indexer = index_dict[self._index_name]
        return set().union(*(indexer.get_row_group_indexes(value) for value in self._values_list))

    def __repr__(self) -> str:
        return f"SingleIndexSelector({self._index_name!r}, {self._values_list!r:.60})"


class _Combined(RowGroupSelectorBase):
    def __init__(self, single_index_selectors: Sequence[RowGroupSelectorBase]) -> None:
        self._selectors = [check_selector(selector) for selector in single_index_selectors]
        if not self._selectors:
            raise ValueError(f"{type(self).__name__} takes a list of at least one selector; got none")

    def get_index_names(self) -> list[str]:
        """Return the indexes of all selectors, each once."""
        return list(dict.fromkeys(name for selector in self._selectors for name in selector.get_index_names()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._selectors})"


class IntersectIndexSelector(_Combined):
    """Choose the row groups that every one of several selectors chooses."""

    def select_row_groups(self, index_dict: Mapping[str, RowGroupIndexerBase]) -> set[int]:
        """Return the row groups that all selectors have in common."""
        return set.intersection(*(set(selector.select_row_groups(index_dict)) for selector in self._selectors))


class UnionIndexSelector(_Combined):
    """Choose the row groups that at least one of several selectors chooses."""

    def select_row_groups(self, index_dict: Mapping[str, RowGroupIndexerBase]) -> set[int]:
        """Return the row groups of all selectors together."""
        return set().union(*(selector.select_row_groups(index_dict) for selector in self._selectors))


def check_selector(value: Any) -> RowGroupSelectorBase:
    """Return a selector as it is; ValueError for anything else."""
    methods = ("get_index_names", "select_row_groups")
    if isinstance(value, type) or not all(callable(getattr(value, name, None)) for name in methods):
        raise ValueError(f"a row-group selector is wanted (as SingleIndexSelector makes one); got {value!r}")
    return cast("RowGroupSelectorBase", value)


def select_row_groups(source: Source, selector: RowGroupSelectorBase, before: Selection) -> Selection:
    """Return the rows of `before` that lie in the row groups that a selector chooses; reads one small file.

    Raises:
        ValueError: It is no selector, or chooses row groups that the dataset does not have.
        MetadataError: The dataset has no index, none of that name, or has changed since it was built.
    """
    indexes = load_indexes(source) if list(check_selector(selector).get_index_names()) else {}
    for name in selector.get_index_names():
        if name not in indexes:
            raise MetadataError(f"no row-group index {name!r} is stored with the dataset; {close_names(name, indexes)}")
    chosen = np.array(sorted(map(int, selector.select_row_groups(indexes))), np.int64)
    num_chunks = len(before.counts)
    if len(chosen) and not 0 <= chosen[0] <= chosen[-1] < num_chunks:
        raise ValueError(
            f"{selector!r} chose the row groups {chosen[0]} to {chosen[-1]}; the dataset has {num_chunks} with rows, "
            "counted from 0"
        )
    keep = np.zeros(num_chunks, np.bool_)
    keep[chosen] = True
    bitmaps = {chunk: bitmap for chunk, bitmap in before.bitmaps.items() if keep[chunk]}
    return Selection(np.where(keep, before.counts, 0), bitmaps, before.skipped)
