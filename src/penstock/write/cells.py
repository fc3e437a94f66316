"""One value to one cell, one list of cells to an Arrow column, and every way that can fail.

Used by all three forms of input. Values pass through the field's codec; every error names the row, the field, what the
schema wants, what came, and what to do. Knows neither batches nor files.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.codecs import NdarrayCodec, ScalarCodec
from penstock.codecs.base import has_cells
from penstock.codecs.ndarray import check_array
from penstock.codecs.times import in_unit
from penstock.errors import ColumnNotFound, SchemaError, close_names
from penstock.write.arrays import quick_array

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from penstock.schema.unischema import UnischemaField
    from penstock.write.spares import Spares

_MISFITS = (pa.ArrowException, TypeError, ValueError, OverflowError)


def is_slow(field: UnischemaField) -> bool:
    """Tell whether encoding a field is work for other cores: images, zipped arrays, codecs of users.

    Scalars and plain arrays are not: copying their values into a cell costs no more than handing them over.
    """
    return has_cells(field.codec) and type(field.codec) is not NdarrayCodec


def encode_cell(field: UnischemaField, value: Any, index: int) -> Any:
    """Return the stored form of a value of row `index`; None stays None where the field allows it."""
    if isinstance(value, np.ma.MaskedArray):
        value = unmasked(field, value, index)
    if value is None:
        refuse_null(field, index)
        return None
    try:
        return _encode(field, value)
    except Exception as error:
        raise _misfit(index, field, value, error) from error


def unmasked(field: UnischemaField, value: Any, index: int) -> Any:
    """Return the values of a masked array: None where all are masked, in a list None for those that are."""
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
    """Tell whether a codec is one of Penstock's, which take arrays and keep none."""
    return type(codec).__module__.startswith("penstock.codecs")


def encode_cells(field: UnischemaField, values: list[Any], first: int) -> list[Any]:
    """Return the stored forms of values that are not None, or are `Encoded`; the first has the number `first`."""
    codec, cells = field.codec, []
    try:
        for value in values:
            if type(value) is Encoded or value is None:
                cells.append(None if value is None else value.cell)
            else:
                cells.append(_encode(field, value) if codec is None else codec.encode(field, value))
    except Exception as error:
        raise _misfit(first + len(cells), field, values[len(cells)], error) from error
    return cells


@dataclass(frozen=True, slots=True)
class Encoded:
    """A cell among values that are still to be encoded."""

    cell: Any


def plain_types(field: UnischemaField) -> frozenset[type]:
    """Return the Python types whose values are stored as they are, found by trying: they need no call each."""
    if type(field.codec) is not ScalarCodec or field.shape:
        return frozenset()
    found = set()
    for probe in (7, 1.5, True, "text"):  # floats that 32 bits cannot hold are found in `array_of`
        with contextlib.suppress(Exception):
            cell = field.codec.encode(field, probe)
            if type(cell) is type(probe) and cell == probe:
                found.add(type(probe))
    return frozenset(found)


def keep_value(field: UnischemaField, value: Any, index: int, spares: Spares | None) -> Any:
    """Return a value to be encoded later: checked where that is cheap, and an array copied where there are `spares`.

    Pictures of Pillow, and whatever else says it is an array, become arrays here.
    """
    given = value
    if isinstance(value, np.ma.MaskedArray):
        value = unmasked(field, value, index)
        if value is None:
            refuse_null(field, index)
            return None
    if not isinstance(value, np.ndarray):
        if not hasattr(value, "__array_interface__"):
            return value
        value = np.asarray(value)
    if is_ours(field.codec):
        try:
            check_array(field, value)
        except ValueError as error:
            raise _misfit(index, field, value, error) from error
    return spares.copy(value) if spares is not None and (value is given or value.base is given) else value


def _encode(field: UnischemaField, value: Any) -> Any:
    codec = field.codec
    if codec is not None:
        if not isinstance(value, np.ndarray) and hasattr(value, "__array_interface__") and has_cells(codec):
            value = np.asarray(value)  # a picture of Pillow, say
        return codec.encode(field, value)
    if field.shape:
        return _list(field, value)
    if _is_typed(field):
        if isinstance(value, str | bytes) and not issubclass(field.numpy_dtype, np.str_):
            raise ValueError(f"{value!r:.50} is text")
        return _SCALAR.encode(field, value)
    keep = not isinstance(value, np.generic) or isinstance(value, np.datetime64 | np.timedelta64)
    return value if keep else value.tolist()  # dates stay: tolist() turns nanoseconds into bare integers


_SCALAR = ScalarCodec()


def _is_typed(field: UnischemaField) -> bool:
    kind = field.numpy_dtype
    return isinstance(kind, type) and issubclass(kind, np.number | np.bool_ | np.str_)


