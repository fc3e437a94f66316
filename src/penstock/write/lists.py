"""The cells of list columns, of fields with a shape and no codec: checked value by value before Arrow sees them.

Arrow splits text into letters, truncates numbers, and takes bytes for text. What is refused here is a ValueError that
says what was given; `cells` adds row and field. Arrays of numbers are checked as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.codecs.scalar import NO_NUMBERS, flag
from penstock.write.arrays import FIXED

if TYPE_CHECKING:
    from penstock.schema.unischema import UnischemaField

_PLAIN = FIXED - {range}


def is_missing(value: Any) -> bool:
    """Tell whether a value is missing: None, or NaT or NA of pandas, which are recognised by name."""
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def list_cell(field: UnischemaField, value: Any) -> Any:
    """Return the cell of a list column: an array, or nested lists; ValueError for what the field cannot hold."""
    kind = field.numpy_dtype
    if type(value) is np.ndarray and value.ndim and value.dtype.type is kind:
        return value
    if isinstance(value, str) or (isinstance(value, bytes | bytearray) and kind is not np.uint8):
        cure = "pass [value] for one item" + ("" if isinstance(value, str) else ", np.frombuffer(value) for numbers")
        raise ValueError(f"got {type(value).__name__} but the field is a list; {cure}")
    if kind is None:  # lists of lists, maps: Arrow knows their type
        return value
    if isinstance(value, bytes | bytearray):
        return np.frombuffer(value, np.uint8)
    value = _as_lists(value)
    check = _CHECKS.get(kind)
    if check is not None:
        return check(field, value)
    return _numbers(np.dtype(kind), value) if kind is not Decimal and np.dtype(kind).kind in "iuf" else value


def _as_lists(value: Any) -> Any:
    """Return an array of plain values unchanged, and other containers as nested lists of scalars and arrays."""
    if isinstance(value, np.ndarray) and value.dtype != object and value.ndim:
        return value
    if type(value) in (list, tuple) and set(map(type, value)) <= _PLAIN:
        return value
    if isinstance(value, pa.Array | pa.ChunkedArray):
        return value.to_pylist()
    if not isinstance(value, list | tuple | np.ndarray) and hasattr(value, "__array__"):
        return _as_lists(np.asarray(value))  # torch, JAX, a Series
    if not isinstance(value, Collection) or isinstance(value, Mapping) or getattr(value, "ndim", 1) == 0:
        raise ValueError(f"got {type(value).__name__} but the field is a list; pass a list or an array")
    return [_item(one) for one in value]


def _item(value: Any) -> Any:
    if is_missing(value):
        return None
    if isinstance(value, np.ma.MaskedArray):
        return value.tolist() if np.ma.getmaskarray(value).any() else np.ma.getdata(value)
    if isinstance(value, str | bytes | bytearray | memoryview | np.generic | Mapping):
        return value
    holds = isinstance(value, Collection) or hasattr(value, "__array__")
    if holds and getattr(value, "ndim", 1) == 0:
        return np.asarray(value)[()]
    return _as_lists(value) if holds else value


def _leaves(value: Any) -> Iterator[Any]:
    """Yield the values of nested lists, except nulls."""
    if isinstance(value, list | tuple | np.ndarray):
        for one in value:
            yield from _leaves(one)
    elif value is not None:
        yield value


def _other_leaf(wanted: str, leaf: Any) -> ValueError:
    return ValueError(f"expected a list of {wanted}, got {type(leaf).__name__} in it: {leaf!r:.50}")


def _texts(_: UnischemaField, value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.kind in "UT":
        return value
    for leaf in _leaves(value):
        if not isinstance(leaf, str):
            raise _other_leaf("str", leaf)
    return value


def _flags(field: UnischemaField, value: Any) -> Any:
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "b":
            return value
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_flags(field, one) for one in value]
    return None if value is None else flag(field, value)


_CHECKS: dict[Any, Callable[[UnischemaField, Any], Any]] = {np.str_: _texts, np.bool_: _flags}


def _numbers(kind: np.dtype[Any], value: Any) -> Any:
    """Return the value; ValueError for a number that the dtype cannot hold: Arrow would truncate it."""
    if isinstance(value, np.ndarray):
        flat = value.ravel()
    else:
        flat = np.array(value if set(map(type, value)) <= {int, float} else list(_leaves(value)))
    if not flat.size or flat.dtype == kind:
        return value
    if flat.dtype.kind not in "biuf":
        # Refuse times, text and complex numbers: Arrow would take some of them for numbers.
        if flat.dtype != object:
            raise ValueError(f"got {flat.dtype} in a list of {kind.name}; pass numbers")
        for leaf in _leaves(value):
            if isinstance(leaf, (str, bytes, *NO_NUMBERS)):
                raise _other_leaf("numbers", leaf)
            if isinstance(leaf, Decimal | float) and kind.kind in "iu" and leaf != leaf // 1:
                raise ValueError(f"{leaf} is no {kind.name}")
        return value
    with np.errstate(over="ignore", invalid="ignore"):
        stored = flat.astype(kind)
        lost = (stored != flat) if kind.kind in "iu" else (np.isinf(stored) & ~np.isinf(flat))
    if lost.any():
        raise ValueError(f"{flat[int(lost.argmax())]} is no {kind.name}")
    return value
