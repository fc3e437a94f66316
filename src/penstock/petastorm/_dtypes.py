"""Decide the dtypes of a batch reader's columns when the dataset is opened, from the statistics in its footers.

NumPy's integers and booleans have no null. A column that has nulls in one row group gets one dtype for all batches, in
every process, whichever batches the nulls are in: float64 if every integer is exact in it, otherwise objects. Knows
nothing of batches: `_columns` and the frames of transforms apply what is decided here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.codecs.base import has_cells
from penstock.codecs.narrowing import EXACT_FLOAT64
from penstock.dataset.nullable import held_values

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.dataset.parquet import ParquetSource
    from penstock.schema import UnischemaField

_FLOAT64: np.dtype[Any] = np.dtype(np.float64)
_OBJECT: np.dtype[Any] = np.dtype(np.object_)


def batch_dtypes(source: ParquetSource, names: Iterable[str]) -> dict[str, np.dtype[Any]]:
    """Return the dtype, float64 or object, of the columns that have nulls and no room for them; others are left out.

    These are integers, booleans and texts, and lists of them, whose elements get the dtype. float64 is for integers
    that are all within 2**53, as the statistics say; where statistics are missing, a column may hold nulls and any
    value. Reads footers that are not in memory any more.
    """
    kinds = {name: kind for name in names if (kind := _plain_dtype(source.unischema.fields[name])).kind in "biuU"}
    found: dict[str, np.dtype[Any]] = {}
    for name, held in held_values(source, kinds).items():
        if not held.has_nulls:
            continue
        known = kinds[name].itemsize < 8 or (held.largest is not None and held.largest <= EXACT_FLOAT64)
        found[name] = _FLOAT64 if kinds[name].kind in "iu" and known else _OBJECT
    return found


def _plain_dtype(field: UnischemaField) -> np.dtype[Any]:
    """Return the dtype of a column's values, or of its lists' elements; object for encoded cells and what has none."""
    dtype = field.numpy_dtype
    has_none = has_cells(field.codec) or not isinstance(dtype, type) or not issubclass(dtype, np.generic)
    return _OBJECT if has_none else np.dtype(dtype)
