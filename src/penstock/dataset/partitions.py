"""Read partition values from `key=value` folder names, type them, and make columns of them.

`parquet` hands over relative paths and gets for each key a value per file; `constant` makes the column of one chunk.
Datasets that Penstock wrote store the types of their partition columns; for others the texts decide, or a schema.
Knows no files: everything is in the path.
"""

from __future__ import annotations

import contextlib
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

    from numpy.typing import NDArray

NULL = "__HIVE_DEFAULT_PARTITION__"
_WHOLE = re.compile(r"0|-?[1-9][0-9]*")
"""Without leading zeros: as numbers `01` and `1`, or `-0` and `0`, would be one value, and they are two folders."""
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
    values: NDArray[np.int64] | list[Any]
    """Value per file; an array where they are int64 without nulls. None: null, or the path has no such key."""
    texts: list[str | None]
    """What the folder names say, per file."""
    scalars: Mapping[str | None, pa.Scalar] | None = None
    """The value of each text where a schema has given the type; of a dictionary type, a value of the dictionary."""

    def constant(self, file: int, num_rows: int) -> pa.Array:
        """Return the column of `num_rows` rows of that file."""
        value, kind = self.scalar(file), self.field.type
        if not value.is_valid:
            return pa.nulls(num_rows, kind)
        if not pa.types.is_dictionary(kind):
            return pa.repeat(value, num_rows)
        zeros = pa.py_buffer(np.zeros(num_rows * kind.index_type.bit_width // 8, np.uint8))
        indices = pa.Array.from_buffers(kind.index_type, num_rows, [None, zeros])
        return pa.DictionaryArray.from_arrays(indices, pa.repeat(value, 1), ordered=kind.ordered)

    def scalar(self, file: int) -> pa.Scalar:
        """Return the value of that file; of a dictionary type, a value of the dictionary."""
        if self.scalars is not None:
            return self.scalars[self.texts[file]]
        value = self.values[file]
        if value is None:
            return pa.nulls(1, self.field.type)[0]
        return _scalar(value, self.field.type)


def _scalar(value: Any, kind: pa.DataType) -> pa.Scalar:
    """Return an int64 or a text as Arrow, from buffers: `pa.scalar` imports pandas where it is installed."""
    if pa.types.is_int64(kind):
        return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(np.int64(value).tobytes())])[0]
    data = value.encode()
    offsets = np.array([0, len(data)], np.int32).tobytes()
    return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])[0]


def keys_of(relative: str) -> dict[str, str | None]:
    """Return the keys and undecided values in a path; the same key twice is the inner one.

    >>> keys_of("year=2024/city=S%C3%A3o/part-0.parquet")
    {'year': '2024', 'city': 'São'}
    """
    found: dict[str, str | None] = {}
    for part in relative.split("/")[:-1]:
        key, equals, value = part.partition("=")
        if equals and key:
            found[unquote(key)] = None if value == NULL else unquote(value)
    return found


def find_partitions(relatives: Sequence[str]) -> dict[str, Partition]:
    """Return the partition columns of files at these relative paths, in the order in which the keys appear."""
    by_folder: dict[str, dict[str, str | None]] = {}
    folders = [relative.rpartition("/")[0] for relative in relatives]
    for folder in folders:
        if folder not in by_folder:
            by_folder[folder] = keys_of(folder + "/")
    names = list(dict.fromkeys(key for keys in by_folder.values() for key in keys))
    return {name: _typed(name, [by_folder[folder].get(name) for folder in folders]) for name in names}


def _typed(name: str, texts: list[str | None]) -> Partition:
    known = {text for text in texts if text is not None}
    nullable = None in texts
    if known and all(_WHOLE.fullmatch(text) and int(text) in _INT64 for text in known):
        numbers = [None if text is None else int(text) for text in texts]
        values = numbers if nullable else np.fromiter(numbers, np.int64, len(numbers))
        return Partition(pa.field(name, pa.int64(), nullable), values, texts)
    return Partition(pa.field(name, pa.string(), nullable), list(texts), texts)


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
    scalars = {text: _cast(partition.field.name, text, arrow_type) for text in dict.fromkeys(partition.texts)}
    known = {text: _python(scalar) for text, scalar in scalars.items()}
    cast = [known[text] for text in partition.texts]
    array = np.array(cast, np.int64) if pa.types.is_int64(arrow_type) and None not in cast else cast
    return Partition(partition.field.with_type(arrow_type), array, partition.texts, scalars)


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
    found = _scalar(text, pa.string())
    if pa.types.is_timestamp(kind) and kind.tz and not _ZONE.search(text):  # instants are written in UTC
        found = found.cast(pa.timestamp(kind.unit))
    return found.cast(kind)


def _python(scalar: pa.Scalar) -> Any:
    """Return a value for Python; nanoseconds, which need pandas, only where microseconds do not tell it."""
    if pa.types.is_timestamp(scalar.type) and scalar.type.unit == "ns":
        with contextlib.suppress(pa.ArrowInvalid):
            scalar = scalar.cast(pa.timestamp("us", scalar.type.tz))
    return scalar.as_py()


def other_value(column: pa.ChunkedArray, name: str, relative: str, first_row: int = 0) -> str | None:
    """Say where a column that a file holds differs from the `name=value` folder that the file lies in; None: nowhere.

    The folder's text is read as a value of the column's type, so that `k=01` agrees with the number 1. `first_row` is
    the row with which the column begins.
    """
    import pyarrow.compute as pc

    keys = keys_of(relative)
    if name not in keys or not len(column):
        return None
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    folder = f"it lies in the folder {name}={NULL if keys[name] is None else keys[name]}"
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
