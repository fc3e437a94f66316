"""A filter that Arrow evaluates: tuples such as ("label", "=", 3), or a pyarrow expression, over whole columns.

`make_arrow_filter` checks names and types against a schema and returns an `ArrowFilter`, a predicate like any other, so
that it combines with them (`row_filter`). Nulls count as in pyarrow: a comparison with null is null, and null does not
pass. Leaves of structs are named by path. Reads no files.

Expressions over stored columns see the types in the files. On delivery rows are decoded already: `delivered_schema`
says which Arrow types the columns of a batch have, and `to_arrow` converts them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.codecs.arrow_kinds import Fixed, Objects, column_kind, form_of, natural_kind
from penstock.codecs.arrow_memory import without_views
from penstock.codecs.base import has_cells
from penstock.codecs.row_values import row_values
from penstock.dataset.filter_tuples import Term, parse_tuples, to_expression
from penstock.dataset.predicates import PredicateBase
from penstock.errors import ColumnNotFound, SchemaError, close_names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from penstock.schema.unischema import UnischemaField

    Expression = Any  # pyarrow.compute.Expression: pyarrow ships no types

_OPAQUE = pa.struct([])
"""Arrow type of delivered columns that cannot be compared, such as images: only whether rows are null is known."""


class ArrowFilter(PredicateBase):
    """Keeps the rows for which an Arrow expression is true. Picklable."""

    def __init__(self, expression: Expression, columns: pa.Schema, clauses: list[list[Term]] | None) -> None:
        self.expression = expression
        self.columns = columns
        """The columns it reads, with the types that they must have."""
        self.clauses = clauses
        """The tuples it was made from; None if the user gave an expression."""

    def get_fields(self) -> list[str]:
        """Return the names of its columns."""
        return list(self.columns.names)

    def do_include(self, values: Mapping[str, Any]) -> bool:
        """Return whether a row with these delivered values is kept."""
        cells = [values[name] for name in self.columns.names]
        columns = [np.array([cell]) if isinstance(cell, np.generic) else [cell] for cell in cells]
        arrays = [to_arrow(*pair) for pair in zip(columns, self.columns.types, strict=True)]
        return bool(self.mask(pa.Table.from_arrays(arrays, schema=self.columns), 1)[0])

    def mask(self, table: pa.Table, num_rows: int) -> NDArray[np.bool_]:
        """Return for each row of a table that has `columns` whether it passes; null does not.

        Raises:
            ArrowException: Arrow cannot evaluate the expression for these values, for instance cast one of them.
        """
        if not len(self.columns):  # a constant: Arrow forgets the number of rows of a table without columns
            table = pa.table({"": pa.nulls(num_rows)})
        column = evaluate_expression(self.expression, table).cast(pa.bool_())
        return np.asarray(column.fill_null(False).to_numpy(), np.bool_)

    def __repr__(self) -> str:
        return str(self.expression)


def make_arrow_filter(filters: Any, schema: pa.Schema) -> ArrowFilter | None:
    """Return tuples or an expression as a filter over columns of `schema`; None for no tuples, which filter nothing.

    Raises:
        SchemaError: filters of another form, or values that cannot be compared with their columns.
        ColumnNotFound: a column that `schema` does not have.
    """
    import pyarrow.compute as pc

    # Arrow cannot compare views of text and bytes (seen in 26).
    schema = pa.schema([field.with_type(without_views(field.type)) for field in schema])
    clauses = None if isinstance(filters, pc.Expression) else parse_tuples(filters)
    if clauses == []:
        return None
    expression = filters if clauses is None else to_expression(clauses, schema)
    return ArrowFilter(expression, _subset(schema, filter_columns(expression, schema)), clauses)


def filter_columns(expression: Expression, schema: pa.Schema) -> list[str]:
    """Return the columns that an expression needs, in the schema's order.

    Arrow does not tell, so it is found by trying: a column is needed if the expression does not work without it. Only
    names that occur in its text are tried.

    Raises:
        ColumnNotFound: it names a column that is not there.
        SchemaError: it does not fit the columns' types, or is not a condition.
    """
    try:
        kind = evaluate_expression(expression, schema.empty_table()).type
    except pa.ArrowException as exc:
        raise _misfit(expression, schema, str(exc)) from exc
    if not (pa.types.is_boolean(kind) or pa.types.is_null(kind)):
        raise SchemaError(f"the filter {expression} gives {kind} where a condition (bool) is wanted")
    text = str(expression)
    needed = [name for name in schema.names if name in text]
    for name in list(needed):
        fewer = [other for other in needed if other != name]
        try:
            evaluate_expression(expression, _subset(schema, fewer).empty_table())
        except pa.ArrowException:
            continue
        needed = fewer
    return needed


def _misfit(expression: Expression, schema: pa.Schema, reason: str) -> SchemaError:
    missing = re.search(r"No match for FieldRef\.Name\((.*?)\) in ", reason)
    if missing and missing[1] not in schema.names:
        return ColumnNotFound(f"no column {missing[1]!r} to filter by; {close_names(missing[1], schema.names)}")
    cure = "compare each column with values of its own type"
    if "Nested" in reason:
        cure = "leaves of structs are columns named by path, as in pc.field('s.a')"
    elif str(_OPAQUE) in reason:
        cure = "arrays and encoded cells are compared by predicates, such as in_lambda, or without exact=False"
    return SchemaError(f"the filter {expression} does not fit: {reason.splitlines()[0]}; {cure}")


def _subset(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    return pa.schema([schema.field(name) for name in names])


def evaluate_expression(expression: Expression, table: pa.Table) -> pa.ChunkedArray:
    """Return what an expression gives for each row of a table."""
    from pyarrow import acero

    # A third of what a dataset scanner takes, which counts where row groups are small. One thread keeps the order.
    rows = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
    keep = acero.Declaration("project", acero.ProjectNodeOptions([expression], ["keep"]))
    return acero.Declaration.from_sequence([rows, keep]).to_table(use_threads=False).column(0)


def delivered_schema(schema: pa.Schema, fields: Mapping[str, UnischemaField]) -> pa.Schema:
    """Return the columns of a dataset with the Arrow types of the values that a batch has."""
    return pa.schema([field.with_type(delivered_type(field.type, fields[field.name])) for field in schema])


def delivered_type(stored: pa.DataType, field: UnischemaField) -> pa.DataType:
    """Return the Arrow type of the values that a batch has, for a stored type and the field of a schema.

    The stored type itself if values are delivered as they are stored; a struct without fields for those that cannot be
    compared.
    """
    if has_cells(field.codec):
        return _OPAQUE
    if form_of(stored) in ("dictionary", "runs"):
        stored = stored.value_type
    try:
        natural = natural_kind(stored, field.name)
        kind = column_kind(stored, numpy_dtype=field.asked_dtype, name=field.name, shape=field.shape)
    except SchemaError:  # a type that cannot be read at all
        return _OPAQUE
    if form_of(stored) != "extension" and (kind == natural or (isinstance(kind, Objects) and kind.as_list)):
        return without_views(stored)
    if isinstance(kind, Fixed) and not kind.shape:
        return pa.from_numpy_dtype(kind.dtype)
    if kind == Objects(as_list=False, item=str):
        return pa.string()
    return pa.binary() if kind == Objects(as_list=False, item=bytes) else _OPAQUE


def to_arrow(column: NDArray[Any] | list[Any], kind: pa.DataType) -> pa.Array:
    """Return a column of a batch as Arrow, of a type that `delivered_schema` gives for it.

    Fixed-width columns are converted at once, the values of others one by one.
    """
    if isinstance(column, np.ndarray) and column.ndim == 1 and column.dtype.kind in "biufmM":
        data = np.ma.getdata(column)
        if pa.types.is_time(kind):
            data = data.astype(np.int32 if pa.types.is_time32(kind) else np.int64)
        return pa.array(data, kind, mask=np.ma.getmaskarray(column) if np.ma.is_masked(column) else None)
    values = row_values(column)
    if kind == _OPAQUE:
        return pa.array([None if value is None else {} for value in values], kind)
    return pa.array([value.tolist() if isinstance(value, np.ndarray) else value for value in values], kind)
