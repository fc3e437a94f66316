"""Copies and commands: `copy_dataset`, `petastorm-copy-dataset.py`, `petastorm-generate-metadata.py` and the like."""

from __future__ import annotations

import argparse
import re
import sys
from importlib.metadata import entry_points

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

import penstock
from penstock.errors import ColumnNotFound, DatasetExists, PlanError
from penstock.petastorm.etl.dataset_metadata import UNISCHEMA_KEY, get_schema_from_dataset_url
from penstock.petastorm.etl.rowgroup_indexers import SingleFieldIndexer
from penstock.petastorm.etl.rowgroup_indexing import build_rowgroup_index
from penstock.petastorm.tools.copy_dataset import copy_dataset, main
from penstock.petastorm.tools.spark_session_cli import add_configure_spark_arguments, configure_spark
from penstock.schema.petastorm_pickle import load_unischema
from tests.spark.common import EVERY, assert_rows, every_row, scalar, url_of
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
    target = url_of(tmp_path / "copy")
    with pytest.raises(ValueError, match="do not match any fields"):
        copy_dataset(spark, source, target, ["nothing.*"], None, False, None, None)
    with pytest.raises(ColumnNotFound, match="'text' is copied"):
        copy_dataset(spark, source, target, ["id"], ["text"], False, None, None)
    copy_dataset(spark, source, target, ["id"], None, False, 1, None)
    with pytest.raises(DatasetExists, match=r"exists already.*overwrite_output=True"):
        copy_dataset(spark, source, target, ["id"], None, False, 1, None)
    with pytest.raises(PlanError, match=r"expected a SparkSession.*got SparkContext"):
        copy_dataset(spark.sparkContext, source, target)
    assert len(penstock.open(target)) == 40  # an error before anything was written leaves what was there
    copy_dataset(spark, source, target, ["id", "tiny"], None, True, 1, None)
    assert penstock.open(target).columns == ("id", "tiny")


def test_a_copy_replaces_datasets_only(spark, source, tmp_path):
    (tmp_path / "own").mkdir()
    copy_dataset(spark, source, url_of(tmp_path / "own"), ["id"])  # an empty folder is free
    assert len(penstock.open(tmp_path / "own")) == 40
    (tmp_path / "own" / "thesis.txt").write_text("mine")
    with pytest.raises(DatasetExists, match=r"'thesis.txt'.*overwrite_output=True does not"):
        copy_dataset(spark, source, url_of(tmp_path / "own"), overwrite_output=True)
    assert (tmp_path / "own" / "thesis.txt").read_text() == "mine"


def test_values_of_folder_names_are_copied_as_they_are(spark, tmp_path):
    """Spark guesses types of folder names, and times in them to be of the session's zone."""
    schema = penstock.Unischema(
        "Parts",
        [
            penstock.UnischemaField("id", np.int64, (), None, False),
            penstock.UnischemaField("code", np.str_, (), None, True),
            penstock.UnischemaField("when", np.datetime64, (), scalar("Timestamp"), False),
            penstock.UnischemaField("level", np.int32, (), None, False),
        ],
    )
    when = np.datetime64("2024-07-01T00:00:00.25", "us")
    codes = ["007", "1.50", None]
    rows = [{"id": i, "code": code, "when": when, "level": i} for i, code in enumerate(codes)]
    penstock.write(rows, tmp_path / "set", schema, partition_by=["code", "when", "level"])
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        copy_dataset(spark, url_of(tmp_path / "set"), url_of(tmp_path / "copy"))
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    assert_rows(rows_at(url_of(tmp_path / "copy")), rows)


def test_structs_and_names_with_dots_are_copied(spark, tmp_path):
    kind = pa.struct([("a", pa.int64()), ("in.ner", pa.struct([("x", pa.float64()), ("y", pa.float64())]))])
    structs = [{"a": 1, "in.ner": {"x": float("nan"), "y": 2.0}}, None, {"a": None, "in.ner": {"x": 1.0, "y": 3.0}}]
    table = pa.table({"a.b": [1, None, 3], "tick`": [0, 1, 2], "s": pa.array(structs, kind)})
    pq.write_table(table, tmp_path / "set.parquet")
    source = url_of(tmp_path / "set.parquet")
    copy_dataset(spark, source, url_of(tmp_path / "whole"), partitions_count=1)
    found = pq.read_table(tmp_path / "whole").sort_by("tick`")
    assert repr(found.to_pylist()) == repr(table.to_pylist())  # NaN is not equal to itself
    copy_dataset(spark, source, url_of(tmp_path / "some"), ["a.b", r"s\.in\.ner\.x"], ["a.b", "s.in.ner.x"])
    found = penstock.open(tmp_path / "some")
    assert found.columns == ("a.b", "s.in.ner.x")
    assert sorted(found[i]["a.b"] for i in range(len(found))) == [1, 3]  # NaN is a value
    assert pq.read_table(tmp_path / "some").schema.field("s").type == pa.struct(
        [("in.ner", pa.struct([("x", pa.float64())]))]
    )


