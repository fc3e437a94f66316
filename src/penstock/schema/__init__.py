"""Schemas: what the columns of a dataset hold, how that is stored, and how it maps to Arrow and Spark.

Stands on `codecs`; datasets, engine and writers stand on it. Use `Unischema` and `UnischemaField` from `penstock`.
"""

from penstock.schema.unischema import Unischema, UnischemaField

__all__ = ["Unischema", "UnischemaField"]
