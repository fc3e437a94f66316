"""`penstock.spark.write`: DataFrames to datasets through Arrow, on the executors."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

import penstock
import penstock.spark
from penstock import Unischema, UnischemaField
from penstock.codecs import CompressedImageCodec, NdarrayCodec
from penstock.errors import ColumnNotFound, DatasetExists, DatasetNotFound, PlanError, SchemaError, TransformError
from penstock.petastorm import make_reader
from penstock.petastorm.etl.dataset_metadata import ROW_GROUPS_PER_FILE_KEY, UNISCHEMA_KEY
from penstock.petastorm.unischema import dict_to_spark_row
from tests.spark.common import EVERY, assert_rows, every_row, scalar, url_of

POINTS = Unischema(
    "Points",
    [
        UnischemaField("id", np.int64, (), None, False),
        UnischemaField("label", np.str_, (), None, True),
        UnischemaField("points", np.float32, (4, 3), NdarrayCodec(), False),
        UnischemaField("tail", np.uint8, (None,), NdarrayCodec(), True),
        UnischemaField("image", np.uint8, (2, 2), CompressedImageCodec("png"), True),
    ],
)
DDL = "id long, label string, points array<array<float>>, tail array<int>, image binary"


def row_of(i):
    points = np.random.default_rng(i).random((4, 3)).astype(np.float32)
    row = {"id": i, "label": f"c{i % 2}", "points": points}
    return row | ({"tail": np.arange(i % 4, dtype=np.uint8), "image": np.full((2, 2), i, np.uint8)} if i % 3 else {})


def plain(row):
    """Return a row as Spark holds plain values: lists, raw bytes."""
    tail, image = row.get("tail"), row.get("image")
    return (
        row["id"],
        row["label"],
        row["points"].tolist(),
        None if tail is None else tail.tolist(),
        None if image is None else bytearray(image.tobytes()),
    )


def points_frame(spark, rows, slices=3):
    return spark.createDataFrame(spark.sparkContext.parallelize([plain(row) for row in rows], slices), DDL)


def rows_at(url):
    with make_reader(url, shuffle_row_groups=False) as reader:
        return list(reader)


def test_lists_and_raw_bytes_are_encoded_in_order(spark, tmp_path):
    rows = [row_of(i) for i in range(30)]
    written = penstock.spark.write(points_frame(spark, rows), tmp_path / "set", POINTS)
    assert (written.rows, written.files) == (30, 3)
    found = rows_at(url_of(tmp_path / "set"))
    assert [row.id for row in found] == list(range(30))
    assert_rows(found, rows)
    pairs = pq.read_metadata(tmp_path / "set" / "_common_metadata").metadata
    assert {UNISCHEMA_KEY, ROW_GROUPS_PER_FILE_KEY} <= pairs.keys()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["set"]


def test_cells_that_are_encoded_already_are_kept_and_partitions_are_folders(spark, tmp_path):
    rows = [every_row(i) for i in range(24)]
    encoded = spark.createDataFrame([dict_to_spark_row(EVERY, row) for row in rows], EVERY.as_spark_schema())
    penstock.spark.write(encoded.coalesce(2), url_of(tmp_path / "set"), EVERY, partition_by="part")
    assert sorted(path.name for path in (tmp_path / "set").iterdir() if path.is_dir()) == [
        "part=p0",
        "part=p1",
        "part=p2",
    ]
    assert_rows(rows_at(url_of(tmp_path / "set")), rows)


def test_row_groups_and_files_have_the_sizes_asked_for(spark, tmp_path):
    frame = spark.range(1000).selectExpr("id", "transform(sequence(0, 11), x -> cast(id + x as float)) as points")
    schema = Unischema("Flat", [POINTS.id, POINTS.points])
    written = penstock.spark.write(
        frame.coalesce(1), tmp_path / "set", schema, row_group_bytes=20_000, rows_per_file=400
    )
    assert written.files == 3
    ds = penstock.open(tmp_path / "set")
    assert [rows for _, _, rows in ds.chunks[:-1]][:2] == [108, 108]
    assert ds[7]["points"].tolist() == (np.arange(12, dtype=np.float32) + 7).reshape(4, 3).tolist()


def test_ml_vectors_dense_and_sparse(spark, tmp_path):
    from pyspark.ml.linalg import Vectors

    schema = Unischema(
        "V",
        [UnischemaField("id", np.int64, (), None, False), UnischemaField("v", np.float32, (3,), NdarrayCodec(), True)],
    )
    rows = [(0, Vectors.dense(1, 2, 3)), (1, Vectors.sparse(3, {1: 5.0})), (2, None)]
    penstock.spark.write(spark.createDataFrame(rows, ["id", "v"]), tmp_path / "set", schema)
    ds = penstock.open(tmp_path / "set")
    assert [None if ds[i]["v"] is None else ds[i]["v"].tolist() for i in range(3)] == [[1, 2, 3], [0, 5, 0], None]


def test_what_is_there_stays_unless_overwritten(spark, tmp_path):
    frame = points_frame(spark, [row_of(i) for i in range(4)], 1)
    penstock.spark.write(frame, tmp_path / "set", POINTS)
    with pytest.raises(DatasetExists, match="overwrite=True"):
        penstock.spark.write(frame, tmp_path / "set", POINTS)
    penstock.spark.write(frame.limit(2), tmp_path / "set", POINTS, overwrite=True)
    assert len(penstock.open(tmp_path / "set")) == 2


def test_an_empty_frame_is_an_empty_dataset(spark, tmp_path):
    penstock.spark.write(points_frame(spark, [row_of(1)]).where("id < 0"), tmp_path / "set", POINTS)
    assert len(penstock.open(tmp_path / "set")) == 0


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ("named_struct('a', 1)", SchemaError, r"partition \d+ of the DataFrame.*'points'"),
        ("array(array(1.0f), array(1.0f, 2.0f))", SchemaError, r"row \d+, field 'points'.*lists of 1 to 2"),
        ("array(1.0f, null)", SchemaError, r"row \d+, field 'points'.*holds a null"),
        ("array(1.0f, 2.0f)", SchemaError, r"row \d+, field 'points'.*\(4, 3\)"),
        (
            "cast(null as array<float>)",
            SchemaError,
            r"row \d+, field 'points'.*missing value",
        ),
        ("array('x')", SchemaError, r"'points'.*lists hold string"),
    ],
)
def test_a_row_that_does_not_fit_names_partition_row_and_field(spark, tmp_path, change, error, match):
    frame = points_frame(spark, [row_of(i) for i in range(3)], 1).selectExpr("id", f"{change} as points")
    with pytest.raises(error, match=match):
        penstock.spark.write(frame, tmp_path / "set", POINTS)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DatasetNotFound):
        penstock.open(tmp_path / "set")


@pytest.mark.parametrize(
    ("value", "dtype", "shape", "codec", "match"),
    [
        ("1e300D", np.float32, (), None, r"row 1, .*'x': 1e\+300"),
        ("1e300D", np.float32, (), scalar("Float"), r"row 1, .*'x': 1e\+300"),
        ("array(1e300D)", np.float32, (None,), None, r"row 1, .*'x': 1e\+300"),
        ("array(1e300D)", np.float32, (1,), NdarrayCodec(), r"row 1, .*'x': the list holds 1e\+300"),
        ("1e6D", np.float16, (), None, r"row 1, .*'x': 1000000\.0"),
        ("2", np.bool_, (), None, "row 1, .*'x': 2 "),
        ("'1e400'", np.float64, (), None, "'x'.*string"),
        ("1.26D", Decimal, (), scalar("Decimal", precision=5, scale=1), "'x'.*double"),
        ("timestamp'2020-01-01 00:00:00'", np.int64, (), None, "'x'.*timestamp"),
        ("interval '1' day", np.int64, (), None, "'x'.*duration"),
        ("1L", np.datetime64, (), None, "'x'.*int64"),
    ],
)
def test_no_value_becomes_another(spark, tmp_path, value, dtype, shape, codec, match):
    schema = Unischema("One", [UnischemaField("x", dtype, shape, codec, True)])
    frame = spark.sql(f"select id, {value} as x from range(0, 2, 1, 1)").selectExpr("if(id = 0, null, x) as x")
    with pytest.raises(SchemaError, match=match):
        penstock.spark.write(frame, tmp_path / "set", schema)
    assert list(tmp_path.iterdir()) == []


def test_names_with_dots_and_backticks_and_every_number(spark, tmp_path):
    """Spark takes `a.b` for a field of a struct; a float16 has limits, which go to the executors."""
    names = ["a.b", "tick`", "s.x"]
    schema = Unischema("Dots", [UnischemaField(name, np.float16, (), None, False) for name in names])
    frame = spark.range(0, 3, 1, 1).toDF("id").selectExpr("id as `a.b`", "id + 0.5D as `tick```", "id as `s.x`")
    penstock.spark.write(frame, tmp_path / "set", schema)
    ds = penstock.open(tmp_path / "set")
    assert [ds[2][name] for name in names] == [2, 2.5, 2]
    schema = Unischema("Sum", [UnischemaField("sum", np.float64, (), None, False)])
    penstock.spark.write(frame, tmp_path / "sum", schema, transform=lambda row: {"sum": row["a.b"] + row["tick`"]})
    assert penstock.open(tmp_path / "sum")[1]["sum"] == 2.5


def test_instants_are_kept_and_a_codec_says_that_spark_reads_them_as_such(spark, tmp_path):
    """What docs/spark.md says of times: without a codec Spark reads the wall time of UTC."""
    kinds = [("plain", None), ("stamped", scalar("Timestamp"))]
    schema = Unischema("Times", [UnischemaField(name, np.datetime64, (), codec, False) for name, codec in kinds])
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        moment = "timestamp'2024-07-01 09:00:00'"
        penstock.spark.write(spark.sql(f"select {moment} as plain, {moment} as stamped"), tmp_path / "set", schema)
        back = spark.read.parquet(url_of(tmp_path / "set"))
        told = back.selectExpr("cast(plain as string)", "cast(stamped as string)").collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    assert dict(back.dtypes) == {"plain": "timestamp_ntz", "stamped": "timestamp"}
    assert tuple(told[0]) == ("2024-07-01 00:00:00", "2024-07-01 09:00:00")
    assert set(penstock.open(tmp_path / "set")[0].values()) == {np.datetime64("2024-07-01T00:00:00")}


def test_what_is_no_data_frame_or_has_columns_that_are_one_is_refused(spark, tmp_path):
    import pandas as pd

    for given, name in [([{"id": 1}], "list"), (pd.DataFrame({"id": [1]}), "DataFrame"), (None, "NoneType")]:
        with pytest.raises(TypeError, match=rf"wants a Spark DataFrame; got .*\.{name}\..*createDataFrame"):
            penstock.spark.write(given, tmp_path / "set", POINTS)
    for expression, match in [("id + 1 as id", "two columns are named 'id'"), ("1 as ID", "'id' and 'ID' differ only")]:
        for transform in (None, dict):
            frame = spark.range(1).selectExpr("id", expression)
            with pytest.raises(SchemaError, match=match):
                penstock.spark.write(frame, tmp_path / "set", POINTS, transform=transform)
    stream = spark.readStream.format("rate").load()
    with pytest.raises(PlanError, match="no end"):
        penstock.spark.write(stream, tmp_path / "set", POINTS, transform=dict)
    assert list(tmp_path.iterdir()) == []


def test_columns_are_checked_before_a_job_runs(spark, tmp_path):
    frame = points_frame(spark, [row_of(1)], 1)
    with pytest.raises(ColumnNotFound, match="no field 'extra'"):
        penstock.spark.write(frame.selectExpr("*", "1 as extra"), tmp_path / "set", POINTS)
    with pytest.raises(SchemaError, match=r"'points'.*missing value, but the field is not nullable"):
        penstock.spark.write(frame.select("id"), tmp_path / "set", POINTS)
    with pytest.raises(SchemaError, match="Unischema; got str"):
        penstock.spark.write(frame, tmp_path / "set", "schema")
    assert list(tmp_path.iterdir()) == []


def test_attempts_that_failed_leave_no_rows_behind(spark, tmp_path):
    """A task that dies after it has written files is run again; the files of its first attempt are not counted."""
    from pyarrow.fs import LocalFileSystem

    from penstock.schema.arrow import arrow_schema
    from penstock.spark.task import Gate, Target, WriteTask
    from penstock.spark.write import _run
    from penstock.storage.publish import put_json
    from penstock.write.layout import plan_layout
    from penstock.write.options import WriteOptions
    from penstock.write.staging import choose
    from penstock.write.target import WriteTarget

    options = WriteOptions(1 << 20, 2, (), False, "auto")
    stage = choose(WriteTarget(LocalFileSystem(), str(tmp_path / "set")), options)
    layout = plan_layout(POINTS, arrow_schema(POINTS), ())
    gate = Gate(f"{stage.journal}/gate.json", "1234")
    put_json(stage.fs, gate.path, {"run": gate.run})
    task = WriteTask(Target(str(tmp_path / "set"), None, None, stage.data, gate), layout, options)
    frame = points_frame(spark, [row_of(i) for i in range(10)], 2)
    first, second = _run(frame, task), _run(frame, task)
    assert {file.path for file in first}.isdisjoint(file.path for file in second)
    assert sum(file.rows for file in second) == 10
    stage.remove_files(keep={file.path for file in second})
    left = sorted(path.name for path in (tmp_path / stage.data).glob("*.parquet"))
    assert left == [file.path for file in second]


def test_a_transform_makes_the_rows_on_the_executors(spark, tmp_path):
    written = penstock.spark.write(
        spark.range(0, 30, 1, 3), tmp_path / "set", POINTS, transform=lambda row: row_of(row["id"])
    )
    assert (written.rows, written.files) == (30, 3)
    assert_rows(rows_at(url_of(tmp_path / "set")), [row_of(i) for i in range(30)])
    with pytest.raises(SchemaError, match=r"partition \d of the DataFrame, row 0: the transform gave list"):
        penstock.spark.write(spark.range(2), tmp_path / "no", POINTS, transform=lambda row: [row])
    with pytest.raises(SchemaError, match=r"row 0, field 'points'.*shape \(4, 3\)"):
        penstock.spark.write(
            spark.range(2), tmp_path / "no", POINTS, transform=lambda row: {**row_of(1), "points": np.zeros(2, "f4")}
        )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["set"]


def test_an_error_of_a_transform_names_partition_and_row(spark, tmp_path):
    def spoil(row):
        if row["id"] == 7:
            raise KeyError("no such\nscan")
        return row_of(row["id"])

    with pytest.raises(
        TransformError, match=r"^partition 1 of the DataFrame, row 2: the transform raised KeyError: 'no such"
    ) as info:
        penstock.spark.write(spark.range(0, 10, 1, 2), tmp_path / "set", POINTS, transform=spoil)
    assert "in spoil" in str(info.value.__cause__)
    assert list(tmp_path.iterdir()) == []
