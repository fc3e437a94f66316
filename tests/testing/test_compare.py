"""Bit-for-bit comparison tells apart what training would notice."""

import decimal

import numpy as np
import pytest

from penstock.testing import assert_same, difference
from penstock.testing.compare import freeze


@pytest.mark.parametrize(
    ("one", "other", "text"),
    [
        ({"a": np.arange(3)}, {"a": np.array([0, 1, 3])}, "['a']: 2 against 3 at (2,)"),
        ({"a": np.arange(3)}, {"b": np.arange(3)}, "keys: ['a'] against ['b']"),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, "keys"),
        (np.zeros(2, np.float32), np.zeros(2), "<f4 of shape (2,) against <f8"),
        (np.zeros((2, 1)), np.zeros(2), "shape (2, 1) against <f8 of shape (2,)"),
        (np.array([0.0]), np.array([-0.0]), "at (0,)"),
        ([1, None], [1, 2], "[1]: NoneType against int"),
        ([1], [1, 2], "1 items against 2"),
        (1, True, "int against bool"),
        (1, 1.0, "int against float"),
        ("a", "b", "'a' against 'b'"),
        (np.array(["x", None], object), np.array(["x", "y"], object), "[1]: NoneType against str"),
        (np.array([["x"]], object), np.array(["x"], object), "shape (1, 1) against (1,)"),
        (np.ma.array([1, 2], mask=[0, 1]), np.ma.array([1, 2], mask=[0, 0]), "mask of value"),
        (np.ma.array([1, 2], mask=[0, 1]), np.ma.array([1, 3], mask=[0, 1]), "2 against 3"),
        (np.ma.array([1]), np.array([1]), "masked against array"),
        (decimal.Decimal("1.0"), decimal.Decimal("1.5"), "Decimal('1.0')"),
    ],
)
def test_differences_are_found_and_named(one: object, other: object, text: str) -> None:
    found = difference(one, other)
    assert found is not None
    assert text in found
    with pytest.raises(AssertionError):
        assert_same(one, other)


def test_equal_values_are_the_same() -> None:
    batch = {
        "nan": np.array([np.nan, 1]),
        "when": np.array(["NaT", "2024-01-01"], "M8[us]"),
        "ragged": [np.arange(2), None, [1, [2.5, "x"]]],
        "text": np.array(["a", None, b"b", decimal.Decimal(1)], object),
        "mask": np.ma.array([1, 2], mask=[True, False]),
    }
    copy = {name: value.copy() for name, value in batch.items()}
    assert difference(batch, copy) is None
    assert_same(batch, copy)


def test_a_frozen_batch_does_not_change_with_its_arrays() -> None:
    values = np.arange(3)
    before = freeze({"a": values})
    values[0] = 9
    assert before != freeze({"a": values})


def test_anything_with_array_is_compared_by_its_values() -> None:
    class Tensor:
        def __init__(self, *values: int) -> None:
            self.values = values

        def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
            return np.array(self.values)

    assert difference(Tensor(1, 2), Tensor(1, 2)) is None
    assert "at (1,)" in str(difference(Tensor(1, 2), Tensor(1, 3)))
