"""Decide the columns of a dataset: names, order, Arrow types and fields.

Takes what the files hold, what the folder names add, the schema that was stored and the one the user gave; gives one
Unischema and the Arrow schema in the same order. The user's field wins over the stored one, that over what the Arrow
type suggests. Columns that a schema does not know are appended: nothing vanishes. Reads nothing.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from penstock.dataset.columns import pick_columns
from penstock.dataset.partitions import Partition, cast_partition
from penstock.errors import SchemaError, UnsupportedType, close_names
from penstock.schema.arrow import arrow_schema, infer_unischema
from penstock.schema.unischema import Unischema, UnischemaField, schema_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Known:
    """All that is known about the columns before they are decided."""

    physical: pa.Schema
    """Columns in the files, structs flattened by path."""
    partitions: Mapping[str, Partition]
    stored: Unischema | None
    stored_in: str
    """The file that holds the stored schema."""
    given: Unischema | None
    path: str
    """The first data file, which errors name."""
    typed: frozenset[str] = frozenset()
    """Partition columns that have the type with which they were written."""

    @property
    def available(self) -> dict[str, pa.Field]:
        """The columns that can be read, the files' own first."""
        found = {field.name: field for field in self.physical}
        return found | {name: partition.field for name, partition in self.partitions.items()}

    def wanted(self, columns: Any) -> list[str] | None:
        """Return the names that the user's `columns` ask for; None: all."""
        if columns is None:
            return None
        schemas = [schema for schema in (self.given, self.stored) if schema is not None]
        names = [name for schema in schemas for name in schema.fields] + list(self.available)
        return pick_columns(list(dict.fromkeys(names)), columns)


class Columns(NamedTuple):
    """The columns of a dataset, decided."""

    unischema: Unischema
    arrow_schema: pa.Schema
    partitions: dict[str, Partition]
    declared: frozenset[str] | None
    """Names that a schema has, given or stored; None where there is none."""


def check_stored(schemas: Sequence[tuple[Unischema, str]], wanted: list[str] | None) -> None:
    """Check that schemas stored in several places give each column one meaning: cells of one file are not another's.

    Raises:
        SchemaError: two give a column different dtypes, shapes or codecs; names it and both places.
    """
    first: dict[str, tuple[UnischemaField, str]] = {}
    for schema, place in schemas:
        for name, field in schema.fields.items():
            known, where = first.setdefault(name, (field, place))
            if (wanted is None or name in wanted) and _meaning(field) != _meaning(known):
                raise SchemaError(
                    f"the stored schemas disagree: {name!r} is {known} in {where} but {field} in {place}; open them "
                    "apart, or pass the schema= that fits both"
                )


def _meaning(field: UnischemaField) -> tuple[Any, ...]:
    return field.numpy_dtype, field.shape, repr(field.codec)


def decide_columns(known: Known, wanted: list[str] | None) -> Columns:
    """Return the columns of the dataset: the schema's in its order, then the files', then the partitions'.

    With `wanted`, columns that are not wanted and cannot be had (missing, or of a type without a mapping) are left out.

    Raises:
        SchemaError: a field that the files do not hold.
        UnsupportedType: a column whose Arrow type has no mapping.
    """
    available = known.available
    fields: dict[str, UnischemaField] = {}
    with naming_file(known.path):
        if known.given is not None:
            fields.update(_present(known.given, available, origin="schema= has", wanted=None))
        if known.stored is not None:
            strict, origin = wanted if known.given is None else [], f"the schema stored in {known.stored_in} has"
            stored = _present(known.stored, available, origin=origin, wanted=strict)
            fields.update({name: field for name, field in stored.items() if name not in fields})
        rest = [field for name, field in available.items() if name not in fields]
        fields.update(_infer(rest, wanted))
    return _finish(known, fields)


@contextlib.contextmanager
def naming_file(path: str) -> Iterator[None]:
    """Put the name of a file in front of errors about its columns: they may come from a damaged footer."""
    try:
        yield
    except SchemaError as exc:
        raise type(exc)(f"{path}: {exc}") from exc


def _present(
    schema: Unischema, available: Mapping[str, pa.Field], *, origin: str, wanted: list[str] | None
) -> dict[str, UnischemaField]:
    for name in schema.fields:
        if name not in available and (wanted is None or name in wanted):
            raise SchemaError(
                f"{origin} the field {name!r}, which the files do not hold ({close_names(name, available)}); "
                "open with columns= that leave it out, or pass the schema= that fits"
            )
    return {name: field for name, field in schema.fields.items() if name in available}


def _infer(fields: list[pa.Field], wanted: list[str] | None) -> dict[str, UnischemaField]:
    try:
        return dict(infer_unischema(pa.schema(fields)).fields)
    except UnsupportedType:
        if wanted is None:
            raise
    found: dict[str, UnischemaField] = {}
    for field in fields:
        try:
            found.update(infer_unischema(pa.schema([field])).fields)
        except UnsupportedType:
            if field.name in wanted:
                raise
    return found


def _finish(known: Known, fields: dict[str, UnischemaField]) -> Columns:
    told = {name for schema in (known.given, known.stored) if schema is not None for name in schema.fields}
    partitions = {
        name: _as_told(partition, fields[name]) if name in told - known.typed else partition
        for name, partition in known.partitions.items()
        if name in fields
    }
    types = known.available | {name: partition.field for name, partition in partitions.items()}
    origin = known.given or known.stored
    name = schema_name(origin) if origin is not None else "inferred_schema"
    declared = None if origin is None else frozenset(told)
    unischema = Unischema(name, list(fields.values()))
    return Columns(unischema, pa.schema([types[field] for field in fields]), partitions, declared)


def _as_told(partition: Partition, field: UnischemaField) -> Partition:
    """Type a partition as its field says; a field without a dtype leaves it as it is."""
    if field.numpy_dtype is None and field.codec is None:
        return partition
    return cast_partition(partition, arrow_schema(Unischema("partition", [field])).field(0).type)
