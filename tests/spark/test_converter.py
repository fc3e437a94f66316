"""A DataFrame becomes files once, is reused only where its rows are the same, and nothing else is ever deleted."""

from __future__ import annotations

import json
import logging
import os
import pickle
import shutil
import threading
import time
import warnings
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import functions as F

import penstock
from penstock.errors import PenstockWarning, PlanError, SchemaError
from penstock.petastorm.spark import SparkDatasetConverter, _cache, _places, make_spark_converter
from penstock.petastorm.spark._places import MARKER
from penstock.petastorm.spark.spark_dataset_converter import register_delete_dir_handler
from tests.test_alias import run

KEY = SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF


@pytest.fixture
def cache(spark, tmp_path):
    """The folder below which converters write."""
    folder = tmp_path / "cache"
    spark.conf.set(KEY, folder.as_uri())
    yield folder
    spark.conf.unset(KEY)
    _cache.delete_all()
    register_delete_dir_handler(None)


def folder_of(converter) -> Path:
    return Path(unquote(urlsplit(converter.cache_dir_url).path))


def table_of(converter) -> pa.Table:
    return pa.concat_tables(pq.read_table(unquote(urlsplit(url).path)) for url in converter.file_urls)


# -- what is written --------------------------------------------------------------------------------------------------


def test_rows_are_written_below_the_folder_of_the_setting(spark, cache) -> None:
    converter = make_spark_converter(spark.range(100, numPartitions=3))
    assert len(converter) == 100
    assert sorted(table_of(converter)["id"].to_pylist()) == list(range(100))
    assert folder_of(converter).parent == cache
    stamp, _, application, *rest = folder_of(converter).name.split("-", 3)
    assert len(stamp) == 14
    assert f"appid-{spark.sparkContext.applicationId}-" in folder_of(converter).name
    assert (application, rest) != ("", [])
    assert len(converter.file_urls) == 3
    assert "rows=100" in repr(converter)


def test_a_folder_with_blanks_and_escapes_is_the_same_for_spark_and_for_readers(spark, cache, tmp_path) -> None:
    spark.conf.set(KEY, (tmp_path / "a b%20c").as_uri())
    converter = make_spark_converter(spark.range(10))
    assert folder_of(converter).parent == tmp_path / "a b%20c"
    assert sorted(table_of(converter)["id"].to_pylist()) == list(range(10))
    assert sorted(penstock.open(converter.file_urls).take(range(10))["id"].tolist()) == list(range(10))
    assert sorted(penstock.open(converter.cache_dir_url).take(range(10))["id"].tolist()) == list(range(10))


@pytest.mark.parametrize(
    ("dtype", "double", "single"),
    [
        ("float32", pa.float32(), pa.float32()),
        ("float64", pa.float64(), pa.float64()),
        (None, pa.float64(), pa.float32()),
    ],
)  # fmt: skip
def test_floating_point_columns_and_arrays_get_one_precision(spark, cache, dtype, double, single) -> None:
    kinds = "d double, f float, ds array<double>, fs array<float>, dss array<array<double>>, i int, `a.b` double"
    rows = [(0.1, 0.5, [0.1, 0.2], [0.5], [[0.1]], 3, 7.0)]
    got = table_of(make_spark_converter(spark.createDataFrame(rows, kinds), dtype=dtype)).schema
    wanted = {"d": double, "f": single, "ds": double, "fs": single, "i": pa.int32(), "a.b": double}
    for name, kind in wanted.items():
        found = got.field(name).type
        assert (found.value_type if pa.types.is_list(found) else found) == kind, name
    assert got.field("dss").type.value_type.value_type == double


@pytest.mark.parametrize("module", ["pyspark.ml.linalg", "pyspark.mllib.linalg"])
@pytest.mark.parametrize(
    ("dtype", "kind"), [("float32", pa.float32()), ("float64", pa.float64()), (None, pa.float64())]
)
def test_vectors_dense_and_sparse_become_arrays(spark, cache, module, dtype, kind) -> None:
    vectors = pytest.importorskip(module).Vectors
    df = spark.createDataFrame([(0, vectors.dense([1, 2, 3])), (1, vectors.sparse(3, {1: 5.0}))], ["i", "v"])
    table = table_of(make_spark_converter(df, dtype=dtype)).sort_by("i")
    assert table.schema.field("v").type.value_type == kind
    assert table["v"].to_pylist() == [[1, 2, 3], [0, 5, 0]]


