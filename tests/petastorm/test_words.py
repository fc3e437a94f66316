"""Words that programs match on: errors and warnings of ours contain Petastorm's, with the class it raises."""

from __future__ import annotations

import re

import numpy as np
import pytest

from penstock.codecs import CompressedImageCodec, CompressedNdarrayCodec, NdarrayCodec, ScalarCodec
from penstock.petastorm import TransformSpec, make_batch_reader, make_reader
from penstock.petastorm.errors import NoDataAvailableError
from penstock.petastorm.local_disk_cache import LocalDiskCache
from penstock.petastorm.ngram import NGram
from penstock.petastorm.transform import transform_schema
from penstock.petastorm.unischema import Unischema, UnischemaField, match_unischema_fields
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
