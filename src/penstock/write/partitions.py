"""Rows to the folders of a Hive-partitioned dataset.

Stands between the encoded batches and `files`: decides which rows go to which folder (`country=NZ/year=2024`). Values
are %-encoded like Hive and Spark do (Petastorm decodes none, so a space stays a space), null is
`__HIVE_DEFAULT_PARTITION__`, booleans are `true` and `false`, instants are times in UTC. The types of the columns are
stored with the schema (see `layout`); a value that would not read back unchanged is refused. Opens nothing.
"""

from __future__ import annotations

import datetime
import decimal
import re
from typing import TYPE_CHECKING

import numpy as np

from penstock.dataset.partitions import NULL, parse
from penstock.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

_ESCAPED = re.compile(r"""[\x00-\x1f\x7f"#%'*/:=?\\{\[\]^]""")
"""Hive's list."""
_MOST_BYTES = 255
"""Longest name of a folder on nearly all file systems."""


def split(batch: pa.RecordBatch, names: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield each folder and its rows, folders by first appearance, rows in order; without names the batch itself."""
    if not names:
        yield "", batch
        return
    folders, inverse = _folders(batch, names)
    if len(folders) == 1:
        yield folders[0], batch
        return
    order = np.argsort(inverse, kind="stable")
    counts = np.bincount(inverse, minlength=len(folders))
    first = np.cumsum(counts) - counts
    import pyarrow as pa

    indices = np.ascontiguousarray(order, np.int64)
    rows = batch.take(pa.Array.from_buffers(pa.int64(), len(indices), [None, pa.py_buffer(indices)]))
    for i in np.argsort(order[first], kind="stable").tolist():
        yield folders[i], rows.slice(int(first[i]), int(counts[i]))


def _folders(batch: pa.RecordBatch, names: Sequence[str]) -> tuple[list[str], NDArray[np.intp]]:
    """Return the distinct folders and, for each row, the index of its folder."""
    codes = np.zeros(batch.num_rows, np.int64)
    texts: list[list[str]] = []
    for name in names:
        words, numbers = _segments(name, batch.column(batch.schema.get_field_index(name)))
        codes = codes * len(words) + numbers
        texts.append(words)
    distinct, inverse = np.unique(codes, return_inverse=True)
    return [_path(int(code), texts) for code in distinct], inverse.reshape(-1)


def _path(code: int, texts: list[list[str]]) -> str:
    parts: list[str] = []
    for words in reversed(texts):
        code, digit = divmod(code, len(words))
        parts.append(words[digit])
    return "/".join(reversed(parts))


def _segments(name: str, column: pa.Array) -> tuple[list[str], NDArray[np.int64]]:
    """Return the distinct `name=value` texts of a column and, for each row, the index of its text."""
    values, codes = _distinct(column)
    used, rows = np.unique(codes, return_inverse=True)
    numbers: dict[str, int] = {}  # by text: 0.0 equals -0.0 and nan does not equal nan
    texts = [NULL if code < 0 else segment(name, values[code], column.type) for code in used.tolist()]
    found = np.array([numbers.setdefault(text, len(numbers)) for text in texts], np.int64)
    return [f"{_escaped(name)}={text}" for text in numbers], found[rows.reshape(-1)]


def _distinct(column: pa.Array) -> tuple[pa.Array, NDArray[np.int64]]:
    """Return the values of a column, most of them once, and for each row the index of its value, -1 for null."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        values, indices = column.dictionary, column.indices
    elif pa.types.is_floating(column.type):  # by their bits: 0.0 equals -0.0
        encoded = column.view(f"uint{column.type.bit_width}").dictionary_encode()
        values, indices = encoded.dictionary.view(column.type), encoded.indices
    else:
        encoded = column.dictionary_encode()
        values, indices = encoded.dictionary, encoded.indices
    codes = indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    if values.null_count:
        nulls = values.is_null().to_numpy(zero_copy_only=False)
        codes = np.where((codes >= 0) & nulls[codes], -1, codes)
    return values, codes


def segment(name: str, value: pa.Scalar, kind: pa.DataType) -> str:
    """Return the text of a partition value in a folder name; raises SchemaError if it would not read back the same."""
    text = _text(name, value)
    escaped = _escaped(text)
    if text in ("", NULL):
        raise SchemaError(
            f"partition_by: column {name!r} has the value {text!r}, which reads back as null; use another value or None"
        )
    if len(f"{_escaped(name)}={escaped}".encode()) > _MOST_BYTES:
        raise SchemaError(
            f"partition_by: column {name!r} has the value {text[:40]!r}..., whose folder name would be longer than "
            f"{_MOST_BYTES} bytes, the limit of most file systems; use a shorter value"
        )
    try:
        same = parse(text, kind).equals(value) or text == "nan"
    except (ValueError, NotImplementedError):  # pyarrow's are both
        same = False
    if not same:
        raise SchemaError(f"partition_by: column {name!r} has the value {text}, which a folder name cannot represent")
    return escaped


def _text(name: str, value: pa.Scalar) -> str:
    import pyarrow as pa

    kind = value.type
    try:
        if pa.types.is_timestamp(kind) and kind.unit == "ns":
            value = value.cast(pa.timestamp("us", kind.tz))
        found = value.as_py()
    except pa.ArrowInvalid as error:
        raise SchemaError(
            f"partition_by: column {name!r} has nanoseconds, which folder names cannot represent ({error}); round it "
            "to microseconds"
        ) from error
    except (OverflowError, ValueError) as error:
        raise SchemaError(f"partition_by: column {name!r} has a date outside the years 1 to 9999 ({error})") from error
    if isinstance(found, bool):
        return "true" if found else "false"
    if isinstance(found, decimal.Decimal):
        return format(found, "f")  # as digits: not every reader takes 1E-7
    if isinstance(found, datetime.datetime):
        if found.tzinfo is not None:
            found = found.astimezone(datetime.UTC).replace(tzinfo=None)
        return str(found)[:23] if kind.unit == "ms" else str(found)
    return str(found)


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)
