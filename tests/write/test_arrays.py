"""The quick ways to Arrow arrays agree with `pa.array`, their plain twin."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.write.arrays import LEAST_BYTES, MOST_BYTES, BufferPool, quick_array, quick_column
from tests.depth import depth

INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
KINDS = [*INTEGERS, pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.binary(), pa.date32(), pa.float16()]
VALUES = st.one_of(
    st.integers(-(2**65), 2**65),
    st.integers(-100, 100),
    st.floats(width=32),
    st.booleans(),
    st.text(max_size=5),
    st.binary(max_size=5),
)


def lists() -> Any:
    """Lists of one kind of value mostly, as columns are, with and without nulls; and mixed ones."""
    kinds = [st.integers(-100, 100), st.integers(), st.floats(), st.booleans(), st.text(max_size=5), st.binary()]
    return st.one_of(*(st.lists(st.one_of(kind, st.none())) for kind in kinds), *map(st.lists, kinds), st.lists(VALUES))


@settings(max_examples=depth(50, 2000), deadline=None)
@given(cells=lists(), kind=st.sampled_from(KINDS))
def test_lists_become_what_arrow_makes_of_them(cells: list[Any], kind: pa.DataType) -> None:
    quick = quick_array(cells, kind)
    if quick is not None:
        quick.validate(full=True)
        plain = pa.array(cells, kind)
        same = [repr(value) for value in quick.to_pylist()] == [repr(value) for value in plain.to_pylist()]
        assert same
        assert (quick.type, quick.null_count) == (plain.type, plain.null_count)


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        ([1, None, 3], pa.int8()),
        ([1.5, None], pa.float64()),
        ([True, False, None] * 5, pa.bool_()),
        (["\u00e9", None, ""], pa.string()),
        ([b"ab", None, b""], pa.binary()),
    ],
)
def test_plain_lists_take_the_quick_way(cells: list[Any], kind: pa.DataType) -> None:
    quick = quick_array(cells, kind)
    assert quick is not None
    assert quick.equals(pa.array(cells, kind))


@pytest.mark.parametrize(
    ("cells", "kind"), [([300], pa.int8()), ([1.5], pa.int8()), ([True], pa.int8()), ([], pa.int8())]
)
def test_what_is_not_plain_is_left_to_arrow(cells: list[Any], kind: pa.DataType) -> None:
    assert quick_array(cells, kind) is None


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "uint16", "int32", "uint32", "int64", "float16", "float64"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("step", [1, 3])
def test_columns_become_what_arrow_makes_of_them(dtype: str, masked: bool, step: int) -> None:
    values = (np.arange(57) % 5).astype(dtype)[::step]
    mask = np.arange(len(values)) % 4 == 0 if masked else None
    stored = {"uint8": pa.int16(), "uint16": pa.int32(), "uint32": pa.int64(), "float16": pa.float32()}.get(dtype)
    kind = stored or pa.from_numpy_dtype(values.dtype)
    quick = quick_column(values, kind, mask)
    quick.validate(full=True)
    assert quick.equals(pa.array(values.astype(kind.to_pandas_dtype()), kind, mask=mask))


def test_memory_of_copies_is_used_again() -> None:
    spares = BufferPool()
    value = np.arange(LEAST_BYTES, dtype=np.int32).reshape(4, -1)
    first = spares.copy(value)
    assert np.array_equal(first, value)
    address = first.ctypes.data
    spares.give_back([first])
    second = spares.copy(value[:3] + 1)
    assert np.array_equal(second, value[:3] + 1)
    assert (second.ctypes.data == address) == (second.nbytes > value.nbytes - LEAST_BYTES)
    spares.give_back([None, "text", value, value[::2], np.zeros(3), np.asfortranarray(np.zeros((300, 300)))])
    assert spares.copy(np.asfortranarray(np.zeros((300, 300)))).flags.f_contiguous


def test_memory_kept_is_bounded() -> None:
    spares = BufferPool()
    copies = [spares.copy(np.zeros(8 << 20, np.uint8)) for _ in range(12)]
    spares.give_back(copies)
    assert spares._bytes == MOST_BYTES
    del copies
    assert all(spares.copy(np.ones(8 << 20, np.uint8)).all() for _ in range(12))
