"""What failed jobs leave does not open as a whole dataset; and Spark's datasets equal those written without it."""

from __future__ import annotations

import json
import signal
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

pytest.importorskip("pyspark")

from py4j.protocol import Py4JError

import penstock
import penstock.spark
from penstock import Unischema, UnischemaField
from penstock.codecs import NdarrayCodec
from penstock.errors import DatasetIncomplete, DatasetNotFound, SchemaError
from penstock.petastorm import make_reader
from penstock.petastorm.etl.dataset_metadata import PetastormMetadataGenerationError, materialize_dataset
from penstock.petastorm.unischema import dict_to_spark_row
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


def failing_append(spark, url, v2=True):
    """Append 75 rows and fail at 25 others; committers of version 2 move each task's files at once."""
    folder = Path(urlsplit(url).path)

    def moved():
        return sum("_temporary" not in path.parts for path in folder.rglob("part-*.parquet"))

    wanted = moved() + 3 * v2

    def spoil(i):
        if i >= 175:
            end = time.monotonic() + 60
            while moved() < wanted and time.monotonic() < end:
                time.sleep(0.1)  # the other tasks end first
            raise ZeroDivisionError("a bad row")
        return dict_to_spark_row(SMALL, small_row(i))

    rdd = spark.sparkContext.parallelize(range(100, 200), 4).map(spoil)
    rows = spark.createDataFrame(rdd, SMALL.as_spark_schema()).write.mode("append")
    rows.option("mapreduce.fileoutputcommitter.algorithm.version", "2" if v2 else "1").parquet(url)


def append_and_raise(spark, url):
    frame(spark, SMALL, [small_row(7)], 1).write.mode("append").parquet(url)
    raise KeyError("after the write")


@pytest.mark.parametrize("by_spark", [False, True])
def test_a_failed_append_is_marked_with_what_was_there_before(spark, tmp_path, by_spark):
    """Also where an earlier job has left its `_SUCCESS`."""
    url, folder = url_of(tmp_path / "set"), tmp_path / "set"
    if by_spark:
        with materialize_dataset(spark, url, SMALL):
            frame(spark, SMALL, [small_row(i) for i in range(100)]).write.partitionBy("id").parquet(url)
    else:
        penstock.write([small_row(i) for i in range(100)], folder, SMALL, rows_per_file=40)
    before = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.parquet"))
    assert (folder / "_SUCCESS").exists() == by_spark
    with pytest.raises(Exception, match="a bad row"), materialize_dataset(spark, url, SMALL):
        failing_append(spark, url)
    assert len(list(folder.rglob("*.parquet"))) == len(before) + 3
    marker = json.loads((folder / "_penstock_writing.json").read_text())
    assert (sorted(marker), marker["before"]) == (["before", "cure"], before)
    with pytest.raises(DatasetIncomplete, match=r"incomplete.*materialize_dataset.*penstock\.discard"):
        penstock.open(url)
    # A second append that fails changes nothing of the list; one that succeeds does not make the rest good.
    with pytest.raises(KeyError), materialize_dataset(spark, url, SMALL):
        append_and_raise(spark, url)
    assert json.loads((folder / "_penstock_writing.json").read_text())["before"] == before
    with (
        pytest.raises(PetastormMetadataGenerationError, match=r"4 of its files.*discard"),
        materialize_dataset(spark, url, SMALL),
    ):
        frame(spark, SMALL, [small_row(8)], 1).write.mode("append").parquet(url)
    with pytest.raises(DatasetIncomplete):
        penstock.open(url)
    penstock.discard(url)  # removes what the failed jobs added
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*.parquet")) == before
    assert len(penstock.open(url)) == 100


def test_a_failed_append_that_adds_nothing_leaves_the_dataset_as_it_was(spark, tmp_path):
    url = url_of(tmp_path / "set")
    penstock.write([small_row(i) for i in range(100)], tmp_path / "set", SMALL)
    with pytest.raises(Exception, match="a bad row"), materialize_dataset(spark, url, SMALL):
        failing_append(spark, url, v2=False)
    assert len(penstock.open(url)) == 100


@pytest.mark.parametrize("there", [False, True])
def test_a_block_that_raises_after_its_write_does_not_open(spark, tmp_path, there):
    url, folder = url_of(tmp_path / "set"), tmp_path / "set"
    if there:
        penstock.write([small_row(i) for i in range(4)], folder, SMALL)
    with pytest.raises(KeyError), materialize_dataset(spark, url, SMALL):
        append_and_raise(spark, url)
    assert (folder / "_SUCCESS").exists()
    with pytest.raises(DatasetIncomplete, match="materialize_dataset"):
        penstock.open(url)
    assert len(json.loads((folder / "_penstock_writing.json").read_text())["before"]) == there


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


