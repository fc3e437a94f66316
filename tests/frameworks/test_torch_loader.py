"""`penstock.torch.loader`: the native order as tensors, on the CPU and through a feed to a device."""

from __future__ import annotations

import gc
import io
import itertools
import logging
import sys
import threading
import time

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

import penstock  # noqa: E402
import penstock.torch  # noqa: E402
from penstock.errors import LoaderClosed, PlanError, StateMismatch, TransformError  # noqa: E402
from penstock.testing import assert_resumes_exactly, make_parquet  # noqa: E402
from penstock.torch import loader  # noqa: E402
from penstock.torch.device import Mover  # noqa: E402

OPTIONS = {"batch_size": 7, "shuffle": True, "seed": 5}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """51 rows of two columns of numbers."""
    return make_parquet(tmp_path_factory.mktemp("data") / "numbers")


@pytest.fixture(params=["cpu", "fed"])
def make(request, monkeypatch):
    """Make a loader on the CPU; "fed": through the threads that feed a device, which here is the CPU."""
    if request.param == "cpu":
        return loader

    def fed(*args, **options):
        module = sys.modules["penstock.torch.loader"]  # the attribute of this name is the function
        monkeypatch.setattr(module, "check_device", lambda *a, **k: torch.device("meta"))
        monkeypatch.setattr(module, "mover_for", lambda where, transform, **_: Mover(torch.device("cpu"), transform))
        return loader(*args, **options)

    return fed


def feeds():
    return [t.name for t in threading.enumerate() if t.name.startswith("penstock")]


def ids(batches):
    return [batch["id"].tolist() for batch in batches]


def test_the_batches_are_those_of_the_native_loader(data, make):
    with penstock.open(data).loader(**OPTIONS) as native:
        want = [ids(native), ids(native)]
    with make(data, **OPTIONS) as batches:
        assert len(batches) == 8
        assert [ids(batches), ids(batches)] == want


def test_it_resumes_exactly_at_every_step(data, make):
    assert assert_resumes_exactly(lambda: _as_arrays(make(data, **OPTIONS))) == 17
    assert assert_resumes_exactly(lambda: _as_arrays(make(data, batch_size=9, epochs=2))) == 25


class _as_arrays:
    """A loader whose batches the check can compare."""

    def __init__(self, loader):
        self.loader = loader
        self.state_dict, self.load_state_dict = loader.state_dict, loader.load_state_dict
        self.close, self.length = loader.close, loader.__len__

    def __iter__(self):
        return ({name: values.numpy() for name, values in batch.items()} for batch in self.loader)

    def __len__(self):
        return self.length()


def test_a_checkpoint_of_torch_holds_the_state(data, make):
    with make(data, **OPTIONS) as batches:
        list(itertools.islice(batches, 3))
        checkpoint = io.BytesIO()
        torch.save({"loader": batches.state_dict()}, checkpoint)
    checkpoint.seek(0)
    state = torch.load(checkpoint, weights_only=True)["loader"]
    with make(data, **OPTIONS) as whole, make(data, **OPTIONS) as rest:
        rest.load_state_dict(state)
        assert ids(rest) == ids(whole)[3:]


def test_a_state_goes_from_framework_to_framework(data, make):
    ds = penstock.open(data)
    with ds.loader(**OPTIONS) as native, make(ds, **OPTIONS) as batches:
        want = ids(native)
        first = iter(batches)
        assert [next(first)["id"].tolist() for _ in range(2)] == want[:2]
        with ds.loader(**OPTIONS) as other:
            other.load_state_dict(batches.state_dict())
            assert ids(other) == want[2:]


def test_the_state_counts_what_was_received(data, make):
    with make(data, **OPTIONS) as batches:
        for step, _ in enumerate(batches, 1):
            time.sleep(0.02)  # a feed has sent more by now
            assert batches.state_dict()["position"] == (step * 7 if step < 8 else 0)
        assert batches.state_dict()["epoch"] == 1


def test_after_break_comes_the_next_pass_and_no_thread_is_left(data, make):
    with penstock.open(data).loader(**OPTIONS) as native:
        want = [ids(native), ids(native), ids(native)]
    with make(data, **OPTIONS) as batches:
        for batch in batches:
            assert batch["id"].tolist() == want[0][0]
            break
        del batch
        gc.collect()
        assert not feeds()
        assert ids(batches) == want[1]
        abandoned = iter(batches)  # nothing was taken: the pass is still to come
        assert ids(batches) == want[2]
        with pytest.raises(LoaderClosed, match="another one was made"):
            next(abandoned)
    assert not feeds()


