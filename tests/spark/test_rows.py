"""Rows on their way to Spark and back: `dict_to_spark_row`, `as_spark_schema`, `dataset_as_rdd`, indexes by Spark."""

from __future__ import annotations

import datetime
from decimal import Decimal

import numpy as np
import pytest

pytest.importorskip("pyspark")

import penstock
from penstock import Unischema, UnischemaField
from penstock.codecs import NdarrayCodec, ScalarCodec
from penstock.errors import PlanError, SchemaError
from penstock.petastorm import make_reader
from penstock.petastorm.etl.rowgroup_indexers import FieldNotNullIndexer, SingleFieldIndexer
from penstock.petastorm.etl.rowgroup_indexing import build_rowgroup_index, get_row_group_indexes
from penstock.petastorm.spark_utils import dataset_as_rdd
from penstock.petastorm.unischema import dict_to_spark_row, insert_explicit_nulls
from tests.spark.common import EVERY, assert_rows, every_row, scalar, url_of


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "set"
    penstock.write([every_row(i) for i in range(60)], path, EVERY, partition_by="part", row_group_bytes=4000)
    return path


def test_the_rdd_has_the_readers_rows_in_its_order(spark, written):
    rows = dataset_as_rdd(url_of(written), spark).collect()
    with make_reader(url_of(written), shuffle_row_groups=False) as reader:
        expected = list(reader)
    assert [row.id for row in rows] == [row.id for row in expected]
    assert type(rows[0])._fields == type(expected[0])._fields
    assert_rows(rows, [row._asdict() for row in expected])


def test_the_rdd_has_the_fields_asked_for(spark, written):
    rows = dataset_as_rdd(url_of(written), spark, [EVERY.id, "ma.*"]).collect()
    assert rows[0]._fields == ("id", "matrix")
    assert len(rows) == 60
    with pytest.raises(SchemaError, match="no field matches"):
        dataset_as_rdd(url_of(written), spark, ["nothing"])
    for given, match in [(spark.sparkContext, "SparkContext; the session that belongs"), (None, "None"), ("x", "str")]:
        with pytest.raises(PlanError, match=f"expected a SparkSession.*got {match}"):
            dataset_as_rdd(url_of(written), given)


def test_an_index_built_by_spark_is_the_one_built_here(spark, written):
    indexers = [SingleFieldIndexer("by_id", "id"), FieldNotNullIndexer("has_text", "text")]
    found = []
    for context in (None, spark.sparkContext):
        build_rowgroup_index(url_of(written), context, indexers)
        indexes = get_row_group_indexes(url_of(written))
        found.append({n: {v: i.get_row_group_indexes(v) for v in i.indexed_values} for n, i in indexes.items()})
    assert found[0] == found[1]
    assert len(found[0]["by_id"]) == 60


def test_a_row_has_the_types_that_spark_wants(spark):
    row = dict_to_spark_row(EVERY, every_row(5))
    kinds = {name: type(value) for name, value in row.asDict().items()}
    assert kinds["id"] is int
    assert kinds["tiny"] is int
    assert kinds["half"] is float
    assert kinds["price"] is Decimal
    assert kinds["when"] is datetime.datetime
    assert kinds["matrix"] is bytearray
    assert list(row.__fields__) == list(EVERY.fields)
    [back] = spark.createDataFrame([row], EVERY.as_spark_schema()).collect()
    assert back.text == "row 5 é"


def test_a_time_is_the_same_instant_whatever_the_zone_of_this_machine(spark, tmp_path, monkeypatch):
    import time

    schema = Unischema(
        "Times",
        [
            UnischemaField("id", np.int64, (), None, False),
            UnischemaField("at", np.datetime64, (), scalar("Timestamp"), False),
            UnischemaField("wall", np.datetime64, (), scalar("TimestampNTZ"), False),
            UnischemaField("day", np.datetime64, (), scalar("Date"), True),
        ],
    )
    at = np.datetime64("2024-07-01T12:00:00.000001")
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        row = dict_to_spark_row(schema, {"id": 1, "at": at, "wall": at, "day": at})
        spark.createDataFrame([row], schema.as_spark_schema()).write.parquet(url_of(tmp_path / "t"))
    finally:
        monkeypatch.undo()
        time.tzset()
    found = penstock.open(tmp_path / "t", schema=schema)[0]
    assert found["at"] == at
    assert found["wall"] == at
    assert found["day"] == np.datetime64("2024-07-01")


def test_rows_that_do_not_fit_are_refused(spark):
    schema = Unischema(
        "S",
        [
            UnischemaField("x", np.int32, (), ScalarCodec(), False),
            UnischemaField("a", np.uint8, (2,), NdarrayCodec(), True),
        ],
    )
    given = {"x": np.int32(1)}
    assert dict_to_spark_row(schema, given).asDict() == {"x": 1, "a": None}
    assert given == {"x": 1}
    insert_explicit_nulls(schema, given)
    assert given == {"x": 1, "a": None}
    with pytest.raises(ValueError, match="'x' is not nullable"):
        dict_to_spark_row(schema, {"a": None})
    with pytest.raises(ValueError, match="'x' is not nullable, got None"):
        dict_to_spark_row(schema, {"x": None})
    with pytest.raises(ValueError, match=r"lacks: \['y'\]"):
        dict_to_spark_row(schema, {"x": 1, "y": 2})
    with pytest.raises(ValueError, match="'a'"):
        dict_to_spark_row(schema, {"x": 1, "a": np.zeros(3, np.uint8)})
    with pytest.raises(AssertionError):
        dict_to_spark_row({}, {})


def test_a_field_without_codec_that_spark_has_no_type_for_is_told(spark):
    with pytest.raises(ValueError, match=r"'a' has codec set to None, and shape \(2,\)"):
        Unischema("S", [UnischemaField("a", np.uint8, (2,))]).as_spark_schema()