def _list(field: UnischemaField, value: Any) -> Any:
    """Return the cell of a list column; ValueError for a number that its dtype does not hold: Arrow would cut it."""
    if not _is_typed(field) or issubclass(field.numpy_dtype, np.str_):
        return value
    flat = value.ravel() if isinstance(value, np.ndarray) else np.array(list(_leaves(value)))
    kind = np.dtype(field.numpy_dtype)
    if not flat.size or flat.dtype == kind or flat.dtype.kind not in "biuf":
        return value  # what is no number at all Arrow refuses
    with np.errstate(over="ignore", invalid="ignore"):
        stored = flat.astype(kind)
    lost = (stored != flat) if kind.kind in "iu" else (np.isinf(stored) & ~np.isinf(flat))
    if kind.kind != "b" and lost.any():
        raise ValueError(f"{flat[int(lost.argmax())]} is no {kind.name}")
    return value


def _leaves(value: Any) -> Iterator[Any]:
    """Yield the values of nested lists but for nulls."""
    if isinstance(value, list | tuple | np.ndarray):
        for one in value:
            yield from _leaves(one)
    elif value is not None:
        yield value


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
    """Raise unless a field, or an Arrow column, may be null."""
    if not field.nullable:
        kind = field.type if isinstance(field, pa.Field) else wanted(field)
        raise SchemaError(
            f"row {index}, field {field.name!r}: a value is needed ({kind}) and there is none; give one, or make the "
            "field nullable=True"
        )


def refuse_nulls(column: pa.Array, stored: pa.Field, first: int) -> pa.Array:
    """Return a column as it is, unless it has a null that the field forbids."""
    if column.null_count and not stored.nullable:
        refuse_null(stored, first + column.is_null().to_pylist().index(True))
    return column


def refuse_names(names: Iterable[str], known: Mapping[str, Any] | Sequence[str], *, index: int | None = None) -> None:
    """Raise ColumnNotFound for the first name that the schema does not have."""
    for name in names:
        if name not in known:
            where, what = (f"row {index}: ", "key") if index is not None else ("", "column")
            raise ColumnNotFound(
                f"{where}no field {name!r} in the schema; {close_names(name, known)} "
                f"Leave the {what} out, or add a UnischemaField"
            )


def array_of(cells: list[Any], stored: pa.Field, first: int) -> pa.Array:
    """Return encoded cells as a column of the stored type; SchemaError names the first row that does not fit it."""
    quick = quick_array(cells, stored.type)
    return refuse_nulls(_slow_array(cells, stored, first) if quick is None else quick, stored, first)


def _slow_array(cells: list[Any], stored: pa.Field, first: int) -> pa.Array:
    if pa.types.is_float32(stored.type):
        _refuse_large(cells, stored.name, first)
    if pa.types.is_nested(stored.type):  # Arrow takes lists of lists, not arrays of more than one dimension
        cells = [cell.tolist() if isinstance(cell, np.ndarray) else cell for cell in cells]
    if pa.types.is_date(stored.type):  # Arrow takes Python's dates here, not NumPy's
        cells = [cell.astype("M8[D]").item() if isinstance(cell, np.datetime64) else cell for cell in cells]
    if pa.types.is_timestamp(stored.type) or pa.types.is_duration(stored.type):
        cells = [_in_unit(cell, stored.type.unit) for cell in cells]
    try:
        if pa.types.is_timestamp(stored.type) and stored.type.tz:  # NumPy's times have no zone: instants in UTC
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


def _in_unit(cell: Any, unit: str) -> Any:
    """Return a time in the unit of its column, which Arrow asks for; one with finer digits stays, and is refused."""
    if not isinstance(cell, np.datetime64 | np.timedelta64):
        return cell
    found = in_unit(np.asarray(cell), f"{cell.dtype.kind}8[{unit}]")[()]
    return found if np.isnat(cell) or found == cell else cell


def _refuse_large(cells: list[Any], name: str, first: int) -> None:
    """Refuse a number that would be stored as infinite."""
    for index, cell in enumerate(cells, first):
        if isinstance(cell, int | float | np.number) and np.isfinite(cell):
            with np.errstate(over="ignore"):
                if np.isinf(np.float32(cell)):
                    raise SchemaError(
                        f"row {index}, field {name!r}: {cell} is larger than any float32; scale the value, or give the "
                        "field the dtype float64"
                    )


def check_limits(column: pa.Array, name: str, limits: Any, first: int) -> None:
    """Refuse a number that the stored type holds and the field's does not: it would come back as another.

    `limits` is NumPy's `iinfo` or `finfo` of the field's dtype; a list column is looked at value by value.
    """
    import pyarrow.compute as pc

    rows = np.arange(first, first + len(column))
    while pa.types.is_nested(column.type):
        rows = rows[pc.list_parent_indices(column).to_numpy(zero_copy_only=False)]
        column = pc.list_flatten(column)
    if isinstance(limits, np.finfo):  # what is infinite or no number may stay so
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
