"""NGram: what it accepts, what it resolves to, and that its plain rule and the one on columns agree."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from datetime import timedelta
from decimal import Decimal
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock.errors import ColumnNotFound, NotSorted, SchemaError
from penstock.petastorm.ngram import NGram, NoFieldsMatch
from penstock.plan.windows import WindowRule, WindowTable, window_starts
from penstock.schema import Unischema, UnischemaField
from tests.depth import depth

SCHEMA = Unischema(
    "Drive",
    [
        UnischemaField("speed", np.float32, ()),
        UnischemaField("ts", np.int64, ()),
        UnischemaField("cam_left", np.int32, ()),
        UnischemaField("cam_right", np.int32, ()),
    ],
)


def row(ts):
    return {"speed": ts / 2, "ts": ts, "cam_left": 10 * ts, "cam_right": 10 * ts + 1}


def windows(ngram, times):
    """The timestamps of each window's rows that have one."""
    found = ngram.form_ngram([row(t) for t in times], SCHEMA)
    return [[fields["ts"] for fields in window.values() if "ts" in fields] for window in found]


BOTH = {0: [SCHEMA.ts], 1: [SCHEMA.ts]}


# --- what it accepts ---


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"fields": None}, "fields must be a dict"),
        ({"fields": [SCHEMA.ts]}, "fields must be a dict"),
        ({"fields": {}}, "with one at least"),
        ({"fields": {0: SCHEMA.ts}}, "timestep 0 needs a list"),
        ({"fields": {0: (SCHEMA.ts,)}}, "timestep 0 needs a list"),
        ({"fields": {0: "ts"}}, "timestep 0 needs a list"),
        ({"fields": {0: [SCHEMA.ts, 5]}}, "timestep 0: a field must be .* got 5"),
        ({"fields": {"0": [SCHEMA.ts]}}, "timesteps must be whole numbers, got '0'"),
        ({"fields": {0.5: [SCHEMA.ts]}}, "timesteps must be whole numbers, got 0.5"),
        ({"delta_threshold": None}, "threshold .* must be a number"),
        ({"delta_threshold": "5"}, "threshold .* must be a number"),
        ({"timestamp_field": None}, "timestamp_field must be"),
        ({"timestamp_field": 3}, "timestamp_field must be"),
        ({"timestamp_overlap": None}, "timestamp_overlap must be True or False"),
        ({"timestamp_overlap": 1}, "timestamp_overlap must be True or False"),
        ({"span_row_groups": "yes"}, "span_row_groups must be True or False"),
        ({"stride": 0}, "stride of windows must be a whole number"),
        ({"stride": 1.5}, "stride of windows must be a whole number"),
    ],
)
def test_what_it_does_not_accept_is_a_value_error_that_says_why(changes, says):
    arguments = {"fields": BOTH, "delta_threshold": 1, "timestamp_field": "ts"} | changes
    with pytest.raises(ValueError, match=says):
        NGram(**arguments)


def test_arguments_may_be_given_by_position_as_petastorm_takes_them():
    ngram = NGram({-1: [SCHEMA.ts], 2: ["speed"]}, Decimal("1.5"), SCHEMA.ts, False)
    assert ngram.length == 4
    assert ngram.timesteps == range(-1, 3)
    assert ngram.fields == {-1: [SCHEMA.ts], 2: ["speed"]}
    assert ngram.delta_threshold == Decimal("1.5")
    assert ngram.timestamp_overlap is False
    assert ngram.rule == WindowRule(4, Decimal("1.5"), overlap=False, stride=1)
    assert repr(ngram) == "NGram({-1: ['ts'], 2: ['speed']}, Decimal('1.5'), 'ts', timestamp_overlap=False)"


def test_what_is_new_has_a_default_and_is_shown():
    ngram = NGram(BOTH, timedelta(seconds=1), "ts", span_row_groups=True, stride=3)
    assert (ngram.span_row_groups, ngram.stride, ngram.rule.stride) == (True, 3, 3)
    assert repr(ngram).endswith("'ts', span_row_groups=True, stride=3)")
    assert (NGram(BOTH, 1, "ts").span_row_groups, NGram(BOTH, 1, "ts").stride) == (False, 1)


