"""Errors and warnings as Petastorm's programs know them: the class, the words that are matched on, what differs.

The tests under "what differs" are named in docs/migrate_from_petastorm.md.
"""

from __future__ import annotations

import argparse
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.codecs import CompressedImageCodec, CompressedNdarrayCodec, NdarrayCodec, ScalarCodec
from penstock.petastorm import TransformSpec, make_batch_reader, make_reader
from penstock.petastorm.errors import NoDataAvailableError
from penstock.petastorm.fs_utils import FilesystemResolver
from penstock.petastorm.local_disk_cache import LocalDiskCache
from penstock.petastorm.ngram import NGram
from penstock.petastorm.predicates import (
    in_intersection,
    in_lambda,
    in_negate,
    in_pseudorandom_split,
    in_reduce,
    in_set,
)
from penstock.petastorm.selectors import SingleIndexSelector
from penstock.petastorm.spark import _frames, _loaders, _places
from penstock.petastorm.tools.spark_session_cli import configure_spark
from penstock.petastorm.transform import transform_schema
from penstock.petastorm.unischema import Unischema, UnischemaField, insert_explicit_nulls, match_unischema_fields
from penstock.petastorm.weighted_sampling_reader import WeightedSamplingReader
from penstock.testing import make_parquet

FACTORIES = [make_reader, make_batch_reader]
SIZES = [[4, 6], [10]]


@pytest.fixture
def url(tmp_path):
    return make_parquet(tmp_path / "data", SIZES)


# -- codecs -----------------------------------------------------------------------------------------------------------


def test_a_scalar_codec_needs_the_shape_of_a_scalar() -> None:
    field = UnischemaField("x", np.int32, (1,), ScalarCodec(np.int32), False)
    with pytest.raises(ValueError, match=r"'x' must be an empty tuple .*\(1,\)"):
        field.codec.encode(field, np.int32(1))
    with pytest.raises(TypeError, match="Expected a scalar"):  # of the value, which Petastorm looks at first
        field.codec.encode(field, np.zeros(1, np.int32))


@pytest.mark.parametrize("codec", [NdarrayCodec(), CompressedNdarrayCodec(), CompressedImageCodec("png")])
def test_arrays_of_another_shape_or_dtype(codec) -> None:
    field = UnischemaField("x", np.uint8, (10, 20), codec, False)
    with pytest.raises(ValueError, match=r"Unexpected dimensions.*'x'.*\(10, 20\).*\(100, 200\)"):
        codec.encode(field, np.zeros((100, 200), np.uint8))
    with pytest.raises(ValueError, match=r"Unexpected type.*'x'.*uint8.*uint16"):
        codec.encode(field, np.zeros((10, 20), np.uint16))
    with pytest.raises(ValueError, match=r"Unexpected type.*'x'.*list"):
        codec.encode(field, [[1]])


def test_images_with_other_channels() -> None:
    field = UnischemaField("x", np.uint8, (None, None, 4), CompressedImageCodec("png"), False)
    with pytest.raises(ValueError, match=r"Unexpected image dimensions.*\(3, 3, 4\)"):
        field.codec.encode(field, np.zeros((3, 3, 4), np.uint8))


# -- schemas ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1,), (None, 2)])
def test_arrays_without_a_codec_have_no_spark_type(shape) -> None:
    schema = Unischema("S", [UnischemaField("x", np.int8, shape)])
    with pytest.raises(ValueError, match="'x' has codec set to None"):
        schema.as_spark_schema()


def test_a_codec_of_scalars_is_not_called_none() -> None:
    schema = Unischema("S", [UnischemaField("x", np.int8, (2,), ScalarCodec())])
    with pytest.raises(ValueError, match=r"'x'.*must be an empty tuple"):
        schema.as_spark_schema()


@pytest.mark.parametrize("kind", [object, np.uint64, np.complex64, None])
def test_types_without_a_spark_type(kind) -> None:
    schema = Unischema("S", [UnischemaField("x", kind, ())])
    with pytest.raises(ValueError, match=r"Was not able to map type.*'x'"):
        schema.as_spark_schema()


