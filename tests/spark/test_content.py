"""The content of a dataset is the same through footers and through the `_metadata` that Spark writes."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")
from pyspark.sql import functions as f

from penstock.dataset import open_parquet


@pytest.mark.parametrize("times", ["INT96", "TIMESTAMP_MICROS"])
@pytest.mark.parametrize("parted", [False, True])
def test_a_summary_of_sparks_tells_the_content_of_the_files(spark, tmp_path, times, parted):
    number = f.col("id")
    frame = spark.range(300).select(
        number,
        (number % 2).alias("part"),
        (number / 3).alias("third"),  # its least value is 0.0, in `_metadata` -0.0
        (number * -0.0).cast("float").alias("zero"),
        f.when(number % 7 == 0, float("nan")).otherwise(number * 1.5).alias("nan"),  # no bounds in `_metadata`
        f.lit(None).cast("int").alias("null"),
        f.concat(f.lit("word " * 60), number.cast("string")).alias("long"),
        number.cast("string").cast("binary").alias("blob"),
        f.current_timestamp().alias("time"),
        f.current_date().alias("day"),
        (number / 7).cast("decimal(20,4)").alias("price"),
        f.array("id", "id").alias("list"),
        f.struct(number.alias("a"), f.lit("b").alias("b")).alias("s"),
    )
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    hadoop.set("parquet.summary.metadata.level", "ALL")
    spark.conf.set("spark.sql.parquet.outputTimestampType", times)
    try:
        writer = frame.repartition(3).write
        (writer.partitionBy("part") if parted else writer).parquet(str(tmp_path / "set"))
    finally:
        hadoop.unset("parquet.summary.metadata.level")
        spark.conf.unset("spark.sql.parquet.outputTimestampType")
    summary = open_parquet(tmp_path / "set")
    assert len(summary.seen) == 1  # the other files' footers were not read
    (tmp_path / "set" / "_metadata").unlink()
    footers = open_parquet(tmp_path / "set")
    assert len(footers.seen) == len(footers.facts.files) >= 3
    assert summary.content() == footers.content()
