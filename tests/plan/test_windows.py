"""Windows over time: the rules one by one, the plain twin, and the table of a whole dataset."""

from __future__ import annotations

import pickle
from datetime import date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import NotSorted, PlanError
from penstock.plan.windows import WindowRule, WindowTable, window_starts
from tests.depth import depth
from tests.plan import plain_windows as plain


def starts(timestamps, length, threshold, **more):
    return window_starts(np.array(timestamps), length, threshold=threshold, **more).tolist()


# --- the rules, one by one ---


def test_a_window_is_kept_where_no_difference_is_above_the_threshold():
    assert starts([0, 3, 8, 10, 11, 20, 30], 2, 4) == [0, 2, 3]
    assert starts([0, 3, 8, 10, 11, 20, 30], 3, 4) == [2]
    assert starts([0, 10, 20, 30], 2, 5) == []


def test_the_threshold_itself_is_allowed():
    assert starts([0, 5, 10], 3, 5) == [0]
    assert starts([0, 5, 10], 3, 4) == []


def test_equal_timestamps_are_in_order():
    assert starts([7, 7, 7], 2, 0) == [0, 1]


def test_a_rejected_candidate_moves_on_by_one_row_only():
    assert starts([0, 100, 101, 102, 103], 3, 1, overlap=False) == [1]


def test_without_overlap_a_window_starts_strictly_after_the_last_one():
    assert starts([0, 1, 2, 3, 4, 5], 3, 1, overlap=False) == [0, 3]
    # Row 3 has the timestamp of row 2, the last of the window kept.
    assert starts([0, 1, 2, 2, 3, 4, 5], 3, 1, overlap=False) == [0, 4]


def test_stride_is_the_least_number_of_rows_between_starts():
    assert starts(range(10), 3, 1, stride=2) == [0, 2, 4, 6]
    assert starts(range(10), 3, 1, stride=2, overlap=False) == [0, 3, 6]
    assert starts(range(10), 3, 1, stride=4, overlap=False) == [0, 4]
    # A gap before row 3: windows start again right after it, if the stride has passed.
    assert starts([0, 1, 2, 50, 51, 52, 53], 2, 1, stride=2) == [0, 3, 5]
    assert starts([0, 1, 50, 51, 52, 53], 2, 1, stride=4) == [0, 4]


def test_no_window_crosses_a_break():
    assert starts(range(7), 3, 1, breaks=np.array([3])) == [0, 3, 4]
    assert starts(range(7), 3, 1, breaks=np.array([0, 3, 3, 7])) == [0, 3, 4]
    assert starts([5, 6, 7, 1, 2, 3], 3, 1, breaks=np.array([3])) == [0, 3]
    assert starts([0, 1, 1, 2], 2, 1, overlap=False, breaks=np.array([2])) == [0, 2]
    assert starts(range(7), 2, 1, stride=4, breaks=np.array([3])) == [0, 3]
    assert starts([9, 4, 6, 7, 8], 3, 1, breaks=np.array([2])) == [2]  # too short to have a window that is out of order


def test_too_few_rows_have_no_window():
    assert starts([], 1, 1) == []
    assert starts([1, 2], 3, 1) == []
    assert starts([2, 1], 3, 1) == []  # no candidate, so that nothing is asked of their order
    assert window_starts(np.empty(0), 2, threshold=1).dtype == np.int64


def test_windows_of_one_row_need_no_order():
    assert starts([5, 1, 3], 1, 0) == [0, 1, 2]
    assert starts([np.nan, 1, 3], 1, 0, stride=2) == [0, 2]
    assert starts([5, 1, 6, 6, 7], 1, 0, overlap=False) == [0, 2, 4]
    assert starts([5, 1, 6, 6, 7], 1, 0, overlap=False, breaks=np.array([1, 3])) == [0, 1, 2, 3, 4]


def test_a_threshold_below_zero_keeps_nothing():
    assert starts([1, 1, 1], 2, -1) == []
    assert starts([1.0, 1.0, 1.0], 2, -0.5) == []


