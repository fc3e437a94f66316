"""Datasets and comparisons for the tests of the TensorFlow hand-over."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import penstock

if TYPE_CHECKING:
    from pathlib import Path

ROWS = 100


def numbers(path: Path, rows: int = ROWS) -> str:
    """Write numbers, small images and texts in many row groups."""
    rng = np.random.default_rng(0)
    columns = {
        "x": np.arange(rows),
        "image": rng.integers(0, 256, (rows, 4, 3), dtype=np.uint8),
        "text": [f"row {row} ü" for row in range(rows)],
    }
    penstock.write(columns, path, row_group_bytes=600)
    return str(path)


def everything(path: Path, rows: int = 24) -> str:
    """Write a column of every kind with a tensor form, without nulls but where the name says so."""
    day = datetime.date(2024, 2, 28)
    moment = datetime.datetime(2024, 2, 28, 1, 2, 3, 4000)
    columns: dict[str, pa.Array] = {
        kind: pa.array([row % 100 for row in range(rows)], getattr(pa, kind)())
        for kind in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64")
    }
    columns["half"] = pa.array(np.arange(rows, dtype=np.float16))
    columns["bool"] = pa.array([row % 3 == 0 for row in range(rows)])
    columns["text"] = pa.array([f"{row} ü" for row in range(rows)])
    columns["bytes"] = pa.array([bytes([row, 255]) for row in range(rows)])
    columns["decimal"] = pa.array([Decimal(f"{row}.50") for row in range(rows)], pa.decimal128(8, 2))
    columns["day"] = pa.array([day + datetime.timedelta(row) for row in range(rows)])
    columns["moment"] = pa.array([moment + datetime.timedelta(row) for row in range(rows)], pa.timestamp("us"))
    columns["span"] = pa.array([datetime.timedelta(seconds=row) for row in range(rows)], pa.duration("ms"))
    columns["fixed"] = pa.array([[row, row + 1] for row in range(rows)], pa.list_(pa.int32(), 2))
    columns["list"] = pa.array([list(range(row % 4)) for row in range(rows)], pa.list_(pa.float32()))
    columns["texts"] = pa.array([["a"] * (row % 3) for row in range(rows)])
    columns["nested"] = pa.array([[[row], [], [1, 2]][: row % 4] for row in range(rows)])
    columns["null_int"] = pa.array([None if row % 5 == 0 else row for row in range(rows)])
    columns["null_float"] = pa.array([None if row % 5 == 1 else row / 2 for row in range(rows)])
    columns["null_text"] = pa.array([None if row % 5 == 2 else str(row) for row in range(rows)])
    columns["null_list"] = pa.array([None if row % 5 == 3 else [row] for row in range(rows)])
    columns["struct"] = pa.array([{"a": row, "b": str(row)} for row in range(rows)])
    path.mkdir(parents=True)
    pq.write_table(pa.table(columns), path / "a.parquet", row_group_size=7)
    return str(path)


def ids(batches: Any, name: str = "x") -> list[list[int]]:
    """Return the numbers of every batch."""
    return [np.asarray(batch[name]).tolist() for batch in batches]
