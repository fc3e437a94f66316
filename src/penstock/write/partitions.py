"""Rows to the folders of a Hive-partitioned dataset.

Sits between the encoded batches and `files`: says which rows go to which folder (`country=NZ/year=2024`). Values are
%-encoded, a null is `__HIVE_DEFAULT_PARTITION__`, booleans are `true` and `false`, as Hive, Spark and pyarrow write
them. Opens nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from penstock.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

NULL = "__HIVE_DEFAULT_PARTITION__"


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
    rows = [numbers.setdefault(value, len(numbers)) for value in column.to_pylist()]
    return [f"{quote(name, safe='')}={segment(name, value)}" for value in numbers], np.array(rows, np.int64)


def segment(name: str, value: Any) -> str:
    """Return the text of a partition value in a folder name."""
    if value is None:
        return NULL
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    if text in ("", NULL):
        raise SchemaError(
            f"partition_by: column {name!r} has the value {text!r}, which reads back as null; use another value or None"
        )
    return quote(text, safe="")


def _indices(order: NDArray[np.intp]) -> Any:
    import pyarrow as pa

    values = np.ascontiguousarray(order, np.int64)
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])
