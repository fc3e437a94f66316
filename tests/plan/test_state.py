"""States: exact JSON, round trips, and refusals that say what differs."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings

from penstock.errors import StateMismatch
from penstock.plan import Cursor, Order, State, check
from tests.depth import depth
from tests.plan.cases import cases

LANES = State(Order("lanes", 7, 48, 1000), Cursor(3, position=123456), "ab", "cd")
LINES = State(Order("groups", 7), Cursor(3, left=((0, 5), (9, 12))), "ab", "cd")
THIS = {"dataset": "ab", "content": None, "rows": "cd", "seed": 7, "kind": "lanes"}


def test_states_have_the_documented_form():
    # Stored in people's checkpoints: change only under a new version.
    assert json.dumps(LANES.to_json()) == (
        '{"version": 1, "order": "lanes-1", "dataset": "ab", "rows": "cd", "seed": 7, "epoch": 3, '
        '"position": 123456, "lanes": 48, "block": 1000}'
    )
    assert json.dumps(LINES.to_json()) == (
        '{"version": 1, "order": "groups-1", "dataset": "ab", "rows": "cd", "seed": 7, "epoch": 3, '
        '"left": [[0, 5], [9, 12]]}'
    )
    parts = replace(LANES, order=replace(LANES.order, parts=True))
    assert parts.to_json() == LANES.to_json() | {"order": "lanes-2"}
    scanned = replace(LANES, order=replace(LANES.order, parts=True, scanned=True))
    assert scanned.to_json() == LANES.to_json() | {"order": "lanes-2", "scanned": True}
    assert [State.from_json(one.to_json()) for one in (parts, scanned)] == [parts, scanned]
    assert replace(LANES, content="ef").to_json() == LANES.to_json() | {"content": "ef"}


@given(case=cases())
@settings(max_examples=depth(50, 500), deadline=None)
def test_states_survive_json(case):
    for content in (None, "c"):
        state = State(case.order, case.cursor, "d", "r", content=content)
        assert State.from_json(json.loads(json.dumps(state.to_json()))) == state


def test_a_state_of_this_run_is_accepted():
    check(LANES, **THIS)
    check(replace(LANES, content="ef"), **{**THIS, "content": "ef"})


def test_content_is_compared_where_both_sides_have_it():
    check(replace(LANES, content="ef"), **THIS)
    check(LANES, **{**THIS, "content": "ef"})
    with pytest.raises(StateMismatch, match=r"content of the state is 'ef', of this loader 'xx'; .*were written again"):
        check(replace(LANES, content="ef"), **{**THIS, "content": "xx"})


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"dataset": "xx"}, "dataset of the state is 'ab', of this loader 'xx'"),
        ({"rows": "xx"}, "rows of the state is 'cd', of this loader 'xx'; other rows are selected"),
        ({"seed": 8}, "seed of the state is 7, of this loader 8; pass seed=7"),
        ({"kind": "natural"}, "order of the state is 'lanes', of this loader 'natural'; pass shuffle=True"),
    ],
)
def test_a_state_of_another_run_is_refused_by_the_part_that_differs(other, words):
    with pytest.raises(StateMismatch, match=words):
        check(LANES, **{**THIS, **other})


@pytest.mark.parametrize(
    ("state", "change", "words"),
    [
        (LANES, {"version": 2}, "version 2, this Penstock knows 1; update"),
        (LANES, {"version": None}, "'version' must be int"),
        (LANES, {"order": "lanes-3"}, "order 'lanes-3', this Penstock knows natural-1, groups-1, lanes-1, lanes-2"),
        (LANES, {"position": "3"}, "'position' must be int, got '3'"),
        (LANES, {"position": True}, "'position' must be int, got True"),
        (LANES, {"lanes": 0}, "damaged state: lanes must be"),
        (LANES, {"block": 0}, "damaged state: a block"),
        (LANES, {"seed": -1}, "damaged state: seed"),
        (LANES, {"epoch": -1}, "damaged state: epoch"),
        (LANES, {"dataset": 3}, "'dataset' must be str"),
        (LANES, {"content": None}, "'content' must be str"),
        (LINES, {"left": None}, "'left' must be list"),
        (LINES, {"left": [[1, 2, 3]]}, "'left' must hold pairs"),
        (LINES, {"left": [["a", 2]]}, "'left' must hold pairs"),
    ],
)
def test_damaged_states_are_refused(state, change, words):
    with pytest.raises(StateMismatch, match=words):
        State.from_json({**state.to_json(), **change})


def test_what_is_no_state_is_refused():
    with pytest.raises(StateMismatch, match="got list"):
        State.from_json([])
    with pytest.raises(StateMismatch, match="'version' must be int, got None"):
        State.from_json({})
