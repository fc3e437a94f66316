"""Partition columns: read their values from `key=value` folder names, type them, and make columns of them.

`find_partitions` returns for each key one value per file; `Partition.constant` makes the column of a chunk. Datasets
that Penstock wrote store the types of their partition columns; for others the texts decide, or a schema. Opens no file.
"""

from __future__ import annotations

import contextlib
import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from penstock.codecs.arrow_kinds import scalar_dtype
from penstock.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.dataset.catalog import DataFile

NULL = "__HIVE_DEFAULT_PARTITION__"
_WHOLE = re.compile(r"0|-?[1-9][0-9]*")
"""Without leading zeros: as numbers `01` and `1`, or `-0` and `0`, would be equal, but they are two folders."""
_ZONE = re.compile(r":.*(Z|[+-]\d\d(:?\d\d)?)$")
"""A time of day with its zone."""
_INT64 = range(-(1 << 63), 1 << 63)
_FOLDER_KINDS = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_boolean,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_date,
    pa.types.is_timestamp,
    pa.types.is_decimal128,
    pa.types.is_decimal256,
)


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition column."""

    field: pa.Field
    """Name and type: int64 if every value is a whole number, else string, or what a schema says."""
    values: pa.Array
    """Value of each file; plain values if the type is a dictionary. Null for `NULL`, and for paths without the key."""
    texts: list[str | None]
    """What the folder names say, per file."""

    def constant(self, file: int, num_rows: int) -> pa.Array:
        """Return the column of `num_rows` rows of that file."""
        value, kind = self.values[file], self.field.type
        if not value.is_valid:
            return pa.nulls(num_rows, kind)
        if not pa.types.is_dictionary(kind):
            return pa.repeat(value, num_rows)
        zeros = pa.py_buffer(np.zeros(num_rows * kind.index_type.bit_width // 8, np.uint8))
        indices = pa.Array.from_buffers(kind.index_type, num_rows, [None, zeros])
        return pa.DictionaryArray.from_arrays(indices, pa.repeat(value, 1), ordered=kind.ordered)


def _text_array(texts: Sequence[str | None]) -> pa.Array:
    """Return strings as Arrow, made from buffers because `pa.array` imports pandas if it is installed."""
    cells = [b"" if text is None else text.encode() for text in texts]
    offsets = np.concatenate([[0], np.cumsum([len(cell) for cell in cells])]).astype(np.int32)
    buffers = [_validity(texts), pa.py_buffer(offsets), pa.py_buffer(b"".join(cells))]
    return pa.Array.from_buffers(pa.string(), len(cells), buffers)


def _validity(values: Sequence[Any]) -> pa.Buffer | None:
    if None not in values:
        return None
    return pa.py_buffer(np.packbits([value is not None for value in values], bitorder="little"))


def keys_of(relative: str) -> dict[str, str | None]:
    """Return the keys and their untyped values in a path; of a key that occurs twice, the inner value.

    >>> keys_of("year=2024/city=S%C3%A3o/part-0.parquet")
    {'year': '2024', 'city': 'São'}
    """
    found: dict[str, str | None] = {}
    for part in relative.split("/")[:-1]:
        key, equals, value = part.partition("=")
        if equals and key:
            found[unquote(key)] = None if value == NULL else unquote(value)
    return found


def find_partitions(files: Sequence[DataFile]) -> dict[str, Partition]:
    """Return the columns that are constant in each file, in the order in which their names appear.

    They are those that the catalog gives, or else the keys of the folders in the path.
    """
    of_folder = functools.cache(keys_of)
    found = [
        of_folder(f"{file.relative.rpartition('/')[0]}/") if file.constants is None else file.constants
        for file in files
    ]
    names = dict.fromkeys(key for keys in {id(keys): keys for keys in found}.values() for key in keys)
    return {name: _typed(name, [keys.get(name) for keys in found]) for name in names}


def partition_types_of(stored: Sequence[tuple[Mapping[str, pa.DataType], str]]) -> dict[str, pa.DataType]:
    """Return the types with which partition columns were written; `stored` has those that files store, and which do.

    Raises:
        SchemaError: Files were written with different types.
    """
    found: dict[str, tuple[pa.DataType, str]] = {}
    for types, path in stored:
        for name, kind in types.items():
            known, where = found.setdefault(name, (kind, path))
            if known != kind:
                raise SchemaError(
                    f"the files disagree: the partition column {name!r} was written as {kind} in {path} but as "
                    f"{known} in {where}; open them apart, or give {name!r} one type through schema="
                )
    return {name: kind for name, (kind, _) in found.items()}


def _typed(name: str, texts: list[str | None]) -> Partition:
    known = {text for text in texts if text is not None}
    nullable = None in texts
    if known and all(_WHOLE.fullmatch(text) and int(text) in _INT64 for text in known):
        numbers = np.array([int(text or 0) for text in texts], np.int64)
        values = pa.Array.from_buffers(pa.int64(), len(texts), [_validity(texts), pa.py_buffer(numbers)])
        return Partition(pa.field(name, pa.int64(), nullable), values, texts)
    return Partition(pa.field(name, pa.string(), nullable), _text_array(texts), texts)


def can_be_folder(kind: pa.DataType) -> bool:
    """Tell whether values of a type can be written as folder names and read back exactly (see `parse`)."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return any(is_kind(kind) for is_kind in _FOLDER_KINDS)


