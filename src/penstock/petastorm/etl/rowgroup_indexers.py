"""Petastorm's `petastorm.etl.rowgroup_indexers`: what to index, for `build_rowgroup_index`.

The classes are those of `dataset/index_indexers.py`. Defines nothing.
"""

from penstock.dataset.index_indexers import FieldNotNullIndexer, SingleFieldIndexer

__all__ = ["FieldNotNullIndexer", "SingleFieldIndexer"]
