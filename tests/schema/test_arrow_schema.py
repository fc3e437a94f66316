"""Inference of a Unischema, structs by path, and the storage types of a Unischema."""

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.codecs import CompressedImageCodec, DataframeColumnCodec, NdarrayCodec, ScalarCodec
from penstock.codecs.arrow import Fixed, column_kind, fixed_view, objects
from penstock.errors import SchemaError, UnsupportedType
from penstock.schema.arrow import arrow_schema, flatten_structs, infer_unischema
from penstock.schema.unischema import Unischema, UnischemaField
from tests.codecs.arrow_cases import CASES, REFUSED


def field_of(kind: pa.DataType) -> UnischemaField:
    return infer_unischema(pa.schema([pa.field("x", kind)])).fields["x"]


@pytest.mark.parametrize(
    ("kind", "numpy_dtype", "shape"),
    [
        (pa.int8(), np.int8, ()),
        (pa.uint64(), np.uint64, ()),
        (pa.float16(), np.float16, ()),
        (pa.bool_(), np.bool_, ()),
        (pa.string(), np.str_, ()),
        (pa.large_binary(), np.bytes_, ()),
        (pa.binary(16), np.bytes_, ()),
        (pa.decimal128(9, 2), Decimal, ()),
        (pa.date32(), np.datetime64, ()),
        (pa.timestamp("ns", tz="UTC"), np.datetime64, ()),
        (pa.time64("us"), np.timedelta64, ()),
        (pa.duration("s"), np.timedelta64, ()),
        (pa.dictionary(pa.int32(), pa.string()), np.str_, ()),
        (pa.dictionary(pa.int32(), pa.int16()), np.int16, ()),
        (pa.null(), None, ()),
        (pa.list_(pa.float32()), np.float32, (None,)),
        (pa.large_list(pa.string()), np.str_, (None,)),
        (pa.list_(pa.float32(), 3), np.float32, (3,)),
        (pa.list_(pa.list_(pa.float32(), 3), 2), np.float32, (2, 3)),
        (pa.list_(pa.list_(pa.float32(), 3)), np.float32, (None, 3)),
        (pa.list_(pa.string(), 4), np.str_, (4,)),
        (pa.list_(pa.list_(pa.float32())), None, (None,)),
        (pa.list_(pa.struct([("a", pa.int8())])), None, (None,)),
        (pa.map_(pa.string(), pa.int8()), None, (None,)),
        (pa.dictionary(pa.int8(), pa.list_(pa.int8())), np.int8, (None,)),
        (pa.fixed_shape_tensor(pa.uint8(), [2, 3, 1], permutation=[2, 0, 1]), np.uint8, (1, 2, 3)),
    ],
    ids=str,
)
def test_fields_say_what_rows_are(kind: pa.DataType, numpy_dtype: object, shape: tuple) -> None:
    field = field_of(kind)
    assert field.numpy_dtype is numpy_dtype
    assert field.shape == shape
    assert field.codec is None


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not pa.types.is_struct(case.type)])
def test_inferred_fields_read_their_columns_unchanged(name: str) -> None:
    kind = CASES[name].type
    field = field_of(kind)
    assert column_kind(kind, numpy_dtype=field.numpy_dtype, shape=field.shape, name="x") == column_kind(kind, name="x")


def test_order_nullability_and_name() -> None:
    schema = pa.schema([pa.field("b", pa.int8(), nullable=False), pa.field("a", pa.int8())])
    inferred = infer_unischema(schema)
    assert list(inferred.fields) == ["b", "a"]
    assert [field.nullable for field in inferred.fields.values()] == [False, True]
    assert inferred._name == "inferred_schema"


@pytest.mark.parametrize("kind", REFUSED[:3], ids=str)
def test_unsupported_types_are_refused_by_name(kind: pa.DataType) -> None:
    for wrapped in (kind, pa.list_(kind)):
        with pytest.raises(UnsupportedType, match="'speed'"):
            infer_unischema(pa.schema([pa.field("speed", wrapped)]))
    with pytest.raises(UnsupportedType, match=r"'car\.speed'"):
        infer_unischema(pa.schema([pa.field("car", pa.struct([("speed", kind)]))]))


# Structs


NESTED = pa.struct([("a", pa.int32()), pa.field("b", pa.struct([pa.field("c", pa.string(), nullable=False)]), False)])


def test_structs_become_columns_named_by_path() -> None:
    schema = pa.schema([pa.field("x", pa.int8()), pa.field("s", NESTED)], metadata={"k": "v"})
    flat = flatten_structs(schema)
    assert flat.names == ["x", "s.a", "s.b.c"]
    assert flat.field("s.b.c").nullable  # the outer struct may be null
    assert flat.metadata == {b"k": b"v"}
    assert list(infer_unischema(schema).fields) == flat.names


def test_a_null_struct_gives_null_leaves() -> None:
    rows = [{"a": 1, "b": {"c": "x"}}, None, {"a": None, "b": {"c": "y"}}]
    table = pa.table({"s": pa.array(rows, NESTED)})
    table = pa.concat_tables([table, table.slice(1)])
    flat = flatten_structs(table)
    assert flat.schema == flatten_structs(table.schema)
    assert flat.column("s.a").to_pylist() == [1, None, None, None, None]
    assert flat.column("s.b.c").to_pylist() == ["x", None, "y", None, "y"]


