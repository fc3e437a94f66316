"""Evaluate a predicate over many rows at once: the fast twins of `do_include`.

Takes a view of rows (`predicates_view`), gives one truth value for each. Shipped predicates work on whole columns;
functions of the user's are called row by row, or once with pandas Series where the caller works in batches. Only the
shipped classes themselves are taken apart: a subclass is asked through its `do_include`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.codecs.row_values import null_rows, row_values, to_series
from penstock.dataset.predicates import (
    PredicateBase,
    elements,
    in_intersection,
    in_lambda,
    in_negate,
    in_pseudorandom_split,
    in_reduce,
    in_set,
    single,
)
from penstock.dataset.predicates_view import BatchView
from penstock.errors import SchemaError
from penstock.halt import is_halted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from penstock.dataset.predicates_keys import KeySet
    from penstock.dataset.predicates_view import View

    Mask = NDArray[np.bool_]

_PLAIN = {str, bytes, type(None)}


def evaluate(predicate: PredicateBase, columns: Mapping[str, Any], num_rows: int, *, batched: bool) -> Mask:
    """Return for each row of a batch, a dict of columns as loaders give them, whether the predicate keeps it.

    With `batched`, functions of the user's get pandas Series (or a DataFrame) and give a boolean Series; else they are
    called row by row.

    Raises:
        ColumnNotFound: the batch lacks a column that the predicate needs.
        SchemaError: the predicate gave something other than one truth value for each row.
    """
    return mask_of(predicate, BatchView(columns, num_rows), batched=batched)


def mask_of(predicate: PredicateBase, view: View, *, batched: bool) -> Mask:
    """Return for each row of a view whether the predicate keeps it; no rows give an empty mask and call nothing."""
    if not view.num_rows:
        return np.zeros(0, np.bool_)
    maker = _MASKS.get(type(predicate), _by_do_include)
    return maker(predicate, view, batched)


def _until_halted(rows: Iterable[Any]) -> Iterator[Any]:
    """Give rows until the work is stopped; then nobody looks at the answer any more."""
    for row in rows:
        if is_halted():
            raise SchemaError("the predicate was stopped")
        yield row


def _by_do_include(predicate: PredicateBase, view: View, batched: bool) -> Mask:
    names = list(dict.fromkeys(predicate.get_fields()))
    view.load(names)
    if batched:
        return checked(predicate.do_include(view.frame(names)), view.num_rows, predicate)
    rows = _until_halted(zip(*[view.values(name) for name in names], strict=True))
    kept = (bool(predicate.do_include(dict(zip(names, row, strict=True)))) for row in rows)
    return np.fromiter(kept, np.bool_, view.num_rows)


def _by_set(predicate: in_set, view: View, batched: bool) -> Mask:  # noqa: ARG001
    [name] = predicate.get_fields()
    column, keys = view.column(name), predicate._inclusion_values
    if isinstance(column, np.ndarray) and column.ndim > 1:
        single(column, predicate)
    if isinstance(column, np.ndarray) and column.dtype.kind in "biufmM":
        kept = keys.inside(np.ma.getdata(column))
        if isinstance(column, np.ma.MaskedArray):
            kept[np.ma.getmaskarray(column)] = keys.has_null
        return kept
    values = row_values(column)
    if set(map(type, values)) <= _PLAIN:
        return np.fromiter(map(keys.keys.__contains__, values), np.bool_, len(values))
    return np.fromiter((single(value, predicate) in keys for value in values), np.bool_, len(values))


def _by_intersection(predicate: in_intersection, view: View, batched: bool) -> Mask:  # noqa: ARG001
    [name] = predicate.get_fields()
    column, keys = view.column(name), predicate._inclusion_values
    if isinstance(column, np.ndarray) and column.ndim > 1 and column.dtype.kind in "biufmM":
        inside = _elements_inside(column, keys).reshape(view.num_rows, -1)
        return np.asarray(inside.any(axis=1) & ~null_rows(column), np.bool_)
    values = row_values(column)
    if values and all(_is_plain_array(value) for value in values) and len({value.dtype for value in values}) == 1:
        flat = np.concatenate([value.ravel() for value in values])
        hits = np.concatenate([[0], np.cumsum(keys.inside(flat))])
        ends = np.cumsum([value.size for value in values])
        return np.asarray(np.diff(hits[np.concatenate([[0], ends])]) > 0, np.bool_)
    kept = (any(element in keys for element in elements(value, predicate)) for value in values)
    return np.fromiter(kept, np.bool_, len(values))


def _elements_inside(column: NDArray[Any], keys: KeySet) -> Mask:
    inside = keys.inside(np.ma.getdata(column))
    if isinstance(column, np.ma.MaskedArray):
        inside[np.ma.getmaskarray(column)] = keys.has_null
    return inside


def _is_plain_array(value: Any) -> bool:
    array = isinstance(value, np.ndarray) and not isinstance(value, np.ma.MaskedArray)
    return array and value.ndim > 0 and value.dtype.kind in "biufmM"


def _by_lambda(predicate: in_lambda, view: View, batched: bool) -> Mask:
    names = predicate.get_fields()
    view.load(names)
    if batched:
        return checked(predicate.call([view.series(name) for name in names]), view.num_rows, predicate)
    rows = _until_halted(zip(*[view.values(name) for name in names], strict=True))
    return np.fromiter((bool(predicate.call(row)) for row in rows), np.bool_, view.num_rows)


def _by_negation(predicate: in_negate, view: View, batched: bool) -> Mask:
    return ~mask_of(predicate._predicate, view, batched=batched)


def _by_split(predicate: in_pseudorandom_split, view: View, batched: bool) -> Mask:  # noqa: ARG001
    [name] = predicate.get_fields()
    column = view.column(name)
    if isinstance(column, np.ndarray) and column.ndim == 1 and column.dtype.kind in "iub":
        values = column.tolist()  # Python's print the same, in a quarter of the time; null comes as None
    else:
        values = row_values(column)
    known = {value: predicate.holds(value) for value in dict.fromkeys(map(str, values))}
    return np.fromiter((known[str(value)] for value in values), np.bool_, len(values))


def _by_reduction(predicate: in_reduce, view: View, batched: bool) -> Mask:
    parts = predicate._predicate_list
    if predicate.is_all and not batched:
        return _all_of(parts, view)
    view.load(predicate.get_fields())
    masks = [mask_of(part, view, batched=batched) for part in parts]
    if predicate.is_all or predicate.is_any:
        combine = np.logical_and if predicate.is_all else np.logical_or
        return np.asarray(combine.reduce(masks), np.bool_)
    if batched:
        series = [to_series(mask) for mask in masks]
        return checked(predicate._reduce_func(series), view.num_rows, predicate)
    return _by_combination(predicate._reduce_func, np.stack(masks, axis=1))


def _all_of(parts: list[PredicateBase], view: View) -> Mask:
    """Keep what every part keeps, columns first: functions of the user's see, and cells are decoded for, what is left.

    The columns of the fast parts are read in one go; those of each other part only if a row is left for it.
    """
    fast = [part for part in parts if is_fast(part)]
    view.load(name for part in fast for name in part.get_fields())
    left = np.arange(view.num_rows)
    for part in [*fast, *(part for part in parts if not is_fast(part))]:
        here = view if len(left) == view.num_rows else view.narrowed(left)
        left = left[mask_of(part, here, batched=False)]
        if not len(left):
            break
    kept = np.zeros(view.num_rows, np.bool_)
    kept[left] = True
    return kept


def is_fast(predicate: PredicateBase) -> bool:
    """Tell whether a predicate calls no function of the user's."""
    if type(predicate) is in_negate:
        return is_fast(predicate._predicate)
    if type(predicate) is in_reduce:
        return (predicate.is_all or predicate.is_any) and all(map(is_fast, predicate._predicate_list))
    return type(predicate) in (in_set, in_intersection, in_pseudorandom_split)


