"""Conversion of NumPy columns to tensors, and of their nulls to masks.

Takes a finished batch (a dict of arrays and lists) and returns a dict of tensors and lists, with every column. Numbers
share the memory of the batch wherever torch can use it. The table of types is in docs/types.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from penstock.codecs.times import nanoseconds
from penstock.errors import SchemaError, UnsupportedType
from penstock.nulls import check_names, check_nulls, has_null

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from numpy.typing import NDArray

VALID = "_valid"
"""Suffix of the name of a mask."""
_SHARED = frozenset(map(np.dtype, ("?", "i1", "i2", "i4", "i8", "u1", "f2", "f4", "f8")))
"""Dtypes that every version of torch shares, in arrays that are C-contiguous, aligned and writeable."""
_TRANSFORM = "turn it into numbers or a list of values in transform=, or leave the column out with columns="


def as_tensors(batch: Mapping[str, Any], *, nulls: str | Iterable[str] = "mask") -> dict[str, Any]:
    """Return a batch with its columns as tensors; arrays of numbers are not copied.

    Times become int64 nanoseconds; text, bytes, decimals and other objects become lists; ragged columns become lists of
    tensors. Tensors are left unchanged.

    Args:
        batch: Columns by name, as a loader gives them.
        nulls: "mask": a masked array keeps its fill values and gets a bool tensor `<name>_valid` beside it; a loader
            gives a column that may hold nulls as one in every batch. "error": a null is an error, also inside of lists
            and structs. Names of columns: these get `<name>_valid` in every batch, and a null in any other column is
            an error.

    Raises:
        ColumnNotFound: nulls= names a column that the batch does not have.
        SchemaError: A null that was not allowed, or a column that has the name of a mask.
        UnsupportedType: An array of a dtype that torch does not have.
    """
    return converter(nulls)(batch)


def converter(
    nulls: str | Iterable[str], names: Iterable[str] | None = None, *, owner: str = "penstock.torch.as_tensors"
) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Return `as_tensors` for this choice of nulls, checked once, against `names` where these are known."""
    return _Converter(check_nulls(nulls, names, owner=owner), owner)


class _Converter:
    """Converts batches; picklable."""

    def __init__(self, allowed: frozenset[str] | None, owner: str) -> None:
        self._always = frozenset[str]() if allowed is None else allowed
        self._anywhere = allowed is None
        self._owner = owner

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        masks: dict[str, Any] = {}
        if not self._always <= batch.keys():
            check_names(self._always, batch, owner=self._owner)
        for name, values in batch.items():
            out[name], valid = _quick_column(name, values)
            if name in self._always or (self._anywhere and valid is not None):
                masks[name + VALID] = _all_valid(out[name]) if valid is None else valid
            elif not self._anywhere and has_null(values):
                raise _null(name)
        for name, mask in masks.items():
            if name in out:
                raise SchemaError(
                    f"the mask of column {name.removesuffix(VALID)!r} would be called {name!r}, which is a column "
                    "already; rename one of them in transform=, or fill the nulls there"
                )
            out[name] = mask
        return out


def _all_valid(values: Any) -> Any:
    """Return the mask of a column that is not a masked array: a list has None for its nulls."""
    if isinstance(values, torch.Tensor):
        return torch.ones(values.shape, dtype=torch.bool)
    return torch.tensor([value is not None for value in values], dtype=torch.bool)


def _null(name: str) -> SchemaError:
    return SchemaError(
        f"column {name!r} has a null in this batch, and nulls= does not allow it; use nulls='mask' (a bool column "
        f"{name + VALID!r} beside it), nulls=[{name!r}], fill it in transform=, or filter such rows out with filters="
    )


def _quick_column(name: str, values: Any) -> tuple[Any, Any]:
    """Return what `_column` returns, with a short cut for arrays that torch can share."""
    if type(values) is np.ndarray and values.dtype in _SHARED and values.flags.carray:
        try:
            return torch.from_numpy(values), None
        except ValueError:  # NumPy calls an array of one value contiguous, whatever its strides are
            return _column(name, values)
    return _column(name, values)


def _column(name: str, values: Any) -> tuple[Any, Any]:
    """Return a column as a tensor or a list, and for a masked array the mask of its valid values."""
    if isinstance(values, torch.Tensor):
        return values, None
    if isinstance(values, np.ma.MaskedArray):
        plain, _ = _column(name, values.data)
        return plain, torch.from_numpy(~np.ma.getmaskarray(values))
    if isinstance(values, np.ndarray):
        nested = values.dtype.kind in "OUS"
        return [_nested(name, value) for value in values.tolist()] if nested else _tensor(name, values), None
    if isinstance(values, list | tuple):
        return [_nested(name, value) for value in values], _ragged_mask(values)
    return _column(name, np.asarray(values))


def _ragged_mask(rows: Iterable[Any]) -> list[Any] | None:
    """Return a mask for each row (None for a null row) if an element of any row is null, else None."""
    rows = list(rows)
    masked = any(isinstance(row, np.ma.MaskedArray) and np.ma.getmaskarray(row).any() for row in rows)
    return [None if row is None else torch.from_numpy(~np.ma.getmaskarray(row)) for row in rows] if masked else None


def _nested(name: str, value: Any) -> Any:
    """Return a value inside of a list, with all arrays in it as tensors."""
    if isinstance(value, np.ndarray):
        return _column(name, value)[0]
    if isinstance(value, list | tuple):
        inside = (_nested(name, one) for one in value)
        return tuple(inside) if isinstance(value, tuple) else list(inside)
    if isinstance(value, dict):
        return {key: _nested(name, one) for key, one in value.items()}
    return value


def _tensor(name: str, values: NDArray[Any]) -> Any:
    if values.dtype.kind in "mM":
        exact = nanoseconds(values)
        if exact is None:
            raise UnsupportedType(
                f"column {name!r} of {values.dtype} holds times that int64 nanoseconds cannot represent (years 1677 to "
                f"2262); {_TRANSFORM}"
            )
        values = exact
    try:
        return share(values)
    except TypeError:
        raise UnsupportedType(
            f"column {name!r} is of {values.dtype}, which torch has no dtype for; {_TRANSFORM}"
        ) from None


def share(values: NDArray[Any]) -> Any:
    """Return a tensor that shares memory with an array; TypeError if torch does not have its dtype.

    Copies an array that torch cannot use: read-only, byte-swapped, or with strides that are not multiples of an item.
    """
    if not values.dtype.isnative:
        values = values.astype(values.dtype.newbyteorder("="))
    fits = all(stride >= 0 and stride % values.itemsize == 0 for stride in values.strides)
    return torch.from_numpy(values if fits and values.flags.writeable else values.copy(order="C"))
