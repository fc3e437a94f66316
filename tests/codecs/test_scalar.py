import datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from penstock.codecs import ScalarCodec, codec_from_json, codec_to_json
from penstock.codecs.scalar import SparkType, as_spark_type
from penstock.errors import CodecError, UnsupportedType
from penstock.testing.codecs import check_codec
from tests.codecs.fields import Field


class IntegerType:
    """Named as Spark's, which is how Spark's are known."""


class DecimalType:
    def __init__(self, precision, scale):
        self.precision, self.scale, self.hasPrecisionInfo = precision, scale, True


class ArrayType:
    def __init__(self, elementType):
        self.elementType, self.containsNull = elementType, True


@pytest.mark.parametrize(
    ("given", "stored", "text"),
    [
        (IntegerType(), pa.int32(), "ScalarCodec(IntegerType())"),
        (IntegerType, pa.int32(), "ScalarCodec(IntegerType())"),
        (SparkType("FloatType"), pa.float32(), "ScalarCodec(FloatType())"),
        (DecimalType(10, 4), pa.decimal128(10, 4), "ScalarCodec(DecimalType(10,4))"),
        (ArrayType(IntegerType()), pa.list_(pa.int32()), "ScalarCodec(ArrayType(IntegerType()))"),
        (SparkType("TimestampType"), pa.timestamp("us", tz="UTC"), "ScalarCodec(TimestampType())"),
        (pa.int8(), pa.int8(), "ScalarCodec(int8)"),
        (pa.timestamp("ns", tz="UTC"), pa.timestamp("ns", tz="UTC"), "ScalarCodec(timestamp[ns, tz=UTC])"),
        (pa.decimal128(12, 3), pa.decimal128(12, 3), "ScalarCodec(decimal128(12, 3))"),
        (pa.binary(4), pa.binary(4), "ScalarCodec(fixed_size_binary[4])"),
        (np.uint8, pa.int16(), "ScalarCodec(uint8)"),
        (np.dtype("datetime64[ns]"), pa.timestamp("ns"), "ScalarCodec(datetime64[ns])"),
        ("float64", pa.float64(), "ScalarCodec(float64)"),
        (None, pa.int64(), "ScalarCodec()"),
        (Decimal, pa.int64(), "ScalarCodec()"),
    ],
)
def test_spark_arrow_and_numpy_types_are_taken(given, stored, text):
    codec = ScalarCodec(given)
    assert codec.storage_type(Field("x", np.int64, ())) == stored
    assert repr(codec) == str(codec) == text
    assert codec_from_json(codec_to_json(codec)) == codec


@pytest.mark.parametrize(
    ("numpy_dtype", "stored"),
    [
        (np.int8, "int8"),
        (np.uint8, "int16"),
        (np.int16, "int16"),
        (np.uint16, "int32"),
        (np.int32, "int32"),
        (np.uint32, "int64"),
        (np.int64, "int64"),
        (np.uint64, "uint64"),
        (np.float16, "float"),
        (np.float32, "float"),
        (np.float64, "double"),
        (np.bool_, "bool"),
        (np.str_, "string"),
        (np.bytes_, "binary"),
        (np.datetime64, "timestamp[us]"),
        (np.timedelta64, "duration[us]"),
        (Decimal, "decimal128(38, 18)"),
    ],
)
def test_without_a_type_the_field_decides(numpy_dtype, stored):
    assert str(ScalarCodec().storage_type(Field("x", numpy_dtype, ()))) == stored


@pytest.mark.parametrize("numpy_dtype", [None, np.complex64, np.object_])
def test_a_field_without_a_native_type_is_refused_by_name(numpy_dtype):
    with pytest.raises(UnsupportedType, match=r"'price'.*Arrow or Spark type"):
        ScalarCodec().storage_type(Field("price", numpy_dtype, ()))


