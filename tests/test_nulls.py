"""The option `nulls=` of all frameworks: what it may be, and what counts as a null."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.errors import ColumnNotFound, PlanError
from penstock.nulls import check_nulls, has_null


def test_words_and_names():
    assert check_nulls("mask", ["a"], owner="here") is None
    assert check_nulls("error", ["a"], owner="here") == frozenset()
    assert check_nulls(("a", "b"), ["a", "b", "c"], owner="here") == {"a", "b"}
    assert check_nulls(["later"], None, owner="here") == {"later"}


@pytest.mark.parametrize("wrong", [None, 5, "masks", ["a", 3], {"a", None}])
def test_what_is_neither_is_refused(wrong):
    with pytest.raises(PlanError, match="here: nulls must be 'mask', 'error' or a list of columns"):
        check_nulls(wrong, ["a"], owner="here")


def test_a_name_that_is_no_column_is_refused_with_one_that_is():
    with pytest.raises(ColumnNotFound, match="here: nulls= names 'imagee', which is no column; did you mean 'image'"):
        check_nulls(["imagee"], ["image", "id"], owner="here")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.arange(3), False),
        (np.array([1.0, np.nan]), False),
        (np.ma.masked_array([1, 2], [False, True]), True),
        (np.ma.masked_array([1, 2], [False, False]), False),
        (np.array(["a", None], object), True),
        (np.array(["a", "b"], object), False),
        ([np.arange(2), None], True),
        ([np.arange(2), np.ma.masked_array([1, 2], [False, True])], True),
        ([["a"], [["b", None]]], True),
        ([{"x": {"y": None}}], True),
        ([[("k", 1)], ()], False),
        ("text", False),
    ],
)
def test_nulls_are_found_wherever_they_are(values, expected):
    assert has_null(values) is expected
