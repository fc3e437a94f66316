"""Times change units the same way with every NumPy: what fits is exact, what does not is seen on the way back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codecs.times import in_unit, in_unit_or_nat

WHOLE = st.integers(-(2**63) + 1, 2**63 - 1)
NUMBERS = st.lists(WHOLE | st.integers(-100_000, 100_000) | st.just(-(2**63)), max_size=9)


@pytest.mark.parametrize("kind", ["M", "m"])
@pytest.mark.parametrize(("unit", "factor"), [("us", 1000), ("s", 10**9), ("D", 86400 * 10**9)])
@given(numbers=NUMBERS)
def test_what_fits_is_exact_and_the_rest_is_nat(kind, unit, factor, numbers):
    values = np.array(numbers, np.int64).view(f"{kind}8[{unit}]")
    found = in_unit_or_nat(values, np.dtype(f"{kind}8[ns]"))
    for number, one, two in zip(numbers, found, in_unit(values, f"{kind}8[ns]"), strict=True):
        exact = number * factor
        if number == -(2**63) or abs(exact) > 2**63 + factor:
            assert np.isnat(one)
        elif abs(exact) < 2**63 - 3 * factor:
            assert int(one.view(np.int64)) == exact == int(two.view(np.int64))
        back = two.astype(values.dtype)
        if abs(exact) > 2**63 and number != -(2**63):
            assert np.isnat(two) or back != np.array(number).view(values.dtype)


def test_nothing_is_copied_where_the_unit_is_the_same():
    values = np.array([1, 2], "M8[ns]")
    assert in_unit(values, "M8[ns]") is values
