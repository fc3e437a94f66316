"""`penstock.torch.loader` of a mix or an existing loader, and states while batches are prefetched to a device."""

from __future__ import annotations

import itertools
import json
import threading

import pytest

torch = pytest.importorskip("torch")

import penstock  # noqa: E402
from penstock.errors import ColumnNotFound, LoaderClosed, StateMismatch  # noqa: E402
from penstock.testing import make_parquet  # noqa: E402
from penstock.torch import Batches, loader  # noqa: E402

FORMS = [{}, {"device": "meta", "prefetch": 3}]
"""In memory, and through the threads that feed a device."""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """51 rows of two columns of numbers."""
    return make_parquet(tmp_path_factory.mktemp("data") / "numbers")


def make_mix(data, stop="all"):
    """Two loaders that have 8 and 11 batches."""
    ds = penstock.open(data)
    first, second = ds.loader(batch_size=7, shuffle=True, seed=1), ds.loader(batch_size=5, shuffle="groups", seed=2)
    return penstock.mix([(first, 2.0), (second, 1.0)], seed=3, stop=stop)


def make_nested(data):
    """A mix of a mix and a loader."""
    inner = make_mix(data)
    return penstock.mix([(inner, 3.0), (penstock.open(data).loader(batch_size=6), 1.0)], seed=4, stop="all")


class Draws:
    """A `device_transform` that records the random numbers of each batch: tensors on "meta" have no values."""

    def __init__(self):
        self.seen = []
        self.came = threading.Condition()

    def __call__(self, batch, rng):
        with self.came:
            self.seen.append((len(batch["id"]), rng.integers(1 << 60)))
            self.came.notify_all()
        return batch

    def wait_for(self, count):
        with self.came:
            assert self.came.wait_for(lambda: len(self.seen) >= count, 30)


def ids(batches):
    return [batch["id"].tolist() for batch in batches]


@pytest.mark.parametrize("make", [make_mix, make_nested])
def test_the_batches_of_a_mix_come_as_tensors_in_its_order(data, make):
    with make(data) as native:
        want = [ids(native), ids(native)]
    with make(data) as native, loader(native) as batches:
        assert len(batches) == len(want[0])
        first = list(batches)
        assert all(isinstance(batch["id"], torch.Tensor) for batch in first)
        assert [ids(first), ids(batches)] == want
        assert batches.pass_number == 2
        assert "penstock.torch.Mix" in repr(batches)


@pytest.mark.parametrize("make", [make_mix, make_nested])
def test_a_mix_resumes_at_every_step(data, make):
    with make(data) as native:
        want = ids(native)
    with make(data) as native, loader(native) as batches:
        states = [json.loads(json.dumps(batches.state_dict())) for _ in batches]
    for step, state in enumerate(states[:-1], 1):
        with make(data) as native, loader(native) as batches:
            batches.load_state_dict(state)
            assert len(batches) == len(want) - step
            assert ids(batches) == want[step:]
        with make(data) as native:
            native.load_state_dict(state)
            assert ids(native) == want[step:]


@pytest.mark.parametrize("form", FORMS)
def test_a_loader_that_exists_is_taken_as_it_is(data, form):
    ds = penstock.open(data)
    with ds.loader(batch_size=7, shuffle=True) as native:
        whole, following = ids(native), ids(native)
    with ds.loader(batch_size=7, shuffle=True) as native:
        list(itertools.islice(native, 3))
        native.load_state_dict(native.state_dict())
        with loader(native, **form) as batches:
            assert batches.native is native
            assert len(batches) == 5
            sizes = [tuple(batch["id"].shape) for batch in batches]
            assert sizes == [(len(one),) for one in whole[3:]]
            assert len(batches) == len(following)
        with pytest.raises(LoaderClosed):
            iter(native)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("batch_size", 4),
        ("shuffle", True),
        ("seed", 0),
        ("epochs", 2),
        ("workers", 1),
        ("columns", ["id"]),
        ("filters", [("id", ">", 3)]),
        ("storage_options", {}),
        ("group", object()),
        ("decode", "gpu"),
    ],
)
def test_options_of_a_dataset_are_refused_with_a_mix(data, option, value):
    with make_mix(data) as native, pytest.raises(TypeError, match=rf"was given a Mix.*leave out {option}="):
        loader(native, **{option: value})


def test_a_dataset_needs_a_batch_size(data):
    with pytest.raises(TypeError, match=r"penstock.torch.loader\(\) needs batch_size="):
        loader(data)


def test_nulls_are_checked_against_the_columns_of_a_mix(data):
    with make_mix(data) as native:
        with pytest.raises(ColumnNotFound, match=r"nulls= names 'idd'.*did you mean 'id'"):
            loader(native, nulls=["idd"])
        with loader(native, nulls=["id"]) as batches:
            assert next(iter(batches))["id_valid"].all()


def test_worker_processes_cannot_have_a_mix(data):
    with make_mix(data) as native, pytest.raises(TypeError, match="a Mix cannot be sent to worker processes"):
        Batches(native, batch_size=4)


def test_set_epoch_goes_to_that_pass_of_a_mix(data):
    with make_mix(data) as native:
        want = [ids(native) for _ in range(3)]
    with loader(make_mix(data)) as batches:
        batches.set_epoch(2)
        assert ids(batches) == want[2]
        batches.set_epoch(1)
        assert ids(batches) == want[1]


def test_a_state_of_a_loader_is_refused_by_a_mix(data):
    with loader(make_mix(data)) as batches, loader(data, batch_size=7) as other:
        with pytest.raises(StateMismatch):
            batches.load_state_dict(other.state_dict())
        with pytest.raises(StateMismatch):
            other.load_state_dict(batches.state_dict())


# -- three batches prefetched to a device when state_dict() is called -------------------------------------------------


def source_of(kind, data):
    if kind == "mix":
        return {"dataset_or_url": make_mix(data)}
    return {"dataset_or_url": data, "batch_size": 7, "shuffle": True, "seed": 5, "epochs": 2}


@pytest.mark.parametrize("num_received", [1, 4, 6])
@pytest.mark.parametrize("kind", ["dataset", "mix"])
def test_three_batches_on_the_device_are_not_in_the_state(data, kind, num_received):
    whole = Draws()
    with loader(**source_of(kind, data), device="meta", prefetch=3, device_transform=whole) as batches:
        assert len(list(batches)) == len(whole.seen)
    ahead = Draws()
    with loader(**source_of(kind, data), device="meta", prefetch=3, device_transform=ahead) as batches:
        running = iter(batches)
        for _ in range(num_received):
            next(running)
        ahead.wait_for(num_received + 3)
        state = json.loads(json.dumps(batches.state_dict()))
        assert batches.batches_left == len(whole.seen) - num_received
        del running
        assert batches.state_dict() == state, "what was on the device when the loop ended was not received either"
    rest = Draws()
    with loader(**source_of(kind, data), device="meta", prefetch=3, device_transform=rest) as batches:
        batches.load_state_dict(state)
        assert len(list(batches)) == len(whole.seen) - num_received
    assert rest.seen == whole.seen[num_received:]
