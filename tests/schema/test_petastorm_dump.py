import json
import pickle
import pickletools
import subprocess
import sys
from collections import OrderedDict, defaultdict
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
    UnknownCodec,
)
from penstock.codecs.scalar import SparkType
from penstock.errors import SchemaError
from penstock.schema.petastorm_dump import dump_index, dump_row_group_counts, dump_unischema
from penstock.schema.petastorm_pickle import RowGroupIndex, load_index, load_unischema
from penstock.schema.unischema import Unischema, UnischemaField

SPARK_TYPES = [SparkType(f"{n}Type") for n in ("String", "Binary", "Boolean", "Byte", "Short", "Integer", "Long")]
SPARK_TYPES += [SparkType(f"{n}Type") for n in ("Float", "Double", "Date", "Timestamp")]
SPARK_TYPES += [SparkType("DecimalType", 38, 20), SparkType("ArrayType", element=SparkType("LongType"))]
FIELDS = [
    UnischemaField("id", np.int64, (), ScalarCodec(SparkType("LongType")), False),
    UnischemaField("price", Decimal, (), ScalarCodec(SparkType("DecimalType", 10, 4)), True),
    UnischemaField("plain", np.str_, (), None, True),
    UnischemaField("vector", np.float32, (None,), None, False),
    UnischemaField("words", np.str_, (None, 2), NdarrayCodec(), True),
    UnischemaField("wave", np.complex64, (3,), NdarrayCodec(), True),
    UnischemaField("packed", np.float64, (3, None), CompressedNdarrayCodec(), False),
    UnischemaField("image", np.uint8, (None, None, 3), CompressedImageCodec("jpeg", 71), False),
    UnischemaField("scan", np.uint16, (16, 32), CompressedImageCodec("png"), True),
    UnischemaField("free", None, (None,), NdarrayCodec(), False),
    UnischemaField("naïve größe", np.float64, (), None, False),
]


def _facts(schema):
    return schema._name, [(*f._facts(), f.codec) for f in schema.fields.values()]


def test_a_schema_of_every_codec_comes_back_from_our_reader():
    schema = Unischema("Every", FIELDS)
    assert _facts(load_unischema(dump_unischema(schema))) == _facts(schema)


@pytest.mark.parametrize("kind", SPARK_TYPES, ids=str)
def test_every_spark_type_comes_back(kind):
    schema = Unischema("One", [UnischemaField("x", np.int64, (), ScalarCodec(kind), False)])
    assert load_unischema(dump_unischema(schema)).fields["x"].codec == ScalarCodec(kind)


@pytest.mark.parametrize(
    ("dtype", "codec", "spark"),
    [
        (np.uint8, ScalarCodec(), SparkType("ShortType")),
        (np.uint32, ScalarCodec(), SparkType("LongType")),
        (np.bool_, ScalarCodec(np.dtype("bool")), SparkType("BooleanType")),
        (Decimal, ScalarCodec(pa.decimal128(12, 3)), SparkType("DecimalType", 12, 3)),
        (Decimal, ScalarCodec(), SparkType("DecimalType", 38, 18)),
        (np.datetime64, ScalarCodec(pa.timestamp("ms")), SparkType("TimestampType")),
        (np.str_, ScalarCodec(SparkType("VarcharType")), SparkType("StringType")),
    ],
)
def test_a_type_of_ours_is_named_by_the_spark_type_it_is_stored_as(dtype, codec, spark):
    schema = Unischema("One", [UnischemaField("x", dtype, (), codec, False)])
    assert load_unischema(dump_unischema(schema)).fields["x"].codec == ScalarCodec(spark)


def test_a_scalar_that_spark_has_no_type_for_is_read_by_its_dtype():
    schema = Unischema("One", [UnischemaField("x", np.uint64, (), ScalarCodec(), False)])
    field = load_unischema(dump_unischema(schema)).fields["x"]
    assert (field.numpy_dtype, field.codec) == (np.uint64, None)


class Foreign(DataframeColumnCodec):
    pass


class Derived(NdarrayCodec):
    pass


@pytest.mark.parametrize(
    ("dtype", "shape", "codec"),
    [
        (np.uint8, (1,), Foreign()),
        (np.uint8, (1,), Derived()),
        (np.uint8, (1,), UnknownCodec("some.Codec", {})),
        (np.timedelta64, (), None),
        (np.complex64, (), ScalarCodec(pa.float32())),
        (np.str_, (None,), None),
        (np.datetime64, (None,), None),
        (np.float32, (2, 2), None),
        (None, (), None),
        (None, (), ScalarCodec(SparkType("LongType"))),
        (np.void, (), None),
        (np.void, (2,), NdarrayCodec()),
        (Decimal, (2,), NdarrayCodec()),
    ],
)
def test_what_petastorm_cannot_read_is_refused_by_name(dtype, shape, codec):
    schema = Unischema("No", [UnischemaField("good", np.int8, ()), UnischemaField("bad one", dtype, shape, codec)])
    with pytest.raises(SchemaError, match=r"'bad one'.*Petastorm"):
        dump_unischema(schema)


