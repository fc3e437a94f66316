"""Every row once and one global order, whoever reads it, with what, and wherever it is stopped and resumed."""

from __future__ import annotations

import itertools
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock.errors import LoaderClosed, StateMismatch
from penstock.testing import assert_resumes_exactly, make_parquet, mixed, strategies
from tests.depth import depth
from tests.engine.make import column, dataset, deal, ids, run_ranks, save, tightest, with_positions

few = settings(max_examples=depth(30, 200), deadline=None)
KINDS = [False, "groups", True]


@st.composite
def orders(draw):
    """What decides the order, apart from the rows."""
    options = {"shuffle": draw(st.sampled_from([*KINDS, True])), "seed": draw(st.sampled_from([0, 7, 2**64 - 1]))}
    if options["shuffle"] is True:
        options["lanes"] = draw(st.none() | st.integers(1, 9))
        options["shuffle_bytes"] = draw(st.sampled_from([1, 500, 2000, 1 << 30]))
    return options


@st.composite
def selections(draw):
    """Filters for a dataset of a few dozen rows, or none."""
    low, high = sorted(draw(st.tuples(st.integers(0, 40), st.integers(0, 60))))
    kept = [("id", ">=", low), ("id", "<", high)]
    return draw(st.sampled_from([None, kept, [[("id", "<", low)], [("text", "=", f"row {high}")]]]))


def means(draw):
    """What must not decide the order: who does the work, with how much memory."""
    return {
        "pool": draw(st.sampled_from(["thread", "serial"])),
        "workers": draw(st.sampled_from([1, 2, 5])),
        "tight": draw(st.booleans()),
    }


def fitted(ds, world, *, tight, **options):
    """Options for a loader, with the tightest budget where asked for."""
    return {**options, "memory_bytes": tightest(ds, world=world, **options)} if tight else options


def chosen(ds, filters):
    return ds if filters is None else ds.where(filters)


@few
@given(data=st.data())
def test_every_row_comes_once_in_one_order_whatever_the_world(data):
    order = data.draw(orders())
    remainder, drop_last = data.draw(st.sampled_from(["drop", "pad", "uneven"])), data.draw(st.booleans())
    with dataset(data.draw(strategies.files())) as whole:
        ds = chosen(whole, data.draw(selections()))
        [base], _ = run_ranks(ds, world=1, batch_size=8, remainder="uneven", pool="serial", epochs=2, **order)
        line, total = ids(base), len(ds)
        expected = sorted(column([ds.take(range(total))], "id"))
        assert sorted(line[:total]) == sorted(line[total:]) == expected
        for world in (1, 2, 3, 4, 7):
            size = data.draw(st.integers(1, 9))
            options = {"batch_size": size, "remainder": remainder, "drop_last": drop_last, "epochs": 2, **order}
            options = fitted(ds, world, **options, **means(data.draw))
            streams, _ = run_ranks(ds, world=world, transform=with_positions, **options)
            for epoch in range(2):
                check_epoch(streams, line[epoch * total :][:total], epoch, options, world)