def test_a_null_vector_stays_a_null(spark, cache) -> None:
    from pyspark.ml.linalg import Vectors

    rows = [(0, Vectors.dense(1, 2)), (1, None), (2, Vectors.sparse(2, {1: 5.0}))]
    converter = make_spark_converter(spark.createDataFrame(rows, ["id", "v"]).coalesce(1))
    assert table_of(converter).sort_by("id")["v"].to_pylist() == [[1, 2], None, [0, 5]]


@pytest.mark.parametrize(
    ("codec", "stored"),
    [
        (None, "UNCOMPRESSED"),
        ("uncompressed", "UNCOMPRESSED"),
        ("GZIP", "GZIP"),
        ("snappy", "SNAPPY"),
        ("lz4", "UNKNOWN"),  # pyarrow's name for the LZ4 of Hadoop
        ("zstd", "ZSTD"),
    ],
)
def test_compression(spark, cache, codec, stored) -> None:
    converter = make_spark_converter(spark.range(1000), compression_codec=codec)
    footer = pq.read_metadata(unquote(urlsplit(converter.file_urls[0]).path))
    assert footer.row_group(0).column(0).compression == stored
    assert penstock.open(converter.file_urls).take(range(1000))["id"].sum() == 499500


def test_row_groups_have_the_size_asked_for(spark, cache) -> None:
    df = spark.range(400, numPartitions=1).withColumn("blob", F.expr("repeat(sha2(string(id), 256), 320)"))
    converter = make_spark_converter(df, parquet_row_group_size_bytes=1 << 20)
    footer = pq.read_metadata(unquote(urlsplit(converter.file_urls[0]).path))
    sizes = [footer.row_group(index).num_rows for index in range(footer.num_row_groups)]
    assert sum(sizes) == 400
    assert len(sizes) > 5  # 8 MB; with Parquet's own first look, after 100 rows, it would be 4


@pytest.mark.parametrize("codec", ["bzip2", "deflate", "lzma", 3])
def test_a_codec_that_is_none_of_parquets_is_refused(spark, cache, codec) -> None:
    with pytest.raises(RuntimeError, match=r"one of 'uncompressed', 'snappy'"):
        make_spark_converter(spark.range(3), compression_codec=codec)
    assert not cache.exists()


def test_a_dtype_that_is_none_is_refused(spark, cache) -> None:
    with pytest.raises(ValueError, match=r"dtype float16 is not supported; give 'float32', 'float64' or None"):
        make_spark_converter(spark.range(3), dtype="float16")
    with pytest.raises(ValueError, match=r"parquet_row_group_size_bytes must be a whole number, at least 1; got 0"):
        make_spark_converter(spark.range(3), parquet_row_group_size_bytes=0)
    with pytest.raises(TypeError, match=r"wanted a Spark DataFrame, or the URL .*; got dict"):
        make_spark_converter({})


def test_the_setting_must_be_there_and_be_a_url(spark, tmp_path) -> None:
    with pytest.raises(ValueError, match=r"spark\.conf\.set\('petastorm\.spark\.converter\.parentCacheDirUrl'"):
        make_spark_converter(spark.range(3))
    spark.conf.set(KEY, str(tmp_path))
    try:
        with pytest.raises(ValueError, match=r"has no scheme; .*scheme-less.* file:///"):
            make_spark_converter(spark.range(3))
    finally:
        spark.conf.unset(KEY)


def test_a_stream_is_refused(spark, cache) -> None:
    with pytest.raises(ValueError, match="streaming DataFrame has no end"):
        make_spark_converter(spark.readStream.format("rate").load())


def test_two_columns_of_one_name_are_refused(spark, cache) -> None:
    with pytest.raises(SchemaError, match="two columns are named 'x'"):
        make_spark_converter(spark.range(3).select(F.col("id").alias("x"), F.col("id").alias("x")))
    assert list(cache.iterdir()) == []


