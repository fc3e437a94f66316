"""Arrow columns against their plain twin, the table of types, and conversions."""

import subprocess
import sys
from decimal import Decimal
from itertools import pairwise
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.codecs import arrow_memory
from penstock.codecs.arrow import Fixed, Objects, cells_view, column_kind, fixed_view, mask, objects, takeable
from penstock.codecs.arrow_kinds import FORMS, form_of
from penstock.codecs.base import CellError
from penstock.errors import SchemaError, UnsupportedType
from tests.codecs import arrow_cases
from tests.codecs.arrow_cases import CASES, REFUSED, arrays_of, same
from tests.codecs.arrow_plain import plain_rows
from tests.depth import depth


def fast_rows(array: pa.Array) -> list:
    """Row values by the fast paths."""
    kind = column_kind(array.type, name="c")
    if isinstance(kind, Objects):
        return list(objects(array, kind))
    values, valid = fixed_view(array, kind)
    assert values.shape == (len(array), *kind.shape)
    assert values.dtype == kind.dtype
    assert values.flags.c_contiguous
    if valid is None:
        return list(values)
    assert valid.shape in ((len(array),), values.shape)
    assert not valid.all()
    if valid.ndim == 1:
        return [value if ok else None for value, ok in zip(values, valid, strict=True)]
    return [mask(value, ok) if ok.any() else None for value, ok in zip(values, valid, strict=True)]


def assert_same_rows(array: pa.Array) -> None:
    fast, plain = fast_rows(array), plain_rows(array)
    assert len(fast) == len(plain)
    for got, want in zip(fast, plain, strict=True):
        if got is None and isinstance(want, np.ma.MaskedArray):  # a stacked row of nothing but nulls
            assert want.mask.all()
        else:
            assert same(got, want), (array.type, got, want)


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=depth(15, 200), deadline=None)
@given(data=st.data())
def test_every_type_agrees_with_its_plain_twin(name: str, data: st.DataObject) -> None:
    array = data.draw(arrays_of(CASES[name]))
    array.validate(full=True)
    assert_same_rows(array)


@pytest.mark.parametrize("name", CASES)
def test_an_empty_column_keeps_dtype_and_shape(name: str) -> None:
    for array in (CASES[name].build([]), CASES[name].build([None, None, None]).slice(1, 0)):
        assert fast_rows(array) == []


@pytest.mark.parametrize("name", CASES)
def test_a_column_of_nulls_is_all_null_and_holds_the_fill(name: str) -> None:
    array = CASES[name].build([None] * 11).slice(1, 9)
    kind = column_kind(array.type, name="c")
    if isinstance(kind, Objects):
        assert list(objects(array, kind)) == [None] * 9
        return
    values, valid = fixed_view(array, kind)
    assert valid is not None
    assert not valid.any()
    masked = mask(values, valid)
    assert isinstance(masked, np.ma.MaskedArray)
    np.testing.assert_array_equal(masked.filled(), values)
    assert np.isnan(values).all() if kind.dtype.kind in "fmM" else not values.any()


def test_the_table_knows_every_type_id_of_this_pyarrow() -> None:
    ids = {name.removeprefix("Type_") for name in dir(pa.lib) if name.startswith("Type_")}
    assert ids | {"EXTENSION"} <= FORMS.keys()


def test_every_type_id_has_a_case_or_is_refused() -> None:
    covered = {case.type.id for case in CASES.values()} | {kind.id for kind in REFUSED}
    known = {name: getattr(pa.lib, f"Type_{name}") for name in FORMS if hasattr(pa.lib, f"Type_{name}")}
    no_factory = {"INTERVAL_MONTHS", "INTERVAL_DAY_TIME"}  # pyarrow cannot make them
    assert {name for name, number in known.items() if number not in covered} - no_factory == set()


