"""Find the static form of every column of a loader: from its columns and footers, and from one batch where needed.

Called once, when a loader is made. Reads a few rows only where a transform, or a codec without a dtype, leaves no other
way to know; everything else is known from schemas and statistics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from penstock.engine.stages import MASK
from penstock.errors import ColumnNotFound, PlanError, SchemaError, TransformError, close_names
from penstock.nulls import check_names as check_nulls_names
from penstock.tensorflow._forms import (
    Form,
    check_names,
    column_form,
    field_form,
    padded,
    spec_forms,
    value_form,
    windowed,
)

if TYPE_CHECKING:
    from penstock.engine.base_loader import BaseLoader
    from penstock.engine.loader import Loader as NativeLoader
    from penstock.engine.output_columns import OutputColumn

OWNER = "penstock.tensorflow.loader"
_PROBE_ROWS = 8


@dataclass(frozen=True, slots=True)
class SpecOptions:
    """What the user said of the spec."""

    masks: frozenset[str] | None
    """Columns that get a mask; None: all that may hold nulls."""
    element_spec: Mapping[str, Any] | None


def forms_of(native: BaseLoader, wanted: SpecOptions) -> tuple[Form, ...]:
    """Return the form of every column of a batch, in its order."""
    if wanted.element_spec is not None:
        forms = _said(native, wanted)
    else:
        forms = _common([_found(loader) for loader in native.inside()])
        if native.columns is not None:  # those of a mix may come in another order
            forms = tuple(sorted(forms, key=lambda form: cast("Any", native.columns).index(form.name)))
        if wanted.masks is not None:
            forms = tuple(replace(form, valid=form.name in wanted.masks) for form in forms)
            check_nulls_names(wanted.masks, [form.name for form in forms], owner=OWNER)
    if not forms:
        raise TransformError("the transform gives a batch with no columns; tensors need one at least")
    if any(loader.pads for loader in native.inside()) and MASK not in {form.name for form in forms}:
        forms = (*forms, Form(MASK, np.dtype(np.bool_)))
    check_names(forms)
    return forms


def _common(each: list[list[Form]]) -> tuple[Form, ...]:
    """Return forms that hold for all loaders of a mix: a column that one of them lacks, or has nulls in, has a mask."""
    found: dict[str, Form] = {}
    for form in (form for forms in each for form in forms):
        before = found.setdefault(form.name, form)
        if (before.dtype, before.shape, before.ragged) != (form.dtype, form.shape, form.ragged):
            raise SchemaError(
                f"the loaders of the mix give column {form.name!r} as {before.dtype} of shape {before.shape} and as "
                f"{form.dtype} of shape {form.shape}; tensors need one dtype and shape: change one by transform=, or "
                "give element_spec="
            )
        valid = before.valid or form.valid or not all(any(one.name == form.name for one in forms) for forms in each)
        found[form.name] = replace(before, valid=valid)
    return tuple(found.values())


def _said(native: BaseLoader, wanted: SpecOptions) -> tuple[Form, ...]:
    """Return the forms that the user has said, of all columns and of no others."""
    spec = wanted.element_spec
    if not isinstance(spec, Mapping) or not spec:
        raise PlanError(f"element_spec must be a dict of a tf.TensorSpec for every column; got {spec!r}")
    if wanted.masks is not None:
        raise PlanError(
            "nulls= does not go with element_spec=, which says itself which columns have a mask: give it a "
            "'<name>_valid' for each, and leave nulls= out"
        )
    known = native.columns
    forms = spec_forms(spec, known or ())
    if known is None:  # a function of the user decides: looked at with every batch
        return forms
    names = [form.name for form in forms]
    for name in names:
        if name not in known:
            raise ColumnNotFound(f"element_spec names the column {name!r}; {close_names(name, known)}")
    left = [name for name in known if name not in names and name != MASK]
    if left:
        raise PlanError(
            f"element_spec says nothing of the column{'s' * (len(left) > 1)} {', '.join(map(repr, left))}; every "
            f"column needs a spec: add what is missing, or choose columns={names!r}"
        )
    return forms


def _found(loader: NativeLoader) -> list[Form]:
    """Return the forms of a loader's columns: from schemas and footers, or from a small batch."""
    if loader.columns is None:  # a function of the user decides
        return _probed(loader, None)
    forms = {column.name: _known(column) for column in loader.output_columns()}
    unknown = [name for name, form in forms.items() if form is None]
    if unknown:
        probed = {form.name: form for form in _probed(loader, unknown)}
        forms = {name: form or probed[name] for name, form in forms.items()}
    return [cast("Form", form) for form in forms.values()]


def _known(column: OutputColumn) -> Form | None:
    """Return the form of a column; None where only its values tell."""
    if column.promised:
        form = field_form(column.field)
    else:
        form = column_form(cast("Any", column.read), cast("Any", column.stored))
    if form is None:
        return None
    if column.padding is not None:
        form = padded(form, column.padding)
    form = replace(form, valid=column.nullable and column.padding is None, loose=column.promised)
    return form if column.steps is None else windowed(form, column.steps)


def _probed(loader: NativeLoader, names: Sequence[str] | None) -> list[Form]:
    """Return the forms of these columns (None: all) of a small batch, which is read, decoded and transformed."""
    batch = loader.probe(_PROBE_ROWS)
    if batch is None:
        raise PlanError(
            "the spec of a batch is found by a first batch, and the dataset has no rows; give element_spec= to say it"
        )
    nulls = loader.may_be_null(batch)
    return [
        value_form(name, values, nullable=name in nulls)
        for name, values in batch.items()
        if names is None or name in names
    ]
