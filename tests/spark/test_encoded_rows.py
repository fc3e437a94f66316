"""Rows of a transform as batches: byte for byte what codecs give row by row. Needs no Spark."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import Unischema, UnischemaField
from penstock.codecs import CompressedNdarrayCodec, NdarrayCodec, ScalarCodec
from penstock.errors import ColumnNotFound, SchemaError
from penstock.schema.arrow import arrow_schema
from penstock.schema.encode import encode_row
from penstock.spark import arrays as under_test
from penstock.spark.arrays import encoded_rows
from penstock.write.layout import plan_layout
from tests.depth import depth

SCHEMA = Unischema(
    "Rows",
    [
        UnischemaField("id", np.int64, (), ScalarCodec(), False),
        UnischemaField("small", np.uint8, (), None, True),
        UnischemaField("x", np.float32, (), None, True),
        UnischemaField("flag", np.bool_, (), None, True),
        UnischemaField("text", np.str_, (), None, True),
        UnischemaField("fixed", np.float32, (2, 3), NdarrayCodec(), True),
        UnischemaField("free", np.int16, (None,), NdarrayCodec(), True),
        UnischemaField("packed", np.int32, (2,), CompressedNdarrayCodec(), True),
    ],
)
LAYOUT = plan_layout(SCHEMA, arrow_schema(SCHEMA), ())


def values(field):
    shape = tuple(2 if n is None else n for n in field.shape)
    if field.numpy_dtype is np.str_:
        return st.text(max_size=3)
    if not shape:
        number = {np.bool_: st.booleans(), np.float32: st.floats(width=32, allow_nan=False)}
        whole = st.integers(0, 255)
        return number.get(field.numpy_dtype, whole | whole.map(field.numpy_dtype) | whole.map(float))
    arrays = st.integers(0, 99).map(
        lambda seed: (np.random.default_rng(seed).random(shape) * 99).astype(field.numpy_dtype)
    )
    return arrays | arrays.map(np.asfortranarray) | arrays.map(lambda a: np.repeat(a, 2, axis=-1)[..., ::2])


ROWS = st.lists(
    st.fixed_dictionaries(
        {"id": values(SCHEMA.fields["id"])},
        optional={n: st.none() | values(f) for n, f in SCHEMA.fields.items() if n != "id"},
    ),
    max_size=12,
)


@settings(max_examples=depth(50, 1000), deadline=None)
@given(rows=ROWS, batch_bytes=st.sampled_from([1, 600, 1 << 20]))
def test_cells_are_those_that_codecs_give_row_by_row(rows, batch_bytes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(under_test, "BATCH_BYTES", batch_bytes)
        batches = list(encoded_rows(iter(rows), LAYOUT, 0))
    for batch in batches:
        batch.validate(full=True)
    found = [row for batch in batches for row in batch.to_pylist()]
    wanted = pa.array([encode_row(SCHEMA, row) for row in rows], pa.struct(list(LAYOUT.columns))).to_pylist()
    assert found == wanted


def test_an_array_may_be_used_again_for_the_next_row():
    shared = np.zeros((2, 3), np.float32)

    def rows():
        for i in range(3):
            shared[:] = i
            yield {"id": i, "fixed": shared}

    [batch] = encoded_rows(rows(), LAYOUT, 0)
    field = SCHEMA.fields["fixed"]
    assert [field.codec.decode(field, cell)[0, 0] for cell in batch.column("fixed").to_pylist()] == [0, 1, 2]


@pytest.mark.parametrize(
    ("row", "error", "match"),
    [
        ({"id": 1.5}, SchemaError, r"row 8, field 'id'.*1\.5"),
        ({"id": None}, SchemaError, "row 8, field 'id': missing value, but the field is not nullable"),
        ({"id": 1, "small": 300}, SchemaError, "row 8, field 'small': 300 is not within 0 to 255"),
        ({"id": 1, "x": 1e300}, SchemaError, r"row 8, field 'x': 1e\+300 is larger than any float32"),
        ({"id": 1, "text": 5}, SchemaError, "row 8, field 'text'"),
        ({"id": 1, "fixed": np.zeros((3, 2), "f4")}, SchemaError, r"row 8, field 'fixed'.*\(2, 3\)"),
        ({"id": 1, "fixed": np.zeros((2, 3))}, SchemaError, r"row 8, field 'fixed'.*float32"),
        ({"id": 1, "other": 5}, ColumnNotFound, "row 8: no field 'other'"),
        ([1], SchemaError, "row 8: the transform gave list"),
    ],
)
def test_what_does_not_fit_names_row_and_field(row, error, match):
    with pytest.raises(error, match=match):
        list(encoded_rows([{"id": 0}, row], LAYOUT, 7))
