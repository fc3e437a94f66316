"""Filters written as tuples become one Arrow expression.

Called by `arrow_filter`. The meaning is that of pyarrow's own filters, nulls included, but numbers and times are
compared exactly: pyarrow would cast the column (and fail on int64 > 0.5 for values above 2**24, or uint64 > 5 for
values above 2**63), so the value is moved to the column's type instead. `in` also gets the bounds of its values, which
lets older pyarrow versions rule out row groups. Evaluates nothing.
"""

from __future__ import annotations

import datetime
import math
import operator
from decimal import Decimal
from fractions import Fraction
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.codecs.arrow_kinds import scalar_dtype
from penstock.dataset.unify_types import decoded
from penstock.dataset.value_keys import NS_OF, key_of
from penstock.errors import ColumnNotFound, SchemaError, close_names

if TYPE_CHECKING:
    Expression = Any
Term = tuple[str, str, Any]

_FORM = (
    "filters are [(column, operator, value), ...], a list of such lists, a pyarrow.compute expression, or a predicate "
    "(penstock.predicates)"
)
_COMPARE = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_OPERATORS = (*_COMPARE, "in", "not in")


def parse_tuples(filters: Any) -> list[list[Term]]:
    """Check the form of filters in tuples; return them as a list (or) of lists (and) of terms, empty ones left out.

    Raises:
        SchemaError: they are not of that form.
    """
    if isinstance(filters, (str, bytes)) or not hasattr(filters, "__iter__"):
        raise SchemaError(f"{_FORM}; got {filters!r}")
    items = list(filters)
    if items and isinstance(items[0], str):  # one bare tuple
        items = [tuple(items)]
    nested = [list(item) for item in items if not _is_term(item) and isinstance(item, (list, tuple))]
    if nested and len(nested) < len(items):
        raise SchemaError(f"{_FORM}; got terms and lists of terms side by side: {filters!r}")
    clauses = nested if nested else ([items] if items else [])
    for term in (term for clause in clauses for term in clause):
        _check_term(term)
    return [clause for clause in clauses if clause]


def _is_term(item: Any) -> bool:
    return isinstance(item, (list, tuple)) and len(item) == 3 and isinstance(item[0], str)


def _check_term(term: Any) -> None:
    if not _is_term(term):
        raise SchemaError(f"{_FORM}; got the term {term!r}")
    if term[1] not in _OPERATORS:
        raise SchemaError(f"unknown operator {term[1]!r} in {term!r}; there are: {', '.join(_OPERATORS)}")
    if term[1] in ("in", "not in") and (isinstance(term[2], (str, bytes)) or not hasattr(term[2], "__iter__")):
        raise SchemaError(f"{term[1]!r} wants a list, set or tuple of values; got {term[2]!r} in {term!r}")
    if term[2] is None:
        raise SchemaError(
            f"{term!r} keeps no row: nothing compares with null; to ask for nulls pass the expression "
            f"pyarrow.compute.field({term[0]!r}).is_null(), or ~ of it"
        )


def to_expression(clauses: list[list[Term]], schema: pa.Schema) -> Expression:
    """Return parsed tuples, of which there is at least one, as one expression over the columns of `schema`.

    Raises:
        SchemaError: a value cannot be compared.
        ColumnNotFound: `schema` has no such column.
    """
    try:
        return reduce(operator.or_, [reduce(operator.and_, [_term(t, schema) for t in clause]) for clause in clauses])
    except (pa.ArrowException, ArithmeticError, TypeError) as exc:
        raise SchemaError(f"cannot make a filter of {clauses!r}: {exc}") from exc


def _term(term: Term, schema: pa.Schema) -> Expression:
    import pyarrow.compute as pc

    name, sign, value = term
    if name not in schema.names:
        raise ColumnNotFound(f"no column {name!r} to filter by; {close_names(name, schema.names)}")
    kind = decoded(schema.field(name).type)
    field = pc.field(name)
    if sign in _COMPARE:
        return _compared(field, sign, _plain(value), kind)
    given = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else list(value)
    values = _members([_plain(one) for one in given], kind)
    inside = field.isin(values)
    return ~inside if sign == "not in" else _bounded(inside, field, values, kind)


def _plain(value: Any) -> Any:
    """Return NumPy values as types that every pyarrow takes: Python's own, times in seconds or finer."""
    if not isinstance(value, (np.datetime64, np.timedelta64)):
        return value.item() if isinstance(value, np.generic) else value
    coarse = np.datetime_data(value.dtype)[0] in ("Y", "M", "W", "D", "h", "m")
    return value.astype(f"{value.dtype.kind}8[s]") if coarse else value


