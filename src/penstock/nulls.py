"""What `nulls=` says where batches go to a framework: which columns may hold nulls, and whether a column holds any.

The same option of all frameworks, checked here once for all of them. Knows names and NumPy columns only: how a mask
looks in a framework is said there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import ColumnNotFound, PlanError, close_names

if TYPE_CHECKING:
    from collections.abc import Iterable


def check_nulls(nulls: Any, names: Iterable[str] | None, *, owner: str) -> frozenset[str] | None:
    """Return the columns that may hold nulls and always have a mask; None for "mask": all may, and have one if needed.

    Args:
        nulls: What the user gave: "mask", "error" or names of columns.
        names: The columns of a batch; None where they are not known yet, since a transform may add some.
        owner: The function of the user's, for messages: "penstock.torch.loader".

    Raises:
        PlanError: Neither a word that is known nor names.
        ColumnNotFound: A name that is not among `names`.
    """
    if isinstance(nulls, str):
        if nulls not in ("mask", "error"):
            raise PlanError(f"{owner}: nulls must be 'mask', 'error' or a list of columns; got {nulls!r}")
        return None if nulls == "mask" else frozenset()
    try:
        chosen = list(nulls)
    except TypeError:
        chosen = [nulls]
    wrong = [one for one in chosen if not isinstance(one, str)]
    if wrong:
        raise PlanError(f"{owner}: nulls must be 'mask', 'error' or a list of columns; got {nulls!r}")
    if names is not None:
        check_names(chosen, names, owner=owner)
    return frozenset(chosen)


def check_names(chosen: Iterable[str], names: Iterable[str], *, owner: str) -> None:
    """Raise ColumnNotFound for the first column of `nulls=` that is not among `names`."""
    known = list(names)
    missing = sorted(set(chosen) - set(known))
    if missing:
        raise ColumnNotFound(
            f"{owner}: nulls= names {missing[0]!r}, which is no column; {close_names(missing[0], known)}"
        )


def has_null(values: Any) -> bool:
    """Return whether a column has a null anywhere, inside of lists and structs as well; NaN and NaT are none."""
    if isinstance(values, np.ma.MaskedArray):
        return bool(np.ma.getmaskarray(values).any()) or (values.dtype.kind == "O" and _any_null(values.data.tolist()))
    if isinstance(values, np.ndarray):
        return values.dtype.kind == "O" and _any_null(values.tolist())
    if isinstance(values, dict):
        return _any_null(values.values())
    return isinstance(values, list | tuple) and _any_null(values)


def _any_null(values: Iterable[Any]) -> bool:
    return any(value is None or has_null(value) for value in values)