def test_every_type_stands_in_the_docs() -> None:
    text = arrow_cases.types_page()
    spelled = {"NA": "null", "HALF_FLOAT": "float16", "FLOAT": "float32", "DOUBLE": "float64", "BOOL": "bool_"}
    spelled |= {"SPARSE_UNION": "union", "DENSE_UNION": "union", "LIST": "list_"}
    names = {name: spelled.get(name, name.lower()) for name in FORMS}
    missing = [name for name in names.values() if f"`{name}`" not in text and f"`{name}(" not in text]
    assert missing == []


@pytest.mark.parametrize("kind", REFUSED, ids=str)
def test_a_refused_type_names_column_and_cure(kind: pa.DataType) -> None:
    with pytest.raises(UnsupportedType, match=r"'speed'.*columns=.*, or \w+"):
        column_kind(kind, name="speed")
    with pytest.raises(UnsupportedType, match="'speed'"):
        column_kind(pa.list_(kind), name="speed")


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if form_of(case.type) != "runs"])
@settings(max_examples=depth(5, 200), deadline=None)
@given(data=st.data())
def test_every_type_can_be_gathered(name: str, data: st.DataObject) -> None:
    array = data.draw(arrays_of(CASES[name]))
    order = data.draw(st.permutations(range(len(array))))
    taken = takeable(array).take(pa.array(order, pa.int64()))
    assert_same_rows(taken)
    plain = plain_rows(array)
    assert all(same(got, plain[row]) for got, row in zip(plain_rows(taken), order, strict=True))


def test_a_map_may_have_more_values_than_entries() -> None:
    # As pyarrow reads it from a file whose pages of keys are damaged.
    kind = pa.map_(pa.string(), pa.int32())
    entry = pa.struct([kind.key_field, kind.item_field])
    keys, values = pa.array(["a", "b"], pa.string()), pa.array([1, 2, 3], pa.int32())
    entries = pa.Array.from_buffers(entry, 2, [None], children=[keys, values])
    offsets = pa.py_buffer(np.array([0, 2, 2], np.int32))
    array = pa.Array.from_buffers(kind, 2, [None, offsets], children=[entries])
    array.validate(full=True)
    assert fast_rows(array) == [[("a", 1), ("b", 2)], []]


@pytest.mark.skipif(not (hasattr(pa, "json_") and hasattr(pa, "string_view")), reason="pyarrow without these types")
def test_an_extension_of_a_view_can_be_gathered() -> None:
    array = pa.ExtensionArray.from_storage(pa.json_(pa.string_view()), pa.array(["{}", None], pa.string_view()))
    taken = takeable(array).take(pa.array([1, 0]))
    assert objects(taken, column_kind(array.type, name="c")).tolist() == [None, "{}"]


def test_what_can_be_gathered_is_left_alone() -> None:
    for name, case in CASES.items():
        if "view" not in name:
            array = case.build([None])
            assert takeable(array) is array


# Memory


def test_numbers_are_a_view_of_arrows_memory() -> None:
    array = pa.array(np.arange(10, dtype=np.int32)).slice(3, 5)
    values, valid = fixed_view(array, Fixed(np.dtype(np.int32), ()))
    assert valid is None
    assert values.tolist() == [3, 4, 5, 6, 7]
    assert values.ctypes.data == array.buffers()[1].address + 12
    assert not values.flags.writeable


@pytest.mark.parametrize("kind", [pa.int64(), pa.timestamp("us"), pa.list_(pa.float32(), 4), pa.date64()], ids=str)
def test_views_stay_alive_without_the_array(kind: pa.DataType) -> None:
    width = 4 if kind.num_fields else 1
    flat = pa.array(range(40), kind.value_type if width == 4 else pa.int64())
    array = pa.FixedSizeListArray.from_arrays(flat, 4) if width == 4 else flat.view(kind)
    values, _ = fixed_view(array, column_kind(kind, name="c"))
    address = flat.buffers()[1].address
    assert values.ctypes.data == address
    del array, flat
    assert values.reshape(-1).astype(np.int64).tolist() == list(range(40))