def test_the_users_dict_is_not_kept():
    fields = {1: ["cam_.*"], 0: [SCHEMA.ts]}
    ngram = NGram(fields, 1, "ts")
    ngram.resolve_regex_field_names(SCHEMA)
    assert fields == {1: ["cam_.*"], 0: [SCHEMA.ts]}
    fields[0].append("speed")
    assert ngram.get_field_names_at_timestep(0) == ["ts"]


def test_two_are_equal_where_their_fields_are():
    assert NGram({0: ["ts", "speed"], 1: []}, 1, "ts") == NGram({1: [], 0: ["speed", "ts"]}, 5, "speed", False)
    assert NGram({0: ["ts"]}, 1, "ts") != NGram({0: ["speed"]}, 1, "ts")
    assert NGram({0: ["ts"]}, 1, "ts") != NGram({0: ["ts"], 1: []}, 1, "ts")
    assert NGram({0: ["ts"]}, 1, "ts") != "ts"


def test_it_pickles_after_rows_were_made():
    ngram = NGram({0: ["cam_.*"], 1: ["ts"]}, 1, "ts", stride=2).resolved(SCHEMA)
    ngram.row_types(SCHEMA)
    again = pickle.loads(pickle.dumps(ngram))
    assert again == ngram
    assert again.rule == ngram.rule
    assert list(again.row_types(SCHEMA)[0]._fields) == ["cam_left", "cam_right"]


# --- what it resolves to ---


def test_patterns_become_fields_and_the_original_stays():
    ngram = NGram({0: ["cam_.*", SCHEMA.ts], 1: [".*"]}, 1, "t.")
    found = ngram.resolved(SCHEMA)
    assert found.fields == {0: [SCHEMA.ts, SCHEMA.cam_left, SCHEMA.cam_right], 1: list(SCHEMA.fields.values())}
    assert found.timestamp_field == SCHEMA.ts
    assert ngram.fields == {0: ["cam_.*", SCHEMA.ts], 1: [".*"]}
    assert ngram.timestamp_field == "t."


def test_one_ngram_serves_readers_of_different_schemas():
    other = Unischema("Other", [UnischemaField("cam_top", np.int8, ()), UnischemaField("ts", np.float64, ())])
    ngram = NGram({0: ["cam_.*"]}, 1, "ts")
    ngram.resolve_regex_field_names(SCHEMA)
    assert ngram.get_field_names_at_timestep(0) == ["cam_left", "cam_right"]
    ngram.resolve_regex_field_names(other)
    assert ngram.get_field_names_at_timestep(0) == ["cam_top"]
    assert ngram.timestamp_field == other.ts


def test_fields_are_taken_by_name_as_the_dataset_has_them():
    mine = UnischemaField("ts", np.int16, (), None, True)
    found = NGram({0: [mine]}, 1, mine).resolved(SCHEMA)
    assert found.fields == {0: [SCHEMA.ts]}
    assert found.timestamp_field.numpy_dtype is np.int64


def test_unknown_fields_and_patterns_are_named():
    with pytest.raises(ColumnNotFound, match=r"'sped' does not belong .* did you mean 'speed'"):
        NGram({0: [UnischemaField("sped", np.int8, ())]}, 1, "ts").resolved(SCHEMA)
    with pytest.raises(
        NoFieldsMatch, match="no field matches 'cam_lift' at timestep 1; did you mean 'cam_left'"
    ) as error:
        NGram({0: ["ts"], 1: ["cam_lift"]}, 1, "ts").resolved(SCHEMA)
    assert isinstance(error.value, ValueError)
    assert isinstance(error.value, RuntimeError)
    with pytest.raises(NoFieldsMatch, match="timestamp_field='sped'; did you mean 'speed'"):
        NGram({0: ["ts"]}, 1, "sped").resolved(SCHEMA)
    with pytest.raises(NoFieldsMatch, match="timestamp_field='tz'"):
        NGram({0: ["ts"]}, 1, UnischemaField("tz", np.int8, ())).resolved(SCHEMA)
    with pytest.raises(SchemaError, match=r"must match one field, but matches cam_left, cam_right"):
        NGram({0: ["ts"]}, 1, "cam_.*").resolved(SCHEMA)


