"""The draws of a mix: pinned, pure, fair, and counted exactly to the end."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import PlanError, StateMismatch
from penstock.plan.draws import BLOCK, Deck, Draws
from tests.depth import depth

ALL = [True, True, True]


def picks(draws, n, *, pass_number=0, among=ALL):
    """The first n picks."""
    blocks = (draws.block(number, pass_number=pass_number, among=among).tolist() for number in itertools.count())
    return list(itertools.islice(itertools.chain.from_iterable(blocks), n))


def test_the_draws_are_pinned():
    # Users resume training across versions: change these only with a new order name (NAME in plan/draws.py).
    draws = Draws([5, 3, 2], 7)
    assert picks(draws, 24) == [0, 2, 0, 0, 0, 0, 2, 0, 1, 1, 0, 0, 2, 2, 1, 0, 1, 0, 2, 2, 0, 0, 2, 1]
    assert picks(draws, 12, pass_number=1) == [0, 1, 0, 2, 1, 1, 0, 0, 1, 1, 1, 0]
    assert picks(draws, 12, among=[True, False, True]) == [0, 2, 0, 0, 0, 0, 2, 0, 0, 2, 0, 0]
    assert draws.block(1, pass_number=0, among=ALL)[:12].tolist() == [0, 1, 2, 0, 0, 0, 0, 0, 0, 1, 2, 2]
    assert picks(Draws([5, 3, 2], 2**64 - 1), 12) == [0, 0, 1, 0, 0, 0, 0, 0, 2, 2, 0, 1]


def test_a_draw_is_the_word_that_the_design_names():
    """The plain twin: one Philox for each block, one comparison for each draw."""
    weights, seed, pass_number = [0.1, 0.7, 0.3], 123, 4
    got = picks(Draws(weights, seed), 2 * BLOCK, pass_number=pass_number)
    scaled = [weight / max(weights) for weight in weights]
    ends = list(itertools.accumulate(scaled))
    for block in range(2):
        key, counter = np.array([seed, pass_number], np.uint64), np.array([0, block, 0, 3], np.uint64)
        words = np.random.Philox(key=key, counter=counter).random_raw(BLOCK).tolist()
        plain = [sum((word >> 11) * 2.0**-53 * ends[-1] >= end for end in ends) for word in words]
        assert got[block * BLOCK : (block + 1) * BLOCK] == plain


@pytest.mark.parametrize("weights", [[1, 1, 1], [0.7, 0.2, 0.1], [1e-3, 5, 1e3], [0, 3, 1]])
def test_shares_follow_the_weights(weights):
    counts = np.bincount(picks(Draws(weights, 3), 20_000), minlength=3) / 20_000
    expected = np.array(weights) / sum(weights)
    assert np.abs(counts - expected).max() < 4 * np.sqrt(0.25 / 20_000)
    assert all(count == 0 for count, weight in zip(counts, weights, strict=True) if weight == 0)


def test_weights_of_any_size_are_drawn():
    assert picks(Draws([1e-310, 3e-310, 1e-310], 1), 50) == picks(Draws([1, 3, 1], 1), 50)
    assert set(picks(Draws([1e308, 1e308, 1e308], 1), 50)) == {0, 1, 2}
    assert set(picks(Draws([1e300, 1e-300, 1e-300], 1), 50, among=[False, True, True])) == {1, 2}


@pytest.mark.parametrize("weights", [[], [0, 0], [1, -1], [1, float("nan")], [float("inf"), 1], ["a", 1], [None]])
def test_weights_that_cannot_be_are_refused(weights):
    with pytest.raises(PlanError, match="weights must be"):
        Draws(weights, 0)


@pytest.mark.parametrize("seed", [-1, 2**64, 1.0, True])
def test_seeds_that_cannot_be_are_refused(seed):
    with pytest.raises(PlanError, match="seed must be"):
        Draws([1], seed)


def test_a_stop_policy_that_cannot_be_is_refused():
    with pytest.raises(PlanError, match="stop must be 'first' or 'all'; got 'last'"):
        Deck(Draws([1], 0), "last")


def play(deck, most=10_000):
    """Follow a deck to the end of its pass; the picks."""
    got = []
    while (index := deck.next()) is not None and len(got) < most:
        deck.took(index)
        got.append(index)
    return got


def fresh(left, stop, seed=5, weights=None):
    deck = Deck(Draws(weights or [1] * len(left), seed), stop)
    deck.begin(left)
    return deck


def test_first_ends_when_an_empty_source_is_drawn():
    deck = fresh([4, 50, None], "first")
    got = play(deck)
    assert got == picks(Draws([1, 1, 1], 5), len(got))
    assert got.count(0) == 4
    assert picks(Draws([1, 1, 1], 5), len(got) + 1)[-1] == 0


def test_all_ends_when_everybody_has_given_everything():
    got = play(fresh([4, 50, 9], "all"))
    assert [got.count(index) for index in range(3)] == [4, 50, 9]
    last = max(position for position, index in enumerate(got) if index == 0)
    alive = [False, True, True] if 2 in got[last + 1 :] else [False, True, False]
    after = picks(Draws([1, 1, 1], 5), last + 2, among=alive)[-1]
    assert got[last + 1] == after  # the others keep their weights, and the draw its number


counts = st.lists(st.integers(0, 60), min_size=1, max_size=4)


@given(left=counts, stop=st.sampled_from(["first", "all"]), seed=st.integers(0, 2**64 - 1), skip=st.integers(0, 40))
@settings(max_examples=depth(50, 1000), deadline=None)
def test_the_length_is_what_comes_and_a_saved_place_goes_on(left, stop, seed, skip):
    deck = fresh(left, stop, seed)
    for _ in range(min(skip, deck.length())):
        deck.took(deck.next())
    saved, now_left = json.loads(json.dumps(deck.to_json())), list(deck.left)
    length, rest = deck.length(), play(deck)
    assert len(rest) == length
    other = Deck(Draws([1] * len(left), seed), stop)
    # A source that has ended says what its next pass has.
    again = other.at(other.mark_of(saved), [99 if count == 0 else count for count in now_left])
    assert again.length() == length
    assert play(again) == rest


def test_the_length_looks_past_a_block():
    deck = fresh([5000, 5000], "first")
    assert deck.length() == len(play(deck)) > 4 * BLOCK


def test_what_never_ends_has_no_length():
    assert fresh([None, None], "first").length() is None
    assert fresh([None, 3], "all").length() is None
    assert fresh([None, 3], "first").length() is not None


def test_a_pass_has_draws_of_its_own():
    deck = fresh([20, 20], "all")
    one = play(deck)
    deck.advance()
    deck.begin([20, 20])
    two = play(deck)
    assert sorted(one) == sorted(two)
    assert one != two
    assert (deck.pass_number, deck.num_draws) == (1, 40)


def test_a_source_that_ends_unasked_ends_the_pass_or_leaves_the_draw():
    first, everybody = fresh([None, None], "first"), fresh([None, 3], "all")
    first.ran_out(first.next())
    assert first.next() is None
    for _ in range(30):
        if everybody.next() == 0:
            break
        everybody.took(1)
    everybody.ran_out(0)
    assert everybody.to_json()["ended"][0] == 0
    assert set(play(everybody)) <= {1}


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"version": 2}, "newer Penstock"),
        ({"order": "lanes-1"}, "the state of something else"),
        ({"seed": 6}, "seed of the state is 6, of this mix 5; pass seed=6"),
        ({"draws": -1}, "entry 'draws'"),
        ({"draws": True}, "entry 'draws'"),
        ({"pass": "0"}, "entry 'pass'"),
        ({"ended": [2]}, "indices below 2"),
        ({"ended": None}, "indices below 2"),
    ],
)
def test_states_of_something_else_are_refused(change, match):
    deck = fresh([3, 3], "all")
    with pytest.raises(StateMismatch, match=match):
        deck.mark_of(deck.to_json() | change)


def test_a_state_that_is_no_dict_is_refused():
    with pytest.raises(StateMismatch, match="got str"):
        fresh([3], "all").mark_of("{}")
