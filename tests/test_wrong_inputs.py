"""Objects given where a path, a loader or a state of another kind is wanted: refused at once, with what to do."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import penstock
from penstock.errors import StateMismatch
from penstock.factories import loader_for
from penstock.testing import FaultySource, MemorySource


@pytest.fixture
def source():
    return FaultySource(MemorySource({"id": range(20)}, [5] * 4), {})


@pytest.fixture
def ds(source):
    return penstock.open(source)


def make(ds):
    return ds.loader(batch_size=5, rank=0, world=1)


def test_a_dataset_a_loader_or_a_stream_is_not_opened_and_nothing_is_read(ds, source):
    loader = make(ds)
    mix = penstock.mix([(make(ds), 1.0)])
    for given, remedy in (
        (ds, "it is open already"),
        (loader, "pass the dataset or the path that it was made from"),
        (mix, "pass the dataset or the path that it was made from"),
        (make(ds).stream(), "pass the dataset or the path that it was made from"),
    ):
        with pytest.raises(TypeError, match=f"a path or URL.*got {type(given).__name__}: {remedy}"):
            penstock.open(given)
    assert not source.reads
    assert (loader.pass_number, loader.batches_left) == (0, 4)


@pytest.mark.parametrize("data", [{"a": [1]}, pa.table({"a": [1]})], ids=["dict", "Table"])
def test_data_is_not_opened_but_written(data):
    with pytest.raises(TypeError, match=r"got \w+: write it first, with penstock.write"):
        penstock.open(data)


def test_a_data_frame_is_not_opened_but_written():
    frame = pytest.importorskip("pandas").DataFrame({"a": [1]})
    with pytest.raises(TypeError, match=r"got DataFrame: write it first, with penstock.write"):
        penstock.open(frame)


def test_paths_may_come_in_any_iterable(tmp_path):
    penstock.write({"a": np.arange(3)}, tmp_path)
    for paths in (np.array([str(tmp_path)]), tmp_path.glob("*.parquet"), (tmp_path,)):
        assert len(penstock.open(paths)) == 3


def test_a_framework_refuses_a_stream_before_it_asks_for_a_batch_size(ds):
    with pytest.raises(TypeError, match="got EngineStream: pass the dataset"):
        loader_for(make(ds).stream(), None, {}, function=loader_for, owner="f")


def test_the_state_of_a_mix_is_not_that_of_a_loader(ds):
    state = penstock.mix([(make(ds), 1.0)]).state_dict()
    with pytest.raises(StateMismatch, match="this is the state of a mix; load it into a mix"):
        make(ds).load_state_dict(state)


def test_a_loader_is_not_indexed(ds):
    with pytest.raises(TypeError, match=r"iterated, not indexed.*penstock.torch.loader"):
        make(ds)[0]


def test_a_plan_says_that_it_is_of_one_rank_unless_told(ds, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert "on 1 rank (world=1)" in str(ds.plan(batch_size=5))
    assert "on each of 8 ranks" in str(ds.plan(batch_size=1, rank=0, world=8))


@pytest.mark.parametrize("name", ["collate_fn", "prefetch_factor"])
def test_advice_for_options_of_torch_names_options_that_exist(ds, name):
    with pytest.raises(TypeError) as error:
        ds.loader(batch_size=5, **{name: 2})
    assert "device_transform" not in str(error.value)
    assert " prefetch=" not in str(error.value)