def test_a_timestep_may_ask_for_nothing():
    assert NGram({0: [], 1: ["ts"]}, 1, "ts").resolved(SCHEMA).fields == {0: [], 1: [SCHEMA.ts]}


def test_the_name_of_the_timestamps_is_a_name_before_it_is_a_pattern():
    schema = Unischema("Times", [UnischemaField(n, np.int64, ()) for n in ("t.", "tx")])
    assert NGram({0: ["t."]}, 1, "t.").resolved(schema).timestamp_field.name == "t."


def test_unresolved_patterns_have_no_names_yet():
    with pytest.raises(SchemaError, match=r"'cam_\.\*' is not resolved yet; call resolved"):
        NGram({0: ["cam_.*"]}, 1, "ts").get_field_names_at_timestep(0)


def test_schemas_of_timesteps_are_views_in_schema_order():
    ngram = NGram({-1: ["ts", "speed"], 1: ["cam_.*"]}, 1, "ts")
    for one in (ngram, ngram.resolved(SCHEMA)):
        assert list(one.get_schema_at_timestep(SCHEMA, -1).fields) == ["speed", "ts"]
        assert list(one.get_schema_at_timestep(SCHEMA, 0).fields) == []
        assert list(one.get_schema_at_timestep(schema=SCHEMA, timestep=1).fields) == ["cam_left", "cam_right"]


def test_the_fields_of_all_timesteps_come_once_by_timestep():
    ngram = NGram({1: ["speed", "ts"], 0: ["ts"]}, 1, "ts").resolved(SCHEMA)
    assert ngram.get_field_names_at_all_timesteps() == [SCHEMA.ts, SCHEMA.speed]


def test_timestamps_that_no_timestep_asks_for_are_read_but_not_delivered():
    ngram = NGram({0: ["speed"], 1: ["cam_left"]}, 1, "ts")
    assert ngram.form_ngram([row(1), row(2)], SCHEMA) == [{0: {"speed": 0.5}, 1: {"cam_left": 20}}]


def test_defect_5_2_10_order_of_fields_does_not_depend_on_the_hash_seed():
    code = (
        "from tests.petastorm.test_ngram import NGram, SCHEMA\n"
        "n = NGram({0: ['.*'], 1: ['cam_.*', SCHEMA.ts]}, 1, 'ts').resolved(SCHEMA)\n"
        "print([f.name for f in n.get_field_names_at_all_timesteps()], n.fields[1], n.row_types(SCHEMA)[1]._fields)"
    )
    environment = dict(os.environ) | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=environment | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(said) == 1
    assert next(iter(said)).startswith("['speed', 'ts', 'cam_left', 'cam_right']")


# --- rows ---


def test_types_of_rows_are_made_once():
    ngram = NGram({0: ["ts", "speed"], 2: ["cam_.*"]}, 1, "ts")
    types = ngram.row_types(SCHEMA)
    assert {step: t._fields for step, t in types.items()} == {0: ("speed", "ts"), 1: (), 2: ("cam_left", "cam_right")}
    assert ngram.row_types(SCHEMA) is types
    window = ngram.make_namedtuple(SCHEMA, {0: {"ts": 1, "speed": 2.0}, 1: {}, 2: {"cam_left": 3, "cam_right": 4}})
    assert [type(r) for r in window.values()] == list(types.values())
    assert window[0] == (2.0, 1)
    assert window[0].ts == 1
    assert window[1] == ()
    assert type(window[0]) is type(ngram.get_schema_at_timestep(SCHEMA, 0).make_namedtuple(ts=1, speed=2.0))


def test_types_follow_the_schema():
    ngram = NGram({0: [".*"]}, 1, "ts")
    assert ngram.row_types(SCHEMA)[0]._fields == ("speed", "ts", "cam_left", "cam_right")
    assert ngram.row_types(SCHEMA.create_schema_view([SCHEMA.ts]))[0]._fields == ("ts",)