def test_writable_writes_into_mutable_memory_and_copies_the_rest() -> None:
    kind = Fixed(np.dtype(np.uint8), ())
    own = np.arange(4, dtype=np.uint8)
    array = pa.Array.from_buffers(pa.uint8(), 4, [None, pa.py_buffer(own)])
    fixed_view(array, kind, writable=True)[0][0] = 99
    assert own[0] == 99
    text = bytes(range(4))
    array = pa.Array.from_buffers(pa.uint8(), 4, [None, pa.py_buffer(text)])
    values, _ = fixed_view(array, kind, writable=True)
    values[0] = 99
    assert text[0] == 0


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.stacked])
@pytest.mark.parametrize("nulls", [False, True])
def test_writable_is_kept_for_every_stacked_type(name: str, nulls: bool) -> None:
    array = CASES[name].example(nulls=nulls)
    values, _ = fixed_view(array, column_kind(array.type, name="c"), writable=True)
    assert values.flags.writeable


def test_parquet_memory_is_writable_without_a_copy(tmp_path) -> None:
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"x": np.arange(100.0), "i": np.arange(100)}), tmp_path / "a.parquet")
    table = pq.ParquetFile(tmp_path / "a.parquet").read_row_group(0)
    for column in table.itercolumns():
        array = column.chunk(0)
        values, _ = fixed_view(array, column_kind(array.type, name="x"), writable=True)
        assert values.ctypes.data == array.buffers()[1].address


@pytest.mark.parametrize("offset", range(17))
def test_booleans_honour_every_bit_offset(offset: int) -> None:
    flags = np.random.default_rng(3).random(64) < 0.5
    values, valid = fixed_view(pa.array(flags).slice(offset, 29), Fixed(np.dtype(np.bool_), ()))
    assert valid is None
    assert values.tolist() == flags[offset : offset + 29].tolist()


def test_list_rows_are_independent_of_the_chunk_and_writable() -> None:
    array = pa.array([[1.0, 2.0], None, [], [3.0]])
    rows = objects(array, column_kind(array.type, name="c"))
    rows[0][0] = 99
    assert array.to_pylist() == [[1.0, 2.0], None, [], [3.0]]
    assert rows[1] is None
    assert rows[2].shape == (0,)
    assert rows[2].dtype == np.float64


def test_null_lists_that_have_a_length_are_null() -> None:
    values = pa.array([1, 2, 3, 4, 5, 6], pa.int64())
    bits = pa.py_buffer(bytes([0b101]))
    offsets = pa.py_buffer(np.array([0, 2, 4, 6], np.int32))
    array = pa.Array.from_buffers(pa.list_(pa.int64()), 3, [bits, offsets], children=[values])
    rows = objects(array, column_kind(array.type, name="c"))
    assert [None if row is None else row.tolist() for row in rows] == [[1, 2], None, [5, 6]]
    stacked, valid = fixed_view(array, Fixed(np.dtype(np.int64), (2,)))
    assert stacked.tolist() == [[1, 2], [0, 0], [5, 6]]
    assert valid.tolist() == [True, False, True]


@pytest.mark.skipif(not hasattr(pa, "list_view"), reason="pyarrow without list views")
def test_list_views_that_overlap_do_not_share_rows() -> None:
    array = pa.ListViewArray.from_arrays([2, 0], [2, 4], pa.array([1, 2, 3, 4]))
    rows = objects(array, column_kind(array.type, name="c"))
    rows[0][:] = 9
    assert rows[1].tolist() == [1, 2, 3, 4]


# Nulls inside rows


def test_null_elements_of_stacked_rows_are_masked_one_by_one() -> None:
    array = pa.array([[1, None], None, [3, 4]], pa.list_(pa.int32(), 2))
    values, valid = fixed_view(array, column_kind(array.type, name="c"))
    assert valid.tolist() == [[True, False], [False, False], [True, True]]
    assert values.tolist() == [[1, 0], [0, 0], [3, 4]]


def test_null_elements_under_null_rows_leave_one_flag_a_row() -> None:
    array = pa.array([[1.0, 2.0], None], pa.list_(pa.float32(), 2))
    values, valid = fixed_view(array, column_kind(array.type, name="c"))
    assert valid.tolist() == [True, False]
    assert np.isnan(values[1]).all()


