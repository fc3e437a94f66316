"""Filters written as tuples become one Arrow expression.

Called by `filters.normalise`. The meaning is that of pyarrow's own filters, nulls included; two things are added where
the column's type is known: decimals are brought to the column's scale (pyarrow 14 compares others wrongly), and
`in` gets the bounds of its values, by which older versions can rule out row groups too. Evaluates nothing.
"""

from __future__ import annotations

import operator
from decimal import Decimal
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.errors import ColumnNotFound, SchemaError, close_names

if TYPE_CHECKING:
    Expression = Any
    Term = tuple[str, str, Any]

_FORM = "filters are [(column, operator, value), ...], a list of such lists, or a pyarrow.compute expression"
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


def from_tuples(filters: Any, schema: pa.Schema | None) -> Expression | None:
    """Return tuples, or lists of them, as one expression; None where there are no terms.

    Raises:
        SchemaError: they are not of that form, or hold a value that cannot be compared.
        ColumnNotFound: `schema` is given and has no such column.
    """
    clauses = _clauses(filters)
    try:
        parts = [reduce(operator.and_, [_term(term, schema) for term in clause]) for clause in clauses]
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as exc:
        raise SchemaError(f"cannot make a filter of {clauses!r}: {exc}") from exc
    return reduce(operator.or_, parts) if parts else None


def _clauses(filters: Any) -> list[list[tuple[str, str, Any]]]:
    """Check the form of filters in tuples; return them as a list of lists."""
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


def _term(term: Term, schema: pa.Schema | None) -> Expression:
    import pyarrow.compute as pc

    name, sign, value = term
    if schema is not None and name not in schema.names:
        raise ColumnNotFound(f"no column {name!r} to filter by; {close_names(name, schema.names)}")
    kind = None if schema is None else schema.field(name).type
    field = pc.field(name)
    if sign in _COMPARE:
        return _COMPARE[sign](field, _typed(value, kind))
    values = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else list(value)
    inside = field.isin([_typed(item, kind) for item in values])
    return ~inside if sign == "not in" else _bounded(inside, field, values, kind)


def _typed(value: Any, kind: pa.DataType | None) -> Any:
    """Return NumPy values as Python's, which every pyarrow takes, and decimals at the column's scale."""
    if isinstance(value, np.generic) and value.dtype.kind not in "mM":
        return value.item()
    if isinstance(value, Decimal) and kind is not None and pa.types.is_decimal(kind):
        try:
            return pa.scalar(value, kind)
        except pa.ArrowInvalid as exc:
            raise SchemaError(f"{value} is no value of type {kind}; write it with at most {kind.scale} places") from exc
    return value


def _bounded(inside: Expression, field: Expression, values: list[Any], kind: pa.DataType | None) -> Expression:
    """Add the bounds of the values where that says the same: numbers and text, without nulls."""
    if kind is None:
        return inside
    types = {type(_typed(value, None)) for value in values}
    whole = types == {int} and pa.types.is_integer(kind)
    text = types == {str} and pa.types.is_string(kind)
    if not (whole or text):
        return inside
    return inside & (field >= _typed(min(values), kind)) & (field <= _typed(max(values), kind))
