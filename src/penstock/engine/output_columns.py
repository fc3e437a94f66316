"""The columns of a loader's batches before there is one: what each is made of, and whether it may hold nulls.

For frameworks that must know what a batch looks like when a loader is made. Reads no data; footers only where somebody
asks for nulls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.engine.padding import padded_columns
from penstock.engine.rowwise import RowTransform
from penstock.engine.stages import FilterRows, Fold, stage_of
from penstock.source import may_hold_nulls

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from penstock.engine.columns import Column
    from penstock.engine.inputs import Inputs
    from penstock.engine.padding import Padding
    from penstock.engine.stages import Stage
    from penstock.schema.unischema import UnischemaField


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """One column of every batch."""

    name: str
    field: UnischemaField
    """Of the schema, or what a `TransformSpec` promises."""
    read: Column | None
    """How it is read; None: a `TransformSpec` makes it."""
    stored: pa.DataType | None
    """Its stored type; None: a `TransformSpec` makes it."""
    promised: bool
    """Whether rows went through a `TransformSpec`, whose values may differ from what it promises."""
    padding: Padding | None
    """How `pad=` fills it up."""
    steps: int | None
    """Length of its axis of time; None: it has none."""
    nullable: bool
    """Whether it may hold nulls: its field says so, and the footers do not know better."""


def describe_columns(inputs: Inputs, stages: Sequence[Stage]) -> tuple[OutputColumn, ...]:
    """Return the columns of a batch, in its order, before a `transform=` function changes them."""
    hidden = stage_of(stages, FilterRows)
    read = {column.name: column for column in inputs.columns if hidden is None or column.name not in hidden.hidden}
    rowwise, paddings = stage_of(stages, RowTransform), padded_columns(stages)
    if rowwise is None:
        fields, edited = {name: column.field for name, column in read.items()}, set[str]()
    else:
        fields = {field.name: field for field in rowwise.fields}
        edited = {field.name for field in rowwise.spec.edit_fields}
    kept = {name: read[name] for name in fields if name in read and name not in edited}
    nulls = may_hold_nulls(inputs.source, kept)
    fold, steps = stage_of(stages, Fold), dict[str, int | None].fromkeys(fields)
    if fold is not None:
        steps = {
            name: len(each) for name, each in (fold.steps or dict.fromkeys(fields, tuple(range(fold.length)))).items()
        }
    schema = inputs.source.facts.arrow_schema
    return tuple(
        OutputColumn(
            name=name,
            field=fields[name],
            read=kept.get(name),
            stored=schema.field(name).type if name in kept else None,
            promised=rowwise is not None,
            padding=paddings.get(name),
            steps=count,
            nullable=name in nulls if name in kept else bool(fields[name].nullable),
        )
        for name, count in steps.items()
    )
