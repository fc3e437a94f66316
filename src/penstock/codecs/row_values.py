"""Columns of a batch as single row values or pandas Series: what functions of users receive.

Filters, row transforms, row-group indexes and Petastorm's readers start from a batch column (an array, a MaskedArray or
a list) and need one Python value for each row, or a Series. Values are views where possible. pandas is imported only
when a Series is requested. `keeps` and its relatives check that numbers keep their values in another dtype.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Column = NDArray[Any] | list[Any]

EXACT_FLOAT64 = 1 << 53
"""A float64 holds every integer up to here."""


def exact_in_float64(values: NDArray[Any]) -> bool:
    """Tell whether integers stay the same as float64: none lies beyond 2**53."""
    if not values.size or values.dtype.itemsize < 8:
        return True
    return bool(int(values.min()) >= -EXACT_FLOAT64 and int(values.max()) <= EXACT_FLOAT64)


def keeps_numbers(arrays: Sequence[Any]) -> bool:
    """Tell whether arrays or scalars of numbers keep their values in one array: floats would change large integers."""
    dtypes = {one.dtype for one in arrays}
    if len(dtypes) == 1 or np.result_type(*dtypes).kind not in "fc":
        return True
    return all(one.dtype.kind not in "iu" or exact_in_float64(one) for one in arrays)


def keeps(values: NDArray[Any], found: NDArray[Any]) -> bool:
    """Tell whether no number has become another one in `found`, the values in its dtype; floats may be rounded."""
    if not values.size or values.dtype.kind == "b":
        return True
    if found.dtype.kind in "iu":
        limits = np.iinfo(found.dtype)
        return bool(limits.min <= int(values.min()) and int(values.max()) <= limits.max)
    if found.dtype.kind in "fc" and values.dtype.kind != "O":
        return bool((np.isinf(found) <= np.isinf(values)).all())
    return True


def row_values(column: Column) -> list[Any]:
    """Return the value of each row, None for null; stacked columns give NumPy scalars and arrays."""
    if not isinstance(column, np.ma.MaskedArray):
        return list(column)
    hidden = np.ma.getmaskarray(column)
    if column.ndim == 1:
        return [None if null else value for value, null in zip(column.data, hidden.tolist(), strict=True)]
    rows = zip(column, null_rows(column).tolist(), strict=True)
    return [None if null else (one if np.ma.is_masked(one) else one.data) for one, null in rows]


def only_value(values: Any) -> Any:
    """Return the value of a column of one row; None if it is null."""
    one = values[0]
    if one is np.ma.masked:
        return None
    if isinstance(one, np.ma.MaskedArray) and isinstance(values, np.ndarray):  # a list has None for its null rows
        return one.data if not np.ma.is_masked(one) else None if one.mask.all() else one
    return one


def null_rows(column: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which rows of a stacked column are null: those with elements all of which are masked."""
    hidden = np.ma.getmaskarray(column).reshape(len(column), -1)
    return np.asarray(hidden.all(axis=1) & (hidden.shape[1] > 0), np.bool_)


def objects_of(values: list[Any]) -> NDArray[np.object_]:
    """Return values as an array of objects; lists and arrays among them stay single elements."""
    out = np.empty(len(values), np.object_)
    for row, value in enumerate(values):
        out[row] = value
    return out


def to_series(column: Column, dtype: np.dtype[Any] | None = None) -> Any:
    """Return a column as a pandas Series, as Arrow would give it to pandas; arrays and lists become objects.

    Null is NaN, NaT or None. Integers with nulls become floats, or Int64 if floats would change them.

    Args:
        column: A column of a batch.
        dtype: float64 or object: the dtype of integers and booleans that are null in some batch, so that all batches
            agree (Int64 in place of object for integers). None: what these values need.
    """
    import pandas as pd

    if isinstance(column, list) or column.ndim > 1:
        return pd.Series(objects_of(row_values(column)), dtype=object)
    if column.dtype == np.dtype("M8[D]"):  # pandas has no days: Arrow gives it dates
        return pd.Series(objects_of([None if v is None else v.item() for v in row_values(column)]), dtype=object)
    if not isinstance(column, np.ma.MaskedArray) and (dtype is None or column.dtype.kind not in "biu"):
        return pd.Series(column, dtype=object if column.dtype == object else None)
    data, gone = np.ma.getdata(column), np.ma.getmaskarray(column)
    if column.dtype.kind in "iu":
        if dtype == np.object_ or not exact_in_float64(data[~gone]):
            return pd.Series(pd.arrays.IntegerArray(data.copy(), gone.copy()))
        values = data.astype(np.float64)
        values[gone] = np.nan
        return pd.Series(values)
    if column.dtype.kind == "b":
        return pd.Series(objects_of(column.tolist()), dtype=object)
    return pd.Series(np.ma.filled(column))  # NaN and NaT stand under the mask
