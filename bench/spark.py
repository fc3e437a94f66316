"""Rows a second that Spark writes: `penstock.spark.write` beside the RDD path, in pairs, as a Markdown table.

Two schemas: **scan**, ten scalars and one float32 array of (4096, 3) stored as `.npy`; **hello**, Petastorm's
hello-world schema (an int32, a PNG of 128x256x3 and an array of (?, 128, 30, ?)). Both sides of a pair write the same
rows from the same source, in one session on the cores of this machine, taking turns; figures are medians. The RDD path
is what Petastorm's users write: `dict_to_spark_row` over an RDD, `createDataFrame`, Spark's Parquet writer, within
`materialize_dataset`. Sources:

- **made**: rows made in the executors as NumPy values, by a function: `rdd.map(function)` on one side, `transform=`
  over a DataFrame of numbers on the other. Nothing is read: making a row is all that its input costs.
- **lists**: a DataFrame that Spark reads from Parquet, arrays as nested lists, images as raw bytes; `df.rdd` and NumPy
  on one side, `df` itself on the other. Slow on both: 4,096 small lists a row.
- **bytes** (scan only): such a DataFrame with the array as raw bytes.

How to read it: `penstock.spark.write` spares the pickling of rows to the JVM and the writing there; what Spark needs to
read the source it needs on both sides. On **hello** PNG encoding is the bound.

Usage: `python bench/spark.py --folder FOLDER [--rows 20000] [--pairs 3] [--cores 2] [--all]`.
Needs pyspark and Java.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import penstock.spark
from penstock import Unischema, UnischemaField
from penstock.codecs import CompressedImageCodec, NdarrayCodec, ScalarCodec
from penstock.codecs.scalar import SparkType
from penstock.spark import dict_to_spark_row, materialize_dataset

if TYPE_CHECKING:
    from collections.abc import Callable

SCALARS = [f"s{i}" for i in range(10)]
SCAN = Unischema(
    "Scan",
    [
        *(
            UnischemaField(name, np.float64 if i % 2 else np.int64, (), ScalarCodec(SparkType(kind)), False)
            for i, (name, kind) in enumerate(zip(SCALARS, ["LongType", "DoubleType"] * 5, strict=True))
        ),
        UnischemaField("points", np.float32, (4096, 3), NdarrayCodec(), False),
    ],
)
HELLO = Unischema(
    "HelloWorld",
    [
        UnischemaField("id", np.int32, (), ScalarCodec(SparkType("IntegerType")), False),
        UnischemaField("image1", np.uint8, (128, 256, 3), CompressedImageCodec("png"), False),
        UnischemaField("array_4d", np.uint8, (None, 128, 30, None), NdarrayCodec(), False),
    ],
)


def scan_row(i: int) -> dict[str, Any]:
    """Return row `i` of the scan schema; cheap, so that it does not count."""
    row: dict[str, Any] = {name: float(i + k) if k % 2 else i + k for k, name in enumerate(SCALARS)}
    return {**row, "points": _POINTS[i % 8]}


def hello_row(i: int) -> dict[str, Any]:
    """Return row `i` of the hello-world schema."""
    return {"id": np.int32(i), "image1": _IMAGES[i % 8], "array_4d": _ARRAYS[i % 8]}


_RNG = np.random.default_rng(0)
_POINTS = _RNG.random((8, 4096, 3), np.float32)
_IMAGES = _RNG.integers(0, 255, (8, 128, 256, 3), dtype=np.uint8)
_ARRAYS = _RNG.integers(0, 255, (8, 4, 128, 30, 3), dtype=np.uint8)


def plain(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return a row as a DataFrame holds it: images as raw bytes, arrays as lists."""
    return tuple(
        bytearray(v.tobytes()) if k == "image1" else v.tolist() if isinstance(v, np.ndarray | np.generic) else v
        for k, v in row.items()
    )


def by_rdd(spark: Any, rows: Any, schema: Unischema, url: str) -> None:
    """Write rows as Petastorm's users do."""
    with materialize_dataset(spark, url, schema, row_group_size_mb=16):
        encoded = rows.map(lambda row: dict_to_spark_row(schema, row))
        spark.createDataFrame(encoded, schema.as_spark_schema()).write.mode("overwrite").parquet(url)


def from_frame(schema: Unischema) -> Callable[[Any], dict[str, Any]]:
    """Return what makes NumPy values of a DataFrame's row."""

    def values(row: Any) -> dict[str, Any]:
        found = {}
        for name, field in schema.fields.items():
            value = row[name]
            if isinstance(value, bytes | bytearray):
                value = np.frombuffer(value, field.numpy_dtype).reshape(field.shape)
            elif field.shape:
                value = np.array(value, field.numpy_dtype)
            found[name] = value
        return found

    return values


