"""Predicates and the values they compare: what each says of one row, and which arguments it takes."""

import datetime
import hashlib
import pickle
import sys
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.dataset.predicates import is_predicate
from penstock.dataset.value_keys import KeySet, key_of
from penstock.errors import SchemaError
from penstock.predicates import (
    PredicateBase,
    in_intersection,
    in_lambda,
    in_negate,
    in_pseudorandom_split,
    in_reduce,
    in_set,
)
from tests.depth import depth

NAN = float("nan")


def is_even(value):
    return value is not None and value % 2 == 0


class Odd(PredicateBase):
    """A user's own predicate, which works on a row and on a DataFrame."""

    def __repr__(self):
        return "Odd()"

    def get_fields(self):
        return {"id"}

    def do_include(self, values):
        return values["id"] % 2 == 1


class TestValues:
    @pytest.mark.parametrize(
        "same",
        [
            [1, np.int8(1), np.float32(1), 1.0, True, np.bool_(True), Decimal(1), np.array(1)],
            ["a", np.str_("a")],
            [b"a", np.bytes_(b"a")],
            [None, np.ma.masked],
            [
                datetime.date(2024, 2, 1),
                datetime.datetime(2024, 2, 1),
                datetime.datetime(2024, 2, 1, 2, tzinfo=datetime.timezone(datetime.timedelta(hours=2))),
                np.datetime64("2024-02-01"),
                np.datetime64("2024-02"),
                np.datetime64("2024-02-01", "ns"),
            ],
            [
                datetime.timedelta(hours=1),
                datetime.time(1),
                np.timedelta64(60, "m"),
                np.timedelta64(3_600_000_000, "us"),
            ],
        ],
    )
    def test_what_is_equal_has_one_key(self, same):
        assert len(set(map(key_of, same))) == 1

    def test_pandas_timestamps_too(self):
        pd = pytest.importorskip("pandas")
        moment = pd.Timestamp("2024-02-01 10:00:00.123456789", tz="Europe/Berlin")
        assert key_of(moment) == key_of(np.datetime64("2024-02-01T09:00:00.123456789"))
        assert pd.NaT not in KeySet([pd.NaT])

    def test_nan_and_nat_equal_nothing(self):
        values = KeySet([NAN, np.datetime64("NaT", "s"), 1.0])
        for never in (NAN, np.float32("nan"), np.datetime64("NaT", "s"), np.timedelta64("NaT", "s")):
            assert never not in values
        assert not values.inside(np.array([NAN])).any()

    @given(
        st.lists(st.one_of(st.integers(-(2**65), 2**65), st.floats(), st.booleans(), st.decimals(-5, 5, places=1))),
        st.lists(st.integers(-3, 3)) | st.lists(st.integers(-(2**63), 2**63 - 1)),
        st.sampled_from(["i1", "u1", "i8", "u8", "f2", "f4", "f8", "?"]),
    )
    @settings(max_examples=depth(50, 2000), deadline=None)
    def test_arrays_are_looked_up_as_single_values_are(self, members, numbers, dtype):
        members += numbers[::2]
        with np.errstate(over="ignore"):
            values = np.array(numbers, np.int64).astype(dtype)
        found = KeySet(members).inside(values)
        assert found.tolist() == [any(key_of(v) == m for m in members) for v in values]

    def test_bounds(self):
        values = KeySet([3, 7.5, "b", datetime.date(2024, 1, 1)])
        assert [values.any_between(*pair) for pair in [(0, 2), (3, 3), (4, 7), (4, 8), (8, 9)]] == [
            False,
            True,
            False,
            True,
            False,
        ]
        assert not values.any_between("c", "d")
        assert not values.any_between(b"a", b"z")
        assert values.any_between("a", 3)  # cannot be told
        assert not values.any_between(key_of(np.datetime64("2024-01-02")), key_of(np.datetime64("2025-01-02")))


