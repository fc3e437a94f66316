"""Columns cut into batches, over the borders of what a reader gives: the same as rows put together one by one."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.codecs.row_values import row_values
from penstock.errors import StateMismatch
from penstock.petastorm._row_feed import RowBlock, RowFeed, cut, join, make_feed
from penstock.petastorm.reader import make_batch_reader, make_reader
from penstock.testing import make_parquet

KINDS = ("int", "float", "mixed", "masked", "text", "list", "wide", "odd")


class Blocks:
    """Gives blocks of rows."""

    def __init__(self, blocks):
        self.blocks = list(blocks)

    def take(self):
        return self.blocks.pop(0) if self.blocks else None


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
    blocks = [
        RowBlock({"a": column(kind, np.arange(lo, hi), number), "i": np.arange(lo, hi)}, hi - lo, number)
        for number, (lo, hi) in enumerate(itertools.pairwise(ends))
        if hi > lo
    ]
    if blocks:
        skip = min(skip, blocks[0].num_rows - 1)
        blocks[0] = RowBlock(blocks[0].columns, blocks[0].num_rows, blocks[0].origin, skip)
    rows = [
        (plain_value(a), int(i))
        for block in blocks
        for a, i in list(zip(row_values(block.columns["a"]), block.columns["i"], strict=True))[block.first :]
    ]
    feed = Blocks(blocks)
    batches = list(cut(feed, size))
    found = [
        [(plain_value(a), int(i)) for a, i in zip(row_values(batch.columns["a"]), batch.columns["i"], strict=True)]
        for batch in batches
    ]
    assert found == [rows[lo : lo + size] for lo in range(0, len(rows), size)]
    for batch, values in zip(batches, found, strict=True):
        if len(values) == size:
            assert int(ends[batch.block.origin]) + batch.end == values[-1][1] + 1
        else:
            assert batch is batches[-1]
            assert batch.end is None


def test_a_batch_inside_one_block_is_a_view():
    values = np.arange(10)
    batches = list(cut(Blocks([RowBlock({"a": values}, 10)]), 5))
    assert all(np.shares_memory(batch.columns["a"], values) for batch in batches)


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
        fast, slow = make_feed(one, 7, shuffle=0), RowFeed(two, 7, 0)
        for a, b in zip(cut(fast, 7), cut(slow, 7), strict=True):
            assert list(a.columns) == list(b.columns) == ["id", "value"]
            assert [list(values) for values in a.columns.values()] == [list(values) for values in b.columns.values()]


def test_a_state_inside_a_row_group_belongs_to_its_shard(tmp_path):
    url = make_parquet(tmp_path / "d", [(10, 11, 12, 13)]).as_uri()

    def make(shard, count):
        return make_feed(make_batch_reader(url, seed=1, cur_shard=shard, shard_count=count), 4, shuffle=0)

    feed = make(0, 2)
    batches = [batch.columns["id"].tolist() for batch in cut(feed, 4)]
    feed = make(0, 2)
    for batch, _ in zip(cut(feed, 4), range(2), strict=False):
        feed.received(batch.block, batch.end)
    state = json.loads(json.dumps(feed.state()))
    assert {name: state[name] for name in ("skip", "cur_shard", "shard_count")} == {
        "skip": 8,
        "cur_shard": 0,
        "shard_count": 2,
    }
    same = make(0, 2)
    same.load(state)
    assert [batch.columns["id"].tolist() for batch in cut(same, 4)] == batches[2:]
    for shard, count in [(1, 2), (0, 3), (0, 1)]:
        with pytest.raises(StateMismatch, match="cur_shard=0, shard_count=2"):
            make(shard, count).load(state)
    same.load({name: state[name] for name in ("version", "reader", "skip")})  # as earlier versions stored it
    assert [batch.columns["id"].tolist() for batch in cut(same, 4)] == batches[2:]


def test_nothing_is_received_before_the_consumer_says_so(tmp_path):
    url = make_parquet(tmp_path / "d").as_uri()
    for factory in (make_reader, make_batch_reader):
        with factory(url, seed=1) as reader:
            feed = make_feed(reader, 7, shuffle=0)
            before = feed.state()
            batches = list(cut(feed, 7))
            assert feed.state() == before
            feed.received(batches[1].block, batches[1].end)
            feed.pause()
            again = [batch.columns["id"].tolist() for batch in cut(feed, 7)]
            assert again == [batch.columns["id"].tolist() for batch in batches[2:]]