@pytest.mark.parametrize("given", [object(), "no such type", [1]])
def test_anything_else_is_no_type(given):
    with pytest.raises(CodecError, match="Spark type, an Arrow type, a NumPy dtype or nothing"):
        ScalarCodec(given)


@pytest.mark.parametrize(
    ("codec", "numpy_dtype", "value", "cell"),
    [
        (ScalarCodec(SparkType("ShortType")), np.uint8, np.uint8(200), 200),
        (ScalarCodec(SparkType("LongType")), np.int64, np.array(3), 3),
        (ScalarCodec(SparkType("DoubleType")), np.float64, np.float32(0.5), 0.5),
        (ScalarCodec(SparkType("BooleanType")), np.bool_, np.bool_(True), True),
        (ScalarCodec(SparkType("StringType")), np.str_, np.str_("é"), "é"),
        (ScalarCodec(SparkType("DecimalType", 10, 2)), Decimal, Decimal("1.25"), Decimal("1.25")),
        (ScalarCodec(pa.int32()), np.int32, np.int32(7), 7),
        (ScalarCodec(), np.int32, np.int32(7), 7),
        (ScalarCodec(), np.bytes_, b"\xff", b"\xff"),
        (ScalarCodec("float32"), np.float32, 1, 1.0),
    ],
)
def test_values_become_plain_cells_and_come_back(codec, numpy_dtype, value, cell):
    field = Field("x", numpy_dtype, ())
    encoded = codec.encode(field, value)
    assert encoded == cell
    assert type(encoded) is type(cell)
    decoded = codec.decode(field, encoded)
    assert decoded == value
    assert isinstance(decoded, numpy_dtype) or decoded == encoded


def test_the_conformance_check_passes():
    for numpy_dtype, values in [
        (np.int16, [1, -5]),
        (np.float32, [0.5, np.nan]),
        (np.str_, ["", "a"]),
        (np.bool_, [True]),
    ]:
        check_codec(ScalarCodec(), Field("x", numpy_dtype, ()), [numpy_dtype(v) for v in values])


@pytest.mark.parametrize("value", [[1], (1,), np.array([1, 2]), {"a": 1}])
def test_only_scalars_are_taken(value):
    with pytest.raises(TypeError, match="Expected a scalar"):
        ScalarCodec("int32").encode(Field("x", np.int32, ()), value)


def test_checks_name_the_field():
    with pytest.raises(ValueError, match=r"'x' must be an empty tuple.*\(3,\)"):
        ScalarCodec("int32").encode(Field("x", np.int32, (3,)), 1)
    with pytest.raises(ValueError, match="'x' expects str, got int"):
        ScalarCodec(SparkType("StringType")).encode(Field("x", np.str_, ()), 1)
    with pytest.raises(ValueError, match=r"'x' expects an integer, got 1\.5"):
        ScalarCodec("int32").encode(Field("x", np.int32, ()), 1.5)


def test_times_with_a_zone_are_read_as_utc():
    zone = datetime.timezone(datetime.timedelta(hours=2))
    decoded = ScalarCodec().decode(Field("t", np.datetime64, ()), datetime.datetime(2020, 1, 1, 2, tzinfo=zone))
    assert decoded == np.datetime64("2020-01-01T00:00")


def test_decoding_turns_stored_values_into_the_dtype():
    assert ScalarCodec().decode(Field("p", Decimal, ()), "1.5") == Decimal("1.5")
    assert ScalarCodec().decode(Field("s", np.str_, ()), b"a") == np.str_("a")
    assert ScalarCodec().decode(Field("any", None, ()), [1]) == [1]


def test_arrow_types_are_not_taken_for_sparks():
    assert as_spark_type(pa.timestamp("us")) is None
    assert as_spark_type(3) is None


def test_spark_types_without_pyspark_name_the_install_line():
    try:
        import pyspark  # noqa: F401
    except ImportError:
        with pytest.raises(ImportError, match=r"penstock\[spark\]"):
            ScalarCodec("int32").spark_dtype()
