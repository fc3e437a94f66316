"""A mix is given to every framework: the same batches, in the same order, with the same state."""

from __future__ import annotations

import importlib

import numpy as np
import pyarrow as pa
import pytest

import penstock
from penstock.testing import make_parquet
from tests.engine.mixes import three_sets

FRAMEWORKS = ["torch", "tensorflow", "jax"]


@pytest.fixture
def sets(tmp_path):
    return three_sets(tmp_path)


def make(sets):
    loaders = [ds.loader(batch_size=4, shuffle=True, workers=1) for ds in sets]
    inner = penstock.mix([(loaders[0], 1), (loaders[1], 2)], seed=5, stop="all")
    return penstock.mix([(inner, 2), (loaders[2], 1)], seed=7, stop="all")


def ids(batches):
    return [np.asarray(batch["id"]).tolist() for batch in batches]


def face(name):
    pytest.importorskip(name)
    return importlib.import_module(f"penstock.{name}").loader


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_mix_comes_out_of_a_framework_as_it_is(sets, name):
    with make(sets) as mix:
        whole = ids(mix)
    with face(name)(make(sets)) as batches:
        assert len(batches) == len(whole)
        assert ids(batches) == whole
        assert batches.pass_number == 1


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_mix_is_resumed_by_another_framework(sets, name):
    with make(sets) as mix:
        whole = ids(mix)
    with face(name)(make(sets)) as batches:
        running = iter(batches)
        got = ids(next(running) for _ in range(7))
        state = batches.state_dict()
    with make(sets) as mix:
        mix.load_state_dict(state)
        assert got + ids(mix) == whole
    with face(name)(make(sets)) as batches:
        batches.load_state_dict(state)
        assert len(batches) == len(whole) - 7
        assert got + ids(batches) == whole


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_options_beside_a_mix_are_refused(sets, name):
    with make(sets) as mix, pytest.raises(TypeError, match=r"was given a Mix.*leave out batch_size=, seed="):
        face(name)(mix, batch_size=4, seed=3)
    with pytest.raises(TypeError, match="needs batch_size="):
        face(name)(sets[0])


@pytest.mark.parametrize("name", FRAMEWORKS)
@pytest.mark.parametrize("other", [{}, {"noise": pa.array([None, 1.0] * 20)}], ids=["absent", "nulls"])
def test_every_batch_of_a_mix_has_the_same_keys(tmp_path, name, other):
    full = {"noise": pa.array([0.5] * 40)}
    loaders = []
    for number, extra in enumerate((full, other)):
        columns = {"x": pa.array(range(40))} | extra
        data = make_parquet(tmp_path / str(number), [(40,)], columns=lambda rows, columns=columns: columns)
        loaders.append(penstock.open(data).loader(batch_size=8))
    with face(name)(penstock.mix([(one, 1.0) for one in loaders], stop="all", missing="null")) as batches:
        assert {frozenset(batch) for batch in batches} == {frozenset({"x", "noise", "noise_valid"})}


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_loaders_of_a_framework_are_not_mixed(sets, name):
    with pytest.raises(TypeError, match="give the mix to a framework's loader function"):
        penstock.mix([(face(name)(sets[0], batch_size=4), 1.0)])
