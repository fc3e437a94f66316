"""Stack rows of different shapes into one array, filled up at the end of every axis: what `pad=` asks for.

`paddings` checks the option once, when a loader is made; `Padding.stack` runs on the finished column of each batch.
Rows that are not arrays (maps, lists of lists, dicts) have no shape to fill up and stay a list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import PlanError, close_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock.engine.columns import Column


@dataclass(frozen=True, slots=True)
class Padding:
    """How one column of variable shape becomes an array."""

    fill: Any
    dtype: np.dtype[Any] | None
    """Of every batch; None where it is the values' own: text and dates inside cells."""
    shape: tuple[int | None, ...]
    """Of one row, as the schema says."""

    def stack(self, rows: list[Any]) -> NDArray[Any]:
        """Return one array; null rows and null elements are fill. Without any values free axes have no length."""
        arrays = [None if row is None else _filled(row, self.fill) for row in rows]
        given = [array for array in arrays if array is not None]
        shape = tuple(max(sizes) for sizes in zip(*(array.shape for array in given), strict=True))
        if not given:
            shape = tuple(size or 0 for size in self.shape)
        out = np.full((len(rows), *shape), self.fill, self.dtype or _common(given))
        for i, array in enumerate(arrays):
            if array is not None:
                out[i][tuple(slice(size) for size in array.shape)] = array
        return out


def _filled(row: Any, fill: Any) -> NDArray[Any]:
    return row.filled(fill) if isinstance(row, np.ma.MaskedArray) else np.asarray(row)


def _common(arrays: list[NDArray[Any]]) -> np.dtype[Any] | None:
    return np.result_type(*{array.dtype for array in arrays}) if arrays else None


def paddings(columns: Sequence[Column], pad: Any) -> dict[str, Padding]:
    """Return how each column is padded: `pad` is one fill for all of variable shape, or a dict of fills by column.

    Raises:
        PlanError: a name that is not there or has no variable shape, or a fill that the column's dtype cannot hold.
    """
    if pad is None:
        return {}
    able = {column.name: column for column in columns if _pads(column)}
    if not isinstance(pad, dict):
        return {name: _padding(column, pad) for name, column in able.items()}
    for name in pad:
        if name not in able:
            raise PlanError(
                f"pad= names the column {name!r}, which is not one of variable shape; {close_names(name, able)}"
            )
    return {name: _padding(able[name], fill) for name, fill in pad.items()}


def _pads(column: Column) -> bool:
    if column.form == "objects":
        return bool(getattr(column.kind, "as_list", False)) and column.field.numpy_dtype is not None
    return column.form == "ragged" and bool(column.field.shape)


def _padding(column: Column, fill: Any) -> Padding:
    dtype = _dtype(column)
    if dtype is not None and not _fits(fill, dtype):
        raise PlanError(f"pad={fill!r} does not fit column {column.name!r} of {dtype}; give each its own: pad={{...}}")
    return Padding(fill, dtype, column.field.shape)


def _dtype(column: Column) -> np.dtype[Any] | None:
    if column.form == "objects":
        item = getattr(column.kind, "item", None)
        return item if isinstance(item, np.dtype) else np.dtype(object)
    kind = column.field.numpy_dtype
    return np.dtype(kind) if isinstance(kind, type) and issubclass(kind, np.number | np.bool_) else None


def _fits(fill: Any, dtype: np.dtype[Any]) -> bool:
    if dtype.hasobject:
        return True
    value = np.asarray(fill)
    try:
        with np.errstate(all="ignore"):
            held = value.astype(dtype, casting="unsafe" if value.dtype.kind in "biuf" else "same_kind")
    except (TypeError, ValueError, OverflowError):
        return False
    same = np.array_equal(held, value) or (dtype.kind in "fc" and value.dtype.kind in "biuf")
    return bool(same or (dtype.kind in "mM" and np.isnat(held).all()))
