"""`TransformSpec`: a user's function between reading and batching, and what it does to the schema.

A value that both faces take; `engine/rowwise.py` applies it. This module holds what is known before the first row: the
resulting fields with their dtypes and shapes.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import SchemaError
from penstock.schema.unischema import Unischema, UnischemaField, schema_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

EditField = tuple[str, Any, tuple[int | None, ...], bool]


def edit_field(name: str, numpy_dtype: Any, shape: tuple[int | None, ...], nullable: bool = False) -> EditField:
    """Return what `TransformSpec(edit_fields=[...])` takes for one field that a transform adds or changes."""
    return (name, numpy_dtype, shape, nullable)


@dataclass(frozen=True, init=False)
class TransformSpec:
    """A function of rows, and how the fields change by it.

    Args:
        func: Takes and returns a row (a dict of values), or where batches of a table are read a pandas DataFrame; None
            only removes or selects fields. It may also take `rng` (a NumPy generator) and `generator` (a
            torch.Generator), which depend only on seed, epoch and the place of the row, or of the batch.
        edit_fields: Fields that are added or changed: `UnischemaField`s or tuples (name, dtype, shape, nullable). What
            comes back for them is checked.
        removed_fields: Names of fields that do not come out.
        selected_fields: Names of all the fields that come out, in that order; not together with `removed_fields`.
    """

    func: Callable[..., Any] | None
    edit_fields: tuple[UnischemaField, ...]
    removed_fields: tuple[str, ...]
    selected_fields: tuple[str, ...] | None

    def __init__(
        self,
        func: Callable[..., Any] | None = None,
        edit_fields: Sequence[Any] | None = None,
        removed_fields: Sequence[str] | None = None,
        selected_fields: Sequence[str] | None = None,
    ) -> None:
        if func is not None and not callable(func):
            raise SchemaError(f"a transform's func must be a function; got {type(func).__name__}")
        if removed_fields and selected_fields is not None:
            raise SchemaError("give either removed_fields or selected_fields: each says which fields come out")
        for name, value in (("removed_fields", removed_fields), ("selected_fields", selected_fields)):
            if isinstance(value, str):
                raise SchemaError(f"{name} takes a list of names; got the string {value!r}")
        object.__setattr__(self, "func", func)
        object.__setattr__(self, "edit_fields", tuple(_field(one) for one in edit_fields or ()))
        object.__setattr__(self, "removed_fields", tuple(removed_fields or ()))
        object.__setattr__(self, "selected_fields", None if selected_fields is None else tuple(selected_fields))


def _field(one: Any) -> UnischemaField:
    if isinstance(one, UnischemaField):
        return one._replace(codec=None)
    try:
        name, dtype, shape, nullable = one
    except (TypeError, ValueError):
        wanted = "(name, dtype, shape, nullable) or a UnischemaField"
        raise SchemaError(f"edit_fields takes {wanted}; got {one!r}") from None
    return UnischemaField(name, dtype, tuple(shape), None, bool(nullable))


def transform_schema(schema: Unischema, transform_spec: TransformSpec) -> Unischema:
    """Return the schema of what a transform gives: fields it leaves alone in order, then those it edits.

    Warns of names to remove or select that are not there.
    """
    edited = {field.name: field for field in transform_spec.edit_fields}
    removed = set(transform_spec.removed_fields)
    _warn_unknown("removed_fields", removed, schema.fields.keys() | edited.keys())
    fields = {name: field for name, field in schema.fields.items() if name not in removed and name not in edited}
    fields |= {name: field for name, field in edited.items() if name not in removed}
    if transform_spec.selected_fields is not None:
        _warn_unknown("selected_fields", set(transform_spec.selected_fields), fields.keys())
        fields = {name: fields[name] for name in transform_spec.selected_fields if name in fields}
    return Unischema(f"{schema_name(schema)}_transformed", fields.values())


def _warn_unknown(what: str, names: set[str], known: Any) -> None:
    if unknown := sorted(names - set(known)):
        warnings.warn(
            f"{what} names fields that are not part of the schema: {', '.join(unknown)}", UserWarning, stacklevel=4
        )
