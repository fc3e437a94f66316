import tracemalloc
from io import BytesIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from penstock.codecs import CellError, Cells, CompressedNdarrayCodec, NdarrayCodec, ndarray
from penstock.codecs.base import column_dtype
from penstock.testing.codecs import check_codec, equal_values
from tests.codecs.fields import Field
from tests.depth import depth

CODECS = [NdarrayCodec(), CompressedNdarrayCodec()]
DTYPES = ["u1", "i2", "i4", "i8", "f2", "f4", "f8", "c8", "?", ">i4", ">f8", "<U3", "S4", "M8[ms]", "m8[s]"]


def saved(value, version=None):
    file = BytesIO()
    np.lib.format.write_array(file, value, version=version, allow_pickle=True)
    return file.getvalue()


def view(field, cells):
    column = Cells.from_list(cells)
    return NdarrayCodec().view_column(field, column.parts[0], np.concatenate([column.start[:1], column.stop]))


@pytest.mark.parametrize("codec", CODECS, ids=str)
@settings(max_examples=depth(40, 1500), deadline=None)
@given(data=st.data())
def test_columns_decode_as_single_cells_do(codec, data):
    dtype = np.dtype(data.draw(st.sampled_from(DTYPES)))
    shape = data.draw(st_numpy.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    free = data.draw(st.booleans())
    values = [
        data.draw(st_numpy.arrays(dtype, data.draw(st_numpy.array_shapes(min_dims=1, max_dims=1)) if free else shape))
        for _ in range(data.draw(st.integers(0, 4)))
    ]
    if data.draw(st.booleans()):
        values = [np.asfortranarray(v) if v.ndim else v for v in values]
    check_codec(codec, Field("x", dtype.type, (None,) if free else shape, nullable=True), values)


def test_cells_are_what_numpy_saves():
    value = np.arange(6, dtype=np.float32).reshape(2, 3)
    cell = NdarrayCodec().encode(Field("x", np.float32, (2, None)), value)
    assert cell == saved(value)
    assert cell[:8] == b"\x93NUMPY\x01\x00"
    assert b"'fortran_order': True" in NdarrayCodec().encode(Field("x", np.float32, (2, 3)), np.asfortranarray(value))


def test_compressed_cells_are_what_numpy_saves():
    value = np.arange(6, dtype=np.float32)
    file = BytesIO()
    np.savez_compressed(file, arr=value)
    cell = CompressedNdarrayCodec().encode(Field("x", np.float32, (6,)), value)
    assert cell[:14] == file.getvalue()[:14]  # the rest holds no time of day either, but zlib's level may change
    assert (np.load(BytesIO(cell))["arr"] == value).all()


@pytest.mark.parametrize("codec", CODECS, ids=str)
@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([1, 2], "expects a NumPy array, got list"),
        (np.zeros(2, np.float32), "expects dtype int32, got float32"),
        (np.zeros(3, np.int32), r"expects shape \(2,\), got \(3,\)"),
        (np.zeros((2, 1), np.int32), r"expects shape \(2,\), got \(2, 1\)"),
    ],
)
def test_encoding_checks_type_dtype_and_shape(codec, value, said):
    with pytest.raises(ValueError, match=said):
        codec.encode(Field("x", np.int32, (2,)), value)


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_object_arrays_are_neither_written_nor_read(codec):
    field, value = Field("x", np.object_, (1,)), np.array([{}], object)
    with pytest.raises(ValueError, match=r"[Oo]bject arrays"):
        codec.encode(field, value)
    file = BytesIO()
    np.savez_compressed(file, arr=value)
    cell = saved(value) if isinstance(codec, NdarrayCodec) else file.getvalue()
    with pytest.raises(CellError, match="object arrays are pickles"):
        codec.decode_list(field, Cells.from_list([cell]))
    with pytest.raises(ValueError, match="Object arrays"):
        codec.decode(field, cell)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_all_header_versions_are_read(version):
    value = np.arange(4, dtype=np.int16)
    cell, field = saved(value, version), Field("x", np.int16, (4,))
    assert (NdarrayCodec().decode_list(field, Cells.from_list([cell]))[0] == value).all()
    assert (view(field, [cell, cell]) == value).all()