WIDE = Unischema(
    "Wide",
    [
        UnischemaField("id", np.int64, (), None, False),
        UnischemaField("v", np.float32, (1000,), NdarrayCodec(), False),
    ],
)


@pytest.mark.parametrize("partition_by", [None, "id"])
def test_a_job_whose_other_tasks_go_on_after_it_failed_leaves_nothing(spark, tmp_path, partition_by):
    """Partition 1 fails at once; partition 0 opens files for a while longer."""

    def half_good(row):
        if row["id"] < 2000:
            time.sleep(0.0005)
            return {"id": row["id"], "v": np.zeros(1000, np.float32)}
        return {"id": row["id"], "v": np.zeros(3, np.float32)}

    with pytest.raises(SchemaError, match=r"partition 1 of the DataFrame, row 0, field 'v'"):
        penstock.spark.write(
            spark.range(0, 4000, 1, 2), tmp_path / "set", WIDE, rows_per_file=10, partition_by=partition_by,
            transform=half_good,
        )  # fmt: skip
    assert list(tmp_path.iterdir()) == []
    until_idle(spark)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DatasetNotFound):
        penstock.open(tmp_path / "set")


def until_idle(spark):
    """Wait until Spark has ended the tasks of cancelled jobs: a new one gets both cores."""
    spark.range(0, 2, 1, 2).mapInArrow(together, "id long").collect()


def together(batches):
    time.sleep(0.5)
    yield from batches


def test_ctrl_c_cancels_the_job_and_leaves_nothing(spark, tmp_path):
    """Tasks that run on while and after the next write neither come back nor count."""
    mark = tmp_path / "mark"
    mark.mkdir()

    def slow(row):
        (mark / str(row["id"])).touch()
        time.sleep(0.02)
        return {"id": row["id"], "v": np.zeros(1000, np.float32)}

    def interrupt():
        while not list(mark.iterdir()):
            time.sleep(0.02)
        time.sleep(0.3)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    frame = spark.range(0, 2000, 1, 2)
    with pytest.raises((KeyboardInterrupt, Py4JError)):  # the second by pyspark 3.5, whose handler of Ctrl-C fails
        penstock.spark.write(frame, tmp_path / "set", WIDE, rows_per_file=5, transform=slow)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mark"]
    penstock.spark.write(
        spark.range(0, 20, 1, 1), tmp_path / "set", WIDE, transform=lambda r: {**r, "v": np.ones(1000, np.float32)}
    )
    until_idle(spark)
    assert len(list(mark.iterdir())) < 1500  # cancelled: not all 2000 rows were made
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mark", "set"]
    assert len(penstock.open(tmp_path / "set")) == 20


@pytest.mark.parametrize("shut", ["removed", "over"])
def test_a_task_that_outlives_its_job_on_a_store_takes_its_files_away(shut):
    """A store shows an object when it is closed, which may be after the driver has looked for the last time."""
    import fsspec
    import pyarrow as pa

    from penstock.schema.arrow import arrow_schema
    from penstock.spark.task import Gate, Target, WriteTask
    from penstock.write.layout import plan_layout
    from penstock.write.options import WriteOptions

    fs = fsspec.filesystem("memory")
    fs.pipe("/outlived/set/gate.json", b'{"run": "12ab"}')
    target = Target("memory://outlived/set", None, None, "/outlived/set", Gate("/outlived/set/gate.json", "12ab"))
    options = WriteOptions(1 << 20, 2, (), False, "auto")
    seen = []

    def batches():
        yield pa.record_batch({"id": pa.array([0, 1, 2])})
        seen.extend(path for path in fs.find("/outlived") if path.endswith(".parquet"))
        fs.rm("/outlived/set/gate.json") if shut == "removed" else fs.pipe("/outlived/set/gate.json", b"{}")
        yield pa.record_batch({"id": pa.array([3])})

    def make(row):
        return {"id": row["id"], "v": np.zeros(1000, np.float32)}

    task = WriteTask(target, plan_layout(WIDE, arrow_schema(WIDE), ()), options, make)
    with pytest.raises(DatasetIncomplete, match="has ended or was stopped"):
        list(task(batches()))
    assert seen == ["/outlived/set/part-000000-00000000-12ab-000000.parquet"]
    assert [path for path in fs.find("/outlived") if path.endswith(".parquet")] == []
