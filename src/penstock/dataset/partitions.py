"""Read partition values from `key=value` folder names, type them, and make columns of them.

`parquet` hands over relative paths and gets for each key a value per file; `constant` makes the column of one chunk.
Knows no files: everything is in the path.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from penstock.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

NULL = "__HIVE_DEFAULT_PARTITION__"
_WHOLE = re.compile(r"-?[0-9]+")
_ZONE = re.compile(r":.*(Z|[+-]\d\d(:?\d\d)?)$")
"""A time of day with its zone."""
_INT64 = range(-(1 << 63), 1 << 63)


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition column."""

    field: pa.Field
    """Name and type: int64 if every value is a whole number, else string, or what a schema says."""
    values: NDArray[np.int64] | list[Any]
    """Value per file; an array where they are int64 without nulls. None: null, or the path has no such key."""
    texts: list[str | None]
    """What the folder names say, per file."""

    def constant(self, file: int, num_rows: int) -> pa.Array:
        """Return the column of `num_rows` rows of that file."""
        value = self.scalar(file)
        return pa.repeat(value, num_rows) if value.is_valid else pa.nulls(num_rows, self.field.type)

    def scalar(self, file: int) -> pa.Scalar:
        """Return the value of that file."""
        value = self.values[file]
        if value is None:
            return pa.nulls(1, self.field.type)[0]
        return _scalar(value, self.field.type)


def _scalar(value: Any, kind: pa.DataType) -> pa.Scalar:
    """Return a value as Arrow: numbers and text from buffers, since `pa.scalar` imports pandas where there is one."""
    if pa.types.is_int64(kind):
        return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(np.int64(value).tobytes())])[0]
    if pa.types.is_string(kind):
        data = value.encode()
        offsets = np.array([0, len(data)], np.int32).tobytes()
        return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])[0]
    return pa.scalar(value, kind)


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


def cast_partition(partition: Partition, arrow_type: pa.DataType) -> Partition:
    """Return the partition with the type that a schema asks for, made from the texts in the folder names.

    Raises:
        SchemaError: a folder name does not hold such a value.
    """
    if partition.field.type == arrow_type:
        return partition
    values = {text: _cast(partition.field.name, text, arrow_type) for text in dict.fromkeys(partition.texts)}
    cast = [values[text] for text in partition.texts]
    array = np.array(cast, np.int64) if pa.types.is_int64(arrow_type) and None not in cast else cast
    return Partition(partition.field.with_type(arrow_type), array, partition.texts)


def _cast(name: str, text: str | None, arrow_type: pa.DataType) -> Any:
    if text is None:
        return None
    try:
        if pa.types.is_timestamp(arrow_type) and arrow_type.tz and not _ZONE.search(text):  # instants, told in UTC
            return pa.scalar(text, pa.string()).cast(pa.timestamp(arrow_type.unit)).cast(arrow_type).as_py()
        return pa.scalar(text, pa.string()).cast(arrow_type).as_py()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as exc:
        raise SchemaError(
            f"the folder {name}={text} does not hold a value of type {arrow_type}, which the schema asks for ({exc}); "
            f"give {name!r} another type through schema=, or rename the folder"
        ) from exc
