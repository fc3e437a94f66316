"""Hashable keys for values, equal for equal values of different types.

Predicates and row-group indexes test values for membership in a set. NumPy scalars, Python numbers, dates of any unit
and pandas Timestamps become one plain key each, so that `np.datetime64("2024-01-01")` is found as `date(2024, 1, 1)`.
Knows values only, no columns and no files.
"""

from __future__ import annotations

import datetime
from bisect import bisect_left
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from numpy.typing import NDArray

INSTANT, SPAN = "instant", "span"
NS_OF = {
    "W": 604_800_000_000_000,
    "D": 86_400_000_000_000,
    "h": 3_600_000_000_000,
    "m": 60_000_000_000,
    "s": 1_000_000_000,
    "ms": 1_000_000,
    "us": 1_000,
    "ns": 1,
}
"""Nanoseconds of each unit that has a fixed length."""
_EPOCH = datetime.datetime(1970, 1, 1)


NEVER = float("nan")
"""The key of NaT and NaN, equal to nothing."""


def key_of(value: Any) -> Hashable:
    """Return the key of a value: equal for equal values, whatever their types; None for null.

    Numbers, text and bytes are their own keys (so 1, 1.0 and True are one); dates, times and durations count
    nanoseconds, in UTC if they have a zone. NaN and NaT equal nothing. A value without a hash is returned as it is.
    """
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, np.datetime64 | np.timedelta64):
        return _numpy_time(value)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, datetime.date | datetime.timedelta | datetime.time):
        return _python_time(value)
    return None if value is np.ma.masked else value


def _numpy_time(value: Any) -> Hashable:
    if np.isnat(value):
        return NEVER
    unit, count = np.datetime_data(value.dtype)
    if unit not in NS_OF:  # years and months have no fixed length, picoseconds are not stored
        value, unit, count = value.astype(f"{value.dtype.kind}8[{'D' if unit in 'YM' else 'ns'}]"), "ns", 1
        unit = np.datetime_data(value.dtype)[0]
    return (INSTANT if value.dtype.kind == "M" else SPAN, int(value.astype(np.int64)) * count * NS_OF[unit])


def _python_time(value: Any) -> Hashable:
    if value != value:  # pandas' NaT
        return NEVER
    if isinstance(value, datetime.time):
        value = datetime.timedelta(0, value.hour * 3600 + value.minute * 60 + value.second, value.microsecond)
    if isinstance(value, datetime.timedelta):
        return (SPAN, _timedelta_ns(value))
    if not isinstance(value, datetime.datetime):
        return (INSTANT, (value.toordinal() - _EPOCH.toordinal()) * NS_OF["D"])
    plain = value if value.tzinfo is None else value.astimezone(datetime.UTC).replace(tzinfo=None)
    whole = datetime.datetime(*plain.timetuple()[:6], plain.microsecond)  # in UTC by now
    return (INSTANT, _timedelta_ns(whole - _EPOCH) + getattr(plain, "nanosecond", 0))


def _timedelta_ns(value: datetime.timedelta) -> int:
    whole = (value.days * 86_400 + value.seconds) * 1_000_000 + value.microseconds
    return whole * 1_000 + getattr(value, "nanoseconds", 0)


def is_never(key: Hashable) -> bool:
    """Tell whether a key is the one of NaN or NaT."""
    return bool(key != key)


def family_of(key: Hashable) -> str | None:
    """Return the name of the values that a key can be ordered with; None if it has no order."""
    if isinstance(key, bool | int | float | Decimal):
        return None if is_never(key) else "number"
    if isinstance(key, tuple):
        return str(key[0]) if len(key) == 2 and key[0] in (INSTANT, SPAN) else None
    return {str: "text", bytes: "bytes"}.get(type(key))


class KeySet:
    """A set of values to look up single values, ranges and whole arrays in.

    Ordered and typed forms are made when they are first needed. Pickles if the values do.
    """

    def __init__(self, values: Iterable[Any]) -> None:
        self.keys = frozenset(key for key in map(key_of, values) if not is_never(key))
        self._ordered: dict[str, list[Any]] | None = None
        self._typed: dict[str, NDArray[Any]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"keys": self.keys, "_ordered": None, "_typed": {}}

    def __contains__(self, value: object) -> bool:
        return key_of(value) in self.keys

    @property
    def has_null(self) -> bool:
        """Whether null is among the values."""
        return None in self.keys

    def any_between(self, least: Hashable, most: Hashable) -> bool:
        """Tell whether the set has a value between these keys, ends included; True if they cannot be ordered."""
        family = family_of(least)
        if family is None or family != family_of(most):
            return True
        ordered = self._in_order().get(family, [])
        first = bisect_left(ordered, least)
        return bool(first < len(ordered) and ordered[first] <= most)

    def _in_order(self) -> dict[str, list[Any]]:
        if self._ordered is None:
            found: dict[str, list[Any]] = {}
            for key in self.keys:
                family = family_of(key)
                if family is not None:
                    found.setdefault(family, []).append(key)
            self._ordered = {family: sorted(keys) for family, keys in found.items()}
        return self._ordered

    def inside(self, values: NDArray[Any]) -> NDArray[np.bool_]:
        """Return for each element of an array of numbers, booleans or times whether it is in the set; NaN is not."""
        known = self._typed.get(values.dtype.str)
        if known is None:
            known = self._typed[values.dtype.str] = self._as(values.dtype)
        if not len(known):
            return np.zeros(values.shape, np.bool_)
        plain = values.view(np.int64) if values.dtype.kind in "mM" else values
        places = np.searchsorted(known, plain)
        return np.asarray(known[np.minimum(places, len(known) - 1)] == plain, np.bool_)

    def _as(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return the values that a dtype can represent exactly, in order; times as counts of their unit."""
        if dtype.kind in "mM":
            return self._as_times(dtype)
        numbers = self._in_order().get("number", [])
        if dtype.kind in "iu" and numbers and set(map(type, numbers)) == {int}:
            limits = np.iinfo(dtype)
            if limits.min <= numbers[0] and numbers[-1] <= limits.max:
                return np.array(numbers, dtype)
        fitting = [fit for fit in (_fit(number, dtype) for number in numbers) if fit is not None]
        return np.array(fitting, dtype)

    def _as_times(self, dtype: np.dtype[Any]) -> NDArray[np.int64]:
        unit, count = np.datetime_data(dtype)
        step = NS_OF.get(unit, 0) * count
        keys = self._in_order().get(INSTANT if dtype.kind == "M" else SPAN, [])
        counts = [ns // step for _, ns in keys if step and ns % step == 0]
        return np.array([count for count in counts if -(1 << 63) < count < 1 << 63], np.int64)


def _fit(number: Any, dtype: np.dtype[Any]) -> Any:
    """Return a number as a dtype, None if the dtype cannot represent it."""
    try:
        if dtype.kind in "iu":  # by hand: NumPy 1 wraps numbers that are too large
            limits, whole = np.iinfo(dtype), int(number)
            return dtype.type(whole) if whole == number and limits.min <= whole <= limits.max else None
        with np.errstate(over="ignore"):
            fit = dtype.type(number)
        return fit if fit.item() == number else None
    except (OverflowError, ValueError):
        return None
