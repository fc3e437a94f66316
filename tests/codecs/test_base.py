import pickle
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.codecs import CellError, Cells, Codec, DataframeColumnCodec
from penstock.codecs.base import column_dtype, decode_column, decode_list, has_cells, storage_type, view_column
from tests.codecs.fields import Field
from tests.depth import depth

CELLS = st.lists(st.none() | st.binary(max_size=6), max_size=12)


class Zlib(DataframeColumnCodec):
    """Petastorm's kind of codec: encode and decode only."""

    def encode(self, unischema_field, value):
        return zlib.compress(value.tobytes())

    def decode(self, unischema_field, value):
        assert type(value) is bytes
        values = np.frombuffer(zlib.decompress(value), unischema_field.numpy_dtype)
        return values.reshape([-1 if n is None else n for n in unischema_field.shape])


class Text(DataframeColumnCodec):
    def decode(self, unischema_field, value):
        return value.upper()

    def spark_dtype(self):
        class StringType: ...

        return StringType()


@settings(max_examples=depth(50, 2000), deadline=None)
@given(cells=CELLS)
def test_cells_give_back_what_was_listed(cells):
    column = Cells.from_list(cells)
    assert len(column) == len(cells)
    assert [None if c is None else c.tobytes() for c in column] == cells
    assert [None if column[i] is None else column[i].tobytes() for i in range(len(cells))] == cells


@settings(max_examples=depth(50, 2000), deadline=None)
@given(cells=CELLS, data=st.data())
def test_taken_cells_keep_order_and_nulls(cells, data):
    rows = data.draw(st.lists(st.integers(0, len(cells) - 1), max_size=9)) if cells else []
    taken = Cells.from_list(cells).take(np.array(rows, np.intp))
    assert [None if c is None else c.tobytes() for c in taken] == [cells[r] for r in rows]
    spans = {i: taken.parts[p][a:b].tobytes() for i, p, a, b in taken.spans()}
    assert spans == {i: cells[r] for i, r in enumerate(rows) if cells[r] is not None}


def test_cells_may_lie_in_several_parts():
    parts = [np.frombuffer(b"abc", np.uint8), np.frombuffer(b"defg", np.uint8)]
    cells = Cells(parts, np.array([1, 0, 1]), np.array([0, 1, 3]), np.array([2, 3, 4]), np.array([True, True, False]))
    assert [None if c is None else c.tobytes() for c in cells] == [b"de", b"bc", None]
    assert list(cells.spans()) == [(0, 1, 0, 2), (1, 0, 1, 3)]


def test_petastorm_codecs_decode_columns_and_lists():
    field, codec = Field("x", np.int32, (2, 3)), Zlib()
    values = [np.arange(6, dtype=np.int32).reshape(2, 3) + i for i in range(3)]
    cells = Cells.from_list([codec.encode(field, values[0]), None, codec.encode(field, values[2])])
    out = np.full((3, 2, 3), -1, np.int32)
    decode_column(codec, field, cells, out)
    assert (out[0] == values[0]).all()
    assert (out[1] == -1).all()
    assert (out[2] == values[2]).all()
    listed = decode_list(codec, field, cells)
    assert listed[1] is None
    assert (listed[2] == values[2]).all()
    assert view_column(codec, field, cells.parts[0], np.array([0, 1])) is None
    assert has_cells(codec)
    assert not has_cells(None)


def test_text_columns_reach_petastorm_codecs_as_text():
    field = Field("x", np.str_, ())
    assert decode_list(Text(), field, Cells.from_list([b"a\xc3\xa9", None])) == ["AÉ", None]
    assert str(storage_type(Text(), field)) == "string"
    assert str(storage_type(Zlib(), field)) == "binary"


@pytest.mark.parametrize(
    ("shape", "dtype", "said"),
    [((3, 2), np.int32, r"expects shape \(2, 3\), the cell holds \(3, 2\)"), ((2, 3), np.int64, "int32.*int64")],
)
def test_a_value_that_contradicts_the_field_says_both(shape, dtype, said):
    class Wrong(Codec):
        def decode(self, unischema_field, value):
            return np.zeros(shape, dtype)

    field, cells = Field("x", np.int32, (2, 3)), Cells.from_list([None, b"1"])
    with pytest.raises(CellError, match=said) as column:
        decode_column(Wrong(), field, cells, np.zeros((2, 2, 3), np.int32))
    with pytest.raises(CellError, match=said) as listed:
        decode_list(Wrong(), field, cells)
    assert column.value.index == listed.value.index == 1


def test_the_reason_of_a_failed_cell_is_kept():
    field, cells = Field("x", np.int32, (2,)), Cells.from_list([b"no zlib"])
    with pytest.raises(CellError, match="cannot decode a cell of field 'x'") as error:
        decode_list(Zlib(), field, cells)
    assert isinstance(error.value.__cause__, zlib.error)
    again = pickle.loads(pickle.dumps(error.value))
    assert (again.index, str(again)) == (0, str(error.value))


def test_rows_stack_only_where_field_alone_gives_the_dtype():
    assert column_dtype(Field("x", np.float32, (2, 3))) == np.dtype("float32")
    assert column_dtype(Field("x", np.bool_, ())) == np.dtype(bool)
    for kind, shape in [
        (np.float32, (None, 3)),
        (np.str_, (3,)),
        (np.datetime64, ()),
        (None, ()),
        (np.timedelta64, ()),
    ]:
        assert column_dtype(Field("x", kind, shape)) is None


def test_longer_text_is_not_cut_to_the_width_of_the_target():
    class Words(Codec):
        def decode(self, unischema_field, value):
            return np.array([value.decode()])

    with pytest.raises(CellError, match=r"<U2.*<U4"):
        decode_column(Words(), Field("x", np.str_, (1,)), Cells.from_list([b"four"]), np.zeros((1, 1), "<U2"))
