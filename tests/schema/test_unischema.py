import pickle
import sys
import types
import warnings
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from penstock.codecs import CompressedImageCodec, NdarrayCodec, ScalarCodec
from penstock.errors import ColumnNotFound, SchemaError
from penstock.schema import Unischema, UnischemaField, unischema
from penstock.schema.encode import dict_to_spark_row, encode_row, insert_explicit_nulls
from penstock.schema.unischema import match_unischema_fields

SCHEMA = Unischema(
    "Frames",
    [
        UnischemaField("id", np.int64, (), ScalarCodec(pa.int64())),
        UnischemaField("name", np.str_, (), None, True),
        UnischemaField("image", np.uint8, (None, 16, 3), CompressedImageCodec("png"), False),
        UnischemaField("image_small", np.uint8, (2, 2), NdarrayCodec(), True),
        UnischemaField("price", Decimal, (), None, True),
    ],
)


def names(schema):
    return list(schema.fields)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (np.int32, np.int32),
        (np.dtype("int32"), np.int32),
        (np.dtype(">f4"), np.float32),
        ("uint8", np.uint8),
        (np.longlong, np.int64),
        (int, np.int64),
        (float, np.float64),
        (bool, np.bool_),
        (str, np.str_),
        (bytes, np.bytes_),
        (np.dtype("datetime64[ns]"), np.datetime64),
        (np.dtype("<U5"), np.str_),
        (Decimal, Decimal),
        (None, None),
    ],
)
def test_dtypes_are_kept_as_scalar_classes(given, kept):
    assert UnischemaField("x", given, ()).numpy_dtype is kept


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("", np.int32, ()), "non-empty str"),
        ((3, np.int32, ()), "non-empty str"),
        (("x", "no dtype", ()), "'x' needs a NumPy dtype"),
        (("x", np.int32, 3), r"'x' needs a tuple as its shape, \(\) for a scalar; got 3"),
        (("x", np.int32, (-1,)), "None for a free dimension"),
        (("x", np.int32, ("a",)), "None for a free dimension"),
    ],
)
def test_a_field_that_makes_no_sense_is_refused(args, said):
    with pytest.raises(SchemaError, match=said):
        UnischemaField(*args)


def test_fields_are_tuples_of_five_with_petastorms_defaults():
    field = UnischemaField("x", np.int32, [2, np.int64(3)])
    assert tuple(field) == ("x", np.int32, (2, 3), None, False)
    assert UnischemaField(name="x", numpy_dtype=np.int32, shape=(), nullable=True)[4] is True
    assert field._replace(name="y").name == "y"
    assert pickle.loads(pickle.dumps(field)) == field


def test_equality_and_hash_ignore_the_codec():
    bare, coded = UnischemaField("x", np.int32, ()), UnischemaField("x", np.int32, (), ScalarCodec())
    assert bare == coded
    assert (bare != coded) is False
    assert hash(bare) == hash(coded)
    for other in ("y", np.int32, ()), ("x", np.int64, ()), ("x", np.int32, (1,)), ("x", np.int32, (), None, True):
        assert UnischemaField(*other) != bare
    assert bare != tuple(bare)


def test_fields_are_attributes_in_input_order():
    assert names(SCHEMA) == ["id", "name", "image", "image_small", "price"]
    assert SCHEMA.image is SCHEMA.fields["image"]
    with pytest.raises(AttributeError, match="has no field 'imgae'; did you mean 'image'"):
        _ = SCHEMA.imgae


def test_the_alphabetical_switch_of_petastorm_sorts(monkeypatch):
    monkeypatch.setattr(unischema, "_UNISCHEMA_FIELD_ORDER", "alphabetical")
    assert names(Unischema("x", reversed(SCHEMA.fields.values()))) == sorted(names(SCHEMA))


def test_a_field_whose_name_is_taken_warns_and_stays_in_fields():
    with pytest.warns(UserWarning, match=r"use schema\.fields\['fields'\]") as warned:
        schema = Unischema("x", [UnischemaField("fields", np.int32, ())])
    assert warned[0].filename == __file__
    assert list(schema.fields) == ["fields"]


def test_two_fields_of_one_name_are_refused():
    with pytest.raises(SchemaError, match="same name: x"):
        Unischema("twice", [UnischemaField("x", np.int32, ()), UnischemaField("x", np.int64, ())])


def test_repr_can_be_read_and_copied():
    assert str(SCHEMA) == repr(SCHEMA)
    assert repr(SCHEMA).splitlines() == [
        "Unischema('Frames', [",
        "    UnischemaField('id', np.int64, (), ScalarCodec(int64)),",
        "    UnischemaField('name', np.str_, (), nullable=True),",
        "    UnischemaField('image', np.uint8, (None, 16, 3), CompressedImageCodec('png', 80)),",
        "    UnischemaField('image_small', np.uint8, (2, 2), NdarrayCodec(), nullable=True),",
        "    UnischemaField('price', Decimal, (), nullable=True),",
        "])",
    ]