def test_columns_that_differ_by_case_only_are_refused(spark, cache) -> None:
    with pytest.raises(SchemaError, match=r"'id' and 'ID' differ only by case.*rename one"):
        make_spark_converter(spark.range(5).selectExpr("id", "id + 1 as ID"))
    assert not cache.exists() or list(cache.iterdir()) == []


def test_a_failed_job_leaves_nothing_and_the_next_call_works(spark, cache, tmp_path) -> None:
    stop = str(tmp_path / "stop")
    Path(stop).touch()

    def fail(value):
        if os.path.exists(stop) and value == 7:
            raise ValueError("seven")
        return value

    df = spark.range(10).select(F.udf(fail, "long")("id").alias("x"))
    with pytest.raises(Exception, match="seven"):
        make_spark_converter(df)
    assert list(cache.iterdir()) == []
    os.remove(stop)
    assert len(make_spark_converter(df)) == 10


def test_an_empty_data_frame_is_no_error(spark, cache) -> None:
    converter = make_spark_converter(spark.range(0))
    assert len(converter) == 0
    assert converter
    assert converter.steps_per_epoch(8) == 0
    with pytest.raises(PlanError, match=r"no rows .*num_epochs=None"):
        converter.make_torch_dataloader()
    none = make_spark_converter(spark.createDataFrame([([1.0],)], "x array<double>").filter("false"))
    assert len(none) == 0


# -- reused -------------------------------------------------------------------------------------------------------


def test_the_same_data_frame_is_written_once(spark, cache, caplog) -> None:
    df = spark.createDataFrame([(1, 2.0), (3, 4.0)], "a int, b double")
    first = make_spark_converter(df)
    with caplog.at_level(logging.INFO, logger="penstock"):
        again = make_spark_converter(df)
    assert again.cache_dir_url == first.cache_dir_url
    assert again.file_urls == first.file_urls
    assert len(again) == 2
    assert "reused" in caplog.text


def test_a_data_frame_made_again_with_the_same_plan_is_not_written_again(spark, cache, tmp_path) -> None:
    spark.range(50).withColumn("x", F.col("id") * 0.5).write.parquet(str(tmp_path / "source"))

    def make():
        df = spark.read.parquet(str(tmp_path / "source")).filter("id > 10")
        return make_spark_converter(df.select((F.col("x") * 2).alias("twice"), "id"))

    first = make()
    assert make().cache_dir_url == first.cache_dir_url
    assert make_spark_converter(spark.range(7)).cache_dir_url == make_spark_converter(spark.range(7)).cache_dir_url
    other = spark.read.parquet(str(tmp_path / "source")).filter("id > 11")
    assert make_spark_converter(other).cache_dir_url != first.cache_dir_url


def test_equal_plans_under_other_names_are_written_anew(spark, cache, tmp_path) -> None:
    """To Spark two plans have the same result whatever the columns are called: features must not become labels."""
    spark.range(3).selectExpr("id as a", "id + 10 as b").write.parquet(str(tmp_path / "set"))
    source = spark.read.parquet(str(tmp_path / "set"))
    found = []
    for names in (("feature", "label"), ("label", "feature"), ("Feature", "Label"), ("feature", "label")):
        found.append(make_spark_converter(source.selectExpr(f"a as {names[0]}", f"b as {names[1]}")))
        table = table_of(found[-1])
        assert table.column_names == list(names)
        assert sorted(table[names[1]].to_pylist()) == [10, 11, 12]
    assert found[0].cache_dir_url == found[3].cache_dir_url


def test_other_settings_or_another_folder_are_written_anew(spark, cache, tmp_path) -> None:
    df = spark.range(5).withColumn("x", F.lit(0.5))
    urls = [make_spark_converter(df, **one).cache_dir_url for one in (
        {}, {"dtype": None}, {"compression_codec": "gzip"}, {"parquet_row_group_size_bytes": 1 << 20},
    )]  # fmt: skip
    spark.conf.set(KEY, (tmp_path / "other").as_uri())
    urls.append(make_spark_converter(df).cache_dir_url)
    assert len(set(urls)) == 5
    assert make_spark_converter(df, compression_codec="uncompressed").cache_dir_url == urls[-1]


