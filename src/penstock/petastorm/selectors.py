"""Petastorm's `petastorm.selectors`: row groups chosen by a stored index, for `make_reader(rowgroup_selector=...)`.

The classes are those of `dataset/index.py`; ordinals count the row groups of the whole dataset. Defines nothing.
"""

from penstock.dataset.index import (
    IntersectIndexSelector,
    RowGroupSelectorBase,
    SingleIndexSelector,
    UnionIndexSelector,
)

__all__ = ["IntersectIndexSelector", "RowGroupSelectorBase", "SingleIndexSelector", "UnionIndexSelector"]