def _by_combination(reduce_func: Callable[[list[bool]], Any], answers: Mask) -> Mask:
    """Call a function of the user's once for each combination of answers that occurs."""
    combinations, which = np.unique(answers, axis=0, return_inverse=True)
    kept = np.array([bool(reduce_func(combination)) for combination in combinations.tolist()], np.bool_)
    return kept[which.reshape(-1)]


_MASKS: dict[type, Callable[[Any, View, bool], Mask]] = {
    in_set: _by_set,
    in_intersection: _by_intersection,
    in_lambda: _by_lambda,
    in_negate: _by_negation,
    in_pseudorandom_split: _by_split,
    in_reduce: _by_reduction,
}


def checked(answer: Any, num_rows: int, predicate: PredicateBase) -> Mask:
    """Return what a predicate said of a batch as a mask; null is no.

    Raises:
        SchemaError: it is not one truth value for each row.
    """
    found = np.asarray(answer)
    wrong = None
    if found.shape != (num_rows,):
        wrong = f"{type(answer).__name__} of shape {found.shape}"
    elif found.dtype == object:
        known = np.array([isinstance(one, bool | np.bool_) or one is None or one != one for one in _plain(found)])
        if not known.all():
            wrong = f"{type(answer).__name__} with {found[~known][0]!r:.60} in it"
        found = np.array([isinstance(one, bool | np.bool_) and bool(one) for one in found], np.bool_)
    elif found.dtype != np.bool_:
        wrong = f"{type(answer).__name__} of {found.dtype}"
    if wrong is not None:
        raise SchemaError(
            f"{predicate!r} must give one bool for each of the {num_rows} rows, as a Series or array; it gave {wrong}. "
            "In a batch reader its function gets whole columns: write x == 1 or x.isin([...]), not x in [...]"
        )
    return found


def _plain(answers: NDArray[Any]) -> list[Any]:
    """Return answers with pandas' NA, whose every comparison is NA again, as None."""
    return [None if type(one).__name__ == "NAType" else one for one in answers]
