"""Run in a process of its own by `test_connect`: what works over Spark Connect, and what says that it does not.

A classic session and one of Connect do not share a process. Argument: a folder.
"""

import os
import sys
import warnings

import numpy as np

import penstock
import penstock.spark
from penstock import Unischema, UnischemaField
from penstock.codecs import NdarrayCodec
from penstock.petastorm.unischema import dict_to_spark_row

SCHEMA = Unischema(
    "Connected",
    [
        UnischemaField("id", np.int64, (), None, False),
        UnischemaField("a", np.float32, (2, 2), NdarrayCodec(), False),
    ],
)

PARTS = Unischema(
    "Parts", [UnischemaField("a.b", np.int64, (), None, False), UnischemaField("code", np.str_, (), None, False)]
)


def connected():
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false")
    return (
        builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1").getOrCreate()
    )


def refused(kind, text, function, *arguments):
    try:
        function(*arguments)
    except kind as error:
        found = str(error)
    else:
        found = "nothing was raised"
    assert text in found, found


def main(folder):
    spark = connected()
    frame = spark.range(0, 20, 1, 2).selectExpr("id", "array(id, 1, 2, 3) as a")
    penstock.spark.write(frame, f"{folder}/arrow", SCHEMA)
    assert penstock.open(f"{folder}/arrow")[7]["a"].tolist() == [[7, 1], [2, 3]]
    wrong = frame.selectExpr("id", "array(id) as a")
    refused(penstock.errors.SchemaError, "field 'a'", penstock.spark.write, wrong, f"{folder}/bad", SCHEMA)
    assert os.listdir(folder) == ["arrow"]

    block, copy = f"file://{folder}/block", f"file://{folder}/copy"
    rows = [dict_to_spark_row(SCHEMA, {"id": i, "a": np.full((2, 2), i, np.float32)}) for i in range(10)]
    with penstock.spark.materialize_dataset(spark, block, SCHEMA, row_group_size_mb=1):
        assert spark.conf.get("parquet.block.size") == str(1 << 20)
        spark.createDataFrame(rows, SCHEMA.as_spark_schema()).write.parquet(block)
    assert spark.conf.get("parquet.block.size", None) is None
    assert len(penstock.open(block)) == 10
    penstock.spark.copy_dataset(spark, block, copy, ["id"])
    assert penstock.open(copy).columns == ("id",)
    parts = spark.range(2).selectExpr("id as `a.b`", "concat('00', id) as code")
    penstock.spark.write(parts, f"{folder}/parts", PARTS, partition_by="code")
    penstock.spark.copy_dataset(spark, f"file://{folder}/parts", f"file://{folder}/codes", not_null_fields=["a.b"])
    assert sorted(penstock.open(f"{folder}/codes").take([0, 1])["code"]) == ["000", "001"]
    refused(NotImplementedError, "penstock.spark.write", penstock.spark.dataset_as_rdd, block, spark)
    spark.stop()


if __name__ == "__main__":
    os.environ["PYSPARK_PYTHON"] = sys.executable
    warnings.simplefilter("ignore")
    main(sys.argv[1])
    print("everything works")
