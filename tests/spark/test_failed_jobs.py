"""What failed jobs leave does not open as a whole dataset; and Spark's datasets equal those written without it."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

import penstock
from penstock.errors import DatasetIncomplete
from penstock.petastorm import make_reader
from penstock.petastorm.etl.dataset_metadata import materialize_dataset
from tests.spark.common import EVERY, assert_rows, every_row, url_of
from tests.spark.test_materialize import SMALL, frame, small_row


def test_files_that_a_failed_job_leaves_do_not_open_and_say_why(spark, tmp_path):
    """Committers that move each task's files at once (version 2) leave those of the tasks that succeeded."""
    url, folder = url_of(tmp_path / "set"), tmp_path / "set"

    def job():
        frame(spark, SMALL, [small_row(i) for i in range(20)], 4).write.parquet(url)
        (folder / "_SUCCESS").unlink()  # as if the last task had failed
        raise KeyError("the job")

    with pytest.raises(KeyError), materialize_dataset(spark, url, SMALL):
        job()
    with pytest.raises(DatasetIncomplete, match=r"incomplete.*materialize_dataset"):
        penstock.open(url)
    with materialize_dataset(spark, url, SMALL):
        frame(spark, SMALL, [small_row(i) for i in range(5)]).write.mode("overwrite").parquet(url)
    assert len(penstock.open(url)) == 5


def test_files_of_a_job_that_died_while_it_committed_do_not_open(spark, tmp_path):
    url, folder = url_of(tmp_path / "set"), tmp_path / "set"
    frame(spark, SMALL, [small_row(i) for i in range(20)], 2).write.parquet(url)
    (folder / "_SUCCESS").unlink()
    left = folder / "_temporary" / "0" / "task_1"
    left.mkdir(parents=True)
    sorted(folder.glob("part-*"))[-1].rename(left / "part-00001.parquet")
    with pytest.raises(DatasetIncomplete, match=r"Spark.*_temporary"):
        penstock.open(url)


def test_the_same_rows_written_without_spark_give_equal_values_and_schema(spark, tmp_path):
    every = url_of(tmp_path / "sparks")
    with materialize_dataset(spark, every, EVERY):
        frame(spark, EVERY, [every_row(i) for i in range(40)]).write.partitionBy("part").parquet(every)
    penstock.write([every_row(i) for i in range(40)], tmp_path / "set", EVERY, partition_by="part")
    mine, theirs = penstock.open(tmp_path / "set"), penstock.open(every)
    assert mine.schema == theirs.schema
    assert mine.columns == theirs.columns
    with make_reader(url_of(tmp_path / "set")) as ours, make_reader(every) as sparks:
        assert_rows(list(ours), [row._asdict() for row in sparks])