def test_files_that_changed_below_an_equal_plan_are_read_anew(spark, cache, tmp_path) -> None:
    """Spark says that both plans have the same result: it compares folders, not what is in them."""
    source = str(tmp_path / "source")
    spark.range(5).write.parquet(source)
    df = spark.read.parquet(source)
    first = make_spark_converter(df)
    spark.range(5, 12).write.mode("overwrite").parquet(source)
    assert df.sameSemantics(spark.read.parquet(source))
    again = make_spark_converter(spark.read.parquet(source))
    assert sorted(table_of(again)["id"].to_pylist()) == list(range(5, 12))
    assert sorted(table_of(first)["id"].to_pylist()) == list(range(5))


def test_files_that_changed_below_a_subquery_are_read_anew(spark, cache, tmp_path) -> None:
    some, least = str(tmp_path / "some"), str(tmp_path / "least")
    spark.range(10).write.parquet(some)

    def make(value):
        spark.range(value, value + 1).write.mode("overwrite").parquet(least)
        spark.read.parquet(some).createOrReplaceTempView("some")
        spark.read.parquet(least).createOrReplaceTempView("least")
        return make_spark_converter(spark.sql("select * from some where id >= (select min(id) from least)"))

    assert len(make(3)) == 7
    assert len(make(8)) == 2


def test_values_that_are_drawn_or_tell_the_time_are_never_taken_from_before(spark, cache) -> None:
    random, time = (
        spark.range(5).withColumn("x", F.rand(7)),
        lambda: spark.range(5).withColumn("t", F.current_timestamp()),
    )
    assert make_spark_converter(random).cache_dir_url != make_spark_converter(random).cache_dir_url
    assert make_spark_converter(time()).cache_dir_url != make_spark_converter(time()).cache_dir_url


def test_local_rows_count_by_their_values(spark, cache) -> None:
    def make(values):
        return make_spark_converter(spark.sql(f"select * from values {values} as rows(x)")).cache_dir_url

    assert make("(1), (2)") == make("(1), (2)")
    assert make("(1), (3)") != make("(1), (2)")


def test_functions_of_the_user_count_by_what_they_do(spark, cache) -> None:
    def make(number):
        return make_spark_converter(spark.range(3).select(F.udf(lambda x: x + number, "long")("id").alias("x")))

    assert make(1).cache_dir_url == make(1).cache_dir_url
    assert sorted(table_of(make(5))["x"].to_pylist()) == [5, 6, 7]


def test_a_source_that_may_change_unseen_is_written_anew(spark, cache, caplog) -> None:
    spark.sql("create or replace temporary view numbers as select explode(sequence(1, 4)) as x")
    df = spark.table("numbers")  # plain rows: these are known
    assert make_spark_converter(df).cache_dir_url == make_spark_converter(df).cache_dir_url
    source = str(cache / "source")
    spark.range(3).write.parquet(source)
    spark.conf.set("spark.sql.sources.useV1SourceList", "")
    try:
        df = spark.read.parquet(source)
        with caplog.at_level(logging.INFO, logger="penstock"):
            first, again = make_spark_converter(df), make_spark_converter(df)
    finally:
        spark.conf.unset("spark.sql.sources.useV1SourceList")
    assert first.cache_dir_url != again.cache_dir_url
    assert "written again, even if it was written before: it reads from a source (DataSourceV2Relation)" in caplog.text


def test_a_folder_that_somebody_deleted_is_written_again(spark, cache) -> None:
    df = spark.range(4)
    first = make_spark_converter(df)
    shutil.rmtree(folder_of(first))
    again = make_spark_converter(df)
    assert sorted(table_of(again)["id"].to_pylist()) == [0, 1, 2, 3]


def test_threads_with_the_same_data_frame_write_it_once(spark, cache) -> None:
    df = spark.range(1000)
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(make_spark_converter(df).cache_dir_url)) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(found) == 4
    assert len(set(found)) == len(list(cache.iterdir())) == 1


