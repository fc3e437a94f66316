"""Cells written by earlier versions, kept in tests/data/codecs: they must decode for ever."""

from pathlib import Path

import numpy as np
import pytest

from penstock.codecs import Cells, CompressedImageCodec, CompressedNdarrayCodec, NdarrayCodec
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