def test_headers_of_python_2_are_read():
    value = np.arange(6, dtype=np.int32).reshape(2, 3)
    cell = saved(value).replace(b"(2, 3), }  ", b"(2L, 3L), }")
    assert b"2L" in cell
    assert (NdarrayCodec().decode_list(Field("x", np.int32, (2, 3)), Cells.from_list([cell]))[0] == value).all()


def test_structured_and_unicode_names_are_read():
    value = np.array([(1, 2.0)], [("a", "i4"), ("列", "f8")])
    with pytest.warns(UserWarning, match="format 3.0"):
        cell = saved(value)
    decoded = NdarrayCodec().decode_list(Field("x", np.void, (1,)), Cells.from_list([cell]))[0]
    assert decoded.dtype == value.dtype
    assert decoded[0] == value[0]


def test_equal_cells_are_one_view():
    values = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    field = Field("x", np.float32, (2, 3))
    column = Cells.from_list([b"xx", *[NdarrayCodec().encode(field, v) for v in values]])
    offsets = column.stop.astype(np.int32)
    rows = NdarrayCodec().view_column(field, column.parts[0], offsets)
    assert np.shares_memory(rows, column.parts[0])
    assert rows.dtype == np.float32
    assert (rows == values).all()


def test_anything_uneven_is_no_view():
    field = Field("x", np.float32, (2, 3))
    good = saved(np.zeros((2, 3), np.float32))
    assert view(field, [good, good]) is not None
    assert view(field, []) is None
    for odd in [
        saved(np.zeros((3, 2), np.float32)),
        saved(np.zeros((2, 3), np.int32)),
        saved(np.zeros((2, 3), ">f4")),
        saved(np.asfortranarray(np.zeros((2, 3), np.float32))),
        good[:-1] + b"\0\0",
        b"",
        b"\0" * len(good),
    ]:
        assert view(field, [good, odd]) is None
        assert view(field, [odd, odd]) is None
    assert view(Field("x", np.float32, (None, 3)), [good, good]) is None
    assert view(Field("x", np.str_, (1,)), [saved(np.array(["a"]))] * 2) is None


def test_a_row_of_fortran_order_with_one_long_axis_is_a_view():
    value = np.asfortranarray(np.arange(5.0).reshape(1, 5))
    cell = saved(value).replace(b"'fortran_order': False", b"'fortran_order': True ")
    assert (view(Field("x", np.float64, (1, 5)), [cell, cell]) == value).all()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda c: b"", "not an .npy cell"),
        (lambda c: b"\x89PNG....", "not an .npy cell"),
        (lambda c: c[:11], "version 01"),
        (lambda c: c[:60], "cut short"),
        (lambda c: c[:-1], "cut short"),
        (lambda c: c.replace(b"NUMPY\x01", b"NUMPY\x09"), "version 09"),
        (lambda c: c.replace(b"'shape'", b"'shapx'"), "damaged .npy header"),
        (lambda c: c.replace(b"(2,)", b"(-2)"), "damaged .npy header"),
        (lambda c: c.replace(b"(2,), }   ", b"(True,), }"), r"damaged .npy header: shape \(True,\)"),
        (lambda c: c.replace(b"False", b"'xyz'"), "damaged .npy header: fortran_order"),
        (lambda c: c.replace(b"<i4", b"<q9"), "damaged .npy header"),
        (lambda c: c.replace(b"{", b"["), "damaged .npy header"),
        (lambda c: c.replace(b"(2,)", b"f()"), "damaged .npy header"),
        (lambda c: c.replace(b"(2,)", b"(3,)"), "cut short"),
        (lambda c: c.replace(b"(2,)", b"(1,)"), r"expects shape \(2,\), the cell holds \(1,\)"),
        (lambda c: c.replace(b"<i4", b"<f4"), "expects dtype int32, the cell holds float32"),
    ],
)
def test_damaged_cells_name_their_row_and_reason(damage, said):
    field = Field("x", np.int32, (2,))
    good = saved(np.array([1, 2], np.int32))
    cells = Cells.from_list([good, None, damage(good)])
    with pytest.raises(CellError, match=said) as column:
        NdarrayCodec().decode_column(field, cells, np.zeros((3, 2), np.int32))
    with pytest.raises(CellError, match=said) as listed:
        NdarrayCodec().decode_list(field, cells)
    assert column.value.index == listed.value.index == 2


def header(text):
    return b"\x93NUMPY\x02\x00" + len(text).to_bytes(4, "little") + text.encode("latin1")


