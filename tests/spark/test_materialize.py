"""`materialize_dataset`: what Spark writes becomes a dataset; settings come back; failures leave nothing whole."""

from __future__ import annotations

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

import penstock
from penstock import Unischema, UnischemaField
from penstock.codecs import CompressedImageCodec, NdarrayCodec
from penstock.errors import DatasetNotFound, PlanError, SchemaError
from penstock.petastorm import make_reader
from penstock.petastorm.etl.dataset_metadata import (
    ROW_GROUPS_PER_FILE_KEY,
    UNISCHEMA_KEY,
    PetastormMetadataGenerationError,
    get_schema_from_dataset_url,
    materialize_dataset,
)
from penstock.petastorm.unischema import dict_to_spark_row
from penstock.schema.petastorm_pickle import load_unischema
from penstock.schema.stored import SCHEMA_KEY, schema_from_json
from tests.spark.common import EVERY, assert_rows, every_row, group_bytes, url_of

SMALL = Unischema(
    "Small",
    [
        UnischemaField("id", np.int64, (), None, False),
        UnischemaField("a", np.float32, (2,), NdarrayCodec(), False),
    ],
)
KEYS = ["parquet.block.size", "parquet.page.size", "parquet.dictionary.page.size", "parquet.summary.metadata.level"]
KEYS += [f"parquet.{what}.size.row.check.{end}" for what in ("block", "row-group", "page") for end in ("min", "max")]


def small_row(i):
    return {"id": i, "a": np.array([i, -i], np.float32)}


def frame(spark, schema, rows, slices=2):
    rdd = spark.sparkContext.parallelize(rows, slices).map(lambda row: dict_to_spark_row(schema, row))
    return spark.createDataFrame(rdd, schema.as_spark_schema())


def settings(spark):
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    return {key: (hadoop.get(key), spark.conf.get(key, None)) for key in KEYS}


@pytest.fixture(scope="module")
def every(spark, tmp_path_factory):
    url = url_of(tmp_path_factory.mktemp("every") / "set")
    with materialize_dataset(spark, url, EVERY, row_group_size_mb=1):
        frame(spark, EVERY, [every_row(i) for i in range(40)]).write.partitionBy("part").parquet(url)
    return url


def test_every_codec_comes_back_with_nulls_and_partitions(every):
    with make_reader(every, shuffle_row_groups=False) as reader:
        assert_rows(list(reader), [every_row(i) for i in range(40)])
    assert get_schema_from_dataset_url(every) == EVERY
    assert penstock.open(every).schema.fields["price"].codec == EVERY.fields["price"].codec


def test_both_forms_of_the_metadata_are_stored(every):
    folder = every.removeprefix("file://")
    pairs = pq.read_metadata(f"{folder}/_common_metadata").metadata
    assert schema_from_json(pairs[SCHEMA_KEY]) == EVERY
    assert load_unischema(pairs[UNISCHEMA_KEY]) == EVERY
    counts = json.loads(pairs[ROW_GROUPS_PER_FILE_KEY])
    assert sorted({path.partition("/")[0] for path in counts}) == ["part=p0", "part=p1", "part=p2"]
    assert all(pq.read_metadata(f"{folder}/{path}").num_row_groups == count for path, count in counts.items())


IMAGES = Unischema(
    "Images",
    [
        UnischemaField("id", np.int32, (), None, False),
        UnischemaField("image", np.uint8, (96, 96, 3), CompressedImageCodec("png"), False),
        UnischemaField("array", np.uint8, (None,), NdarrayCodec(), False),
    ],
)


def image_row(i):
    rng = np.random.default_rng(i)
    image = rng.integers(0, 256, (96, 96, 3), dtype=np.uint8)
    return {"id": np.int32(i), "image": image, "array": np.zeros(2000 * (i % 7), np.uint8)}


def test_row_groups_have_the_size_asked_for(spark, tmp_path):
    """27 KB of noise and up to 12 KB of zeros a row: some pages shrink to nothing."""
    url = url_of(tmp_path / "set")
    with materialize_dataset(spark, url, IMAGES, row_group_size_mb=1):
        frame(spark, IMAGES, [image_row(i) for i in range(300)]).write.parquet(url)
    sizes = np.array(group_bytes(tmp_path / "set")) / (1 << 20)
    assert len(sizes) >= 6
    assert sizes.min() > 0.75
    assert sizes.max() < 1.25


def test_row_groups_of_many_small_columns_have_the_size_asked_for(spark, tmp_path):
    """Columns that dictionaries and snappy shrink are measured as they are stored."""
    names = [f"c{i}" for i in range(12)]
    fields = [UnischemaField("id", np.int64, (), None, False)]
    fields += [UnischemaField(name, np.int64, (), None, False) for name in names]
    schema, url = Unischema("Wide", fields), url_of(tmp_path / "set")
    exprs = ["id"] + [f"cast(id % {7 + 400 * i} as long) as {name}" for i, name in enumerate(names)]
    with materialize_dataset(spark, url, schema, row_group_size_mb=0.5):
        spark.range(200_000).selectExpr(*exprs).coalesce(1).write.parquet(url)
    sizes = np.array(group_bytes(tmp_path / "set")) / (1 << 20)
    assert len(sizes) >= 3
    assert (sizes.min() > 0.375, sizes.max() < 0.625) == (True, True), sizes


