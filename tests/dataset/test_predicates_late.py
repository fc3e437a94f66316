"""Predicates applied on delivery: a state says which one it was taken under, as far as that can be told."""

import datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

import penstock
from penstock.dataset.predicates_late import PredicateFilter
from penstock.errors import StateMismatch
from penstock.predicates import (
    PredicateBase,
    in_intersection,
    in_lambda,
    in_negate,
    in_pseudorandom_split,
    in_reduce,
    in_set,
)


class Own(PredicateBase):
    """A predicate of the user's."""

    def __init__(self, field, most):
        self.field, self.most = field, most

    def get_fields(self):
        return [self.field]

    def do_include(self, values):
        return values[self.field] < self.most


class Narrower(in_set):
    def do_include(self, values):
        return super().do_include(values) and values["a"] > 0


def digest(predicate):
    return PredicateFilter(predicate, batched=False).digest


def first(answers):
    return answers[0]


DIFFERENT = [
    in_set([1, 2], "a"),
    in_set([1], "a"),
    in_set([-1], "a"),
    in_set([-2], "a"),
    in_set([1, 2], "b"),
    in_set(["1", "2"], "a"),
    in_set([b"1", b"2"], "a"),
    in_set([None], "a"),
    in_set([0.1], "a"),
    in_set([Decimal("0.1")], "a"),
    in_set([float("inf")], "a"),
    in_set([2**53], "a"),
    in_set([2**53 + 1], "a"),
    in_set([datetime.date(2024, 1, 1)], "a"),
    in_intersection([1, 2], "a"),
    in_negate(in_set([1, 2], "a")),
    in_pseudorandom_split([0.5, 0.5], 0, "a"),
    in_pseudorandom_split([0.5, 0.5], 1, "a"),
    in_pseudorandom_split([0.4, 0.6], 0, "a"),
    in_reduce([in_set([1], "a"), in_set([2], "b")], all),
    in_reduce([in_set([1], "a"), in_set([2], "b")], any),
    in_reduce([in_set([1], "a"), in_set([2], "b")], first),
    in_reduce([in_set([2], "b"), in_set([1], "a")], first),
    in_lambda(["a"], lambda a: a > 1),
    in_lambda(["b"], lambda b: b > 1),
]
SAME = [
    (in_set([1, 2], "a"), in_set({2.0, np.int8(1), True}, "a")),
    (in_set([datetime.date(2024, 1, 1)], "a"), in_set([np.datetime64("2024-01-01", "ns")], "a")),
    (in_set([1, float("nan")], "a"), in_set([1], "a")),
    (
        in_reduce([in_set([1], "a"), in_set([2], "b")], all),
        in_reduce((in_set([2], "b"), in_set([1], "a")), np.all),
    ),
    (in_pseudorandom_split([0.5, 0.5], 0, "a"), in_pseudorandom_split((0.5, np.float64(0.5)), np.int64(0), "a")),
    (in_lambda(["a"], lambda a: a > 1), in_lambda(["a"], lambda a: a > 2)),
    (Own("a", 3), Own("a", 4)),
    (Narrower([1], "a"), Narrower([2], "a")),
]


def test_shipped_predicates_that_differ_have_other_digests():
    assert len({digest(predicate) for predicate in DIFFERENT}) == len(DIFFERENT)


@pytest.mark.parametrize(("one", "other"), SAME)
def test_the_same_in_other_words_and_other_functions_have_one_digest(one, other):
    assert digest(one) == digest(other)


def test_digests_are_pinned():
    # Users resume across versions: a digest that changes refuses their states.
    pinned = in_reduce([in_set([1, "x", None], "a"), in_negate(in_pseudorandom_split([0.8, 0.2], 1, "b"))], all)
    assert digest(pinned) == "eaaf8fb185ad5a0e7f3fcf922f1698c2"


@pytest.fixture
def ds(tmp_path):
    penstock.write(pa.table({"a": range(40), "b": [i % 3 for i in range(40)]}), tmp_path / "d", row_group_bytes=80)
    return penstock.open(tmp_path / "d")


def state_of(ds, steps=2):
    with ds.loader(batch_size=4, shuffle=True) as loader:
        running = iter(loader)
        for _ in range(steps):
            next(running)
        return loader.state_dict()


def load(ds, state):
    with ds.loader(batch_size=4, shuffle=True) as loader:
        loader.load_state_dict(state)
        return [i for batch in loader for i in batch["a"].tolist()]


def test_a_state_under_another_predicate_is_refused(ds):
    state = state_of(ds.where(in_set([0, 1], "b"), exact=False))
    assert len(load(ds.where(in_set({1, 0}, "b"), exact=False), state)) > 0
    for other in (ds.where(in_set([0, 2], "b"), exact=False), ds):
        with pytest.raises(StateMismatch, match=r"predicate of the state is .*exact=False"):
            load(other, state)


def test_functions_are_not_compared_and_states_without_the_entry_load(ds):
    under = ds.where(in_lambda(["b"], lambda b: b > 0), exact=False)
    state = state_of(under)
    other = ds.where(in_lambda(["b"], lambda b: b < 2), exact=False)
    assert len(load(other, state)) > 0
    older = {name: value for name, value in state.items() if name != "predicate"}
    assert load(ds.where(in_set([0, 2], "b"), exact=False), older) is not None
    assert "predicate" not in state_of(ds)
    with pytest.raises(StateMismatch, match="damaged state: entry 'predicate'"):
        load(under, state | {"predicate": 3})


def test_predicates_one_after_the_other_are_both_digested(ds):
    both = ds.where(in_set([0, 1], "b"), exact=False).where(in_set(range(30), "a"), exact=False)
    turned = ds.where(in_set(range(30), "a"), exact=False).where(in_set([1, 0], "b"), exact=False)
    assert load(both, state_of(turned)) == load(turned, state_of(both))
    with pytest.raises(StateMismatch, match="predicate"):
        load(ds.where(in_set([0, 1], "b"), exact=False), state_of(both))
