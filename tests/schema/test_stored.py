import json
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from penstock.codecs import (
    CompressedImageCodec,
    CompressedNdarrayCodec,
    DataframeColumnCodec,
    NdarrayCodec,
    ScalarCodec,
)
from penstock.codecs.registry import UnknownCodec
from penstock.errors import CodecError, MetadataError
from penstock.schema import Unischema, UnischemaField
from penstock.schema.stored import PETASTORM_SCHEMA_KEY, SCHEMA_KEY, find_schema, schema_from_json, schema_to_json
from tests.schema.petastorm_bytes import schema_bytes

DTYPES = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64, np.float16, np.float32]
DTYPES += [np.float64, np.complex64, np.complex128, np.bool_, np.str_, np.bytes_, np.datetime64, np.timedelta64]
DTYPES += [np.object_, np.void, Decimal, None]


def full_schema():
    codecs = [None, ScalarCodec(), ScalarCodec(pa.decimal128(9, 2)), NdarrayCodec(), CompressedNdarrayCodec()]
    codecs += [CompressedImageCodec("jpeg", 90)]
    fields = [UnischemaField(f"d{i}", kind, (), None, i % 2 == 0) for i, kind in enumerate(DTYPES)]
    fields += [UnischemaField(f"c{i}", np.uint8, (None, 3), codec) for i, codec in enumerate(codecs)]
    return Unischema("Everything", fields)


def test_every_dtype_and_codec_comes_back():
    schema = full_schema()
    again = schema_from_json(schema_to_json(schema))
    assert again == schema
    assert [f.codec for f in again.fields.values()] == [f.codec for f in schema.fields.values()]
    assert [f.numpy_dtype for f in again.fields.values()] == [f.numpy_dtype for f in schema.fields.values()]
    assert schema_to_json(again) == schema_to_json(schema)


def test_the_stored_text_is_pinned():
    # Datasets hold this text: a change needs a new version number and a reader for the old one.
    schema = Unischema("S", [UnischemaField("x", np.uint8, (None, 3), CompressedImageCodec("png"), True)])
    assert schema_to_json(schema) == (
        '{"version": 1, "name": "S", "fields": [{"name": "x", "dtype": "uint8", "shape": [null, 3], "nullable": true, '
        '"codec": {"codec": "compressed_image", "config": {"image_codec": "png", "quality": 80}}}]}'
    )


def test_ours_is_found_before_petastorms():
    ours = schema_to_json(Unischema("Ours", [])).encode()
    theirs = schema_bytes(4, "newobj")
    assert find_schema({SCHEMA_KEY: ours, PETASTORM_SCHEMA_KEY: theirs}, path="a.parquet")._name == "Ours"
    assert find_schema({PETASTORM_SCHEMA_KEY: theirs}, path="a.parquet")._name == "Hand"
    assert find_schema({b"ARROW:schema": b""}, path="a.parquet") is None
    assert find_schema({}, path="a.parquet") is None
    assert find_schema(None, path="a.parquet") is None


def test_petastorms_schema_can_be_stored_as_ours():
    schema = find_schema({PETASTORM_SCHEMA_KEY: schema_bytes(0, "reconstructor")}, path="a.parquet")
    again = schema_from_json(schema_to_json(schema))
    assert again == schema
    assert [f.codec for f in again.fields.values()] == [f.codec for f in schema.fields.values()]


def test_an_unregistered_codec_leaves_the_other_columns_readable():
    stored = json.loads(schema_to_json(full_schema()))
    stored["fields"][-1]["codec"] = {"codec": "Zip", "class": "some.where.Zip", "config": {}}
    schema = schema_from_json(json.dumps(stored))
    assert isinstance(list(schema.fields.values())[-1].codec, UnknownCodec)
    assert schema.c3.codec == NdarrayCodec()


def test_an_unregistered_codec_is_not_stored():
    class Unregistered(DataframeColumnCodec):
        pass

    with pytest.raises(CodecError, match=r"penstock\.register_codec\(Unregistered\)"):
        schema_to_json(Unischema("x", [UnischemaField("a", np.int8, (), Unregistered())]))


def one_field(**change):
    field = {"name": "a", "dtype": None, "shape": [], "nullable": True, "codec": None} | change
    return json.dumps({"version": 1, "name": "x", "fields": [field]})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"version": 1}',
        '{"version": 1, "name": "x", "fields": [{}]}',
        one_field(dtype="evil"),
        one_field(shape=3),
        one_field(codec=1),
        one_field(name=""),
        b"\xff\xfe",
        "[" * 100_000,
    ],
    ids=lambda text: str(text)[:90],
)
def test_damaged_text_is_an_error_that_names_the_key(text):
    with pytest.raises(MetadataError, match=r"penstock\.schema\.v1"):
        schema_from_json(text)


def test_a_later_version_asks_for_an_upgrade():
    with pytest.raises(MetadataError, match="version 2, this Penstock reads 1; upgrade"):
        schema_from_json('{"version": 2}')
