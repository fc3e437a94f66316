"""Petastorm's `spark_utils`: the rows of a dataset as an RDD.

Nothing is defined here. See `penstock.spark.rdd`.
"""

from __future__ import annotations

from penstock.spark.rdd import dataset_as_rdd

__all__ = ["dataset_as_rdd"]
