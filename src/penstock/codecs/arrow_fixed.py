"""Stacked columns: Arrow arrays of numbers, times and fixed-size lists as one NumPy array of shape (rows, *shape).

Takes an array and the `Fixed` chosen by the schema; returns values and validity. Plain numbers without nulls are a
view of Arrow's memory for two microseconds a column; everything else is built by whole-array operations. If
the schema declares another dtype than the stored one, values are converted; one that does not fit is an error and never
wraps around. Knows no column names: errors carry the row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from penstock.codecs.arrow_kinds import NATIVE, Fixed, form_of, natural_kind, temporal_dtype, tensor_order
from penstock.codecs.arrow_memory import bits, decimals, decoded, lists, numbers, texts, validity
from penstock.codecs.base import CellError
from penstock.codecs.times import from_text, in_unit

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Stacked = tuple[NDArray[Any], NDArray[np.bool_] | None]


def fixed_view(array: pa.Array, kind: Fixed, *, writable: bool = False) -> Stacked:
    """Return values of shape (len(array), *kind.shape), C-contiguous, and validity, None where no value is null.

    Numbers, dates, timestamps, durations and fixed-size lists of them, without nulls and of the requested dtype, are
    views of Arrow's memory; the rest is a copy. Null slots hold the fill: 0, False, NaN or NaT. Validity has the shape
    (rows,), or the shape of the values if elements inside a row are null.

    Args:
        array: One array; slices and empty ones too.
        kind: As `column_kind` gave it for the array's type.
        writable: Whether the caller may write into the values. Then memory that Arrow holds immutable (the caller's
            bytes, a mapped file) is copied; what Parquet readers give is mutable and is not. Without it views are
            read-only.

    Raises:
        CellError: A value does not fit the dtype or the shape; carries its row.
    """
    dtype = kind.dtype
    # np.frombuffer makes this view in 0.4 us, an object with __array_interface__ in 1.5 us.
    if NATIVE.get(array.type.id) is dtype and not kind.shape and array.null_count == 0 and (count := len(array)):
        values: NDArray[Any] = np.frombuffer(array.buffers()[1], dtype, count, array.offset * dtype.itemsize)
        valid = None
    else:
        values, valid = _stored(array, kind)
        if values.dtype != kind.dtype:  # last, when it is known which elements are there: only those must fit
            with np.errstate(all="ignore"):
                found = in_unit(values, kind.dtype) if values.dtype.kind in "mM" else values.astype(kind.dtype)
                lost = _lost(values, found)
            if valid is not None:
                lost &= np.broadcast_to(_widened(valid, values), values.shape)
            if lost.any():
                at = int(lost.argmax())
                row = at // max(1, lost[0].size)
                raise CellError(row, f"value {values.reshape(-1)[at]} does not fit {kind.dtype}")
            values = _filled(found, valid)[0]
    if not writable:
        values.flags.writeable = False
    elif not values.flags.writeable:
        values = values.copy()
    return values, valid


def _stored(array: pa.Array, kind: Fixed) -> Stacked:
    """Return the column in the requested shape and in its stored dtype (text and decimals: in the requested one)."""
    values, valid = _STACKERS[form_of(array.type)](array, kind)
    values = np.ascontiguousarray(values).reshape(len(array), *kind.shape)
    if valid is not None and valid.ndim > 1:
        valid = np.ascontiguousarray(valid).reshape(values.shape)
    return values, valid


def fill_value(dtype: np.dtype[Any]) -> Any:
    """Return what stands under a mask: 0, False, NaN or NaT."""
    if dtype.kind in "mM":
        return np.array("NaT", dtype)[()]  # with its unit: NumPy deprecates durations without one
    return dtype.type(np.nan if dtype.kind in "fc" else 0)


def fill_masked(values: Any) -> NDArray[Any]:
    """Return a masked array's data, filled below the mask: with its own fill value, else ours, not NumPy's 999999."""
    own = getattr(values, "_fill_value", None) is not None or values.dtype.kind == "O"
    return cast("NDArray[Any]", values.filled() if own else values.filled(fill_value(values.dtype)))


def _filled(values: NDArray[Any], valid: NDArray[np.bool_] | None) -> Stacked:
    """Put the fill under the nulls, in a copy."""
    if valid is None:
        return values, None
    values = values.copy()
    values[~valid] = fill_value(values.dtype)
    return values, valid


def _number(array: pa.Array, _: Fixed) -> Stacked:
    return _filled(numbers(array, NATIVE[array.type.id]), validity(array))


def _bool(array: pa.Array, _: Fixed) -> Stacked:
    if len(array) == 0:
        return np.empty(0, np.bool_), None
    values, valid = bits(array.buffers()[1], array.offset, len(array)), validity(array)
    return values if valid is None else values & valid, valid


def _temporal(array: pa.Array, _: Fixed) -> Stacked:
    dtype = temporal_dtype(array.type)
    if array.type.bit_width == 64:
        return _filled(numbers(array, dtype), validity(array))
    return _filled(numbers(array, np.dtype(np.int32)).astype(np.int64).view(dtype), validity(array))


def _null(array: pa.Array, kind: Fixed) -> Stacked:
    values = np.full((len(array), *kind.shape), fill_value(kind.dtype), kind.dtype)
    return values, np.zeros(len(array), np.bool_) if len(array) else None


def _dictionary(array: pa.Array, kind: Fixed) -> Stacked:
    """Convert the few values, then take them; a value of the dictionary may itself be null."""
    if len(array.dictionary) == 0:
        return _null(array, kind)
    try:
        values, inner = _stored(array.dictionary, kind)
    except CellError:  # text that is not a number: convert by row, to name the row; unused entries may be anything
        return _stored(decoded(array), kind)
    rows, valid = _number(array.indices, kind)
    if inner is not None:
        inner = inner[rows]
        valid = inner if valid is None else inner & _widened(valid, inner)
    return _filled(values[rows], None if valid is None or valid.all() else valid)


def _extension(array: pa.Array, kind: Fixed) -> Stacked:
    if isinstance(array.type, pa.FixedShapeTensorType):
        values, valid = _stored(array.storage, Fixed(kind.dtype, tuple(array.type.shape)))
        axes = (0, *(axis + 1 for axis in tensor_order(array.type)))
        if valid is not None and valid.ndim > 1:
            valid = valid.transpose(axes)
        return values.transpose(axes), valid
    if array.type.extension_name == "arrow.bool8":
        values, valid = _number(array.storage, kind)
        return values != 0, valid
    return _stored(array.storage, kind)


def _list(array: pa.Array, kind: Fixed) -> Stacked:
    """Stack lists, all of which must have the length of the kind."""
    rows, length, num_rows = lists(array), kind.shape[0], len(array)
    wrong = (rows.stop - rows.start) != length
    if rows.valid is not None:
        wrong &= rows.valid
    if wrong.any():
        row = int(wrong.argmax())
        raise CellError(row, f"wanted a list of {length} values, got {rows.stop[row] - rows.start[row]}")
    if len(rows.child) == 0:
        return np.full((num_rows, *kind.shape), fill_value(kind.dtype), kind.dtype), rows.valid
    values, valid = _stored(rows.child, Fixed(kind.dtype, kind.shape[1:]))
    if rows.valid is not None or rows.shared:
        where = (rows.start[:, None] + np.arange(length)).reshape(-1)
        where = np.minimum(where, len(values) - 1)  # null rows take anything; it is filled over
        values, valid = values[where], None if valid is None else valid[where]
    return _rows_of(values, valid, rows.valid, (num_rows, length))


def _fixed_list(array: pa.Array, kind: Fixed) -> Stacked:
    length = array.type.list_size
    child = array.values.slice(array.offset * length, len(array) * length)
    rest = kind.shape[1:]
    if not kind.shape or kind.shape[0] != length:
        inner = natural_kind(array.type.value_type, "")
        rest = inner.shape if isinstance(inner, Fixed) else ()
    values, valid = _stored(child, Fixed(kind.dtype, rest))
    return _rows_of(values, valid, validity(array), (len(array), length))


def _rows_of(
    values: NDArray[Any], inner: NDArray[np.bool_] | None, outer: NDArray[np.bool_] | None, lead: tuple[int, int]
) -> Stacked:
    """Fold elements into rows. Nulls inside rows count only where the row itself is there."""
    values = values.reshape(*lead, *values.shape[1:])
    if inner is None:
        return _filled(values, outer)
    inner = inner.reshape(*lead, *inner.shape[1:])
    if outer is not None:
        if (inner.reshape(lead[0], -1).all(axis=1) | ~outer).all():
            return _filled(values, outer)
        inner = inner & _widened(outer, inner)
    inner = np.broadcast_to(_widened(inner, values), values.shape)
    return (values, None) if inner.all() else _filled(values, inner)


def _widened(valid: NDArray[np.bool_], like: NDArray[Any]) -> NDArray[np.bool_]:
    """Add axes, so that validity of rows broadcasts over their elements."""
    return valid.reshape(*valid.shape, *[1] * (like.ndim - valid.ndim))


def _parsed(cells: list[Any], valid: NDArray[np.bool_] | None, dtype: np.dtype[Any]) -> Stacked:
    """Read numbers and instants from text or decimals, a Python loop: such columns are small (partitions, prices)."""
    values = np.full(len(cells), fill_value(dtype), dtype)
    for row, cell in enumerate(cells):
        if cell is None:
            continue
        try:
            values[row] = _READERS[dtype.kind](cell, dtype)
        except (ValueError, OverflowError, ArithmeticError) as error:
            raise CellError(row, f"{cell!r:.60} does not fit {dtype}") from error
    return values, valid


def _whole(cell: Any, dtype: np.dtype[Any]) -> int:
    value, limits = int(cell), np.iinfo(dtype)
    if not limits.min <= value <= limits.max or (not isinstance(cell, str) and value != cell):
        raise OverflowError(value)
    return value


def _real(cell: Any, dtype: np.dtype[Any]) -> Any:
    with np.errstate(over="ignore"):
        value = dtype.type(float(cell))
    if np.isinf(value) and "inf" not in str(cell).lower():  # also for Python "1e400" is infinite
        raise OverflowError(cell)
    return value


_READERS: dict[str, Callable[[Any, np.dtype[Any]], Any]] = {
    "i": _whole,
    "u": _whole,
    "f": _real,
    "M": from_text,
}


def _lost(values: NDArray[Any], found: NDArray[Any]) -> NDArray[np.bool_]:
    """Say which values changed by more than rounding to the next float."""
    old, new = values.dtype.kind, found.dtype.kind
    if new == "f":
        return cast("NDArray[np.bool_]", np.isinf(found) & np.isfinite(values))
    lost: NDArray[np.bool_] = found.astype(values.dtype) != values
    if old in "mM":
        lost &= ~np.isnat(values)
    if old in "iu" and new in "iu":
        lost |= (found < 0) != (values < 0)  # 2**63 as int64 comes back as itself
    if old == "f" and new in "iu":
        lost |= values >= 2.0 ** np.iinfo(found.dtype).bits
    return lost


_STACKERS: dict[str, Callable[[pa.Array, Fixed], Stacked]] = {
    "number": _number,
    "bool": _bool,
    "temporal": _temporal,
    "null": _null,
    "dictionary": _dictionary,
    "runs": lambda array, kind: _stored(decoded(array), kind),
    "extension": _extension,
    "list": _list,
    "fixed_list": _fixed_list,
    "text": lambda array, kind: _parsed(texts(array), validity(array), kind.dtype),
    "decimal": lambda array, kind: _parsed(decimals(array), validity(array), kind.dtype),
}