class _Stub:
    def __new__(cls, *args):
        made = super().__new__(cls)
        made.args = args
        return made


class _Loader(pickle.Unpickler):
    """Python's own unpickler with stubs for what is not installed, and the classes of the pickle otherwise."""

    def find_class(self, module, name):
        if module.split(".")[0] in ("petastorm", "pyspark"):
            return type(name, (_Stub,), {"__module__": module})
        return super().find_class(module, name)


def _python_loads(data):
    import io

    return _Loader(io.BytesIO(data)).load()


def test_pythons_unpickler_makes_petastorms_object_graph():
    schema = Unischema("Every", [*FIELDS[:2], UnischemaField("scan", np.uint8, (2, 2), CompressedImageCodec(), False)])
    made = _python_loads(dump_unischema(schema))
    assert (type(made).__module__, type(made).__name__) == ("petastorm.unischema", "Unischema")
    assert (made._name, list(made._fields), type(made._fields)) == ("Every", ["id", "price", "scan"], OrderedDict)
    assert made.id is made._fields["id"]
    name, dtype, shape, codec, nullable = made.price.args
    assert (name, dtype, shape, nullable) == ("price", Decimal, (), True)
    assert vars(codec._spark_type) == {"args": (), "precision": 10, "scale": 4, "hasPrecisionInfo": True}
    assert vars(made.scan.args[3]) == {"args": (), "_image_codec": ".png", "_quality": 80}


def test_a_field_named_as_a_method_does_not_hide_it():
    with pytest.warns(UserWarning, match="make_namedtuple"):
        schema = Unischema("Odd", [UnischemaField("make_namedtuple", np.int8, ())])
    made = _python_loads(dump_unischema(schema))
    assert list(made._fields) == ["make_namedtuple"]
    assert "make_namedtuple" not in vars(made)


def test_bytes_are_the_same_for_equal_schemas_and_need_python_3_0_only():
    data = dump_unischema(Unischema("Every", FIELDS))
    assert data == dump_unischema(Unischema("Every", FIELDS))
    assert max(op.proto for op, *_ in pickletools.genops(data)) <= 3


def test_dumping_imports_neither_petastorm_nor_pyspark():
    code = (
        "import sys, numpy as np\n"
        "from penstock.schema.petastorm_dump import dump_unischema\n"
        "from penstock.schema.unischema import Unischema, UnischemaField\n"
        "dump_unischema(Unischema('S', [UnischemaField('x', np.int8, ())]))\n"
        "print([m for m in ('petastorm', 'pyspark', 'pandas') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_row_group_counts_are_json_by_path():
    assert json.loads(dump_row_group_counts({"b=é/1.parquet": np.int64(2), "a.parquet": 0})) == {
        "a.parquet": 0,
        "b=é/1.parquet": 2,
    }


def test_an_index_comes_back_from_our_reader_and_from_pythons():
    big = 2**63
    values = {3: {0, 2}, -7: {1}, big: {1}, "é": {1}, b"\x00\xff": {2}, 1.5: {0}, Decimal("2.50"): {4}}
    values |= {np.datetime64(3, "ms"): {5}, np.str_("s"): {6}, np.int64(9): {np.int64(7)}}
    indexes = {"by": RowGroupIndex("by", "x", values), "there": RowGroupIndex("there", "y", {4, 1})}
    data = dump_index(indexes)
    assert load_index(data) == indexes
    made = _python_loads(data)
    assert made["by"]._index_data == values
    assert isinstance(made["by"]._index_data, defaultdict)
    assert made["by"]._index_data["not there"] == set()
    assert vars(made["there"]) == {"args": (), "_index_name": "there", "_column_name": "y", "_index_data": {1, 4}}
    assert [type(made[n]).__name__ for n in ("by", "there")] == ["SingleFieldIndexer", "FieldNotNullIndexer"]


def test_an_index_of_odd_values_is_refused_by_name():
    with pytest.raises(SchemaError, match=r"'by' of field 'x'.*tuple"):
        dump_index({"by": RowGroupIndex("by", "x", {(1, 2): {0}})})
