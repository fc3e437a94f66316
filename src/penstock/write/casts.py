"""Cast Arrow columns to the types they are stored in, as strictly as rows: what would change a value is refused.

Arrow's safe cast still turns numbers into text and text into numbers, any number into a boolean, large floats into
infinity, timestamps into days. Types are compared once for a column; values are checked only if the cast might have
lost some.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.codecs.arrow_kinds import form_of
from penstock.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_LISTS = {"list", "fixed_list"}
_TAKES = {
    "bool": {"bool", "number"},
    "number": {"number", "bool", "decimal"},
    "decimal": {"decimal", "number"},
    "temporal": {"temporal"},
    "text": {"text", "bytes"},
}
"""From which forms a column of each form can be made, if `_is_other` agrees; Arrow makes no bytes of numbers."""


def cast_column(column: pa.Array, stored: pa.Field, first: int) -> pa.Array:
    """Return an Arrow column in its stored type; SchemaError names the column, and the row if a value is lost."""
    where = f"column {stored.name!r}, rows from {first}: the table has {column.type}, the schema stores {stored.type}"
    pairs = list(_pairs(column.type, stored.type))
    for given, wanted in pairs:
        if _is_other(given, wanted):
            raise SchemaError(
                f"{where}: {given} is not converted to {wanted}; cast the column first, or change the field's dtype"
            )
    if form_of(column.type) == "dictionary" and form_of(stored.type) != "dictionary":
        column = column.dictionary_decode()  # old versions of Arrow cast no dictionary to another type
    try:
        made = column.cast(stored.type)
    except pa.ArrowException as error:
        raise SchemaError(
            f"{where}: {error}; cast the column, encode its cells with the codec of the field, or pass rows instead "
            "of a table"
        ) from error
    if any(_is_risky(given, wanted) for given, wanted in pairs):
        rows = np.arange(first, first + len(column))
        for old, new, indices in _leaves(column, made, rows):
            _refuse_lost(old, new, indices, stored.name)
    return made


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return the type of the values behind encodings and extensions."""
    form = form_of(kind)
    if form == "extension":
        return _plain(kind.storage_type)
    return _plain(kind.value_type) if form in ("dictionary", "runs") else kind


def _pairs(given: pa.DataType, wanted: pa.DataType) -> Iterator[tuple[pa.DataType, pa.DataType]]:
    """Yield the types of values before and after the cast, inside lists, structs and maps too."""
    given, wanted = _plain(given), _plain(wanted)
    forms = (form_of(given), form_of(wanted))
    if set(forms) <= _LISTS:
        yield from _pairs(given.value_type, wanted.value_type)
    elif forms == ("map", "map"):
        yield from _pairs(given.key_type, wanted.key_type)
        yield from _pairs(given.item_type, wanted.item_type)
    elif forms == ("struct", "struct"):
        for field in wanted:
            if given.get_field_index(field.name) >= 0:
                yield from _pairs(given.field(field.name).type, field.type)
    else:
        yield given, wanted


def _is_other(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Tell whether a cast would change the kind of values: numbers to text, times to numbers."""
    takes = _TAKES.get(form_of(wanted))
    if given == wanted or takes is None or form_of(given) == "null":
        return False
    if form_of(given) not in takes:
        return True
    if form_of(wanted) == "temporal":
        return _sort(given) != _sort(wanted)
    return form_of(wanted) in ("bool", "decimal") and pa.types.is_floating(given)


def _sort(kind: pa.DataType) -> str:
    if pa.types.is_duration(kind):
        return "duration"
    return "time" if pa.types.is_time(kind) else "moment"


def _is_risky(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Tell whether Arrow's own checks are not enough: narrower floats, numbers to booleans, timestamps to days."""
    if given == wanted or form_of(given) == "null":
        return False
    if pa.types.is_floating(wanted):
        wider = pa.types.is_floating(given) and given.bit_width <= wanted.bit_width
        return not (wider or (pa.types.is_integer(given) and not pa.types.is_float16(wanted)))
    if pa.types.is_boolean(wanted):
        return bool(pa.types.is_integer(given))
    return bool(pa.types.is_date(wanted) and pa.types.is_timestamp(given))


def _leaves(old: Any, new: Any, rows: NDArray[Any]) -> Iterator[tuple[Any, Any, NDArray[Any]]]:
    """Yield the values of a column before and after the cast, and the row of each."""
    import pyarrow.compute as pc

    while isinstance(old, pa.ExtensionArray):
        old = old.storage
    if form_of(old.type) == "dictionary":
        old = old.dictionary_decode()
    form = form_of(old.type)
    if form == "map":
        old, new, form = _map_lists(old), _map_lists(new), "list"
    if form in _LISTS:
        rows = rows[pc.list_parent_indices(old).to_numpy(zero_copy_only=False)]
        yield from _leaves(pc.list_flatten(old), pc.list_flatten(new), rows)
    elif form == "struct":
        parts = dict(zip([field.name for field in old.type], old.flatten(), strict=True))
        for field, part in zip(new.type, new.flatten(), strict=True):
            if field.name in parts:
                yield from _leaves(parts[field.name], part, rows)
    else:
        yield old, new, rows


def _map_lists(column: Any) -> Any:
    """Return a map as lists of structs, which can be flattened."""
    entries = pa.StructArray.from_arrays([column.keys, column.items], ["key", "value"])
    return pa.ListArray.from_arrays(column.offsets, entries)


def _refuse_lost(old: Any, new: Any, rows: NDArray[Any], name: str) -> None:
    """Raise for the first value that differs after the cast."""
    import pyarrow.compute as pc

    if not _is_risky(old.type, new.type):
        return
    if pa.types.is_boolean(new.type):
        lost = pc.and_(pc.not_equal(old, 0), pc.not_equal(old, 1))
    elif pa.types.is_date(new.type):
        lost = pc.not_equal(new.cast(pa.timestamp(old.type.unit)), old.cast(pa.timestamp(old.type.unit)))
    elif pa.types.is_integer(old.type):
        lost = pc.not_equal(new.cast(pa.float64()), old.cast(pa.float64()))
    else:
        lost = pc.is_inf(new.cast(pa.float64()))
        if pa.types.is_floating(old.type):  # infinity is allowed
            lost = pc.and_(lost, pc.invert(pc.is_inf(old.cast(pa.float64()))))
    index = pc.index(lost, True).as_py()
    if index >= 0:
        raise SchemaError(
            f"row {rows[index]}, column {name!r}: {old[index].as_py()} ({old.type}) cannot be stored as {new.type} and "
            "stay the same; change the value, or give the field another dtype"
        )