def test_mask_is_a_masked_array_exactly_where_something_is_null() -> None:
    values = np.arange(6).reshape(3, 2)
    assert mask(values, None) is values
    assert mask(values, np.ones(3, bool)) is values
    masked = mask(values, np.array([True, False, True]))
    assert masked.mask.tolist() == [[False, False], [True, True], [False, False]]
    assert masked.fill_value == 0
    assert masked.data.ctypes.data == values.ctypes.data


def test_a_null_inside_a_dictionary_is_null() -> None:
    numbers = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 0]), pa.array([5.0, None]))
    values, valid = fixed_view(numbers, column_kind(numbers.type, name="c"))
    assert valid.tolist() == [True, False, False, True]
    assert np.isnan(values).tolist() == [False, True, True, False]
    words = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 0]), pa.array(["a", None]))
    assert objects(words, column_kind(words.type, name="c")).tolist() == ["a", None, None, "a"]


def test_a_dictionary_makes_each_string_once() -> None:
    array = pa.array(["left", "right", "left"] * 5).dictionary_encode()
    rows = objects(array, column_kind(array.type, name="c"))
    assert rows.dtype == object
    assert rows[0] is rows[2]
    small = array.slice(1, 1)
    assert objects(small, column_kind(small.type, name="c")).tolist() == ["right"]


# Cells


@pytest.mark.parametrize(
    "name", [n for n, c in CASES.items() if form_of(c.type) in ("bytes", "text")] + ["dict_binary"]
)
@settings(max_examples=depth(15, 200), deadline=None)
@given(data=st.data())
def test_cells_agree_with_the_plain_twin(name: str, data: st.DataObject) -> None:
    array = data.draw(arrays_of(CASES[name]))
    cells, offsets, valid = cells_view(array)
    assert len(offsets) == len(array) + 1
    assert cells.dtype == np.uint8
    got = [cells[a:b].tobytes() for a, b in pairwise(offsets)]
    for row, want in enumerate(plain_rows(array)):
        if want is None:
            assert not valid[row]
        else:
            assert valid is None or valid[row]
            assert got[row] == (want.encode() if isinstance(want, str) else want)


def test_cells_of_nothing_but_empty_strings() -> None:
    array = pa.array([b"x", b"", b""]).slice(1)
    data, offsets, valid = cells_view(array)
    assert (offsets.tolist(), valid) == ([1, 1, 1], None)
    array = pa.Array.from_buffers(pa.binary(), 2, [None, pa.py_buffer(np.zeros(3, np.int32)), pa.py_buffer(b"")])
    data, offsets, valid = cells_view(array)
    assert (len(data), offsets.tolist(), valid) == (0, [0, 0, 0], None)
    assert objects(array, Objects(as_list=False, item=bytes)).tolist() == [b"", b""]


def test_cells_of_a_null_column_are_null() -> None:
    data, offsets, valid = cells_view(pa.nulls(3))
    assert (len(data), offsets.tolist(), valid.tolist()) == (0, [0] * 4, [False] * 3)


# Conversions


def converted(array: pa.Array, numpy_dtype, shape=None):
    kind = column_kind(array.type, numpy_dtype=numpy_dtype, shape=shape, name="c")
    return fixed_view(array, kind)[0] if isinstance(kind, Fixed) else objects(array, kind)


