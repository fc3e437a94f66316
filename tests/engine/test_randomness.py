"""Randomness of transforms: what they are given repeats, and what they take from global states is noticed."""

from __future__ import annotations

import importlib.util
import itertools
import random
import warnings

import numpy as np
import pytest

import penstock
from penstock import TransformSpec, Window
from penstock.engine.randomness import BATCH, ROW, generators, transform_wants
from penstock.errors import PenstockWarning, PlanError
from penstock.predicates import in_lambda
from penstock.testing import assert_resumes_exactly, make_parquet

FIELDS = [("drawn", np.int64, (), False)]
MOVED = "draws from the global random state of"


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    return penstock.open(make_parquet(tmp_path_factory.mktemp("chance") / "data"))


def draw_for_row(row, rng):
    return {**row, "drawn": rng.integers(1 << 40)}


def python_draws(batch):
    return {**batch, "drawn": np.array([random.random() for _ in batch["id"]])}


def numpy_draws(batch):
    return {**batch, "drawn": np.random.rand(len(batch["id"]))}  # noqa: NPY002


def python_draws_for_row(row):
    return {**row, "drawn": random.getrandbits(40)}


def drawn(loader):
    """What was drawn for each row, pass by pass."""
    return {int(i): float(x) for batch in loader for i, x in zip(batch["id"], batch["drawn"], strict=True)}


def told(ds, passes=2, **options):
    """What a run warns of."""
    with warnings.catch_warnings(record=True) as caught, ds.loader(batch_size=4, **options) as loader:
        warnings.simplefilter("always")
        for _ in range(passes):
            list(loader)
    return [str(one.message) for one in caught if MOVED in str(one.message)]


def test_the_numbers_of_a_batch_and_of_a_row_are_pinned():
    # Users resume runs across versions: these must not change.
    key, wants = (7, 3), frozenset({"rng"})
    assert generators(wants, key, (1000, 0, BATCH))["rng"].integers(1 << 60, size=2).tolist() == GOLDEN["batch"]
    assert generators(wants, key, (1000, 0, ROW))["rng"].integers(1 << 60, size=2).tolist() == GOLDEN["row"]


GOLDEN = {"batch": [226612363958280374, 216771209816985763], "row": [467843354369860511, 1116894625614440128]}


@pytest.mark.parametrize("pool", ["thread", "serial", "process"])
def test_a_function_of_rows_gets_numbers_that_belong_to_the_row(ds, pool):
    spec, options = TransformSpec(draw_for_row, FIELDS), {"shuffle": True, "seed": 5}
    with ds.loader(batch_size=7, transform=spec, pool=pool, workers=2, **options) as loader:
        found, later = drawn(loader), drawn(loader)
    assert len(set(found.values())) == len(found) == len(ds)
    assert found != later
    parts = {}
    for rank in range(2):
        share = {"rank": rank, "world": 2, "remainder": "uneven"}
        with ds.loader(batch_size=3, transform=spec, **options, **share) as loader:
            parts |= drawn(loader)
    assert parts == found, "whatever the batches and ranks are"


def test_rows_that_are_skipped_do_not_shift_the_numbers_of_others(ds):
    spec = TransformSpec(draw_for_row, FIELDS)
    with ds.loader(batch_size=7, transform=spec) as loader:
        whole = drawn(loader)
    late = ds.where(in_lambda(["id"], lambda number: number % 3 > 0), exact=False)
    with late.loader(batch_size=7, transform=spec) as loader:
        some = drawn(loader)
    assert some == {i: x for i, x in whole.items() if i % 3}


def test_rows_of_windows_repeat_too(ds):
    def run():
        options = {"transform": TransformSpec(draw_for_row, FIELDS), "window": Window(2, by="id", max_gap=1)}
        with ds.loader(batch_size=5, shuffle=True, **options) as loader:
            return [batch["drawn"].tolist() for batch in loader]

    first = run()
    assert first == run()
    assert len(set(itertools.chain.from_iterable(itertools.chain.from_iterable(first)))) > len(ds) // 2


def test_they_repeat_after_resuming(ds):
    spec = TransformSpec(draw_for_row, FIELDS)
    assert_resumes_exactly(lambda: ds.loader(batch_size=7, shuffle=True, seed=3, transform=spec))


@pytest.mark.parametrize("pool", ["thread", "serial"])
@pytest.mark.parametrize(
    ("transform", "whose"),
    [
        (python_draws, "random"),
        (numpy_draws, "numpy.random"),
        (TransformSpec(python_draws_for_row, FIELDS), "random"),
    ],
)
def test_a_transform_that_draws_from_a_global_state_is_told_of_once(ds, pool, transform, whose):
    (message,) = told(ds, transform=transform, pool=pool)
    assert f"global random state of {whose}, which all threads share" in message
    assert "`rng`" in message
    assert "pool='process'" in message


@pytest.mark.parametrize("pool", ["thread", "serial"])
def test_nothing_is_told_of_transforms_that_draw_from_what_they_are_given(ds, pool):
    def flip(batch, rng):
        return {**batch, "drawn": rng.random(len(batch["id"]))}

    assert not told(ds, transform=flip, pool=pool)
    assert not told(ds, transform=TransformSpec(draw_for_row, FIELDS), pool=pool)
    assert not told(ds, pool=pool)


def test_what_the_user_draws_between_batches_is_not_the_transform(ds):
    with warnings.catch_warnings(record=True) as caught, ds.loader(batch_size=4, transform=dict) as loader:
        warnings.simplefilter("always")
        for _ in loader:
            random.random()
            np.random.rand()  # noqa: NPY002
    assert not [one for one in caught if MOVED in str(one.message)]


@pytest.mark.parametrize("transform", [python_draws, numpy_draws, TransformSpec(python_draws_for_row, FIELDS)])
def test_processes_seed_the_global_states_for_every_batch(ds, transform):
    def run(workers):
        with ds.loader(batch_size=7, transform=transform, pool="process", workers=workers) as loader:
            return drawn(loader), drawn(loader)

    with warnings.catch_warnings():
        warnings.simplefilter("error", PenstockWarning)
        first, second = run(2)
        assert (first, second) == run(1), "whichever process has a batch"
    assert len({*first.values(), *second.values()}) == 2 * len(ds), "no two batches are alike"


def test_a_generator_is_one_of_torch(ds):
    def given(batch, generator):
        return {**batch, "seed": np.full(len(batch["id"]), generator.initial_seed())}

    def own(batch, generator=np.random.default_rng(0)):  # noqa: B008 -- as people write it
        return {**batch, "seed": generator.random(len(batch["id"]))}

    assert transform_wants(own) == frozenset(), "the user's own"
    if importlib.util.find_spec("torch") is None:
        with pytest.raises(PlanError, match=r"`generator`, which is a torch.Generator, and PyTorch is not installed"):
            ds.loader(batch_size=4, transform=given)
        assert transform_wants(lambda batch, generator=None: batch) == frozenset()
        return
    with ds.loader(batch_size=4, transform=given) as loader:
        seeds = [int(batch["seed"][0]) for batch in loader]
    assert len(set(seeds)) == len(seeds)