def test_a_copy_onto_into_or_around_its_source_is_refused(spark, tmp_path):
    """Spark deletes what it overwrites before it reads, and files below a dataset are part of it."""
    folder = tmp_path / "up" / "set"
    folder.parent.mkdir()
    penstock.write([every_row(i) for i in range(4)], folder, EVERY)
    (tmp_path / "link").symlink_to(folder)
    for target, why in [
        (url_of(folder), "is"),
        (f"file:{folder}/", "is"),
        (url_of(tmp_path / "link"), "is"),
        (url_of(tmp_path / "up" / "x" / ".." / "set"), "is"),
        (url_of(folder / "x"), "is inside"),
        (url_of(folder.parent), "contains"),
    ]:
        with pytest.raises(PlanError, match=f"{why} the dataset to copy"):
            copy_dataset(spark, url_of(folder), target, overwrite_output=True)
    assert len(penstock.open(folder)) == 4
    copy_dataset(spark, url_of(folder), url_of(tmp_path / "up" / "set2"), ["id"])  # a name that begins alike
    assert len(penstock.open(tmp_path / "up" / "set2")) == 4


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        ("s3://bucket/a", "s3a://bucket/a/", True),
        ("s3://bucket/a", "s3://other/a", False),
        ("hdfs:///a", "hdfs://name:9000/a/b", True),
        ("hdfs:///a", "s3://bucket/a", False),
        ("dbfs:/ml/a", "/dbfs/ml/a", True),
        ("gs://b/a", "gs://b/ab", False),
    ],
)
def test_places_on_stores_are_compared_by_name(one, other, overlap):
    from penstock.spark.materialize import _refuse_overlap

    if overlap:
        with pytest.raises(PlanError, match="nothing was done"):
            _refuse_overlap(one, other)
    else:
        _refuse_overlap(one, other)


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
    with pytest.raises(ValueError, match="key=value; got 'x'"):
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


def test_arguments_of_an_index_in_another_order_are_told(spark, source):
    index = SingleFieldIndexer("by_id", "id")
    for given, wanted in [
        ((spark.sparkContext, source, [index]), "takes the URL of a dataset first; got SparkContext"),
        ((source, spark, [index]), "a SparkContext second, .* got SparkSession; .* pass spark.sparkContext"),
        ((source, [index], spark.sparkContext), "a SparkContext second, .* got list$"),
        ((source, spark.sparkContext, index), "takes a list of indexers last; got SingleFieldIndexer"),
    ]:
        with pytest.raises(TypeError, match=wanted):
            build_rowgroup_index(*given)


def test_commands_end_in_one_line_for_what_users_can_mend(spark, source, tmp_path, capsys):
    from penstock.petastorm.benchmark import cli
    from penstock.petastorm.etl import metadata_util, petastorm_generate_metadata

    nothing, taken = url_of(tmp_path / "nothing"), tmp_path / "taken"
    taken.mkdir()
    (taken / "a.txt").touch()
    for function, arguments, wanted in [
        (main, [nothing, url_of(tmp_path / "x")], "petastorm-copy-dataset.py: .*nothing"),
        (main, [source, source, "--overwrite-output"], "petastorm-copy-dataset.py: .*is the dataset to copy"),
        (main, [source, url_of(taken)], "petastorm-copy-dataset.py: .*exists already.*--overwrite-output"),
        (main, [source, url_of(taken), "--overwrite-output"], "petastorm-copy-dataset.py: .*'a.txt'"),
        (petastorm_generate_metadata.main, ["--dataset_url", nothing], "petastorm-generate-metadata.py: .*nothing"),
        (petastorm_generate_metadata.main, ["--dataset_url", "no/url"], "petastorm-generate-metadata.py: .*scheme"),
        (
            petastorm_generate_metadata.main,
            ["--dataset_url", source, "--unischema_class", "no_such.Schema"],
            "petastorm-generate-metadata.py: cannot find the schema 'no_such.Schema'",
        ),
        (metadata_util.main, ["--dataset-url", nothing, "--schema"], "metadata_util: .*nothing"),
        (cli.main, [nothing], "petastorm-throughput.py: .*nothing"),
    ]:
        with pytest.raises(SystemExit) as ended:
            function(arguments)
        assert ended.value.code == 1
        lines = capsys.readouterr().err.strip().splitlines()
        assert len(lines) == 1, lines
        assert re.match(wanted, lines[0]), lines
    assert spark.range(3).count() == 3
