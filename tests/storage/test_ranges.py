"""Neighbouring ranges are read together, and every range lies whole in exactly one read."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.storage.remote_store import coalesce

RANGES = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 40)).map(lambda r: (r[0], r[0] + r[1])), max_size=20)


@settings(max_examples=50, deadline=None)
@given(ranges=RANGES, gap=st.integers(0, 30), most=st.integers(1, 200))
def test_every_range_lies_in_one_read(ranges, gap, most):
    fetches = coalesce(ranges, max_gap_bytes=gap, max_fetch_bytes=most)
    assert sorted(index for fetch in fetches for index in fetch.members) == list(range(len(ranges)))
    for fetch in fetches:
        starts, stops = zip(*(ranges[index] for index in fetch.members), strict=True)
        assert (fetch.start, fetch.stop) == (min(starts), max(stops))
        assert len(fetch.members) == 1 or fetch.stop - fetch.start <= most


@settings(max_examples=50, deadline=None)
@given(ranges=RANGES, gap=st.integers(0, 30))
def test_what_is_near_is_read_together_where_size_does_not_matter(ranges, gap):
    fetches = coalesce(ranges, max_gap_bytes=gap, max_fetch_bytes=10**9)
    for before, after in itertools.pairwise(fetches):
        assert after.start - before.stop > gap


def test_nothing_gives_nothing():
    assert coalesce([], max_gap_bytes=1, max_fetch_bytes=1) == []
