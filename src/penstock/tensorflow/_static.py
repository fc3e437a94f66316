"""Find the static form of every column of a loader: from its columns and footers, and from one batch where needed.

Called once, when a loader is made. Reads a few rows only where a transform, or a codec without a dtype, leaves no other
way to know; everything else is known from schemas and statistics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from penstock.api import load
from penstock.engine.padding import padded_columns
from penstock.engine.rowwise import RowTransform
from penstock.engine.stages import MASK, Fold, Transform, output_columns, stage_of
from penstock.errors import ColumnNotFound, PlanError, TransformError, close_names
from penstock.nulls import check_names as check_nulls_names
from penstock.options import LoaderOptions
from penstock.source import may_hold_nulls
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
    from penstock.api import Dataset
    from penstock.engine.loader import Loader

OWNER = "penstock.tensorflow.loader"
_PROBE_ROWS = 8


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user said of the spec."""

    masks: frozenset[str] | None
    """Columns that get a mask; None: all that may hold nulls."""
    spec: Mapping[str, Any] | None
    options: LoaderOptions


def forms_of(dataset: Dataset, loader: Loader, wanted: Wanted) -> tuple[Form, ...]:
    """Return the form of every column of a batch, in its order."""
    if wanted.spec is not None:
        forms = _said(loader, wanted)
    else:
        forms = tuple(_found(dataset, loader, wanted))
        if wanted.masks is not None:
            forms = tuple(replace(form, valid=form.name in wanted.masks) for form in forms)
            check_nulls_names(wanted.masks, [form.name for form in forms], owner=OWNER)
    if not forms:
        raise TransformError("the transform gives a batch with no columns; tensors need one at least")
    if wanted.options.remainder == "pad" and MASK not in {form.name for form in forms}:
        forms = (*forms, Form(MASK, np.dtype(np.bool_)))
    check_names(forms)
    return forms


def _said(loader: Loader, wanted: Wanted) -> tuple[Form, ...]:
    """Return the forms that the user has said, of all columns and of no others."""
    spec = wanted.spec
    if not isinstance(spec, Mapping) or not spec:
        raise PlanError(f"element_spec must be a dict of a tf.TensorSpec for every column; got {spec!r}")
    if wanted.masks is not None:
        raise PlanError(
            "nulls= does not go with element_spec=, which says itself which columns have a mask: give it a "
            "'<name>_valid' for each, and leave nulls= out"
        )
    known = output_columns(loader.stages)
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


def _found(dataset: Dataset, loader: Loader, wanted: Wanted) -> list[Form]:
    if stage_of(loader.stages, Transform) is not None:
        return _probed(dataset, wanted, {})
    spec = stage_of(loader.stages, RowTransform)
    forms = _stored(dataset, loader) if spec is None else _promised(dataset, loader, spec)
    unknown = [name for name, form in forms.items() if form is None]
    if unknown:
        probed = {form.name: form for form in _probed(dataset, wanted, forms)}
        forms = {name: form or probed[name] for name, form in forms.items()}
    return [cast("Form", form) for form in forms.values()]


def _stored(dataset: Dataset, loader: Loader) -> dict[str, Form | None]:
    """Return the forms of columns as they are read."""
    pads, names, stored = (
        padded_columns(loader.stages),
        output_columns(loader.stages) or [],
        dataset.source.facts.arrow_schema,
    )
    nulls = may_hold_nulls(dataset.source, (column.name for column in loader._facts.columns))
    forms: dict[str, Form | None] = {}
    for column in loader._facts.columns:
        if column.name not in names:
            continue
        form = column_form(column, stored.field(column.name).type)
        if form is not None and column.name in pads:
            form = padded(form, pads[column.name])
        elif form is not None:
            form = replace(form, valid=column.name in nulls)
        forms[column.name] = form
    return _folded(loader, forms)


def _promised(dataset: Dataset, loader: Loader, rowwise: RowTransform) -> dict[str, Form | None]:
    """Return the forms of fields that a `TransformSpec` promises."""
    pads = padded_columns(loader.stages)
    edited = {field.name for field in rowwise.spec.edit_fields}
    kept = {field.name for field in rowwise.fields if field.name not in edited and field.name in dataset.columns}
    nulls = may_hold_nulls(dataset.source, kept)
    forms: dict[str, Form | None] = {}
    for field in rowwise.fields:
        form, padding = field_form(field), pads.get(field.name)
        null = field.name in nulls if field.name in kept else field.nullable
        if form is not None:
            form = replace(form if padding is None else padded(form, padding), valid=null and not padding, loose=True)
        forms[field.name] = form
    return _folded(loader, forms)


def _folded(loader: Loader, forms: dict[str, Form | None]) -> dict[str, Form | None]:
    """Return the forms with an axis of time, where the loader gives windows."""
    fold = stage_of(loader.stages, Fold)
    if fold is None:
        return forms
    steps = fold.steps or dict.fromkeys(forms, tuple(range(fold.length)))
    return {
        name: None if (form := forms[name]) is None else windowed(form, len(listed)) for name, listed in steps.items()
    }


def _probed(dataset: Dataset, wanted: Wanted, forms: Mapping[str, Form | None]) -> list[Form]:
    """Return the forms of the columns of a small batch, which is read, decoded and transformed for this."""
    given = wanted.options
    probing = LoaderOptions(
        min(_PROBE_ROWS, given.batch_size), transform=given.transform, window=given.window, pad=given.pad,
        pool="serial", rank=0, world=1,
    )  # fmt: skip
    if not len(dataset):
        raise PlanError(
            "the spec of a batch is found by a first batch, and the dataset has no rows; give element_spec= to say it"
        )
    with load(dataset, probing) as probe:
        batch = next((batch for batch in probe if not batch or len(next(iter(batch.values())))), {})
    found = {name: values for name, values in batch.items() if name not in forms or forms[name] is None}
    nulls = may_hold_nulls(dataset.source, (name for name in found if name in dataset.columns))
    return [value_form(name, values, nullable=name in nulls) for name, values in found.items()]
