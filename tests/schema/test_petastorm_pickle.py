import contextlib
import os
import pickle
import struct
import sys
import tracemalloc
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.codecs import (
    Cells,
    CompressedImageCodec,
    CompressedNdarrayCodec,
    DataframeColumnCodec,
    NdarrayCodec,
    ScalarCodec,
    UnknownCodec,
    register_codec,
    registry,
)
from penstock.codecs.scalar import SparkType
from penstock.errors import CodecError, MetadataError
from penstock.schema import safe_pickle
from penstock.schema.petastorm_pickle import load_index, load_unischema
from tests.depth import depth
from tests.schema.petastorm_bytes import Named, Stub, index_bytes, schema_bytes

FORMS = [(0, "reconstructor"), (0, "restore"), (2, "restore"), (3, "restore"), (2, "newobj"), (3, "newobj")]
FORMS += [(4, "newobj"), (4, "restore"), (5, "newobj")]
SCHEMAS = {form: schema_bytes(*form) for form in FORMS}


@pytest.mark.parametrize(("protocol", "encoding"), FORMS)
def test_every_encoding_of_a_schema_is_read(protocol, encoding):
    schema = load_unischema(schema_bytes(protocol, encoding))
    assert schema._name == "Hand"
    assert [(f.name, f.numpy_dtype, f.shape, f.nullable) for f in schema.fields.values()] == [
        ("id", np.int64, (), False),
        ("flag", np.bool_, (), True),
        ("name", np.str_, (), True),
        ("words", np.bytes_, (None,), False),
        ("price", Decimal, (), False),
        ("image", np.uint8, (None, 16, 3), False),
        ("packed", np.float32, (3, 3), False),
    ]
    assert [f.codec for f in schema.fields.values()] == [
        ScalarCodec(SparkType("LongType")),
        None,
        ScalarCodec(SparkType("StringType")),
        NdarrayCodec(),
        ScalarCodec(SparkType("DecimalType", 10, 4)),
        CompressedImageCodec("jpeg", 95),
        CompressedNdarrayCodec(),
    ]


@pytest.mark.parametrize(
    "package", ["av.experimental.deepdrive.dataset_toolkit", "av.ml.dataset_toolkit", "dataset_toolkit"]
)
def test_the_packages_petastorm_came_from_are_known(package):
    schema = load_unischema(schema_bytes(0, "reconstructor", package=package))
    assert schema.fields["words"].codec == NdarrayCodec()


def test_a_protocol_0_pickle_written_out_by_hand_is_read():
    data = (
        b"ccopy_reg\n_reconstructor\n(cpetastorm.unischema\nUnischema\nc__builtin__\nobject\nNtR"
        b"(dS'_name'\nS'Old'\nsS'_namedtuple'\nNsS'_fields'\nccollections\nOrderedDict\n((lp1\n(lp2\nS'id'\na"
        b"ccopy_reg\n_reconstructor\n(cpetastorm.unischema\nUnischemaField\nc__builtin__\ntuple\n"
        b"(S'id'\ncnumpy\nint32\n(tNI00\nttRp3\naatRsS'id'\ng3\nsb."
    )
    field = load_unischema(data).fields["id"]
    assert (field.numpy_dtype, field.shape, field.codec, field.nullable) == (np.int32, (), None, False)


def test_a_dtype_instance_serves_as_a_dtype():
    more = [("t", np.dtype("datetime64[ms]"), (), None, False), ("b", np.dtype(">i4"), (2,), None, False)]
    fields = load_unischema(schema_bytes(4, "newobj", more=more)).fields
    assert (fields["t"].numpy_dtype, fields["b"].numpy_dtype) == (np.datetime64, np.int32)


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_indexes_are_read_with_numpy_keys(protocol):
    index = load_index(index_bytes(protocol))
    assert list(index) == ["by_id", "there"]
    by_id = index["by_id"]
    assert (by_id.name, by_id.column) == ("by_id", "id")
    assert by_id.row_groups == {200: {0, 2}, "é": {1}, np.datetime64(3, "ms"): {4}, Decimal("1.5"): {5}}
    assert index["there"].row_groups == {1, 3}


