"""What each column of a batch is in TensorFlow: decided once, before anything is read, and carried out on arrays.

`forms_of` looks at a loader's columns (and at one batch where a transform makes new ones) and gives a `Form` for each:
the static spec and how NumPy's column becomes the arrays of one or more tensors. Work is on whole columns; only what
has no array form in NumPy (decimals, lists of lists) is looked at value by value. Refuses what has no tensor form.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import chain
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy as np
import tensorflow as tf

from penstock.codecs.arrow_fixed import fill_masked
from penstock.codecs.arrow_kinds import Fixed, form_of, natural_kind
from penstock.codecs.row_values import keeps
from penstock.errors import PlanError, SchemaError, TransformError, UnsupportedType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from penstock.engine.inputs import Column
    from penstock.engine.padding import Padding
    from penstock.schema import UnischemaField

OBJECT = np.dtype(object)
_LEAST, _MOST = np.datetime64("1677-09-22"), np.datetime64("2262-04-11")
"""Days that nanoseconds in 64 bits can tell."""
_SPAN = np.timedelta64(106_000, "D")


@dataclass(frozen=True, slots=True)
class Form:
    """One column: what comes from NumPy and what goes to TensorFlow."""

    name: str
    dtype: np.dtype[Any]
    """Of NumPy's values; object for texts, bytes and decimals, which become strings."""
    shape: tuple[int | None, ...] = ()
    """Of one row, or of the innermost values of a ragged one."""
    ragged: int = 0
    """Levels of lists of their own lengths in a row."""
    valid: bool = False
    """Whether a column of booleans goes along that is False where a value is null."""
    loose: bool = False
    """Whether another dtype is cast, not refused: where a schema promises less than it says (TransformSpec)."""
    said: bool = False
    """Whether the user has said it all, by `element_spec=`."""
    fill: Any = None
    """What `pad=` puts where there is nothing; the engine does so but for nulls among texts."""

    @property
    def tensor_dtype(self) -> Any:
        """The dtype of the tensor: strings for objects, int64 (nanoseconds) for times."""
        if self.dtype == OBJECT:
            return tf.string
        return tf.int64 if self.dtype.kind in "mM" else tf.as_dtype(self.dtype)

    def specs(self, rows: int | None) -> list[Any]:
        """Return the specs of the tensors that this column is handed over as."""
        if not self.ragged:
            main = [tf.TensorSpec([rows, *self.shape], self.tensor_dtype)]
        else:
            ends = [None if rows is None else rows + 1] + [None] * (self.ragged - 1)
            main = [tf.TensorSpec([None, *self.shape], self.tensor_dtype)]
            main += [tf.TensorSpec([end], tf.int64) for end in ends]
        shape = () if self.ragged else self.shape
        return [*main, tf.TensorSpec([rows, *shape], tf.bool)] if self.valid else main

    def arrays(self, values: Any) -> list[NDArray[Any]]:
        """Return a column's arrays, as many as there are `specs`; a numeric column without nulls is not copied."""
        parts, valid = _ragged(self, values) if self.ragged else _dense(self, values)
        if self.valid:
            shape = (len(values),) if self.ragged else parts[0].shape
            parts.append(np.ones(shape, np.bool_) if valid is None else valid)
        elif valid is not None:
            _null(self)
        return parts

    def assemble(self, tensors: Sequence[Any]) -> dict[str, Any]:
        """Return the columns that the user sees, from tensors of `specs`."""
        count = 1 + self.ragged
        value = tensors[0]
        if self.ragged:
            value = tf.RaggedTensor.from_nested_row_splits(value, list(tensors[1:count]), validate=False)
        return {self.name: value, f"{self.name}_valid": tensors[count]} if self.valid else {self.name: value}


# -- NumPy's columns to arrays of tensors -----------------------------------------------------------------------------


