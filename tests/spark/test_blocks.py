"""Blocks of `materialize_dataset` that end badly, or not at all, and folders that are called oddly."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("pyspark")

import penstock
import penstock.spark
from penstock import Unischema, UnischemaField
from penstock.codecs import NdarrayCodec, ScalarCodec
from penstock.errors import DatasetIncomplete, SchemaError
from penstock.petastorm import make_reader
from penstock.petastorm.etl.dataset_metadata import PetastormMetadataGenerationError, materialize_dataset
from tests.spark.common import group_bytes, url_of
from tests.spark.test_materialize import SMALL, frame, small_row

ID = Unischema("Id", [UnischemaField("id", np.int64, (), None, False)])


@pytest.mark.parametrize("there", [False, True])
def test_a_driver_killed_before_the_end_of_its_block_leaves_nothing_that_opens(spark, tmp_path, there):
    url, folder, note = url_of(tmp_path / "set"), tmp_path / "set", tmp_path / ".set.block.json"
    if there:
        with materialize_dataset(spark, url, SMALL):
            frame(spark, SMALL, [small_row(i) for i in range(4)], 1).write.parquet(url)
        assert not note.exists()
    block = materialize_dataset(spark, url, SMALL)
    block.__enter__()
    if there:
        note.write_text(json.dumps({**json.loads(note.read_text()), "process": ["elsewhere", 1, "x"]}))
        assert len(penstock.open(url)) == 4  # nothing has changed yet
    frame(spark, SMALL, [small_row(9)], 1).write.mode("append").parquet(url)
    found = json.loads(note.read_text())
    note.write_text(json.dumps({**found, "process": ["elsewhere", 1, "x"]}))
    with pytest.raises(DatasetIncomplete, match=r"block of materialize_dataset has not ended.*overwrite"):
        penstock.open(url)
    assert penstock.discard(url) == 1
    assert not note.exists()
    assert folder.exists() == there
    if there:
        assert len(penstock.open(url)) == 4
    assert block.__exit__(KeyError, KeyError("the end"), None) is False
    assert not (folder / "_penstock_writing.json").exists()


def test_what_a_killed_block_left_can_be_overwritten(spark, tmp_path):
    url, note = url_of(tmp_path / "set"), tmp_path / ".set.block.json"
    note.write_text(json.dumps({"cure": "run it again", "before": [], "process": ["elsewhere", 1, "x"]}))
    frame(spark, SMALL, [small_row(i) for i in range(4)], 1).write.parquet(url)
    with pytest.raises(DatasetIncomplete, match="run it again"):
        penstock.open(url)
    with (
        pytest.raises(PetastormMetadataGenerationError, match="1 of its files are still there"),
        materialize_dataset(spark, url, SMALL),
    ):
        frame(spark, SMALL, [small_row(5)], 1).write.mode("append").parquet(url)
    with materialize_dataset(spark, url, SMALL):
        frame(spark, SMALL, [small_row(5)], 1).write.mode("overwrite").parquet(url)
    assert len(penstock.open(url)) == 1


LACKS = Unischema("Small", [*SMALL.fields.values(), UnischemaField("more", np.int64, (), None, False)])
LISTS = Unischema("Lists", [UnischemaField("a", np.float32, (2,), NdarrayCodec(), False)])


def test_a_block_whose_files_do_not_fit_the_schema_is_marked(spark, tmp_path):
    url, folder = url_of(tmp_path / "set"), tmp_path / "set"
    with materialize_dataset(spark, url, SMALL):
        frame(spark, SMALL, [small_row(i) for i in range(4)], 1).write.parquet(url)
    with (
        pytest.raises(SchemaError, match=r"does not fit the schema.*'more'.*as_spark_schema.*overwrite"),
        materialize_dataset(spark, url, LACKS),
    ):
        frame(spark, SMALL, [small_row(9)], 1).write.mode("append").parquet(url)
    with pytest.raises(DatasetIncomplete):
        penstock.open(url)
    penstock.discard(url)
    assert len(penstock.open(url)) == 4
    lists = url_of(tmp_path / "lists")
    with pytest.raises(SchemaError, match=r"list.*NdarrayCodec"), materialize_dataset(spark, lists, LISTS):
        spark.range(3).selectExpr("array(cast(id as float), 1f) as a").write.parquet(lists)
    with pytest.raises(DatasetIncomplete):
        penstock.open(lists)
    assert (folder / "_common_metadata").exists()


def test_a_folder_called_like_a_partition_is_a_dataset_by_itself(spark, tmp_path):
    days = [tmp_path / "logs" / f"date=2020-01-0{day}" for day in (1, 2)]
    for folder, schema in zip(days, (SMALL, ID), strict=True):
        with materialize_dataset(spark, url_of(folder), schema):
            rows = [{name: small_row(i)[name] for name in schema.fields} for i in range(3)]
            frame(spark, schema, rows, 1).write.parquet(url_of(folder))
        assert (folder / "_common_metadata").exists()
    assert not (tmp_path / "logs" / "_common_metadata").exists()
    with make_reader(url_of(days[0])) as reader:
        assert sorted((row.id, row.a.tolist()) for row in reader) == [(i, [i, -i]) for i in range(3)]
    assert penstock.open(days[1]).columns == ("id",)


def test_columns_beyond_the_schema_are_left_out_by_make_reader(spark, tmp_path):
    url = url_of(tmp_path / "set")
    with materialize_dataset(spark, url, ID):
        spark.range(3).selectExpr("id", "id * 2 as more").write.parquet(url)
    with make_reader(url) as reader:
        assert {row._fields for row in reader} == {("id",)}
    assert penstock.open(url).columns == ("id", "more")


def test_a_block_that_writes_nothing_does_not_change_the_schema(spark, tmp_path):
    url = url_of(tmp_path / "set")
    with materialize_dataset(spark, url, ID):
        spark.range(3).write.parquet(url)
    other = Unischema("Id", [UnischemaField("id", np.int32, (), None, False)])
    with (
        pytest.raises(PetastormMetadataGenerationError, match=r"nothing was written.*another schema"),
        materialize_dataset(spark, url, other),
    ):
        spark.range(9).write.mode("ignore").parquet(url)
    assert penstock.open(url).schema.fields["id"].numpy_dtype is np.int64
    with materialize_dataset(spark, url, ID):
        spark.range(9).write.mode("ignore").parquet(url)
    assert len(penstock.open(url)) == 3


BYTES = Unischema("Bytes", [UnischemaField("a", np.uint8, (None,), NdarrayCodec(), False)])


def test_row_groups_have_the_size_asked_for_also_where_rows_grow(spark, tmp_path):
    def grown(i):
        return {"a": np.random.default_rng(i).integers(0, 256, 300 if i < 2000 else 200_000, dtype=np.uint8)}

    url = url_of(tmp_path / "set")
    with materialize_dataset(spark, url, BYTES, row_group_size_mb=3):
        frame(spark, BYTES, [grown(i) for i in range(2060)], 1).write.parquet(url)
    sizes = np.array(group_bytes(tmp_path / "set")) / (1 << 20)
    assert len(sizes) >= 4
    assert (sizes[:-1].min() > 2.25, sizes.max() < 3.75) == (True, True), sizes


def test_a_partition_of_instants_opens(spark, tmp_path):
    from pyspark.sql.types import TimestampType

    fields = [*ID.fields.values(), UnischemaField("t", np.datetime64, (), ScalarCodec(TimestampType()), False)]
    times = spark.range(2).selectExpr("id", "timestamp_seconds(1577869200 + id * 3600) as t")
    penstock.spark.write(times, tmp_path / "set", Unischema("Times", fields), partition_by="t")
    found = penstock.open(tmp_path / "set").take([0, 1])
    assert found["t"].astype("M8[s]").astype(np.int64).tolist() == [1577869200, 1577872800]
