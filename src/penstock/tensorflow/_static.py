"""Find the static form of every column of a loader: from its columns and footers, and from one batch where needed.

Called once, when a loader is made. Reads a few rows only where a transform, or a codec without a dtype, leaves no other
way to know; everything else is known from schemas and statistics.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from penstock.dataset.prune import leaf_indices
from penstock.engine.build import MASK
from penstock.errors import BadFile, ColumnNotFound, PlanError, close_names
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
    from collections.abc import Mapping

    from penstock.api import Dataset
    from penstock.engine.loader import Loader

_MOST_FILES = 256
"""The footers of so many files are asked for nulls; beyond, a nullable field counts as one that has some."""
_PROBE_ROWS = 8


@dataclass(frozen=True, slots=True)
class Look:
    """Options of the loader that decide what a batch looks like."""

    batch_size: int
    drop_last: bool
    remainder: str
    transform: Any
    window: Any
    on_error: str
    pad: Any

    @property
    def options(self) -> dict[str, Any]:
        """The same as keywords."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user said of the spec."""

    masks: frozenset[str] | None
    """Columns that get a mask; None: all that may hold nulls."""
    spec: Mapping[str, Any] | None
    look: Look


def forms_of(dataset: Dataset, loader: Loader, wanted: Wanted) -> tuple[Form, ...]:
    """Return the form of every column of a batch, in its order."""
    if wanted.spec is not None:
        forms = spec_forms(wanted.spec)
    else:
        forms = tuple(_found(dataset, loader, wanted))
        if wanted.masks is not None:
            forms = tuple(replace(form, valid=form.name in wanted.masks) for form in forms)
            _check_masks(wanted.masks, [form.name for form in forms])
    if wanted.look.remainder == "pad" and MASK not in {form.name for form in forms}:
        forms = (*forms, Form(MASK, np.dtype(np.bool_)))
    check_names(forms)
    return forms


def _check_masks(masks: frozenset[str], names: list[str]) -> None:
    for name in sorted(masks):
        if name not in names:
            raise ColumnNotFound(f"nulls= names the column {name!r}; {close_names(name, names)}")


def _found(dataset: Dataset, loader: Loader, wanted: Wanted) -> list[Form]:
    finisher = loader._finisher
    if finisher.transform is not None:
        return _probed(dataset, wanted, {})
    forms = _stored(dataset, loader) if finisher.rowwise is None else _promised(dataset, loader)
    unknown = [name for name, form in forms.items() if form is None]
    if unknown:
        probed = {form.name: form for form in _probed(dataset, wanted, forms)}
        forms = {name: form or probed[name] for name, form in forms.items()}
    return [cast("Form", form) for form in forms.values()]


def _stored(dataset: Dataset, loader: Loader) -> dict[str, Form | None]:
    """Return the forms of columns as they are read."""
    finisher, stored = loader._finisher, dataset._source.arrow_schema
    forms: dict[str, Form | None] = {}
    for column in loader._facts.columns:
        if column.name in finisher.unseen:
            continue
        form = column_form(column, stored.field(column.name).type)
        if form is not None and column.name in finisher.pad:
            form = padded(form, finisher.pad[column.name].shape)
        elif form is not None:
            form = replace(form, valid=may_be_null(dataset, column.name))
        forms[column.name] = form
    return _folded(loader, forms)


def _promised(dataset: Dataset, loader: Loader) -> dict[str, Form | None]:
    """Return the forms of fields that a `TransformSpec` promises."""
    rowwise = cast("Any", loader._finisher.rowwise)
    edited = {field.name for field in rowwise.spec.edit_fields}
    forms: dict[str, Form | None] = {}
    for field in rowwise.fields:
        form = field_form(field)
        known = field.name not in edited and field.name in dataset.columns
        null = may_be_null(dataset, field.name) if known else field.nullable
        forms[field.name] = None if form is None else replace(form, valid=null, loose=True)
    return _folded(loader, forms)


def _folded(loader: Loader, forms: dict[str, Form | None]) -> dict[str, Form | None]:
    """Return the forms with an axis of time, where the loader gives windows."""
    fold, windows = loader._finisher.fold, loader._facts.items.windows
    if fold is None or windows is None:
        return forms
    steps = fold.steps or dict.fromkeys(forms, tuple(range(windows.length)))
    return {
        name: None if (form := forms[name]) is None else windowed(form, len(listed)) for name, listed in steps.items()
    }


def _probed(dataset: Dataset, wanted: Wanted, forms: Mapping[str, Form | None]) -> list[Form]:
    """Return the forms of the columns of a small batch, which is read, decoded and transformed for this."""
    small = min(_PROBE_ROWS, wanted.look.batch_size)
    look = replace(wanted.look, batch_size=small, drop_last=False, remainder="drop", on_error="raise")
    if not len(dataset):
        raise PlanError(
            "the spec of a batch is found by a first batch, and the dataset has no rows; give element_spec= to say it"
        )
    with dataset.loader(**look.options, pool="serial", rank=0, world=1) as probe:
        batch = next((batch for batch in probe if batch and len(next(iter(batch.values())))), {})
    return [
        value_form(name, values, nullable=name in dataset.columns and may_be_null(dataset, name))
        for name, values in batch.items()
        if name not in forms or forms[name] is None
    ]


# -- nulls ---------------------------------------------------------------------------------------------------------


def may_be_null(dataset: Dataset, name: str) -> bool:
    """Tell whether a column may hold nulls: its field says so, and the footers do not know better."""
    source = dataset._source
    if not source.unischema.fields[name].nullable:
        return False
    files = range(len(source.files))
    if name in source.partitions:
        return any(not source.partition_scalar(name, file).is_valid for file in files)
    return len(files) > _MOST_FILES or any(_has_nulls(dataset, name, file) for file in files)


def _has_nulls(dataset: Dataset, name: str, file: int) -> bool:
    try:
        footer = dataset._source.footer(file)
    except BadFile:
        return True
    index = leaf_indices(footer).get(name)
    if index is None:
        index = _only_leaf(footer, name)
    if index is None:
        return True
    groups = (footer.row_group(group).column(index).statistics for group in range(footer.num_row_groups))
    return any(one is None or not one.has_null_count or one.null_count > 0 for one in groups)


def _only_leaf(footer: Any, name: str) -> int | None:
    """Return where the values of a list column stand; None where it has several parts."""
    schema = footer.schema
    paths = [schema.column(index).path for index in range(len(schema))]
    found = [index for index, path in enumerate(paths) if path.startswith(f"{name}.")]
    return found[0] if len(found) == 1 else None
