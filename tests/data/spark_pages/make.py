"""Make the files of this folder with Spark (pyspark and Java 17): `python make.py NAME VERSIONS...`.

Each file has the same rows in small pages and several row groups, as Spark writes them: offset indexes, dictionaries
that are given up, nested columns, nulls. `v1` and `v2` are the versions of the data pages.
"""

import datetime
import decimal
import glob
import shutil
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

NUM_ROWS = 800


def row(i: int) -> dict:
    return {
        "id": i,
        "label": i // 100,
        "at": None if i % 5 == 0 else datetime.datetime(2024, 1, 1) + datetime.timedelta(minutes=i),
        "price": decimal.Decimal(i) / 8,
        "city": f"city {i % 5}" if i % 400 < 150 else f"another city, number {i}",
        "name": None if i % 7 == 0 else f"name {i * 7919 % 613}",
        "image": bytes((i * k * k + k) % 251 for k in range(8 + i % 23)),
        "tags": None if i % 11 == 0 else [f"tag {(i + k) % 17}" for k in range(i % 4)],
        "box": None if i % 13 == 0 else {"x": i / 2, "corner": {"a": i % 5, "b": None if i % 3 else f"b{i}"}},
        "turns": [{"role": "user" if k % 2 else "bot", "words": [f"w{k}"] * (i % 3)} for k in range(i % 3)],
        "counts": {f"k{k}": None if k == 1 else i + k for k in range(i % 3)},
    }


SCHEMA = (
    "id long, label int, at timestamp, price decimal(22, 3), city string, name string, image binary, "
    "tags array<string>, "
    "box struct<x: double, corner: struct<a: int, b: string>>, "
    "turns array<struct<role: string, words: array<string>>>, counts map<string, long>"
)


def main(name: str, *versions: str) -> None:
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    frame = spark.createDataFrame([row(i) for i in range(NUM_ROWS)], SCHEMA).coalesce(1)
    options = {
        "parquet.page.size": "700",
        "parquet.page.size.row.check.min": "10",
        "parquet.page.row.count.limit": "100",
        "parquet.dictionary.page.size": "1000",
        "parquet.block.size": "25000",
        "parquet.block.size.row.check.min": "100",
        "parquet.page.write-checksum.enabled": "true",
    }
    for version in versions:
        with tempfile.TemporaryDirectory() as folder:
            more = {"parquet.writer.version": version, "compression": "snappy" if version == "v1" else "zstd"}
            frame.write.mode("overwrite").options(**options, **more).parquet(folder)
            [path] = glob.glob(f"{folder}/*.parquet")
            shutil.copyfile(path, Path(__file__).parent / f"{name}-{version}.parquet")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
