"""Schemas and rows that the Spark tests share: one field for every codec, null and partition; holds no tests.

Times are never null here: the real Petastorm cannot decode a null one.
"""

from __future__ import annotations

import datetime
import glob
from decimal import Decimal

import numpy as np
import pyarrow.parquet as pq

from penstock import Unischema, UnischemaField
from penstock.codecs import CompressedImageCodec, CompressedNdarrayCodec, NdarrayCodec, ScalarCodec
from penstock.codecs.scalar import SparkType


def scalar(name, **more):
    return ScalarCodec(SparkType(f"{name}Type", **more))


EVERY = Unischema(
    "Every",
    [
        UnischemaField("id", np.int64, (), scalar("Long"), False),
        UnischemaField("part", np.str_, (), scalar("String"), False),
        UnischemaField("tiny", np.uint8, (), None, False),
        UnischemaField("small", np.int16, (), scalar("Short"), True),
        UnischemaField("flag", np.bool_, (), scalar("Boolean"), True),
        UnischemaField("half", np.float32, (), scalar("Float"), False),
        UnischemaField("real", np.float64, (), None, True),
        UnischemaField("text", np.str_, (), None, True),
        UnischemaField("price", Decimal, (), scalar("Decimal", precision=12, scale=3), True),
        UnischemaField("when", np.datetime64, (), scalar("Timestamp"), False),
        UnischemaField("blob", np.bytes_, (), scalar("Binary"), True),
        UnischemaField("matrix", np.float32, (3, 2), NdarrayCodec(), False),
        UnischemaField("ragged", np.int32, (None,), NdarrayCodec(), True),
        UnischemaField("words", np.str_, (2,), NdarrayCodec(), True),
        UnischemaField("packed", np.float64, (None, 4), CompressedNdarrayCodec(), True),
        UnischemaField("grey", np.uint8, (8, 6), CompressedImageCodec("png"), False),
        UnischemaField("colour", np.uint8, (None, None, 3), CompressedImageCodec("jpeg", 90), True),
        UnischemaField("deep", np.uint16, (4, 4), CompressedImageCodec("png"), True),
    ],
)


def every_row(i):
    """Return row `i` of EVERY: all values, or every nullable one null."""
    rng = np.random.default_rng(i)
    row = {
        "id": np.int64(i),
        "part": f"p{i % 3}",
        "tiny": np.uint8(200 + i % 50),
        "half": np.float32(i / 3),
        "when": np.datetime64("2024-01-02T03:04:05.678901") + np.timedelta64(i, "h"),
        "matrix": rng.random((3, 2)).astype(np.float32),
        "grey": rng.integers(0, 256, (8, 6), dtype=np.uint8),
    }
    if i % 4 == 3:
        return row
    return row | {
        "small": np.int16(-i),
        "flag": bool(i % 2),
        "real": np.pi * i,
        "text": f"row {i} é",
        "price": Decimal(i) / 8,
        "blob": bytes([i % 256, 0, 255]),
        "ragged": np.arange(i % 5, dtype=np.int32),
        "words": np.array([f"w{i}", "ü"]),
        "packed": rng.random((i % 3, 4)),
        "colour": np.full((5 + i % 2, 7, 3), i % 256, np.uint8),
        "deep": rng.integers(0, 65536, (4, 4), dtype=np.uint16),
    }


def url_of(path):
    return f"file://{path}"


def same(one, other):
    """Whether two decoded values are equal: arrays by dtype, shape and elements, NaN equal to itself."""
    if one is None or other is None:
        return one is other
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and np.array_equal(one, other)
    if isinstance(one, np.datetime64 | datetime.datetime):
        return np.datetime64(one, "us") == np.datetime64(other, "us")
    return one == other


def assert_rows(found, expected):
    """Check rows (named tuples or dicts) against dicts of values, by `id`; a missing key is a null."""
    rows = sorted((row if isinstance(row, dict) else row._asdict() for row in found), key=lambda row: row["id"])
    expected = sorted(expected, key=lambda row: row["id"])
    assert [int(row["id"]) for row in rows] == [int(row["id"]) for row in expected]
    for row, wanted in zip(rows, expected, strict=True):
        for name, value in row.items():
            assert same(value, wanted.get(name)), (int(row["id"]), name, value, wanted.get(name))


def group_bytes(folder):
    """Return the bytes of every row group in the files of a folder, file by file, the last of each file left out."""
    sizes = []
    for path in sorted(glob.glob(f"{folder}/**/*.parquet", recursive=True)):
        footer = pq.read_metadata(path)
        groups = [footer.row_group(i) for i in range(footer.num_row_groups - 1)]
        sizes += [sum(g.column(c).total_compressed_size for c in range(g.num_columns)) for g in groups]
    return sizes
