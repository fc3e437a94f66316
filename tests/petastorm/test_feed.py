"""Columns cut into batches, over the borders of what a reader gives: the same as rows put together one by one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.codecs.row_values import row_values
from penstock.petastorm._feed import Chunk, Feed, cut, join, make_feed
from penstock.petastorm.reader import make_batch_reader, make_reader
from penstock.testing import make_parquet

KINDS = ("int", "float", "mixed", "masked", "text", "list", "wide", "odd")


class Chunks:
    """Gives chunks, and notes what the consumer has."""

    def __init__(self, chunks):
        self.chunks = list(chunks)
        self.out = []

    def take(self):
        return self.chunks.pop(0) if self.chunks else None

    def received(self, chunk, rows):
        self.out.append((chunk.place, rows))


def column(kind, rows, number):
    if kind == "mixed":  # a batch reader gives a column with nulls as floats, one without as it is
        return rows.astype(np.float64) if number % 2 else rows
    if kind == "masked":
        return np.ma.MaskedArray(rows, rows % 3 == 0) if number % 2 else rows
    if kind == "text":
        return np.array([f"{one}" for one in rows], np.object_)
    if kind == "list":
        return [np.arange(one % 3) for one in rows]
    if kind == "wide":
        return np.stack([rows, -rows], 1)
    if kind == "odd":
        return np.zeros((len(rows), 1 + number % 2))
    return rows.astype(kind)


def plain_value(value):
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 12), max_size=8), st.integers(1, 20), st.sampled_from(KINDS), st.integers(0, 3))
def test_batches_are_the_rows_cut_anew(sizes, size, kind, skip):
    ends = np.cumsum([0, *sizes])
    chunks = [
        Chunk({"a": column(kind, np.arange(lo, hi), number), "i": np.arange(lo, hi)}, hi - lo, number)
        for number, (lo, hi) in enumerate(itertools.pairwise(ends))
        if hi > lo
    ]
    if chunks:
        skip = min(skip, chunks[0].num_rows - 1)
        chunks[0] = Chunk(chunks[0].columns, chunks[0].num_rows, chunks[0].place, skip)
    rows = [
        (plain_value(a), int(i))
        for chunk in chunks
        for a, i in list(zip(row_values(chunk.columns["a"]), chunk.columns["i"], strict=True))[chunk.first :]
    ]
    feed = Chunks(chunks)
    batches = list(cut(feed, size))
    found = [
        [(plain_value(a), int(i)) for a, i in zip(row_values(batch["a"]), batch["i"], strict=True)] for batch in batches
    ]
    assert found == [rows[lo : lo + size] for lo in range(0, len(rows), size)]
    full = [batch for batch in found if len(batch) == size]
    assert [int(ends[place]) + count for place, count in feed.out] == [batch[-1][1] + 1 for batch in full]


def test_a_batch_inside_one_chunk_is_a_view():
    values = np.arange(10)
    batches = list(cut(Chunks([Chunk({"a": values}, 10)]), 5))
    assert all(np.shares_memory(batch["a"], values) for batch in batches)


def test_columns_that_do_not_fit_together_become_lists():
    assert join([np.array([True]), np.array([1.5])]) == [True, 1.5]
    assert join([np.array(["a"]), np.array([None], np.object_)]) == ["a", None]
    assert join([np.array(["a"]), np.array(["long"])]).tolist() == ["a", "long"]
    assert join([np.array([1]), [None]]) == [1, None]


@pytest.mark.parametrize("factory", [make_reader, make_batch_reader])
def test_whole_columns_are_what_the_items_are(tmp_path, factory):
    """A reader of ours is asked for what its workers have built; asked for its items it gives the same."""
    url = make_parquet(tmp_path / "d").as_uri()
    with factory(url, seed=1) as one, factory(url, seed=1) as two:
        fast, slow = make_feed(one, 7, shuffle=0), Feed(two, 7, 0)
        for a, b in zip(cut(fast, 7), cut(slow, 7), strict=True):
            assert list(a) == list(b) == ["id", "value"]
            assert [list(values) for values in a.values()] == [list(values) for values in b.values()]