def test_a_spark_that_hides_its_jvm_materialises_anew(spark, cache, caplog) -> None:
    class Hidden:
        """A DataFrame of a cluster that does not let anybody at Spark's plans."""

        _jdf = object()

        def __init__(self, df) -> None:
            self._df = df

        def __getattr__(self, name):
            return getattr(self._df, name)

    hidden = Hidden(spark.range(3))
    with caplog.at_level(logging.INFO, logger="penstock"):
        assert make_spark_converter(hidden).cache_dir_url != make_spark_converter(hidden).cache_dir_url
    assert "this Spark does not show what a DataFrame reads (AttributeError)" in caplog.text


# -- deleted ----------------------------------------------------------------------------------------------------------


def test_delete_removes_the_folder_and_may_be_called_twice(spark, cache) -> None:
    df = spark.range(5)
    converter = make_spark_converter(df)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        converter.delete()
        assert list(cache.iterdir()) == []
        converter.delete()
    begun = time.monotonic()
    with pytest.raises(RuntimeError, match=r"deleted by converter\.delete\(\).*make the converter again"):
        converter.make_torch_dataloader(batch_size=2, num_epochs=1).__enter__()
    assert time.monotonic() - begun < 5  # nothing to wait for
    again = make_spark_converter(df)  # not the folder that is gone
    assert len(table_of(again)) == 5


def test_a_folder_is_kept_while_another_converter_uses_it(spark, cache) -> None:
    df = spark.range(5)
    one, other = make_spark_converter(df), make_spark_converter(df)
    one.delete()
    assert len(table_of(other)) == 5
    one.delete()
    assert len(table_of(other)) == 5
    other.delete()
    assert list(cache.iterdir()) == []


def test_a_converter_that_nobody_has_any_more_keeps_nothing(spark, cache) -> None:
    df = spark.range(5)
    converter = make_spark_converter(df)
    converter = make_spark_converter(df)  # a cell of a notebook that was run again
    converter.delete()
    assert list(cache.iterdir()) == []


def test_defect_5_2_9_delete_never_removes_a_folder_of_the_user(spark, cache, tmp_path) -> None:
    source = tmp_path / "mine"
    spark.range(6).write.parquet(str(source))
    before = sorted(source.iterdir())
    converter = make_spark_converter(source.as_uri())
    assert len(converter) == 6
    with pytest.warns(PenstockWarning, match="was not written for this converter, and nothing of it was deleted"):
        converter.delete()
    by_hand = SparkDatasetConverter(source.as_uri(), [source.as_uri()], 6)
    with pytest.warns(PenstockWarning, match="was not written for this converter"):
        by_hand.delete()
    assert sorted(source.iterdir()) == before


def test_a_converter_of_another_ones_folder_does_not_delete_it(spark, cache) -> None:
    first = make_spark_converter(spark.range(6))
    other = make_spark_converter(first.cache_dir_url)
    with pytest.warns(PenstockWarning, match="not written for this converter"):
        other.delete()
    assert len(table_of(first)) == 6


