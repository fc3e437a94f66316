"""Datasets for tests: odd row groups, values of every kind, rows for any schema. All random values follow from a seed.

`make_parquet` writes plain Parquet, with row groups of exactly the given sizes, without `penstock.write`;
`random_rows` makes values for a Unischema, to be written by it. Nothing here is fast or large.
"""

from __future__ import annotations

import decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from penstock.schema.unischema import Unischema, UnischemaField

    Columns = Callable[[NDArray[np.int64]], Mapping[str, Any]]

ODD_FILES = ((5, 1, 8), (3,), (), (2, 13, 1, 4), (7, 7))
"""Rows of the row groups of five files, one of them empty: 51 rows."""


def numbers(rows: NDArray[np.int64]) -> dict[str, Any]:
    """Return the columns `id` (the row's number in the dataset) and `value` (float32, half of it)."""
    return {"id": pa.array(rows), "value": pa.array((rows / 2).astype(np.float32))}


def mixed(rows: NDArray[np.int64]) -> dict[str, Any]:
    """Return columns of many kinds, nulls among them: numbers, bool, string, binary, time, decimal, lists."""
    ids = rows.tolist()
    lists = [None if i % 7 == 3 else list(range(i % 4)) for i in ids]
    money = [None if i % 11 == 5 else decimal.Decimal(i).scaleb(-2) for i in ids]
    return {
        "id": pa.array(rows),
        "small": pa.array([None if i % 5 == 2 else i % 100 for i in ids], pa.int8()),
        "flag": pa.array([None if i % 6 == 1 else i % 3 == 0 for i in ids], pa.bool_()),
        "text": pa.array([None if i % 4 == 1 else f"row {i} \u00e9" for i in ids], pa.string()),
        "blob": pa.array([None if i % 9 == 4 else bytes([i % 256]) * (i % 5) for i in ids], pa.binary()),
        "when": pa.array([None if i % 8 == 6 else i * 1_000_003 for i in ids], pa.timestamp("us")),
        "money": pa.array(money, pa.decimal128(10, 2)),
        "ragged": pa.array(lists, pa.list_(pa.int32())),
        "pair": pa.array([[i, -i] for i in ids], pa.list_(pa.float32(), 2)),
    }


def make_parquet(
    folder: str | os.PathLike[str],
    files: Sequence[Sequence[int]] = ODD_FILES,
    *,
    columns: Columns = numbers,
    metadata: Mapping[bytes, bytes] | None = None,
) -> Path:
    """Write a dataset whose row groups have exactly the given numbers of rows, and return its folder.

    Args:
        folder: made if it is not there; files are `part-00000.parquet` and so on.
        files: for each file, the rows of its row groups; `()` gives a file without any.
        columns: gives the columns of some rows, from the rows' numbers in the dataset: `numbers`, `mixed` or your own.
        metadata: key-value pairs for every footer.
    """
    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    schema = pa.table(columns(np.arange(0, dtype=np.int64))).schema.with_metadata(metadata)
    start = 0
    for number, groups in enumerate(files):
        with pq.ParquetWriter(root / f"part-{number:05d}.parquet", schema) as writer:
            for count in groups:
                rows = np.arange(start, start + count, dtype=np.int64)
                writer.write_table(pa.table(columns(rows), schema=schema), row_group_size=max(count, 1))
                start += count
    return root


def random_rows(schema: Unischema, count: int, *, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield `count` rows of values that fit the schema; about one in five is None where the field is nullable.

    A free dimension gets 1 to 5. Equal seeds give equal rows.
    """
    rng = np.random.default_rng(seed)
    for _ in range(count):
        yield {name: random_value(field, rng) for name, field in schema.fields.items()}


def random_value(field: UnischemaField, rng: np.random.Generator) -> Any:
    """Return one value that fits the field, or sometimes None where it is nullable."""
    if field.nullable and rng.random() < 0.2:
        return None
    shape = tuple(int(rng.integers(1, 6)) if size is None else size for size in field.shape)
    if field.numpy_dtype is decimal.Decimal:
        return decimal.Decimal(int(rng.integers(-9_999, 10_000))).scaleb(-2)
    dtype = np.dtype(field.numpy_dtype)
    if dtype.kind in "US":
        words = ["", "a", "\u00e9t\u00e9", "penstock", "\u6c34"] if dtype.kind == "U" else [b"", b"a", b"\xff\x01"]
        values = rng.choice(np.array(words), shape or None)
        return values if shape else values.item()
    values = _random_bits(dtype, shape, rng)
    return values if shape else values[()]


def _random_bits(dtype: np.dtype[Any], shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[Any]:
    if dtype.kind == "f":
        return np.asarray(rng.standard_normal(shape)).astype(dtype)
    if dtype.kind == "b":
        return np.asarray(rng.integers(0, 2, shape)).astype(dtype)
    if dtype.kind in "mM":
        return np.asarray(rng.integers(0, 1 << 40, shape)).astype(np.dtype(f"{dtype.kind}8[us]"))
    limits = np.iinfo(dtype)
    return np.asarray(rng.integers(limits.min, limits.max, shape, dtype, endpoint=True))
