"""What the columns of a batch become in JAX: arrays in a dtype that it keeps, masks of nulls, and the rest as it is.

`Convert` is called with every batch, after the engine and before the devices. Numbers are never changed silently: JAX
would wrap what does not fit, here it is an error. What JAX has no dtype for stays on the host (docs/types.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import jax
import numpy as np

from penstock.codecs.arrow_fixed import fill_value
from penstock.errors import SchemaError
from penstock.jax._masks import VALID, refuse_missing

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.jax._layout import Layout
    from penstock.jax._masks import Masks

    Batch = dict[str, Any]

_HOST_KINDS = frozenset("mMOSUT")
"""Kinds of NumPy dtypes that JAX has no form for; kind V is also that of bfloat16, which it has."""


@dataclass(frozen=True, slots=True)
class Convert:
    """Turns a NumPy batch into one of JAX."""

    layout: Layout
    masks: Masks

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch on the device, columns in the same order, each mask behind its column."""
        self._check_names(batch)
        columns: Batch = {}
        owners: dict[str, str] = {}
        for name, values in batch.items():
            columns[name], valid = self._split(name, values)
            if valid is None:
                continue
            mask = f"{name}{VALID}"
            if mask in batch:
                raise SchemaError(f"the batch has a column {mask!r} already, where the mask of {name!r} would go")
            columns[mask], owners[mask] = valid, name
        arrays = {name: values for name, values in columns.items() if _fits_device(values)}
        if arrays:
            self.layout.check_rows(len(next(iter(arrays.values()))))
        placed = self.layout.put(arrays, owners)
        return {name: placed.get(name, values) for name, values in columns.items()}

    def _check_names(self, batch: Batch) -> None:
        """Refuse names that a transform does not give; others were looked at when the loader was made."""
        if not self.masks.wanted <= batch.keys():
            refuse_missing("nulls", self.masks.wanted, batch)
        if not self.layout.named <= batch.keys():
            refuse_missing("sharding", self.layout.named, batch)

    def _split(self, name: str, values: Any) -> tuple[Any, NDArray[np.bool_] | None]:
        """Return a column without its nulls, and its mask."""
        masked = isinstance(values, np.ma.MaskedArray)
        if not masked and not (isinstance(values, np.ndarray) and values.dtype.kind != "O"):
            return values, self._host_mask(name, values)
        valid: NDArray[np.bool_] | None = None
        if masked:
            valid, values = ~np.ma.getmaskarray(values), _filled(values)
        elif name in self.masks.always:
            valid = np.ones(values.shape, np.bool_)
        if valid is not None and self.masks.refuse and name not in self.masks.always:
            if not valid.all():
                raise self._null(name)
            valid = None
        return narrowed(name, values) if _fits_device(values) else values, valid

    def _host_mask(self, name: str, values: Any) -> NDArray[np.bool_] | None:
        """Return which values among texts, lists and other objects are there, where that was asked for."""
        if self.masks.same:  # no part of any program
            return None
        if name in self.masks.always:
            flat = values.ravel() if isinstance(values, np.ndarray) else values
            valid = np.fromiter((value is not None for value in flat), np.bool_, len(flat))
            return valid.reshape(values.shape) if isinstance(values, np.ndarray) else valid
        if self.masks.refuse and _holds_null(values):
            raise self._null(name)
        return None

    def _null(self, name: str) -> SchemaError:
        if self.masks.same:
            return SchemaError(
                f"column {name!r} has nulls that no field or footer tells of, and arrays over several processes need "
                f"the same columns in every process; name it in nulls=[...], or fill its nulls in transform="
            )
        return SchemaError(
            f"column {name!r} has nulls; name it in nulls=[...], use nulls='mask', or leave out such rows by filters="
        )


def _filled(values: Any) -> NDArray[Any]:
    """Return a masked array with its fill below the mask: ours where it has none of its own, not NumPy's 999999."""
    own = getattr(values, "_fill_value", None) is not None or values.dtype.kind == "O"
    return cast("NDArray[Any]", values.filled() if own else values.filled(fill_value(values.dtype)))


def _holds_null(values: Any) -> bool:
    """Tell whether there is a null among values, at any depth."""
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        return True
    if isinstance(values, np.ndarray):
        return values.dtype.kind == "O" and any(map(_holds_null, values.ravel().tolist()))
    if isinstance(values, list | tuple):
        return any(map(_holds_null, values))
    if isinstance(values, dict):
        return any(map(_holds_null, values.values()))
    return values is None


def _fits_device(values: Any) -> bool:
    is_array = isinstance(values, np.ndarray)
    return is_array and values.dtype.kind not in _HOST_KINDS and values.dtype.type is not np.void


def narrowed(name: str, values: NDArray[Any]) -> NDArray[Any]:
    """Return values in a dtype that JAX keeps: 32 bits where it has no 64, and an error where a value does not fit.

    JAX itself would wrap: without 64-bit numbers, 2**40 arrives as 0. It also has no other order of bytes than its own.
    """
    if not values.dtype.isnative:
        values = values.astype(values.dtype.newbyteorder("="))
    if values.dtype.kind not in "iufc" or values.dtype.itemsize < 8 or jax.config.jax_enable_x64:
        return values
    if values.dtype.kind == "c" and values.dtype.itemsize == 8:
        return values
    to: np.dtype[Any] = np.dtype({"i": np.int32, "u": np.uint32, "f": np.float32, "c": np.complex64}[values.dtype.kind])
    if to.kind in "iu":
        limits = np.iinfo(to)
        fits = not values.size or (values.min() >= limits.min and values.max() <= limits.max)
        narrow = values.astype(to) if fits else values
    else:
        with np.errstate(over="ignore"):
            narrow = values.astype(to)
        fits = bool((np.isinf(narrow) <= np.isinf(values)).all())
    if not fits:
        raise SchemaError(
            f"column {name!r} has {values.dtype} values that do not fit {to}, and JAX has no 64-bit numbers here; set "
            "jax.config.update('jax_enable_x64', True), leave the column out, or change it by transform="
        )
    return narrow
