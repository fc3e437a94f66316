"""Apply a `TransformSpec`: row by row, or on a pandas DataFrame of a whole batch.

Two stages of `stages`, after decoding and before rows become windows. The result has exactly the fields that the spec
promises, checked where `edit_fields` declares them. Knows no file names: the caller adds them to errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from penstock.codecs.row_values import exact_in_float64, null_rows, objects_of, row_values, to_series
from penstock.engine.randomness import NAMES, transform_wants
from penstock.engine.stages import Batch, Draft, Stage
from penstock.errors import TransformError
from penstock.halt import is_halted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from penstock.schema import UnischemaField
    from penstock.schema.transform import TransformSpec


@dataclass(frozen=True)
class SpecStage(Stage):
    """What both stages share: a spec and the fields that it makes."""

    spec: TransformSpec
    fields: tuple[UnischemaField, ...]
    """What comes out."""
    is_slow: ClassVar[bool] = True

    @cached_property
    def wants(self) -> frozenset[str]:  # type: ignore[override]
        """Which of `rng` and `generator` the function takes."""
        return transform_wants(self.spec.func) & NAMES

    @property
    def calls_user(self) -> bool:  # type: ignore[override]
        """Whether the spec has a function."""
        return self.spec.func is not None

    def names(self, names: list[str]) -> list[str]:  # noqa: ARG002 -- of `Stage`
        """Return the fields."""
        return [field.name for field in self.fields]


@dataclass(frozen=True)
class RowTransform(SpecStage):
    """Calls the function once for each row."""

    stack: bool
    """Whether columns become arrays, as batches have them; otherwise they are lists of values."""

    def __call__(self, draft: Draft) -> None:
        """Replace the columns by those of the transformed rows."""
        batch, origin, left = draft.columns, draft.origin, draft.rows
        names = list(batch)
        lines = zip(*map(row_values, batch.values()), strict=True) if names else ((),) * draft.num_rows
        rows = []
        for index, line in enumerate(lines):
            planned = index if left is None else int(left[index])
            extra = origin.of_row(self.wants, planned) if self.wants else {}
            rows.append(self._row(dict(zip(names, line, strict=True)), extra))
        if self.spec.func is not None:
            # Fields that the spec does not declare would be dropped silently.
            known = {*names, *(one.name for one in self.fields), *self.spec.removed_fields}
            for row in rows:
                if surplus := sorted(map(str, row.keys() - known)):
                    raise TransformError(
                        f"the transform's row has fields that the schema lacks: {', '.join(map(repr, surplus))}; name "
                        "them in edit_fields"
                    )
        edited = {field.name for field in self.spec.edit_fields}
        columns: Batch = {}
        for field in self.fields:
            columns[field.name] = values = []
            for row in rows:
                try:
                    values.append(row[field.name])
                except KeyError:
                    raise TransformError(
                        f"the transform's row has no field {field.name!r}, only {', '.join(map(repr, row))}; return "
                        "it, or name it in removed_fields"
                    ) from None
            if field.name in edited:
                for value in values:
                    check_value(field, value)
        draft.columns = {name: _stacked(values) for name, values in columns.items()} if self.stack else columns

    def _row(self, row: dict[str, Any], extra: dict[str, Any]) -> Mapping[str, Any]:
        if self.spec.func is None:
            return row
        if is_halted():
            raise TransformError("the run was stopped before this row was transformed")
        try:
            result = self.spec.func(row, **extra)
        except Exception as error:
            raise TransformError(f"the transform raised {type(error).__name__}: {error}") from error
        if not hasattr(result, "keys"):
            raise TransformError(f"a transform must return the row as a dict; got {type(result).__name__}")
        return cast("Mapping[str, Any]", result)


@dataclass(frozen=True)
class FrameTransform(SpecStage):
    """Calls the function once for each batch, with a pandas DataFrame; it may return another number of rows."""

    dtypes: Mapping[str, np.dtype[Any]]
    """See `plain_array`: with them the function gets equal dtypes in all batches, with and without nulls."""

    def __call__(self, draft: Draft) -> None:
        """Replace the columns by the transformed ones."""
        if self.spec.func is None:
            draft.columns = {field.name: draft.columns[field.name] for field in self.fields}
            return
        import pandas as pd

        columns = dict(draft.columns)
        for name, values in draft.columns.items():
            # Plain numbers need no Series of their own, of which a table has many.
            plain = type(values) is np.ndarray and values.ndim == 1 and values.dtype.kind in "biuf"
            if not plain or name in self.dtypes:
                columns[name] = to_series(values, self.dtypes.get(name))
        frame = pd.DataFrame(columns, copy=False)
        draft.columns = {}
        try:
            result = self.spec.func(frame, **draft.origin.of_batch(self.wants))
        except Exception as error:
            raise TransformError(f"the transform raised {type(error).__name__}: {error}") from error
        if not isinstance(result, pd.DataFrame):
            raise TransformError(f"a transform must return a pandas DataFrame; got {type(result).__name__}")
        found = list(result.columns)
        wanted = {field.name for field in self.fields}
        missing = sorted(wanted - set(found))
        extra = sorted(set(found) - wanted - set(self.spec.removed_fields), key=str)
        if self.spec.selected_fields is not None:
            extra = []  # what was not selected is left out for the user
        if len(set(found)) < len(found):
            twice = sorted({str(name) for name in found if list(found).count(name) > 1})
            raise TransformError(f"the transform's DataFrame has columns of the same name: {', '.join(twice)}")
        if missing or extra:
            raise TransformError(
                f"the transform's DataFrame has the columns {', '.join(map(repr, found))}; missing: {missing}, not in "
                f"the schema: {extra}; name new ones in edit_fields and dropped ones in removed_fields"
            )
        edited = {field.name for field in self.spec.edit_fields}
        draft.columns = {field.name: _array(field, result[field.name], field.name in edited) for field in self.fields}


_NULLS: dict[str, Any] = {"f": np.nan, "m": "NaT", "M": "NaT"}
"""The value for null, by the kind of array; None in arrays of objects."""


def plain_column(values: NDArray[Any], dtype: np.dtype[Any] | None) -> NDArray[Any]:
    """Return a column without a mask, see `plain_array`; where whole rows of arrays are null, rows become objects."""
    if values.ndim > 1 and np.ma.is_masked(values) and null_rows(values).any():
        return objects_of([None if one is None else plain_array(one, dtype) for one in row_values(values)])
    return plain_array(values, dtype)


def plain_array(values: NDArray[Any], dtype: np.dtype[Any] | None) -> NDArray[Any]:
    """Return an array without a mask: null is NaN among numbers, NaT among times, else None in an array of objects.

    Args:
        values: A column, or an array in one row of it, with or without a mask.
        dtype: float64 or object, of integers and booleans that have a null in some batch: all batches get it. None: as
            these values need. Integers that a float64 would change become objects in any case.
    """
    data, kind = np.ma.getdata(values), values.dtype.kind
    if not np.ma.is_masked(values) and (dtype is None or kind not in "biu"):
        return data
    gone = np.ma.getmaskarray(values)
    if kind in "iu" and dtype != np.object_ and exact_in_float64(data[~gone]):
        out = data.astype(np.float64)
    else:
        out = data.copy() if kind in _NULLS else data.astype(np.object_)
    out[gone] = _NULLS.get(out.dtype.kind)
    return out


def _array(field: UnischemaField, series: Any, edited: bool) -> Any:
    """Return a column of a DataFrame as an array, of the declared shape where each cell is an array."""
    values = _from_series(series)
    if values.dtype != np.object_:
        if edited:
            _check_dtype(field, values.dtype)
        if not values.flags.writeable:
            try:
                values.flags.writeable = True
            except ValueError:
                return values.copy()
        return values
    cells = list(values)
    if edited:
        for value in cells:
            check_value(field, value)
    if field.shape and all(isinstance(one, np.ndarray | list | tuple) for one in cells):
        dtype = None if field.numpy_dtype in (None, Decimal) else np.dtype(field.numpy_dtype)
        stacked = _stacked([one if isinstance(one, np.ndarray) else np.asarray(one, dtype) for one in cells])
        return stacked if isinstance(stacked, np.ndarray) else objects_of(stacked)
    return values


def _from_series(series: Any) -> NDArray[Any]:
    """Return a pandas column as NumPy has it: null is NaN, NaT, None or masked, times are UTC without saying so."""
    dtype = series.dtype
    if isinstance(dtype, np.dtype):
        return cast("NDArray[Any]", series.to_numpy())
    if getattr(dtype, "tz", None) is not None:
        return cast("NDArray[Any]", series.dt.tz_convert("UTC").dt.tz_localize(None).to_numpy())
    plain = getattr(dtype, "numpy_dtype", None)
    if plain is not None and plain.kind in "iu" and series.isna().any():
        gone = series.isna().to_numpy()
        return cast("NDArray[Any]", np.ma.MaskedArray(series.to_numpy(plain, na_value=0), gone))
    if plain is not None and plain.kind == "f" and series.isna().any():
        return cast("NDArray[Any]", series.to_numpy(np.float64, na_value=np.nan))
    if plain is not None and not series.isna().any():
        return cast("NDArray[Any]", series.to_numpy(plain))
    return cast("NDArray[Any]", series.astype(object).where(series.notna(), None).to_numpy(object))


def _stacked(values: list[Any]) -> Any:
    """Return values as a batch has them: one array where they are of one kind, masked where some are null.

    Texts and other objects become an array of objects; arrays of unequal shape stay a list.
    """
    given = [one for one in values if one is not None]
    if not given:
        return objects_of(values)
    if not isinstance(given[0], np.ndarray | np.generic | bool | int | float):
        return values if hasattr(given[0], "shape") else objects_of(values)
    if len({(np.shape(one), getattr(one, "dtype", type(one))) for one in given}) > 1:
        return values
    rows = [given[0] if one is None else one for one in values]
    stack = np.ma.stack if any(isinstance(one, np.ma.MaskedArray) for one in given) else np.stack
    stacked = stack(rows) if np.ndim(given[0]) else np.array(rows)
    if len(given) == len(values):
        return stacked
    mask = np.array([one is None for one in values]).reshape(-1, *[1] * (stacked.ndim - 1))
    return np.ma.MaskedArray(stacked, np.broadcast_to(mask, stacked.shape) | np.ma.getmaskarray(stacked))


def check_value(field: UnischemaField, value: Any) -> None:
    """Raise TransformError unless a value has the dtype and rank that `edit_fields` promises."""
    if value is None:
        if not field.nullable:
            raise TransformError(f"the transform gave None for {field.name!r}, which edit_fields says is not nullable")
        return
    shape = getattr(value, "shape", ())
    if isinstance(value, list | tuple):
        value = np.asarray(value)
        shape = value.shape
    fits = len(shape) == len(field.shape)
    if not fits or any(want not in (None, got) for want, got in zip(field.shape, shape, strict=True)):
        raise TransformError(
            f"the transform gave {field.name!r} the shape {tuple(shape)} where edit_fields says {field.shape}"
        )
    if hasattr(value, "dtype"):
        _check_dtype(field, value.dtype)
    elif field.numpy_dtype not in (None, Decimal):
        want = np.dtype(field.numpy_dtype)
        if isinstance(value, bool | int | float | complex | str | bytes) and want.kind in _TAKES:
            found = np.asarray(value).dtype.kind
            if found not in _TAKES[want.kind]:
                raise TransformError(
                    f"the transform gave {field.name!r} a {type(value).__name__} ({value!r:.40}) where edit_fields "
                    f"says {want.name}"
                )


_TAKES = {"b": "b", "i": "bi", "u": "bi", "f": "bif", "c": "bifc", "U": "U", "S": "SU"}
"""Kinds of dtypes, and of Python's own values that go with them."""


def _check_dtype(field: UnischemaField, dtype: Any) -> None:
    if field.numpy_dtype is None or field.numpy_dtype is Decimal:
        return
    want = np.dtype(field.numpy_dtype)
    found = str(dtype).removeprefix("torch.")
    same = found == want.name or want.kind in "SUOM" or (found, want.name) == ("bool", "bool_")
    if not same and not (field.nullable and want.kind in "iu" and found == "float64"):
        raise TransformError(
            f"the transform gave {field.name!r} the dtype {found} where edit_fields says {want.name}; cast it, or "
            f"correct edit_fields"
        )
