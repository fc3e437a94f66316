"""`petastorm.pytorch`: states that resume exactly, and rows in memory."""

from __future__ import annotations

import itertools
import json

import pytest

from penstock.errors import PenstockWarning, StateMismatch
from penstock.petastorm.ngram import NGram
from penstock.petastorm.predicates import in_lambda
from penstock.petastorm.pytorch import (
    DataLoader,
    InMemBatchedDataLoader,
)
from penstock.petastorm.reader import make_reader
from penstock.petastorm.weighted_sampling_reader import WeightedSamplingReader
from penstock.testing import assert_resumes_exactly, make_parquet
from penstock.testing.data import mixed

torch = pytest.importorskip("torch")

from tests.frameworks.petastorm_help import FACTORIES, LOADERS, NUM_ROWS, AsNumpy, ids, rows, third  # noqa: E402


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    return make_parquet(tmp_path_factory.mktemp("numbers")).as_uri()


@pytest.fixture(scope="module")
def kinds(tmp_path_factory):
    return make_parquet(tmp_path_factory.mktemp("kinds"), columns=mixed).as_uri()


# -- state ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loader_class", LOADERS)
@pytest.mark.parametrize("factory", FACTORIES)
@pytest.mark.parametrize("shuffled", [0, 20])
@pytest.mark.parametrize("num_epochs", [1, 2])
def test_states_resume_exactly(kinds, loader_class, factory, shuffled, num_epochs):
    def make():
        reader = factory(kinds, seed=None if num_epochs == 2 else 6, num_epochs=num_epochs, workers_count=1)
        return AsNumpy(loader_class(reader, 7, shuffling_queue_capacity=shuffled))

    assert assert_resumes_exactly(make) > 7


@pytest.mark.parametrize("factory", FACTORIES)
@pytest.mark.parametrize("failing", ["transform", "collate_fn"])
def test_a_batch_whose_transform_or_collation_fails_was_not_received(numbers, factory, failing):
    def fails_once(value):
        if len(seen) == 21 and not failed:
            failed.append(value)
            raise ValueError("once")
        return value if failing == "transform" else torch.utils.data.default_collate(value)

    def make(**options):
        return DataLoader(factory(numbers, shuffle_row_groups=False, workers_count=1), 7, **options)

    def read(loader):
        for batch in loader:
            seen.extend(batch["id"].tolist())

    seen, failed = [], []
    with make(**{failing: fails_once}) as loader:
        with pytest.raises(ValueError, match="once"):
            read(loader)
        state = loader.state_dict()
    with make() as rest:
        rest.load_state_dict(state)
        read(rest)
    assert seen == list(range(NUM_ROWS))


@pytest.mark.parametrize("factory", FACTORIES)
def test_mixes_of_readers_resume_exactly(numbers, factory):
    def make():
        readers = [factory(numbers, seed=s, workers_count=1) for s in (1, 2)]
        loader = AsNumpy(DataLoader(WeightedSamplingReader(readers, [0.5, 0.5], seed=3), 7))
        loader.__class__ = NoLength
        return loader

    assert assert_resumes_exactly(make) > 5


class NoLength(AsNumpy):
    __len__ = None


@pytest.mark.parametrize("factory", FACTORIES)
def test_windows_resume_exactly(numbers, factory):
    ngram = NGram({0: ["id"], 1: ["id"]}, delta_threshold=1, timestamp_field="id")

    def make():
        loader = AsNumpy(DataLoader(factory(numbers, schema_fields=ngram, seed=3, workers_count=1), 5))
        loader.__class__ = NoLength
        return loader

    assert assert_resumes_exactly(make) > 5


def test_filters_on_delivery_resume_exactly(numbers):
    def make():
        predicate = in_lambda(["id"], third)
        loader = AsNumpy(DataLoader(make_reader(numbers, predicate=predicate, exact=False, seed=1), 4))
        loader.__class__ = NoLength
        return loader

    assert assert_resumes_exactly(make) > 5


@pytest.mark.parametrize("shuffled", [0, 20])
def test_a_state_fits_other_shards_and_batch_sizes(numbers, shuffled):
    def make(shard, count, size):
        reader = make_reader(numbers, seed=1, cur_shard=shard, shard_count=count)
        return DataLoader(reader, size, shuffling_queue_capacity=shuffled)

    seen, states = [], []
    for shard in range(2):
        with make(shard, 2, 5) as loader:
            seen += ids(itertools.islice(loader, 3))
            states.append(json.dumps(loader.state_dict()))
    assert len(set(states)) == 1
    for shard in range(3):
        with make(shard, 3, 4) as loader:
            loader.load_state_dict(json.loads(states[0]))
            seen += ids(loader)
    assert sorted(seen) == list(range(NUM_ROWS))


def test_the_state_of_a_reader_is_a_state_of_its_loader(numbers):
    with make_reader(numbers, seed=1) as reader:
        seen = [int(next(reader).id) for _ in range(9)]
        state = reader.state_dict()
    with DataLoader(make_reader(numbers, seed=1), 8) as loader:
        loader.load_state_dict(state)
        assert seen + ids(loader) == rows(numbers, seed=1)


