"""One Unischema of every dtype, and what it is in NumPy, in Arrow, in TensorFlow's specs and in Spark: one table."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

tf = pytest.importorskip("tensorflow")

import penstock  # noqa: E402
import penstock.tensorflow  # noqa: E402
from penstock import UnischemaField as Field  # noqa: E402
from penstock.codecs import CompressedImageCodec, CompressedNdarrayCodec, NdarrayCodec, ScalarCodec  # noqa: E402

MOMENT, SPAN = np.datetime64("2024-02-28T01:02:03", "us"), np.timedelta64(5, "us")
PRICE = ScalarCodec(pa.decimal128(10, 2))


def dense(dtype, *shape):
    return tf.TensorSpec([None, *shape], dtype)


# field; a value; NumPy's dtype in a batch (None: a list); Arrow's type as stored; TensorFlow's spec of a batch; Spark's
# type (None: Spark has none, and says so).
TABLE = [
    (Field("bool", np.bool_, (), None, False), True, "bool", pa.bool_(), dense(tf.bool), "BooleanType"),
    (Field("int8", np.int8, (), None, False), -1, "int8", pa.int8(), dense(tf.int8), "ByteType"),
    (Field("int16", np.int16, (), None, False), -1, "int16", pa.int16(), dense(tf.int16), "ShortType"),
    (Field("int32", np.int32, (), None, False), -1, "int32", pa.int32(), dense(tf.int32), "IntegerType"),
    (Field("int64", np.int64, (), None, False), -1, "int64", pa.int64(), dense(tf.int64), "LongType"),
    (Field("uint8", np.uint8, (), None, False), 255, "uint8", pa.int16(), dense(tf.uint8), "ShortType"),
    (Field("uint16", np.uint16, (), None, False), 65535, "uint16", pa.int32(), dense(tf.uint16), "IntegerType"),
    (Field("uint32", np.uint32, (), None, False), 2**32 - 1, "uint32", pa.int64(), dense(tf.uint32), "LongType"),
    (Field("uint64", np.uint64, (), None, False), 2**64 - 1, "uint64", pa.uint64(), dense(tf.uint64), None),
    (Field("float16", np.float16, (), None, False), 0.5, "float16", pa.float32(), dense(tf.float16), "FloatType"),
    (Field("float32", np.float32, (), None, False), 0.5, "float32", pa.float32(), dense(tf.float32), "FloatType"),
    (Field("float64", np.float64, (), None, False), 0.5, "float64", pa.float64(), dense(tf.float64), "DoubleType"),
    (Field("str", np.str_, (), None, False), "ü", "object", pa.string(), dense(tf.string), "StringType"),
    (Field("bytes", np.bytes_, (), None, False), b"\xff", "object", pa.binary(), dense(tf.string), "StringType"),
    (Field("decimal", Decimal, (), None, False), Decimal("1.5"), "object", pa.decimal128(38, 18), dense(tf.string),
     "DecimalType"),
    (Field("price", Decimal, (), PRICE, False), Decimal("1.50"), "object", pa.decimal128(10, 2), dense(tf.string),
     "DecimalType"),
    (Field("moment", np.datetime64, (), None, False), MOMENT, "datetime64[us]", pa.timestamp("us"), dense(tf.int64),
     "TimestampNTZType"),
    (Field("span", np.timedelta64, (), None, False), SPAN, "timedelta64[us]", pa.duration("us"), dense(tf.int64), None),
    (Field("array", np.float32, (2, 3), NdarrayCodec(), False), np.ones((2, 3), np.float32), "float32", pa.binary(),
     dense(tf.float32, 2, 3), "BinaryType"),
    (Field("packed", np.int64, (2,), CompressedNdarrayCodec(), False), np.ones(2, np.int64), "int64", pa.binary(),
     dense(tf.int64, 2), "BinaryType"),
    (Field("image", np.uint8, (4, 4, 3), CompressedImageCodec("png"), False), np.ones((4, 4, 3), np.uint8), "uint8",
     pa.binary(), dense(tf.uint8, 4, 4, 3), "BinaryType"),
    (Field("free", np.float32, (None,), NdarrayCodec(), False), np.ones(3, np.float32), None, pa.binary(),
     tf.RaggedTensorSpec([None, None], tf.float32, 1), "BinaryType"),
    (Field("list", np.int32, (None,), None, False), np.ones(3, np.int32), None, pa.list_(pa.int32()),
     tf.RaggedTensorSpec([None, None], tf.int32, 1), None),
    (Field("fixed", np.float32, (2,), None, False), np.ones(2, np.float32), "float32", pa.list_(pa.float32(), 2),
     dense(tf.float32, 2), None),
]  # fmt: skip
IDS = [line[0].name for line in TABLE]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The dataset of the whole schema, and its only batch."""
    where = tmp_path_factory.mktemp("schema") / "d"
    schema = penstock.Unischema("All", [line[0] for line in TABLE])
    penstock.write([{line[0].name: line[1] for line in TABLE}] * 3, where, schema=schema)
    ds = penstock.open(where)
    with ds.loader(batch_size=3) as loader:
        return ds, next(iter(loader))


@pytest.mark.parametrize("line", TABLE, ids=IDS)
def test_numpy_and_the_value_that_comes_back(written, line):
    (field, value, dtype, *_), (ds, batch) = line, written
    column = batch[field.name]
    assert isinstance(column, list) if dtype is None else str(column.dtype) == dtype
    np.testing.assert_array_equal(column[0], value)
    assert ds.schema.fields[field.name] == field


@pytest.mark.parametrize("line", TABLE, ids=IDS)
def test_arrow(written, line):
    field, _, _, arrow, *_ = line
    stored = written[0].source.facts.arrow_schema.field(field.name).type
    if pa.types.is_list(arrow) or pa.types.is_fixed_size_list(arrow):  # names of elements differ between writers
        assert (type(stored), stored.value_type) == (type(arrow), arrow.value_type)
    else:
        assert stored == arrow


@pytest.mark.parametrize("line", TABLE, ids=IDS)
def test_tensorflow(written, line):
    field, value, _, _, spec, _ = line
    with penstock.tensorflow.loader(written[0], batch_size=3, columns=[field.name]) as batches:
        assert batches.element_spec == {field.name: spec}
        batch = next(iter(batches))
    assert spec.is_compatible_with(batch[field.name])
    if spec.dtype not in (tf.string, tf.int64):
        np.testing.assert_array_equal(np.asarray(batch[field.name][0]), np.asarray(value, spec.dtype.as_numpy_dtype))


@pytest.mark.spark
@pytest.mark.parametrize("line", TABLE, ids=IDS)
def test_spark(line):
    pytest.importorskip("pyspark")
    field, *_, spark = line
    schema = penstock.Unischema("One", [field])
    if spark is None:
        with pytest.raises(penstock.errors.PenstockError, match=r"codec|Spark"):
            schema.as_spark_schema()
    else:
        [one] = schema.as_spark_schema().fields
        assert type(one.dataType).__name__ == spark
        assert one.nullable is field.nullable


def test_the_whole_schema_is_one_dataset(written):
    ds, batch = written
    assert list(batch) == IDS == list(ds.columns)
    with penstock.tensorflow.loader(ds, batch_size=3) as batches:
        assert list(batches.element_spec) == IDS