@pytest.mark.parametrize(
    ("rows", "breaks", "row"),
    [([0, 1, 2, 1, 3], None, 3), ([3, 1, 0], None, 1), ([0, 1, 0, 1, 0, 5], [2, 4], None), ([0, 1, 5, 4], [2], 3)],
)
def test_timestamps_that_go_back_are_an_error_that_names_the_row(rows, breaks, row):
    breaks = None if breaks is None else np.array(breaks)
    if row is None:
        assert starts(rows, 2, 1, breaks=breaks) == [0, 2]
        return
    with pytest.raises(NotSorted, match=f"row {row} has the timestamp {rows[row]}") as error:
        starts(rows, 2, 1, breaks=breaks)
    assert error.value.row == row
    assert isinstance(error.value, NotImplementedError)  # what Petastorm raises
    assert isinstance(error.value, ValueError)
    again = pickle.loads(pickle.dumps(error.value))
    assert (str(again), again.row) == (str(error.value), row)


@pytest.mark.parametrize(
    ("timestamps", "row"),
    [
        (np.ma.masked_array([0, 1, 2], [False, True, False]), 1),
        (np.array([np.nan, 1, 2]), 0),
        (np.array([0, 1, np.nan]), 2),
        (np.array(["2020-01-01", "NaT", "2020-01-02"], "M8[s]"), 1),
        (np.array([0, None, 1], object), 1),
        (np.array([Decimal(0), Decimal("NaN"), Decimal(1)], object), 1),
    ],
)
def test_a_missing_timestamp_is_an_error_that_names_the_row(timestamps, row):
    for length, overlap in ((2, True), (3, False), (1, False)):
        with pytest.raises(NotSorted, match=f"row {row} has no timestamp") as error:
            window_starts(
                timestamps, length, threshold=timedelta(9) if timestamps.dtype.kind == "M" else 9, overlap=overlap
            )
        assert error.value.row == row
    assert window_starts(timestamps, 1, threshold=9).tolist() == [0, 1, 2]


# --- kinds of timestamps ---


@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "i8", ">i4", ">i8", "u1", "u2", "u4", "u8"])
def test_whole_numbers_never_overflow(dtype):
    info = np.iinfo(dtype)
    rows = np.array([info.min, info.min + 1, info.max - 1, info.max], dtype)
    wide = info.max - info.min - 2
    assert window_starts(rows, 2, threshold=wide).tolist() == [0, 1, 2]
    assert window_starts(rows, 2, threshold=wide - 1).tolist() == [0, 2]
    assert window_starts(rows, 2, threshold=Fraction(2 * wide - 1, 2)).tolist() == [0, 2]
    assert window_starts(rows, 2, threshold=Decimal(wide)).tolist() == [0, 1, 2]
    assert window_starts(rows, 2, threshold=float("inf")).tolist() == [0, 1, 2]
    assert window_starts(rows, 2, threshold=10**30).tolist() == [0, 1, 2]


def test_numpy_numbers_are_thresholds_too():
    rows = np.array([0, 2**53 + 1, 2**54 + 3])
    assert window_starts(rows, 2, threshold=np.int64(2**53 + 1)).tolist() == [0]
    assert window_starts(np.array([False, True]), 2, threshold=np.int8(1)).tolist() == [0]
    assert window_starts(np.array([1, 3]), 2, threshold=np.float32(1.5)).tolist() == []


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_floats(dtype):
    rows = np.array([-np.inf, 0, 0.5, 1, np.inf, np.inf], dtype)
    assert window_starts(rows, 2, threshold=0.5).tolist() == [1, 2]
    assert window_starts(rows, 2, threshold=Fraction(1, 2)).tolist() == [1, 2]
    assert window_starts(rows, 2, threshold=Decimal("0.49999999999999999999")).tolist() == []
    assert window_starts(rows, 2, threshold=float("inf")).tolist() == [0, 1, 2, 3]
    assert window_starts(rows, 2, threshold=10**400).tolist() == [1, 2]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("kind", ["M8", "m8"])
