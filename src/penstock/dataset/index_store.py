"""The stored form of row-group indexes: JSON of ours in `_common_metadata`, and Petastorm's pickle, read safely.

`store_indexes` keeps the fingerprint of the dataset with them; `load_indexes` refuses indexes of files that have
changed, since their ordinals would mean other row groups. Values keep their types. Nothing stored is ever executed.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import json
import logging
import posixpath
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from penstock.dataset.catalog import Root
from penstock.dataset.common_metadata import COMMON_METADATA, read_common_metadata, update_common_metadata
from penstock.dataset.index_indexers import (
    NOT_NULL,
    FieldNotNullIndexer,
    RowGroupIndexerBase,
    SingleFieldIndexer,
    StoredIndexer,
)
from penstock.dataset.parquet import ParquetSource, as_parquet
from penstock.errors import MetadataError, SchemaError
from penstock.schema.petastorm_dump import ROW_GROUPS_PER_FILE_KEY, dump_index
from penstock.schema.petastorm_pickle import RowGroupIndex, load_index
from penstock.schema.stored import PETASTORM_INDEX_KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from penstock.source import Source

logger = logging.getLogger(__name__)

INDEX_KEY = b"penstock.rowgroups_index.v1"
_VERSION = 1
_AGAIN = "build the index again (build_rowgroup_index)"
_KINDS: dict[str, type[Any]] = {"single_field": SingleFieldIndexer, "not_null": FieldNotNullIndexer}


def store_indexes(source: ParquetSource, indexers: Iterable[RowGroupIndexerBase]) -> None:
    """Store indexes beside the dataset, in place of those that are there; the files themselves are not touched.

    Raises:
        MetadataError: The source is not one folder, so that there is no place that is surely its own.
        SchemaError: A value is of a type that cannot be stored.
    """
    given = list(indexers)
    text = json.dumps(
        {
            "version": _VERSION,
            "dataset": source.facts.fingerprint,
            "row_groups": len(source.facts.chunk_rows),
            "indexes": [_index_to_json(indexer) for indexer in given],
        }
    )
    check_folder(source)
    pairs = {INDEX_KEY: text.encode(), PETASTORM_INDEX_KEY: _for_petastorm(source, given)}
    update_common_metadata(source.entries[0], pairs)


def check_folder(source: ParquetSource) -> None:
    """Check that a source is one folder, which owns the metadata beside it.

    Raises:
        MetadataError: It is a list, a pattern or a part of a folder.
    """
    if source.entries[0].root.names is None or len({id(file.root) for file in source.entries}) > 1:
        raise MetadataError(
            "a row-group index belongs to the folder of a whole dataset; this is a list of files, a pattern or a part "
            "of a dataset: open the folder itself"
        )


def load_indexes(dataset: Source) -> dict[str, RowGroupIndexerBase]:
    """Return the indexes stored with a dataset, by name: ours, else Petastorm's. Reads one small file.

    Raises:
        MetadataError: There are none, they are damaged, or the dataset has changed since they were built.
    """
    source = as_parquet(dataset)
    root = source.entries[0].root
    pairs = read_common_metadata(Root(root.fs, root.path))  # as it is now: the index may be newer than the source
    try:
        if INDEX_KEY in pairs:
            return _from_json(pairs[INDEX_KEY], source)
        if PETASTORM_INDEX_KEY in pairs:
            return _from_petastorm(pairs, source)
    except MetadataError as exc:
        raise MetadataError(f"{posixpath.join(root.path, COMMON_METADATA)}: {exc}") from exc
    raise MetadataError(f"no row-group index is stored with the dataset at {root.path}; build_rowgroup_index makes one")


def _from_json(text: bytes, source: ParquetSource) -> dict[str, RowGroupIndexerBase]:
    try:
        stored = json.loads(text)
        if stored["version"] != _VERSION:
            raise MetadataError(
                f"the stored row-group index has version {stored['version']}, this Penstock reads {_VERSION}; "
                "upgrade Penstock"
            )
        if stored["dataset"] != source.facts.fingerprint:
            raise _changed(source, stored["row_groups"])
        found = [_index_from_json(index) for index in stored["indexes"]]
    except MetadataError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, InvalidOperation, binascii.Error) as exc:
        raise MetadataError(f"the stored row-group index is damaged ({exc!r}); {_AGAIN}") from exc
    for indexer in found:
        groups = set().union(*(indexer.get_row_group_indexes(value) for value in indexer.indexed_values))
        if groups and not 0 <= min(groups) <= max(groups) < len(source.facts.chunk_rows):
            raise _changed(source, f"{max(groups) + 1} or more")
    return {indexer.index_name: indexer for indexer in found}


def _changed(source: ParquetSource, then: Any) -> MetadataError:
    return MetadataError(
        f"the dataset has changed since its row-group index was built ({then} row groups then, "
        f"{len(source.facts.chunk_rows)} in what is open now): the index would point at other rows; {_AGAIN}"
    )


# -- one index -----------------------------------------------------------------------------------------------------


def _index_to_json(indexer: RowGroupIndexerBase) -> dict[str, Any]:
    kind = next((name for name, known in _KINDS.items() if type(indexer) is known), "values")
    stored = {"kind": kind, "name": indexer.index_name, "columns": list(indexer.column_names)}
    if kind == "not_null":
        return stored | {"groups": sorted(map(int, indexer.get_row_group_indexes(NOT_NULL)))}
    try:
        pairs = [[value_to_json(v), sorted(map(int, indexer.get_row_group_indexes(v)))] for v in indexer.indexed_values]
    except TypeError as exc:
        raise SchemaError(f"the index {indexer.index_name!r} cannot be stored: {exc}") from exc
    return stored | {"values": pairs}


def _index_from_json(stored: dict[str, Any]) -> RowGroupIndexerBase:
    made = _KINDS.get(stored["kind"], StoredIndexer)(stored["name"], *stored["columns"])
    if stored["kind"] == "not_null":
        made.add(NOT_NULL, stored["groups"])
    else:
        for value, groups in stored["values"]:
            made.add(value_from_json(value), groups)
    return cast("RowGroupIndexerBase", made)


# -- one value -----------------------------------------------------------------------------------------------------

_TO_JSON: dict[type, tuple[str, Callable[[Any], Any]]] = {
    float: ("float", repr),
    bytes: ("bytes", lambda value: base64.b64encode(value).decode()),
    Decimal: ("decimal", str),
    datetime.date: ("date", lambda value: value.isoformat()),
    datetime.datetime: ("datetime", lambda value: value.isoformat()),
    datetime.timedelta: ("timedelta", lambda value: [value.days, value.seconds, value.microseconds]),
    np.datetime64: ("datetime64", lambda value: [int(value.astype(np.int64)), *np.datetime_data(value.dtype)]),
    np.timedelta64: ("timedelta64", lambda value: [int(value.astype(np.int64)), *np.datetime_data(value.dtype)]),
}
_FROM_JSON: dict[str, Callable[[Any], Any]] = {
    "float": float,
    "bytes": lambda text: base64.b64decode(text, validate=True),
    "decimal": Decimal,
    "date": datetime.date.fromisoformat,
    "datetime": datetime.datetime.fromisoformat,
    "timedelta": lambda parts: datetime.timedelta(*parts),
    "datetime64": lambda parts: np.datetime64(parts[0], (parts[1], parts[2])),
    "timedelta64": lambda parts: np.timedelta64(parts[0], (parts[1], parts[2])),
}


def value_to_json(value: Any) -> Any:
    """Return an indexed value as JSON that keeps its type: bool, int and text as themselves, others under its name.

    Raises:
        TypeError: It is of another type.
    """
    if isinstance(value, np.generic) and not isinstance(value, np.datetime64 | np.timedelta64):
        value = value.item()
    if isinstance(value, bool | int | str):
        return value
    for kind in type(value).__mro__:
        if kind in _TO_JSON:
            name, form = _TO_JSON[kind]
            return {name: form(value)}
    raise TypeError(f"{value!r:.60} is of type {type(value).__name__}; numbers, text, bytes, dates and decimals can be")


def value_from_json(stored: Any) -> Any:
    """Return the value that `value_to_json` stored."""
    if not isinstance(stored, dict):
        return stored
    [(name, form)] = stored.items()
    return _FROM_JSON[name](form)


# -- Petastorm's ---------------------------------------------------------------------------------------------------


def _for_petastorm(source: ParquetSource, indexers: Iterable[RowGroupIndexerBase]) -> bytes | None:
    """Return the shipped indexers as Petastorm pickles them; None where one holds values that it cannot have."""
    ordinal = np.flatnonzero(_chunk_of_ordinal(source) >= 0)
    made = {}
    for indexer in indexers:
        if type(indexer) in _KINDS.values():  # a class of others would not be opened
            held = {v: set(ordinal[sorted(indexer.get_row_group_indexes(v))].tolist()) for v in indexer.indexed_values}
            groups = held[NOT_NULL] if isinstance(indexer, FieldNotNullIndexer) else held
            made[indexer.index_name] = RowGroupIndex(indexer.index_name, next(iter(indexer.column_names)), groups)
    try:
        return dump_index(made)
    except SchemaError as error:
        logger.info("the row-group indexes are not stored for Petastorm, only our own: %s", error)
        return None


def _from_petastorm(pairs: dict[bytes, bytes], source: ParquetSource) -> dict[str, RowGroupIndexerBase]:
    """Make our indexers of Petastorm's, whose ordinals count empty row groups too."""
    _check_row_groups(pairs.get(ROW_GROUPS_PER_FILE_KEY), source)
    chunk_of = _chunk_of_ordinal(source)
    found: dict[str, RowGroupIndexerBase] = {}
    for name, index in load_index(pairs[PETASTORM_INDEX_KEY]).items():
        values = index.row_groups if isinstance(index.row_groups, dict) else {NOT_NULL: index.row_groups}
        made = (SingleFieldIndexer if isinstance(index.row_groups, dict) else FieldNotNullIndexer)(name, index.column)
        for value, ordinals in values.items():
            if ordinals and not 0 <= min(ordinals) <= max(ordinals) < len(chunk_of):
                raise _changed(source, f"{max(ordinals) + 1} or more")
            chunks = chunk_of[sorted(ordinals)]
            made.add(value, chunks[chunks >= 0].tolist())
        found[name] = made
    return found


def _chunk_of_ordinal(source: ParquetSource) -> NDArray[np.int64]:
    """Return the chunk of every row group of the dataset, -1 for those without rows."""
    some = np.array([rows > 0 for groups in source._rows for rows in groups], np.bool_)
    return np.where(some, np.cumsum(some) - 1, -1)


def _check_row_groups(stored: bytes | None, source: ParquetSource) -> None:
    """Compare the row groups of each file with what Petastorm counted when it wrote the dataset."""
    if stored is None:
        return
    try:
        then = {str(path): int(count) for path, count in json.loads(stored).items() if count}
    except (ValueError, TypeError, AttributeError) as exc:
        raise MetadataError(f"the stored numbers of row groups are damaged ({exc!r}); {_AGAIN}") from exc
    now = {path: len(rows) for path, rows in zip(source.facts.files, source._rows, strict=True) if rows}
    if then != now:
        raise _changed(source, sum(then.values()))