@pytest.mark.parametrize(
    ("values", "stored", "wanted", "result"),
    [
        ([1, 255], pa.int16(), np.uint8, [1, 255]),
        ([0, 2**40], pa.int64(), np.float32, [0.0, 2.0**40]),
        ([1.0, 3.0], pa.float64(), np.int8, [1, 3]),
        ([0, 1], pa.int8(), np.bool_, [False, True]),
        ([True, False], pa.bool_(), np.uint8, [1, 0]),
        ([1.5, -2.0], pa.float64(), np.float16, [1.5, -2.0]),
        ([2**63], pa.uint64(), np.uint64, [2**63]),
        (["7", "-3"], pa.string(), np.int32, [7, -3]),
        (["1.5", "nan"], pa.string(), np.float32, [1.5, np.nan]),
        ([Decimal("2.5")], pa.decimal128(9, 2), np.float64, [2.5]),
        ([Decimal("2.00")], pa.decimal128(9, 2), np.int8, [2]),
    ],
)
def test_numbers_become_the_fields_dtype(values, stored, wanted, result) -> None:
    got = converted(pa.array(values, stored), wanted)
    assert got.dtype == wanted
    np.testing.assert_array_equal(got, np.array(result, wanted))


@pytest.mark.parametrize(
    ("values", "stored", "wanted"),
    [
        ([0, 256], pa.int16(), np.uint8),
        ([0, -1], pa.int64(), np.uint64),
        ([0, 2**63], pa.uint64(), np.int64),
        ([0.0, 1.5], pa.float64(), np.int32),
        ([0.0, float("nan")], pa.float64(), np.int64),
        ([0.0, 2.0**64], pa.float64(), np.uint64),
        ([0.0, 2.0**63], pa.float64(), np.int64),
        ([0.0, 1e300], pa.float64(), np.float32),
        ([0, 70000], pa.int32(), np.float16),
        ([0, 2], pa.int8(), np.bool_),
        (["1", "x"], pa.string(), np.int32),
        (["1", "300"], pa.string(), np.uint8),
        (["1", "1e99"], pa.string(), np.float32),
        ([Decimal("1.0"), Decimal("2.5")], pa.decimal128(9, 1), np.int8),
        ([b"ok", b"\xff"], pa.binary(), np.str_),
        (["1", "one"], pa.string(), Decimal),
    ],
)
def test_what_does_not_fit_is_an_error_with_its_row(values, stored, wanted) -> None:
    with pytest.raises(CellError) as caught:
        converted(pa.array(values, stored), wanted)
    assert caught.value.index == 1


def test_what_stands_in_null_slots_need_not_fit() -> None:
    bits = pa.py_buffer(bytes([0b01]))
    array = pa.Array.from_buffers(pa.int16(), 2, [bits, pa.py_buffer(np.array([5, 999], np.int16))])
    assert converted(array, np.uint8).tolist() == [5, 0]
    rows = pa.FixedSizeListArray.from_arrays(pa.array([1, 2, 999, 4]), 2)
    rows = pa.Array.from_buffers(rows.type, 2, [bits], children=[rows.values])
    assert converted(rows, np.uint8).tolist() == [[1, 2], [0, 0]]


def test_a_misfit_inside_a_list_names_the_row_of_the_list() -> None:
    for kind in (pa.list_(pa.int64()), pa.list_(pa.int64(), 2)):
        with pytest.raises(CellError) as caught:
            converted(pa.array([[1, 2], None, [3, 256]], kind), np.uint8)
        assert caught.value.index == 2


def test_a_misfit_in_a_dictionary_counts_only_where_it_is_used() -> None:
    array = pa.array(["1", "x", "2"]).dictionary_encode()
    used = pa.DictionaryArray.from_arrays(pa.array([0, 2, 2]), array.dictionary)
    assert converted(used, np.int64).tolist() == [1, 2, 2]
    assert converted(used, Decimal).tolist() == [Decimal(1), Decimal(2), Decimal(2)]
    for wanted in (np.int64, Decimal):
        with pytest.raises(CellError) as caught:
            converted(array, wanted)
        assert caught.value.index == 1


