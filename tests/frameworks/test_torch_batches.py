"""`Batches` in a DataLoader: the native order for any number of workers and any start method, with states."""

from __future__ import annotations

import copy
import itertools
import json
import multiprocessing
import pickle
import threading
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader  # noqa: E402

import penstock  # noqa: E402
from penstock.errors import BudgetError, PlanError, StateMismatch, TransformError  # noqa: E402
from penstock.testing import make_parquet, mixed  # noqa: E402
from penstock.torch import Batches, loader  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]
OPTIONS = {"batch_size": 7, "shuffle": True, "seed": 5}
LATER = ["spawn", "forkserver"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """51 rows of two columns of numbers."""
    return make_parquet(tmp_path_factory.mktemp("data") / "numbers")


def ids(batches):
    return [batch["id"].tolist() for batch in batches]


def native(data, passes=1, **options):
    with loader(data, **{**OPTIONS, **options}) as batches:
        return [ids(batches) for _ in range(passes)]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_pass_number_is_that_of_the_next_loop(data, num_workers):
    batches = Batches(data, **OPTIONS)
    context = "spawn" if num_workers else None
    made = DataLoader(batches, batch_size=None, num_workers=num_workers, multiprocessing_context=context)
    loops = 0
    while batches.pass_number < 3:
        assert len(list(made)) == 8
        loops += 1
        assert batches.pass_number == loops
    for _ in made:
        break
    assert batches.pass_number == 4
    with loader(data, **OPTIONS) as other:
        list(other)
        batches.load_state_dict(other.state_dict())
    assert batches.pass_number == 1


def in_workers(data, num_workers, **options):
    kept = {name: options.pop(name) for name in ("multiprocessing_context", "persistent_workers") if name in options}
    batches = Batches(data, **{**OPTIONS, **options})
    return DataLoader(batches, batch_size=None, num_workers=num_workers, **kept)


@pytest.mark.parametrize("options", [{}, {"shuffle": False}, {"shuffle": "groups"}, {"epochs": 3}, {"drop_last": True}])
@pytest.mark.parametrize("num_workers", [0, 1, 2, 3])
def test_any_number_of_workers_gives_the_native_order(data, num_workers, options):
    made = in_workers(data, num_workers, **options)
    want = native(data, 2, **options)
    assert len(made) == len(want[0])
    assert [ids(made), ids(made)] == want


@pytest.mark.parametrize("rank", [0, 1])
def test_workers_of_a_rank_share_its_part(data, rank):
    share = {"rank": rank, "world": 2, "remainder": "pad"}
    assert ids(in_workers(data, 2, **share)) == native(data, **share)[0]


def test_more_workers_than_batches(data):
    assert ids(in_workers(data, 3, batch_size=40)) == native(data, batch_size=40)[0]


@pytest.mark.parametrize("method", LATER)
def test_workers_may_be_started_in_any_way(data, method):
    made = in_workers(data, 2, multiprocessing_context=method, transform=plus_one)
    assert [ids(made), ids(made)] == [[[i + 1 for i in ids] for ids in one] for one in native(data, 2)]


def plus_one(batch):
    return {**batch, "id": batch["id"] + 1}


def test_filters_columns_and_every_kind_of_column_get_into_a_spawned_worker(tmp_path):
    data = make_parquet(tmp_path / "data", columns=mixed)
    kept = {"filters": [("id", ">=", 11)], "columns": ["id", "text", "ragged", "when"], "batch_size": 40}
    [got] = in_workers(penstock.open(data), 1, multiprocessing_context="spawn", **kept)
    [want] = loader(data, **{**OPTIONS, **kept})
    assert list(got) == list(want)
    assert got["text"] == want["text"]
    assert torch.equal(got["when"], want["when"])
    assert all(a is b if b is None else torch.equal(a, b) for a, b in zip(got["ragged"], want["ragged"], strict=True))


def test_a_batch_arrives_as_a_plain_dict_and_collate_fn_sees_a_dict(data):
    assert type(next(iter(in_workers(data, 1)))) is dict
    with_own = DataLoader(Batches(data, **OPTIONS), batch_size=None, num_workers=1, collate_fn=len)
    assert next(iter(with_own)) == 2


def test_workers_that_stay_give_the_next_pass_too(data):
    made = in_workers(data, 2, persistent_workers=True)
    assert [ids(made), ids(made), ids(made)] == native(data, 3)


def test_workers_that_stay_stream_every_second_batch_over_several_epochs(data):
    """A pass has three epochs of 8 batches; the two processes go on through four passes, one of them left early."""
    options = {"epochs": 3, "shuffle": True}
    want = native(data, 5, **options)
    made = in_workers(data, 2, persistent_workers=True, **options)
    assert ids(made) == want[0]
    processes = {process.pid for process in multiprocessing.active_children()}
    assert ids(made) == want[1]
    assert ids(itertools.islice(made, 11)) == want[2][:11]
    assert ids(made) == want[3]
    with loader(data, **OPTIONS | options) as other:
        list(itertools.islice(other, 13))  # inside the second epoch, before a batch of the second worker
        made.dataset.load_state_dict(other.state_dict())
    assert [ids(made), ids(made)] == [want[0][13:], want[1]]
    assert {process.pid for process in multiprocessing.active_children()} == processes


@pytest.mark.parametrize("num_workers", [0, 2])
def test_after_break_comes_the_next_pass_and_no_thread_is_left(data, num_workers):
    want = native(data, 2)
    made = in_workers(data, num_workers)
    assert [t.name for t in threading.enumerate() if t.name.startswith("penstock")] == []
    for batch in made:
        assert batch["id"].tolist() == want[0][0]
        break
    assert [t.name for t in threading.enumerate() if t.name.startswith("penstock")] == []
    assert ids(made) == want[1]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_set_epoch(data, num_workers):
    want = native(data, 4)
    batches = Batches(data, **OPTIONS)
    context = "spawn" if num_workers else None
    made = DataLoader(batches, batch_size=None, num_workers=num_workers, multiprocessing_context=context)
    batches.set_epoch(3)
    assert ids(made) == want[3]
    batches.set_epoch(0)
    assert ids(made) == want[0]


def test_an_error_in_a_worker_is_an_error_of_the_loader(data):
    with pytest.raises(TransformError, match="twenty"):
        list(in_workers(data, 2, transform=fails, shuffle=False))


def fails(batch):
    if 20 in batch["id"]:
        raise ValueError("twenty")
    return batch


def test_processes_of_processes_are_refused(data):
    with pytest.raises(PlanError, match="cannot start processes; use pool='thread'"):
        list(in_workers(data, 1, pool="process"))


def test_wrong_options_are_refused_at_once(data):
    with pytest.raises(PlanError, match="remainder"):
        Batches(data, batch_size=2, remainder="maybe")
    with pytest.raises(BudgetError):
        Batches(data, batch_size=2, memory_bytes=10)


def test_a_dataset_in_a_worker_is_the_same_dataset(tmp_path):
    data = make_parquet(tmp_path / "year=2020", columns=mixed)
    ds = penstock.open(data.parent).where([("id", ">", 20)]).select(["year", "id"])
    batches = Batches(ds, batch_size=5)
    copied = pickle.loads(pickle.dumps(batches))
    assert copied.state_dict() == batches.state_dict() == ds.loader(batch_size=5).state_dict()
    assert len(copied) == 6
    got, want = list(copied), list(batches)
    assert {tuple(batch) for batch in got} == {("year", "id")}
    assert ids(got) == ids(want)
    assert [b["year"].tolist() for b in got] == [b["year"].tolist() for b in want]


def test_copies_begin_where_the_original_would(data):
    batches = Batches(data, **OPTIONS)
    want = native(data, 2)
    list(itertools.islice(batches, 3))
    assert ids(copy.copy(batches)) == ids(pickle.loads(pickle.dumps(batches))) == want[1]


# -- states -----------------------------------------------------------------------------------------------------------


def stateful(data, num_workers, **options):
    stateful_dataloader = pytest.importorskip("torchdata.stateful_dataloader")
    batches = Batches(data, **{**OPTIONS, **options})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return stateful_dataloader.StatefulDataLoader(batches, batch_size=None, num_workers=num_workers)


@pytest.mark.parametrize("options", [{}, {"shuffle": "groups"}, {"epochs": 2}])
@pytest.mark.parametrize("num_workers", [0, 2, 3])
def test_a_stateful_data_loader_resumes_at_every_step(data, num_workers, options):
    want = native(data, 2, **options)
    states = []
    first = stateful(data, num_workers, **options)
    for batch, expected in zip(first, want[0], strict=True):
        assert batch["id"].tolist() == expected
        states.append(copy.deepcopy(first.state_dict()))
    for step in {1, 2, 3, len(states) // 2, len(states) - 1}:
        again = stateful(data, num_workers, **options)
        again.load_state_dict(states[step - 1])
        assert ids(again) == want[0][step:], step
        assert ids(again) == want[1], step


def test_the_state_of_workers_resumes_on_any_number_of_them_and_natively(data):
    want = native(data, 2)[0]
    made = stateful(data, 3)
    running = iter(made)
    for step in range(1, 8):
        next(running)
        state = json.loads(json.dumps(Batches(data, **OPTIONS).state_dict()))
        assert state["position"] == 0
        state = made.state_dict()
        for num_workers in (0, 2):
            batches = Batches(data, **OPTIONS)
            batches.load_state_dict(state)
            if step % 3 == 1 or num_workers == 0:
                assert ids(DataLoader(batches, batch_size=None, num_workers=num_workers)) == want[step:]
    del running


def test_a_native_state_resumes_in_workers(data):
    with loader(data, **OPTIONS) as one:
        want = ids(one)
        list(itertools.islice(one, 3))
        state, rest = one.state_dict(), native(data, 2)[1][3:]
    assert want != rest
    batches = Batches(data, **OPTIONS)
    batches.load_state_dict(state)
    made = DataLoader(batches, batch_size=None, num_workers=2)
    assert ids(made) == rest
    assert ids(made) == native(data, 3)[2]


def test_a_state_that_is_none_or_of_one_worker_only_is_refused(data):
    batches = Batches(data, **OPTIONS)
    with pytest.raises(StateMismatch, match="no state of Penstock"):
        batches.load_state_dict({"step": 3})
    alone = {**batches.state_dict(), "worker": {"index": 1, "count": 3, "over": False}}
    with pytest.raises(StateMismatch, match="1 states of 3 workers"):
        batches.load_state_dict(alone)


def test_without_a_stateful_loader_the_place_of_workers_is_not_guessed(data):
    batches = Batches(data, **OPTIONS)
    next(iter(DataLoader(batches, batch_size=None, num_workers=1)))
    with pytest.raises(PlanError, match="StatefulDataLoader"):
        batches.state_dict()


@pytest.mark.parametrize("num_processes", [1, 1000, 10**9])
def test_workers_share_threads_and_memory_of_the_host(data, num_processes):
    with penstock.open(data).loader(**OPTIONS) as one:
        before = one.report().workers
        one.share_host(num_processes)
        assert one.report().workers == max(1, before // num_processes)
        assert [batch["id"].tolist() for batch in one] == native(data)[0], "there is enough memory in any case"
    with penstock.open(data).loader(**OPTIONS, workers=3) as one:
        one.share_host(num_processes)
        assert one.report().workers == 3


def test_numbers_of_workers_share_memory_of_torch_and_stay_valid(tmp_path):
    penstock.write({"image": np.arange(64_000).reshape(100, 640), "label": np.arange(100)}, tmp_path / "data")
    got = list(DataLoader(Batches(tmp_path / "data", batch_size=9), batch_size=None, num_workers=2))
    assert torch.cat([batch["image"] for batch in got]).ravel().tolist() == list(range(64_000))