def test_python_2_index_keys_above_127_are_read_as_latin1():
    data = (
        b"\x80\x02}U\x01ac__builtin__\nobject\n0cpetastorm.etl.rowgroup_indexers\nSingleFieldIndexer\n)\x81"
        b"}(U\x0b_index_nameU\x01aU\x0c_column_nameU\x01bU\x0b_index_dataccollections\ndefaultdict\n"
        b"c__builtin__\nset\n\x85Rcnumpy.core.multiarray\nscalar\ncnumpy\ndtype\nU\x02i8K\x00K\x01\x87R"
        b"(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tbU\x08\xc8\x00\x00\x00\x00\x00\x00\x00\x86R"
        b"c__builtin__\nset\n]K\x07a\x85Rsubs."
    )
    assert load_index(data)["a"].row_groups == {200: {7}}


class Mine(DataframeColumnCodec):
    def decode(self, unischema_field, value):
        return np.frombuffer(value, np.uint8) + self._by


@pytest.fixture
def own_registry(monkeypatch):
    monkeypatch.setattr(registry, "_classes", dict(registry._classes))


@pytest.mark.parametrize(("protocol", "encoding"), FORMS)
def test_a_codec_of_the_users_is_used_only_once_registered(protocol, encoding, own_registry):
    more = [("own", Named("numpy", "uint8"), (1,), Stub("some_package.codecs", "Mine", {"_by": 3}), False)]
    data = schema_bytes(protocol, encoding, more=more)
    field = load_unischema(data).fields["own"]
    assert isinstance(field.codec, UnknownCodec)
    with pytest.raises(CodecError, match=r"from some_package\.codecs import Mine; penstock\.register_codec\(Mine\)"):
        field.codec.decode_list(field, Cells.from_list([b"1"]))
    assert "some_package" not in sys.modules
    register_codec(Mine)
    known = load_unischema(data).fields["own"].codec
    assert type(known) is Mine
    assert vars(known) == {"_by": 3}


def test_state_of_a_users_codec_holds_plain_values_and_our_own_types(own_registry):
    register_codec(Mine)
    state = {"_type": Stub("pyspark.sql.types", "LongType"), "_dtype": np.dtype("f4"), "_list": [1, ("a", None)]}
    more = [("own", None, (1,), Stub("anywhere", "Mine", state), False)]
    codec = load_unischema(schema_bytes(4, "newobj", more=more)).fields["own"].codec
    assert vars(codec) == {"_type": SparkType("LongType"), "_dtype": np.dtype("f4"), "_list": [1, ("a", None)]}


class Ran(Exception):
    """What a hostile pickle would have raised."""


def hostile(cls, args):
    return pickle.dumps(type("Evil", (), {"__reduce__": lambda self: (cls, args)})())


def op(*parts):
    return b"".join(parts) + b"."


def name4(module, name):
    return b"\x8c" + bytes([len(module)]) + module.encode() + b"\x8c" + bytes([len(name)]) + name.encode() + b"\x93"