class TestConstruction:
    @pytest.mark.parametrize(
        ("make", "says"),
        [
            (lambda: in_lambda("id", is_even), "list of field names"),
            (lambda: in_lambda({"id"}, is_even), "list of field names"),
            (lambda: in_negate(is_even), "predicate is wanted"),
            (lambda: in_negate(in_set), "predicate is wanted"),
            (lambda: in_reduce([in_set([1], "a"), 3], all), "predicate is wanted"),
            (lambda: in_set("abc", "a"), r"list or set of values; got 'abc'"),
            (lambda: in_set(3, "a"), "list or set of values"),
            (lambda: in_set([3], 4), "by text"),
            (lambda: in_pseudorandom_split([0.5, 0.5], 2, "a"), r"subset_index must be in \[0, 2\)"),
            (lambda: in_pseudorandom_split([0.5, 0.5], -1, "a"), "subset_index"),
            (lambda: in_pseudorandom_split([80, 20], 0, "a"), "add up to at most 1"),
        ],
    )
    def test_wrong_arguments_are_value_errors(self, make, says):
        with pytest.raises(ValueError, match=says):
            make()

    def test_what_is_called_must_be_callable(self):
        for make in (lambda: in_lambda(["a"], 3), lambda: in_reduce([], 3)):
            with pytest.raises(TypeError, match="takes a function"):
                make()

    def test_petastorms_keyword_names(self):
        in_set(inclusion_values=[1], predicate_field="a")
        in_intersection(inclusion_values=[1], _predicate_field="a")
        in_lambda(predicate_fields=["a"], predicate_func=is_even, state_arg=3)
        in_negate(predicate=in_set([1], "a"))
        in_reduce(predicate_list=[in_set([1], "a")], reduce_func=all)
        in_pseudorandom_split(fraction_list=[1.0], subset_index=0, predicate_field="a")

    def test_predicates_pickle(self):
        everything = in_reduce(
            [
                in_set(range(3), "id"),
                in_intersection([1], "many"),
                in_lambda(["id"], is_even),
                in_negate(in_pseudorandom_split([0.5, 0.5], 0, "id")),
                Odd(),
            ],
            any,
        )
        again = pickle.loads(pickle.dumps(everything))
        row = {"id": 4, "many": [7, 1]}
        assert repr(again) == repr(everything)
        assert again.do_include(row) is True
        assert again.is_any

    def test_what_is_a_predicate(self):
        class Duck:
            def get_fields(self):
                return ["a"]

            def do_include(self, values):
                return True

        assert is_predicate(Duck())
        assert not is_predicate(Duck)
        assert not is_predicate([("a", "=", 1)])


class TestOneRow:
    def test_in_set(self):
        assert in_set(["a", "b"], "f").do_include({"f": np.str_("b"), "g": 1})
        assert not in_set([1, 2], "f").do_include({"f": np.int64(3)})
        assert not in_set([1], "f").do_include({"f": None})
        assert in_set([1, None], "f").do_include({"f": None})
        with pytest.raises(SchemaError, match="use in_intersection"):
            in_set([1], "f").do_include({"f": np.array([1])})

    def test_in_intersection(self):
        assert in_intersection([3, 9], "f").do_include({"f": np.array([[1, 2], [3, 4]])})
        assert in_intersection(["x"], "f").do_include({"f": ["y", "x"]})
        assert in_intersection(["xy"], "f").do_include({"f": "xy"})
        assert not in_intersection(["x"], "f").do_include({"f": "xy"})
        assert not in_intersection([3], "f").do_include({"f": np.array([])})
        assert not in_intersection([3], "f").do_include({"f": None})
        with pytest.raises(ValueError, match="use in_set"):
            in_intersection([3], "f").do_include({"f": np.int64(3)})

    def test_in_lambda_gets_its_fields_in_order_and_its_state(self):
        seen = in_lambda(["b", "a"], lambda b, a, state: (b, a, state) == (2, 1, {"x": 3}), {"x": 3})
        assert seen.do_include({"a": 1, "b": 2, "c": 9})
        assert seen.get_fields() == ["b", "a"]

    def test_in_reduce_and_in_negate(self):
        parts = [in_set([1], "a"), in_set([1], "b")]
        assert not in_reduce(parts, all).do_include({"a": 1, "b": 2})
        assert in_reduce(parts, any).do_include({"a": 1, "b": 2})
        assert in_reduce(parts, lambda answers: answers == [True, False]).do_include({"a": 1, "b": 2})
        assert in_negate(in_reduce(parts, all)).do_include({"a": 1, "b": 2})
        assert in_reduce(parts, all).get_fields() == {"a", "b"}

    def test_the_split_is_petastorms_to_the_bucket(self):
        fractions = [0.3, 0.4, 0.1, 0.2]
        for value in [*map(str, range(200)), np.int64(7), None, 1.5, b"x"]:
            bucket = int(hashlib.md5(str(value).encode("utf-8")).hexdigest(), 16) % sys.maxsize
            for index in range(4):
                low, high = sum(fractions[:index]), sum(fractions[: index + 1])
                expected = low * (sys.maxsize - 1) <= bucket < high * (sys.maxsize - 1)
                assert in_pseudorandom_split(fractions, index, "f").do_include({"f": value}) == expected
        with pytest.raises(ValueError, match="no field 'f' to split by"):
            in_pseudorandom_split(fractions, 0, "f").do_include({"g": 1})

    def test_the_split_is_pinned(self):
        inside = [i for i in range(40) if in_pseudorandom_split([0.5, 0.5], 0, "f").do_include({"f": i})]
        assert inside == [0, 1, 3, 5, 6, 10, 12, 13, 19, 20, 21, 22, 25, 34, 37, 38]