def check_epoch(streams, line, epoch, options, world):
    """Compare one epoch of all ranks with the order of the whole line and with the declared remainder."""
    total, size, found = len(line), options["batch_size"], {}
    for rank, stream in enumerate(streams):
        batches = stream[epoch * len(stream) // 2 :][: len(stream) // 2]
        dealt = {"drop": total // world, "pad": -(-total // world), "uneven": len(range(rank, total, world))}
        dealt = dealt[options["remainder"]]
        if options["drop_last"]:
            dealt -= dealt % size
        assert [len(b["id"]) for b in batches] == [min(size, dealt - at) for at in range(0, dealt, size)]
        for batch in batches:
            for i, position in enumerate(batch["position"].tolist()):
                padding = position >= total
                row = line[total - 1 - (position - total) % total if padding else position]
                assert batch["id"][i] == row
                assert options["remainder"] != "pad" or batch["_valid"][i] == (not padding)
                assert position not in found
                found[position] = row
    if not options["drop_last"]:
        # Lanes deal out a prefix of the order; a line drops its tail, which is the same places.
        rows = {"drop": total // world * world, "pad": -(-total // world) * world, "uneven": total}
        assert sorted(found) == list(range(rows[options["remainder"]]))


@few
@given(data=st.data())
def test_a_state_of_any_step_resumes_with_another_world_and_other_means(data):
    order = data.draw(orders())
    with dataset(data.draw(strategies.files())) as whole:
        ds = chosen(whole, data.draw(selections()))
        [base], _ = run_ranks(ds, world=1, batch_size=5, remainder="uneven", pool="serial", **order)
        state, got = None, []
        takes = [data.draw(st.integers(0, 4)), data.draw(st.integers(0, 3)), None]
        for take in takes:
            world, size = data.draw(st.sampled_from([1, 2, 3, 4])), data.draw(st.integers(1, 9))
            seen = ds.select(data.draw(st.permutations(["id", "value", "text"])))
            seen = seen.select(["id"]) if data.draw(st.booleans()) else seen
            other = {**order, **means(data.draw)}
            if state is not None:  # whose lanes and block count, not those of the window given here
                other |= {"shuffle_bytes": data.draw(st.sampled_from([1, 1 << 20])), "tight": False}
            other = fitted(seen, world, batch_size=size, remainder="uneven", **other)
            streams, states = run_ranks(seen, world=world, take=take, state=state, **other)
            got += deal([ids(stream) for stream in streams])
            if take is None:
                break
            steps = [len(stream) for stream in streams]
            assert all(s == states[0] for s, n in zip(states, steps, strict=True) if n == steps[0])
            state = states[0]
            if state["epoch"]:  # the epoch ended within this leg
                break
        assert sorted(got) == sorted(ids(base))
        if order["shuffle"] is True:
            assert got == ids(base)


@few
@given(data=st.data())
def test_len_is_exact_at_every_moment(data):
    with dataset(data.draw(strategies.files())) as ds:
        epochs, world = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
        options = {
            "batch_size": data.draw(st.integers(1, 9)),
            "remainder": data.draw(st.sampled_from(["drop", "pad", "uneven"])),
            "drop_last": data.draw(st.booleans()),
            "epochs": epochs,
            "rank": data.draw(st.integers(0, world - 1)),
            "world": world,
            **data.draw(orders()),
        }
        with ds.loader(**options) as loader:
            first = len(loader)
            for _ in range(2):
                left = first
                assert len(loader) == loader.batches_left == left
                for _ in loader:
                    left -= 1
                    assert (len(loader), loader.batches_left) == (first, left)
                    with ds.loader(**options) as resumed:
                        resumed.load_state_dict(save(loader))
                        # A state at the end of a pass is the beginning of the next one. Ranks that have run out of
                        # rows before the others are at the same step as they are: nothing is left for them.
                        assert len(resumed) in ({left, first} if left == 0 else {left})
                assert left == 0


@pytest.fixture(scope="module")
def numbers_ds(tmp_path_factory):
    return penstock.open(make_parquet(tmp_path_factory.mktemp("order") / "data"))


@pytest.mark.parametrize("shuffle", KINDS)
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_processes_give_what_threads_give(numbers_ds, shuffle, workers):
    options = {"batch_size": 4, "shuffle": shuffle, "lanes": 3 if shuffle is True else None, "shuffle_bytes": 256}
    with (
        numbers_ds.loader(**options) as threads,
        numbers_ds.loader(pool="process", workers=workers, **options) as processes,
    ):
        assert ids(threads) == ids(processes)


@pytest.mark.parametrize("shuffle", KINDS)
def test_a_thread_run_goes_on_in_processes(numbers_ds, shuffle):
    options = {"batch_size": 6, "shuffle": shuffle, "seed": 3}
    with numbers_ds.loader(**options) as loader:
        it = iter(loader)
        head = ids(itertools.islice(it, 4))
        state = save(loader)
    with numbers_ds.loader(pool="process", workers=2, **{**options, "batch_size": 5}) as loader:
        loader.load_state_dict(state)
        assert sorted(head + ids(loader)) == list(range(51))


@pytest.mark.parametrize("shuffle", KINDS)
@pytest.mark.parametrize("world", [2, 3, 4, 7])
@pytest.mark.parametrize("remainder", ["drop", "pad", "uneven"])
def test_ranks_agree_on_the_state_at_every_step(numbers_ds, shuffle, world, remainder):
    options = {"batch_size": 2, "shuffle": shuffle, "remainder": remainder, "epochs": 2}
    loaders = [numbers_ds.loader(rank=rank, world=world, **options) for rank in range(world)]
    steps = min(map(len, loaders)) // 2  # the first epoch: in the second, uneven ranks part (test_uneven.py)
    its = [iter(loader) for loader in loaders]
    for _ in range(steps):
        for it in its:
            next(it)
        states = [save(loader) for loader in loaders]
        assert all(state == states[0] for state in states)
    for loader in loaders:
        loader.close()


def test_epochs_have_their_own_orders_and_no_batch_crosses_one(numbers_ds):
    with numbers_ds.loader(batch_size=20, shuffle=True, epochs=3) as loader:
        batches = list(loader)
    assert [len(b["id"]) for b in batches] == [20, 20, 11] * 3
    epochs = [ids(batches[i : i + 3]) for i in (0, 3, 6)]
    assert all(sorted(epoch) == list(range(51)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_endless_epochs_go_on(numbers_ds):
    with numbers_ds.loader(batch_size=20, shuffle=True, epochs=None) as endless:
        got = ids(itertools.islice(endless, 13))
        assert endless.state_dict()["epoch"] == 4
        with pytest.raises(TypeError, match="epochs=None has no length"):
            len(endless)
    with numbers_ds.loader(batch_size=20, shuffle=True, epochs=5) as loader:
        assert ids(itertools.islice(loader, 13)) == got


@pytest.mark.parametrize("shuffle", KINDS)
@pytest.mark.parametrize("epochs", [1, 2, None])
def test_break_and_iterate_again_starts_the_next_pass(numbers_ds, shuffle, epochs):
    with numbers_ds.loader(batch_size=20, shuffle=shuffle, epochs=epochs) as loader:
        for _ in loader:
            break
        assert loader.state_dict()["epoch"] == 0
        again = next(iter(loader))
        assert loader.state_dict()["epoch"] == (epochs or 1)
    with numbers_ds.loader(batch_size=20, shuffle=shuffle, epochs=5) as loader:
        batches = list(loader)
    assert again["id"].tolist() == batches[3 * (epochs or 1)]["id"].tolist()


def test_break_at_the_last_batch_starts_the_next_pass_too(numbers_ds):
    with numbers_ds.loader(batch_size=51) as loader:
        next(iter(loader))
        assert loader.state_dict()["epoch"] == 1
        next(iter(loader))
        assert loader.state_dict()["epoch"] == 2


def test_iter_twice_without_a_batch_stays_where_it_is(numbers_ds):
    with numbers_ds.loader(batch_size=10, shuffle=True) as loader:
        before = save(loader)
        iter(loader)
        iter(loader)
        assert save(loader) == before
        first = ids(loader)
    with numbers_ds.loader(batch_size=10, shuffle=True) as loader:
        assert ids(loader) == first


def test_a_second_iterator_ends_the_first(numbers_ds):
    with numbers_ds.loader(batch_size=10) as loader:
        one = iter(loader)
        next(one)
        two = iter(loader)
        with pytest.raises(LoaderClosed, match="another one was made"):
            next(one)
        assert next(two)["id"].tolist() == list(range(10))


def test_loading_a_state_in_the_middle_of_an_iteration_ends_it(numbers_ds):
    with numbers_ds.loader(batch_size=10, shuffle=True) as loader:
        it = iter(loader)
        next(it)
        state = save(loader)
        next(it)
        next(it)
        loader.load_state_dict(state)
        with pytest.raises(LoaderClosed, match="a state was loaded"):
            next(it)
        assert save(loader) == state
        rest = ids(loader)
    with numbers_ds.loader(batch_size=10, shuffle=True) as loader:
        assert ids(loader)[10:] == rest


def test_a_state_loaded_while_another_thread_takes_a_batch_is_not_overwritten(numbers_ds):
    with numbers_ds.loader(batch_size=10, shuffle=True) as loader:
        it = iter(loader)
        next(it)
        state = save(loader)
        stream = loader.stream()
        delivery = stream.take()
        loader.load_state_dict(state)
        with pytest.raises(LoaderClosed, match="a state was loaded"):
            stream.received(delivery.place)
        assert save(loader) == state


def test_a_state_before_the_first_batch_is_the_beginning(numbers_ds):
    with numbers_ds.loader(batch_size=10, shuffle=True, seed=5) as loader:
        state = save(loader)
        assert (state["epoch"], state["position"], state["seed"], state["order"]) == (0, 0, 5, "lanes-1")
        whole = ids(loader)
    with numbers_ds.loader(batch_size=10, shuffle=True, seed=5) as loader:
        loader.load_state_dict(state)
        assert ids(loader) == whole


def test_what_was_prefetched_does_not_count(numbers_ds):
    with numbers_ds.loader(batch_size=1, shuffle=True, workers=5) as loader:
        for step, _ in enumerate(loader, 1):
            assert loader.state_dict()["position"] == (step if step < 51 else 0)


def test_a_copy_of_the_dataset_resumes(tmp_path):
    source = make_parquet(tmp_path / "one")
    shutil.copytree(source, tmp_path / "deep" / "two")
    with penstock.open(source).loader(batch_size=10, shuffle="groups") as loader:
        it = iter(loader)
        head = ids([next(it), next(it)])
        state = save(loader)
    with penstock.open(tmp_path / "deep" / "two").loader(batch_size=10, shuffle="groups") as loader:
        loader.load_state_dict(state)
        assert sorted(head + ids(loader)) == list(range(51))


def test_states_of_other_runs_are_refused_and_change_nothing(numbers_ds, tmp_path):
    other = penstock.open(make_parquet(tmp_path, [[51]]))
    mine = {"batch_size": 10, "shuffle": True, "seed": 1}
    strangers = {
        "dataset": (other, mine),
        "rows": (numbers_ds.where([("id", "<", 40)]), mine),
        "order": (numbers_ds, {**mine, "shuffle": False}),
        "seed": (numbers_ds, {**mine, "seed": 2}),
    }
    with numbers_ds.loader(**mine) as loader:
        it = iter(loader)
        next(it)
        before = save(loader)
        for part, (ds, options) in strangers.items():
            with ds.loader(**options) as stranger, pytest.raises(StateMismatch, match=f"cannot resume: {part} of"):
                loader.load_state_dict(stranger.state_dict())
            assert save(loader) == before
        assert len(list(it)) == 5  # a refused state does not end the iteration


@pytest.mark.parametrize("shuffle", KINDS)
def test_damaged_states_are_refused(numbers_ds, shuffle):
    with numbers_ds.loader(batch_size=10, shuffle=shuffle) as loader:
        good = save(loader)
        for name in good.keys() - {"content"}:  # a state without it is one of an older release
            with pytest.raises(StateMismatch, match="damaged state"):
                loader.load_state_dict({key: value for key, value in good.items() if key != name})
        bad = [("version", 2), ("order", "spiral-1"), ("epoch", -1), ("epoch", 1.5), ("seed", -1)]
        bad += [("position", 52), ("position", -1), ("lanes", 0), ("block", 0)] if shuffle is True else []
        lefts = ([[0, 52]], [[5, 2]], [[0, 5], [3, 9]], [1], {})
        bad += [("left", left) for left in lefts] if shuffle is not True else []
        for name, value in bad:
            with pytest.raises(StateMismatch):
                loader.load_state_dict({**good, name: value})
        for value in (None, [], "state"):
            with pytest.raises(StateMismatch, match="a state is the dict"):
                loader.load_state_dict(value)
        assert sorted(ids(loader)) == list(range(51))


@pytest.fixture(scope="module")
def mixed_ds(tmp_path_factory):
    return penstock.open(make_parquet(tmp_path_factory.mktemp("order") / "mixed", columns=mixed))


@pytest.mark.parametrize("remainder", ["drop", "pad", "uneven"])
@pytest.mark.parametrize("shuffle", KINDS)
@pytest.mark.parametrize("pool", ["thread", "serial"])
def test_loaders_resume_exactly_at_every_step(mixed_ds, pool, shuffle, remainder):
    options = {"lanes": 3, "shuffle_bytes": 800} if shuffle is True else {}
    share = {"rank": 1, "world": 3, "remainder": remainder}
    assert (
        assert_resumes_exactly(
            lambda: mixed_ds.loader(batch_size=4, shuffle=shuffle, pool=pool, workers=2, **share, **options)
        )
        > 8
    )


@pytest.mark.parametrize("shuffle", KINDS)
def test_loaders_of_processes_resume_exactly(mixed_ds, shuffle):
    assert_resumes_exactly(
        lambda: mixed_ds.loader(batch_size=16, shuffle=shuffle, pool="process", workers=1), every=depth(3, 1)
    )


def test_loaders_of_several_epochs_resume_exactly(mixed_ds):
    assert_resumes_exactly(lambda: mixed_ds.loader(batch_size=11, shuffle=True, epochs=2, pad=-1))
    assert_resumes_exactly(lambda: mixed_ds.loader(batch_size=20, epochs=None), passes=1, max_steps=8)


def test_a_dataset_without_rows_gives_no_batches(tmp_path):
    ds = penstock.open(make_parquet(tmp_path, [[], []]))
    for shuffle in KINDS:
        with ds.loader(batch_size=4, shuffle=shuffle, epochs=2) as loader:
            assert len(loader) == 0
            assert list(loader) == list(loader) == []


def test_fewer_rows_than_ranks(tmp_path):
    ds = penstock.open(make_parquet(tmp_path, [[2], [1]]))
    for shuffle in KINDS:
        streams, _ = run_ranks(ds, world=7, batch_size=2, shuffle=shuffle, remainder="uneven")
        assert sorted(deal([ids(s) for s in streams])) == [0, 1, 2]
        streams, _ = run_ranks(ds, world=7, batch_size=2, shuffle=shuffle, remainder="drop")
        assert streams == [[]] * 7
        streams, _ = run_ranks(ds, world=7, batch_size=2, shuffle=shuffle, remainder="pad")
        assert [len(s) for s in streams] == [1] * 7
        assert sum(int(b["_valid"].sum()) for s in streams for b in s) == 3


# -- workers that share a pass ---------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=depth(25, 300))
@given(data=st.data())
def test_strided_loaders_deliver_the_pass_in_turn(data):
    groups = data.draw(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=5), min_size=1, max_size=3))
    step, epochs = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    how = {
        "batch_size": data.draw(st.integers(1, 7)), "shuffle": data.draw(st.sampled_from([False, "groups", True])),
        "seed": 3, "epochs": epochs, "pool": "serial",
    }  # fmt: skip
    with dataset(groups) as ds:
        whole = [batch["id"].tolist() for batch in ds.loader(**how)]
        for first in range(step):
            own = whole[first::step]
            skip = data.draw(st.integers(0, len(own) - 1)) if own else 0
            with ds.loader(**how) as loader:
                start = loader.place_after(loader.place(), skip * step)
                stream = loader.stream(start=start, every=(first, step))
                assert stream.length == len(own) - skip
                assert [batch["id"].tolist() for batch in stream] == own[skip:]