SYSTEM = f"{'nt' if os.name == 'nt' else 'posix'}"
RECONSTRUCT = b"ccopy_reg\n_reconstructor\n"
UNISCHEMA = b"\x80\x02cpetastorm.unischema\nUnischema\n)\x81"
HOSTILE = {
    "os.system": op(b"cos\nsystem\n(S'echo no'\ntR"),
    "posix.system": op(f"c{SYSTEM}\nsystem\n(S'echo no'\ntR".encode()),
    "eval": op(b"cbuiltins\neval\n(S'1/0'\ntR"),
    "eval of Python 2": op(b"c__builtin__\neval\n(S'1/0'\ntR"),
    "getattr": op(b"cbuiltins\ngetattr\n(cnumpy\nint8\nS'mro'\ntR"),
    "numpy.load": op(b"cnumpy\nload\n(S'x'\ntR"),
    "numpy.fromfile": op(b"\x80\x04", name4("numpy", "fromfile"), b"\x8c\x01x\x85R"),
    "numpy deep": op(b"cnumpy.testing._private.utils\nrunstring\n(S'1/0'\n}tR"),
    "operator.attrgetter": op(b"coperator\nattrgetter\n(S'x'\ntR"),
    "dotted name": op(b"\x80\x04", name4("numpy", "core.multiarray.load"), b")R"),
    "dotted name of Petastorm": op(b"\x80\x04", name4("petastorm.codecs", "NdarrayCodec.__init__.__globals__"), b")R"),
    "dotted name of nobody": op(b"\x80\x04", name4("mine", "A.b"), b")R"),
    "name with a dunder": op(b"cpetastorm.codecs\n__builtins__\n(tR"),
    "odd module": op(b"c../evil\nx\n(tR"),
    "foreign class, reconstructed": op(b"ccopy_reg\n_reconstructor\n(csubprocess\nPopen\nc__builtin__\nobject\nNtR"),
    "class of nobody, reconstructed": op(b"ccopy_reg\n_reconstructor\n(cevil\nThing\nc__builtin__\nobject\nNtR"),
    "state of a list": op(RECONSTRUCT, b"(cpetastorm.unischema\nUnischema\nc__builtin__\nobject\nNtR(lb"),
    "reconstructed base of nobody": op(b"ccopy_reg\n_reconstructor\n(cevil\nA\ncevil\nB\nNtR"),
    "newobj of nobody": op(b"\x80\x02cevil\nThing\n)\x81}S'__setstate__'\ncos\nsystem\nsb"),
    "newobj with arguments": op(b"\x80\x02cevil\nThing\n(S'a'\nt\x81"),
    "newobj_ex": op(b"\x80\x04", name4("evil", "Thing"), b")}\x8c\x01aK\x01s\x92"),
    "build on a class": op(b"cpetastorm.unischema\nUnischema\nN}S'x'\nI1\ns\x86b"),
    "build of __setstate__": op(UNISCHEMA, b"}U\x0c__setstate__cbuiltins\neval\nsbU\x031/0b"),
    "build of __class__": op(UNISCHEMA, b"}U\x09__class__cevil\nThing\nsb"),
    "build on a dict": op(b"}}b"),
    "build on numpy": op(b"cnumpy\nint8\nN}S'x'\nI1\ns\x86b"),
    "restore of another tuple": op(b"cpyspark.serializers\n_restore\n(S'Evil'\n(S'a'\nt(I1\nttR"),
    "restore of other parts": op(b"cpyspark.serializers\n_restore\n(S'UnischemaField'\n(S'__class__'\nt(I1\nttR"),
    "cloudpickle": op(b"cpyspark.cloudpickle\n_make_function\n(tR"),
    "extension 1": op(b"\x82\x01"),
    "extension 2": op(b"\x83\x01\x00"),
    "extension 4": op(b"\x84\x01\x00\x00\x00"),
    "persistent id": op(b"Pid\n"),
    "binary persistent id": op(b"S'id'\nQ"),
    "inst": op(b"(ios\nsystem\n"),
    "obj": op(b"(cos\nsystem\nS'x'\no"),
    "buffer": op(b"\x97"),
    "call of a number": op(b"I1\n)R"),
    "call of a dict": op(b"})R"),
    "numpy scalar of objects": op(b"cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(S'O8'\ntRS'xxxxxxxx'\ntR"),
    "numpy scalar of a struct": op(b"cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(S'i4,O'\ntRS'x'\ntR"),
    "tuple as a key": op(b"}(I1\ntI2\ns"),
    "list as a set": op(b"c__builtin__\nset\n((l(lattR"),
    "defaultdict of eval": op(b"ccollections\ndefaultdict\n(cevil\nx\ntR"),
    "nothing": b"",
    "no end": b"I1\n",
    "end at once": b".",
    "not a pickle": b"{'json': 1}",
    "later protocol": b"\x80\x09.",
    "long string": op(b"X\xff\xff\xff\x7fabc"),
    "long number": op(b"\x8b\x00\x10\x00\x00" + b"\xff" * 4096),
    "digits": op(b"I" + b"9" * 5000 + b"\n"),
    "frame beyond the end": b"\x80\x04\x95\xff\x00\x00\x00\x00\x00\x00\x00.",
    "memo of nothing": op(b"g7\n"),
    "marks": op(b"(((p1\n"),
    "a list": op(b"(l"),
    "another class": op(b"\x80\x02cpetastorm.codecs\nNdarrayCodec\n)\x81"),
    "a codec for a schema": op(b"\x80\x02cevil\nCodec\n)\x81"),
    "by __reduce__": hostile(exec, ("raise SystemExit(3)",)),
    "by __reduce__ of our own": hostile(Ran, ("ran",)),
}  # fmt: skip


