"""Copies and commands: `copy_dataset`, `petastorm-copy-dataset.py`, `petastorm-generate-metadata.py` and the like."""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import entry_points

import numpy as np
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

import penstock
from penstock.errors import ColumnNotFound
from penstock.petastorm.etl.dataset_metadata import UNISCHEMA_KEY, get_schema_from_dataset_url
from penstock.petastorm.tools.copy_dataset import copy_dataset, main
from penstock.petastorm.tools.spark_session_cli import add_configure_spark_arguments, configure_spark
from penstock.schema.petastorm_pickle import load_unischema
from tests.spark.common import EVERY, assert_rows, every_row, url_of
from tests.spark.test_write import rows_at


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("tools") / "set"
    penstock.write([every_row(i) for i in range(40)], path, EVERY, partition_by="part", row_group_bytes=3000)
    return url_of(path)


def test_a_copy_has_all_rows_and_the_schema(spark, source, tmp_path):
    target = url_of(tmp_path / "copy")
    copy_dataset(spark, source, target, None, None, False, 1, None)
    assert_rows(rows_at(target), [every_row(i) for i in range(40)])
    assert get_schema_from_dataset_url(target) == EVERY
    [file] = (tmp_path / "copy").glob("*.parquet")
    assert pq.read_metadata(file).row_group(0).column(0).compression == "UNCOMPRESSED"


def test_a_copy_of_some_fields_and_of_rows_without_nulls(spark, source, tmp_path):
    target = url_of(tmp_path / "copy")
    copy_dataset(spark, source, target, ["id", "pa.*", "text"], ["text"], False, None, 1)
    rows = rows_at(target)
    assert sorted(row.id for row in rows) == [i for i in range(40) if i % 4 != 3]
    assert rows[0]._fields == ("id", "part", "text", "packed")
    schema = get_schema_from_dataset_url(target)
    assert [schema.text.nullable, schema.packed.nullable] == [False, True]


def test_a_copy_that_cannot_be_made_is_told(spark, source, tmp_path):
    from pyspark.errors import AnalysisException

    target = url_of(tmp_path / "copy")
    with pytest.raises(ValueError, match="no field matches"):
        copy_dataset(spark, source, target, ["nothing.*"], None, False, None, None)
    with pytest.raises(ColumnNotFound, match="'text' is copied"):
        copy_dataset(spark, source, target, ["id"], ["text"], False, None, None)
    copy_dataset(spark, source, target, ["id"], None, False, 1, None)
    with pytest.raises(AnalysisException, match="already exists"):
        copy_dataset(spark, source, target, ["id"], None, False, 1, None)
    assert len(penstock.open(target)) == 40  # an error before anything was written leaves what was there
    copy_dataset(spark, source, target, ["id", "tiny"], None, True, 1, None)
    assert penstock.open(target).columns == ("id", "tiny")


def test_the_command_copies_and_leaves_a_running_session_alone(spark, source, tmp_path):
    target = url_of(tmp_path / "copy")
    main([source, target, "--field-regex", "id", "half", "--partition-count", "1", "--row-group-size-mb", "1"])
    assert penstock.open(target).columns == ("id", "half")
    assert spark.range(3).count() == 3


def test_the_session_of_a_command_is_as_its_arguments_say():
    class Builder:
        def __init__(self):
            self.seen = {}

        def config(self, key, value):
            self.seen[key] = value
            return self

        def master(self, value):
            self.seen["master"] = value
            return self

    parser = argparse.ArgumentParser()
    add_configure_spark_arguments(parser)
    given = parser.parse_args(["--master", "local[1]", "--spark-session-config", "a.b=c=d", "e=1"])
    assert configure_spark(Builder(), given).seen == {"a.b": "c=d", "e": "1", "master": "local[1]"}
    assert configure_spark(Builder(), parser.parse_args([])).seen == {}
    with pytest.raises(ValueError, match="KEY=VALUE; got 'x'"):
        configure_spark(Builder(), parser.parse_args(["--spark-session-config", "x"]))
    with pytest.raises(RuntimeError, match="add_configure_spark_arguments"):
        configure_spark(Builder(), argparse.Namespace())


def test_metadata_is_made_for_what_spark_wrote_without_us(spark, tmp_path):
    from penstock.petastorm.etl import petastorm_generate_metadata

    frame = spark.range(10).selectExpr("id", "cast(id as float) as half")
    frame.coalesce(1).write.parquet(url_of(tmp_path / "plain"))
    sys.modules["a_users_schema"] = argparse.Namespace(
        SCHEMA=penstock.Unischema("Plain", [EVERY.id, penstock.UnischemaField("half", np.float32, (), None, True)])
    )
    try:
        petastorm_generate_metadata.main(
            ["--dataset_url", url_of(tmp_path / "plain"), "--unischema_class", "a_users_schema.SCHEMA"]
        )
    finally:
        schema = sys.modules.pop("a_users_schema").SCHEMA
    assert get_schema_from_dataset_url(url_of(tmp_path / "plain")) == schema
    pairs = pq.read_metadata(tmp_path / "plain" / "_common_metadata").metadata
    assert load_unischema(pairs[UNISCHEMA_KEY]) == schema
    assert spark.range(3).count() == 3


def test_petastorms_commands_are_installed_under_their_names():
    found = {point.name: point.load() for point in entry_points(group="console_scripts") if "petastorm-" in point.name}
    if not found:
        pytest.skip("penstock is not installed, or was before the commands were added")
    assert sorted(found) == ["petastorm-copy-dataset.py", "petastorm-generate-metadata.py", "petastorm-throughput.py"]
