"""Decide the dtypes of a batch reader's columns when the dataset is opened, from the statistics in its footers.

NumPy's integers and booleans have no null. A column that has nulls in one row group gets one dtype for all batches, in
every process, whichever batches the nulls are in: float64 if every integer is exact in it, otherwise objects. Knows
nothing of batches: `_columns` and the frames of transforms apply what is decided here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.codecs.arrow_kinds import form_of
from penstock.codecs.base import has_cells
from penstock.codecs.row_values import EXACT_FLOAT64

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.schema import UnischemaField
    from penstock.source import Source

PROMOTED: dict[np.dtype[Any], np.dtype[Any]] = {
    np.dtype(np.uint16): np.dtype(np.int32),
    np.dtype(np.uint32): np.dtype(np.int64),
}
"""What Petastorm gives torch and TensorFlow instead of unsigned integers that these had no dtype for."""
_FLOAT64: np.dtype[Any] = np.dtype(np.float64)
_OBJECT: np.dtype[Any] = np.dtype(np.object_)


def batch_dtypes(source: Source, names: Iterable[str]) -> dict[str, np.dtype[Any]]:
    """Return the dtype (float64 or object) of every column whose own dtype cannot represent its nulls.

    These are integers, booleans and texts, and lists of them, whose elements get the dtype. float64 is for integers
    that are all within 2**53, according to the statistics; without statistics a column may hold nulls and any
    value. Reads footers that are not in memory any more.
    """
    fields = source.facts.unischema.fields
    kinds = {name: kind for name in names if (kind := _plain_dtype(fields[name])).kind in "biuU"}
    found: dict[str, np.dtype[Any]] = {}
    for name, kind in kinds.items():
        if _has_nulls(source, name):
            exact = kind.kind in "iu" and (kind.itemsize < 8 or _largest(source, name) <= EXACT_FLOAT64)
            found[name] = _FLOAT64 if exact else _OBJECT
    return found


def _has_nulls(source: Source, name: str) -> bool:
    """Return whether a column may hold nulls; for a list, whether its elements may be null.

    An empty or null list counts as a null element where footers do not distinguish them: without size statistics, which
    newer writers store.
    """
    facts = source.facts
    field = facts.arrow_schema.field(name)
    is_list = form_of(field.type) in ("list", "fixed_list")
    if name in facts.constants:
        return bool(facts.constants[name].null_count)
    if not field.nullable and not is_list:
        return False
    known = source.statistics(name, bounds=False)
    nulls = np.array([-1]) if known is None else known.element_nulls
    # Without statistics, a field that is declared not nullable is trusted.
    return bool((nulls > 0).any() or ((nulls < 0).any() and (facts.unischema.fields[name].nullable or is_list)))


def _largest(source: Source, name: str) -> float:
    """Return an upper bound of the absolute values of a column of 64-bit integers; infinity if it is unknown."""
    facts = source.facts
    if name in facts.constants:
        bounds = [value for value in facts.constants[name].to_pylist() if value is not None]
        return max(map(abs, bounds), default=0)
    known = source.statistics(name)
    if known is None or known.low is None or known.high is None:
        return float("inf")
    silent = np.array([not low.is_valid for low in known.low]) & (known.nulls != facts.chunk_rows)
    if silent.any():
        return float("inf")
    ends = [value for value in (*known.low.to_pylist(), *known.high.to_pylist()) if value is not None]
    return max(map(abs, ends), default=0)


def _plain_dtype(field: UnischemaField) -> np.dtype[Any]:
    """Return the dtype of a column's values, or of its lists' elements; object for encoded cells and what has none."""
    dtype = field.numpy_dtype
    has_none = has_cells(field.codec) or not isinstance(dtype, type) or not issubclass(dtype, np.generic)
    return _OBJECT if has_none else np.dtype(dtype)
