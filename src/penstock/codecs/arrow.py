"""Convert Arrow columns to NumPy and Python values: the entry point to the `arrow_*` modules.

Takes Arrow arrays and the kinds chosen by `column_kind`; returns stacked arrays, cell offsets or lists of row values,
with nulls as a validity array or None. This module holds columns of Python objects and masks; `arrow_fixed` makes
stacked columns and `arrow_memory` reads buffers. Does not decode cells (codecs do) and knows no files. docs/types.md
specifies every value; the tests compare with `tests/codecs/arrow_plain.py`, which converts one scalar at a time.
"""

from __future__ import annotations

from decimal import Decimal
from itertools import repeat
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from penstock.codecs.arrow_fixed import fill_value, fixed_view
from penstock.codecs.arrow_kinds import (
    Bytes,
    Fixed,
    Objects,
    column_kind,
    form_of,
    natural_kind,
    scalar_dtype,
    struct_fields,
)
from penstock.codecs.arrow_memory import (
    Lists,
    byte_strings,
    cells_view,
    decimals,
    decoded,
    lists,
    takeable,
    texts,
    validity,
)
from penstock.codecs.base import CellError

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from numpy.typing import NDArray

    Item = np.dtype[Any] | type | None

__all__ = ["Bytes", "Fixed", "Objects", "cells_view", "column_kind", "fixed_view", "mask", "objects", "takeable"]


def mask(
    values: NDArray[Any], valid: NDArray[np.bool_] | None, *, always: bool = False
) -> NDArray[Any] | np.ma.MaskedArray[Any, Any]:
    """Return the values, as a MaskedArray if some are null, or in any case with `always`.

    `valid` has the shape of the values or of their leading axes. The mask is an array of the values' shape; the values
    are not copied, and `fill_value` is what `fixed_view` put under the mask.
    """
    if valid is None or valid.all():
        if not always:
            return values
        hidden = np.zeros(values.shape, np.bool_)
    else:
        hidden = np.empty(values.shape, np.bool_)
        np.logical_not(valid.reshape(*valid.shape, *[1] * (values.ndim - valid.ndim)), out=hidden)
    return np.ma.MaskedArray(values, mask=hidden, fill_value=fill_value(values.dtype))


def objects(array: pa.Array, kind: Objects) -> NDArray[np.object_] | list[Any]:
    """Return the row values of a column of Python values, None for null rows.

    An object array for text, bytes and decimals; a list where rows are arrays, lists or dicts. The values are copies:
    independent of the Arrow array, and arrays among them writable (those of one call share one block of memory).

    Raises:
        CellError: A value cannot be converted to the kind; carries its row.
    """
    return _rows(array, kind.item) if kind.as_list else _object_array(_cells(array, kind.item))


def _object_array(values: list[Any] | NDArray[np.object_]) -> NDArray[np.object_]:
    found = np.empty(len(values), np.object_)
    found[:] = values
    return found


def _cells(array: pa.Array, item: Item) -> list[Any] | NDArray[np.object_]:
    """Return one str, bytes, Decimal or None for each row."""
    form = form_of(array.type)
    if form == "null":
        return [None] * len(array)
    if form == "extension" and not isinstance(natural_kind(array.type, ""), Fixed):
        return _cells(array.storage, item)
    if form == "dictionary":
        # Make each value of the dictionary once, and share it among its rows.
        if len(array.dictionary) > len(array):  # a slice of a column with many values
            return _cells(decoded(array), item)
        try:
            values = _object_array([*_cells(array.dictionary, item), None])
        except CellError:  # by row, to name the row, and because the value may be used by none
            return _cells(decoded(array), item)
        rows, valid = fixed_view(array.indices, Fixed(np.dtype(np.int64), ()))
        return values[rows if valid is None else np.where(valid, rows, -1)]
    if form == "runs":
        return _cells(decoded(array), item)
    if form == "text" and item is bytes:
        return byte_strings(array)
    read, stored = _READERS.get(form, (_scalars, None))
    return read(array) if item is None or item is stored else _each(read(array), item)


_READERS: dict[str, tuple[Callable[[pa.Array], list[Any]], type | None]] = {
    "text": (texts, str),
    "bytes": (byte_strings, bytes),
    "decimal": (decimals, Decimal),
}


