"""Reference implementation of the Arrow conversions: one scalar at a time, slow and easy to check.

Returns the row values that docs/types.md specifies, straight from Arrow scalars, without buffers, offsets or bitmaps.
Property tests compare `fixed_view`, `cells_view` and `objects` with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.codecs.arrow_kinds import Fixed, form_of, natural_kind, scalar_dtype, tensor_order

if TYPE_CHECKING:
    from collections.abc import Callable


def plain_rows(array: pa.Array) -> list[Any]:
    """Return the row values of an array: NumPy scalars and arrays, str, bytes, Decimal, lists, dicts; None for null.

    Arrays with null elements are MaskedArrays. Costs microseconds a cell.
    """
    if form_of(array.type) == "runs":
        return _run_rows(array)
    if form_of(array.type) == "extension":
        return [_tensor_or_bool(array.type, value) for value in plain_rows(array.storage)]
    return [_plain(scalar) for scalar in array]


def _run_rows(array: pa.Array) -> list[Any]:
    values = plain_rows(array.values)
    ends = array.run_ends.to_pylist()
    return [values[next(i for i, end in enumerate(ends) if array.offset + row < end)] for row in range(len(array))]


def _tensor_or_bool(arrow_type: pa.DataType, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(arrow_type, pa.FixedShapeTensorType):
        return value.reshape(tuple(arrow_type.shape)).transpose(tensor_order(arrow_type))
    return value != 0 if arrow_type.extension_name == "arrow.bool8" else value


def _plain(scalar: pa.Scalar) -> Any:
    if not scalar.is_valid:
        return None
    special = _PLAIN.get(form_of(scalar.type))
    return scalar.as_py() if special is None else special(scalar)


def _number(scalar: pa.Scalar) -> Any:
    return scalar_dtype(scalar.type).type(scalar.as_py())


def _temporal(scalar: pa.Scalar) -> Any:
    return np.int64(scalar.value).view(scalar_dtype(scalar.type))


def _list(scalar: pa.Scalar) -> Any:
    inner = natural_kind(scalar.type.value_type, "")
    rows = plain_rows(scalar.values)
    if isinstance(inner, Fixed):
        return _array(rows, inner)
    if inner.as_list:
        return rows
    found = np.empty(len(rows), np.object_)
    found[:] = rows
    return found


def _array(rows: list[Any], kind: Fixed) -> Any:
    """Stack values one by one, masking those that are null or have null elements."""
    fill = "NaT" if kind.dtype.kind in "mM" else np.nan if kind.dtype.kind == "f" else 0
    found = np.ma.MaskedArray(np.full((len(rows), *kind.shape), fill, kind.dtype), mask=False)
    found.mask = np.zeros(found.shape, np.bool_)
    for i, row in enumerate(rows):
        if row is None:
            found.mask[i] = True
        else:
            found.data[i] = np.ma.getdata(row)
            found.mask[i] = np.ma.getmaskarray(row)
    return found if found.mask.any() else found.data


def _map(scalar: pa.Scalar) -> Any:
    return [(entry["key"], entry["value"]) for entry in plain_rows(_named(scalar.values))]


def _named(entries: pa.Array) -> pa.Array:
    """Return the entries of a map under the names key and value, whatever the file calls them."""
    return pa.StructArray.from_arrays([entries.field(0), entries.field(1)], names=["key", "value"])


def _struct(scalar: pa.Scalar) -> Any:
    return {scalar.type.field(i).name: _plain(scalar[i]) for i in range(len(scalar))}


_PLAIN: dict[str, Callable[[pa.Scalar], Any]] = {
    "number": _number,
    "bool": _number,
    "temporal": _temporal,
    "list": _list,
    "fixed_list": _list,
    "map": _map,
    "struct": _struct,
    "dictionary": lambda scalar: _plain(scalar.value),
}
