"""Cells and schemas written by earlier versions, kept in tests/data/codecs: they must always load."""

import pickle
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from penstock import Unischema, UnischemaField
from penstock.codecs import Cells, CompressedImageCodec, CompressedNdarrayCodec, NdarrayCodec, ScalarCodec
from penstock.codecs.scalar import SparkType
from tests.codecs.fields import Field

STORED = sorted((Path(__file__).parent.parent / "data" / "codecs").glob("*.cell"))
CODECS = {c.codec_id: c for c in (NdarrayCodec(), CompressedNdarrayCodec(), CompressedImageCodec())}


def test_there_are_cells_of_every_codec():
    assert {p.name.partition(".")[0] for p in STORED} == set(CODECS)


@pytest.mark.parametrize("path", STORED, ids=lambda p: p.stem)
def test_old_cells_decode_to_what_went_in(path):
    codec, want = CODECS[path.name.partition(".")[0]], np.load(path.with_suffix(".npy"))
    field = Field("x", want.dtype.type, want.shape)
    for decoded in (
        codec.decode(field, path.read_bytes()),
        codec.decode_list(field, Cells.from_list([path.read_bytes()]))[0],
    ):
        assert decoded.dtype == want.dtype
        assert decoded.shape == want.shape
        assert (decoded == want).all()


@pytest.mark.parametrize("path", [p for p in STORED if p.name.startswith("ndarray")], ids=lambda p: p.stem)
def test_arrays_are_still_written_byte_for_byte(path):
    value = np.load(path.with_suffix(".npy"))
    assert NdarrayCodec().encode(Field("x", value.dtype.type, value.shape), value) == path.read_bytes()


def test_schema_pickled_before_codec_modules_were_merged_loads():
    stored = (STORED[0].parent / "unischema.pickle").read_bytes()
    assert b"penstock.codecs.compressed_ndarray" in stored
    assert b"penstock.codecs.sparktypes" in stored
    fields = [
        UnischemaField("price", Decimal, (), ScalarCodec(SparkType("DecimalType", 12, 3)), False),
        UnischemaField("image", np.uint8, (2, 2, 3), CompressedImageCodec("png"), True),
        UnischemaField("matrix", np.float32, (2, None), CompressedNdarrayCodec(), False),
        UnischemaField("vector", np.float32, (2,), NdarrayCodec(), False),
    ]
    schema = pickle.loads(stored)
    assert repr(schema) == repr(Unischema("Old", fields))
    assert list(schema.fields.values()) == fields