def _dense(form: Form, values: Any) -> tuple[list[NDArray[Any]], NDArray[np.bool_] | None]:
    if not isinstance(values, np.ndarray):
        values, valid = _stack(form, list(values))
    elif isinstance(values, np.ma.MaskedArray):
        valid = ~np.ma.getmaskarray(values)
        valid, values = (None if valid.all() else valid), fill_masked(values)
    else:
        valid = None
    if form.dtype == OBJECT:
        values, found = _texts(form, values)
        valid = found if valid is None else valid
    else:
        values = _numbers(form, values)
    return [values], valid


def _stack(form: Form, rows: list[Any]) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    """Return rows that came one by one as one array; null rows are zeros, and False in the second one."""
    given = [None if row is None else np.asarray(row) for row in rows]
    there = np.array([row is not None for row in given], np.bool_)
    shapes = {row.shape for row in given if row is not None}
    if form.dtype == OBJECT and shapes <= {()}:  # texts: asarray would look into them
        out: NDArray[Any] = np.empty(len(rows), OBJECT)
        out[:] = rows
        return out, None
    if len(shapes) > 1:  # never broadcast
        raise TransformError(
            f"column {form.name!r} came with rows of the shapes {', '.join(map(str, sorted(shapes)))}, where the "
            f"element spec says {form.shape}; make them alike in the transform, or say a tf.RaggedTensorSpec in "
            "element_spec="
        )
    shape = next(iter(shapes), tuple(size or 0 for size in form.shape))
    kinds = {row.dtype for row in given if row is not None} or {form.dtype}
    out = np.zeros((len(rows), *shape), OBJECT if form.dtype == OBJECT else np.result_type(*kinds))
    for index, row in enumerate(given):
        if row is not None:
            out[index] = row
    valid = np.broadcast_to(there.reshape(-1, *(1,) * len(shape)), out.shape)
    return out, None if there.all() else np.ascontiguousarray(valid)


def _texts(form: Form, values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    """Return texts, bytes and decimals as TensorFlow takes them; nulls are empty."""
    if values.dtype.kind in "US":
        return values.astype(OBJECT), None
    if values.dtype != OBJECT:
        _differs(form, values)
    nulls = _nulls(values)
    kinds = set(map(type, values.ravel().tolist()))
    if not kinds <= {str, bytes, type(None), np.str_, np.bytes_}:
        values = np.array([_text(form, value) for value in values.ravel()] or None, OBJECT).reshape(values.shape)
    if not nulls.any():
        return values, None
    if form.fill is None:
        return np.where(nulls, b"", values), ~nulls
    return np.where(nulls, form.fill, values), ~nulls if form.valid else None


def _nulls(values: NDArray[Any]) -> NDArray[np.bool_]:
    return cast("NDArray[np.bool_]", np.equal(values, cast("Any", None)))


def _text(form: Form, value: Any) -> Any:
    if not (value is None or isinstance(value, str | bytes | Decimal)):
        _refuse(form.name, f"a value of type {type(value).__name__}")
    return str(value) if isinstance(value, Decimal) else value


def _numbers(form: Form, values: NDArray[Any]) -> NDArray[Any]:
    if form.dtype.kind in "mM":
        return _nanoseconds(form, values)
    values = values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))
    if values.dtype == form.dtype:
        return values
    if not form.loose or not np.can_cast(values.dtype, form.dtype, "same_kind"):
        _differs(form, values)
    with np.errstate(over="ignore"):
        cast_to = values.astype(form.dtype)
    if not keeps(values, cast_to):
        raise SchemaError(
            f"column {form.name!r} has {values.dtype} values from {values.min()} to {values.max()} that do not fit "
            f"{form.dtype}, which {'element_spec' if form.said else 'edit_fields'} says; say a wider dtype there, or "
            "change the values in the transform"
        )
    return cast_to


def _nanoseconds(form: Form, values: NDArray[Any]) -> NDArray[np.int64]:
    if values.dtype.kind != form.dtype.kind:
        _differs(form, values)
    found = values[~np.isnat(values)]
    if found.size and not _fits(found.min(), found.max(), form.dtype.kind):
        raise SchemaError(
            f"column {form.name!r} holds {found.min()} to {found.max()}, which nanoseconds in 64 bits cannot tell; "
            "turn it into numbers in a transform"
        )
    return values.astype(f"{form.dtype.kind}8[ns]", copy=False).view(np.int64)


