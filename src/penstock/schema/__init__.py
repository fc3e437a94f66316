"""Schemas: what the columns of a dataset hold, how that is stored, and how it maps to Arrow and Spark.

Built on `codecs`; used by datasets, engine and writers. Use `Unischema` and `UnischemaField` from `penstock`.
"""

from penstock.schema.unischema import Unischema, UnischemaField

__all__ = ["Unischema", "UnischemaField"]
