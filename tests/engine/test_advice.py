"""What a loader will do can be printed before it starts, and what could be better is said once, with the cure."""

from __future__ import annotations

import itertools
import logging
import warnings

import numpy as np
import pyarrow as pa
import pytest

import penstock
from penstock.engine import rank as ranks
from penstock.errors import BudgetError, PenstockWarning, PlanError
from penstock.testing import RecordingFileSystem, make_parquet
from tests.engine.make import ids, save


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    return penstock.open(make_parquet(tmp_path_factory.mktemp("advice") / "data", [[50] * 20]))


def advice(ds, **options):
    """The warnings that making a loader gives."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        ds.loader(**options).close()
    return found


def test_a_plan_is_what_its_loader_does(ds):
    options = {"batch_size": 8, "shuffle": True, "seed": 3, "lanes": 6, "shuffle_bytes": 4000, "remainder": "pad"}
    for rank in range(3):
        planned = ds.plan(rank=rank, world=3, **options)
        with ds.loader(rank=rank, world=3, **options) as loader:
            assert loader.plan == planned
            assert planned.num_steps == len(loader) == len(list(loader))
    assert repr(planned).startswith("Plan(epoch=0, rank=2/3, steps=42, rows=1_000, order='lanes-1', lanes=6,")
    text = str(planned)
    for line in (
        "rows     1,000 in 20 row groups",
        "steps    42 on each of 3 ranks: batches of 8 rows",
        "rows of padding: 2",
    ):
        assert line in text


def test_the_plan_of_a_resumed_loader_shows_what_is_left(ds):
    with ds.loader(batch_size=100, shuffle=True) as loader:
        it = iter(loader)
        next(it)
        assert "900 left in epoch 0" in str(loader.plan)
        state = save(loader)
    with ds.loader(batch_size=30, shuffle=True) as loader:
        loader.load_state_dict(state)
        assert "900 left in epoch 0" in str(loader.plan)
        assert loader.plan.num_steps == len(loader) == 30
        assert len(ids(loader)) == 900


def test_planning_reads_no_data(tmp_path):
    make_parquet(tmp_path / "data", [[50] * 20])
    recording = RecordingFileSystem()
    ds = penstock.open(str(tmp_path / "data"), filesystem=recording)
    recording.reads.clear()
    assert "rows     1,000" in str(ds.plan(batch_size=8, shuffle=True, world=4))
    assert recording.reads.num_reads == 0


def test_ranks_that_do_not_divide_the_lanes_are_told_which_would(ds):
    [one] = advice(ds, batch_size=8, shuffle=True, world=3, rank=1, lanes=4, shuffle_bytes=1000)
    assert one.category is PenstockWarning
    assert "read 3.00 times the bytes needed: 3 ranks do not divide 4 lanes; start the run with lanes=3" in str(
        one.message
    )
    assert one.filename == __file__  # the line that made the loader
    better = advice(ds, batch_size=8, shuffle=True, world=3, rank=1, lanes=3, shuffle_bytes=1 << 20)
    assert not any("bytes needed" in str(warning.message) for warning in better)


def test_a_batch_from_few_row_groups_is_told(ds):
    [one] = advice(ds, batch_size=64, shuffle=True, lanes=1, shuffle_bytes=1000)
    assert "a batch draws from about 3 row groups only" in str(one.message)
    assert "larger shuffle_bytes or more lanes" in str(one.message)


@pytest.mark.parametrize("shuffle", [False, "groups", True])
def test_nothing_is_said_where_nothing_could_be_better(ds, shuffle):
    assert advice(ds, batch_size=64, shuffle=shuffle) == []


def test_a_loader_says_what_it_is(ds):
    with ds.loader(batch_size=64, shuffle=True, rank=1, world=2) as loader:
        assert repr(loader) == "Loader('lanes-1', batch_size=64, rank=1/2, 8 batches left)"
        next(iter(loader))
        assert "7 batches left" in repr(loader)
    with ds.loader(batch_size=64, epochs=None) as loader:
        assert repr(loader) == "Loader('natural-1', batch_size=64, rank=0/1, endless)"


def test_stats_count_what_was_done(ds):
    with ds.loader(batch_size=64, epochs=2, shuffle=True) as loader:
        assert loader.stats()["rows"] == 0
        list(loader)
        stats = loader.stats()
    assert (stats["rows"], stats["batches"], stats["chunks_read"]) == (2000, 32, 20)
    assert stats["bytes_read"] >= 1000 * 12
    assert all(stats[name] > 0 for name in ("read_s", "gather_s", "finish_s"))
    assert stats["wait_s"] >= 0


# -- options --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1; got 0"),
        ({"batch_size": 2.5}, "batch_size must be a whole number; got 2.5"),
        ({"batch_size": True}, "batch_size must be at least 1; got True"),
        ({"shuffle": "rows"}, "shuffle must be one of False, True, 'groups'; got 'rows'"),
        ({"shuffle": 1}, "shuffle must be one of"),
        ({"seed": -1}, "seed must be at least 0; got -1"),
        ({"seed": 1 << 64}, r"seed must be in \[0, 2\*\*64\); got"),
        ({"seed": 1.5}, "seed must be a whole number; got 1.5"),
        ({"epochs": 0}, "epochs must be at least 1; got 0"),
        ({"workers": 0}, "workers must be at least 1"),
        ({"lanes": 0, "shuffle": True}, "lanes must be at least 1"),
        ({"rank": 1}, "rank=1 needs world= as well"),
        ({"world": 3}, "world=3 needs rank= as well"),
        ({"rank": 3, "world": 3}, r"rank must be in \[0, 3\); got 3"),
        ({"rank": -1, "world": 3}, "rank must be at least 0; got -1"),
        ({"rank": 0.5, "world": 3}, "rank must be a whole number"),
        ({"batch_size": None}, "batch_size must be a whole number; got None"),
        ({"seed": None}, "seed must be a whole number; got None"),
        ({"remainder": "round"}, "remainder must be one of 'drop', 'pad', 'uneven'"),
        ({"pool": "threads"}, "pool must be one of"),
        ({"on_error": "ignore"}, "on_error must be one of"),
        ({"on_error": "skip", "skip_limit": -1}, "skip_limit must be at least 0; got -1"),
        ({"skip_limit": 3}, "skip_limit=3 needs on_error='skip'"),
        ({"lanes": 4}, "lanes=4 needs shuffle=True"),
        ({"epochs": None, "batch_size": 2000, "drop_last": True}, "epochs=None would wait forever"),
    ],
)
def test_wrong_options_are_refused_when_the_loader_is_made(ds, options, wrong):
    with pytest.raises(PlanError, match=wrong):
        ds.loader(**{"batch_size": 8, **options})


@pytest.mark.parametrize("shuffle", [False, "groups", True])
def test_numbers_may_be_numpys(ds, shuffle):
    plain = {"batch_size": 5, "seed": 7, "epochs": 2, "rank": 1, "world": 2, "workers": 2, "memory_bytes": 1 << 28}
    with ds.loader(shuffle=shuffle, **plain) as loader:
        it = iter(loader)
        first, state = next(it)["id"].tolist(), save(loader)
    kinds = itertools.cycle([np.int64, np.uint64, np.int32])
    with ds.loader(shuffle=shuffle, **{name: next(kinds)(value) for name, value in plain.items()}) as loader:
        it = iter(loader)
        assert next(it)["id"].tolist() == first
        assert save(loader) == state
        assert (len(loader), loader.batches_left) == (200, 199)


def test_a_column_called_as_the_mask_is_refused_beside_it(tmp_path):
    ds = penstock.open(make_parquet(tmp_path, [[5]], columns=lambda rows: {"_valid": pa.array(rows)}))
    with ds.loader(batch_size=5) as loader:
        assert next(iter(loader))["_valid"].tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(PlanError, match="remainder='pad' adds a column '_valid', which the dataset has already"):
        ds.loader(batch_size=5, remainder="pad")


def test_too_little_memory_names_the_least_that_works(ds):
    with pytest.raises(BudgetError, match=r"memory_bytes=100 is too little.*need at least") as caught:
        ds.loader(batch_size=8, shuffle=True, memory_bytes=100)
    with ds.loader(batch_size=8, shuffle=True, memory_bytes=caught.value.least) as loader:
        assert sorted(ids(loader)) == list(range(1000))
    with pytest.raises(BudgetError):
        ds.loader(batch_size=8, shuffle=True, memory_bytes=caught.value.least - 1)


@pytest.mark.parametrize("shuffle", [False, "groups"])
def test_too_little_memory_for_stored_order_does_not_speak_of_a_shuffle_buffer(ds, shuffle):
    with pytest.raises(BudgetError, match=r"bytes of row groups in use, one read.*or lower batch_size") as caught:
        ds.loader(batch_size=8, shuffle=shuffle, memory_bytes=100)
    assert "shuffle" not in str(caught.value)


def test_too_little_memory_names_the_largest_row_group(tmp_path):
    path = make_parquet(tmp_path, [[10, 2000, 10]])
    with pytest.raises(BudgetError, match=r"the largest row group: .*\.parquet, row group 1, [\d,]{6,} bytes"):
        penstock.open(path).loader(batch_size=8, memory_bytes=1000)


def test_a_state_that_needs_more_memory_is_refused_and_changes_nothing(ds):
    with ds.loader(batch_size=8, shuffle=True, shuffle_bytes=1 << 20) as wide:
        it = iter(wide)
        next(it)
        state = save(wide)
    with pytest.raises(BudgetError) as caught:
        ds.loader(batch_size=8, shuffle=True, shuffle_bytes=1, lanes=1, memory_bytes=1)
    with ds.loader(batch_size=8, shuffle=True, shuffle_bytes=1, lanes=1, memory_bytes=caught.value.least) as loader:
        before = save(loader)
        with pytest.raises(
            BudgetError, match=r"need at least.*lanes, block and parts are those of the state$"
        ) as caught:
            loader.load_state_dict(state)
        assert "shuffle_bytes" not in str(caught.value), "the buffer is that of the state"
        assert save(loader) == before
        assert sorted(ids(loader)) == list(range(1000))


def test_rank_and_world_come_from_the_launcher_and_are_logged_once(ds, monkeypatch, caplog):
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setattr(ranks, "_announced", {})
    with caplog.at_level(logging.INFO, logger="penstock"):
        for _ in range(2):
            with ds.loader(batch_size=8) as loader:
                assert (loader.rank, loader.world) == (2, 4)
                assert len(ids(loader)) == 250
    assert [record.getMessage() for record in caplog.records] == [
        "rank 2 of 4, from the environment variables RANK and WORLD_SIZE; pass rank= and world= to override"
    ]
    with ds.loader(batch_size=8, rank=0, world=1) as loader:
        assert (loader.rank, loader.world) == (0, 1)
    monkeypatch.setenv("RANK", "4")
    with pytest.raises(PlanError, match="are '4' and '4', which is not a rank below a world"):
        ds.loader(batch_size=8)


def test_the_plan_names_the_memory_that_the_loader_demands(ds):
    some = ds.where([("id", ">", 30)])
    options = {"batch_size": 8, "shuffle": True, "lanes": 4, "shuffle_bytes": 2000}
    least = some.plan(**options).least_memory_bytes
    some.loader(memory_bytes=least, **options).close()
    with pytest.raises(BudgetError) as caught:
        some.loader(memory_bytes=least - 1, **options)
    assert caught.value.least == least