def _fits(least: Any, most: Any, kind: str) -> bool:
    low, high = (_LEAST, _MOST) if kind == "M" else (-_SPAN, _SPAN)
    return bool(low <= least and most <= high)


def _differs(form: Form, values: NDArray[Any]) -> NoReturn:
    if form.said:
        raise SchemaError(
            f"column {form.name!r} came as {values.dtype}, which does not become {form.tensor_dtype.name}, as "
            "element_spec says; say its own dtype there, or convert it in transform="
        )
    raise TransformError(
        f"column {form.name!r} came as {values.dtype}, where the element spec says {form.dtype}; a transform must give "
        "the same dtypes for every batch, or say them with element_spec="
    )


def _ragged(form: Form, values: Any) -> tuple[list[NDArray[Any]], NDArray[np.bool_] | None]:
    """Return the innermost values, the row splits of each level, and which rows are no null (None: all of them)."""
    rows = list(values)
    there = np.array([row is not None and row is not np.ma.masked for row in rows], np.bool_)
    items = [row if ok else () for row, ok in zip(rows, there.tolist(), strict=True)]
    splits: list[NDArray[np.int64]] = []
    while len(splits) < form.ragged and not _are_arrays(form, items, form.ragged - len(splits)):
        splits.append(_ends(np.fromiter(map(len, items), np.int64, len(items))))
        items = list(chain.from_iterable(items))
        if any(item is None for item in items) and len(splits) < form.ragged:
            _null_inside(form)
    flat = _concatenated(form, items, splits) if len(splits) < form.ragged else _gathered(form, items)
    if form.dtype == OBJECT:
        flat, nulls = _texts(form, flat)
        if nulls is not None:
            _null_inside(form)
    else:
        flat = _numbers(form, flat)
    return [flat, *splits], None if there.all() else there


def _gathered(form: Form, items: list[Any]) -> NDArray[Any]:
    """Return values that came one by one as one array."""
    if not items:
        return np.empty((0, *(size or 0 for size in form.shape)), form.dtype)
    if any(item is None for item in items):
        _null_inside(form)
    if form.dtype != OBJECT or form.shape:
        return np.asarray(items)
    out: NDArray[Any] = np.empty(len(items), OBJECT)
    out[:] = items
    return out


def _are_arrays(form: Form, items: list[Any], levels: int) -> bool:
    """Tell whether all items are arrays that have the levels as axes; rows without any value go with them."""
    axes = levels + len(form.shape)
    arrays = [item for item in items if isinstance(item, np.ndarray)]
    flat = all(item.ndim == axes and (item.dtype != OBJECT or axes == levels) for item in arrays)
    return bool(arrays) and flat and all(isinstance(item, np.ndarray) or not len(item) for item in items)


def _concatenated(form: Form, items: list[Any], splits: list[NDArray[np.int64]]) -> NDArray[Any]:
    """Lay arrays end to end, and add the splits of their axes."""
    levels = form.ragged - len(splits)
    nothing = np.empty((0,) * levels + tuple(size or 0 for size in form.shape))
    arrays = [item if isinstance(item, np.ndarray) else nothing for item in items]
    if any(isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array) for array in arrays):
        _null_inside(form)
    shapes = np.array([array.shape[:levels] for array in arrays], np.int64)
    before = np.ones(len(arrays), np.int64)
    for axis in range(levels):
        splits.append(_ends(np.repeat(shapes[:, axis], before)))
        before = before * shapes[:, axis]
    inner = next(array.shape[levels:] for array in arrays if array is not nothing)
    return np.concatenate([np.asarray(array).reshape(-1, *inner) for array in arrays if array is not nothing])


