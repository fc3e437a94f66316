"""Petastorm's helpers for command lines that start Spark: not in this version; the names say so when used.

They will add `--master` and `--spark-session-config` to a parser. Does not import pyspark.
"""

from __future__ import annotations

from functools import partial

from penstock.petastorm._later import later_function

__all__ = ["add_configure_spark_arguments", "configure_spark"]

_function = partial(later_function, __name__, extra="spark", instead="until then configure the session yourself")

add_configure_spark_arguments = _function("add_configure_spark_arguments")
configure_spark = _function("configure_spark")
