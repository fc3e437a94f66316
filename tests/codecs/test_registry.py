import sys

import numpy as np
import pytest

from penstock.codecs import (
    Cells,
    Codec,
    DataframeColumnCodec,
    NdarrayCodec,
    UnknownCodec,
    codec_from_json,
    codec_to_json,
    register_codec,
    registry,
)
from penstock.errors import CodecError
from tests.codecs.fields import Field

FIELD = Field("x", np.int32, (2,))


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch):
    monkeypatch.setattr(registry, "_classes", dict(registry._classes))


class Shifted(DataframeColumnCodec):
    def __init__(self, by):
        self._by = by


class Levelled(Codec):
    codec_id = "levelled-2"

    def __init__(self, level=3):
        self.level = level


def test_petastorm_codecs_are_stored_by_name_and_attributes():
    assert register_codec(Shifted) is Shifted
    stored = codec_to_json(Shifted(4))
    assert stored == {"codec": "Shifted", "config": {"_by": 4}, "class": f"{__name__}.Shifted"}
    again = codec_from_json(stored)
    assert type(again) is Shifted
    assert again._by == 4
    assert repr(again) == str(again) == "Shifted(_by=4)"


def test_column_codecs_are_stored_by_their_id():
    register_codec(Levelled)
    assert codec_to_json(Levelled(5)) == {
        "codec": "levelled-2",
        "config": {"level": 5},
        "class": f"{__name__}.Levelled",
    }
    assert codec_from_json(codec_to_json(Levelled(5))) == Levelled(5) != Levelled(6)


def test_a_subclass_has_a_name_of_its_own():
    class Better(NdarrayCodec):
        pass

    register_codec(Better)
    assert codec_to_json(Better())["codec"] == "Better"
    assert codec_to_json(NdarrayCodec()) == {"codec": "ndarray", "config": {}}


def test_storing_an_unregistered_class_prints_the_line_to_write():
    with pytest.raises(CodecError, match=r"penstock\.register_codec\(Shifted\)"):
        codec_to_json(Shifted(4))


def test_reading_an_unregistered_class_imports_nothing_and_prints_the_line_to_write():
    codec = codec_from_json({"codec": "Zip", "class": "no_such_module.Zip", "config": {"a": 1}})
    assert isinstance(codec, UnknownCodec)
    cells = Cells.from_list([b"1"])
    for read in (
        lambda: codec.decode(FIELD, b"1"),
        lambda: codec.encode(FIELD, 1),
        lambda: codec.decode_list(FIELD, cells),
        lambda: codec.decode_column(FIELD, cells, np.zeros((1, 2), np.int32)),
    ):
        with pytest.raises(CodecError, match=r"'x'.*from no_such_module import Zip; penstock\.register_codec\(Zip\)"):
            read()
    assert "no_such_module" not in sys.modules
    assert repr(codec) == "UnknownCodec('no_such_module.Zip')"


def test_an_unknown_codec_is_stored_again_and_known_once_registered():
    register_codec(Shifted)
    stored = codec_to_json(Shifted(4))
    registry._classes.clear()
    unknown = codec_from_json(stored)
    assert isinstance(unknown, UnknownCodec)
    kept = codec_to_json(unknown)
    register_codec(Shifted)
    assert codec_from_json(kept)._by == 4


def test_registering_again_replaces_and_another_class_of_the_name_is_refused():
    def make():
        class Twice(DataframeColumnCodec):
            pass

        return Twice

    register_codec(make())
    second = register_codec(make())
    assert registry._classes["Twice"] is second
    other = type("Twice", (DataframeColumnCodec,), {"__module__": "elsewhere"})
    with pytest.raises(CodecError, match=r"'Twice' belongs to .*; give elsewhere\.Twice another name or codec_id"):
        register_codec(other)
    thief = type("Thief", (Codec,), {"codec_id": "ndarray"})
    with pytest.raises(CodecError, match="ndarray"):
        register_codec(thief)


@pytest.mark.parametrize("wrong", [int, "ScalarCodec", NdarrayCodec()])
def test_only_codec_classes_are_registered(wrong):
    with pytest.raises(CodecError, match="subclass of DataframeColumnCodec"):
        register_codec(wrong)


@pytest.mark.parametrize("state", [np.int32(3), (1, 2), {1: 2}, object(), float("nan")])
def test_state_that_json_would_change_is_refused(state):
    register_codec(Shifted)
    with pytest.raises(CodecError, match="plain JSON"):
        codec_to_json(Shifted(state))


@pytest.mark.parametrize(
    "stored",
    [
        {},
        {"codec": 3},
        {"codec": "ndarray", "config": []},
        {"codec": "compressed_image", "config": {"no": 1}},
        {"codec": "scalar", "config": {"arrow": "no type"}},
        {"codec": "scalar", "config": {"spark": {"name": "NoType"}}},
    ],
)
def test_damaged_stored_codecs_are_errors(stored):
    with pytest.raises(CodecError):
        codec_from_json(stored)


def test_no_codec_is_stored_as_nothing():
    assert codec_to_json(None) is None
    assert codec_from_json(None) is None
