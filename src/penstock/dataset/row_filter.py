"""`RowFilter`: which rows to keep, made from tuples, a pyarrow expression or a predicate.

The one concept behind `Dataset.where`. It names the columns it reads, evaluates rows into a boolean mask, and has a
digest for states. `select_rows` applies it up front, to chunks; the engine calls it on decoded batches when rows are
left out on delivery (`where(..., exact=False)`). Both give the same answer.

A filter is a tree of predicates. Tuples and expressions (`ArrowFilter`) are evaluated by Arrow, `in_set` over text too;
other shipped predicates work on whole NumPy columns. Users' functions are called row by row with decoded values, or
with pandas Series if `batched`. Each fast path has a plain twin: the predicate's own `do_include`, which is also what a
subclass of a shipped predicate is evaluated by.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.codecs.row_values import null_rows, row_values, to_series
from penstock.dataset.arrow_filter import ArrowFilter, make_arrow_filter
from penstock.dataset.predicates import (
    PredicateBase,
    elements,
    in_intersection,
    in_lambda,
    in_negate,
    in_pseudorandom_split,
    in_reduce,
    in_set,
    is_predicate,
    single,
)
from penstock.dataset.row_views import BatchRows, ChunkRows, RowView
from penstock.dataset.value_keys import KeySet, key_of
from penstock.errors import ColumnNotFound, LoaderClosed, SchemaError, close_names
from penstock.halt import is_halted

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    Mask = NDArray[np.bool_]

_NUMBERS = "biufmM"
"""NumPy kinds that `KeySet.inside` looks up as whole arrays."""


@dataclass(frozen=True)
class RowFilter:
    """Which rows to keep. A value; pickles if the user's functions do."""

    predicate: PredicateBase
    batched: bool = False
    """Whether users' functions get pandas Series of many rows instead of the values of one."""

    @cached_property
    def fields(self) -> frozenset[str]:
        """Names of the columns it reads."""
        return frozenset(str(getattr(name, "name", name)) for name in self.predicate.get_fields())

    @cached_property
    def digest(self) -> str:
        """Digest of what is kept, for states. Of functions and expressions only the columns count."""
        return hashlib.blake2b(json.dumps(_meaning(self.predicate)).encode(), digest_size=16).hexdigest()

    def __and__(self, other: RowFilter) -> RowFilter:
        """Keep the rows that both keep."""
        return RowFilter(in_reduce([self.predicate, other.predicate], all), self.batched)

    def __call__(self, batch: Mapping[str, Any], num_rows: int) -> Mask:
        """Return which rows of a decoded batch to keep."""
        return self.mask(BatchRows(batch, num_rows))

    def mask(self, view: RowView) -> Mask:
        """Return which rows of a view to keep; calls nothing if there are no rows.

        Raises:
            ColumnNotFound: a batch lacks a column.
            SchemaError: the filter does not fit the values, or a function gave something other than truth values.
            DecodeError: a cell cannot be decoded.
        """
        return _mask_of(self.predicate, view, self.batched)


def make_row_filter(filters: Any, schema: pa.Schema, *, batched: bool = False) -> RowFilter | None:
    """Return tuples, an expression or a predicate as a filter over the columns of `schema`.

    None for None and for empty lists, which filter nothing.

    Raises:
        SchemaError: filters of another form, that do not fit the columns, or a predicate without fields.
        ColumnNotFound: a column that is not there.
    """
    if filters is None:
        return None
    if not is_predicate(filters):
        found = make_arrow_filter(filters, schema)
        return None if found is None else RowFilter(found, batched)
    made = RowFilter(filters, batched)
    for name in sorted(made.fields):
        if name not in schema.names:
            raise ColumnNotFound(f"no column {name!r} for the predicate {filters!r}; {close_names(name, schema.names)}")
    if not made.fields:
        raise SchemaError(f"the predicate {filters!r} names no fields; its get_fields() must give at least one")
    return made


def evaluate(predicate: PredicateBase, columns: Mapping[str, Any], num_rows: int, *, batched: bool) -> Mask:
    """Return for each row of a batch, a dict of columns as loaders give them, whether the predicate keeps it.

    With `batched`, users' functions get pandas Series (or a DataFrame) and return a boolean Series; otherwise they are
    called row by row.

    Raises:
        ColumnNotFound: the batch lacks a column that the predicate needs.
        SchemaError: the predicate returned something other than one truth value for each row.
    """
    return RowFilter(predicate, batched)(columns, num_rows)


def _mask_of(predicate: PredicateBase, view: RowView, batched: bool) -> Mask:
    if not view.num_rows:
        return np.zeros(0, np.bool_)
    return _MASKS.get(type(predicate), _by_do_include)(predicate, view, batched)


def _by_arrow(predicate: ArrowFilter, view: RowView, batched: bool) -> Mask:  # noqa: ARG001
    try:
        return predicate.mask(view.table(predicate.columns), view.num_rows)
    except pa.ArrowException as exc:
        raise SchemaError(
            f"the filter {predicate} cannot be evaluated{view.place}: {str(exc).splitlines()[0]}; compare each column "
            "with values of its own type, write the comparison as (column, operator, value), or cast the column, as in "
            "pc.field('x').cast('float64', safe=False)"
        ) from exc


