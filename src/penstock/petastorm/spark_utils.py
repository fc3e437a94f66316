"""Petastorm's `spark_utils`: not in this version; its name can be imported and says so when used.

It will give the rows of a dataset as an RDD. Does not import pyspark.
"""

from __future__ import annotations

from penstock.petastorm._later import later_function

__all__ = ["dataset_as_rdd"]

dataset_as_rdd = later_function(
    __name__, "dataset_as_rdd", extra="spark", instead="until then make_reader gives the same rows without Spark"
)