@pytest.mark.parametrize("fails", [False, True])
def test_defect_5_2_12_settings_come_back_also_after_an_exception(spark, tmp_path, fails):
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    url = url_of(tmp_path / "set")
    hadoop.set("parquet.block.size", "123456789")
    spark.conf.set("parquet.page.size", "98765")
    try:
        before = settings(spark)
        assert before["parquet.block.size"][0] == "123456789"

        def block():
            with materialize_dataset(spark, url, SMALL, row_group_size_mb=2):
                assert settings(spark)["parquet.block.size"] == (str(2 << 20),) * 2
                frame(spark, SMALL, [small_row(i) for i in range(3)]).write.mode("overwrite").parquet(url)
                if fails:
                    raise KeyError("from the user's code")

        if fails:
            with pytest.raises(KeyError):
                block()
        else:
            block()
        assert settings(spark) == before
    finally:
        hadoop.unset("parquet.block.size")
        spark.conf.unset("parquet.page.size")


def test_a_failed_job_leaves_nothing_that_opens(spark, tmp_path):
    url = url_of(tmp_path / "set")
    rows = [small_row(i) for i in range(20)]

    def spoil(row):
        if row["id"] == 19:
            raise ZeroDivisionError("a bad row")
        return dict_to_spark_row(SMALL, row)

    spoilt = spark.createDataFrame(spark.sparkContext.parallelize(rows, 4).map(spoil), SMALL.as_spark_schema())
    with pytest.raises(Exception, match="a bad row"), materialize_dataset(spark, url, SMALL):
        spoilt.write.parquet(url)
    with pytest.raises(DatasetNotFound):
        penstock.open(url)


def test_a_dataset_that_was_there_stays_when_the_block_fails_before_writing(spark, tmp_path):
    url = url_of(tmp_path / "set")
    penstock.write([small_row(i) for i in range(4)], tmp_path / "set", SMALL)
    with pytest.raises(KeyError), materialize_dataset(spark, url, SMALL):
        raise KeyError("before anything")
    assert len(penstock.open(url)) == 4


def test_a_block_that_writes_nothing_there_is_told(spark, tmp_path):
    with (
        pytest.raises(PetastormMetadataGenerationError, match=r"nothing was written to .*inside the block"),
        materialize_dataset(spark, url_of(tmp_path / "set"), SMALL),
    ):
        frame(spark, SMALL, [small_row(1)]).write.parquet(url_of(tmp_path / "elsewhere"))


def test_columns_that_do_not_fit_the_schema_are_told_and_nothing_is_stored(spark, tmp_path):
    url = url_of(tmp_path / "set")
    with pytest.raises(SchemaError, match="'a'"), materialize_dataset(spark, url, SMALL):
        spark.range(3).write.parquet(url)
    assert not (tmp_path / "set" / "_common_metadata").exists()


def test_appending_brings_the_metadata_in_line(spark, tmp_path):
    url = url_of(tmp_path / "set")
    for first in (0, 10):
        with materialize_dataset(spark, url, SMALL, use_summary_metadata=first == 0):
            rows = [small_row(i) for i in range(first, first + 10)]
            frame(spark, SMALL, rows, 1).write.mode("append").parquet(url)
    pairs = pq.read_metadata(tmp_path / "set" / "_common_metadata").metadata
    assert sorted(json.loads(pairs[ROW_GROUPS_PER_FILE_KEY]).values()) == [1, 1]
    assert pq.read_metadata(tmp_path / "set" / "_metadata").num_row_groups == 2
    with make_reader(url, shuffle_row_groups=False) as reader:
        assert_rows(list(reader), [small_row(i) for i in range(20)])


def test_wrong_arguments_are_told_before_anything_is_set(spark, tmp_path):
    before = settings(spark)
    with pytest.raises(PlanError, match="row_group_size_mb"), materialize_dataset(spark, url_of(tmp_path), SMALL, 0):
        raise AssertionError("not reached")
    with pytest.raises(SchemaError, match="Unischema; got str"), materialize_dataset(spark, url_of(tmp_path), "x"):
        raise AssertionError("not reached")
    assert settings(spark) == before


def test_a_filesystem_of_the_users_gets_the_metadata(spark, tmp_path):
    import fsspec

    made = []

    def factory():
        made.append(fsspec.filesystem("file"))
        return made[-1]

    url = url_of(tmp_path / "set")
    with materialize_dataset(spark, url, SMALL, filesystem_factory=factory):
        frame(spark, SMALL, [small_row(i) for i in range(4)]).write.parquet(url)
    assert made
    assert len(penstock.open(url)) == 4
