"""Petastorm's own metadata, written without Petastorm or PySpark: schema, row groups per file, row-group index.

Writers put these bytes beside our JSON into `_common_metadata`, so that Petastorm 0.13.1 reads what we wrote. The
pickles are emitted opcode by opcode (protocol 3, which every Python 3 reads) and name Petastorm's classes without
importing them; `petastorm_pickle` reads them back. What Petastorm would give other values for, or none, is refused
with an error that names the field: the caller then leaves Petastorm's keys out.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.codecs import CompressedImageCodec, CompressedNdarrayCodec, NdarrayCodec, ScalarCodec
from penstock.codecs.scalar import SparkType, spark_type_of
from penstock.errors import CodecError, SchemaError, UnsupportedType
from penstock.schema.unischema import Unischema, UnischemaField, schema_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.schema.petastorm_pickle import RowGroupIndex

ROW_GROUPS_PER_FILE_KEY = b"dataset-toolkit.num_row_groups_per_file.v1"
"""Key of what `dump_row_group_counts` gives; those of schema and index are in `schema/stored.py`."""

_PROTOCOL = 3
_NUMBERS: dict[Any, str] = {
    **{np.dtype(n).type: n for n in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")},
    **{np.dtype(n).type: n for n in ("float16", "float32", "float64")},
    np.bool_: "bool_",
}
_SCALARS = _NUMBERS | {np.str_: "str_", np.bytes_: "bytes_", np.datetime64: "datetime64"}
_ARRAYS = _SCALARS | {np.complex64: "complex64", np.complex128: "complex128", np.timedelta64: "timedelta64"}
# What a column is stored as counts for reading; Petastorm's own list of Spark types is shorter.
_SPARK_NAMES = {"VarcharType": "StringType", "CharType": "StringType", "TimestampNTZType": "TimestampType"}


def dump_unischema(schema: Unischema) -> bytes:
    """Return a schema as Petastorm pickles it, for the key `PETASTORM_SCHEMA_KEY`; equal schemas give equal bytes.

    Raises:
        SchemaError: A field has a codec or dtype that Petastorm has not, or would read as something else.
    """
    fields = {name: _field(field) for name, field in schema.fields.items()}
    # As in Petastorm, fields are attributes, but for those whose name a method has.
    attributes = {name: made for name, made in fields.items() if name in vars(schema)}
    state = {"_name": schema_name(schema), "_fields": _Call("collections", "OrderedDict", (), fields), **attributes}
    return _pickled(_New("petastorm.unischema", "Unischema", (), state))


def dump_row_group_counts(counts: Mapping[str, int]) -> bytes:
    """Return the number of row groups by path (relative to the dataset, with forward slashes) as Petastorm keeps it."""
    return json.dumps({str(path): int(count) for path, count in sorted(counts.items())}, ensure_ascii=False).encode()


def dump_index(indexes: Mapping[str, RowGroupIndex]) -> bytes:
    """Return row-group indexes by name as Petastorm pickles them; ordinals count all row groups, empty ones too.

    Raises:
        SchemaError: A value is of a type that cannot be a key there; numbers, text, bytes, decimals and datetime64 can.
    """
    return _pickled({name: _index(index) for name, index in indexes.items()})


# -- fields --------------------------------------------------------------------------------------------------------


def _field(field: UnischemaField) -> _New:
    codec = _codec(field)
    values = (field.name, _dtype(field, codec), field.shape, codec, field.nullable)
    return _New("petastorm.unischema", "UnischemaField", values)


def _dtype(field: UnischemaField, codec: _New | None) -> _Name | None:
    """Return the dtype's name; refuses those that Petastorm's decoding of a native column would stumble over."""
    kind = field.numpy_dtype
    in_cells = codec is not None and codec.name != "ScalarCodec"
    if kind is None and in_cells:
        return None
    if kind is Decimal and not in_cells and not field.shape:
        return _Name("decimal", "Decimal")
    known = _ARRAYS if in_cells else _NUMBERS if field.shape else _SCALARS
    if kind not in known or (not in_cells and len(field.shape) > 1):
        how = "cells of this codec" if in_cells else "lists" if field.shape else "scalars"
        raise SchemaError(
            f"field {field.name!r}: Petastorm does not read {how} of dtype {getattr(kind, '__name__', kind)} and shape "
            f"{field.shape}; it can with another dtype, or for arrays with NdarrayCodec"
        )
    return _Name("numpy", known[kind])


def _codec(field: UnischemaField) -> _New | None:
    codec = field.codec
    if codec is None:
        return None
    if type(codec) is ScalarCodec:
        kind = _spark_type(codec, field)
        return None if kind is None else _New("petastorm.codecs", "ScalarCodec", (), {"_spark_type": kind})
    if type(codec) is CompressedImageCodec:
        state = {"_image_codec": f".{codec.image_codec}", "_quality": codec.quality}
        return _New("petastorm.codecs", "CompressedImageCodec", (), state)
    if type(codec) in (NdarrayCodec, CompressedNdarrayCodec):
        return _New("petastorm.codecs", type(codec).__name__)
    raise SchemaError(
        f"field {field.name!r}: Petastorm has no codec {codec!r}, and opens no dataset that names a class of others"
    )


def _spark_type(codec: ScalarCodec, field: UnischemaField) -> _New | None:
    """Return the Spark type of a scalar, None where Spark has none: a field without codec is read by its dtype."""
    try:
        return _spark(codec.spark_type or spark_type_of(codec.storage_type(field)))
    except (CodecError, UnsupportedType):
        return None


def _spark(kind: SparkType) -> _New:
    state: dict[str, Any] = {}
    if kind.name == "DecimalType":
        state = {"precision": kind.precision, "scale": kind.scale, "hasPrecisionInfo": True}
    elif kind.name == "ArrayType":
        state = {"elementType": _spark(kind.element or SparkType("StringType")), "containsNull": True}
    return _New("pyspark.sql.types", _SPARK_NAMES.get(kind.name, kind.name), (), state)


# -- indexes -------------------------------------------------------------------------------------------------------


def _index(index: RowGroupIndex) -> _New:
    held: Any = index.row_groups
    if isinstance(held, dict):
        pairs = {_key(index, value): {int(group) for group in groups} for value, groups in held.items()}
        held = _Call("collections", "defaultdict", (_Name("builtins", "set"),), pairs)
    name = "SingleFieldIndexer" if isinstance(index.row_groups, dict) else "FieldNotNullIndexer"
    state = {"_index_name": index.name, "_column_name": index.column, "_index_data": held}
    return _New("petastorm.etl.rowgroup_indexers", name, (), state)


def _key(index: RowGroupIndex, value: Any) -> Any:
    if isinstance(value, np.datetime64):
        unit, count = np.datetime_data(value.dtype)
        state: tuple[Any, ...] = (4, "<", None, None, None, -1, -1, 0, ({}, (unit.encode(), count, 1, 1)))
        dtype = _Call("numpy", "dtype", ("M8", False, True), state=state)
        return _Call("numpy.core.multiarray", "scalar", (dtype, value.astype("<i8").tobytes()))
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, bool | int | float | str | bytes):
        return plain
    if isinstance(plain, Decimal):
        return _Call("decimal", "Decimal", (str(plain),))
    raise SchemaError(
        f"the index {index.name!r} of field {index.column!r} has a value of {type(value).__name__}, which Petastorm's "
        "index cannot hold; numbers, text, bytes, decimals and datetime64 can be"
    )


# -- opcodes -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Name:
    """A class, written as its name."""

    module: str
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class _New:
    """An object as `cls.__new__(cls, *args)` makes it, and what its `__dict__` then holds; written once, then named."""

    module: str
    name: str
    args: tuple[Any, ...] = ()
    state: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    """What a function or class gives for arguments, with items set on it or a state."""

    module: str
    name: str
    args: tuple[Any, ...] = ()
    items: Mapping[Any, Any] | None = None
    state: tuple[Any, ...] | None = None


def _pickled(value: Any) -> bytes:
    return b"\x80" + bytes([_PROTOCOL]) + _opcodes(value, {}) + b"."


def _opcodes(value: Any, memo: dict[int, int]) -> bytes:
    """Return the opcodes that push a value; `memo` numbers the objects that were written already."""
    if isinstance(value, _Name):
        return b"c" + value.module.encode() + b"\n" + value.name.encode() + b"\n"
    if isinstance(value, _New):
        return _new(value, memo)
    if isinstance(value, _Call):
        made = _opcodes(_Name(value.module, value.name), memo) + _opcodes(value.args, memo) + b"R"
        made += b"" if value.items is None else _items(value.items, memo)
        return made + (b"" if value.state is None else _opcodes(value.state, memo) + b"b")
    if isinstance(value, tuple):
        return b"(" + b"".join(_opcodes(item, memo) for item in value) + b"t"
    if isinstance(value, dict):
        return b"}" + _items(value, memo)
    if isinstance(value, set):
        listed = b"](" + b"".join(_opcodes(item, memo) for item in sorted(value)) + b"e"
        return _opcodes(_Name("builtins", "set"), memo) + listed + b"\x85R"
    if value is None or isinstance(value, bool):
        return {None: b"N", True: b"\x88", False: b"\x89"}[value]
    if isinstance(value, int):
        packed = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
        return b"\x8a" + bytes([len(packed)]) + packed  # Python's LONG1: up to 255 bytes, far beyond any column
    if isinstance(value, float):
        return b"G" + struct.pack(">d", value)
    code, data = (b"X", value.encode("utf-8", "surrogatepass")) if isinstance(value, str) else (b"B", bytes(value))
    return code + struct.pack("<I", len(data)) + data


def _new(value: _New, memo: dict[int, int]) -> bytes:
    if id(value) in memo:
        return b"j" + struct.pack("<I", memo[id(value)])
    made = _opcodes(_Name(value.module, value.name), memo) + _opcodes(value.args, memo) + b"\x81"
    if value.state:
        made += _opcodes(dict(value.state), memo) + b"b"
    number = memo[id(value)] = len(memo)
    return made + b"r" + struct.pack("<I", number)


def _items(items: Mapping[Any, Any], memo: dict[int, int]) -> bytes:
    return b"(" + b"".join(_opcodes(k, memo) + _opcodes(v, memo) for k, v in items.items()) + b"u"
