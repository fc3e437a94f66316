"""The columns of batches before there is one: what each is made of, whether it may hold nulls, what a mix adds.

`describe_columns` is for frameworks that must know what a batch looks like when a loader is made; it reads no data, and
footers only where somebody asks for nulls. `Agreed` gives the batches of several loaders the same columns: `Mix` asks
once what each loader gives, adds nulls for what is absent, and masks in all batches what is masked in some. Columns are
compared by name: a batch comes from one loader, so dtypes and shapes may differ. Only where a transform makes the
columns, one batch is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from penstock.codecs.arrow import mask
from penstock.engine.loader import Loader
from penstock.engine.padding import Padding, padded_columns
from penstock.engine.rowwise import RowTransform, SpecStage
from penstock.engine.stages import MASK, Batch, FilterRows, Fold, Stage, Transform, output_columns, stage_of
from penstock.errors import SchemaError
from penstock.source import may_hold_nulls

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa

    from penstock.engine.base_loader import BaseLoader
    from penstock.engine.inputs import Column, Inputs
    from penstock.schema.unischema import UnischemaField

    Nulls = Callable[[int], Any]
    """Makes a column of that many nulls."""
    Given = Mapping[str, tuple[Nulls, bool | None]]
    """The columns that a loader gives, in its order, and whether they are masked arrays; None: they cannot be."""


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


@dataclass(frozen=True, slots=True)
class Agreed:
    """The columns that every batch of a mix has."""

    columns: Given
    """Those of the first loader in its order, then what the next ones add."""
    fill: bool
    """Whether absent columns become nulls; False: they are an error."""
    masked: frozenset[str]
    """Columns that are masked arrays in every batch, as some loader has them so or lacks them."""

    @classmethod
    def of(cls, given: Sequence[Given | None], *, fill: bool) -> Agreed:
        """Return the columns of all loaders; None stands for one that gives no batch.

        Raises:
            SchemaError: they differ, and `fill` is not set.
        """
        union: dict[str, tuple[Nulls, bool | None]] = {}
        for one in given:
            for name, (nulls, masked) in (one or {}).items():
                first, before = union.get(name, (nulls, masked))
                union[name] = first, masked or before
        lacks = {
            index: [name for name in union if name not in one] for index, one in enumerate(given) if one is not None
        }
        if not fill and any(lacks.values()):
            parts = [f"loader {index} lacks {', '.join(map(repr, names))}" for index, names in lacks.items() if names]
            text = f"the loaders of a mix give different columns: {'; '.join(parts)}; select the same columns, "
            if any(MASK in names for names in lacks.values()):
                text += f"give all of them remainder='pad' or none ({MASK!r} comes with it), "
            raise SchemaError(text + "or pass missing='null' to have nulls instead")
        absent = {name for names in lacks.values() for name in names}
        masked_names = {name for name, (_, masked) in union.items() if masked or (masked is False and name in absent)}
        return cls(union, fill, frozenset(masked_names))

    def complete(self, batch: Batch, index: int) -> Batch:
        """Return the batch of loader `index` with all columns, in the agreed order; as it is where nothing is to do."""
        if tuple(batch) == tuple(self.columns):
            return self._mask(batch) if self.masked else batch
        unknown = [name for name in batch if name not in self.columns]
        absent = [name for name in self.columns if name not in batch]
        if unknown or (absent and not self.fill):
            raise SchemaError(
                f"loader {index} gave a batch with columns {list(batch)}, the mix has {list(self.columns)}; a "
                "transform must give the same columns for every batch"
            )
        num_rows = len(next(iter(batch.values()), ()))
        columns = self.columns.items()
        return self._mask({name: batch[name] if name in batch else nulls(num_rows) for name, (nulls, _) in columns})

    def _mask(self, batch: Batch) -> Batch:
        plain = [name for name in self.masked if type(batch[name]) is np.ndarray and not batch[name].dtype.hasobject]
        return {**batch, **{name: mask(batch[name], None, always=True) for name in plain}} if plain else batch


def columns_given(loader: BaseLoader, index: int) -> Given | None:
    """Return the columns of a loader's batches; None where it has no batch to show and a transform makes them.

    Raises:
        SchemaError: its first rows could not be loaded to see what its transform makes of them.
    """
    if not isinstance(loader, Loader):
        return cast("Given", cast("Any", loader).agreed.columns)  # of a mix inside the mix
    if any(isinstance(stage, Transform | SpecStage | Fold) for stage in loader.stages):
        # Only a batch tells: the first one in stored order, made in this thread from a row group or two.
        try:
            batch = loader.probe()
        except Exception as error:
            raise SchemaError(
                f"loader {index} of the mix has a transform, and what columns it makes was not found out from its "
                f"first batch: {error}"
            ) from error
        if batch is None:
            return None
        stacked = {
            name: isinstance(values, np.ma.MaskedArray)
            for name, values in batch.items()
            if name != MASK and isinstance(values, np.ndarray) and not values.dtype.hasobject
        }
        return {name: (_nulls_like(name, values), stacked.get(name)) for name, values in batch.items()}
    pads, names = padded_columns(loader.stages), output_columns(loader.stages) or []
    found: dict[str, tuple[Nulls, bool | None]] = {
        one.name: (
            _nulls_of(one, pads.get(one.name)),
            one.masked if one.form in ("fixed", "cells") and one.name not in pads else None,
        )
        for one in loader._inputs.columns
        if one.name in names
    }
    return found | {MASK: (_all_valid, None)} if loader.pads else found


def _nulls_of(column: Column, padding: Padding | None) -> Nulls:
    if padding is not None:
        return lambda num_rows: padding.stack([None] * num_rows)
    if column.form in ("fixed", "cells"):
        return partial(_array, cast("np.dtype[Any]", column.dtype), column.shape)
    if column.form == "ragged" or getattr(column.kind, "as_list", False):
        return lambda num_rows: [None] * num_rows
    return lambda num_rows: np.full(num_rows, None, object)


def _nulls_like(name: str, values: Any) -> Nulls:
    if name == MASK:
        return _all_valid
    if isinstance(values, np.ndarray):
        shape = values.shape[1:]
        if values.dtype.hasobject:
            return lambda num_rows: np.full((num_rows, *shape), None, object)
        return partial(_array, values.dtype, shape)
    return (
        (lambda num_rows: [None] * num_rows)
        if isinstance(values, list | tuple)
        else partial(_refuse, name, type(values).__name__)
    )


def _array(dtype: np.dtype[Any], shape: tuple[int, ...], num_rows: int) -> Any:
    if dtype.kind in "SU" or dtype.names:  # only transforms make these; nothing is said about what is below the mask
        return np.ma.MaskedArray(np.zeros((num_rows, *shape), dtype), mask=True)
    values = np.empty((num_rows, *shape), dtype)
    found: Any = mask(values, np.zeros(num_rows, np.bool_), always=True)
    values[...] = found.fill_value
    return found


def _all_valid(num_rows: int) -> Any:
    """Rows of a loader that does not pad are all real."""
    return np.ones(num_rows, np.bool_)


def _refuse(name: str, kind: str, num_rows: int) -> Any:
    raise SchemaError(
        f"column {name!r} is a {kind} where a transform makes it, and there is no {kind} of {num_rows} nulls for the "
        "loaders that lack it; make NumPy arrays or lists in transforms and convert what the mix gives"
    )
