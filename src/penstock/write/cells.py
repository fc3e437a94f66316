"""One value to one cell, one list of cells to an Arrow column, and every way that can fail.

Used by all three forms of input. Values pass through the codec of the field; every error names the row, the field, what
the schema expects, what was given, and what to do. Arrow by itself takes a number for a time, drops digits that a
column does not have, and reads an array in the unit of the column: times are converted here instead, to the same moment
or an error. Knows neither batches nor files.

Lists, of fields with a shape and no codec, are checked value by value before Arrow sees them, arrays of numbers as a
whole: Arrow splits text into letters, truncates numbers, and takes bytes for text.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.codecs import NdarrayCodec, ScalarCodec
from penstock.codecs.arrow_kinds import leaf_of, scalar_dtype, temporal_dtype
from penstock.codecs.base import has_cells
from penstock.codecs.ndarray import check_array
from penstock.codecs.scalar import NO_NUMBERS, flag
from penstock.codecs.times import in_unit
from penstock.errors import ColumnNotFound, SchemaError, close_names
from penstock.write.arrays import FIXED, BufferPool, is_fixed, own, quick_array

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.schema.unischema import UnischemaField

_MISFITS = (pa.ArrowException, TypeError, ValueError, OverflowError)


def is_slow(field: UnischemaField) -> bool:
    """Tell whether a field is expensive to encode and worth another core: images, zipped arrays, custom codecs.

    Scalars and plain arrays are not: copying their values into a cell costs no more than passing them on.
    """
    return has_cells(field.codec) and type(field.codec) is not NdarrayCodec


def encode_cell(field: UnischemaField, value: Any, index: int) -> Any:
    """Return the stored form of a value of row `index`; None stays None if the field is nullable."""
    if isinstance(value, np.ma.MaskedArray):
        value = unmasked(field, value, index)
    if is_missing(value):
        refuse_null(field, index)
        return None
    try:
        return _encode(field, value)
    except Exception as error:
        raise _misfit(index, field, value, error) from error


def unmasked(field: UnischemaField, value: Any, index: int) -> Any:
    """Return the values of a masked array: None if all are masked, and in a list None for those that are."""
    mask = np.ma.getmaskarray(value)
    if value is np.ma.masked or (mask.size and mask.all()):
        return None
    if not mask.any():
        return np.ma.getdata(value)
    if field.codec is None:
        return value.tolist()
    raise SchemaError(
        f"row {index}, field {field.name!r}: {mask.sum()} of the array's {mask.size} values are masked, which "
        f"{field.codec} cannot store; fill them (value.filled(...)), or store a list (codec=None)"
    )


def is_ours(codec: Any) -> bool:
    """Tell whether a codec is one of Penstock's, which take arrays and keep no reference."""
    return type(codec).__module__.startswith("penstock.codecs")


def encode_cells(field: UnischemaField, values: list[Any], first: int) -> list[Any]:
    """Return the stored forms of values, some of which may be None or `EncodedCell`; the first has the index
    `first`.
    """
    codec, cells = field.codec, []
    try:
        for value in values:
            if type(value) is EncodedCell or value is None:
                cells.append(None if value is None else value.cell)
            else:
                cells.append(_encode(field, value) if codec is None else codec.encode(field, value))
    except Exception as error:
        raise _misfit(first + len(cells), field, values[len(cells)], error) from error
    return cells


@dataclass(frozen=True, slots=True)
class EncodedCell:
    """A cell among values that are still to be encoded."""

    cell: Any


def plain_types(field: UnischemaField) -> frozenset[type]:
    """Return the Python types whose values are stored unchanged, found by trying: they need no call each."""
    if type(field.codec) is not ScalarCodec or field.shape:
        return frozenset()
    found = set()
    for probe in (7, 1.5, True, "text"):  # floats too large for 32 bits are found in `array_of`
        with contextlib.suppress(Exception):
            cell = field.codec.encode(field, probe)
            if type(cell) is type(probe) and cell == probe:
                found.add(type(probe))
    return frozenset(found)