def test_dates_take_durations_of_any_unit_and_numbers_of_their_own(unit, kind):
    second = int(np.timedelta64(1, "s") / np.timedelta64(1, unit))
    rows = (np.array([0, 1, 3, 4]) * second).astype(f"{kind}[{unit}]")
    for one in (
        second,
        timedelta(seconds=1),
        np.timedelta64(1000, "ms"),
        np.timedelta64(1, "s"),
        np.timedelta64(second),
    ):
        assert window_starts(rows, 2, threshold=one).tolist() == [0, 2], one
    assert window_starts(rows, 2, threshold=timedelta(seconds=2) - timedelta(microseconds=1)).tolist() == [0, 2]
    assert window_starts(rows, 2, threshold=np.timedelta64(1999, "ms")).tolist() == [0, 2]
    assert window_starts(rows, 2, threshold=timedelta.max).tolist() == [0, 1, 2]
    assert window_starts(rows, 2, threshold=timedelta(seconds=-1)).tolist() == []
    assert window_starts(rows, 2, threshold=timedelta(seconds=1), overlap=False).tolist() == [0, 2]


def test_units_of_time_may_have_a_multiple():
    rows = np.array([0, 1, 3, 4]).astype("M8[10ms]")
    for one in (1, timedelta(milliseconds=10), np.timedelta64(2, "5ms"), np.timedelta64(19, "ms")):
        assert window_starts(rows, 2, threshold=one).tolist() == [0, 2], one
    assert window_starts(rows, 2, threshold=np.timedelta64(1, "20ms")).tolist() == [0, 1, 2]


def test_objects_take_the_plain_path():
    decimals = np.array([Decimal("0.1"), Decimal("0.2"), Decimal("0.4")], object)
    assert window_starts(decimals, 2, threshold=Decimal("0.1")).tolist() == [0]
    assert window_starts(decimals, 2, threshold=0.25, overlap=False).tolist() == [0]
    days = np.array([date(2020, 1, 1), date(2020, 1, 2), date(2020, 1, 5)], object)
    for one in (timedelta(days=1), np.timedelta64(1, "D"), np.timedelta64(24, "h")):
        assert window_starts(days, 2, threshold=one).tolist() == [0]
    assert window_starts(days, 2, threshold=np.timedelta64(10**15, "D")).tolist() == [0, 1]
    times = np.array([datetime(2020, 1, 1, 0, 0, s) for s in (0, 1, 3)], object)
    assert window_starts(times, 2, threshold=timedelta(seconds=1)).tolist() == [0]
    assert window_starts(np.array([1, 2, 2**70], object), 2, threshold=1).tolist() == [0]


@pytest.mark.parametrize(
    ("timestamps", "threshold", "says"),
    [
        (np.array([1, 2]), timedelta(1), "plain numbers"),
        (np.array([1.0, 2.0]), np.timedelta64(1, "s"), "plain numbers"),
        (np.array([date(2020, 1, 1), date(2020, 1, 2)], object), 5, "need a timedelta"),
        (np.array(["a", "b"]), 1, "must be numbers"),
        (np.array([1, "b"], object), 1, "1 and 'b' in rows 0 and 1"),
        (np.array([1j, 2j]), 1, "must be numbers"),
        (np.zeros((2, 2)), 1, "one value a row"),
        (np.array([1, 2], "M8[D]"), np.timedelta64(1, "M"), "weeks or less"),
        (np.array([1, 2]), "1", "must be a number or a timedelta"),
        (np.array([1, 2]), None, "must be a number or a timedelta"),
        (np.array([1, 2]), float("nan"), "must be a number or a timedelta"),
        (np.array([1, 2]), np.timedelta64("NaT", "s"), "must be a number or a timedelta"),
        (np.array([1, 2]), 1j, "must be a number or a timedelta"),
    ],
)
def test_what_does_not_go_together_is_refused(timestamps, threshold, says):
    with pytest.raises(PlanError, match=says):
        window_starts(timestamps, 2, threshold=threshold)