def test_the_reader_tells_where_its_loader_is(numbers):
    with DataLoader(make_reader(numbers, seed=1), 8) as loader:
        for step, _ in enumerate(loader):
            assert len(loader.reader) == max(0, NUM_ROWS - 8 * (step + 1))
            assert loader.reader.state_dict() == loader.state_dict()["reader"]


def test_a_state_saved_after_break_is_that_of_the_last_batch(numbers):
    for factory in FACTORIES:
        with DataLoader(factory(numbers, seed=1), 4) as loader:
            seen = ids(itertools.islice(loader, 3))
            state = loader.state_dict()
        with DataLoader(factory(numbers, seed=1), 4) as loader:
            loader.load_state_dict(state)
            assert len(loader) == 10
            assert seen + ids(loader) == rows(numbers, factory, seed=1)
            assert sorted(ids(loader)) == list(range(NUM_ROWS))


def test_states_of_something_else_are_refused(numbers, kinds):
    with DataLoader(make_reader(numbers, seed=1), 4) as loader, DataLoader(make_reader(kinds, seed=1), 4) as other:
        with pytest.raises(StateMismatch):
            other.load_state_dict(loader.state_dict())
        with pytest.raises(StateMismatch, match="skip"):
            loader.load_state_dict(loader.state_dict() | {"skip": -1})
        with pytest.raises(StateMismatch, match="a dict"):
            loader.load_state_dict([])


# -- in memory --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factory", FACTORIES)
def test_all_rows_are_kept_and_the_reader_is_stopped(numbers, factory):
    reader = factory(numbers, shuffle_row_groups=False)
    loader = InMemBatchedDataLoader(reader, 8, num_epochs=2)
    assert reader.stopped
    assert len(loader) == 14
    batches = list(loader)
    assert ids(batches) == list(range(NUM_ROWS)) * 2
    assert [len(batch["id"]) for batch in batches] == ([8] * 6 + [3]) * 2


def test_defect_5_2_13_rows_beyond_1024_are_not_left_out(tmp_path):
    url = make_parquet(tmp_path / "many", [(700, 700), (700,)]).as_uri()
    assert sorted(ids(InMemBatchedDataLoader(make_reader(url), 100))) == list(range(2100))


def test_a_capacity_leaves_rows_out_with_a_warning(numbers):
    with pytest.warns(PenstockWarning, match="rows_capacity=20 keeps the first rows only"):
        loader = InMemBatchedDataLoader(make_reader(numbers, shuffle_row_groups=False), 8, rows_capacity=20)
    assert ids(loader) == list(range(20))
    loader = InMemBatchedDataLoader(make_reader(numbers, shuffle_row_groups=False), 8, rows_capacity=NUM_ROWS)
    assert ids(loader) == list(range(NUM_ROWS))
    with pytest.warns(PenstockWarning):
        loader = InMemBatchedDataLoader(make_reader(numbers, num_epochs=None), 8, rows_capacity=100)
    assert len(ids(loader)) == 100
    with make_reader(numbers, num_epochs=None) as reader, pytest.raises(ValueError, match="never ends"):
        InMemBatchedDataLoader(reader, 8)


def test_each_epoch_in_memory_has_the_order_of_its_seed(numbers):
    loader = InMemBatchedDataLoader(make_reader(numbers, shuffle_row_groups=False), 8, None, 2, 5, None, True)
    expected = [torch.randperm(NUM_ROWS, generator=torch.Generator().manual_seed(5 + e)).tolist() for e in range(4)]
    assert ids(loader) == expected[0] + expected[1]
    assert ids(loader) == expected[2] + expected[3]


def test_memory_batches_are_copies_and_lists_stay_lists(kinds):
    loader = InMemBatchedDataLoader(make_reader(kinds, shuffle_row_groups=False), 8)
    for batch in loader:
        assert batch["text"] == [None if i % 4 == 1 else f"row {i} \u00e9" for i in batch["id"].tolist()]
        batch["id"][:] = -1
    assert ids(loader) == list(range(NUM_ROWS))


def test_break_resume_and_length_in_memory(numbers):
    def make():
        reader = make_reader(numbers, seed=9)
        return AsNumpy(InMemBatchedDataLoader(reader, 8, num_epochs=2, shuffle=True))

    assert assert_resumes_exactly(make, every=3) > 3
    loader = make().loader
    first = ids(itertools.islice(loader, 2))
    assert len(loader) == 12
    second = ids(loader)
    assert len(second) == 2 * NUM_ROWS
    assert second[:16] != first
    endless = InMemBatchedDataLoader(make_reader(numbers), 8, num_epochs=None)
    assert len(list(itertools.islice(endless, 30))) == 30
    with pytest.raises(TypeError):
        len(endless)


def test_a_state_of_other_rows_in_memory_is_refused(numbers):
    loaders = [InMemBatchedDataLoader(make_reader(numbers, seed=s), 8) for s in (1, 2)]
    with pytest.raises(StateMismatch, match="give the reader a seed"):
        loaders[0].load_state_dict(loaders[1].state_dict())


def test_a_transform_fn_makes_the_columns_in_memory(numbers):
    loader = InMemBatchedDataLoader(make_reader(numbers), 8, lambda values: torch.as_tensor(values).double())
    assert {values.dtype for batch in loader for values in batch.values()} == {torch.float64}
