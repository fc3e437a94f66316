"""Which columns of a batch have a mask beside them: what `nulls=` says, checked once, when a loader is made.

Where processes form one array together, every one of them must run the same program, and so have the same columns,
whatever rows it has read: then the masks are decided here, by fields and footers, and not by the rows of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import ColumnNotFound, PlanError, close_names
from penstock.nulls import check_nulls

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.engine.base_loader import BaseLoader

VALID = "_valid"
"""What the name of a mask ends with."""


@dataclass(frozen=True, slots=True)
class Masks:
    """What becomes of nulls."""

    always: frozenset[str] = frozenset()
    """Columns with a mask in every batch."""
    refuse: bool = False
    """Whether a null in any other column is an error; else masked arrays have a mask."""
    same: bool = False
    """Whether this was decided for processes that form one array: of columns on the device only."""
    wanted: frozenset[str] = frozenset()
    """The columns that the user has named."""


def choose(nulls: Any, native: BaseLoader, *, same: bool) -> Masks:
    """Return what `nulls=` asks for; `same`: every process must have the same columns in every batch."""
    names = check_nulls(nulls, native.columns, owner="penstock.jax.loader")
    if names is None:
        if not same:
            return Masks()
        masks = Masks(_stacked(native), refuse=True, same=True)
        advice = "select other columns, rename it by transform=, or use nulls='error'"
    else:
        masks, advice = Masks(names, refuse=True, wanted=names), "select others"
    known = native.columns or ()
    clash = sorted(f"{name}{VALID}" for name in masks.always if f"{name}{VALID}" in known)
    if clash:
        raise PlanError(f"the dataset has the column {clash[0]!r} already, where the mask would go; {advice}")
    return masks


def check_names(option: str, names: Iterable[str], native: BaseLoader) -> None:
    """Refuse names that no batch will have, where that is known by now."""
    known = native.columns
    if known is not None:
        refuse_missing(option, names, known)


def refuse_missing(option: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise ColumnNotFound unless a batch has all these columns."""
    known = list(known)
    for name in sorted(names):
        if name not in known:
            raise ColumnNotFound(f"{option}= names the column {name!r}; {close_names(name, known)}")


# -- what may be null -------------------------------------------------------------------------------------------------


def _stacked(native: BaseLoader) -> frozenset[str]:
    """Return the columns on the device that may hold nulls; what stays on the host tells its nulls itself."""
    found: set[str] = set()
    for loader in native.inside():
        for one in loader.output_columns():
            on_device = one.read is None or one.read.form in ("fixed", "cells")
            if one.nullable and one.padding is None and on_device:
                found.add(one.name)
    return frozenset(found)
