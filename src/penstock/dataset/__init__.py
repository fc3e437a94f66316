"""Facts about datasets, kept as arrays: files, chunks, row counts, partitions, columns, fingerprint, selections.

Stands on storage, codecs and schema; plan and engine stand on it. Opening reads footers, filters read their own
columns, and nothing here decodes a cell, knows an order or holds a thread longer than a call.
"""

from penstock.dataset.columns import pick_columns
from penstock.dataset.parquet import ParquetSource, as_parquet, open_parquet

__all__ = ["ParquetSource", "as_parquet", "open_parquet", "pick_columns"]
