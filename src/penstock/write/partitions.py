"""Rows to the folders of a Hive-partitioned dataset.

Sits between the encoded batches and `files`: says which rows go to which folder (`country=NZ/year=2024`). Values are
%-encoded where Hive and Spark do it (Petastorm decodes none, so a space stays a space), a null is
`__HIVE_DEFAULT_PARTITION__`, booleans are `true` and `false`, instants are times in UTC. Opens nothing.
"""

from __future__ import annotations

import datetime
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

NULL = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED = re.compile(r"""[\x00-\x1f\x7f"#%'*/:=?\\{\[\]^]""")
"""Hive's list."""


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
    rows = batch.take(_indices(order))
    for i in np.argsort(order[first], kind="stable").tolist():
        yield folders[i], rows.slice(int(first[i]), int(counts[i]))


def _folders(batch: pa.RecordBatch, names: Sequence[str]) -> tuple[list[str], NDArray[np.intp]]:
    """Return the distinct folders and, for each row, which one it belongs to."""
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
    """Return the distinct `name=value` texts of a column and each row's number among them."""
    numbers: dict[Any, int] = {}
    rows = [numbers.setdefault(value, len(numbers)) for value in _values(name, column)]
    return [f"{_escaped(name)}={segment(name, value)}" for value in numbers], np.array(rows, np.int64)


def _values(name: str, column: pa.Array) -> list[Any]:
    import pyarrow as pa

    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        try:
            column = column.cast(pa.timestamp("us", column.type.tz))
        except pa.ArrowInvalid as error:
            raise SchemaError(
                f"partition_by: column {name!r} has nanoseconds, which folder names do not keep ({error}); round it "
                "to microseconds"
            ) from error
    return list(column.to_pylist())


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


def segment(name: str, value: Any) -> str:
    """Return the text of a partition value in a folder name."""
    if value is None:
        return NULL
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        value = value.astimezone(datetime.UTC).replace(tzinfo=None)
    text = str(value)
    if text in ("", NULL):
        raise SchemaError(
            f"partition_by: column {name!r} has the value {text!r}, which reads back as null; use another value or None"
        )
    return _escaped(text)


def _indices(order: NDArray[np.intp]) -> Any:
    import pyarrow as pa

    values = np.ascontiguousarray(order, np.int64)
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])
