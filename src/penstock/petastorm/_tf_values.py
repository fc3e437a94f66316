"""Values of a reader as TensorFlow takes them: one by one, and whole columns of them.

For `petastorm.tf_utils`; NumPy in, NumPy out, TensorFlow is not imported. The types are Petastorm's: unsigned numbers
that are one size larger, decimals and texts as strings, times as nanoseconds since 1970. A null has no tensor and is a
RuntimeError, as there. A column is converted by the same rules as its values.
"""

from __future__ import annotations

import calendar
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from penstock.codecs.row_values import keeps
from penstock.codecs.times import nanoseconds
from penstock.errors import SchemaError
from penstock.petastorm._dtypes import PROMOTED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock.schema import UnischemaField

OBJECT: np.dtype[Any] = np.dtype(object)
_TIMES = "mM"


class NullValue(SchemaError, RuntimeError):
    """A null on its way to TensorFlow, which has none; Petastorm raises a RuntimeError."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What a field's values become."""

    name: str
    dtype: np.dtype[Any]
    """Of the tensors' arrays; object for strings."""
    source: np.dtype[Any]
    """Of the field, object for texts, bytes and decimals."""
    shape: tuple[int | None, ...]

    @property
    def is_free(self) -> bool:
        """Whether rows differ in shape."""
        return None in self.shape


def kind_of(field: UnischemaField) -> Kind:
    """Return what the values of a field become; ValueError where TensorFlow has no type for them."""
    if field.numpy_dtype is None:
        raise SchemaError(
            f"field {field.name!r} has no dtype, and a tensor needs one; leave it out with schema_fields=, or give it "
            "one by edit_fields= of a TransformSpec"
        )
    source: np.dtype[Any] = OBJECT if field.numpy_dtype is Decimal else np.dtype(field.numpy_dtype)
    source = OBJECT if source.kind in "OUS" else source
    dtype: np.dtype[Any] = np.dtype(np.int64) if source.kind in _TIMES else PROMOTED.get(source, source)
    if dtype.kind not in "Obiufc":
        raise SchemaError(f"field {field.name!r} has the dtype {source}, which has no type in TensorFlow")
    return Kind(field.name, dtype, source, field.shape)


def date_to_nsec_from_epoch(dt: date) -> int:
    """Return the nanoseconds from 1970 to a date, or to a datetime (UTC where it names no zone); negative before."""
    micros = 0
    if isinstance(dt, datetime):
        dt = dt.astimezone(UTC) if dt.tzinfo is not None else dt
        micros = dt.microsecond
    return (calendar.timegm(dt.timetuple()) * 1_000_000 + micros) * 1000


def value_of(kind: Kind, value: Any) -> Any:
    """Return one value as an array of the kind's dtype."""
    if value is None or value is np.ma.masked:
        _refuse_null(kind)
    if kind.dtype == OBJECT and not kind.shape:
        out: NDArray[Any] = np.empty((), OBJECT)
        out[()] = _text(kind, value)
        return out
    return column_of(kind, np.asarray(value)[np.newaxis])[0]


def column_of(kind: Kind, values: Any) -> NDArray[Any]:
    """Return a column of rows of one shape as an array of the kind's dtype; not copied where it is one already."""
    if isinstance(values, np.ma.MaskedArray):
        if np.ma.is_masked(values):
            _refuse_null(kind)
        values = values.data
    if not isinstance(values, np.ndarray) or (values.dtype == OBJECT and values.ndim == 1 and kind.shape):
        values = _stacked(kind, values)
    if kind.dtype == OBJECT:
        return _texts(kind, values)
    return _nanoseconds(kind, values) if kind.source.kind in _TIMES else _numbers(kind, values)


