"""Datasets written by Spark, and read into it: the distributed side of `penstock`.

`write` turns a DataFrame into a dataset, encoded on the executors; `materialize_dataset` is Petastorm's block around
Spark's own writer. PySpark is imported only when a function that needs it is called. Nothing that reads imports this
package.
"""

from penstock.schema.encode import dict_to_spark_row, insert_explicit_nulls
from penstock.spark.materialize import copy_dataset, materialize_dataset
from penstock.spark.rdd import dataset_as_rdd
from penstock.spark.write import write

__all__ = [
    "copy_dataset",
    "dataset_as_rdd",
    "dict_to_spark_row",
    "insert_explicit_nulls",
    "materialize_dataset",
    "write",
]