def test_files_of_others_in_the_folder_are_kept(spark, cache) -> None:
    converter = make_spark_converter(spark.range(6))
    folder = folder_of(converter)
    (folder / "notes.txt").write_text("mine")
    with pytest.warns(PenstockWarning, match=r"1 files in it are not the converter's, 'notes\.txt'"):
        converter.delete()
    assert [one.name for one in folder.iterdir()] == ["notes.txt"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # least of all one that says the folder was never the converter's
        converter.delete()
    assert [one.name for one in folder.iterdir()] == ["notes.txt"]


def test_a_marker_of_somebody_else_does_not_count(spark, cache, tmp_path) -> None:
    source = tmp_path / "mine"
    spark.range(6).write.parquet(str(source))
    for text in (
        "{",
        "[]",
        json.dumps({"made_by": "me", "files": []}),
        json.dumps({"made_by": "penstock.petastorm.spark"}),
    ):
        (source / MARKER).write_text(text)
        with pytest.warns(PenstockWarning, match="not written for this converter"):
            SparkDatasetConverter(source.as_uri(), [source.as_uri()], 6).delete()
    assert len(list(source.glob("*.parquet"))) > 0


def test_a_handler_of_the_user_deletes_and_only_what_converters_wrote(spark, cache, tmp_path) -> None:
    source = tmp_path / "mine"
    spark.range(6).write.parquet(str(source))
    seen: list[str] = []
    register_delete_dir_handler(seen.append)
    converter = make_spark_converter(spark.range(3))
    converter.delete()
    assert seen == [converter.cache_dir_url]
    assert folder_of(converter).exists()
    with pytest.warns(PenstockWarning):
        SparkDatasetConverter(source.as_uri(), [source.as_uri()], 6).delete()
    assert len(seen) == 1
    register_delete_dir_handler(None)
    converter.delete()
    assert not folder_of(converter).exists()
    with pytest.raises(TypeError, match="a handler is a function of a URL, or None; got 3"):
        register_delete_dir_handler(3)


def test_a_forked_child_deletes_nothing_when_it_ends(spark, cache) -> None:
    converter = make_spark_converter(spark.range(3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons warn of threads
        child = os.fork()
    if child == 0:
        _cache.delete_all()  # what `atexit` calls
        os._exit(0)
    os.waitpid(child, 0)
    assert len(table_of(converter)) == 3


# -- elsewhere --------------------------------------------------------------------------------------------------------


def test_a_converter_is_pickled_to_processes_without_spark(spark, cache) -> None:
    pytest.importorskip("torch")
    converter = make_spark_converter(spark.range(20).withColumn("v", F.array(F.lit(1.0), F.lit(2.0))))
    copy = pickle.loads(pickle.dumps(converter))
    assert (copy.cache_dir_url, copy.file_urls, len(copy)) == (converter.cache_dir_url, converter.file_urls, 20)
    assert elsewhere(converter) == "True (20, 2) False"
    copy.delete()  # the one it was copied from still uses the files
    assert len(table_of(converter)) == 20
    elsewhere(converter, delete="1")  # no other converter there: at once
    assert not folder_of(converter).exists()
    with pytest.raises(
        RuntimeError, match=r"2 of 2 files cannot be seen after 0\.1 s: file:///.*make the converter again"
    ):
        _places.wait_for_files(converter.file_urls, 0.1, None)


def elsewhere(converter, delete: str = "") -> str:
    code = """
        import os, pickle, sys
        converter = pickle.loads(bytes.fromhex(os.environ["CONVERTER"]))
        with converter.make_torch_dataloader(num_epochs=1, batch_size=20) as loader:
            [batch] = list(loader)
        print(sorted(batch["id"].tolist()) == list(range(20)), tuple(batch["v"].shape), "pyspark" in sys.modules)
        if os.environ["DELETE"]:
            converter.delete()
    """
    return run(code, CONVERTER=pickle.dumps(converter).hex(), DELETE=delete)


def test_spark_workers_read_through_a_converter(spark, cache) -> None:
    pytest.importorskip("torch")
    converter = make_spark_converter(spark.range(30))

    def read(shard):
        with converter.make_torch_dataloader(num_epochs=1, cur_shard=shard, shard_count=2) as loader:
            return [int(one) for batch in loader for one in batch["id"]]

    seen = spark.sparkContext.parallelize([0, 1], 2).map(read).collect()
    assert sorted(len(one) for one in seen) == [15, 15]
    assert sorted(seen[0] + seen[1]) == list(range(30))


def test_a_path_of_parquet_files_needs_neither_spark_nor_the_setting(tmp_path) -> None:
    penstock.write({"x": np.arange(10)}, tmp_path / "plain")
    converter = make_spark_converter(str(tmp_path / "plain"))
    assert len(converter) == 10
    assert converter.file_urls == [converter.cache_dir_url] == [(tmp_path / "plain").as_uri()]
    assert len(make_spark_converter(tmp_path / "plain")) == 10
    with pytest.raises(FileNotFoundError):
        make_spark_converter(str(tmp_path / "none"))
