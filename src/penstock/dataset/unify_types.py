"""Compare the schemas of files: do they have the same columns of the same types?

`columns` calls this for files whose schema differs from that of the first one. Types that hold the same values
(string and large_string, a dictionary and its values, a column that is null throughout, differently named list
elements) agree; `read` casts them to the merged type. Order and nullability may differ. Reads nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Iterable


_ALIKE = ({"string", "large_string", "string_view"}, {"binary", "large_binary", "binary_view"})
"""Types that hold the same values."""


def check_agreement(base: pa.Schema, other: pa.Schema, *, paths: tuple[str, str], wanted: Iterable[str] | None) -> None:
    """Check that the columns `wanted` (None: all) of two flattened schemas agree.

    Raises:
        SchemaError: a column is missing on either side or has another type; names the file, the column, both types.
    """
    here, there = _types(base), _types(other)
    names = list(here | there) if wanted is None else [name for name in wanted if name in here]
    for name in names:
        ours, theirs = here.get(name), there.get(name)
        if ours is None or theirs is None or not same_values(ours, theirs):
            have, has = (f"has type {one}" if one is not None else "is missing" for one in (ours, theirs))
            raise SchemaError(
                f"the files disagree: column {name!r} {has} in {paths[1]} but {have} in {paths[0]}; write one of them "
                f"again, or open with columns= that leave {name!r} out"
            )


def _types(schema: pa.Schema) -> dict[str, pa.DataType]:
    return dict(zip(schema.names, schema.types, strict=True))


def same_values(a: pa.DataType, b: pa.DataType) -> bool:
    """Tell whether two types hold the same kind of values, so that one may be cast to the other."""
    if a == b or pa.types.is_null(b) or pa.types.is_null(a):
        return True
    if pa.types.is_dictionary(a) or pa.types.is_dictionary(b):
        return same_values(decoded(a), decoded(b))
    if _is_list(a) and _is_list(b):
        return same_values(a.value_type, b.value_type)
    if pa.types.is_map(a) and pa.types.is_map(b):
        return same_values(a.key_type, b.key_type) and same_values(a.item_type, b.item_type)
    if pa.types.is_struct(a) and pa.types.is_struct(b):
        fields = [[type_.field(i) for i in range(type_.num_fields)] for type_ in (a, b)]
        return len(fields[0]) == len(fields[1]) and all(
            x.name == y.name and same_values(x.type, y.type) for x, y in zip(*fields, strict=True)
        )
    return any({str(a), str(b)} <= alike for alike in _ALIKE)


def decoded(a: pa.DataType) -> pa.DataType:
    """Return the type of a dictionary's values; of other columns their own."""
    return a.value_type if pa.types.is_dictionary(a) else a


def _is_list(a: pa.DataType) -> bool:
    return bool(pa.types.is_list(a) or pa.types.is_large_list(a))


def merge_schemas(base: pa.Schema, other: pa.Schema) -> pa.Schema:
    """Return `base` with types that hold the values of both: nullable where either is, never null where one is not.

    A dictionary that differs gets 32-bit indices, since those of one file may be too narrow for the values of another;
    inside lists, maps and structs, where Arrow cannot widen them, dictionaries become plain values.
    """
    return pa.schema([_merge_field(field, other) for field in base])


def _merge_field(field: pa.Field, other: pa.Schema) -> pa.Field:
    index = other.get_field_index(field.name)
    if index < 0:
        return field
    theirs = other.field(index)
    return pa.field(field.name, _merge_type(field.type, theirs.type), field.nullable or theirs.nullable)


def _merge_type(ours: pa.DataType, theirs: pa.DataType) -> pa.DataType:
    if pa.types.is_null(ours):
        return theirs
    if ours == theirs or pa.types.is_null(theirs):
        return ours
    if pa.types.is_dictionary(ours):
        return pa.dictionary(pa.int32(), ours.value_type, ours.ordered)
    return _undictionaried(ours)


def _undictionaried(a: pa.DataType) -> pa.DataType:
    """Return a type with plain values in place of dictionaries, at any depth."""
    if pa.types.is_dictionary(a):
        return a.value_type
    if _is_list(a):
        kind = pa.list_ if pa.types.is_list(a) else pa.large_list
        return kind(a.value_field.with_type(_undictionaried(a.value_type)))
    if pa.types.is_map(a):
        return pa.map_(_undictionaried(a.key_type), a.item_field.with_type(_undictionaried(a.item_type)))
    if pa.types.is_struct(a):
        fields = [a.field(i) for i in range(a.num_fields)]
        return pa.struct([field.with_type(_undictionaried(field.type)) for field in fields])
    return a


def cast_column(column: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    """Return the same values as another type that `same_values` allows.

    Between dictionaries of other values, and from plain values into a dictionary, by way of plain values: older
    versions of pyarrow have no such cast.

    Raises:
        ArrowInvalid, ArrowNotImplementedError: they cannot be cast.
    """
    parts = column.chunks
    if pa.types.is_dictionary(column.type) and column.type.value_type != decoded(wanted):
        column = pa.chunked_array([part.dictionary_decode() for part in parts], column.type.value_type)
    if not pa.types.is_dictionary(wanted):
        return column.cast(wanted)
    if not pa.types.is_dictionary(column.type):
        parts = [part.dictionary_encode() for part in column.cast(wanted.value_type).chunks]
    casts = [
        pa.DictionaryArray.from_arrays(part.indices.cast(wanted.index_type), part.dictionary, ordered=wanted.ordered)
        for part in parts
    ]
    return pa.chunked_array(casts, wanted)