def test_schemas_pickle_and_compare():
    again = pickle.loads(pickle.dumps(SCHEMA))
    assert again == SCHEMA
    assert hash(again) == hash(SCHEMA)
    assert again.image.codec == SCHEMA.image.codec
    assert Unischema("Frames", list(SCHEMA.fields.values())[::-1]) != SCHEMA
    assert SCHEMA != 3


def test_a_view_has_the_given_fields_first_then_matches_in_schema_order():
    view = SCHEMA.create_schema_view([SCHEMA.price, "image.*", "i.", SCHEMA.name])
    assert view._name == "Frames_view"
    assert names(view) == ["price", "name", "id", "image", "image_small"]
    assert names(SCHEMA.create_schema_view("image.*")) == ["image", "image_small"]
    assert names(SCHEMA.create_schema_view(["nothing"])) == []


def test_a_view_takes_fields_by_name_as_the_schema_has_them():
    view = SCHEMA.create_schema_view([UnischemaField("image", np.float64, ())])
    assert view.image is SCHEMA.image


def test_views_refuse_what_they_do_not_know():
    with pytest.raises(ValueError, match="'imag' does not belong to the schema 'Frames'; did you mean 'image'"):
        SCHEMA.create_schema_view([UnischemaField("imag", np.uint8, ())])
    with pytest.raises(ColumnNotFound):
        SCHEMA.create_schema_view([UnischemaField("other", np.uint8, ())])
    with pytest.raises(ValueError, match="must be either a string"):
        SCHEMA.create_schema_view([3])


def test_patterns_match_whole_names_and_warn_where_beginnings_would_differ():
    assert [f.name for f in match_unischema_fields(SCHEMA, ["id", "pri.*", "name"])] == ["id", "name", "price"]
    assert match_unischema_fields(SCHEMA, []) == match_unischema_fields(SCHEMA, None) == []
    with pytest.warns(UserWarning, match=r"schema_fields behavior has changed.*only at their beginning: image_small$"):
        assert match_unischema_fields(SCHEMA, ["image"]) == [SCHEMA.image]


def test_rows_are_named_tuples_of_one_class_for_equal_schemas():
    values = {"id": 1, "name": None, "image": 2, "image_small": 3, "price": 4}
    row = SCHEMA.make_namedtuple(**values)
    assert type(row).__name__ == "Frames_view"
    assert row._asdict() == values
    assert type(row) is type(Unischema("Frames", SCHEMA.fields.values()).make_namedtuple_tf(1, 2, 3, 4, 5))
    with pytest.raises(TypeError):
        SCHEMA.make_namedtuple(id=1)
    with pytest.raises(TypeError):
        SCHEMA.make_namedtuple(**values, more=1)


def test_missing_nullable_fields_become_none_in_place():
    row = {"id": 1, "image": 2}
    insert_explicit_nulls(SCHEMA, row)
    assert row == {"id": 1, "image": 2, "name": None, "image_small": None, "price": None}
    with pytest.raises(ValueError, match="'id' is not nullable and missing"):
        insert_explicit_nulls(SCHEMA, {"image": 2})


def test_encoded_rows_hold_storable_cells_in_schema_order():
    image = np.zeros((4, 16, 3), np.uint8)
    row = {"image": image, "id": np.int64(7), "name": np.str_("a"), "price": Decimal("1.5")}
    cells = encode_row(SCHEMA, row)
    assert list(cells) == names(SCHEMA)
    assert (cells["id"], cells["name"], cells["image_small"], cells["price"]) == (7, "a", None, Decimal("1.5"))
    assert (type(cells["id"]), type(cells["name"])) == (int, str)
    assert (SCHEMA.image.codec.decode(SCHEMA.image, cells["image"]) == image).all()
    assert len(row) == 4


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"nam": 1}, r"the schema lacks: \['nam'\]; did you mean 'name'"),
        ({"id": None}, "'id' is not nullable, got None"),
        ({"image": np.zeros((4, 15, 3), np.uint8)}, r"expects shape \(None, 16, 3\), got \(4, 15, 3\)"),
    ],
)
def test_rows_that_do_not_fit_are_refused(change, said):
    with pytest.raises(ValueError, match=said):
        encode_row(SCHEMA, {"id": 1, "image": np.zeros((4, 16, 3), np.uint8)} | change)


