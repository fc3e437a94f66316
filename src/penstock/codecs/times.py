"""Times from one unit to another, the same with every NumPy.

A time that the other unit cannot hold becomes some other number before NumPy 2.5, and an OverflowError for the whole
array since. Here it is never an error: whoever wants to know converts back and compares.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def in_unit(values: NDArray[Any], dtype: Any) -> NDArray[Any]:
    """Return times as `dtype`; one that does not fit is another one, or NaT, and differs on the way back.

    >>> far = np.array(["2024-01-01", "9999-01-01"], "M8[D]")
    >>> in_unit(far, "M8[ns]").astype("M8[D]") == far
    array([ True, False])
    """
    try:
        return values.astype(dtype, copy=False)
    except OverflowError:
        return in_unit_or_nat(values, np.dtype(dtype))


def in_unit_or_nat(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return times as `dtype`, which is finer than that of the values; NaT where one does not fit, or just does."""
    unit, count = np.datetime_data(values.dtype)
    if unit in "YM":  # years and months have no fixed length
        unit, count = "D", 366 * count
    one = np.array(count, f"m8[{unit}]")
    # One unit inside the ends: rounding there overflows too.
    most = np.iinfo(np.int64).max - int(one.astype(f"m8[{np.datetime_data(dtype)[0]}]").astype(np.int64))
    least, last = np.array([-most, most]).view(dtype).astype(values.dtype)
    return np.where((values > least) & (values < last), values, np.array("NaT", values.dtype)).astype(dtype)