def test_a_field_named_as_a_method() -> None:
    with pytest.warns(UserWarning, match="Can not create dynamic property 'fields'"):
        Unischema("S", [UnischemaField("fields", np.int32, ())])


def test_patterns_that_match_beginnings_only() -> None:
    schema = Unischema("S", [UnischemaField(name, np.int32, ()) for name in ("int32", "uint8", "uint16", "x")])
    with pytest.warns(UserWarning, match=r"schema_fields behavior has changed.*: uint16, uint8$"):
        assert match_unischema_fields(schema, ["uint", "x"]) == [schema.x]


@pytest.mark.parametrize("argument", ["removed_fields", "selected_fields"])
def test_a_transform_of_fields_that_are_not_there(argument) -> None:
    schema = Unischema("S", [UnischemaField("x", np.int32, ()), UnischemaField("y", np.int32, ())])
    with pytest.warns(UserWarning, match=rf"{argument}.*not part of the schema.*a1, a2"):
        transform_schema(schema, TransformSpec(**{argument: ["x", "a1", "a2"]}))


# -- readers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", FACTORIES)
def test_arguments_that_are_not_known(url, make) -> None:
    with pytest.raises(ValueError, match=r"Unknown cache_type.*'bogus'"):
        make(url, cache_type="bogus")
    with pytest.raises(ValueError, match=r"Unknown reader_pool_type.*'bogus'"):
        make(url, reader_pool_type="bogus")


@pytest.mark.parametrize("make", FACTORIES)
def test_shard_seed_is_deprecated(url, make) -> None:
    words = r"shard_seed was deprecated and will be removed in future versions\."
    with pytest.warns(UserWarning, match=words), make(url, shard_seed=123):
        pass


@pytest.mark.parametrize("make", FACTORIES)
def test_nothing_matches(url, make) -> None:
    with (
        pytest.warns(UserWarning, match="No matching data is available for loading"),
        make(url, filters=[("id", "<", -1)]) as reader,
    ):
        assert list(reader) == []


@pytest.mark.parametrize("make", FACTORIES)
def test_more_shards_than_rows(url, make) -> None:
    words = r"Number of row-groups in the dataset.*3.*20 rows.*at most 20"
    with pytest.raises(NoDataAvailableError, match=words):
        make(url, cur_shard=0, shard_count=10_000)


@pytest.mark.parametrize("make", FACTORIES)
def test_reading_after_the_end(url, make) -> None:
    with make(url) as reader:
        next(reader)
    with pytest.raises(RuntimeError, match="Trying to read a sample"):
        next(reader)
    reader = make(url)
    reader.stop()
    with pytest.raises(RuntimeError, match="Trying to read a sample"):
        next(reader)


def test_mixing_readers_that_differ(url) -> None:
    def check(words, *readers):
        with pytest.raises(ValueError, match=words):
            WeightedSamplingReader(list(readers), [0.5, 0.5])
        for reader in readers:
            reader.stop()

    names = list(make_reader(url).schema.fields)
    check("should have the same schema", *(make_reader(url, schema_fields=[name]) for name in names[:2]))
    one, other = NGram({0: ["id"], 1: names[:2]}, 1, "id"), NGram({0: names[:2], 1: ["id"]}, 1, "id")
    check("should have the same ngram", *(make_reader(url, schema_fields=ngram) for ngram in (one, other)))
    check('should have the same value of "batched_output"', make_reader(url), make_batch_reader(url))


@pytest.mark.parametrize(("limit", "row", "shards"), [(1000, 500, 1), (5000, 200, 10)])
def test_a_cache_that_holds_too_few_rows(tmp_path, limit, row, shards) -> None:
    words = re.escape("Condition 'size_limit_bytes / shards < 5 * expected_row_size_bytes' needs to hold")
    with pytest.raises(ValueError, match=words):
        LocalDiskCache(tmp_path, limit, row, shards=shards)