def keep_value(field: UnischemaField, value: Any, index: int, spares: BufferPool | None) -> Any:
    """Return a value to be encoded later: checked if that is cheap, and, with `spares`, copied.

    Pillow images, and other objects with an array interface, become arrays here. Other mutable objects are encoded at
    once, if there are spares.
    """
    given = value
    if isinstance(value, np.ma.MaskedArray):
        value = unmasked(field, value, index)
    if is_missing(value):
        refuse_null(field, index)
        return None
    if not isinstance(value, np.ndarray) and not hasattr(value, "__array_interface__"):
        fixed = spares is None or is_fixed(value)
        return value if fixed else EncodedCell(own(encode_cell(field, value, index)))
    try:
        if not isinstance(value, np.ndarray):
            value = as_pixels(value)
        if is_ours(field.codec):
            check_array(field, value)
    except ValueError as error:
        raise _misfit(index, field, value, error) from error
    if spares is None or (value is not given and type(value.base) is bytes):  # which is immutable
        return value
    return own(value) if value.dtype.hasobject else spares.copy(value)


_OTHER_COLOURS = {"P", "PA", "HSV", "YCbCr", "CMYK", "LAB"}
"""Pillow modes whose numbers are neither grey nor RGB, though their arrays look like it."""


def as_pixels(value: Any) -> Any:
    """Return a Pillow image, or another object with an array interface, as an array; ValueError for other colours."""
    mode = getattr(value, "mode", None)
    if mode in _OTHER_COLOURS and any(base.__module__.startswith("PIL.") for base in type(value).__mro__):
        raise ValueError(
            f"an image of mode {mode!r} has no RGB values; convert it with image.convert('RGB'), or give "
            "np.asarray(image) to store its numbers as they are"
        )
    return np.asarray(value)


def _encode(field: UnischemaField, value: Any) -> Any:
    codec = field.codec
    if codec is not None:
        if not isinstance(value, np.ndarray) and hasattr(value, "__array_interface__") and has_cells(codec):
            value = as_pixels(value)
        return codec.encode(field, value)
    if field.shape:
        return list_cell(field, value)
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    kind = field.numpy_dtype
    if isinstance(kind, type) and issubclass(kind, np.number | np.bool_ | np.str_):
        if isinstance(value, str | bytes) and not issubclass(field.numpy_dtype, np.str_):
            raise ValueError(f"{value!r:.50} is text")  # noqa: TRY004 -- becomes a SchemaError with row and field
        return _SCALAR.encode(field, value)
    keep = not isinstance(value, np.generic) or isinstance(value, np.datetime64 | np.timedelta64)
    return value if keep else value.tolist()  # not for times: tolist() turns nanoseconds into integers


_SCALAR = ScalarCodec()


def _misfit(index: int, field: UnischemaField, value: Any, reason: Exception) -> SchemaError:
    got = f"{type(value).__name__}"
    if isinstance(value, np.ndarray | np.generic):
        got += f" of {value.dtype}, shape {value.shape}"
    return SchemaError(
        f"row {index}, field {field.name!r}: cannot encode {got} where the schema says {wanted(field)} "
        f"with {field.codec}: {reason}; convert the value, or change the field (None is a free dimension)"
    )


def wanted(field: UnischemaField) -> str:
    """Return what a field takes, for messages: "float32, shape (2,)"."""
    kind = field.numpy_dtype
    if isinstance(kind, type) and issubclass(kind, np.generic):
        return f"{np.dtype(kind).name}, shape {field.shape}"
    return f"{'anything' if kind is None else kind.__name__}, shape {field.shape}"


def refuse_null(field: Any, index: int) -> None:
    """Raise unless a field, or an Arrow column, is nullable."""
    if not field.nullable:
        kind = field.type if isinstance(field, pa.Field) else wanted(field)
        raise SchemaError(
            f"row {index}, field {field.name!r}: missing value, but the field is not nullable ({kind}); give one, "
            "or make the field nullable=True"
        )


def refuse_nulls(column: pa.Array, stored: pa.Field, first: int) -> pa.Array:
    """Return a column unchanged; raises if it has a null and the field is not nullable."""
    if column.null_count and not stored.nullable:
        refuse_null(stored, first + column.is_null().to_pylist().index(True))
    return column


def refuse_names(names: Iterable[str], known: Mapping[str, Any] | Sequence[str], *, index: int | None = None) -> None:
    """Raise ColumnNotFound for the first name that is not in the schema."""
    for name in names:
        if name not in known:
            where, what = (f"row {index}: ", "key") if index is not None else ("", "column")
            raise ColumnNotFound(
                f"{where}no field {name!r} in the schema; {close_names(name, known)} "
                f"Leave the {what} out, or add a UnischemaField"
            )