def test_the_length_is_what_this_iteration_gives_and_stays_so_inside_the_loop(data, make):
    """Lightning and progress bars ask inside the loop and count from its beginning."""
    with make(data, **OPTIONS) as batches:
        state = None
        for step, _ in enumerate(batches, 1):
            assert len(batches) == 8
            if step == 3:
                state = batches.state_dict()
        assert len(batches) == 8
        batches.load_state_dict(state)
        assert len(batches) == 5
        running = iter(batches)
        for left in (4, 3):
            next(running)
            assert len(batches) == 8, "Lightning goes on counting where its checkpoint was"
            assert batches.batches_left == left
        assert len(list(running)) == 3
        assert len(batches) == 8
        batches.load_state_dict(state)
        running = iter(batches)
        batches.load_state_dict(state)
        assert len(batches) == 5
        del running
    with make(data, **OPTIONS, epochs=None) as endless, pytest.raises(TypeError, match="no length"):
        len(endless)


def test_set_epoch_goes_to_the_beginning_of_an_epoch(data, make):
    with penstock.open(data).loader(**OPTIONS) as native:
        want = [ids(native) for _ in range(4)]
    with make(data, **OPTIONS) as batches:
        batches.set_epoch(2)
        assert ids(batches) == want[2]
        batches.set_epoch(0)
        for _ in batches:
            break
        batches.set_epoch(0)
        assert ids(batches) == want[0]
        batches.set_epoch(1)
        assert ids(batches) == want[1]
        with pytest.raises(ValueError, match="whole number"):
            batches.set_epoch(-1)


def test_set_epoch_keeps_the_place_of_a_resumed_run(data, make):
    with make(data, **OPTIONS) as batches:
        want = [ids(batches), ids(batches)]
    with make(data, **OPTIONS) as batches:
        list(itertools.islice(batches, 5))
        state = batches.state_dict()
    with make(data, **OPTIONS) as batches:
        batches.load_state_dict(state)
        got = []
        for epoch in range(2):
            batches.set_epoch(epoch)
            got.append(ids(batches))
        assert got == [want[0][5:], want[1]]
        batches.load_state_dict(state)
        batches.set_epoch(3)
        assert batches.state_dict()["epoch"] == 3


def test_passes_of_several_epochs_are_counted_as_passes(data):
    with loader(data, **OPTIONS, epochs=2) as batches:
        batches.set_epoch(1)
        assert batches.state_dict()["epoch"] == 2
        assert len(batches) == 16


def test_a_dataset_is_taken_as_it_is_and_narrowed(data):
    ds = penstock.open(data)
    with loader(ds, batch_size=99, columns=["value"], filters=[("id", "<", 5)]) as batches:
        [batch] = batches
    assert list(batch) == ["value"]
    assert batch["value"].tolist() == [0.0, 0.5, 1.0, 1.5, 2.0]
    with loader(str(data), batch_size=99, columns=["value"], filters=[("id", "<", 5)]) as batches:
        assert len(batches) == 1
    with pytest.raises(PlanError, match="filesystem= is for opening a URL"):
        loader(ds, batch_size=1, filesystem=object())


def test_an_unknown_keyword_is_refused_with_a_hint(data):
    with pytest.raises(TypeError, match=r"penstock\.torch\.loader\(\) .* 'sufle'; did you mean 'shuffle'"):
        loader(data, batch_size=1, sufle=True)
    with pytest.raises(TypeError, match=r"'devices'; did you mean 'device'"):
        loader(data, batch_size=1, devices="cpu")
    with pytest.raises(TypeError, match=r"num_workers.*workers="):
        loader(data, batch_size=1, num_workers=2)


def test_what_a_loader_says_about_itself(data):
    with loader(data, **OPTIONS, rank=1, world=2) as batches:
        assert (batches.rank, batches.world) == (1, 2)
        rows = sum(len(batch["id"]) for batch in batches)
        assert batches.stats()["rows"] == rows == 25
        assert batches.skipped == []
        assert repr(batches.plan) == repr(batches.native.plan)
        assert "penstock.torch" in repr(batches)
        assert batches.report().prometheus()


# -- what goes wrong --------------------------------------------------------------------------------------------------


def test_an_error_comes_where_its_batch_would_have(data, make):
    def fail(batch):
        if 20 in batch["id"]:
            raise ValueError("twenty")
        return batch

    with make(data, batch_size=10, transform=fail) as batches:
        got = []
        with pytest.raises(TransformError, match="twenty"):
            got += (row for batch in batches for row in batch["id"].tolist())
        assert got == list(range(20))
        assert batches.state_dict()["left"] == [[20, 51]]
    assert not feeds()


def test_a_loader_that_was_closed_says_so(data, make):
    batches = make(data, **OPTIONS)
    running = iter(batches)
    next(running)
    batches.close()
    assert not feeds()
    with pytest.raises(LoaderClosed, match="the loader is closed"):
        next(running)
    with pytest.raises(LoaderClosed):
        iter(batches)


def test_closing_ends_a_wait_for_the_next_batch(data, make):
    def slow(batch):
        time.sleep(0.3)
        return batch

    batches = make(data, **OPTIONS, transform=slow)
    closing = threading.Timer(0.1, batches.close)
    closing.start()
    with pytest.raises(LoaderClosed):
        next(iter(batches))
    closing.join()
    assert not feeds()