def _ends(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def _null(form: Form) -> NoReturn:
    name = form.name
    cure = f"name it in nulls=[...] to get a column '{name}_valid' (nulls='mask' does that where a field is nullable)"
    if form.said:
        cure = f"add '{name}_valid' to element_spec= to get its mask"
    raise SchemaError(f"column {name!r} has nulls; {cure}, or leave out such rows by filters=")


def _null_inside(form: Form) -> NoReturn:
    pad = "give pad= a fill for it, or " if form.ragged == 1 and not form.said else ""  # of lists of lists it has none
    raise SchemaError(
        f"column {form.name!r} has a null inside a row's list, which a RaggedTensor cannot tell; {pad}fill it in "
        "transform="
    )


def _refuse(name: str, what: str) -> NoReturn:
    raise UnsupportedType(
        f"column {name!r} has no tensor form in TensorFlow: it is {what}; leave it out with columns=..., or turn it "
        "into numbers or texts in a transform"
    )


# -- forms from what is known before reading ---------------------------------------------------------------------------


def column_form(column: Column, stored: pa.DataType) -> Form | None:
    """Return the form of a column as it is read; None where only a value can tell (a codec without a dtype)."""
    if column.form in ("fixed", "cells"):
        return Form(column.name, cast("np.dtype[Any]", column.dtype), column.shape)
    if column.form == "ragged":
        return field_form(column.field)
    kind = cast("Any", column.kind)
    if not kind.as_list:
        return Form(column.name, OBJECT)
    levels, inner = _levels(column.name, stored)
    dtype = kind.item if isinstance(kind.item, np.dtype) else OBJECT
    return Form(column.name, dtype, inner, levels)


def _levels(name: str, stored: pa.DataType) -> tuple[int, tuple[int, ...]]:
    """Return how many levels of lists a type has, and the shape of what is inside."""
    form = form_of(stored)
    if form in ("dictionary", "runs"):
        return _levels(name, stored.value_type)
    if form == "extension" and form_of(stored.storage_type) in ("list", "map", "struct"):
        return _levels(name, stored.storage_type)
    if form in ("map", "struct"):
        _refuse(name, f"of the Arrow type {stored}")
    kind = natural_kind(stored, name)
    if isinstance(kind, Fixed):
        return 0, kind.shape
    if form not in ("list", "fixed_list"):
        return 0, ()
    levels, inner = _levels(name, stored.value_type)
    return levels + 1, inner


def field_form(field: UnischemaField) -> Form | None:
    """Return the form that a field of a schema promises; None where it has no dtype."""
    if field.numpy_dtype is None:
        return None
    dtype = OBJECT if field.numpy_dtype is Decimal else np.dtype(field.numpy_dtype)
    dtype = OBJECT if dtype.kind in "OUS" else dtype
    free = [axis for axis, size in enumerate(field.shape) if size is None]
    levels = free[-1] + 1 if free else 0
    return Form(field.name, dtype, field.shape[levels:], levels)


def padded(form: Form, padding: Padding) -> Form:
    """Return the form of a column of variable shape that is filled up to the largest row of its batch."""
    shape = padding.shape
    axes = shape if len(shape) == form.ragged + len(form.shape) else (None,) * form.ragged + form.shape
    return replace(form, shape=axes, ragged=0, fill=padding.fill)


def windowed(form: Form, steps: int) -> Form:
    """Return the form with an axis of time in front: lists become lists of lists."""
    return replace(form, ragged=form.ragged + 1) if form.ragged else replace(form, shape=(steps, *form.shape))


# -- forms from values, and from what the user says -----------------------------------------------------------------


def value_form(name: str, values: Any, *, nullable: bool) -> Form:
    """Return the form of a column by its values in one batch: all axes but the first keep their size."""
    if isinstance(values, np.ndarray) and values.dtype != OBJECT:
        dtype = OBJECT if values.dtype.kind in "US" else values.dtype.newbyteorder("=")
        _check_dtype(name, dtype)
        return Form(name, dtype, values.shape[1:], valid=nullable or isinstance(values, np.ma.MaskedArray))
    if isinstance(values, np.ndarray) and _are_texts(values.ravel().tolist()):
        return Form(name, OBJECT, values.shape[1:], valid=nullable or bool(_nulls(values).any()))
    rows = list(values)
    given = [row for row in rows if row is not None]
    valid = nullable or len(given) < len(rows)
    if not given:
        return Form(name, OBJECT, valid=valid)
    if not isinstance(given[0], list | tuple | np.ndarray):
        return _scalar_form(name, given, valid)
    levels, arrays = 0, given
    while arrays and isinstance(arrays[0], list | tuple):
        arrays, levels = [item for item in chain.from_iterable(arrays) if item is not None], levels + 1
    if not arrays:
        _refuse(name, "a list without any value to tell its kind")
    if not isinstance(arrays[0], np.ndarray):
        return replace(_scalar_form(name, arrays, valid), ragged=levels)
    levels += _ragged_axes(arrays) if not levels else arrays[0].ndim
    dtype = OBJECT if arrays[0].dtype.kind in "OUS" else arrays[0].dtype.newbyteorder("=")
    _check_dtype(name, dtype)
    inner = arrays[0].shape[levels:] if arrays is given else ()
    return Form(name, dtype, inner, levels, valid)


def _ragged_axes(arrays: list[NDArray[Any]]) -> int:
    """Return how many leading axes differ between rows, one at least: rows that come one by one may all differ."""
    shapes = {array.shape for array in arrays}
    if len({len(shape) for shape in shapes}) > 1:
        return max(len(shape) for shape in shapes)
    differing = [axis for axis, sizes in enumerate(zip(*shapes, strict=True)) if len(set(sizes)) > 1]
    return differing[-1] + 1 if differing else 1


def _scalar_form(name: str, values: list[Any], valid: bool) -> Form:
    if _are_texts(values):
        return Form(name, OBJECT, valid=valid)
    if all(isinstance(value, bool | int | float | np.generic) for value in values):
        return Form(name, np.asarray(values).dtype, valid=valid)
    _refuse(name, f"made of {type(values[0]).__name__}")


def _are_texts(values: list[Any]) -> bool:
    return all(value is None or isinstance(value, str | bytes | Decimal) for value in values)


def _check_dtype(name: str, dtype: np.dtype[Any]) -> None:
    if dtype != OBJECT and dtype.kind not in "mM":
        try:
            tf.as_dtype(dtype)
        except TypeError:
            _refuse(name, f"of dtype {dtype}")


def spec_forms(spec: Mapping[str, Any], columns: Sequence[str]) -> tuple[Form, ...]:
    """Return the forms that a user's element spec asks for.

    `x_valid` beside `x` asks for the mask of `x`, unless it is one of the `columns`, as far as these are known.
    """
    masks = {name for name in spec if name.endswith("_valid") and name.removesuffix("_valid") in spec} - set(columns)
    forms = []
    for name, one in spec.items():
        if name in masks:
            continue
        if not isinstance(one, tf.TensorSpec | tf.RaggedTensorSpec):
            raise PlanError(f"element_spec[{name!r}] must be a tf.TensorSpec or tf.RaggedTensorSpec; got {one!r}")
        ragged = one.ragged_rank if isinstance(one, tf.RaggedTensorSpec) else 0
        inner = tuple(one.shape.as_list()[1 + ragged :])
        kind = OBJECT if one.dtype == tf.string else np.dtype(one.dtype.as_numpy_dtype)
        forms.append(Form(name, kind, inner, ragged, f"{name}_valid" in masks, loose=True, said=True))
    return tuple(forms)


def check_names(forms: Sequence[Form]) -> None:
    """Refuse columns that would hide each other: one named as another's mask."""
    names = {form.name for form in forms}
    for form in forms:
        if form.valid and f"{form.name}_valid" in names:
            raise PlanError(
                f"column {form.name!r} may hold nulls and gets a column '{form.name}_valid', which the dataset has "
                "already; select other columns, rename it in a transform, or use nulls='error'"
            )