def array_of(cells: list[Any], stored: pa.Field, first: int) -> pa.Array:
    """Return encoded cells as a column of the stored type; SchemaError names the first row that does not fit."""
    quick = quick_array(cells, stored.type)
    return refuse_nulls(_slow_array(cells, stored, first) if quick is None else quick, stored, first)


def _slow_array(cells: list[Any], stored: pa.Field, first: int) -> pa.Array:
    leaf = leaf_of(stored.type)
    if pa.types.is_float32(stored.type) or pa.types.is_float16(stored.type):
        kind = scalar_dtype(stored.type)
        for at, one in enumerate(cells, first):  # refuse a number that would be stored as infinity
            if isinstance(one, int | float | np.number) and np.isfinite(one):
                with np.errstate(over="ignore"):
                    if np.isinf(kind.type(one)):
                        raise SchemaError(
                            f"row {at}, field {stored.name!r}: {one} is larger than any {kind}; scale the value, or "
                            "give the field the dtype float64"
                        )
    if pa.types.is_date(leaf) or pa.types.is_timestamp(leaf) or pa.types.is_duration(leaf):
        cells = _timed(cells, stored, leaf, first)
    elif leaf != stored.type or pa.types.is_nested(stored.type):  # Arrow takes lists of lists, no nested array
        cells = [_unrolled(cell) for cell in cells]
    try:
        if pa.types.is_timestamp(stored.type) and stored.type.tz:  # NumPy times have no zone: they are in UTC
            return pa.array(cells, pa.timestamp(stored.type.unit)).cast(stored.type)
        return pa.array(cells, stored.type)
    except _MISFITS:
        for index, cell in enumerate(cells, first):
            try:
                pa.array([cell], stored.type)
            except _MISFITS as error:
                raise SchemaError(
                    f"row {index}, field {stored.name!r}: {cell!r:.100} does not fit the stored type {stored.type}: "
                    f"{error}; convert the value, or choose a wider type in the field's codec"
                ) from error
        raise


def _timed(cells: list[Any], stored: pa.Field, leaf: pa.DataType, first: int) -> list[Any]:
    stack = stacked(cells)
    if stack is not None:
        with contextlib.suppress(ValueError):  # the next loop finds which one it is
            return list(timed(stack, leaf))
    found = []
    for index, cell in enumerate(cells, first):
        try:
            found.append(timed(cell, leaf))
        except ValueError as error:
            raise SchemaError(f"row {index}, field {stored.name!r}: {error}") from error
    return found


def _unrolled(cell: Any) -> Any:
    """Return a cell with lists instead of arrays."""
    if isinstance(cell, np.ndarray):
        return cell.tolist()
    if isinstance(cell, list) and any(isinstance(one, np.ndarray | list) for one in cell):
        return [_unrolled(one) for one in cell]
    return cell


def check_limits(column: pa.Array, name: str, limits: Any, first: int) -> None:
    """Refuse a number that the stored type can hold but the field cannot: it would be read as another one.

    `limits` is the `iinfo` or `finfo` of the dtype of the field; in a list column every value is checked.
    """
    import pyarrow.compute as pc

    rows = np.arange(first, first + len(column))
    while leaf_of(column.type) != column.type:
        rows = rows[pc.list_parent_indices(column).to_numpy(zero_copy_only=False)]
        column = pc.list_flatten(column)
    if isinstance(limits, np.finfo):  # infinity and NaN are allowed
        column = pc.if_else(pc.is_finite(column), column, pa.scalar(0, column.type))
    least, most = (float(limits.min), float(limits.max)) if isinstance(limits, np.finfo) else (limits.min, limits.max)
    found = pc.min_max(column)
    if found["min"].as_py() is None or (found["min"].as_py() >= least and found["max"].as_py() <= most):
        return
    outside = pc.or_(pc.less(column, least), pc.greater(column, most))
    index = outside.to_pylist().index(True)
    raise SchemaError(
        f"row {rows[index]}, field {name!r}: {column[index].as_py()} is not within {least} to {most}, "
        f"the numbers of {limits.dtype}; convert the value, or give the field a wider dtype"
    )


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


_PLAIN = FIXED - {range}


