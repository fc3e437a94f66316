"""The real Petastorm 0.13.1, in a venv of its own, reads what we write, with identical values."""

from __future__ import annotations

import base64
import json
import subprocess
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pyspark")

import penstock
import penstock.spark
from penstock.petastorm import make_reader
from penstock.petastorm.etl.rowgroup_indexers import SingleFieldIndexer
from penstock.petastorm.etl.rowgroup_indexing import build_rowgroup_index
from penstock.petastorm.selectors import SingleIndexSelector
from penstock.petastorm.unischema import dict_to_spark_row
from penstock.spark import materialize_dataset
from tests.spark.common import EVERY, assert_rows, every_row, url_of

READS = Path(__file__).with_name("petastorm_reads.py")
ROWS = [every_row(i) for i in range(30)]


def value_of(stored):
    """Return what `petastorm_reads` printed of a value."""
    if not isinstance(stored, dict):
        return stored
    if "time" in stored:
        return np.datetime64(stored["time"])
    if "decimal" in stored:
        return Decimal(stored["decimal"])
    if "bytes" in stored:
        return base64.b64decode(stored["bytes"])
    if "text" in stored:
        return np.array(stored["text"])
    array = np.frombuffer(base64.b64decode(stored["data"]), stored["dtype"]).reshape(stored["shape"])
    if not stored["shape"] and array.dtype.kind == "f" and np.isnan(array):
        return None  # Petastorm's form of a null float: it goes through pandas
    return array if stored["shape"] else array[()]


def read_by_petastorm(python, *arguments):
    ran = subprocess.run([python, str(READS), *arguments], capture_output=True, text=True, check=False, timeout=200)
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = json.loads(next(line for line in ran.stdout.splitlines() if line.startswith("JSON:"))[5:])
    return found["schema"], [{name: value_of(value) for name, value in row.items()} for row in found["rows"]]


def by_materialize(spark, url):
    with materialize_dataset(spark, url, EVERY, row_group_size_mb=1):
        rows = spark.sparkContext.parallelize(ROWS, 2).map(lambda row: dict_to_spark_row(EVERY, row))
        spark.createDataFrame(rows, EVERY.as_spark_schema()).write.partitionBy("part").parquet(url)


def by_summary(spark, url):
    with materialize_dataset(spark, url, EVERY, row_group_size_mb=1, use_summary_metadata=True):
        rows = spark.sparkContext.parallelize(ROWS, 2).map(lambda row: dict_to_spark_row(EVERY, row))
        spark.createDataFrame(rows, EVERY.as_spark_schema()).write.parquet(url)


def by_arrow(spark, url):
    rows = [dict_to_spark_row(EVERY, row) for row in ROWS]
    penstock.spark.write(spark.createDataFrame(rows, EVERY.as_spark_schema()), url, EVERY, partition_by="part")


def without_spark(spark, url):
    penstock.write(ROWS, url, EVERY, partition_by="part", row_group_bytes=4000)


@pytest.mark.parametrize("write", [by_materialize, by_summary, by_arrow, without_spark])
def test_petastorm_reads_every_codec_null_decimal_and_partition(spark, real_petastorm, tmp_path, write):
    url = url_of(tmp_path / "set")
    write(spark, url)
    name, rows = read_by_petastorm(real_petastorm, url, "rows")
    assert name in ("Every", "Every_view")
    with make_reader(url, shuffle_row_groups=False) as reader:
        ours = [row._asdict() for row in reader]
    assert_rows(rows, ours)
    assert_rows(ours, ROWS)


def test_petastorm_uses_the_index_that_spark_built_for_us(spark, real_petastorm, tmp_path):
    url = url_of(tmp_path / "set")
    without_spark(spark, url)
    build_rowgroup_index(url, spark.sparkContext, [SingleFieldIndexer("by_id", "id")])
    _, rows = read_by_petastorm(real_petastorm, url, "index", "by_id", "17")
    with make_reader(url, shuffle_row_groups=False, rowgroup_selector=SingleIndexSelector("by_id", [17])) as reader:
        ours = [row._asdict() for row in reader]
    assert 17 in [row["id"] for row in rows]
    assert len(rows) < 30
    assert_rows(rows, ours)
