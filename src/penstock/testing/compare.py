"""Compare batches bit for bit: arrays, masks, strings, nulls, ragged lists, whatever a loader can hand out.

`resume` and tests of users build on it. NaN equals NaN if the bits agree, 1 differs from 1.0 and from True, and the
data under a mask counts too, because a resumed run that differs anywhere is not the same run. Needs no framework:
tensors are compared through `__array__`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

Frozen = tuple[Any, ...]


def freeze(value: Any) -> Frozen:
    """Return an immutable copy of a batch or value that compares equal exactly if all bits are the same."""
    if isinstance(value, np.ma.MaskedArray):
        return ("masked", freeze(value.data), freeze(np.ma.getmaskarray(value)))
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        return ("objects", value.shape, tuple(map(freeze, value.ravel().tolist())))
    if isinstance(value, np.ndarray | np.generic):
        kind = "array" if isinstance(value, np.ndarray) else "scalar"
        return (kind, value.dtype.str, value.shape, value.tobytes())
    if isinstance(value, Mapping):
        return ("dict", tuple((str(key), freeze(item)) for key, item in value.items()))
    if isinstance(value, list | tuple):
        return (type(value).__name__, tuple(map(freeze, value)))
    if isinstance(value, float):
        return ("float", struct.pack("<d", value))
    if hasattr(value, "__array__"):
        return (type(value).__name__, freeze(np.asarray(value)))
    return (type(value).__name__, value)


def difference(one: Any, other: Any) -> str | None:
    """Return where and how two batches or values first differ, or None if they are the same bit for bit."""
    return _differ(freeze(one), freeze(other), "")


def assert_same(one: Any, other: Any) -> None:
    """Raise AssertionError saying where two batches or values first differ, unless they are the same bit for bit."""
    found = difference(one, other)
    if found is not None:
        raise AssertionError(found)


def _differ(a: Frozen, b: Frozen, where: str) -> str | None:
    if a == b:
        return None
    if a[0] != b[0]:
        return f"{where or 'value'}: {a[0]} against {b[0]}"
    if a[0] == "dict":
        return _differ_in_keys(a[1], b[1], where)
    if a[0] == "masked":
        return _differ(a[1], b[1], where) or _differ(a[2], b[2], f"mask of {where or 'value'}")
    if a[0] == "objects" and a[1] != b[1]:
        return f"{where or 'value'}: shape {a[1]} against {b[1]}"
    if a[0] in ("array", "scalar"):
        return _differ_in_bits(a, b, where)
    if isinstance(a[-1], tuple) and isinstance(b[-1], tuple):
        return _differ_in_items(a[-1], b[-1], where)
    return f"{where or 'value'}: {a[-1]!r:.80} against {b[-1]!r:.80}"


def _differ_in_keys(a: Frozen, b: Frozen, where: str) -> str | None:
    names, others = [key for key, _ in a], [key for key, _ in b]
    if names != others:
        return f"{where or 'keys'}: {names} against {others}"
    found = (_differ(x, y, f"{where}[{key!r}]") for (key, x), (_, y) in zip(a, b, strict=True))
    return next((text for text in found if text is not None), None)


def _differ_in_items(a: Frozen, b: Frozen, where: str) -> str | None:
    if len(a) != len(b):
        return f"{where or 'value'}: {len(a)} items against {len(b)}"
    if not all(isinstance(item, tuple) for item in (*a, *b)):  # a tensor: (name, frozen array)
        return _differ(a, b, where)
    found = (_differ(x, y, f"{where}[{i}]") for i, (x, y) in enumerate(zip(a, b, strict=True)))
    return next((text for text in found if text is not None), None)


def _differ_in_bits(a: Frozen, b: Frozen, where: str) -> str:
    if a[1:3] != b[1:3]:
        return f"{where or 'value'}: {a[1]} of shape {a[2]} against {b[1]} of shape {b[2]}"
    left, right = (np.frombuffer(x[3], f"V{np.dtype(x[1]).itemsize}") for x in (a, b))
    first = int(np.flatnonzero(left != right)[0])
    values = [np.frombuffer(x[3], x[1])[first] for x in (a, b)]
    index = tuple(map(int, np.unravel_index(first, a[2]))) if a[2] else ()
    return f"{where or 'value'}: {values[0]} against {values[1]} at {index}"