def is_missing(value: Any) -> bool:
    """Tell whether a value is missing: None, or NaT or NA of pandas, which are recognised by name."""
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def list_cell(field: UnischemaField, value: Any) -> Any:
    """Return the cell of a list column: an array, or nested lists; ValueError for what the field cannot hold."""
    kind = field.numpy_dtype
    if type(value) is np.ndarray and value.ndim and value.dtype.type is kind:
        return value
    if isinstance(value, str) or (isinstance(value, bytes | bytearray) and kind is not np.uint8):
        cure = "pass [value] for one item" + ("" if isinstance(value, str) else ", np.frombuffer(value) for numbers")
        raise ValueError(f"got {type(value).__name__} but the field is a list; {cure}")
    if kind is None:  # lists of lists, maps: Arrow knows their type
        return value
    if isinstance(value, bytes | bytearray):
        return np.frombuffer(value, np.uint8)
    value = _as_lists(value)
    check = _CHECKS.get(kind)
    if check is not None:
        return check(field, value)
    return _numbers(np.dtype(kind), value) if kind is not Decimal and np.dtype(kind).kind in "iuf" else value


def _as_lists(value: Any) -> Any:
    """Return an array of plain values unchanged, and other containers as nested lists of scalars and arrays."""
    if isinstance(value, np.ndarray) and value.dtype != object and value.ndim:
        return value
    if type(value) in (list, tuple) and set(map(type, value)) <= _PLAIN:
        return value
    if isinstance(value, pa.Array | pa.ChunkedArray):
        return value.to_pylist()
    if not isinstance(value, list | tuple | np.ndarray) and hasattr(value, "__array__"):
        return _as_lists(np.asarray(value))  # torch, JAX, a Series
    if not isinstance(value, Collection) or isinstance(value, Mapping) or getattr(value, "ndim", 1) == 0:
        raise ValueError(f"got {type(value).__name__} but the field is a list; pass a list or an array")
    return [_item(one) for one in value]


def _item(value: Any) -> Any:
    if is_missing(value):
        return None
    if isinstance(value, np.ma.MaskedArray):
        return value.tolist() if np.ma.getmaskarray(value).any() else np.ma.getdata(value)
    if isinstance(value, str | bytes | bytearray | memoryview | np.generic | Mapping):
        return value
    holds = isinstance(value, Collection) or hasattr(value, "__array__")
    if holds and getattr(value, "ndim", 1) == 0:
        return np.asarray(value)[()]
    return _as_lists(value) if holds else value


def _leaves(value: Any) -> Iterator[Any]:
    """Yield the values of nested lists, except nulls."""
    if isinstance(value, list | tuple | np.ndarray):
        for one in value:
            yield from _leaves(one)
    elif value is not None:
        yield value


def _other_leaf(wanted: str, leaf: Any) -> ValueError:
    return ValueError(f"expected a list of {wanted}, got {type(leaf).__name__} in it: {leaf!r:.50}")


def _texts(_: UnischemaField, value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.kind in "UT":
        return value
    for leaf in _leaves(value):
        if not isinstance(leaf, str):
            raise _other_leaf("str", leaf)
    return value


def _flags(field: UnischemaField, value: Any) -> Any:
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "b":
            return value
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_flags(field, one) for one in value]
    return None if value is None else flag(field, value)


_CHECKS: dict[Any, Callable[[UnischemaField, Any], Any]] = {np.str_: _texts, np.bool_: _flags}


def _numbers(kind: np.dtype[Any], value: Any) -> Any:
    """Return the value; ValueError for a number that the dtype cannot hold: Arrow would truncate it."""
    if isinstance(value, np.ndarray):
        flat = value.ravel()
    else:
        flat = np.array(value if set(map(type, value)) <= {int, float} else list(_leaves(value)))
    if not flat.size or flat.dtype == kind:
        return value
    if flat.dtype.kind not in "biuf":
        # Refuse times, text and complex numbers: Arrow would take some of them for numbers.
        if flat.dtype != object:
            raise ValueError(f"got {flat.dtype} in a list of {kind.name}; pass numbers")
        for leaf in _leaves(value):
            if isinstance(leaf, (str, bytes, *NO_NUMBERS)):
                raise _other_leaf("numbers", leaf)
            if isinstance(leaf, Decimal | float) and kind.kind in "iu" and leaf != leaf // 1:
                raise ValueError(f"{leaf} is no {kind.name}")
        return value
    with np.errstate(over="ignore", invalid="ignore"):
        stored = flat.astype(kind)
        lost = (stored != flat) if kind.kind in "iu" else (np.isinf(stored) & ~np.isinf(flat))
    if lost.any():
        raise ValueError(f"{flat[int(lost.argmax())]} is no {kind.name}")
    return value