@pytest.mark.parametrize("load", [load_unischema, load_index])
@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_and_damaged_pickles_run_nothing(what, load, monkeypatch, capfd):
    def never(*args, **kwargs):
        raise Ran

    monkeypatch.setattr(os, "system", never)
    before = set(sys.modules)
    with pytest.raises(MetadataError):
        load(HOSTILE[what])
    assert capfd.readouterr() == ("", "")
    assert set(sys.modules) == before


@pytest.mark.parametrize(
    "more",
    [
        [("x", Stub("evil", "Thing"), (), None, False)],
        [("x", Named("evil", "Thing"), (), None, False)],
        [("x", None, Stub("evil", "Thing"), None, False)],
        [("x", None, (Named("evil", "x"),), None, False)],
        [(Named("evil", "x"), None, (), None, False)],
        [("x", None, (), Named("petastorm.codecs", "NdarrayCodec"), False)],
        [("x", None, (), Stub("petastorm.unischema", "Unischema"), False)],
        [("x", None, (), Stub("petastorm.codecs", "ScalarCodec", {"_spark_type": Stub("evil", "T")}), False)],
        [("x", None, (), Stub("petastorm.codecs", "CompressedImageCodec", {"_image_codec": 3}), False)],
        [("x", None, (), None, Stub("evil", "Thing"))],
        [("id", None, (-1,), None, False)],
        [("x", None, (), None)],
    ],
)
def test_strange_things_inside_a_schema_are_refused(more):
    with pytest.raises(MetadataError):
        load_unischema(schema_bytes(4, "newobj", more=more))


@pytest.mark.parametrize("precision", ["10", 99, None, 10**400], ids=["text", "99", "None", "huge"])
def test_decimal_types_that_spark_does_not_have_are_refused(precision):
    kind = Stub("pyspark.sql.types", "DecimalType", {"precision": precision, "scale": 2})
    more = [("x", None, (), Stub("petastorm.codecs", "ScalarCodec", {"_spark_type": kind}), False)]
    with pytest.raises(MetadataError):
        load_unischema(schema_bytes(4, "newobj", more=more))


def test_a_type_that_holds_itself_is_refused():
    kind = Stub("pyspark.sql.types", "ArrayType")
    kind.state = {"elementType": kind}
    more = [("x", None, (), Stub("petastorm.codecs", "ScalarCodec", {"_spark_type": kind}), False)]
    with pytest.raises(MetadataError):
        load_unischema(schema_bytes(4, "newobj", more=more))


def test_shared_lists_do_not_unfold(own_registry):
    register_codec(Mine)
    laughs = ["ha"]
    for _ in range(60):
        laughs = [laughs, laughs]
    more = [("x", None, (), Stub("mine", "Mine", {"_a": laughs}), False)]
    with pytest.raises(MetadataError, match="too large a state"):
        load_unischema(schema_bytes(4, "newobj", more=more))


