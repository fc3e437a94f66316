"""Encode rows by a schema: Python values to storable cells, for writers and for Spark.

Codecs encode values; here nulls, missing and unknown fields are checked first. Imports pyspark only when a Spark row
is requested.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.codecs import ScalarCodec
from penstock.codecs.base import storage_type
from penstock.codecs.scalar import spark_type_of
from penstock.errors import CodecError, SchemaError, UnsupportedType, close_names
from penstock.schema.unischema import Unischema, UnischemaField, dtype_text

if TYPE_CHECKING:
    from collections.abc import Mapping


def insert_explicit_nulls(unischema: Unischema, row_dict: dict[str, Any]) -> None:
    """Add None for every nullable field that the row lacks, in place; SchemaError if a field may not be null."""
    for name, field in unischema.fields.items():
        if name not in row_dict:
            if not field.nullable:
                raise SchemaError(f"field {name!r} is not nullable and missing in the row")
            row_dict[name] = None


def encode_row(schema: Unischema, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row as storable cells, in schema order; the given row is not changed.

    Missing nullable fields become None. SchemaError for names the schema lacks, for missing fields and for None where a
    field may not be null; what a codec raises comes through.
    """
    full = dict(row)
    insert_explicit_nulls(schema, full)
    if extra := full.keys() - schema.fields.keys():
        first = sorted(extra)[0]
        raise SchemaError(
            f"the row has fields that the schema lacks: {sorted(extra)}; {close_names(first, schema.fields)}"
        )
    return {name: _encode(field, full[name]) for name, field in schema.fields.items()}


def _encode(field: UnischemaField, value: Any) -> Any:
    if value is None:
        if not field.nullable:
            raise SchemaError(f"field {field.name!r} is not nullable, got None")
        return None
    if field.codec is not None:
        return field.codec.encode(field, value)
    keep = not isinstance(value, np.generic) or isinstance(value, np.datetime64 | np.timedelta64)
    cell = value if keep else value.tolist()  # dates stay: tolist() turns nanoseconds into bare integers
    dtype = field.numpy_dtype
    if type(cell) is int and not field.shape and isinstance(dtype, type) and issubclass(dtype, np.integer):
        limits = np.iinfo(dtype)
        if not limits.min <= cell <= limits.max:
            kind = dtype_text(dtype)
            raise SchemaError(f"field {field.name!r}: {cell} does not fit {kind}; give the field a wider dtype")
    return cell


def dict_to_spark_row(unischema: Unischema, row_dict: Mapping[str, Any]) -> Any:
    """Return a row as a `pyspark.Row` of encoded cells in schema order (needs pyspark); see `encode_row`."""
    if not isinstance(unischema, Unischema):
        raise AssertionError(  # noqa: TRY004 - what Petastorm raises
            f"the first argument must be a Unischema, got {type(unischema).__name__}"
        )
    cells = encode_row(unischema, row_dict)
    try:
        from pyspark import Row
    except ImportError:
        raise ImportError("a Spark row needs PySpark: pip install 'penstock[spark]'") from None
    fields = unischema.fields
    return Row(*cells)(*[_spark_cell(fields[name], cell) for name, cell in cells.items()])


def _spark_cell(field: UnischemaField, cell: Any) -> Any:
    """Return a cell as Spark takes it: bytes it may change, and Python's dates, with a zone where they are instants."""
    if isinstance(cell, bytes):
        return bytearray(cell)
    if not isinstance(cell, np.datetime64):
        return cell
    if np.isnat(cell):
        raise SchemaError(f"field {field.name!r}: Spark has no NaT; give None in a nullable field")
    stored = ScalarCodec().storage_type(field) if field.codec is None else storage_type(field.codec, field)
    when = cell.astype("M8[D]" if str(stored).startswith("date") else "M8[us]").item()
    # Spark takes a time without a zone for this machine's.
    return when.replace(tzinfo=datetime.UTC) if getattr(stored, "tz", None) else when


def spark_type(field: UnischemaField) -> Any:
    """Return the Spark type that a field is written with; SchemaError if it has none."""
    codec = field.codec
    if codec is not None and not (isinstance(codec, ScalarCodec) and not codec.config()):
        return codec.spark_dtype()
    if field.shape:
        what = "has codec set to None" if codec is None else f"has {codec}, so that its shape must be an empty tuple"
        raise SchemaError(
            f"field {field.name!r} {what}, and shape {field.shape}; give it a codec of arrays, such as NdarrayCodec()"
        )
    if field.numpy_dtype is np.bytes_:
        return spark_type_of(np.dtype(np.str_)).to_pyspark()  # as Petastorm has it
    try:
        return spark_type_of(ScalarCodec().storage_type(field)).to_pyspark()
    except (CodecError, UnsupportedType) as exc:
        raise SchemaError(
            f"Was not able to map type {dtype_text(field.numpy_dtype)} of field {field.name!r} to a Spark type: {exc}"
        ) from exc
