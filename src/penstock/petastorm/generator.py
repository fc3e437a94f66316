"""Random rows that fit a schema, for tests and mock readers.

Takes a Unischema, gives dicts of values as its codecs encode them. Writes nothing and does not touch NumPy's global
generator.
"""

from __future__ import annotations

import math
import string
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.codecs.arrow_kinds import scalar_dtype
from penstock.codecs.base import storage_type
from penstock.codecs.scalar import default_storage_type

if TYPE_CHECKING:
    from penstock.schema import Unischema, UnischemaField

__all__ = ["generate_datapoint"]

FREE_SIZE = 13
"""Size of a dimension that the schema leaves free, as Petastorm has it."""
_LETTERS = list(string.ascii_letters)


def generate_datapoint(schema: Unischema, *, rng: np.random.Generator | None = None) -> dict[str, Any]:
    """Return one row of random values, none of them null, in schema order.

    Scalars have the class that their field names and fit the column they are stored in; arrays have the field's dtype
    and shape, with 13 for free dimensions. A field without a dtype gets a float. A generator makes rows repeatable.
    """
    generator = rng if rng is not None else np.random.default_rng()
    return {name: _value(field, generator) for name, field in schema.fields.items()}


def _value(field: UnischemaField, rng: np.random.Generator) -> Any:
    if field.numpy_dtype is Decimal:
        stored = _stored(field)
        return Decimal(int(rng.integers(0, 10 ** min(stored.precision, 9)))).scaleb(-stored.scale)
    shape = tuple(FREE_SIZE if size is None else size for size in field.shape)
    if shape == () and field.numpy_dtype is not None:
        return _scalar(field, rng)
    return _array(np.dtype(field.numpy_dtype or np.float64), shape, rng)[()]


def _stored(field: UnischemaField) -> Any:
    codec = field.codec
    return default_storage_type(field.numpy_dtype, name=field.name) if codec is None else storage_type(codec, field)


def _scalar(field: UnischemaField, rng: np.random.Generator) -> Any:
    """Return a scalar that its column holds: an unsigned field may be stored in a signed column of its own size."""
    dtype = np.dtype(field.numpy_dtype)
    if dtype.kind in "iu" and pa.types.is_integer(stored := _stored(field)):
        limits = [np.iinfo(dtype), np.iinfo(scalar_dtype(stored))]
        low, high = max(int(limit.min) for limit in limits), min(int(limit.max) for limit in limits)
        return dtype.type(rng.integers(low, high, dtype=dtype.type, endpoint=True))
    if dtype.kind == "M" and pa.types.is_date(_stored(field)):
        return _array(dtype, (), rng).astype("M8[D]")[()]
    return _array(dtype, (), rng)[()]


def _array(dtype: np.dtype[Any], shape: tuple[int, ...], rng: np.random.Generator) -> Any:
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return np.asarray(rng.integers(limits.min, limits.max, shape, dtype, endpoint=True))
    if dtype.kind == "b":
        return np.asarray(rng.integers(0, 2, shape)).astype(dtype)
    if dtype.kind in "Mm":
        return np.asarray(rng.integers(0, 20_000, shape)).astype(f"{dtype.kind}8[D]").astype(f"{dtype.kind}8[us]")
    if dtype.kind in "SUO":
        words = ["".join(rng.choice(_LETTERS, 8)) for _ in range(math.prod(shape))]
        return np.array(words, dtype.kind).reshape(shape)
    real = np.asarray(rng.random(shape))
    return (real + 1j * np.asarray(rng.random(shape)) if dtype.kind == "c" else real).astype(dtype)
