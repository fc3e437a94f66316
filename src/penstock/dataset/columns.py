"""The columns of a dataset: which there are, in which order, with which Arrow types and fields.

`resolve_columns` takes what the files hold (a `Scan`), what folder names add, the schema that was stored and the one
that the user gave; it returns one Unischema and the Arrow schema in the same order. The user's field wins over the
stored one, that one over what the Arrow type suggests. Columns that a schema does not list are appended, so that none
is lost. `pick_columns` turns what a user passes as `columns=` into names. Reads no file but `_common_metadata`.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from penstock.dataset.catalog import DataFile, Root
from penstock.dataset.footers import read_footer
from penstock.dataset.partitions import Partition, cast_partition, find_partitions, partition_types_of
from penstock.dataset.unify_types import check_agreement, merge_schemas
from penstock.errors import BadFile, ColumnNotFound, MetadataError, SchemaError, UnsupportedType, close_names
from penstock.schema.arrow import arrow_schema, flatten_structs, infer_unischema
from penstock.schema.stored import find_schema
from penstock.schema.unischema import Unischema, UnischemaField, schema_name
from penstock.storage.store import has_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from penstock.dataset.scan import Scan


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
    partitions: Mapping[str, Partition]
    """Those that are constant in each file."""
    declared: frozenset[str] | None
    """Names that a schema has, given or stored; None where there is none."""
    repeated: frozenset[str] = frozenset()
    """Columns that the files hold and folder names repeat: both must have the same values."""


def resolve_columns(scan: Scan, columns: Any, schema: Unischema | None) -> Columns:
    """Return the columns of files that were indexed; `columns` and `schema` as passed to `penstock.open`.

    Raises:
        BadFile: None of the files can be read.
        SchemaError: Files disagree, or a schema does not fit them.
        ColumnNotFound: `columns` names one that is not there.
    """
    if not scan.files:
        [(path, reason), *_] = scan.skipped
        raise BadFile(f"none of the {len(scan.skipped)} files can be read; the first: {reason}", path=path)
    base = _flatten(*scan.schemas[0])
    partitions: dict[str, Partition] = {}
    typed: frozenset[str] = frozenset()
    repeated: frozenset[str] = frozenset()
    if any("=" in file.relative or file.constants for file in scan.files):
        found = find_partitions(scan.files)
        # A column that the files hold is read from them; the folder name only repeats it.
        repeated = frozenset(found) & frozenset(base.names)
        types = partition_types_of(scan.partition_types)
        partitions = {
            name: cast_partition(part, types.get(name, part.field.type))
            for name, part in found.items()
            if name not in repeated
        }
        typed = frozenset(types) & frozenset(partitions)
    stored, stored_in = _stored_schema(scan) if schema is None else (None, "")
    known = Known(base, partitions, stored, stored_in, schema, scan.files[0].path, typed)
    wanted = known.wanted(columns)
    if schema is None:
        roots = {id(file.root): file.root for file in scan.files if file.root.names}
        beside = [_schema_beside(root, ("_common_metadata",)) for root in roots.values() if len(roots) > 1]
        check_stored(scan.stored + [(one, place) for one, place in beside if one is not None], wanted)
    for other, path in scan.schemas[1:]:
        flat = _flatten(other, path)
        check_agreement(base, flat, paths=(scan.schemas[0][1], path), wanted=wanted)
        base = merge_schemas(base, flat)
    decided = decide_columns(replace(known, physical=base), wanted)
    return decided._replace(repeated=repeated & frozenset(decided.arrow_schema.names))


def _flatten(schema: pa.Schema, path: str) -> pa.Schema:
    flat = schema
    # An extension type has no fields of its own, and may be stored as a struct.
    if any(kind.num_fields or isinstance(kind, pa.BaseExtensionType) for kind in schema.types):
        with naming_file(path):
            flat = flatten_structs(schema)
    if len(set(flat.names)) < len(flat.names):
        twice = next(name for name in flat.names if flat.names.count(name) > 1)
        raise SchemaError(f"{path} has two columns called {twice!r}; rename one of them and write the file again")
    return flat


def _stored_schema(scan: Scan) -> tuple[Unischema | None, str]:
    """Return the schema stored with the dataset and the file: a folder's `_common_metadata`, else the first data file.

    For files and patterns the footer comes first, since they may have been taken from anywhere.
    """
    first = scan.files[0]
    names = first.root.names
    if names is not None:
        found = _schema_beside(first.root, [name for name in ("_common_metadata", "_metadata") if name in names])
        return found if found[0] is not None else (find_schema(scan.metadata, path=first.path), first.path)
    stored = find_schema(scan.metadata, path=first.path)
    return (stored, first.path) if stored is not None else _schema_beside(first.root, ("_common_metadata",))


def _schema_beside(root: Root, names: Iterable[str]) -> tuple[Unischema | None, str]:
    for name in names:
        file = DataFile(root, name, None)
        if not has_file(root.store, file.path):
            continue
        try:
            footer = read_footer(file)
        except BadFile as exc:
            raise MetadataError(f"{exc}; it only holds the schema: delete it, or pass schema=") from exc
        found = find_schema(footer.arrow.metadata, path=file.path)
        if found is not None:
            return found, file.path
    return None, ""


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
        if rest:
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


def pick_columns(names: Sequence[str], columns: str | Iterable[Any] | None) -> list[str]:
    """Return the names that `columns` asks for, each once, in the user's order; None gives all.

    An item is a name, a field with a `.name`, the path of a struct (all its leaves), or a regular expression that
    matches whole names (in the dataset's order). A name that exists is never read as an expression. One text is one
    item. An empty list gives an empty list.

    Raises:
        ColumnNotFound: an item fits no column; lists near names.
    """
    if columns is None:
        return list(names)
    items = [columns] if isinstance(columns, str) or hasattr(columns, "numpy_dtype") else list(columns)
    known = set(names)
    picked: dict[str, None] = {}
    for item in items:
        picked.update(dict.fromkeys(_pick(names, known, item)))
    return list(picked)


def _pick(names: Sequence[str], known: set[str], item: Any) -> list[str]:
    name = item if isinstance(item, str) else getattr(item, "name", None)
    if not isinstance(name, str):
        raise ColumnNotFound(f"a column is asked for by name, field or regular expression; got {item!r}")
    if name in known:
        return [name]
    found = [other for other in names if other.startswith(f"{name}.")]
    if not found and isinstance(item, str):
        with contextlib.suppress(re.error):
            expression = re.compile(name)
            found = [other for other in names if expression.fullmatch(other)]
    if not found:
        raise ColumnNotFound(f"no column {name!r}, and none that it matches; {close_names(name, names)}")
    return found