@pytest.mark.parametrize(
    ("values", "stored", "wanted", "result"),
    [
        (["a", None], pa.string(), np.str_, ["a", None]),
        (["é", None], pa.string(), np.bytes_, ["é".encode(), None]),
        (["é".encode(), None], pa.binary(), np.str_, ["é", None]),
        ([b"x"], pa.large_binary(), bytes, [b"x"]),
        ([5, None], pa.int64(), np.str_, ["5", None]),
        ([5, None], pa.int64(), Decimal, [Decimal(5), None]),
        (["1.50", None], pa.string(), Decimal, [Decimal("1.50"), None]),
        ([Decimal("1.50")], pa.decimal128(9, 2), Decimal, [Decimal("1.50")]),
        ([Decimal("1.50")], pa.decimal128(9, 2), np.str_, ["1.50"]),
        ([None, None], pa.null(), np.str_, [None, None]),
        (["a"], pa.string(), np.object_, ["a"]),
        (["a"], pa.string(), "<U5", ["a"]),
    ],
)
def test_objects_become_what_the_field_says(values, stored, wanted, result) -> None:
    got = converted(pa.array(values, stored), wanted)
    assert got.dtype == object
    assert got.tolist() == result
    assert [type(value) for value in got] == [type(value) for value in result]


def test_instants_keep_the_stored_unit_or_take_the_one_asked_for() -> None:
    array = pa.array([1_000_000, None], pa.timestamp("us", tz="Europe/Zurich"))
    assert converted(array, np.datetime64).dtype == "M8[us]"
    assert converted(array, "M8[s]").astype(str).tolist() == ["1970-01-01T00:00:01", "NaT"]
    assert converted(array, "M8[ns]").astype(np.int64)[0] == 10**9
    assert converted(pa.array(["2024-01-02"]), np.datetime64).astype(str).tolist() == ["2024-01-02T00:00:00.000000"]
    for value, unit in ((1_500_000, "M8[s]"), (2**62, "M8[ns]")):
        with pytest.raises(CellError):
            converted(pa.array([value], pa.timestamp("us")), unit)


def test_null_columns_become_any_dtype() -> None:
    values, valid = fixed_view(pa.nulls(2), column_kind(pa.null(), numpy_dtype=np.int32, name="c"))
    assert values.tolist() == [0, 0]
    assert values.dtype == np.int32
    assert valid.tolist() == [False, False]


def test_lists_convert_their_values() -> None:
    rows = converted(pa.array([[1, 2], [], None], pa.list_(pa.int16())), np.uint8)
    assert [None if row is None else row.dtype for row in rows] == [np.uint8, np.uint8, None]
    assert converted(pa.array([["1", "2"]]), np.int32)[0].tolist() == [1, 2]
    assert converted(pa.array([["a"]]), np.str_)[0].tolist() == ["a"]
    nested = converted(pa.array([[[1], [2, 3]]], pa.list_(pa.list_(pa.int64()))), np.int8)
    assert [inner.dtype for inner in nested[0]] == [np.int8, np.int8]


def test_lists_of_one_length_are_stacked_where_the_schema_says_so() -> None:
    array = pa.array([[1.0, 2.0], None, [3.0, 4.0]], pa.list_(pa.float32()))
    kind = column_kind(array.type, numpy_dtype=np.float32, shape=(2,), name="c")
    assert kind == Fixed(np.dtype(np.float32), (2,))
    assert fixed_view(array, kind)[1].tolist() == [True, False, True]
    full = array.take([0, 2, 0])
    view, valid = fixed_view(full, kind)
    assert valid is None
    assert view.ctypes.data == full.values.buffers()[1].address
    with pytest.raises(CellError, match="wanted a list of 2 values, got 1") as caught:
        converted(pa.array([[1.0, 2.0], [3.0]]), np.float64, (2,))
    assert caught.value.index == 1
    assert converted(pa.array([[[1, 2, 3]], [[4, 5, 6]]]), np.int64, (1, 3)).shape == (2, 1, 3)
    assert isinstance(column_kind(array.type, shape=(None,), name="c"), Objects)


def test_stored_shapes_are_reshaped_or_refused() -> None:
    kind = pa.list_(pa.int8(), 6)
    assert converted(pa.array([range(6)], kind), np.int8, (2, 3)).tolist() == [[[0, 1, 2], [3, 4, 5]]]
    assert isinstance(column_kind(kind, numpy_dtype=np.int8, shape=(None,), name="c"), Fixed)


