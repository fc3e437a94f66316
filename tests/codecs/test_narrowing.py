"""Numbers that do not fit a dtype are told from those that do."""

import hypothesis.extra.numpy as npst
import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from penstock.codecs.row_values import keeps


@given(
    values=npst.arrays(st.sampled_from([np.int64, np.uint64, np.int16]), st.integers(0, 5)),
    dtype=st.sampled_from(["i1", "u1", "i2", "u4", "i8", "u8"]),
)
def test_whole_numbers_are_kept_where_each_is_the_same(values, dtype):
    found = values.astype(dtype)
    assert keeps(values, found) == (found.tolist() == values.tolist())


def test_floats_may_be_rounded_and_not_become_infinite():
    values = np.array([1.1, np.nan, np.inf, -np.inf])
    assert keeps(values, values.astype(np.float32))
    with np.errstate(over="ignore"):
        assert not keeps(np.array([1e300]), np.array([1e300]).astype(np.float32))
