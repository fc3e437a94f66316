"""The pinned permutations and the choice of lanes."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.errors import PlanError
from penstock.plan import Cursor, Order, Share, choose_lanes, permutation, plan_epoch
from penstock.plan.order import typical_rows
from penstock.plan.permutation import Words, stable_argsort, stable_argsort_part
from penstock.plan.shuffled import LADDER
from tests.depth import depth
from tests.plan import plain

COUNTS = [3, 0, 5, 2, 4]


# Changing anything below breaks runs that resume across versions of Penstock: a new order needs a new name.
def test_permutations_are_pinned():
    assert permutation(8, seed=42, epoch=0, a=0, b=0, kind=0).tolist() == [7, 1, 6, 4, 3, 5, 0, 2]
    assert permutation(8, seed=2**64 - 1, epoch=3, a=5, b=2, kind=1).tolist() == [6, 2, 1, 4, 7, 3, 5, 0]


GOLDEN = {
    ("natural", 0, None, None): "0.0 0.1 0.2 2.0 2.1 2.2 2.3 2.4 3.0 3.1 4.0 4.1 4.2 4.3",
    ("groups", 0, None, None): "2.0 2.1 2.2 2.3 2.4 4.0 4.1 4.2 4.3 3.0 3.1 0.0 0.1 0.2",
    ("groups", 1, None, None): "4.0 4.1 4.2 4.3 2.0 2.1 2.2 2.3 2.4 3.0 3.1 0.0 0.1 0.2",
    ("lanes", 0, 3, 4): "2.0 4.0 0.2 2.1 4.1 0.0 2.3 4.2 0.1 2.2 3.0 3.1 2.4 4.3",
    ("lanes", 1, 3, 4): "4.0 2.2 3.1 4.3 2.1 0.0 2.0 2.4 0.2 4.1 2.3 0.1 4.2 3.0",
    ("lanes", 0, 1, 14): "2.2 3.1 4.0 4.2 4.3 2.1 0.0 3.0 2.3 0.2 2.4 2.0 0.1 4.1",
}


@pytest.mark.parametrize(("kind", "epoch", "lanes", "block"), GOLDEN)
def test_orders_are_pinned(kind, epoch, lanes, block):
    order = Order(kind, 7, lanes, block)
    cursor = Cursor.start(epoch, order, sum(COUNTS))
    plan = plan_epoch(COUNTS, order=order, cursor=cursor, share=Share(0, 1, 4, "uneven", False))
    got = " ".join(f"{c}.{r}" for c, r in zip(*plan.rows(0, plan.num_items), strict=True))
    assert got == GOLDEN[kind, epoch, lanes, block]


def test_a_large_order_is_pinned():
    order = Order("lanes", 2**64 - 1, 48, 1000)
    plan = plan_epoch([1000] * 1000, order=order, cursor=Cursor(5, position=0), share=Share(0, 1, 4, "uneven", False))
    chunk, row = plan.rows(0, 1_000_000)
    digest = hashlib.sha256((chunk * 1000 + row).astype("<i8").tobytes()).hexdigest()
    assert digest == "e41d0ee7dec2bf43ad8667c5e0ba2cd0ce032bb3b1e10751391f4351de243b89"


@given(n=st.integers(0, 300), seed=st.integers(0, 2**64 - 1), epoch=st.integers(0, 2**64 - 1), a=st.integers(0, 9))
@settings(max_examples=depth(50, 1000), deadline=None)
def test_permutation_equals_the_twin(n, seed, epoch, a):
    got = permutation(n, seed=seed, epoch=epoch, a=a, b=2, kind=1)
    assert got.dtype == np.int64
    assert got.tolist() == plain.permutation(n, seed, epoch, a, 2, 1)


@given(
    words=st.lists(
        st.integers(0, 2**64 - 1) | st.integers(0, 40) | st.sampled_from([5 << 60, (5 << 60) + 1]), max_size=99
    )
)
@settings(max_examples=depth(50, 1000), deadline=None)
def test_fast_argsort_is_the_stable_one(words):
    array = np.array(words, dtype=np.uint64)
    assert stable_argsort(array).tolist() == np.argsort(array, kind="stable").tolist()


@given(n=st.integers(1, 5000), data=st.data())
@settings(max_examples=depth(50, 1000), deadline=None)
def test_a_part_of_the_argsort_is_that_part(n, data):
    words = Words(3, 4).draw(n, a=data.draw(st.integers(0, 99)), b=0, kind=1)
    first = data.draw(st.integers(0, n))
    last = data.draw(st.integers(first, n))
    assert stable_argsort_part(words, first, last).tolist() == np.argsort(words, kind="stable")[first:last].tolist()


def test_a_part_is_right_where_words_are_not_uniform():
    for words in (np.zeros(999, np.uint64), np.full(999, 2**64 - 1, np.uint64), np.arange(999, dtype=np.uint64)[::-1]):
        assert stable_argsort_part(words, 10, 30).tolist() == np.argsort(words, kind="stable")[10:30].tolist()


def test_words_are_those_of_a_new_generator():
    words = Words(2**64 - 1, 2**40)
    for a, b, kind in ((0, 0, 0), (7, 2**33, 1), (7, 2**33, 1)):
        key, counter = np.array([2**64 - 1, 2**40], np.uint64), np.array([0, a, b, kind], np.uint64)
        fresh = np.random.Philox(key=key, counter=counter).random_raw(13)
        assert words.draw(13, a=a, b=b, kind=kind).tolist() == fresh.tolist()


@pytest.mark.parametrize("seed", [-1, 2**64, 1.0, True, "7", None])
def test_a_seed_outside_64_bits_is_refused(seed):
    with pytest.raises(PlanError, match=r"seed must be an integer in \[0, 2\*\*64\)"):
        Order("natural", seed)


def test_seeds_at_the_ends_are_accepted():
    assert Order("natural", 0).seed == 0
    assert Order("natural", 2**64 - 1).seed == 2**64 - 1


@pytest.mark.parametrize("lanes", [0, -1, 2**20 + 1, 2.0, True])
def test_lanes_that_cannot_be_are_refused(lanes):
    with pytest.raises(PlanError, match="lanes must be an integer from 1"):
        choose_lanes([3], row_bytes=8, shuffle_bytes=100, lanes=lanes)


def test_orders_that_cannot_be_are_refused():
    with pytest.raises(PlanError, match="order must be one of"):
        Order("random", 0)
    with pytest.raises(PlanError, match="at least one row"):
        Order("lanes", 0, 3, 0)
    with pytest.raises(PlanError, match="has no lanes"):
        Order("groups", 0, 3, 4)


@given(
    counts=st.lists(st.integers(0, 100), max_size=60) | st.integers(1, 4000).map(lambda n: [1000] * n),
    row_bytes=st.integers(1, 5000),
    shuffle_bytes=st.integers(1, 10**8) | st.just(1 << 30),
    lanes=st.none() | st.integers(1, 900),
    parts=st.booleans(),
)
@example(counts=[10] * 48, row_bytes=1, shuffle_bytes=400, lanes=None, parts=True)  # 8 lanes without parts
@settings(max_examples=depth(50, 1000), deadline=None)
def test_lanes_follow_the_rule(counts, row_bytes, shuffle_bytes, lanes, parts):
    rows = [n for n in counts if n]
    total, w = sum(rows), shuffle_bytes // row_bytes
    typical = -(-sum(n * n for n in rows) // total) if total else 0
    got = choose_lanes(counts, row_bytes=row_bytes, shuffle_bytes=shuffle_bytes, lanes=lanes, parts=parts)
    if lanes is None and total <= min(w, 2**20):
        assert got == (1, max(1, total))
        return
    allowed = [n for n in LADDER if n <= len(rows) // (12 if parts else 4) and 2 * n * typical <= w]
    expected = lanes or (allowed[-1] if allowed else 1)
    assert got == (expected, max(1, typical, min(w // expected - typical, 2**20)))


def test_typical_rows_do_not_overflow():
    assert typical_rows(np.array([2**40, 2**40])) == 2**40
    assert typical_rows(np.array([], dtype=np.int64)) == 0
    assert typical_rows(np.array([1, 1, 4])) == 3  # 18 / 6


def test_rows_of_a_fraction_of_a_byte_count_as_one():
    assert choose_lanes([10], row_bytes=0.125, shuffle_bytes=10, lanes=None) == (1, 10)
    assert choose_lanes([10], row_bytes=0, shuffle_bytes=10, lanes=None) == (1, 10)
    with pytest.raises(PlanError, match="shuffle_bytes must be at least 1"):
        choose_lanes([10], row_bytes=1, shuffle_bytes=0, lanes=None)
