"""Turn columns into what Petastorm's torch loaders return: tensors of promoted dtypes, lists of what has no tensor.

Called by `petastorm.pytorch` with columns of batches; memory is shared where torch has the dtype. Imports torch on
first use, and names the extra where it is missing.
"""

from __future__ import annotations

from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.codecs.row_values import keeps_numbers, row_values
from penstock.codecs.times import nanoseconds
from penstock.errors import UnsupportedType
from penstock.petastorm._dtypes import PROMOTED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from penstock.petastorm._row_feed import Columns

    Make = Callable[[Any], Any]

_TENSOR_KINDS = "biufc"
_NUMPY = (np.ndarray, np.generic)


@cache
def torch_module() -> Any:
    """Return torch; ImportError with the line that installs it where it is missing."""
    try:
        import torch
    except ImportError:
        raise ImportError("penstock.petastorm.pytorch needs PyTorch: pip install 'penstock[torch]'") from None
    return torch


def promoted(values: NDArray[Any]) -> NDArray[Any]:
    """Return an array with Petastorm's promotions: uint16 as int32, uint32 as int64, bool as uint8."""
    kind = values.dtype.kind
    if kind == "b":
        return values.view(np.uint8)
    other = PROMOTED.get(values.dtype) if kind == "u" else None
    return values if other is None else values.astype(other)


def promoted_value(value: Any) -> Any:
    """Return one value of a row with the same promotions; anything but NumPy's arrays and numbers is left as it is."""
    if isinstance(value, np.ndarray):
        return promoted(value)
    if isinstance(value, np.bool_ | np.uint16 | np.uint32):
        return promoted(np.asarray(value))[()]
    return value


def rows_of(columns: Columns, *, windows: bool) -> list[dict[Any, Any]]:
    """Return rows as dicts of promoted values; windows as {step: {field: value}}."""
    lines = zip(*map(_row_values, columns.values()), strict=True)
    rows = [dict(zip(columns, line, strict=True)) for line in lines]
    return [nested(row) for row in rows] if windows else rows


def _row_values(values: Any) -> list[Any]:
    if isinstance(values, np.ma.MaskedArray) or not isinstance(values, np.ndarray):
        return [promoted_value(value) for value in row_values(values)]
    return values.tolist() if values.dtype.kind in "SUO" else list(promoted(values))


def nested(flat: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return {(step, field): value} as {step: {field: value}}."""
    steps: dict[Any, Any] = {}
    for (step, name), value in flat.items():
        steps.setdefault(step, {})[name] = value
    return steps


def tensors_of(columns: Columns, make: Make, *, windows: bool) -> dict[Any, Any]:
    """Return columns as tensors made by `make`, and as lists where they have no tensor form."""
    batch = {name: column_of(values, make) for name, values in columns.items()}
    return nested(batch) if windows else batch


def column_of(values: Any, make: Make) -> Any:
    """Return a column as a tensor, or as the list of its values where one of them is null, a text or an object."""
    if type(values) is np.ndarray and values.dtype.kind in _TENSOR_KINDS:  # by far the most, and once for each column
        return make(promoted(values))

    def made(value: Any) -> Any:
        return make(promoted(value) if isinstance(value, np.ndarray) else value)

    if isinstance(values, np.ma.MaskedArray):
        if np.ma.getmaskarray(values).any():
            return [_loose(value, made) for value in row_values(values)]
        values = values.data
    if not isinstance(values, np.ndarray) or values.dtype.kind == "O":
        values = list(values)
        # Lists, tuples and dicts stay as they are.
        return values if any(isinstance(value, list | tuple | dict) for value in values) else leaf(values, made)
    if values.dtype.kind in "SU":
        return values.tolist()
    return _nanoseconds(values, made) if values.dtype.kind in "mM" else made(np.asarray(values))


def as_tensor(values: Any) -> Any:
    """Return a tensor that shares memory with an array, where the array may be written to."""
    torch = torch_module()
    if not isinstance(values, np.ndarray):
        return torch.as_tensor(values)
    try:
        if values.flags.carray and values.dtype.isnative and values.size > 1:  # as nearly every column
            return torch.from_numpy(values)
        from penstock.torch.tensors import share  # imports torch

        return share(values)
    except TypeError:
        raise UnsupportedType(
            f"torch has no dtype for {values.dtype}; cast the field in a transform_spec, or do not read it"
        ) from None


def _nanoseconds(values: NDArray[Any], make: Make) -> Any:
    """Return times as int64 nanoseconds; as a list where one is null or has none."""
    found = None if np.isnat(values).any() else nanoseconds(values)
    return [None if np.isnat(value) else value for value in values] if found is None else make(found)


def _loose(value: Any, make: Make) -> Any:
    """Return a value inside a list: an array of numbers as a tensor, a NumPy number as a Python number."""
    if isinstance(value, np.generic):
        return value.item() if value.dtype.kind in _TENSOR_KINDS else value
    return make(value) if type(value) is np.ndarray and value.dtype.kind in _TENSOR_KINDS else value


def leaf(values: Sequence[Any], make: Make) -> Any:
    """Return arrays, numbers or tensors as one tensor where all are alike, and anything else as a list."""
    if not values or any(value is None or isinstance(value, str | bytes | Decimal) for value in values):
        return [_loose(value, make) for value in values]
    first = values[0]
    if isinstance(first, _NUMPY):
        return _of_numpy(values, make)
    torch = torch_module()
    if isinstance(first, torch.Tensor):
        alike = all(isinstance(one, torch.Tensor) and one.shape == first.shape for one in values)
        return make(torch.stack(list(values))) if alike else list(values)
    are_numbers = all(isinstance(value, bool | int | float | complex) for value in values)
    return make(torch.utils.data.default_collate(list(values))) if are_numbers else list(values)


def _of_numpy(values: Sequence[Any], make: Make) -> Any:
    """Return arrays or scalars of one shape and kind as a tensor, others as a list."""
    first = values[0]
    kinds = {"n" if one.dtype.kind in "iuf" else one.dtype.kind for one in values if isinstance(one, _NUMPY)}
    alike = len(kinds) == 1 and all(
        isinstance(one, _NUMPY) and not isinstance(one, np.ma.MaskedArray) and one.shape == first.shape
        for one in values
    )
    if alike and kinds <= {"m", "M"}:
        return _nanoseconds(np.stack(values), make)
    if alike and kinds <= {"n", "b", "c"} and keeps_numbers(values):
        return make(np.stack(values))
    return [_loose(value, make) for value in values]
