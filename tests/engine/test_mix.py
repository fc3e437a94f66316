"""Mixing: what is drawn when, what every batch has, where a pass ends, and that a saved mix goes on exactly."""

from __future__ import annotations

import copy
import gc
import itertools
import json
import threading

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import penstock
from penstock.errors import LoaderClosed, PlanError, StateMismatch
from penstock.plan.draws import Draws
from penstock.testing import assert_resumes_exactly, difference, make_parquet, mixed
from tests.depth import depth
from tests.engine.make import save
from tests.engine.mixes import SIZES, alone, make, run, three_sets


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    return three_sets(tmp_path_factory.mktemp("mix"))


# -- draws ------------------------------------------------------------------------------------------------------------


def test_each_batch_is_the_next_one_of_the_loader_drawn(sets):
    with make(sets, stop="all") as mix:
        got = run(mix)
    for index, ds in enumerate(sets):
        assert [ids for source, ids in got if source == index] == alone(ds)


def test_the_order_of_sources_is_pinned(sets):
    # Users resume training across versions: change these only with a new order name (NAME in plan/draws.py).
    with make(sets, stop="all") as mix:
        assert [source for source, _ in run(mix)] == [0, 2, 0, 0, 0, 0, 2, 0, 1, 2, 1, 1, 2, 2, 1, 1, 2, 2, 2, 2, 2]
        assert [source for source, _ in run(mix)] == [0, 1, 0, 2, 1, 1, 0, 0, 1, 1, 2, 0, 0, 2, 2, 2, 2, 2, 2, 2, 2]


def test_sources_depend_on_seed_and_weights_only(sets):
    def sources(**options):
        with make(sets, **options) as mix:
            return [source for source, _ in run(mix)][:6]

    assert sources() == sources(batch_size=5) == sources(shuffle=False, pool="serial", workers=None)
    assert sources() != sources(seed=8)
    assert sources() != sources(weights=(1, 2, 3))
    assert sources(weights=(3, 2, 1)) == sources(weights=(0.75, 0.5, 0.25))


def test_every_rank_draws_the_same_loader_at_the_same_step(sets):
    seen, states = [], []
    for rank in range(2):
        with make(sets, stop="all", rank=rank, world=2, batch_size=3) as mix:
            seen.append([mix.source for _ in itertools.islice(iter(mix), 6)])
            states.append(save(mix))
    assert seen[0] == seen[1]
    assert states[0] == states[1]


# -- the end of a pass ------------------------------------------------------------------------------------------------


