"""Petastorm's `petastorm.etl`: what is made of a dataset once, before it is read: metadata and row-group indexes.

Holds the base of indexers, as Petastorm does; the rest is in the modules of its own. Imports no Spark.
"""

from penstock.dataset.index_indexers import RowGroupIndexerBase

__all__ = ["RowGroupIndexerBase"]
