"""Convert between Arrow schemas and Unischemas: inference for plain Parquet, storage types for writing, flat structs.

`dataset` infers the fields of columns that no schema describes, and flattens structs; `write` gets the Arrow schema of
what it stores. The mapping of types is in `codecs/arrow_kinds.py`, documented in docs/types.md; types without a mapping
are refused when a dataset is opened. Reads no files.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from penstock.codecs.arrow_kinds import Fixed, form_of, natural_kind, struct_fields
from penstock.codecs.base import storage_type
from penstock.codecs.scalar import default_storage_type
from penstock.errors import SchemaError, UnsupportedType
from penstock.schema.unischema import Unischema, UnischemaField

if TYPE_CHECKING:
    from collections.abc import Iterator

_TableOrSchema = TypeVar("_TableOrSchema", pa.Schema, pa.Table)

_ITEMS: dict[Any, Any] = {str: np.str_, bytes: np.bytes_, Decimal: Decimal}


def infer_unischema(schema: pa.Schema, name: str = "inferred_schema") -> Unischema:
    """Return the schema of plain Parquet, field by field in stored order, structs flattened by path ("s.a").

    Fields have no codec; their numpy_dtype and shape are those of docs/types.md: numbers by their NumPy class, free
    dimensions as None, and numpy_dtype None for rows that are lists of lists, maps or dicts.

    Raises:
        UnsupportedType: A column has a type without a row in docs/types.md; the error names it and the cure.
        SchemaError: Flattening gives two columns one name.
    """
    fields = [
        UnischemaField(one.name, *_row_form(one.type, one.name), None, one.nullable) for one in flatten_structs(schema)
    ]
    return Unischema(name, fields)


def _row_form(arrow_type: pa.DataType, name: str) -> tuple[Any, tuple[int | None, ...]]:
    """Return numpy_dtype and shape of the field for a column of this type."""
    kind = natural_kind(arrow_type, name)
    if isinstance(kind, Fixed):
        return kind.dtype.type, kind.shape
    if not kind.as_list:
        return _ITEMS.get(kind.item), ()
    inner = natural_kind(_element(arrow_type), name)
    if isinstance(inner, Fixed):
        return inner.dtype.type, (None, *inner.shape)
    size = arrow_type.list_size if form_of(arrow_type) == "fixed_list" else None
    return None if inner.as_list else _ITEMS.get(inner.item), (size,)


def _element(arrow_type: pa.DataType) -> pa.DataType:
    """Return the type of the elements of a list, through encodings and extensions."""
    form = form_of(arrow_type)
    if form == "extension":
        return _element(arrow_type.storage_type)
    if form in ("dictionary", "runs"):
        return _element(arrow_type.value_type)
    if form != "map":
        return arrow_type.value_type
    return pa.struct([pa.field("key", arrow_type.key_type, nullable=False), pa.field("value", arrow_type.item_type)])


def flatten_structs(table_or_schema: _TableOrSchema) -> _TableOrSchema:
    """Replace struct columns by their fields, named by path, at any depth.

    A null struct gives null leaves. Structs inside lists and maps stay. Costs nothing if there is no struct; only
    validity is copied.

    Raises:
        SchemaError: Two columns get one name.
        UnsupportedType: A struct has no fields.
    """
    schema: Any = table_or_schema if isinstance(table_or_schema, pa.Schema) else table_or_schema.schema
    if not any(_struct_in(kind) is not None for kind in schema.types):
        return table_or_schema
    if isinstance(table_or_schema, pa.Schema):
        fields = [leaf for field in table_or_schema for leaf in _leaves(field)]
        names = [field.name for field in fields]
        if len(set(names)) < len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise SchemaError(
                f"structs are read as columns named by path, and these names would stand for two columns: "
                f"{', '.join(twice)}; rename one of them in the files, or leave it out with columns=..."
            )
        return pa.schema(fields, metadata=table_or_schema.metadata)
    columns = [leaf for column in table_or_schema.columns for leaf in _leaf_columns(column)]
    return pa.Table.from_arrays(columns, schema=flatten_structs(schema))


def _struct_in(arrow_type: pa.DataType) -> pa.DataType | None:
    """Return the struct type of a column, also inside of an extension type; None for others."""
    form = form_of(arrow_type)
    if form == "extension":
        return _struct_in(arrow_type.storage_type)
    return arrow_type if form == "struct" else None


def _leaves(field: pa.Field) -> Iterator[pa.Field]:
    struct = _struct_in(field.type)
    if struct is None:
        yield field
        return
    if struct.num_fields == 0:
        raise UnsupportedType(
            f"column {field.name!r} is a struct without fields, which has no values; leave it out with columns=..."
        )
    for child in struct_fields(struct):
        nullable = field.nullable or child.nullable
        yield from _leaves(pa.field(f"{field.name}.{child.name}", child.type, nullable, child.metadata))


def _leaf_columns(column: pa.ChunkedArray) -> Iterator[pa.ChunkedArray]:
    if _struct_in(column.type) is None:
        yield column
        return
    while form_of(column.type) == "extension":
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    for child in column.flatten():
        yield from _leaf_columns(child)


def arrow_schema(unischema: Unischema) -> pa.Schema:
    """Return the Arrow schema that rows of a Unischema are stored with, in the order of its fields.

    A codec determines the storage type. Without one a scalar is stored as Petastorm would (unsigned integers one size
    up, which Spark can read; see docs/types.md) and an array as lists: of fixed size if the shape is fixed. `nullable`
    becomes the column's.

    Raises:
        UnsupportedType: A field without codec whose numpy_dtype has no column type.
    """
    return pa.schema([pa.field(f.name, _stored_type(f), nullable=f.nullable) for f in unischema.fields.values()])


def _stored_type(field: UnischemaField) -> pa.DataType:
    if field.codec is not None:
        return storage_type(field.codec, field)
    stored = default_storage_type(field.numpy_dtype, name=field.name)
    for size in reversed(field.shape):
        stored = pa.list_(stored, size) if size else pa.list_(stored)  # pyarrow cannot read lists of the fixed size 0
    return stored