@pytest.mark.parametrize("rule", [{"length": 0}, {"length": 2.0}, {"length": True}, {"stride": 0}, {"stride": None}])
def test_lengths_and_strides_are_whole_rows(rule):
    with pytest.raises(PlanError, match=f"the {next(iter(rule))} of windows must be a whole number"):
        WindowRule(**{"length": 2, "threshold": 1} | rule)


def test_breaks_must_be_rows():
    with pytest.raises(PlanError, match=r"breaks must be rows in \[0, 3\]; got 1 to 4"):
        starts([1, 2, 3], 2, 1, breaks=np.array([1, 4]))


# --- the twin ---


@st.composite
def rules(draw):
    return {
        "length": draw(st.integers(1, 5)),
        "threshold": draw(st.integers(-1, 4)),
        "overlap": draw(st.booleans()),
        "stride": draw(st.sampled_from([1, 1, 2, 3, 7])),
    }


@st.composite
def timelines(draw, max_size=40):
    """Mostly rising timestamps with ties and gaps; now and then one that goes back."""
    steps = draw(st.lists(st.sampled_from([0, 1, 1, 1, 2, 3, 4, 5]), max_size=max_size))
    rows = np.cumsum(steps, dtype=np.int64).tolist()
    if rows and draw(st.integers(0, 9)) == 0:
        rows[draw(st.integers(0, len(rows) - 1))] = 0
    return rows


KINDS = {
    "i8": lambda rows: (np.array(rows, "i8"), lambda t: t),
    "u2": lambda rows: (np.array(rows, "u2"), lambda t: t),
    "f4": lambda rows: (np.array(rows, "f4") / 2, lambda t: t / 2),
    "ns": lambda rows: (np.array(rows, "i8").astype("M8[ns]"), lambda t: np.timedelta64(t, "ns")),
    "decimal": lambda rows: (np.array([Decimal(r) / 10 for r in rows], object), lambda t: Decimal(t) / 10),
    "date": lambda rows: (np.array([date(2020, 1, 1) + timedelta(r) for r in rows], object), lambda t: timedelta(t)),
}


def outcome(function, *args, **kwargs):
    try:
        return [list(x) if isinstance(x, list | np.ndarray) else int(x) for x in function(*args, **kwargs)]
    except (NotSorted, plain.NotInOrder):
        return "not in order"


@given(
    rows=timelines(), rule=rules(), breaks=st.lists(st.integers(0, 40), max_size=4), kind=st.sampled_from(sorted(KINDS))
)
@settings(max_examples=depth(50, 5000), deadline=None)
def test_window_starts_equal_the_twin(rows, rule, breaks, kind):
    timestamps, threshold = KINDS[kind](rows)
    breaks = [b for b in breaks if b <= len(rows)]
    want = outcome(plain.starts_between, rows, breaks, **rule)
    rule["threshold"] = threshold(rule["threshold"])
    assert outcome(window_starts, timestamps, breaks=np.array(breaks, np.int64), **rule) == want


@st.composite
def datasets(draw):
    """A line of timestamps cut into chunks, some empty; some chunks may start anew in time."""
    chunks = draw(st.lists(timelines(max_size=9), max_size=6))
    offset, line = 0, []
    for rows in chunks:
        line.append([t + offset for t in rows])
        if rows and draw(st.integers(0, 3)):  # else the next chunk goes back to the beginning
            offset += max(rows) + draw(st.integers(0, 3))
        elif rows:
            offset = 0
    return line