def _numbers(kind: Kind, values: NDArray[Any]) -> NDArray[Any]:
    if values.dtype == OBJECT:
        _check_nulls(kind, values.ravel().tolist())
    elif values.dtype.kind == "f" and kind.dtype.kind in "iu":  # integers of a column with nulls, in batches
        if np.isnan(values).any():
            _refuse_null(kind)
        with np.errstate(invalid="ignore"):
            whole = values.astype(kind.dtype)
        if (whole == values).all():
            return whole
    try:
        with np.errstate(over="ignore"):
            found = values.astype(kind.dtype, casting="unsafe" if values.dtype == OBJECT else "same_kind", copy=False)
        fits = found is values or keeps(values, found)
    except OverflowError:
        fits = False
    except (TypeError, ValueError):
        raise SchemaError(
            f"field {kind.name!r} has values of {values.dtype}, but its schema declares {kind.source}; correct "
            "edit_fields="
        ) from None
    if not fits:
        raise SchemaError(
            f"field {kind.name!r} has values that do not fit {kind.source}, the dtype in its schema: {values.min()} to "
            f"{values.max()}; declare a wider dtype by edit_fields= of a TransformSpec"
        )
    return found


def _stacked(kind: Kind, values: Sequence[Any]) -> NDArray[Any]:
    rows = list(values)
    _check_nulls(kind, rows)
    if kind.dtype == OBJECT and not kind.shape:
        out: NDArray[Any] = np.empty(len(rows), OBJECT)
        out[:] = rows
        return out
    try:
        if not rows:
            return np.empty((0, *(size or 0 for size in kind.shape)), kind.source)
        return np.stack([np.asarray(row) for row in rows])
    except ValueError:
        raise SchemaError(
            f"field {kind.name!r} has rows of different shapes, which one tensor cannot hold; "
            "penstock.tensorflow.loader gives them as RaggedTensors"
        ) from None


def ragged_of(kind: Kind, values: Sequence[Any]) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64]]:
    """Return rows of different shapes end to end, where each begins and ends, and their shapes."""
    rows = list(values)
    _check_nulls(kind, rows)
    arrays = [np.asarray(row) for row in rows]
    shapes = np.array([array.shape for array in arrays], np.int64).reshape(len(arrays), len(kind.shape))
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum([array.size for array in arrays], dtype=np.int64)])
    if any(isinstance(row, np.ma.MaskedArray) and np.ma.is_masked(row) for row in rows):
        _refuse_null(kind)
    flat = np.concatenate([array.ravel() for array in arrays]) if arrays else np.empty(0, kind.source)
    return column_of(Kind(kind.name, kind.dtype, kind.source, ()), flat), ends, shapes


def _texts(kind: Kind, values: NDArray[Any]) -> NDArray[Any]:
    if values.dtype.kind in "US":
        return values.astype(OBJECT)
    flat = values.ravel().tolist()
    if set(map(type, flat)) <= {str, bytes}:
        return values
    out: NDArray[Any] = np.empty(len(flat), OBJECT)
    out[:] = [_text(kind, value) for value in flat]
    return out.reshape(values.shape)


def _text(kind: Kind, value: Any) -> Any:
    if value is None:
        _refuse_null(kind)
    if isinstance(value, Decimal):
        return str(value.normalize())
    return value if isinstance(value, str | bytes) else str(value)


def _nanoseconds(kind: Kind, values: NDArray[Any]) -> NDArray[np.int64]:
    if values.dtype == OBJECT:
        flat = values.ravel().tolist()
        _check_nulls(kind, flat)
        if all(isinstance(value, date) for value in flat):
            return np.array([date_to_nsec_from_epoch(value) for value in flat], np.int64).reshape(values.shape)
        values = np.array(flat, kind.source).reshape(values.shape)
    if np.isnat(values).any():
        _refuse_null(kind)
    found = nanoseconds(values)
    if found is None:
        raise SchemaError(
            f"field {kind.name!r} has times that do not fit 64-bit nanoseconds (years 1677 to 2262); change them by a "
            "TransformSpec, or leave the field out with schema_fields="
        )
    return found


def _check_nulls(kind: Kind, rows: Sequence[Any]) -> None:
    if any(row is None for row in rows):
        _refuse_null(kind)


def _refuse_null(kind: Kind) -> NoReturn:
    raise NullValue(
        f"field {kind.name!r} is null, and TensorFlow has no null; fill it by a TransformSpec, leave such rows out by "
        "a predicate, or use penstock.tensorflow.loader, which gives masks"
    )