def _scalars(array: pa.Array) -> list[Any]:
    """Return numbers as Python numbers: on their way to text or Decimal."""
    # arrow.bool8 is the only scalar extension that is not its storage.
    dtype = np.dtype(np.bool_) if form_of(array.type) == "extension" else scalar_dtype(array.type)
    values, valid = fixed_view(array, Fixed(dtype, ()))
    return [cell if ok else None for cell, ok in zip(values.tolist(), _flags(valid), strict=False)]


def _flags(valid: NDArray[np.bool_] | None) -> Any:
    """Return validity to zip with; an endless iterator of True if there are no nulls."""
    return repeat(True) if valid is None else valid.tolist()


def _each(cells: list[Any], item: Item) -> list[Any]:
    """Convert cell by cell, a Python loop: the schema declares another type than the stored one."""
    convert = (lambda cell: cell.decode() if isinstance(cell, bytes) else str(cell)) if item is str else Decimal
    found: list[Any] = []
    for row, cell in enumerate(cells):
        try:
            found.append(None if cell is None else convert(cell))
        except (ValueError, ArithmeticError) as error:
            raise CellError(row, f"{cell!r:.60} cannot become {getattr(item, '__name__', item)}") from error
    return found


def _rows(array: pa.Array, item: Item) -> list[Any]:
    """Return the row values of an array of any type: what a row of such a column, or a value inside a list, is."""
    form = form_of(array.type)
    if form in ("dictionary", "runs"):
        return _rows(decoded(array), item)
    kind = natural_kind(array.type, "")
    if isinstance(kind, Fixed):
        values, valid = fixed_view(array, kind)
        stacked = values.copy()
        if valid is None:
            return list(stacked)
        if valid.ndim == 1:
            return [value if ok else None for value, ok in zip(stacked, valid.tolist(), strict=True)]
        known = zip(stacked, valid, _flags(validity(array)), strict=False)
        return [mask(value, inside) if ok else None for value, inside, ok in known]
    if form == "extension":
        return _rows(array.storage, item)
    if not kind.as_list:
        return list(_cells(array, item))
    if form == "struct":
        names = [field.name for field in struct_fields(array.type)]
        columns = [_rows(array.field(i), None) for i in range(len(names))]
        structs = zip(*columns, strict=True)
        return [
            dict(zip(names, row, strict=True)) if ok else None
            for row, ok in zip(structs, _flags(validity(array)), strict=False)
        ]
    rows = lists(array)
    if form != "map":
        return _list_rows(rows, item)
    pairs = list(zip(*(_rows(rows.child.field(i), None) for i in range(2)), strict=True))
    return [pairs[a:b] if ok else None for a, b, ok in _spans(rows)]  # a dict would lose repeated keys


def _list_rows(rows: Lists, item: Item) -> list[Any]:
    """Cut lists from one array of their values (numbers, text) or one list of row values (anything deeper)."""
    inner = natural_kind(rows.child.type, "")
    if isinstance(inner, Fixed) or (isinstance(item, np.dtype) and not inner.as_list):
        if isinstance(item, np.dtype):
            inner = Fixed(item, inner.shape if isinstance(inner, Fixed) else ())
        values, valid = _guarded(rows, lambda child: fixed_view(child, cast("Fixed", inner)))
        values = values.copy()  # of the chunk's memory, which others read
        if valid is None:
            found = [values[a:b] if ok else None for a, b, ok in _spans(rows)]
        else:
            found = [mask(values[a:b], valid[a:b]) if ok else None for a, b, ok in _spans(rows)]
        return [None if row is None else row.copy() for row in found] if rows.shared else found
    if inner.as_list:
        flat: Any = _guarded(rows, lambda child: _rows(child, item))
    else:
        flat = _guarded(rows, lambda child: _object_array(_cells(child, item)))
    return [flat[a:b] if ok else None for a, b, ok in _spans(rows)]


def _spans(rows: Lists) -> Any:
    return zip(rows.start.tolist(), rows.stop.tolist(), _flags(rows.valid), strict=False)


def _guarded(rows: Lists, convert: Any) -> Any:
    """Convert all values at once; where one fails, name the row that uses it."""
    try:
        return convert(rows.child)
    except CellError as error:
        using = (rows.start <= error.index) & (error.index < rows.stop)
        raise CellError(int(using.argmax()), str(error)) from error