ENDLESS = {
    "lists": b"]" * 3_000_000,
    "sets": b"\x8f" * 3_000_000,
    "nested tuples": b"N" + b"\x85" * 3_000_000,
    "memo": b"N" + b"\x94" * 3_000_000,
    "copies of a set": b"(" + b"".join(b"J" + struct.pack("<i", i) for i in range(150_000)) + b"lq\x00"
    b"c__builtin__\nset\nq\x01" + b"h\x01h\x00\x85R" * 2000,
    "copies of a dict": b"(" + b"K\x01K\x02\x86" * 100_000 + b"lq\x00"
    b"ccollections\nOrderedDict\nq\x01" + b"h\x01h\x00\x85R" * 2000,
}  # fmt: skip


@pytest.mark.parametrize("kind", ENDLESS)
def test_hostile_pickles_take_little_memory(kind):
    tracemalloc.start()
    try:
        with pytest.raises(MetadataError, match="steps is not read"):
            load_unischema(b"\x80\x04" + ENDLESS[kind] + b".")
        assert tracemalloc.get_traced_memory()[1] < 128 << 20
    finally:
        tracemalloc.stop()


def test_long_pickles_are_refused():
    with pytest.raises(MetadataError, match="longer than the 16777216"):
        load_unischema(b"X" + bytes(17 << 20))


def test_wide_schemas_are_read():
    more = [(f"field_{i}", np.float32, (None, 3), None, False) for i in range(5_000)]
    assert len(load_unischema(schema_bytes(2, "newobj", more=more)).fields) > 5_000


def test_one_set_that_stands_for_many_values_is_looked_at_once():
    def index(num_values, num_groups):
        """`num_values` values that share one set of row groups."""
        text = b"\x80\x04}X\x01\x00\x00\x00i"
        text += b"cpetastorm.etl.rowgroup_indexers\nSingleFieldIndexer\n)\x81}("
        text += b"X\x0b\x00\x00\x00_index_nameX\x01\x00\x00\x00iX\x0c\x00\x00\x00_column_nameX\x01\x00\x00\x00c"
        text += b"X\x0b\x00\x00\x00_index_data}\x8fq\x00("
        text += b"".join(b"J" + struct.pack("<i", i) for i in range(num_groups)) + b"\x900("
        text += b"".join(b"J" + struct.pack("<i", i) + b"h\x00" for i in range(num_values))
        return text + b"uubs."

    assert len(load_index(index(100, 50))["i"].row_groups) == 100
    with pytest.raises(MetadataError, match="row groups for its values"):
        load_index(index(100_000, 100_000))


@settings(max_examples=depth(50, 3000), deadline=None)
@given(form=st.sampled_from(FORMS), data=st.data())
def test_changed_bytes_give_a_schema_or_an_error(form, data):
    changed = bytearray(SCHEMAS[form])
    for _ in range(data.draw(st.integers(1, 6))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    for load in (load_unischema, load_index):
        with contextlib.suppress(MetadataError, UserWarning):  # the warning: a field that is now called "fields"
            load(bytes(changed))


@settings(max_examples=depth(50, 3000), deadline=None)
@given(data=st.binary(max_size=60))
def test_any_bytes_give_an_error(data):
    for load in (load_unischema, load_index):
        with contextlib.suppress(MetadataError):
            assert load(data) == {}


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=12,
)


@settings(max_examples=depth(50, 1500), deadline=None)
@given(value=PLAIN, protocol=st.integers(0, 5))
def test_plain_values_are_read_as_python_reads_them(value, protocol):
    def refuse(*_):
        raise MetadataError("no names in plain values")

    value = [value, b"\xff", b"", {1, "a"}, frozenset([2])] if protocol >= 4 else value  # earlier ones write calls
    data = pickle.dumps(value, protocol)
    limits = safe_pickle.PickleLimits(1 << 20, 100_000)
    assert safe_pickle.SafeReader(data, limits, resolve=refuse, call=refuse, new=refuse).load() == value


def test_the_forms_cover_all_three_encodings():
    assert {encoding for _, encoding in FORMS} == {"reconstructor", "restore", "newobj"}
    assert b"_restore" in schema_bytes(2, "restore")