def test_without_structs_nothing_is_touched() -> None:
    table = pa.table({"x": [1], "l": [[{"a": 1}]]})
    assert flatten_structs(table) is table
    assert flatten_structs(table.schema) is not None


def test_structs_read_by_path_from_parquet(tmp_path) -> None:
    pq.write_table(pa.table({"s": pa.array([{"a": 1, "b": {"c": "x"}}, None], NESTED)}), tmp_path / "f.parquet")
    table = pq.ParquetFile(tmp_path / "f.parquet").read_row_group(0, columns=["s.b.c"])
    assert flatten_structs(table).to_pydict() == {"s.b.c": ["x", None]}


class Pose(pa.ExtensionType):
    """An extension whose storage is a struct."""

    def __init__(self) -> None:
        super().__init__(pa.struct([("x", pa.float32()), ("y", pa.float32())]), "tests.pose")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type, serialized):
        return cls()


def test_an_extension_of_a_struct_is_flattened() -> None:
    storage = pa.array([{"x": 1.0, "y": 2.0}, None], Pose().storage_type)
    table = pa.table({"pose": pa.ExtensionArray.from_storage(Pose(), storage)})
    assert flatten_structs(table).to_pydict() == {"pose.x": [1.0, None], "pose.y": [2.0, None]}


def test_two_columns_of_one_path_are_refused() -> None:
    schema = pa.schema([pa.field("s.a", pa.int8()), pa.field("s", pa.struct([("a", pa.int8())]))])
    with pytest.raises(SchemaError, match=r"two columns: s\.a;.*columns="):
        flatten_structs(schema)


def test_a_struct_without_fields_is_refused() -> None:
    with pytest.raises(UnsupportedType, match="'s'"):
        flatten_structs(pa.schema([pa.field("s", pa.struct([]))]))


# Storage types


class _Upper(DataframeColumnCodec):
    def encode(self, unischema_field, value):
        return value.encode()

    def decode(self, unischema_field, value):
        return value.decode()


@pytest.mark.parametrize(
    ("numpy_dtype", "shape", "codec", "stored"),
    [
        (np.int8, (), None, pa.int8()),
        (np.uint8, (), None, pa.int16()),
        (np.uint16, (), ScalarCodec(), pa.int32()),
        (np.uint32, (), None, pa.int64()),
        (np.uint64, (), None, pa.uint64()),
        (np.float16, (), None, pa.float32()),
        (np.bool_, (), None, pa.bool_()),
        (np.str_, (), None, pa.string()),
        (np.bytes_, (), None, pa.binary()),
        (np.datetime64, (), None, pa.timestamp("us")),
        (np.timedelta64, (), None, pa.duration("us")),
        (Decimal, (), None, pa.decimal128(38, 18)),
        (Decimal, (), ScalarCodec(pa.decimal128(9, 2)), pa.decimal128(9, 2)),
        (np.int32, (), ScalarCodec(pa.int16()), pa.int16()),
        (np.uint8, (4, 4), NdarrayCodec(), pa.binary()),
        (np.uint8, (4, 4, 3), CompressedImageCodec("png"), pa.binary()),
        (np.str_, (), _Upper(), pa.binary()),
        (np.float32, (None,), None, pa.list_(pa.float32())),
        (np.float32, (2, 3), None, pa.list_(pa.list_(pa.float32(), 3), 2)),
        (np.uint8, (None, 3), None, pa.list_(pa.list_(pa.int16(), 3))),
    ],
    ids=str,
)
def test_storage_types(numpy_dtype, shape, codec, stored) -> None:
    schema = arrow_schema(Unischema("s", [UnischemaField("x", numpy_dtype, shape, codec, False)]))
    assert schema == pa.schema([pa.field("x", stored, nullable=False)])


def test_storage_keeps_order_and_nullability() -> None:
    fields = [UnischemaField("b", np.int8, (), None, True), UnischemaField("a", np.int8, ())]
    schema = arrow_schema(Unischema("s", fields))
    assert schema.names == ["b", "a"]
    assert [field.nullable for field in schema] == [True, False]


def test_a_field_without_codec_and_dtype_is_refused() -> None:
    with pytest.raises(UnsupportedType, match="'x'"):
        arrow_schema(Unischema("s", [UnischemaField("x", None, ())]))


@pytest.mark.parametrize("numpy_dtype", [np.uint8, np.uint64, np.float16, np.str_, np.bytes_, Decimal, np.datetime64])
def test_what_is_stored_reads_back_as_the_field_says(numpy_dtype) -> None:
    field = UnischemaField("x", numpy_dtype, ())
    stored = arrow_schema(Unischema("s", [field])).field("x").type
    values = {np.str_: ["a"], np.bytes_: [b"a"], Decimal: [Decimal(2)]}.get(numpy_dtype, [200])
    array = pa.array(values, stored)
    kind = column_kind(stored, numpy_dtype=field.numpy_dtype, shape=field.shape, name="x")
    if isinstance(kind, Fixed):
        assert fixed_view(array, kind)[0].dtype.type is numpy_dtype
    else:
        assert objects(array, kind).tolist() == values
