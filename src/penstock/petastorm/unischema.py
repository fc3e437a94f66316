"""Petastorm's `unischema`: the same classes and functions that `penstock` itself uses, under the names its users know.

Nothing is defined here. See `penstock.schema.unischema` and `penstock.schema.encode`.
"""

from __future__ import annotations

from penstock.schema.encode import dict_to_spark_row, encode_row, insert_explicit_nulls
from penstock.schema.unischema import Unischema, UnischemaField, match_unischema_fields

__all__ = [
    "Unischema",
    "UnischemaField",
    "dict_to_spark_row",
    "encode_row",
    "insert_explicit_nulls",
    "match_unischema_fields",
]
