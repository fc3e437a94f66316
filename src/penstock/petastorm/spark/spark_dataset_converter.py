"""Petastorm's converter of Spark DataFrames: not in this version; the names can be imported and say so when used.

The name of the setting that Spark programs write is here already. Does not import pyspark.
"""

from __future__ import annotations

from functools import partial

from penstock.petastorm._later import later_class, later_function

__all__ = ["SparkDatasetConverter", "make_spark_converter", "register_delete_dir_handler"]

_INSTEAD = "until then write the DataFrame as Parquet and give its URL to make_batch_reader or penstock.open"
_function = partial(later_function, __name__, extra="spark", instead=_INSTEAD)

SparkDatasetConverter = later_class(__name__, "SparkDatasetConverter", extra="spark", instead=_INSTEAD)
SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF = "petastorm.spark.converter.parentCacheDirUrl"
make_spark_converter = _function("make_spark_converter")
register_delete_dir_handler = _function("register_delete_dir_handler")
