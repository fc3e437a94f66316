"""The converter over Spark Connect, in a process of its own: files are written anew every time, and deleted at exit."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import pytest

from tests.test_alias import run

pytest.importorskip("pyspark")

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
    import logging, os, sys, warnings
    warnings.simplefilter("ignore")
    from pyspark.sql import SparkSession, functions as F
    spark = SparkSession.builder.remote("local[1]").getOrCreate()
    from penstock.petastorm.spark import SparkDatasetConverter, make_spark_converter
    logging.getLogger("penstock").setLevel(logging.INFO)
    told = []

    class Told(logging.Handler):
        def emit(self, record):
            told.append(record.getMessage())

    logging.getLogger("penstock").addHandler(Told())
    spark.conf.set(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF, "file://" + os.environ["FOLDER"])
    from pyspark.ml.linalg import Vectors, VectorUDT
    from pyspark.sql.types import DoubleType, StructField, StructType
    kinds = StructType([StructField("v", VectorUDT()), StructField("x", DoubleType())])
    df = spark.createDataFrame([(Vectors.dense([i, 1]), float(i)) for i in range(6)], kinds)
    one, other = make_spark_converter(df), make_spark_converter(df)
    assert one.cache_dir_url != other.cache_dir_url
    assert any("written again" in line and "Spark Connect" in line for line in told), told
    with one.make_torch_dataloader(num_epochs=1, batch_size=6) as loader:
        [batch] = list(loader)
    assert sorted(batch["x"].tolist()) == [0, 1, 2, 3, 4, 5]
    assert batch["v"].shape == (6, 2) and str(batch["v"].dtype) == "torch.float32"
    assert one._lengths == {"v": 2}
    one.delete()
    print(len(os.listdir(os.environ["FOLDER"])), len(one))
    spark.stop()
"""


@pytest.mark.skipif(importlib.util.find_spec("grpc") is None, reason="Spark Connect needs grpcio")
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_a_data_frame_of_connect(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    assert run(PROGRAM, FOLDER=str(folder)).splitlines()[-1] == "1 6"
    assert list(folder.iterdir()) == []  # the other was deleted at exit