def _rows(view: RowView, names: Iterable[str]) -> Iterator[tuple[Any, ...]]:
    """Yield the values of these columns row by row, until the work is stopped; then nobody needs the answer."""
    for row in zip(*[row_values(view.column(name)) for name in names], strict=True):
        if is_halted():
            raise LoaderClosed(
                "the loader was closed while its filter was evaluated; make another one from the dataset"
            )
        yield row


def _by_do_include(predicate: PredicateBase, view: RowView, batched: bool) -> Mask:
    names = list(dict.fromkeys(predicate.get_fields()))
    view.load(names)
    if batched:
        import pandas as pd

        columns = {name: to_series(view.column(name)) for name in names}
        return _checked(predicate.do_include(pd.DataFrame(columns, columns=names, copy=False)), view, predicate)
    kept = (bool(predicate.do_include(dict(zip(names, row, strict=True)))) for row in _rows(view, names))
    return np.fromiter(kept, np.bool_, view.num_rows)


def _by_lambda(predicate: in_lambda, view: RowView, batched: bool) -> Mask:
    names = predicate.get_fields()
    view.load(names)
    if batched:
        return _checked(predicate.call([to_series(view.column(name)) for name in names]), view, predicate)
    return np.fromiter((bool(predicate.call(row)) for row in _rows(view, names)), np.bool_, view.num_rows)


def _by_set(predicate: in_set, view: RowView, batched: bool) -> Mask:  # noqa: ARG001
    [name] = predicate.get_fields()
    keys = predicate._inclusion_values
    text = view.text(name) if isinstance(view, ChunkRows) else None
    # Arrow hashes the set in every call, while Python's set is made once: Arrow is faster unless the set is larger.
    if text is not None and len(keys.keys) <= len(text):
        return _text_in(keys, text)
    column = view.column(name)
    if isinstance(column, np.ndarray) and column.ndim > 1:
        single(column, predicate)
    if isinstance(column, np.ndarray) and column.dtype.kind in _NUMBERS:
        return _array_in(keys, column)
    return np.fromiter((single(value, predicate) in keys for value in row_values(column)), np.bool_, view.num_rows)


def _text_in(keys: KeySet, text: pa.Array) -> Mask:
    import pyarrow.compute as pc

    members = [key for key in keys.keys if isinstance(key, str) or key is None]
    found = pc.is_in(text, value_set=pa.array(members, text.type))
    return np.asarray(found.to_numpy(zero_copy_only=False), np.bool_)


def _array_in(keys: KeySet, column: NDArray[Any]) -> Mask:
    """Return which elements of an array of numbers or times are in the set, masked ones if null is."""
    inside = keys.inside(np.ma.getdata(column))
    if isinstance(column, np.ma.MaskedArray):
        inside[np.ma.getmaskarray(column)] = keys.has_null
    return inside


def _by_intersection(predicate: in_intersection, view: RowView, batched: bool) -> Mask:  # noqa: ARG001
    [name] = predicate.get_fields()
    column, keys = view.column(name), predicate._inclusion_values
    if isinstance(column, np.ndarray) and column.ndim > 1 and column.dtype.kind in _NUMBERS:
        inside = _array_in(keys, column).reshape(view.num_rows, -1)
        return np.asarray(inside.any(axis=1) & ~null_rows(column), np.bool_)
    values = row_values(column)
    dtypes = {value.dtype if type(value) is np.ndarray and value.ndim else None for value in values}
    if len(dtypes) == 1 and None not in dtypes and values[0].dtype.kind in _NUMBERS:  # all looked up at once
        hits = np.concatenate([[0], np.cumsum(keys.inside(np.concatenate([value.ravel() for value in values])))])
        ends = np.cumsum([value.size for value in values])
        return np.asarray(np.diff(hits[np.concatenate([[0], ends])]) > 0, np.bool_)
    kept = (any(element in keys for element in elements(value, predicate)) for value in values)
    return np.fromiter(kept, np.bool_, len(values))


def _by_split(predicate: in_pseudorandom_split, view: RowView, batched: bool) -> Mask:  # noqa: ARG001
    [name] = predicate.get_fields()
    column = view.column(name)
    if isinstance(column, np.ndarray) and column.ndim == 1 and column.dtype.kind in "iub":
        values = column.tolist()  # Python's numbers print the same in a quarter of the time; null comes as None
    else:
        values = row_values(column)
    known = {value: predicate.holds(value) for value in dict.fromkeys(map(str, values))}
    return np.fromiter((known[str(value)] for value in values), np.bool_, len(values))


def _by_reduction(predicate: in_reduce, view: RowView, batched: bool) -> Mask:
    parts = predicate._predicate_list
    if predicate.is_all and not batched:
        return _all_of(parts, view)
    view.load(predicate.get_fields())
    masks = [_mask_of(part, view, batched) for part in parts]
    if predicate.is_all or predicate.is_any:
        combine = np.logical_and if predicate.is_all else np.logical_or
        return np.asarray(combine.reduce(masks), np.bool_)
    if batched:
        return _checked(predicate._reduce_func([to_series(mask) for mask in masks]), view, predicate)
    # A function of the user's is called once for each combination of answers that occurs.
    combinations, which = np.unique(np.stack(masks, axis=1), axis=0, return_inverse=True)
    kept = np.array([bool(predicate._reduce_func(one)) for one in combinations.tolist()], np.bool_)
    return kept[which.reshape(-1)]