@given(chunks=datasets(), rule=rules(), span=st.booleans(), breaks=st.sets(st.integers(0, 6), max_size=2))
@settings(max_examples=depth(50, 5000), deadline=None)
def test_the_table_equals_the_twin(chunks, rule, span, breaks):
    arrays = (np.array(rows, np.int64) for rows in chunks)  # an iterator: it is gone through once
    try:
        want = plain.windows(chunks, span=span, breaks=breaks, **rule)
    except plain.NotInOrder:
        with pytest.raises(NotSorted):
            WindowTable.build(arrays, WindowRule(**rule), span=span, breaks=breaks)
        return
    table = WindowTable.build(arrays, WindowRule(**rule), span=span, breaks=breaks)
    assert table.total == len(want)
    assert table.counts.tolist() == [sum(w[0][0] == c for w in want) for c in range(len(chunks))]
    for c in range(len(chunks)):
        assert table.starts(c).tolist() == [w[0][1] for w in want if w[0][0] == c]
        assert table.count(c) == table.counts[c]
        assert table.last_chunks()[c] == max((w[-1][0] for w in want if w[0][0] == c), default=c)
    at = np.repeat(np.arange(len(chunks)), table.counts)
    window = np.concatenate([np.arange(0), *(np.arange(n) for n in table.counts)])
    assert table.locate(at, window).tolist() == [w[0][1] for w in want]
    chunk, row = table.rows(at, window)
    assert chunk.shape == row.shape == (len(want), rule["length"])
    assert [list(zip(*w, strict=True)) for w in zip(chunk.tolist(), row.tolist(), strict=True)] == want


# --- the table ---


def build(chunks, length=3, threshold=1, span=False, **more):
    rule = WindowRule(length, threshold, **{k: more.pop(k) for k in ("overlap", "stride") if k in more})
    return WindowTable.build([np.array(rows) for rows in chunks], rule, span=span, **more)


def all_starts(table):
    return [table.starts(c).tolist() for c in range(len(table.counts))]


def test_windows_stay_inside_chunks_or_span_them():
    chunks = [[0, 1, 2, 3], [4, 5], [], [6, 7, 8]]
    assert all_starts(build(chunks)) == [[0, 1], [], [], [0]]
    table = build(chunks, span=True)
    assert all_starts(table) == [[0, 1, 2, 3], [0, 1], [], [0]]
    assert table.last_chunks().tolist() == [1, 3, 2, 3]
    chunk, row = table.rows(np.array([1]), np.array([1]))
    assert (chunk.tolist(), row.tolist()) == ([[1, 3, 3]], [[1, 0, 1]])


def test_a_window_may_span_many_short_chunks():
    table = build([[i] for i in range(5)], length=4, span=True)
    assert all_starts(table) == [[0], [0], [], [], []]
    assert table.last_chunks().tolist() == [3, 4, 2, 3, 4]


def test_no_window_spans_a_gap_a_break_or_a_step_back_in_time():
    assert all_starts(build([[0, 1, 2], [9, 10, 11]], span=True)) == [[0], [0]]
    assert all_starts(build([[0, 1, 2], [3, 4, 5]], span=True, breaks=[1])) == [[0], [0]]
    assert all_starts(build([[0, 1, 2], [], [3, 4, 5]], span=True, breaks=[1])) == [[0], [], [0]]
    assert all_starts(build([[7, 8, 9], [0, 1, 2]], span=True)) == [[0], [0]]


def test_without_overlap_windows_go_on_across_borders_and_start_anew_after_a_step_back():
    assert all_starts(build([[0, 1, 2, 3], [4, 5, 6, 7]], span=True, overlap=False)) == [[0, 3], []]
    assert all_starts(build([[0, 1, 2], [2, 3, 4, 5]], span=True, overlap=False)) == [[0], [1]]
    assert all_starts(build([[5, 6, 7], [0, 1, 2]], span=True, overlap=False)) == [[0], [0]]
    assert all_starts(build([[0, 1, 2, 3], [4, 5, 6, 7]], span=True, stride=3)) == [[0, 3], []]