def test_first_ends_a_pass_when_an_exhausted_loader_is_drawn(sets):
    with make(sets) as mix:
        got = run(mix)
    expected = Draws((3, 2, 1), 7).block(0, pass_number=0, among=[True] * 3).tolist()
    assert [source for source, _ in got] == expected[: len(got)]
    drawn = expected[len(got)]
    counts = [sum(source == index for source, _ in got) for index in range(3)]
    full = [-(-size // 4) for size in SIZES]
    assert counts[drawn] == full[drawn]
    assert all(count <= most for count, most in zip(counts, full, strict=True))


def test_first_begins_a_new_pass_of_every_loader(sets):
    with make(sets) as mix:
        run(mix)
        second = run(mix)
    for index, ds in enumerate(sets):
        epoch = alone(ds, epochs=2)
        epoch = epoch[len(epoch) // 2 :]
        got = [ids for source, ids in second if source == index]
        assert got == epoch[: len(got)]
        assert got


def test_all_gives_every_row_of_every_loader_once_a_pass(sets):
    everything = sorted(1000 * i + row for i, size in enumerate(SIZES) for row in range(size))
    with make(sets, stop="all") as mix:
        for _ in range(2):
            assert sorted(i for _, ids in run(mix) for i in ids) == everything


def test_an_endless_loader_goes_on_where_it_was_in_every_pass(sets):
    with make(sets[:2], weights=(1, 3), each=({}, {"epochs": None})) as mix:
        got = run(mix) + run(mix) + run(mix)
    endless = [ids for source, ids in got if source == 1]
    assert endless == alone(sets[1], epochs=20)[: len(endless)]
    assert len(endless) > 5


def test_after_break_the_next_pass_begins(sets):
    with make(sets, stop="all") as mix, make(sets, stop="all") as other:
        for _ in itertools.islice(iter(mix), 9):
            pass
        run(other)
        got = run(mix)
        assert [source for source, _ in got] == [source for source, _ in run(other)]
        assert sorted(i for _, ids in got for i in ids if i < 1000) == list(range(SIZES[0]))
        assert mix.state_dict()["pass"] == 2


def test_a_loader_that_was_not_drawn_before_the_break_keeps_its_pass(sets):
    with make(sets[:2], weights=(1, 1e-6), stop="all") as mix:
        next(iter(mix))
        got = run(mix)
        assert [ids for source, ids in got if source == 1] == alone(sets[1])


def test_a_new_iterator_ends_the_one_before_it(sets):
    with make(sets) as mix:
        one = iter(mix)
        next(one)
        two = iter(mix)
        with pytest.raises(LoaderClosed, match="another one was made"):
            next(one)
        assert next(two) is not None


def test_an_ended_iterator_stays_ended(sets):
    with make(sets) as mix:
        one = iter(mix)
        assert len(list(one)) == len(list(one)) + len(list(make(sets)))
        assert mix.state_dict()["pass"] == 1


def test_loaders_without_rows_leave_a_mix_of_all_and_end_one_of_first(sets, tmp_path):
    empty = penstock.open(
        make_parquet(
            tmp_path / "empty", [()], columns=lambda r: {"id": pa.array(r), "half": pa.array(r.astype(np.float32))}
        )
    )
    with make([empty, sets[0]], stop="all") as mix:
        assert len(mix) == 6
        assert [source for source, _ in run(mix)] == [1] * 6
    with make([empty, sets[0]], stop="first") as mix:
        expected = Draws((3, 2), 7).block(0, pass_number=0, among=[True] * 2).tolist().index(0)
        assert len(mix) == expected == len(run(mix))
    with make([empty], stop="all") as mix:
        assert (len(mix), run(mix), run(mix)) == (0, [], [])


@pytest.mark.parametrize("stop", ["first", "all"])
def test_the_length_is_exact_at_every_step(sets, stop):
    with make(sets, stop=stop) as mix:
        total = len(mix)
        lengths = [(len(mix), mix.batches_left) for _ in mix]
        assert lengths == [(total, left) for left in range(total - 1, -1, -1)]
        assert len(mix) == len(run(mix))


def test_an_endless_mix_has_no_length(sets):
    with make(sets, epochs=None) as mix:
        with pytest.raises(TypeError, match="no length"):
            len(mix)
        assert "endless" in repr(mix)
        assert len(list(itertools.islice(mix, 100))) == 100


# -- state ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", ["first", "all"])
@pytest.mark.parametrize("shuffle", [True, "groups"])
def test_resumes_exactly(sets, stop, shuffle):
    tried = assert_resumes_exactly(
        lambda: make(sets, stop=stop, shuffle=shuffle, pool="serial", workers=None, batch_size=6),
        passes=2,
        every=depth(3, 1),
    )
    assert tried > 5


def test_resumes_exactly_with_threads_epochs_and_an_endless_loader(sets):
    each = ({"epochs": 2}, {"epochs": None}, {"shuffle": False})
    assert_resumes_exactly(lambda: make(sets, each=each, batch_size=8), passes=3, every=depth(5, 1))


def test_resumes_exactly_with_nulls_for_absent_columns(tmp_path, sets):
    other = penstock.open(make_parquet(tmp_path / "mixed", [(11, 2)], columns=mixed))
    assert_resumes_exactly(
        lambda: make([other, sets[0]], missing="null", stop="all", pool="serial", workers=None), every=depth(3, 1)
    )


@given(steps=st.integers(0, 12), size=st.sampled_from([1, 2, 4]), worlds=st.sampled_from([(2, 1), (1, 2), (2, 3)]))
@settings(max_examples=depth(10, 100), deadline=None)
def test_a_mix_resumes_on_another_world_and_loses_no_row(sets, steps, size, worlds):
    before, after = worlds
    options = {"stop": "all", "remainder": "uneven", "pool": "serial", "workers": None, "batch_size": size}
    rows, states = [], []
    for rank in range(before):
        with make(sets, rank=rank, world=before, **options) as mix:
            rows += [i for batch in itertools.islice(iter(mix), steps) for i in batch["id"].tolist()]
            states.append(save(mix))
    assume(states[0] == states[-1])  # ranks of uneven loaders part ways where one of them ends
    assume(states[0]["pass"] == 0)
    for rank in range(after):
        with make(sets, rank=rank, world=after, **options) as mix:
            mix.load_state_dict(states[0])
            rows += [i for batch in mix for i in batch["id"].tolist()]
    assert sorted(rows) == sorted(1000 * i + row for i, count in enumerate(SIZES) for row in range(count))


def test_a_state_is_small_json(sets):
    with make(sets) as mix:
        list(itertools.islice(iter(mix), 3))
        state = mix.state_dict()
    assert json.loads(json.dumps(state)) == state
    assert {key: state[key] for key in ("version", "order", "seed", "pass", "draws", "ended")} == {
        "version": 1, "order": "mix-1", "seed": 7, "pass": 0, "draws": 3, "ended": [],
    }  # fmt: skip
    assert [one["order"] for one in state["loaders"]] == ["lanes-1"] * 3
    assert len(json.dumps(state)) < 1000


def test_weights_may_change_on_resuming(sets):
    with make(sets[:2], weights=(1, 1), stop="all") as mix:
        rows = [i for batch in itertools.islice(iter(mix), 4) for i in batch["id"].tolist()]
        state = save(mix)
    with make(sets[:2], weights=(1, 1000), stop="all") as mix:
        mix.load_state_dict(state)
        rest = run(mix)
    assert [source for source, _ in rest[:2]] == [1, 1]
    assert sorted(rows + [i for _, ids in rest for i in ids]) == [*range(23), *range(1000, 1017)]


def test_a_state_whose_pass_is_over_goes_on_with_the_next_one(sets):
    """So it is under another `stop`, and where another thread saves while the last batch is handed over."""
    with make(sets[:2], weights=(1, 1e-9), stop="all") as mix:
        for _ in itertools.islice(iter(mix), 6):
            pass
        state = save(mix)
    assert (state["pass"], state["ended"]) == (0, [0])
    with make(sets[:2], weights=(1, 1e-9), stop="first") as mix:
        mix.load_state_dict(state)
        assert mix.state_dict()["pass"] == 1
        assert len(mix) == len(run(mix)) == 6


def test_the_pass_number_moves_on_with_the_last_batch(sets):
    with make(sets[:2], stop="all") as mix:
        length = len(mix)
        running = iter(mix)
        for _ in range(length):
            assert mix.pass_number == 0
            next(running)
        assert mix.pass_number == mix.state_dict()["pass"] == 1
        assert next(running, None) is None
        assert mix.pass_number == 1


def test_a_state_of_another_mix_is_refused_and_changes_nothing(sets):
    with make(sets[::-1]) as other, make(sets, seed=8) as seeded, make(sets[:2]) as fewer, make(sets) as mix:
        list(itertools.islice(iter(mix), 5))
        before = mix.state_dict()
        for wrong, match in [
            (other, "loader 0 of the mix: cannot resume: dataset"),
            (seeded, "seed of the state is 8, of this mix 7"),
            (fewer, "the state has 2 loaders, this mix 3"),
        ]:
            with pytest.raises(StateMismatch, match=match):
                mix.load_state_dict(wrong.state_dict())
            assert mix.state_dict() == before
        with pytest.raises(StateMismatch, match="got str"):
            mix.load_state_dict("no state")
        with pytest.raises(StateMismatch, match="the state of something else"):
            mix.load_state_dict(before["loaders"][0])
        with pytest.raises(StateMismatch, match="loaders"):
            mix.load_state_dict({**before, "loaders": None})
        twin = make(sets)
        twin.load_state_dict(before)
        mix.load_state_dict(before)
        assert difference(list(mix), list(twin)) is None
        twin.close()


def test_loaders_begin_where_they_are(sets):
    options = {"batch_size": 4, "shuffle": True}
    used = sets[0].loader(**options)
    list(itertools.islice(iter(used), 2))
    with penstock.mix([(used, 1), (sets[1].loader(**options), 1)], stop="all") as mix:
        assert len(mix) == 4 + 5
        assert [ids for source, ids in run(mix) if source == 0] == alone(sets[0])[2:]


def test_another_thread_saves_a_state_that_is_whole(sets):
    """Draws and places of loaders belong together at any moment: every saved state goes on to the same rest."""
    states, done = [], threading.Event()
    with make(sets, stop="all", batch_size=1, pool="serial", workers=None) as mix:

        def save_often():
            while not done.is_set():
                states.append(json.dumps(mix.state_dict()))

        saver = threading.Thread(target=save_often)
        saver.start()
        got = run(mix)
        done.set()
        saver.join()
    distinct = [json.loads(text) for text in dict.fromkeys(states)]
    for state in distinct[:: max(1, len(distinct) // depth(5, 50))]:
        with make(sets, stop="all", batch_size=1, pool="serial", workers=None) as mix:
            mix.load_state_dict(state)
            if mix.state_dict()["pass"] == 0:
                assert run(mix) == got[state["draws"] :]


# -- mistakes ---------------------------------------------------------------------------------------------------------


def test_mistakes_are_named(sets):
    loader, other = sets[0].loader(batch_size=4), sets[1].loader(batch_size=4)
    with pytest.raises(PlanError, match="at least one pair"):
        penstock.mix([])
    with pytest.raises(PlanError, match=r"takes pairs \(loader, weight\); item 0 is Loader"):
        penstock.mix([loader, other])
    assert len(loader) == 6  # it was not unpacked
    with pytest.raises(TypeError, match="item 1 is a Dataset"):
        penstock.mix([(loader, 1), (sets[1], 1)])
    with pytest.raises(PlanError, match="loaders 0 and 2 of the mix are one and the same"):
        penstock.mix([(loader, 1), (other, 1), (loader, 2)])
    for weight in (0, -1, float("nan"), True, "2", None):
        with pytest.raises(PlanError, match="that of loader 1 is"):
            penstock.mix([(loader, 1), (other, weight)])
    with pytest.raises(PlanError, match="finite"):
        penstock.mix([(loader, 1), (other, float("inf"))])
    with pytest.raises(PlanError, match="stop must be"):
        penstock.mix([(loader, 1)], stop="any")
    with pytest.raises(PlanError, match="missing must be one of 'error', 'null'; got 'drop'"):
        penstock.mix([(loader, 1)], missing="drop")
    with pytest.raises(PlanError, match="seed must be"):
        penstock.mix([(loader, 1)], seed=-1)
    with pytest.raises(PlanError, match="rank 0 of 1, loader 1 for rank 1 of 2"):
        penstock.mix([(loader, 1), (sets[1].loader(batch_size=4, rank=1, world=2), 1)])


# -- life -------------------------------------------------------------------------------------------------------------


def test_closing_closes_the_loaders(sets):
    loaders = [ds.loader(batch_size=4) for ds in sets]
    with penstock.mix([(loader, 1) for loader in loaders]) as mix:
        running = iter(mix)
        next(running)
    for loader in loaders:
        with pytest.raises(LoaderClosed):
            iter(loader)
    with pytest.raises(LoaderClosed):
        iter(mix)
    with pytest.raises(LoaderClosed):
        next(running)
    with pytest.raises(LoaderClosed):
        mix.load_state_dict(mix.state_dict())


def test_break_ends_the_threads_of_all_loaders(sets):
    mix = make(sets, batch_size=1, epochs=None)
    for _ in itertools.islice(iter(mix), 10):
        pass
    gc.collect()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("penstock")]
    mix.close()


def test_an_exhausted_loader_gives_its_threads_back_at_once(sets):
    with make(sets[:2], weights=(1000, 1), stop="all", batch_size=4) as mix:
        iterator = iter(mix)
        for _ in range(6):
            next(iterator)
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("penstock")]
        assert len(list(iterator)) == 5


def test_an_error_of_a_loader_comes_through_and_the_mix_stays_where_it_was(sets):
    def explode(batch):
        if 1004 in batch["id"]:
            raise ValueError("no good")
        return batch

    each = ({"shuffle": False}, {"shuffle": False, "transform": explode})
    options = {"weights": (1, 1), "each": each, "stop": "all"}
    with make(sets[:2], **options) as mix:
        iterator, got = iter(mix), []
        with pytest.raises(RuntimeError, match="no good"):
            got.extend(batch["id"].tolist() for batch in iterator)
        state = save(mix)
        assert state["draws"] == len(got)
        with pytest.raises(LoaderClosed, match="has failed"):
            next(iterator)
    with make(sets[:2], **{**options, "each": ({"shuffle": False},) * 2}) as mix:
        mix.load_state_dict(state)
        rest = [i for _, ids in run(mix) for i in ids]
    assert sorted([i for ids in got for i in ids] + rest) == [*range(23), *range(1000, 1017)]


def test_a_mix_says_what_it_is(sets):
    with make(sets, stop="all") as mix:
        assert repr(mix) == "Mix(3 loaders, rank=0/1, 21 batches left)"
        assert (mix.rank, mix.world, mix.source) == (0, 1, None)
        run(mix)
        assert mix.stats()["rows"] == sum(SIZES)
        assert mix.source in (0, 1, 2)
        with pytest.raises(TypeError, match="not pickled"):
            copy.copy(mix)