def source_frame(spark: Any, make: Any, ddl: str, count: int, folder: Path, cores: int) -> Any:
    """Return a DataFrame of plain columns that lies in Parquet, in as many partitions as there are cores."""
    path = f"file://{folder}/plain"
    rows = spark.sparkContext.parallelize(range(count), cores).map(lambda i: plain(make(i)))
    spark.createDataFrame(rows, ddl).write.mode("overwrite").parquet(path)
    return spark.read.parquet(path).coalesce(cores)


def raw_frame(spark: Any, count: int, folder: Path, cores: int) -> Any:
    """Return the scan schema's DataFrame with the array as raw bytes."""
    ddl = ", ".join(f"{n} {'double' if i % 2 else 'long'}" for i, n in enumerate(SCALARS)) + ", points binary"
    path = f"file://{folder}/raw"

    def raw(i: int) -> tuple[Any, ...]:
        row = scan_row(i)
        return (*(row[name] for name in SCALARS), bytearray(row["points"].tobytes()))

    rows = spark.sparkContext.parallelize(range(count), cores).map(raw)
    spark.createDataFrame(rows, ddl).write.mode("overwrite").parquet(path)
    return spark.read.parquet(path).coalesce(cores)


def timed(work: Callable[[], Any]) -> float:
    """Return the seconds that some work takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def measure(spark: Any, name: str, given: argparse.Namespace) -> list[str]:
    """Return the lines of the table for one schema."""
    schema, make = (SCAN, scan_row) if name == "scan" else (HELLO, hello_row)
    ddl = (
        ", ".join(f"{n} {'double' if i % 2 else 'long'}" for i, n in enumerate(SCALARS))
        + ", points array<array<float>>"
    )
    if name == "hello":
        ddl = "id int, image1 binary, array_4d array<array<array<array<int>>>>"
    count = given.rows if name == "scan" else given.rows // 10
    folder = Path(given.folder).resolve() / name
    made = spark.sparkContext.parallelize(range(count), given.cores).map(make)
    url = f"file://{folder}/out"
    numbers = spark.range(0, count, 1, given.cores)

    def ours(frame: Any, **options: Any) -> Callable[[], Any]:
        return lambda: penstock.spark.write(frame, url, schema, overwrite=True, **options)

    def rdd(rows: Any) -> Callable[[], Any]:
        return lambda: by_rdd(spark, rows, schema, url)

    pairs: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "made": (ours(numbers, transform=lambda row: make(row["id"])), rdd(made))
    }
    if name == "scan":
        raw = raw_frame(spark, count, folder, given.cores)
        pairs["bytes"] = (ours(raw), rdd(raw.rdd.map(from_frame(schema))))
    if given.all:
        frame = source_frame(spark, make, ddl, count // 10, folder, given.cores)
        pairs["lists"] = (ours(frame), rdd(frame.rdd.map(from_frame(schema))))
    lines = []
    for source, sides in pairs.items():
        seconds: tuple[list[float], list[float]] = ([], [])
        for turn in range(given.pairs + 1):
            for side in (0, 1) if turn % 2 else (1, 0):
                taken = timed(sides[side])
                if turn:  # the first turn starts workers and compiles
                    seconds[side].append(taken)
                shutil.rmtree(f"{folder}/out")
        rows = count // 10 if source == "lists" else count
        rates = [f"{rows / statistics.median(taken):,.0f}" for taken in seconds]
        ratios = sorted(b / a for a, b in zip(*seconds, strict=True))
        shown = f"**{statistics.median(ratios):.1f}** | {ratios[0]:.1f} to {ratios[-1]:.1f}"
        lines.append(f"| {name} | {source} | {rates[0]} | {rates[1]} | {shown} |")
    return lines


def main() -> None:
    """Measure and print."""
    from pyspark.sql import SparkSession

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", required=True, help="where to write; everything in it is replaced")
    parser.add_argument("--rows", type=int, default=20_000, help="rows of the scan schema; hello has a tenth")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--all", action="store_true", help="also what begins with a DataFrame of nested lists: slow")
    parser.add_argument("--schema", action="append", choices=["scan", "hello"])
    given = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    spark = (
        SparkSession.builder.master(f"local[{given.cores}]")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "4g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    lines = [line for name in given.schema or ["scan", "hello"] for line in measure(spark, name, given)]
    head = [
        "| schema | source | `penstock.spark.write` rows/s | RDD rows/s | factor | pairs |",
        "|---|---|--:|--:|--:|--:|",
    ]
    print("\n".join([*head, *lines]))
    spark.stop()


if __name__ == "__main__":
    main()
