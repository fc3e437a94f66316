"""remainder="uneven" over several epochs: ranks part, say so in their states, and each goes on from its own."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import StateMismatch
from tests.depth import depth
from tests.engine.make import dataset

KINDS = [False, True, "groups"]
SEVEN = [[3, 2], [2]]


def save(loader):
    return json.loads(json.dumps(loader.state_dict()))


def rows_of(batch):
    return batch["id"].tolist()


def walk(ds, steps, **options):
    """Return the batches of one rank, and the state behind each of the first `steps`."""
    with ds.loader(**options) as loader:
        batches, states = [], [save(loader)]
        for batch in loader:
            batches.append(rows_of(batch))
            states.append(save(loader))
            if len(batches) == steps:
                break
    return batches, states


@pytest.mark.parametrize("shuffle", KINDS)
def test_states_agree_in_the_first_epoch_and_name_their_rank_in_later_ones(shuffle):
    options = {"batch_size": 1, "shuffle": shuffle, "remainder": "uneven", "epochs": 3, "world": 2}
    with dataset(SEVEN) as ds:
        (_, first), (_, second) = (walk(ds, None, rank=rank, **options) for rank in range(2))
    assert (len(first), len(second)) == (13, 10)  # 4 + 4 + 4 batches and 3 + 3 + 3, and the beginning
    assert first[:4] == second[:4]
    for rank, states in enumerate((first, second)):
        ends = 4 if rank == 0 else 3
        for step, state in enumerate(states):
            alone = step > ends if rank else ends <= step < 12
            assert (state.get("rank"), state.get("world")) == ((rank, 2) if alone else (None, None)), (rank, step)
    assert first[-1]["epoch"] == 3  # the next pass, where all ranks are together again


@pytest.mark.parametrize("shuffle", KINDS)
@pytest.mark.parametrize(
    ("files", "world", "size"), [([[8]], 2, 2), ([[5, 5]], 4, 4), (SEVEN, 1, 3)], ids=["even", "steps", "alone"]
)
def test_equal_numbers_of_batches_keep_ranks_together(shuffle, files, world, size):
    options = {"batch_size": size, "shuffle": shuffle, "remainder": "uneven", "epochs": 2, "world": world}
    with dataset(files) as ds:
        states = [walk(ds, None, rank=rank, **options)[1] for rank in range(world)]
    assert all(one == states[0] for one in states)
    assert all("rank" not in state for state in states[0])


@pytest.mark.parametrize("epochs", [1, 2])
def test_every_pass_begins_together(epochs):
    options = {"batch_size": 1, "remainder": "uneven", "epochs": epochs, "world": 2}
    with dataset(SEVEN) as ds:
        ranks = [ds.loader(rank=rank, **options) for rank in range(2)]
        for number in range(1, 4):
            for loader in ranks:
                assert len(list(loader)) == (4 - loader.rank) * epochs
                assert loader.pass_number == number
            assert save(ranks[0]) == save(ranks[1])
            assert "rank" not in save(ranks[0])
        for loader in ranks:
            next(iter(loader))
            assert "rank" not in save(loader)
            loader.close()


@pytest.mark.parametrize("other", [{"rank": 0}, {"world": 3}, {"rank": 0, "world": 1}, {"remainder": "drop"}])
def test_a_state_of_one_rank_is_refused_by_others(other):
    options = {"batch_size": 1, "remainder": "uneven", "epochs": 2, "rank": 1, "world": 2}
    with dataset(SEVEN) as ds:
        _, states = walk(ds, 5, **options)
        with ds.loader(**{**options, **other}) as loader:
            with pytest.raises(StateMismatch, match=r"rank 1 of 2 only.*load on each rank its own"):
                loader.load_state_dict(states[5])
            assert loader.state_dict()["epoch"] == 0
            loader.load_state_dict(states[3])


def test_a_damaged_owner_is_told():
    with dataset(SEVEN) as ds, ds.loader(batch_size=1) as loader:
        for entries in ({"rank": 1}, {"world": 2}, {"rank": "1", "world": 2}):
            with pytest.raises(StateMismatch, match="damaged state: entry"):
                loader.load_state_dict(loader.state_dict() | entries)


@settings(max_examples=depth(60, 2000), deadline=None)
@given(data=st.data())
def test_each_rank_goes_on_from_its_own_state_where_all_of_them_stopped(data):
    files = data.draw(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=3), min_size=1, max_size=3))
    world, epochs = data.draw(st.integers(2, 4)), data.draw(st.sampled_from([2, 3]))
    order = {"shuffle": data.draw(st.sampled_from(KINDS)), "seed": 3, "lanes": None}
    if order["shuffle"] is True:
        order["lanes"] = data.draw(st.sampled_from([None, 1, 2]))
    options = {"remainder": "uneven", "pool": "serial", "epochs": epochs, "world": world, **order}
    options["drop_last"] = data.draw(st.booleans())
    size = data.draw(st.integers(1, 4))
    other = size if options["drop_last"] else data.draw(st.integers(1, 4))
    steps = data.draw(st.integers(0, 20))
    with dataset(files) as ds:
        for rank in range(world):
            whole, states = walk(ds, None, rank=rank, batch_size=size, **options)
            with ds.loader(rank=rank, batch_size=other, **options) as loader:
                at = min(steps, len(whole))
                loader.load_state_dict(states[at])
                assert save(loader) == states[at]
                rest = [rows_of(batch) for batch in loader]
            if other == size and at < len(whole):
                assert rest == whole[at:]
            elif at < len(whole):
                assert [row for batch in rest for row in batch] == [row for batch in whole[at:] for row in batch]
