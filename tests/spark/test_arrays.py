"""Arrow columns as cells: the block path agrees with the codec row by row. Needs no Spark."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import Unischema, UnischemaField
from penstock.codecs import CompressedImageCodec, CompressedNdarrayCodec, NdarrayCodec
from penstock.errors import SchemaError
from penstock.schema.arrow import arrow_schema
from penstock.spark.arrays import dense, encoded, npy_cells, slices
from tests.depth import depth

DTYPES = [np.bool_, np.int8, np.uint8, np.int16, np.uint32, np.int64, np.float16, np.float32, np.float64]


def field_of(dtype, shape, codec=None, nullable=False):
    return UnischemaField("x", dtype, shape, codec or NdarrayCodec(), nullable)


def cells_of(column, field, first=0):
    stored = arrow_schema(Unischema("s", [field])).field(0)
    made = encoded(column, field, stored, first)
    made.validate(full=True)
    return [None if cell is None else field.codec.decode(field, cell) for cell in made.to_pylist()]


@settings(max_examples=depth(50, 1000), deadline=None)
@given(
    dtype=st.sampled_from(DTYPES),
    shape=st.lists(st.integers(0, 4), min_size=1, max_size=3),
    count=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_blocks_of_cells_are_byte_for_byte_those_of_the_codec(dtype, shape, count, seed):
    block = (np.random.default_rng(seed).random((count, *shape)) * 100).astype(dtype)
    field = field_of(dtype, tuple(shape))
    assert npy_cells(block).to_pylist() == [field.codec.encode(field, row) for row in block]


@settings(max_examples=depth(50, 1000), deadline=None)
@given(
    rows=st.lists(
        st.none() | st.tuples(st.integers(0, 3), st.integers(1, 3), st.integers(0, 1000)), min_size=1, max_size=6
    ),
    cut=st.integers(0, 3),
    kind=st.sampled_from([pa.list_(pa.list_(pa.int64())), pa.large_list(pa.large_list(pa.int32()))]),
    uniform=st.booleans(),
)
def test_nested_lists_become_the_arrays_that_they_are(rows, cut, kind, uniform):
    if uniform:
        rows = [(2, 3, row[2] if row else 0) for row in rows]
    arrays = [None if row is None else np.full(row[:2], row[2], np.int32) for row in rows]
    column = pa.array([None if a is None else a.tolist() for a in arrays], kind).slice(cut)
    found = cells_of(column, field_of(np.int32, (None, None), nullable=True))
    for value, wanted in zip(found, arrays[cut:], strict=True):
        if wanted is None or wanted.size == 0:  # a list of no lists has one size only
            assert value is None if wanted is None else value.size == 0
        else:
            np.testing.assert_array_equal(value, wanted)


def test_a_flat_list_takes_the_shape_of_the_field_and_its_dtype():
    column = pa.array([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]])
    for codec in (NdarrayCodec(), CompressedNdarrayCodec(), CompressedImageCodec("png")):
        found = cells_of(column, field_of(np.uint8, (2, 2), codec))
        assert [value.tolist() for value in found] == [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]
        assert found[0].dtype == np.uint8
    assert cells_of(pa.array([["a", "bc"]]), field_of(np.str_, (2,)))[0].tolist() == ["a", "bc"]
    assert cells_of(pa.FixedSizeListArray.from_arrays(pa.array([1, 2, 3, 4]), 2), field_of(np.int64, (2,)))[
        1
    ].tolist() == [3, 4]


def test_numbers_that_a_dtype_holds_are_taken_from_others():
    inf = float("inf")
    for column, dtype, wanted in [
        (pa.array([[0.1, inf, -1e-50]]), np.float32, [np.float32(0.1), inf, 0]),
        (pa.array([[0.0, 1.0]]), np.bool_, [False, True]),
        (pa.array([[1, 0]]), np.bool_, [True, False]),
        (pa.array([[True, False]]), np.int16, [1, 0]),
        (pa.array([[Decimal("1.50"), Decimal("2.25")]]), np.float32, [1.5, 2.25]),
        (pa.array([[2048, 3]]), np.float16, [2048, 3]),
        (pa.array([[]], pa.list_(pa.null())), np.float32, []),
    ]:
        [found] = cells_of(column, field_of(dtype, (None,)))
        assert (found.dtype, found.tolist()) == (np.dtype(dtype), wanted)


def test_raw_bytes_of_a_fixed_shape_are_arrays_and_encoded_cells_stay():
    field = field_of(np.int16, (2, 2), nullable=True)
    arrays = [np.arange(4, dtype=np.int16).reshape(2, 2), np.full((2, 2), -1, np.int16)]
    raw = pa.array([arrays[0].tobytes(), None, arrays[1].tobytes()], pa.binary())
    found = cells_of(raw, field)
    assert found[1] is None
    assert [found[0].tolist(), found[2].tolist()] == [arrays[0].tolist(), arrays[1].tolist()]
    cells = pa.array([field.codec.encode(field, arrays[0])], pa.binary())
    assert encoded(cells, field, pa.field("x", pa.binary()), 0) is cells
    mixed = pa.array([arrays[0].tobytes(), b"short"], pa.binary())
    with pytest.raises(SchemaError, match=r"row 11, field 'x': 5 bytes.*has 8"):
        cells_of(mixed, field, first=10)


def test_ml_vectors_are_lists_of_all_their_values():
    kind = pa.struct(
        [
            ("type", pa.int8()),
            ("size", pa.int32()),
            ("indices", pa.list_(pa.int32())),
            ("values", pa.list_(pa.float64())),
        ]
    )
    full = {"type": 1, "size": None, "indices": None, "values": [1.0, 2.0]}
    thin = {"type": 0, "size": 2, "indices": [1], "values": [3.0]}
    assert dense(pa.array([full, None], kind)).to_pylist() == [[1.0, 2.0], None]
    assert dense(pa.array([thin, full, None], kind)).to_pylist() == [[0.0, 3.0], [1.0, 2.0], None]


@pytest.mark.parametrize(
    ("column", "dtype", "shape", "match"),
    [
        (pa.array([[1, 300]]), np.uint8, (2,), "lists hold int64, the field expects uint8.*300"),
        (pa.array([[1.5]]), np.int32, (1,), "lists hold double, the field expects int32"),
        (pa.array([[1.0], [1e300]]), np.float32, (1,), r"row 6, field 'x': the list holds 1e\+300, which float32 does"),
        (pa.array([[[0.0], [1.0]], [[2.0], [1e6]]]), np.float16, (2, 1), "row 6, field 'x': the list holds 1000000.0"),
        (pa.array([[2049]]), np.float16, (1,), "row 5, field 'x': the list holds 2049, which float16 does not"),
        (pa.array([[0, 1], [5, 0]]), np.bool_, (2,), "row 6, field 'x': the list holds 5, which bool does not"),
        (pa.array([["1"]]), np.float32, (1,), "lists hold string, the field expects float32"),
        (pa.array([[1]]), np.str_, (1,), "lists hold int64, the field expects str"),
        (pa.array([[1]], pa.list_(pa.timestamp("us"))), np.int64, (1,), r"lists hold timestamp\[us\]"),
        (pa.array([[1, 2, 3]]), np.int64, (2,), r"row 5, field 'x'.*\(2,\)"),
        (pa.array([[[1], [2, 3]]]), np.int64, (2, None), "row 5, field 'x': lists of 1 to 2 values"),
        (pa.array([[1], [None]]), np.int64, (1,), "row 6, field 'x': the list holds a null"),
        (pa.array([[1], None]), np.int64, (1,), "row 6, field 'x': missing value, but the field is not nullable"),
    ],
)
def test_what_does_not_fit_names_row_and_field(column, dtype, shape, match):
    with pytest.raises(SchemaError, match=match):
        cells_of(column, field_of(dtype, shape), first=5)


def test_batches_are_cut_by_bytes(monkeypatch):
    monkeypatch.setattr("penstock.spark.arrays.SLICE_BYTES", 800)
    batch = pa.RecordBatch.from_arrays([pa.array(np.arange(1000))], ["x"])
    parts = list(slices(batch))
    assert [len(part) for part in parts] == [100] * 10
    assert pa.Table.from_batches(parts).equals(pa.Table.from_batches([batch]))
    assert list(slices(batch.slice(0, 0))) == []