def _compared(field: Expression, sign: str, value: Any, kind: pa.DataType) -> Expression:
    """Return the comparison of a column with a value, as one with a value of the column's own type where possible.

    `near` is a value of the column's type with no other between it and the value, so for an integer column x > 0.5 is
    x > 0, and for uint64 x > -1 is x >= 0.
    """
    exact = _exact(value, kind)
    if exact is None:
        return _COMPARE[sign](field, value)
    wanted, near, stored = exact
    scalar = pa.scalar(stored, pa.float64() if pa.types.is_floating(kind) else kind)
    if wanted == near:
        return _COMPARE[sign](field, scalar)
    if sign == "!=":
        return field.is_valid()
    if sign in ("=", "==") or wanted != wanted:
        return field.isin(pa.array([], kind))
    if sign in ("<", "<="):
        return field <= scalar if near < wanted else field < scalar
    return field > scalar if near < wanted else field >= scalar


def _exact(value: Any, kind: pa.DataType) -> tuple[Any, Any, Any] | None:
    """Return a value and the nearest one of a column's type, as numbers that compare exactly, and the latter as stored.

    None unless value and type are both numbers or both times; pyarrow decides what others mean.
    """
    if pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        return _exact_time(value, kind)
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        return None
    if pa.types.is_integer(kind):
        limits = np.iinfo(scalar_dtype(kind))
        near = _floor(value, int(limits.min), int(limits.max))
        return value, near, near
    if pa.types.is_float32(kind) or pa.types.is_float64(kind):
        real = _nearest_float(value, scalar_dtype(kind))
        return value, real, real
    if pa.types.is_decimal(kind):
        most = 10**kind.precision - 1
        step = Fraction(10) ** -kind.scale
        exact = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)  # 0.1 means one tenth here
        wanted = Fraction(exact) / step if exact.is_finite() else value
        near = _floor(wanted, -most, most)
        digits = tuple(map(int, str(abs(near))))
        return wanted, near, Decimal((int(near < 0), digits, -kind.scale))
    return None


def _floor(value: Any, least: int, most: int) -> int:
    """Return the largest integer that is not above a number, within bounds; the least one for NaN."""
    if not value >= least:
        return least
    return most if value > most else math.floor(value)


def _nearest_float(value: Any, dtype: np.dtype[Any]) -> float:
    try:
        with np.errstate(over="ignore"):
            return float(dtype.type(float(value)))
    except OverflowError:  # an integer beyond all floats
        return math.inf if value > 0 else -math.inf


def _exact_time(value: Any, kind: pa.DataType) -> tuple[int, int, Any] | None:
    if not isinstance(value, (datetime.date, np.datetime64)):
        return None
    has_zone = getattr(value, "tzinfo", None) is not None
    if pa.types.is_timestamp(kind) and has_zone != (kind.tz is not None):
        return None
    key = key_of(value)
    if not isinstance(key, tuple) or (pa.types.is_date32(kind) and has_zone):
        return None  # NaT, or a day of which zone?
    unit, bits = ("D", 32) if pa.types.is_date32(kind) else (kind.unit, 64)
    near = _floor(Fraction(key[1], NS_OF[unit]), 1 - (1 << bits - 1), (1 << bits - 1) - 1)
    return key[1], near * NS_OF[unit], near


def _members(values: list[Any], kind: pa.DataType) -> Any:
    """Return the values of `in` that a column of numbers or times can hold, in its type; for others as they are."""
    exact = [None if value is None else _exact(value, kind) for value in values]
    if any((one is None) != (value is None) for one, value in zip(exact, values, strict=True)):
        return values
    floats = pa.types.is_floating(kind)
    held = [one for one in exact if one is None or one[0] == one[1] or (one[0] != one[0] and floats)]
    found = [None if one is None else one[2] for one in held]
    if floats:  # to pyarrow's `is_in` 0.0 and -0.0 are two values
        found += [-value for value in found if value == 0]
    return pa.array(found, kind)


def _bounded(inside: Expression, field: Expression, values: Any, kind: pa.DataType) -> Expression:
    """Add the bounds of the values where that means the same: whole numbers and text, without nulls."""
    if not len(values):
        return inside
    if pa.types.is_integer(kind) and isinstance(values, pa.Array) and not values.null_count:
        numbers = values.to_numpy()
        return inside & (field >= pa.scalar(numbers.min(), kind)) & (field <= pa.scalar(numbers.max(), kind))
    if pa.types.is_string(kind) and set(map(type, values)) == {str}:
        return inside & (field >= min(values)) & (field <= max(values))
    return inside