@pytest.mark.parametrize(
    "text",
    [
        "{'descr': '<U2000000000', 'fortran_order': False, 'shape': (2,)}",
        "{'descr': '|S0', 'fortran_order': False, 'shape': (1000000000000,)}",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (0, 1000000000000000000000000000000)}",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (0, 4611686018427387904, 4611686018427387904)}",
        f"{{'descr': '<i4', 'fortran_order': False, 'shape': ({'0,' * 70})}}",
        f"{{'descr': '<i4', 'fortran_order': False, 'shape': ({'9' * 4000},)}}",
        "{'descr': [('a', ('<i4', (99999999999,)))], 'fortran_order': False, 'shape': (2,)}",
        "{'descr': {'a': 1}, 'fortran_order': False, 'shape': (2,)}",
        "{'descr': [(None, None)], 'fortran_order': False, 'shape': (2,)}",
        f"{{'descr': {'[' * 150}{']' * 150}, 'fortran_order': False, 'shape': (2,)}}",
        f"({'1,' * 100_000})",
    ],
    ids=[str(i) for i in range(11)],
)
def test_absurd_headers_are_cheap_errors(text):
    field = Field("x", np.int32, (2,))
    cells = Cells.from_list([saved(np.array([1, 2], np.int32)), header(text)])
    tracemalloc.start()
    try:
        for decode in (
            lambda: NdarrayCodec().decode_list(field, cells),
            lambda: NdarrayCodec().decode_column(field, cells, np.zeros((2, 2), np.int32)),
        ):
            with pytest.raises(CellError) as error:
                decode()
            assert error.value.index == 1
            assert len(str(error.value)) < 1000
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_remembered_headers_take_little_memory():
    tracemalloc.start()
    try:
        for number in range(500):
            text = f"{{'descr': '<i4', 'fortran_order': False, 'shape': ({number},)}}".ljust(60_000)
            ndarray.parse_header(header(text))
        assert tracemalloc.get_traced_memory()[0] < 16 << 20
    finally:
        tracemalloc.stop()


def test_headers_are_parsed_once(monkeypatch):
    ndarray._parse_short.cache_clear()
    field = Field("x", np.int32, (2,))
    cells = [saved(np.array([i, i], t)) for i in range(50) for t in ("<i4", ">i4")]
    out = np.zeros((100, 2), np.int32)
    NdarrayCodec().decode_column(field, Cells.from_list(cells), out)
    assert (out == np.repeat(np.arange(50), 2)[:, None]).all()
    assert ndarray._parse_short.cache_info().misses == 2


def test_decoded_arrays_are_owned_and_writable():
    field = Field("x", np.int32, (None,))
    value = np.arange(3, dtype=np.int32)
    for codec in CODECS:
        decoded = codec.decode_list(field, Cells.from_list([codec.encode(field, value)]))[0]
        decoded[0] = 9
        assert decoded.flags.owndata


@pytest.mark.parametrize("method", ["stored", "other name first"])
def test_unusual_zips_are_read_too(method):
    file, value = BytesIO(), np.arange(4, dtype=np.int8)
    if method == "stored":
        np.savez(file, arr=value)
    else:
        np.savez_compressed(file, other=value + 1, arr=value)
    field = Field("x", np.int8, (4,))
    decoded = CompressedNdarrayCodec().decode_list(field, Cells.from_list([file.getvalue()]))[0]
    assert equal_values(decoded, value)


@pytest.mark.parametrize("cut", [0, 3, 20, 60, 100])
def test_damaged_zips_name_their_row(cut):
    field = Field("x", np.int32, (50,))
    good = CompressedNdarrayCodec().encode(field, np.arange(50, dtype=np.int32))
    with pytest.raises(CellError, match="cannot decode a cell of field 'x'") as error:
        CompressedNdarrayCodec().decode_list(field, Cells.from_list([good, good[:cut]]))
    assert error.value.index == 1
    flipped = bytearray(good)
    flipped[14] ^= 1
    with pytest.raises(CellError, match="checksum"):
        CompressedNdarrayCodec().decode_column(field, Cells.from_list([bytes(flipped)]), np.zeros((1, 50), np.int32))


def test_every_field_dtype_that_stacks_is_covered():
    assert {np.dtype(d).kind for d in DTYPES if column_dtype(Field("x", np.dtype(d).type, ()))} == set("uifcb")
