"""Rows or tables to datasets, without Spark: the writing side of `penstock`.

`write` takes values through the schema's codecs to Parquet and puts the dataset in its place in one step. It stands
above everything that reads and is used by none of it.
"""

from penstock.write.files import Written
from penstock.write.write import write

__all__ = ["Written", "write"]
