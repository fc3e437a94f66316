"""Stack rows of different shapes into one array, filled up at the end of every axis: the option `pad=`.

`make_pads` checks the option once, when a loader is made, and returns stages (see `stages`): `Pad` for columns of the
dataset and of a `TransformSpec`, `PadMade` for columns that a function of the user makes, which looks at each batch.
Rows that are not arrays (maps, lists of lists, dicts) have no shape to fill up and stay a list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.engine.stages import Draft, Stage
from penstock.errors import PlanError, TransformError, close_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from penstock.engine.inputs import Column
    from penstock.schema import UnischemaField


@dataclass(frozen=True, slots=True)
class Padding:
    """How one column of variable shape becomes an array."""

    fill: Any
    dtype: np.dtype[Any] | None
    """Of every batch; None where it is the values' own: text and dates inside cells."""
    shape: tuple[int | None, ...]
    """Of one row, as the schema declares it."""

    def stack(self, rows: Any) -> NDArray[Any]:
        """Return one array; null rows and null elements are fill. Without any values free axes have no length."""
        if _is_dense(rows):
            return rows  # type: ignore[no-any-return]
        arrays = [
            None if row is None else (row.filled(self.fill) if isinstance(row, np.ma.MaskedArray) else np.asarray(row))
            for row in rows
        ]
        given = [array for array in arrays if array is not None]
        shapes = [array.shape for array in given] or [tuple(size or 0 for size in self.shape)]
        shape = tuple(max(sizes) for sizes in zip(*shapes, strict=True))
        dtype = self.dtype
        if dtype is None or not all(np.can_cast(array.dtype, dtype) for array in given if array.size):
            dtype = _common(given)  # a function of rows may change a field's dtype
        out = np.full((len(rows), *shape), self.fill, dtype)
        for i, array in enumerate(arrays):
            if array is not None:
                out[i][tuple(slice(size) for size in array.shape)] = array
        return out


def _common(arrays: list[NDArray[Any]]) -> np.dtype[Any] | None:
    return np.result_type(*{array.dtype for array in arrays}) if arrays else None


def _is_dense(values: Any) -> bool:
    return type(values) is np.ndarray and not values.dtype.hasobject


@dataclass(frozen=True)
class Pad(Stage):
    """Pads columns whose shapes the schema declares."""

    paddings: Mapping[str, Padding]

    def __call__(self, draft: Draft) -> None:
        """Stack the columns."""
        for name, padding in self.paddings.items():
            draft.columns[name] = padding.stack(draft.columns[name])


@dataclass(frozen=True)
class PadMade(Stage):
    """Pads columns that a function of the user has made or changed."""

    fills: Mapping[str, Any]
    """By column, where `pad=` names columns."""
    required: frozenset[str]
    """Columns that are named and that the dataset does not have."""
    fill: Any = None
    """For all columns whose rows are arrays of numbers or times, where `pad=` is one value."""

    def __call__(self, draft: Draft) -> None:
        """Stack what has to be padded."""
        if missing := sorted(self.required - draft.columns.keys()):
            raise TransformError(f"pad= names the column {missing[0]!r}; {close_names(missing[0], draft.columns)}")
        draft.columns = {name: self._padded(name, values) for name, values in draft.columns.items()}

    def _padded(self, name: str, values: Any) -> Any:
        fill = self.fills.get(name, self.fill)
        if fill is None or _is_dense(values):
            return values
        kinds = "biufcmMUS" if name in self.fills else "biufcmM"
        arrays = _row_arrays(values)
        # An empty Python list does not determine a dtype.
        given = [array for array in arrays or () if array is not None and (array.size or array.dtype != np.float64)]
        dtype = _common(given)
        if arrays is None or (dtype is not None and dtype.kind not in kinds):
            if name not in self.fills:
                return values
            raise TransformError(
                f"pad= names the column {name!r}, whose rows have no common shape to fill up after the transform; give "
                "each row as an array, all with equally many axes"
            )
        if dtype is not None and not _fits(fill, dtype):
            raise TransformError(
                f"pad={fill!r} does not fit column {name!r} of {dtype}, which the transform made; give each its own: "
                "pad={...}"
            )
        return Padding(fill, dtype, (None,)).stack(arrays)


