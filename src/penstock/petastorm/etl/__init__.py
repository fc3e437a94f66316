"""Petastorm's `petastorm.etl`: what is made of a dataset once, before it is read: metadata and row-group indexes.

Has the base class of indexers, as in Petastorm; the rest is in its modules. Imports no Spark.
"""

from penstock.dataset.index_indexers import RowGroupIndexerBase

__all__ = ["RowGroupIndexerBase"]