# -- the Spark side ---------------------------------------------------------------------------------------------------


def test_arguments_of_a_converter() -> None:
    with pytest.raises(ValueError, match="dtype float16 is not supported"):
        _frames.Settings.checked(1, None, "float16")
    with pytest.raises(TypeError, match="unexpected keyword argument 'xyz'"):
        _loaders.check_options({"xyz": 1})
    for refused in (lambda: _places.place_of("/data", None), lambda: FilesystemResolver("/data")):
        with pytest.raises(ValueError, match="scheme-less"):
            refused()


def test_files_that_do_not_appear(tmp_path) -> None:
    with pytest.raises(RuntimeError, match="Timeout while waiting for all parquet-store files to appear"):
        _places.wait_for_files([(tmp_path / "none.parquet").as_uri()], 0.01, None)


def test_settings_of_a_session() -> None:
    with pytest.raises(ValueError, match="key=value"):
        configure_spark(None, argparse.Namespace(spark_session_config=["WRONG FORMAT"], master=None))


# -- classes ----------------------------------------------------------------------------------------------------------

ROW = Unischema("S", [UnischemaField("a", np.int32, (), ScalarCodec(np.int32)), UnischemaField("b", np.str_, ())])
MISTAKES = {
    "num_epochs=0": (ValueError, lambda url: make_reader(url, num_epochs=0)),
    "num_epochs=1.5": (ValueError, lambda url: make_reader(url, num_epochs=1.5)),
    "cur_shard alone": (ValueError, lambda url: make_reader(url, cur_shard=0)),
    "shard_count alone": (ValueError, lambda url: make_reader(url, shard_count=2)),
    "shard_count as text": (ValueError, lambda url: make_reader(url, cur_shard=0, shard_count="2")),
    "a function as predicate": (ValueError, lambda url: make_reader(url, predicate=lambda _: True)),
    "a predicate without fields": (ValueError, lambda url: make_reader(url, predicate=in_lambda([], lambda: True))),
    "a number as selector": (ValueError, lambda url: make_reader(url, rowgroup_selector=5)),
    "an index that is not stored": (
        ValueError,
        lambda url: make_reader(url, rowgroup_selector=SingleIndexSelector("x", [1])),
    ),
    "schema_fields=5": (ValueError, lambda url: make_reader(url, schema_fields=5)),
    "schema_fields=[5]": (ValueError, lambda url: make_reader(url, schema_fields=[5])),
    "a field that is not there": (
        ValueError,
        lambda url: make_reader(url, schema_fields=[UnischemaField("nope", np.int32, ())]),
    ),
    "a pattern of nothing": (RuntimeError, lambda url: make_reader(url, schema_fields=["nope"])),
    "no URL": (ValueError, lambda _: make_reader(None)),
    "no URLs": (ValueError, lambda _: make_batch_reader([])),
    "a folder that is not there": (OSError, lambda url: make_reader(f"{url}/nowhere")),
    "a window without overlap in parts": (
        NotImplementedError,
        lambda url: make_reader(
            url, schema_fields=NGram({0: ["id"]}, 1, "id", timestamp_overlap=False), shuffle_row_drop_partitions=2
        ),
    ),
    "windows of nothing": (ValueError, lambda _: NGram(None, 1, "id")),
    "a threshold of text": (ValueError, lambda _: NGram({0: ["id"]}, "x", "id")),
    "a timestamp of a number": (ValueError, lambda _: NGram({0: ["id"]}, 1, 5)),
    "a text as in_lambda's fields": (ValueError, lambda _: in_lambda("id", lambda _: True)),
    "in_negate of a number": (ValueError, lambda _: in_negate(5)),
    "in_reduce of a number": (ValueError, lambda _: in_reduce([5], all)),
    "a subset that is not there": (ValueError, lambda _: in_pseudorandom_split([0.5, 0.5], 2, "id")),
    "a row without the split's field": (
        ValueError,
        lambda _: in_pseudorandom_split([0.5, 0.5], 0, "id").do_include({"x": 1}),
    ),
    "a row without in_set's field": (KeyError, lambda _: in_set([1], "id").do_include({})),
    "in_intersection of a number": (ValueError, lambda _: in_intersection([1], "id").do_include({"id": 5})),
    "one reader to mix": (ValueError, lambda url: WeightedSamplingReader([make_reader(url)], [1.0])),
    "a view of a number": (ValueError, lambda _: ROW.create_schema_view([5])),
    "a row that lacks a value": (TypeError, lambda _: ROW.make_namedtuple(a=1)),
    "a row that lacks a field": (ValueError, lambda _: insert_explicit_nulls(ROW, {"b": "x"})),
    "a number as text": (ValueError, lambda _: ScalarCodec(np.str_).encode(UnischemaField("b", np.str_, ()), 5)),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_has_the_class_that_petastorm_raises(url, mistake) -> None:
    kind, make = MISTAKES[mistake]
    with pytest.raises(kind):
        make(url)


# -- what differs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", FACTORIES)
def test_a_predicate_fails_when_the_reader_is_made(url, make) -> None:
    with pytest.raises(ValueError, match="nope"):
        make(url, predicate=in_set([1], "nope"))

    def fails(_value):
        raise ArithmeticError("of the predicate")

    if make is make_reader:  # of batches it is given pandas Series
        with pytest.raises(ArithmeticError, match="of the predicate"):
            make(url, predicate=in_lambda(["id"], fails))
        with (
            make(url, predicate=in_lambda(["id"], fails), exact=False) as reader,
            pytest.raises(ArithmeticError, match="of the predicate"),
        ):
            next(reader)


def test_values_that_petastorm_took_silently_are_refused(url) -> None:
    for wrong in ({"shuffle_row_drop_partitions": 0}, {"workers_count": 0}, {"transform_spec": 5}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            make_reader(url, **wrong)
    with pytest.raises(ValueError, match="timesteps must be whole numbers"):
        NGram({"a": ["id"]}, 1, "id")


def test_a_path_is_a_local_one_and_an_unknown_scheme_is_not_found(url) -> None:
    with make_reader(str(url).removeprefix("file://")) as reader:
        next(reader)
    with pytest.raises(FileNotFoundError, match="Protocol not known: nowhere"):
        make_reader("nowhere://host/x")


def test_batches_of_a_transform_may_be_of_any_layout_but_not_of_another_shape(url) -> None:
    pytest.importorskip("pandas")

    def reader(value, shape):
        def add(frame):
            frame["x"] = [value] * len(frame)
            return frame

        return make_batch_reader(url, transform_spec=TransformSpec(add, edit_fields=[("x", np.float32, shape, False)]))

    columns = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    for shape in ((2, 3), (None, 3)):
        with reader(columns, shape) as batches:
            assert (next(batches).x[0] == columns).all()
    with reader(columns, (2, 5)) as batches, pytest.raises(RuntimeError, match=r"shape \(2, 3\).*says \(2, 5\)"):
        next(batches)


def test_nothing_is_printed_at_the_end(url, tmp_path, capsys) -> None:
    with make_reader(url, cache_type="local-disk", cache_location=str(tmp_path / "cache")) as reader:
        next(reader)
    reader.cleanup_cache()
    assert capsys.readouterr().out == ""


def test_a_schema_is_inferred_from_an_arrow_schema_and_leaves_nothing_out(url) -> None:
    schema = pa.schema([("id", pa.int64()), ("big", pa.uint64()), ("s", pa.struct([("a", pa.int8())]))])
    for omit in (True, False):
        found = Unischema.from_arrow_schema(schema, omit_unsupported_fields=omit)
        assert list(found.fields) == ["id", "big", "s.a"]
    assert "id" in Unischema.from_arrow_schema(pq.ParquetDataset(str(url).removeprefix("file://"))).fields