def _row_arrays(values: Any) -> list[NDArray[Any] | None] | None:
    """Return the rows of a column as arrays; None unless all are, with equally many axes. A null row is None."""
    if not isinstance(values, list | tuple) and not (isinstance(values, np.ndarray) and values.ndim == 1):
        return None
    rows: list[NDArray[Any] | None] = []
    for value in values:
        if value is not None and not isinstance(value, list | tuple) and not hasattr(value, "__array__"):
            return None
        try:
            rows.append(value if value is None or isinstance(value, np.ndarray) else np.asarray(value))
        except ValueError:  # a list of lists of different lengths
            return None
    ranks = {row.ndim for row in rows if row is not None}
    return rows if len(ranks) == 1 and 0 not in ranks else None


def make_pads(
    columns: Sequence[Column], pad: Any, *, rowwise: Any, has_function: bool
) -> tuple[Pad | None, Pad | None, PadMade | None]:
    """Return the stages that pad columns of the dataset, fields of a `TransformSpec`, and what a function makes.

    `pad` is one fill for all columns of variable shape, or a dict of fills by column; `rowwise` is the stage of a
    `TransformSpec`, if there is one; `has_function`: a function of the user makes columns.

    Raises:
        PlanError: a name that is not there or has no variable shape, or a fill that the column's dtype cannot hold.
    """
    able = {
        column.name: column
        for column in columns
        if (
            bool(getattr(column.kind, "as_list", False)) and column.field.numpy_dtype is not None
            if column.form == "objects"
            else column.form == "ragged" and bool(column.field.shape)
        )
    }
    out = {} if rowwise is None else {one.name: one for one in rowwise.fields}
    edited = set() if rowwise is None else {one.name for one in rowwise.spec.edit_fields if None in one.shape}
    after = {name: one for name, one in out.items() if name in edited}
    fills = pad if isinstance(pad, dict) else dict.fromkeys([*able, *after], pad)
    for name in fills:
        if name not in able and name not in after and not has_function:
            raise PlanError(
                f"pad= names the column {name!r}, which is not one of variable shape; "
                f"{close_names(name, [*able, *after])}"
            )
    read = {
        name: _padding(name, _dtype(column), column.field.shape, fills[name])
        for name, column in able.items()
        if name in fills
    }
    spec = {name: padding for name, padding in read.items() if name in out}  # a function of rows may change them
    spec |= {
        name: _padding(name, _field_dtype(one), one.shape, fills[name]) for name, one in after.items() if name in fills
    }
    made = None
    if has_function and isinstance(pad, dict):
        made = PadMade(pad, frozenset(pad.keys() - {one.name for one in columns}))
    elif has_function:
        made = PadMade({}, frozenset(), pad)
    return Pad(read) if read else None, Pad(spec) if spec else None, made


def padded_columns(stages: Iterable[Stage]) -> dict[str, Padding]:
    """Return the columns whose padding is known before the first batch."""
    return {name: one for stage in stages if isinstance(stage, Pad) for name, one in stage.paddings.items()}


def _padding(name: str, dtype: np.dtype[Any] | None, shape: tuple[int | None, ...], fill: Any) -> Padding:
    if dtype is not None and not _fits(fill, dtype):
        raise PlanError(f"pad={fill!r} does not fit column {name!r} of {dtype}; give each its own: pad={{...}}")
    return Padding(fill, dtype, shape)


def _dtype(column: Column) -> np.dtype[Any] | None:
    if column.form == "objects":
        item = getattr(column.kind, "item", None)
        return item if isinstance(item, np.dtype) else np.dtype(object)
    return _field_dtype(column.field)


def _field_dtype(one: UnischemaField) -> np.dtype[Any] | None:
    kind = one.numpy_dtype
    return np.dtype(kind) if isinstance(kind, type) and issubclass(kind, np.number | np.bool_) else None


def _fits(fill: Any, dtype: np.dtype[Any]) -> bool:
    if dtype.hasobject:
        return True
    value = np.asarray(fill)
    try:
        with np.errstate(all="ignore"):
            held = value.astype(dtype, casting="unsafe" if value.dtype.kind in "biuf" else "same_kind")
    except (TypeError, ValueError, OverflowError):
        return False
    same = np.array_equal(held, value) or (dtype.kind in "fc" and value.dtype.kind in "biuf")
    return bool(same or (dtype.kind in "mM" and np.isnat(held).all()))