def _all_of(parts: list[PredicateBase], view: RowView) -> Mask:
    """Keep what every part keeps; parts with functions of users come last and see only the rows that are left.

    The columns of the other parts are read together; those of a function only if a row is left for it.
    """
    fast = [part for part in parts if _is_fast(part)]
    view.load(name for part in fast for name in part.get_fields())
    left = np.arange(view.num_rows)
    for part in [*fast, *(part for part in parts if not _is_fast(part))]:
        here = view if len(left) == view.num_rows else view.narrowed(left)
        left = left[_mask_of(part, here, batched=False)]
        if not len(left):
            break
    kept = np.zeros(view.num_rows, np.bool_)
    kept[left] = True
    return kept


def _is_fast(predicate: PredicateBase) -> bool:
    """Tell whether a predicate calls no function of a user."""
    if type(predicate) is in_negate:
        return _is_fast(predicate._predicate)
    if type(predicate) is in_reduce:
        return (predicate.is_all or predicate.is_any) and all(map(_is_fast, predicate._predicate_list))
    return type(predicate) in (ArrowFilter, in_set, in_intersection, in_pseudorandom_split)


_MASKS: dict[type, Callable[[Any, RowView, bool], Mask]] = {
    ArrowFilter: _by_arrow,
    in_set: _by_set,
    in_intersection: _by_intersection,
    in_lambda: _by_lambda,
    in_negate: lambda predicate, view, batched: ~_mask_of(predicate._predicate, view, batched),
    in_pseudorandom_split: _by_split,
    in_reduce: _by_reduction,
}


def _checked(answer: Any, view: RowView, predicate: PredicateBase) -> Mask:
    """Return what a user's function answered for a batch as a mask; null counts as False.

    Raises:
        SchemaError: the answer is not one truth value for each row.
    """
    found = np.asarray(answer)
    wrong = None
    if found.shape != (view.num_rows,):
        wrong = f"{type(answer).__name__} of shape {found.shape}"
    elif found.dtype == object:
        # Any comparison with pandas' NA gives NA again.
        plain = [None if type(one).__name__ == "NAType" else one for one in found]
        known = np.array([isinstance(one, bool | np.bool_) or one is None or one != one for one in plain])
        if not known.all():
            wrong = f"{type(answer).__name__} with {found[~known][0]!r:.60} in it"
        found = np.array([isinstance(one, bool | np.bool_) and bool(one) for one in found], np.bool_)
    elif found.dtype != np.bool_:
        wrong = f"{type(answer).__name__} of {found.dtype}"
    if wrong is not None:
        raise SchemaError(
            f"{predicate!r} must give one bool for each of the {view.num_rows} rows, as a Series or array; it gave "
            f"{wrong}. In a batch reader its function gets whole columns: write x == 1 or x.isin([...]), not x in [...]"
        )
    return found


def _meaning(predicate: Any) -> list[Any]:
    """Return what a predicate means as JSON, the same for every way to write it. Changing this breaks resumed runs."""
    kind = type(predicate)
    if kind is ArrowFilter and predicate.clauses is not None:
        clauses = [sorted([name, *_comparison(sign, value)] for name, sign, value in one) for one in predicate.clauses]
        return ["tuples", sorted(clauses)]
    if kind in (in_set, in_intersection):
        return [kind.__name__, predicate._predicate_field, sorted(map(_key_text, predicate._inclusion_values.keys))]
    if kind is in_pseudorandom_split:
        shares = [float(share) for share in predicate._fraction_list]
        return [kind.__name__, predicate._predicate_field, shares, int(predicate._subset_index)]
    if kind is in_negate:
        return [kind.__name__, _meaning(predicate._predicate)]
    if kind is in_reduce:
        parts = [_meaning(part) for part in predicate._predicate_list]
        if predicate.is_all or predicate.is_any:
            return [kind.__name__, "all" if predicate.is_all else "any", sorted(parts, key=json.dumps)]
        return [kind.__name__, "function", parts]
    return ["function", sorted(str(getattr(name, "name", name)) for name in predicate.get_fields())]


def _comparison(sign: str, value: Any) -> list[Any]:
    if sign in ("in", "not in"):
        return [sign, *sorted({_key_text(key_of(one)) for one in value})]
    return ["=" if sign == "==" else sign, _key_text(key_of(value))]


def _key_text(key: Hashable) -> str:
    """Return a key of a set as text: equal numbers of all types give one text, as they are one key."""
    if isinstance(key, int | float | Decimal):
        return f"number {Fraction(key) if math.isfinite(key) else float(key)}"
    plain = isinstance(key, str | bytes | tuple) or key is None
    return f"{type(key).__name__} {key!r}" if plain else type(key).__name__  # the repr of others may hold an address
