"""What items are: the rows of each kind, when their chunks are needed, and digests that states keep."""

import numpy as np
import pytest

from penstock.plan.epoch import Visits
from penstock.plan.order import RowGrouping
from penstock.plan.parts import PartGrouping
from penstock.plan.windows import WindowGrouping, WindowRule, WindowTable

COUNTS = np.array([5, 0, 3, 1], np.int64)


def windows(*, span=False):
    times = [np.arange(5), np.arange(0), np.arange(5, 8), np.arange(8, 9)]
    return WindowGrouping(WindowTable.build(times, WindowRule(2, 1), span=span))


def rows_of(found):
    """Chunk and row of every row, in order."""
    if found.runs is not None:
        return [(chunk, row) for chunk, first, end in found.runs for row in range(first, end)]
    return list(zip(found.chunk.tolist(), found.row.tolist(), strict=True))


# Users resume training across versions: these are the digests that states of version 1 keep.
@pytest.mark.parametrize(
    ("grouping", "digest"),
    [
        (RowGrouping(COUNTS), "abc"),
        (PartGrouping.cut(RowGrouping(COUNTS), 2, whole=False), "58561172150ee77f621c9931aa29e263"),
        (PartGrouping.cut(RowGrouping(COUNTS), 2, whole=True), "253a2ddb340acd1d34b5d9797120155f"),
    ],
)
def test_digests_are_pinned(grouping, digest):
    assert grouping.digest("abc") == digest


def test_digests_of_windows_are_pinned():
    times = [np.arange(5), np.arange(0), np.arange(3), np.arange(1)]
    found = WindowGrouping(WindowTable.build(times, WindowRule(2, 1), span=False))
    assert found.digest("abc") == "d9ef04a605b1bb903137cff51b2acf96"
    assert PartGrouping.cut(found, 1, whole=True).digest("abc") == "dca024bb67919d097eeb6579b6df7195"


def test_a_row_is_where_the_plan_says():
    found = RowGrouping(COUNTS).locate(np.array([2, 0]), np.array([1, 4]))
    assert rows_of(found) == [(2, 1), (0, 4)]
    assert found.windows is None
    assert found.starts is None


def test_parts_cover_every_row_once_and_none_is_empty():
    parts = PartGrouping.cut(RowGrouping(COUNTS), 2, whole=True)
    found = parts.locate_runs([(part, 0, 1) for part in range(len(parts.counts))])
    assert rows_of(found) == [(0, row) for row in range(5)] + [(2, row) for row in range(3)] + [(3, 0)]
    assert found.starts.tolist() == [0, 2, 5, 6, 8, 9]
    assert rows_of(parts.locate(np.array([1]), np.array([0]))) == [(0, 2), (0, 3), (0, 4)]


def test_units_of_parts_are_items_where_parts_are_not():
    parts = PartGrouping.cut(RowGrouping(COUNTS), 2, whole=False)
    assert parts.counts.tolist() == [2, 3, 1, 2, 1]
    assert rows_of(parts.locate_runs([(1, 1, 3), (4, 0, 1)])) == [(0, 3), (0, 4), (3, 0)]
    assert rows_of(parts.locate(np.array([3, 1]), np.array([1, 0]))) == [(2, 2), (0, 2)]


def test_neighbouring_windows_share_rows():
    found = windows().locate_runs([(0, 1, 3)])
    assert rows_of(found) == [(0, 1), (0, 2), (0, 3)]
    assert found.windows.tolist() == [[0, 1], [1, 2]]


def test_a_window_that_spans_chunks_needs_both():
    grouping = windows(span=True)
    assert rows_of(grouping.locate(np.array([0]), np.array([4]))) == [(0, 4), (2, 0)]
    visits = grouping.visits(Visits(np.array([0]), np.array([0]), np.array([5])))
    assert sorted(visits.chunk.tolist()) == [0, 1, 2]


def test_whole_parts_of_windows_tell_windows_and_items_apart():
    parts = PartGrouping.cut(windows(), 1, whole=True)
    found = parts.locate_runs([(0, 0, 1), (1, 0, 1)])
    assert found.starts.tolist() == [0, 4, 6]
    assert len(found.windows) == 6


@pytest.mark.parametrize("neighbours", [False, True])
def test_no_batch_has_more_rows_than_most_rows_says(neighbours):
    for grouping in (RowGrouping(COUNTS), windows(), PartGrouping.cut(windows(), 2, whole=True)):
        total = int(grouping.counts[0])
        for size in range(1, total + 1):
            found = grouping.locate_runs([(0, first, first + 1) for first in range(size)])
            assert len(rows_of(found)) <= grouping.most_rows(size, neighbours=neighbours)
