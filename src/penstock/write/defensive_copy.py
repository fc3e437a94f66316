"""Copy values that wait for their batch, so that the caller may change them.

Copies what is mutable and returns what is not, at the cost of one look at its type. Knows neither fields nor batches.
"""

from __future__ import annotations

import copy
import datetime
import decimal
from typing import Any

import numpy as np

FIXED: frozenset[type] = frozenset(
    [
        *(type(None), bool, int, float, complex, str, bytes, range, decimal.Decimal),
        *(datetime.date, datetime.datetime, datetime.time, datetime.timedelta),
    ]
)
"""Immutable types; those of NumPy scalars are recognised by their base class."""


def own(value: Any) -> Any:
    """Return a value that nobody else can change: the same object if it is immutable, else a deep copy.

    >>> rows = [[1, 2], [3]]
    >>> mine = own(rows)
    >>> rows[0].append(9)
    >>> mine
    [[1, 2], [3]]
    """
    if is_fixed(value):
        return value
    if isinstance(value, np.ndarray):
        return copy.deepcopy(value) if value.dtype.hasobject else value.copy(order="K")
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if type(value) in (list, tuple):
        if set(map(type, value)) <= FIXED:
            return value[:]
        return type(value)([own(one) for one in value])
    if type(value) is dict:
        return {key: own(one) for key, one in value.items()}
    return value if type(value).__module__.startswith("pyarrow") else copy.deepcopy(value)


def is_fixed(value: Any) -> bool:
    """Tell whether a value is immutable."""
    return type(value) in FIXED or (isinstance(value, np.generic) and not isinstance(value, np.void))