# --- the plain rule ---


def test_windows_of_row_dicts():
    assert windows(NGram(BOTH, 4, "ts"), [0, 3, 8, 10, 11, 20, 30]) == [[0, 3], [8, 10], [10, 11]]
    assert windows(NGram(BOTH, 5, "ts"), [0, 10, 20, 30]) == []
    assert windows(NGram({1: ["ts"], 0: ["ts"], 2: ["ts"]}, 1, "ts", False), range(6)) == [[0, 1, 2], [3, 4, 5]]
    assert windows(NGram({-1: ["ts"], 1: ["ts"]}, 1, "ts"), range(4)) == [[0, 2], [1, 3]]
    assert windows(NGram(BOTH, 1, "ts", stride=2), range(5)) == [[0, 1], [2, 3]]


def test_steps_that_are_not_listed_come_without_fields():
    [window] = NGram({-1: ["ts"], 1: ["speed"]}, 1, "ts").form_ngram([row(0), row(1), row(2)], SCHEMA)
    assert window == {-1: {"ts": 0}, 0: {}, 1: {"speed": 1.0}}
    assert list(window) == [-1, 0, 1]


def test_rows_out_of_order_are_not_implemented():
    with pytest.raises(NotImplementedError, match="row 2 has the timestamp 1, before 5"):
        windows(NGram(BOTH, 1, "ts"), [0, 5, 1])


def outcome(find):
    try:
        return find()
    except NotSorted as error:
        return f"not sorted at row {error.row}"


@given(
    steps=st.lists(st.sampled_from([0, 1, 1, 2, 3, -1]), max_size=30),
    length=st.integers(1, 4),
    threshold=st.integers(0, 3),
    overlap=st.booleans(),
    stride=st.integers(1, 3),
)
@settings(max_examples=depth(50, 2000), deadline=None)
def test_the_plain_rule_and_the_one_on_columns_agree(steps, length, threshold, overlap, stride):
    if steps.count(-1) > 1 and len(steps) % 3:
        steps = [abs(s) for s in steps]  # else hardly any timeline would be in order
    times = np.cumsum(steps, dtype=np.int64)
    ngram = NGram({k: ["ts"] for k in range(length)}, threshold, "ts", overlap, stride=stride)
    rule = {"threshold": threshold, "overlap": overlap, "stride": stride}
    got = outcome(lambda: [times[s : s + length].tolist() for s in window_starts(times, length, **rule)])
    assert got == outcome(lambda: windows(ngram, times.tolist()))


@pytest.mark.parametrize("span", [False, True])
@pytest.mark.parametrize("overlap", [False, True])
def test_windows_of_a_dataset_on_disk_equal_those_of_its_rows(tmp_path, span, overlap):
    times = np.cumsum(np.tile([1, 1, 1, 2, 1, 9, 1, 1], 8))
    penstock.write({"ts": times, "speed": times / 2}, str(tmp_path / "drive"), row_group_bytes=160)
    dataset = penstock.open(str(tmp_path / "drive"))
    sizes = [rows for _, _, rows in dataset.chunks]
    assert len(sizes) >= 4
    ngram = NGram({0: ["ts"], 1: ["speed"], 2: ["ts"]}, 2, "ts", overlap, span_row_groups=span)
    edges = np.cumsum([0, *sizes]).tolist()
    groups = [range(len(dataset))] if span else [range(a, b) for a, b in pairwise(edges)]
    want = [w for group in groups for w in ngram.form_ngram([dataset[i] for i in group], dataset.schema)]
    column = dataset.take(range(len(dataset)))["ts"]
    table = WindowTable.build(np.split(column, edges[1:-1]), ngram.rule, span=ngram.span_row_groups)
    starts = [edges[c] + s for c in range(len(sizes)) for s in table.starts(c).tolist()]
    assert [column[s] for s in starts] == [w[0]["ts"] for w in want]
    assert [column[s + 2] for s in starts] == [w[2]["ts"] for w in want]
    assert table.total == len(want) > 8
