"""Compare neighbouring timestamps: which rows follow one another in time, and which are close enough.

Takes one array of timestamps in stored order and a threshold; gives `windows` one answer for each pair of neighbours.
Whole numbers and dates are compared exactly, whatever their width and unit. Knows nothing of windows, chunks or breaks.
"""

from __future__ import annotations

import math
from datetime import date, timedelta
from numbers import Number
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock.errors import PlanError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SECOND = 10**18
_ATTOSECONDS = {"W": 604_800 * _SECOND, "D": 86_400 * _SECOND, "h": 3_600 * _SECOND, "m": 60 * _SECOND, "s": _SECOND}
_ATTOSECONDS |= {unit: _SECOND // 1000**n for n, unit in enumerate(("ms", "us", "ns", "ps", "fs", "as"), 1)}


class Neighbours(NamedTuple):
    """What is known of each pair of neighbours (rows i and i+1), and of each row."""

    ordered: NDArray[np.bool_]
    """Whether row i+1 is not before row i in time; False where either has no timestamp."""
    close: NDArray[np.bool_]
    """Whether their difference is at most the threshold; without meaning where they are not ordered."""
    null: NDArray[np.bool_]
    """Whether row i has no timestamp: masked, None, NaN or NaT."""


def check_threshold(threshold: Any) -> None:
    """Raise PlanError unless `threshold` is a real number, a `timedelta` or a `timedelta64`."""
    real = isinstance(threshold, Number | timedelta | np.timedelta64)
    real = real and not isinstance(threshold, complex | np.complexfloating)
    if not real or threshold != threshold:
        raise PlanError(f"the threshold between timestamps must be a number or a timedelta; got {threshold!r}")


def compare(timestamps: NDArray[Any], threshold: Any) -> Neighbours:
    """Compare all neighbours of an array of whole numbers, floats, dates or objects (Decimal, date, datetime).

    Differences of whole numbers never overflow; floats are subtracted in their own precision. For datetime64 and
    timedelta64 a plain number counts units of the array's own dtype. About 30 ns a row; objects cost 1 us.
    PlanError where timestamps have another type or a shape, or where threshold and timestamps do not go together.
    """
    values = np.ma.getdata(timestamps)
    if values.ndim != 1:
        raise PlanError(f"a timestamp must be one value a row; got an array of shape {values.shape}")
    kinds = {"b": _whole, "i": _whole, "u": _whole, "f": _floats, "m": _dates, "M": _dates, "O": _objects}
    if values.dtype.kind not in kinds:
        raise PlanError(f"timestamps must be numbers, Decimals, dates or times; got {values.dtype}")
    # Numbers of NumPy, and durations of no unit, become Python's, which compare exactly with any other.
    if isinstance(threshold, np.timedelta64) and np.datetime_data(threshold.dtype)[0] == "generic":
        threshold = int(threshold.astype(np.int64))
    elif isinstance(threshold, np.generic) and not isinstance(threshold, np.timedelta64):
        threshold = threshold.item()
    found = kinds[values.dtype.kind](values, threshold)
    if not isinstance(timestamps, np.ma.MaskedArray):
        return found
    null = found.null | np.ma.getmaskarray(timestamps)
    return Neighbours(found.ordered & ~(null[:-1] | null[1:]), found.close, null)


def _whole(values: NDArray[Any], threshold: Any) -> Neighbours:
    limit = _number(threshold)
    null = np.zeros(len(values), bool)
    return Neighbours(values[:-1] <= values[1:], _within(values, limit), null)


def _dates(values: NDArray[Any], threshold: Any) -> Neighbours:
    unit, count = np.datetime_data(values.dtype)
    plain = not isinstance(threshold, timedelta | np.timedelta64)
    limit = threshold if plain else _duration(threshold) // (_in_attoseconds(unit) * count)
    # Comparisons with NaT are False, so that a pair with one is not ordered.
    return Neighbours(values[:-1] <= values[1:], _within(values.astype(np.int64), limit), np.isnat(values))


def _floats(values: NDArray[Any], threshold: Any) -> Neighbours:
    limit = _largest_float(_number(threshold))
    with np.errstate(invalid="ignore", over="ignore"):  # inf - inf is not close; a difference too large is infinite
        close = np.diff(values).astype(np.float64) <= limit  # NumPy 1 would compare in the smaller precision
    return Neighbours(values[:-1] <= values[1:], close, np.isnan(values))


def _within(values: NDArray[Any], limit: Any) -> NDArray[np.bool_]:
    """Return whether differences of ordered whole numbers are at most `limit`, which may be any real number."""
    num_pairs = max(len(values) - 1, 0)
    if limit < 0 or limit >= 2**64 - 1:
        return np.full(num_pairs, limit >= 0)
    # Modulo 2^64 the difference of two ordered numbers is right even where it does not fit the signed type.
    bits = values.astype(np.int64, copy=False).view(np.uint64) if values.dtype.kind == "i" else values.astype(np.uint64)
    close: NDArray[np.bool_] = np.diff(bits) <= np.uint64(math.floor(limit))
    return close


def _objects(values: NDArray[Any], threshold: Any) -> Neighbours:
    null = np.array([v is None or v != v for v in values], bool)
    ordered, close = np.zeros((2, max(len(values) - 1, 0)), bool)
    limit = None
    for i in np.flatnonzero(~(null[:-1] | null[1:])).tolist():  # no vector type: Python compares
        now, then = values[i], values[i + 1]
        try:
            limit = _object_limit(now, threshold) if limit is None else limit
            ordered[i] = now <= then
            close[i] = ordered[i] and then - now <= limit
        except TypeError as exc:
            raise PlanError(
                f"timestamps must be numbers, Decimals, dates or times of one kind; got {now!r} and {then!r} in rows "
                f"{i} and {i + 1}"
            ) from exc
    return Neighbours(ordered, close, null)


def _object_limit(value: Any, threshold: Any) -> Any:
    if not isinstance(value, date | timedelta):
        return _number(threshold)
    if not isinstance(threshold, timedelta | np.timedelta64):
        raise PlanError(
            f"timestamps such as {value!r} need a timedelta as threshold; got {threshold!r}, which has no unit"
        )
    microseconds = _duration(threshold) // _ATTOSECONDS["us"]
    longest = timedelta.max // timedelta(microseconds=1)
    return timedelta(microseconds=max(-longest, min(microseconds, longest)))


def _number(threshold: Any) -> Any:
    """Return a threshold that must be a plain number; PlanError for a duration, whose unit numbers do not have."""
    if isinstance(threshold, timedelta | np.timedelta64):
        raise PlanError(f"timestamps are plain numbers, so that their threshold must be one; got {threshold!r}")
    return threshold


def _duration(threshold: timedelta | np.timedelta64) -> int:
    """Return a duration in attoseconds, exactly."""
    if isinstance(threshold, timedelta):
        return threshold // timedelta(microseconds=1) * _ATTOSECONDS["us"]
    unit, count = np.datetime_data(threshold.dtype)
    return int(threshold.astype(np.int64)) * count * _in_attoseconds(unit)


def _in_attoseconds(unit: str) -> int:
    if unit not in _ATTOSECONDS:
        raise PlanError(f"a threshold between timestamps needs a unit of weeks or less; got the unit {unit!r}")
    return _ATTOSECONDS[unit]


def _largest_float(limit: Any) -> float:
    """Return the largest float that is not above `limit`: the same floats are at most either."""
    try:
        near = float(limit)
    except OverflowError:
        near = math.inf if limit > 0 else -math.inf
    return math.nextafter(near, -math.inf) if near > limit else near
