"""Convert times from one unit to another, the same with every NumPy version.

A time that the other unit cannot hold becomes some other number before NumPy 2.5, and an OverflowError for the whole
array since. In arrays it is never an error here: the caller may convert back and compare. Text is read exactly
or refused.
"""

from __future__ import annotations

import re
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


def nanoseconds(values: NDArray[Any]) -> NDArray[np.int64] | None:
    """Return times since 1970, or durations, as int64 nanoseconds, NaT as the least int64; None where one has none.

    These are times outside of the years 1677 to 2262, and durations in months or years, which have no fixed length.
    """
    target = np.dtype(f"{values.dtype.kind}8[ns]")
    if values.dtype == target:
        return values.view(np.int64)
    try:
        found = in_unit(values, target)
    except TypeError:
        return None
    same = bool(((found.astype(values.dtype) == values) | np.isnat(values)).all())
    return found.view(np.int64) if same else None


def in_unit_or_nat(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return times as `dtype`, which has a finer unit; NaT for times at or beyond its limits."""
    unit, count = np.datetime_data(values.dtype)
    if unit in "YM":  # years and months have no fixed length
        unit, count = "D", 366 * count
    one = np.array(count, f"m8[{unit}]")
    # One unit inside the ends: rounding there overflows too.
    most = np.iinfo(np.int64).max - int(one.astype(f"m8[{np.datetime_data(dtype)[0]}]").astype(np.int64))
    least, last = np.array([-most, most]).view(dtype).astype(values.dtype)
    return np.where((values > least) & (values < last), values, np.array("NaT", values.dtype)).astype(dtype)


_ISO = re.compile(
    r"(?P<day>\d{4}|[+-]?\d{4,9}-\d\d(?:-\d\d)?)"
    r"(?:[T ](?P<time>\d\d:\d\d(?::\d\d)?)(?:\.(?P<digits>\d+))?(?P<zone>Z|[+-]\d\d:?\d\d)?)?"
)
_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9, "ps": 12, "fs": 15, "as": 18}


def from_text(text: str, dtype: np.dtype[Any]) -> Any:
    """Return the time of an ISO 8601 text, in UTC if it names a zone, or NaT for "NaT".

    ValueError for any other text (NumPy takes "" for NaT, "now" for now and "20240101" for a year), and for a moment
    that the dtype has no value for.
    """
    if text == "NaT":
        return np.array("NaT", dtype)[()]
    found = _ISO.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a date and time such as 2024-01-31T12:00:00.5")
    seconds = np.datetime64(found["day"] + ("T" + found["time"] if found["time"] else ""), "s")
    if found["zone"] not in (None, "Z"):
        sign, hours, minutes = found["zone"][0], int(found["zone"][1:3]), int(found["zone"][-2:])
        seconds = np.subtract(seconds, np.timedelta64((hours * 60 + minutes) * (60 if sign == "+" else -60), "s"))
    digits = (found["digits"] or "").rstrip("0")
    unit, count = np.datetime_data(dtype)
    if unit not in _DIGITS:
        moment = in_unit(np.array([seconds]), dtype)[0]
        if digits or in_unit(np.array([moment]), "M8[s]")[0] != seconds:
            raise ValueError(f"{text!r} has digits finer than {dtype}")
        return moment
    scale = max(len(digits), _DIGITS[unit])
    ticks = int(seconds.astype(np.int64)) * 10**scale + int(digits.ljust(scale, "0") or 0)
    ticks, rest = divmod(ticks, 10 ** (scale - _DIGITS[unit]) * count)
    if rest or abs(ticks) >= 1 << 63:
        raise ValueError(f"{text!r} has digits finer than {dtype}, or is too far away")
    return np.int64(ticks).view(dtype)