@pytest.mark.parametrize(
    ("stored", "shape"),
    [
        (pa.list_(pa.int8(), 6), (4,)),
        (pa.list_(pa.int8(), 6), (None, None)),
        (pa.list_(pa.int8()), ()),
        (pa.list_(pa.int8()), (None, 2)),
        (pa.list_(pa.list_(pa.int8())), (3,)),
        (pa.int8(), (1, 2)),
        (pa.int8(), (None,)),
        (pa.string(), (2,)),
    ],
    ids=str,
)
def test_a_shape_that_contradicts_the_file_is_refused(stored, shape) -> None:
    wanted = np.str_ if stored == pa.string() else np.int8
    with pytest.raises(SchemaError, match=r"'speed'.*schema declares the shape .*file stores "):
        column_kind(stored, numpy_dtype=wanted, shape=shape, name="speed")


@pytest.mark.parametrize(
    ("stored", "wanted"),
    [
        (pa.timestamp("us"), np.int64),
        (pa.string(), np.bool_),
        (pa.binary(), np.float32),
        (pa.int32(), np.datetime64),
        (pa.int32(), np.complex64),
        (pa.map_(pa.string(), pa.int32()), np.int32),
        (pa.list_(pa.int8(), 2), np.str_),
    ],
    ids=str,
)
def test_conversions_without_a_meaning_are_refused(stored, wanted) -> None:
    with pytest.raises(UnsupportedType, match=r"'speed'.*cannot become"):
        column_kind(stored, numpy_dtype=wanted, name="speed")


def test_a_numpy_dtype_that_is_none_is_named() -> None:
    with pytest.raises(SchemaError, match="'speed'"):
        column_kind(pa.int8(), numpy_dtype="no such type", name="speed")


def test_text_that_is_not_utf8_names_its_row_and_reads_as_bytes() -> None:
    offsets = pa.py_buffer(np.array([0, 1, 2], np.int32))
    array = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"a\xff")])
    with pytest.raises(CellError, match="UTF-8") as caught:
        converted(array, None)
    assert caught.value.index == 1
    assert converted(array, np.bytes_).tolist() == [b"a", b"\xff"]


@pytest.mark.parametrize("fast", [True, False])
@settings(max_examples=depth(15, 200), deadline=None)
@given(rows=st.lists(st.none() | st.text(max_size=6)), first=st.integers(0, 5))
def test_text_is_the_same_cut_by_hand_or_by_pyarrow(fast: bool, rows: list, first: int) -> None:
    # pytest's own monkeypatch is not reset between examples.
    with patch.object(arrow_memory, "_FAST_PYLIST", fast):
        array = pa.array(rows, pa.string()).slice(min(first, len(rows)))
        assert arrow_memory.texts(array) == rows[first:]


def test_decimals_are_exact_under_any_context() -> None:
    import decimal

    digits = [
        Decimal("12345678901234567.89"),
        Decimal("-0.01"),
        None,
        Decimal("9" * 35 + ".99"),
    ]
    with decimal.localcontext() as context:
        context.prec = 3
        for rows in (digits[:3], digits):
            array = pa.array(rows, pa.decimal128(38, 2))
            got = objects(array, column_kind(array.type, name="c")).tolist()
            assert [str(value) for value in got] == [str(value) for value in rows]


def test_no_conversion_imports_pandas(tmp_path) -> None:
    # A stand-in for pandas on the path fails the moment anything imports it.
    (tmp_path / "pandas").mkdir()
    (tmp_path / "pandas" / "__init__.py").write_text("raise RuntimeError('pandas was imported')")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from tests.codecs.arrow_cases import parquet_like\n"
        "from penstock.codecs.arrow import *\n"
        "for array in parquet_like():\n"
        "    kind = column_kind(array.type, name='c')\n"
        "    fixed_view(array, kind, writable=True) if isinstance(kind, Fixed) else objects(array, kind)\n"
        "assert 'pandas' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