def test_dates_without_a_codec_stay_dates():
    schema = Unischema("x", [UnischemaField("t", np.datetime64, ()), UnischemaField("v", np.float32, (2,))])
    cells = encode_row(schema, {"t": np.datetime64(5, "ns"), "v": np.zeros(2, np.float32)})
    assert cells["t"].dtype == "datetime64[ns]"
    assert cells["v"].shape == (2,)


@pytest.mark.parametrize(
    ("kind", "number"), [(np.uint8, 300), (np.uint8, -1), (np.int16, np.int64(1 << 15)), (np.int64, 1 << 63)]
)
def test_a_number_that_its_dtype_does_not_hold_is_refused_without_a_codec_too(kind, number):
    schema = Unischema("S", [UnischemaField("n", kind, (), None, False)])
    assert encode_row(schema, {"n": kind(100)}) == {"n": 100}
    with pytest.raises(SchemaError, match=rf"'n': {number} does not fit np\.{kind.__name__}"):
        encode_row(schema, {"n": number})


class Kind:
    """Spark's types, as far as schemas make them."""

    def __init__(self, *args):
        self.args = args

    def __eq__(self, other):
        return type(self) is type(other) and self.args == other.args


@pytest.fixture
def spark(monkeypatch):
    """A pyspark of a few lines: what is made of schemas and rows can be seen without a JVM."""
    kinds = types.ModuleType("pyspark.sql.types")
    scalars = "String Binary Boolean Byte Short Integer Long Float Double Decimal TimestampNTZ"
    for name in scalars.split():
        setattr(kinds, f"{name}Type", type(f"{name}Type", (Kind,), {}))
    for name in ("StructField", "StructType"):
        setattr(kinds, name, type(name, (Kind,), {}))
    root, sql = types.ModuleType("pyspark"), types.ModuleType("pyspark.sql")
    root.sql, sql.types = sql, kinds
    root.Row = lambda *fields: lambda *values: dict(zip(fields, values, strict=True))
    for module in (root, sql, kinds):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return kinds


def test_the_spark_schema_follows_codecs_and_petastorms_defaults(spark):
    plain = [(np.int8, "Byte"), (np.uint8, "Short"), (np.int16, "Short"), (np.uint16, "Integer"), (np.int32, "Integer")]
    plain += [(np.int64, "Long"), (np.float32, "Float"), (np.float64, "Double"), (np.str_, "String")]
    plain += [(np.bytes_, "String"), (np.bool_, "Boolean")]
    fields = [UnischemaField(f"f{i}", kind, (), None, i % 2 == 0) for i, (kind, _) in enumerate(plain)]
    wanted = [
        spark.StructField(f"f{i}", getattr(spark, f"{kind}Type")(), i % 2 == 0) for i, (_, kind) in enumerate(plain)
    ]
    assert Unischema("x", fields).as_spark_schema().args[0] == wanted
    coded = Unischema(
        "x", [SCHEMA.id, SCHEMA.image, UnischemaField("p", Decimal, (), ScalarCodec(pa.decimal128(9, 2)))]
    )
    assert [f.args[1] for f in coded.as_spark_schema().args[0]] == [
        spark.LongType(),
        spark.BinaryType(),
        spark.DecimalType(9, 2),
    ]


def test_the_spark_schema_has_types_that_petastorm_lacked(spark):
    kinds = [(np.uint32, "Long"), (np.float16, "Float"), (np.datetime64, "TimestampNTZ"), (Decimal, "Decimal")]
    fields = [UnischemaField(f"f{i}", kind, ()) for i, (kind, _) in enumerate(kinds)]
    found = [type(field.args[1]).__name__ for field in Unischema("x", fields).as_spark_schema().args[0]]
    assert found == [f"{kind}Type" for _, kind in kinds]


@pytest.mark.parametrize("field", [("x", np.float32, (3,)), ("x", None, ()), ("x", np.complex64, ())])
def test_fields_that_spark_cannot_hold_need_a_codec(field, spark):
    with pytest.raises(ValueError, match=r"'x'.*[cC]odec"):
        Unischema("s", [UnischemaField(*field)]).as_spark_schema()


def test_spark_rows_hold_encoded_cells(spark):
    row = dict_to_spark_row(SCHEMA, {"id": 3, "image": np.zeros((4, 16, 3), np.uint8)})
    assert list(row) == names(SCHEMA)
    assert row["id"] == 3
    assert isinstance(row["image"], bytearray)
    with pytest.raises(AssertionError, match="must be a Unischema, got dict"):
        dict_to_spark_row({}, {})


def test_reading_needs_no_pyspark():
    if "pyspark" in sys.modules:
        pytest.skip("pyspark was imported by another test")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encode_row(SCHEMA, {"id": 1, "image": np.zeros((4, 16, 3), np.uint8)})
    assert "pyspark" not in sys.modules