def test_a_step_back_inside_a_chunk_is_an_error_that_names_chunk_and_row():
    for span in (False, True):
        with pytest.raises(NotSorted, match="row 2 of chunk 1 has the timestamp 3") as error:
            build([[0, 1, 2], [3, 4, 3]], span=span)
        assert (error.value.chunk, error.value.row) == (1, 2)
    with pytest.raises(NotSorted, match="row 1 of chunk 0 has the timestamp 0"):  # seen only when chunk 1 came
        build([[1, 0], [2, 3]], span=True)
    assert build([[1, 0], [2, 3]]).total == 0


def test_missing_timestamps_are_found_across_borders():
    chunks = [np.ma.masked_array([0, 1, 2], [False, False, True]), np.array([3, 4, 5])]
    with pytest.raises(NotSorted, match="row 2 of chunk 0 has no timestamp"):
        WindowTable.build(chunks, WindowRule(3, 1), span=True)
    with pytest.raises(NotSorted, match="row 0 of chunk 1 has no timestamp"):
        WindowTable.build([np.array([0.0, 1, 2]), np.array([np.nan, 4, 5])], WindowRule(3, 1), span=True)
    whole = [np.ma.masked_array([0, 1], False), np.array([2, 3])]
    assert all_starts(WindowTable.build(whole, WindowRule(3, 1), span=True)) == [[0, 1], []]


def test_objects_and_dates_span_borders_too():
    days = [np.array([date(2020, 1, d) for d in part], object) for part in ([1, 2], [3, 4], [6, 7])]
    rule = WindowRule(2, timedelta(days=1), overlap=False)
    assert all_starts(WindowTable.build(days, rule, span=True)) == [[0], [0], [0]]
    assert all_starts(WindowTable.build(days, WindowRule(2, timedelta(1)), span=True)) == [[0, 1], [0], [0]]
    times = [np.array(part, "M8[s]") for part in ([0, 1], [2, 3])]
    assert all_starts(WindowTable.build(times, WindowRule(3, timedelta(seconds=1)), span=True)) == [[0, 1], []]


def test_an_empty_dataset_has_an_empty_table():
    for chunks in ([], [[]], [[], []]):
        table = build(chunks, span=True)
        assert table.total == 0
        assert all_starts(table) == chunks
        assert repr(table) == f"WindowTable(windows=0, length=3, chunks={len(chunks)}, rows=0)"


@pytest.mark.parametrize("more", [{}, {"stride": 4}, {"overlap": False}, {"span": True, "overlap": False}])
def test_windows_without_gaps_cost_one_run(more):
    span = more.pop("span", False)
    chunks = (np.arange(1000, dtype=np.int64) + 1000 * c for c in range(50))
    table = WindowTable.build(chunks, WindowRule(5, 1, **more), span=span)
    assert table.total > 1000
    assert len(table.run_starts) <= 50
    assert span is False or len(table.run_starts) == 1


def test_memory_while_building_is_that_of_a_chunk_and_the_table():
    alive = []

    def chunks():
        import weakref

        for c in range(20):
            rows = np.arange(1000) + 1000 * c
            alive.append(weakref.ref(rows))
            yield rows
            del rows
            assert sum(ref() is not None for ref in alive) <= 2

    assert WindowTable.build(chunks(), WindowRule(10, 1), span=True).total == 19_991


# Changing the digest breaks runs that resume across versions of Penstock.
def test_the_digest_is_pinned_and_tells_windows_apart():
    chunks = [[0, 1, 2, 3, 9], [10, 11, 12]]
    table = build(chunks)
    assert table.digest() == "d2807a809203ef72c211ff6bf74fddf5"
    assert table.digest() == build([[5, 6, 7, 8, 90], [1, 2, 3]], threshold=2).digest()
    others = [build(chunks, length=2), build(chunks, span=True), build(chunks, overlap=False), build(chunks, stride=2)]
    others += [build([[0, 1, 2, 3, 9], [10, 11, 12], []]), build([[0, 1, 2, 3], [9, 10, 11]])]
    assert len({t.digest() for t in [table, *others]}) == len(others) + 1