def cast_partition(partition: Partition, arrow_type: pa.DataType) -> Partition:
    """Return the partition with the type that a schema asks for, made from the texts in the folder names.

    Raises:
        SchemaError: a folder name does not hold such a value.
    """
    if partition.field.type == arrow_type:
        return partition
    known = {text: place for place, text in enumerate(dict.fromkeys(partition.texts))}
    values = pa.concat_arrays([pa.repeat(_cast(partition.field.name, text, arrow_type), 1) for text in known])
    places = np.array([known[text] for text in partition.texts], np.int64)
    index = pa.Array.from_buffers(pa.int64(), len(places), [None, pa.py_buffer(places)])
    return Partition(partition.field.with_type(arrow_type), values.take(index), partition.texts)


def _cast(name: str, text: str | None, arrow_type: pa.DataType) -> pa.Scalar:
    try:
        return parse(text, arrow_type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as exc:
        raise SchemaError(
            f"the folder {name}={text} does not hold a value of type {arrow_type}, which the schema asks for ({exc}); "
            f"give {name!r} another type through schema=, or rename the folder"
        ) from exc


def parse(text: str | None, kind: pa.DataType) -> pa.Scalar:
    """Return the value that a folder name holds (None: null), as a type; of a dictionary type, as that of its values.

    Raises:
        ArrowInvalid, ArrowNotImplementedError, ValueError: the text is not a value of the type.
    """
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if text is None:
        return pa.nulls(1, kind)[0]
    most = float(np.finfo(scalar_dtype(kind)).max) if pa.types.is_floating(kind) else None
    if most is not None and abs(float(text)) > most and "inf" not in text.lower():  # Arrow takes it for infinity
        raise ValueError(f"{text} is larger than any {kind}")
    if pa.types.is_float16(kind):  # pyarrow 14 does not cast text to it
        return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(np.float16(text).tobytes())])[0]
    found = _text_array([text])[0]
    if pa.types.is_timestamp(kind) and kind.tz and not _ZONE.search(text):  # instants are written in UTC
        found = found.cast(pa.timestamp(kind.unit))
    return found.cast(kind)


def python_values(values: pa.Array) -> list[Any]:
    """Return Python values; nanoseconds, which need pandas, only if microseconds cannot represent them."""
    if pa.types.is_timestamp(values.type) and values.type.unit == "ns":
        with contextlib.suppress(pa.ArrowInvalid):
            values = values.cast(pa.timestamp("us", values.type.tz))
    return list(values.to_pylist())


def other_value(column: pa.ChunkedArray, name: str, relative: str, first_row: int = 0) -> str | None:
    """Return how a column of a file contradicts the `name=value` folder that the file is in; None if it does not.

    The folder's text is read as a value of the column's type, so that `k=01` agrees with the number 1. `first_row` is
    the number of the first row of the column.
    """
    import pyarrow.compute as pc

    keys = keys_of(relative)
    if name not in keys or not len(column):
        return None
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    folder = f"it is in the folder {name}={NULL if keys[name] is None else keys[name]}"
    try:
        value = parse(keys[name], column.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError):
        return f"{folder}, and the column is {column.type}"
    if not value.is_valid:
        same = column.is_null()
    elif pa.types.is_floating(column.type) and np.isnan(value.as_py()):
        same = pc.is_nan(column)
    else:
        same = pc.equal(column, value)
    first = pc.index(pc.fill_null(same, False), False).as_py()
    return None if first < 0 else f"{folder}, and holds {column[first].as_py()!r} in row {first_row + first}"