def test_a_state_of_another_seed_is_refused_and_nothing_changes(data, make):
    with make(data, **{**OPTIONS, "seed": 6}) as other:
        state = other.state_dict()
    with make(data, **OPTIONS) as batches:
        running = iter(batches)
        next(running)
        with pytest.raises(StateMismatch, match="seed"):
            batches.load_state_dict(state)
        assert batches.state_dict()["position"] == 7
        next(running)
        assert batches.state_dict()["position"] == 14


# -- transforms where the batch arrives -------------------------------------------------------------------------------


def test_a_device_transform_gets_tensors_and_what_it_asks_for(data, make):
    def crop(batch, generator, rng, positions):
        assert isinstance(batch["id"], torch.Tensor)
        noise = torch.rand(len(batch["id"]), generator=generator)
        return {**batch, "noise": noise, "draw": torch.tensor(rng.random(len(noise))), "position": positions}

    with make(data, **OPTIONS, device_transform=crop) as batches:
        first = list(batches)
        second = list(batches)
    assert torch.cat([batch["position"] for batch in first]).tolist() == list(range(51))
    assert not torch.equal(first[0]["noise"], first[1]["noise"])
    assert not torch.equal(first[0]["noise"], second[0]["noise"])
    with make(data, **OPTIONS, device_transform=crop, workers=1) as batches:
        list(itertools.islice(batches, 3))
        state = batches.state_dict()
        batches.load_state_dict(state)
        rest = list(batches)
    for again, before in zip(rest, first[3:], strict=True):
        assert all(torch.equal(again[name], before[name]) for name in before)


def test_the_generators_of_cpu_and_device_draw_different_numbers(data):
    def host(batch, rng):
        return {**batch, "host": rng.random(len(batch["id"]))}

    def there(batch, rng):
        return {**batch, "there": rng.random(len(batch["id"]))}

    with loader(data, **OPTIONS, transform=host, device_transform=there) as batches:
        batch = next(iter(batches))
    assert not np.allclose(batch["host"].numpy(), batch["there"])


def test_a_device_transform_that_fails_or_forgets_to_return(data, make):
    def fails(batch):
        raise KeyError("image")

    for function, words in ((fails, "device_transform raised KeyError"), (lambda batch: None, "got NoneType")):
        with make(data, **OPTIONS, device_transform=function) as batches, pytest.raises(TransformError, match=words):
            next(iter(batches))


# -- devices ----------------------------------------------------------------------------------------------------------


def test_a_device_gets_its_batches_ahead(data):
    with loader(data, **OPTIONS, device="meta", prefetch=3) as batches:
        for step, batch in enumerate(batches):
            assert batch["id"].device.type == "meta"
            assert batch["id"].shape == (7 if step < 7 else 2,)
    assert not feeds()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("asked", [{"device": "cuda"}, {"device": "cuda:1"}, {"pin_memory": True}])
def test_without_a_gpu_cuda_is_refused_clearly(data, asked):
    with pytest.raises(PlanError, match=r"needs a CUDA GPU, and this PyTorch .* leave it out"):
        loader(data, batch_size=1, **asked)


def test_prefetch_is_a_number(data):
    with pytest.raises(PlanError, match="prefetch must be a whole number"):
        loader(data, batch_size=1, prefetch=0)


# -- ranks ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def job(tmp_path):
    """A job of one rank."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_rank_and_world_come_from_torch_distributed_and_are_logged_once(data, job, caplog, monkeypatch):
    monkeypatch.setattr(penstock.engine.rank, "_announced", {})
    with caplog.at_level(logging.INFO, "penstock"):
        for _ in range(2):
            loader(data, batch_size=1).close()
    assert [r.getMessage() for r in caplog.records if "rank" in r.getMessage()] == [
        "rank 0 of 1, from torch.distributed; pass rank= and world= to override"
    ]


def test_a_group_says_rank_and_world(data, job):
    from torch.distributed.device_mesh import init_device_mesh

    with loader(data, batch_size=1, group=dist.group.WORLD) as batches:
        assert (batches.rank, batches.world) == (0, 1)
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))
    with loader(data, batch_size=1, group=mesh["dp"]) as batches:
        assert (batches.rank, batches.world) == (0, 1)
    with pytest.raises(PlanError, match=r"dimensions \('dp', 'tp'\).*group=mesh\['dp'\]"):
        loader(data, batch_size=1, group=mesh)
    with pytest.raises(PlanError, match="either group= or rank="):
        loader(data, batch_size=1, group=mesh["dp"], rank=0, world=1)


def test_a_group_needs_torch_distributed(data):
    with pytest.raises(PlanError, match="init_process_group first"):
        loader(data, batch_size=1, group=object())
