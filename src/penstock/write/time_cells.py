"""Times as Arrow takes them for a column of dates, timestamps or durations: the same moment, or an error.

By itself Arrow takes a number for a time, drops digits that a column does not have, and reads an array in the unit of
the column, whatever its own. Used for single values and for lists of them.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.codecs.arrow_kinds import temporal_dtype
from penstock.codecs.times import in_unit

if TYPE_CHECKING:
    from numpy.typing import NDArray


def is_moment(kind: pa.DataType) -> bool:
    """Tell whether this module handles a type."""
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind) or pa.types.is_duration(kind))


def stacked(cells: list[Any]) -> NDArray[Any] | None:
    """Return single NumPy times in one unit as an array, NaT for None; None if there is anything else."""
    if set(map(type, cells)) - {type(None)} not in ({np.datetime64}, {np.timedelta64}):
        return None
    dtypes = {cell.dtype for cell in cells if cell is not None}
    return np.array(cells, dtypes.pop()) if len(dtypes) == 1 else None


def timed(value: Any, kind: pa.DataType) -> Any:
    """Return a time, or nested lists of times, as Arrow takes them for that type; ValueError if digits are lost."""
    if value is None:
        return None
    if isinstance(value, list | tuple):
        return [timed(one, kind) for one in value]
    if isinstance(value, np.ndarray) and value.ndim and value.dtype.kind in "mM":
        found = _exact(value, kind)
        return found if found.ndim == 1 and not pa.types.is_date(kind) else _listed(found)
    if isinstance(value, np.ndarray):
        return [timed(one, kind) for one in value] if value.ndim else timed(value[()], kind)
    if type(value) is datetime.datetime and pa.types.is_timestamp(kind) and kind.unit == "us":
        return value
    moment = _as_numpy(value, kind)
    if moment is None:
        raise ValueError(f"{value!r:.60} ({type(value).__name__}) is not a time, but the column is {kind}; {_CURE}")
    found = _exact(np.asarray(moment), kind)[()]
    return found.item() if pa.types.is_date(kind) else found


_CURE = "pass dates and times of datetime or NumPy, for a number np.datetime64(number, unit)"


def _listed(values: NDArray[Any]) -> Any:
    """Return nested lists of scalars; dates become those of Python, the others stay NumPy scalars with their unit."""
    if values.ndim > 1:
        return [_listed(one) for one in values]
    return values.tolist() if np.datetime_data(values.dtype)[0] == "D" else values


def _as_numpy(value: Any, kind: pa.DataType) -> Any:
    """Return a single time as a NumPy scalar; None if it is none, or of another kind than the column."""
    for name in ("to_datetime64", "to_timedelta64"):  # pandas: its own type has more digits than Python's
        value = getattr(value, name)() if hasattr(value, name) else value
    if isinstance(value, datetime.datetime):
        if value.tzinfo is not None:
            if pa.types.is_date(kind):
                return None  # the day depends on the zone
            value = value.astimezone(datetime.UTC).replace(tzinfo=None)
        value = np.datetime64(value, "us")
    elif isinstance(value, datetime.date):
        value = np.datetime64(value, "D")
    elif isinstance(value, datetime.timedelta):
        value = np.timedelta64(value, "us")
    wanted = np.timedelta64 if pa.types.is_duration(kind) else np.datetime64
    return value if isinstance(value, wanted) else None


def _exact(values: NDArray[Any], kind: pa.DataType) -> NDArray[Any]:
    dtype = np.dtype("M8[D]") if pa.types.is_date(kind) else temporal_dtype(kind)
    unit, none = np.datetime_data(values.dtype)[0], np.isnat(values)
    if values.dtype.kind != dtype.kind:
        raise ValueError(f"got an array of {values.dtype}, but the column is {kind}; {_CURE}")
    if unit == "generic" or (unit in "YM" and values.dtype.kind == "m"):
        if not none.all():
            raise ValueError(f"a time of {values.dtype} has no fixed length, but the column is {kind}; {_CURE}")
        return np.full(values.shape, "NaT", dtype)
    found = in_unit(values, dtype)
    lost = (in_unit(found, values.dtype) != values) & ~none
    if lost.any():
        codec = f"ScalarCodec(pa.{'duration' if pa.types.is_duration(kind) else 'timestamp'}('ns'))"
        raise ValueError(
            f"{values.ravel()[int(lost.ravel().argmax())]} is not a {kind}: it has finer digits, or is out of range; "
            f"round it, or store single values in another unit, as {codec} does"
        )
    return found
