"""`petastorm.pytorch`: passes, `break`, threads and shuffling, and what Petastorm's loaders get wrong there."""

from __future__ import annotations

import gc
import itertools
import threading
from collections import namedtuple

import numpy as np
import pytest

import penstock
from penstock.errors import LoaderClosed
from penstock.petastorm.pytorch import (
    BatchedDataLoader,
    DataLoader,
    LoaderBase,
)
from penstock.petastorm.reader import make_batch_reader, make_reader
from penstock.petastorm.test_util.reader_mock import ReaderMock, schema_data_generator_example
from penstock.petastorm.unischema import Unischema, UnischemaField
from penstock.petastorm.weighted_sampling_reader import WeightedSamplingReader
from penstock.testing import make_parquet

torch = pytest.importorskip("torch")

from tests.frameworks.petastorm_help import FACTORIES, LOADERS, NUM_ROWS, ids, rows  # noqa: E402


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    return make_parquet(tmp_path_factory.mktemp("numbers")).as_uri()


# -- passes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loader_class", LOADERS)
@pytest.mark.parametrize("factory", FACTORIES)
@pytest.mark.parametrize("shuffled", [0, 20])
def test_defect_5_2_6_the_last_partial_batch_does_not_come_again(numbers, loader_class, factory, shuffled):
    with loader_class(factory(numbers, seed=1), 8, shuffling_queue_capacity=shuffled) as loader:
        for _ in range(3):
            batches = list(loader)
            assert sorted(ids(batches)) == list(range(NUM_ROWS))
            assert [len(batch["id"]) for batch in batches] == [8] * 6 + [3]


@pytest.mark.parametrize("loader_class", LOADERS)
@pytest.mark.parametrize("factory", FACTORIES)
@pytest.mark.parametrize("shuffled", [0, 20])
def test_the_length_is_that_of_the_loop_to_come(numbers, loader_class, factory, shuffled):
    options = {"seed": 1, "num_epochs": 2, "cur_shard": 1, "shard_count": 3}
    with loader_class(factory(numbers, **options), 5, shuffling_queue_capacity=shuffled) as loader:
        for _ in range(3):
            length = len(loader)
            left = [len(loader) for _ in loader]
            assert left[:-1] == list(range(length - 1, 0, -1))
            assert length > 2


def test_a_reader_that_is_at_its_end_begins_the_next_pass(numbers):
    reader = make_reader(numbers, seed=1)
    assert len(list(reader)) == NUM_ROWS
    with DataLoader(reader, 8) as loader:
        assert len(loader) == 7
        assert sorted(ids(loader)) == list(range(NUM_ROWS))


@pytest.mark.parametrize("factory", FACTORIES)
def test_each_pass_is_the_next_pass_of_the_reader(numbers, factory):
    with factory(numbers, seed=1, num_epochs=3) as reader:
        expected = [int(one) for row in reader for one in np.atleast_1d(row.id)]
    with DataLoader(factory(numbers, seed=1), 8) as loader:
        assert [one for _ in range(3) for one in ids(loader)] == expected


@pytest.mark.parametrize("loader_class", LOADERS)
@pytest.mark.parametrize("factory", FACTORIES)
@pytest.mark.parametrize("shuffled", [0, 20])
def test_break_and_another_loop_start_the_next_pass(numbers, loader_class, factory, shuffled):
    with loader_class(factory(numbers, seed=1), 8, shuffling_queue_capacity=shuffled) as loader:
        first = ids(loader)
    with loader_class(factory(numbers, seed=1), 8, shuffling_queue_capacity=shuffled) as loader:
        for batch in loader:
            assert batch["id"].tolist() == first[:8]
            break
        second = ids(loader)
        assert sorted(second) == list(range(NUM_ROWS))
        assert second != first
        next(iter(loader))
        third = ids(loader)
        assert sorted(third) == list(range(NUM_ROWS))
        assert third not in (first, second)


@pytest.mark.parametrize("loader_class", LOADERS)
@pytest.mark.parametrize("shuffled", [0, 20])
def test_break_in_the_first_row_group_does_not_give_the_pass_again(tmp_path, loader_class, shuffled):
    url = make_parquet(tmp_path / "two", [(30, 20)]).as_uri()
    with make_batch_reader(url, seed=1, num_epochs=3, shuffle_rows=shuffled > 0) as reader:
        expected = [int(one) for row in reader for one in row.id]
    with loader_class(make_batch_reader(url, seed=1), 4, shuffling_queue_capacity=shuffled) as loader:
        for epoch in (0, 1):
            assert next(iter(loader))["id"].tolist() == expected[50 * epoch : 50 * epoch + 4]
        assert ids(loader) == expected[100:]
    readers = [make_batch_reader(url, seed=s, shuffle_rows=shuffled > 0) for s in (1, 2)]
    with loader_class(WeightedSamplingReader(readers, [1, 0], seed=3), 4) as loader:
        first = next(iter(loader))["id"].tolist()
        assert (first, ids(loader)) == (expected[:4], expected[50:100])


def test_no_thread_is_there_before_the_first_batch_or_after_break(numbers):
    gc.collect()
    before = set(threading.enumerate())
    with DataLoader(make_reader(numbers), 4) as loader:
        len(loader)
        iter(loader)
        assert set(threading.enumerate()) == before
        for _ in loader:
            break
        gc.collect()
        assert set(threading.enumerate()) == before


def test_the_reader_goes_on_behind_the_last_batch_after_break(numbers):
    with DataLoader(make_reader(numbers, shuffle_row_groups=False), 4) as loader:
        for _ in zip(range(3), loader, strict=False):
            pass
        assert [int(row.id) for row in loader.reader] == list(range(12, NUM_ROWS))


def test_rows_read_before_the_loader_are_not_lost_or_repeated(numbers):
    reader = make_reader(numbers, seed=1)
    seen = [int(next(reader).id) for _ in range(7)]
    with DataLoader(reader, 8) as loader:
        assert len(loader) == 6
        seen += ids(loader)
    assert seen == rows(numbers, seed=1)


def test_a_second_iterator_ends_the_first(numbers):
    with DataLoader(make_reader(numbers, seed=1), 8) as loader:
        one = iter(loader)
        next(one)
        two = iter(loader)
        next(two)
        with pytest.raises(StopIteration):
            next(one)
        assert len(list(two)) == 6


def test_after_an_error_the_next_loop_is_the_next_pass(numbers):
    failing = [True]

    def collate(samples):
        if failing and samples[0]["id"] > 20:
            raise ValueError("no")
        return {"id": [row["id"] for row in samples]}

    with DataLoader(make_reader(numbers, shuffle_row_groups=False), 8, collate) as loader:
        with pytest.raises(ValueError, match="no"):
            list(loader)
        failing.clear()
        assert ids(loader) == list(range(NUM_ROWS))


def test_endless_readers_give_full_batches_for_ever(numbers):
    with DataLoader(make_reader(numbers, num_epochs=None, seed=1), 8) as loader:
        with pytest.raises(TypeError):
            len(loader)
        assert loader
        batches = list(itertools.islice(loader, 20))
    assert {len(batch["id"]) for batch in batches} == {8}
    assert sorted(ids(batches)[:NUM_ROWS]) == list(range(NUM_ROWS))


def test_the_context_stops_the_reader(numbers):
    with DataLoader(make_reader(numbers), 8) as loader:
        iterator = iter(loader)
        next(iterator)
    assert loader.reader.stopped
    with pytest.raises(StopIteration):
        next(iterator)
    with pytest.raises(LoaderClosed):
        next(iter(loader))


def test_own_loaders_may_be_built_on_the_base(numbers):
    class Pairs(LoaderBase):
        def __init__(self, reader):
            super().__init__()
            self.reader = reader

        def _iter_impl(self):
            for row in self.reader:
                yield int(row.id)

    with Pairs(make_reader(numbers, seed=1)) as loader:
        assert sorted(loader) == sorted(loader) == list(range(NUM_ROWS))
    with pytest.raises(NotImplementedError, match="_iter_impl"):
        next(iter(LoaderBase()))


def test_arguments_are_checked(numbers):
    with make_reader(numbers) as reader:
        for bad in (0, -1, 1.5, True, None):
            with pytest.raises(ValueError, match="batch_size must be"):
                DataLoader(reader, bad)
        with pytest.raises(ValueError, match="shuffling_queue_capacity must be"):
            BatchedDataLoader(reader, 1, None, -1)


# -- shuffling --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factory", FACTORIES)
def test_a_shuffling_queue_is_the_shuffle_of_the_engine(numbers, factory):
    with DataLoader(factory(numbers, seed=4), 8, shuffling_queue_capacity=2) as loader:
        assert loader.reader.dataset is not None
        found = [ids(loader), ids(loader)]
    with penstock.open(numbers).loader(batch_size=8, shuffle=True, seed=4) as native:
        assert found == [ids(native), ids(native)]


def test_a_reader_that_shuffles_already_keeps_its_order(numbers):
    with DataLoader(make_reader(numbers, seed=4, shuffle_rows=True), 8, shuffling_queue_capacity=2) as loader:
        assert ids(loader) == rows(numbers, seed=4, shuffle_rows=True)


def test_a_reader_that_has_begun_is_mixed_in_a_buffer_and_by_the_engine_from_the_next_pass_on(numbers):
    reader = make_reader(numbers, shuffle_row_groups=False, seed=4)
    seen = [int(next(reader).id) for _ in range(5)]
    with DataLoader(reader, 8, shuffling_queue_capacity=10) as loader:
        assert len(loader) == 6
        with pytest.raises(TypeError, match="shuffling buffer"):
            loader.state_dict()
        rest = []
        for step, batch in enumerate(loader):
            rest += batch["id"].tolist()
            assert len(loader) == 5 - step
        assert sorted(seen + rest) == list(range(NUM_ROWS))
        assert rest != sorted(rest)
        second = ids(loader)
        assert loader.state_dict()
    with penstock.open(numbers).loader(batch_size=8, shuffle=True, seed=4, epochs=2) as native:
        assert second == ids(native)[NUM_ROWS:]


@pytest.mark.parametrize("factory", FACTORIES)
@pytest.mark.parametrize("loader_class", LOADERS)
def test_mixed_readers_are_mixed_in_a_buffer_every_row_once(numbers, factory, loader_class):
    def make():
        readers = [factory(numbers, seed=s) for s in (1, 2)]
        return WeightedSamplingReader(readers, [0.5, 0.5], seed=3)

    with make() as reader:
        expected = [int(one) for row in reader for one in np.atleast_1d(row.id)]
    with loader_class(make(), 8, shuffling_queue_capacity=12) as loader:
        found = ids(loader)
        assert sorted(found) == sorted(expected)
        assert found != expected
        assert ids(loader)
    with loader_class(make(), 8) as loader:
        assert ids(loader) == expected


def test_readers_of_others_work(numbers):
    Row = namedtuple("Row", ["id", "name", "flag"])

    class Theirs:
        batched_output = is_batched_reader = False
        resets = stops = 0

        def __iter__(self):
            return (Row(np.int32(i), f"n{i}", np.bool_(i % 2)) for i in range(10))

        def reset(self):
            self.resets += 1

        def stop(self):
            self.stops += 1

        join = stop

    reader = Theirs()
    with DataLoader(reader, 4) as loader:
        for _ in range(2):
            batches = list(loader)
            assert ids(batches) == list(range(10))
            assert batches[0]["name"] == ["n0", "n1", "n2", "n3"]
            assert batches[0]["flag"].tolist() == [0, 1, 0, 1]
            assert batches[0]["flag"].dtype == torch.uint8
        with pytest.raises(TypeError):
            len(loader)
        with pytest.raises(TypeError, match="no state_dict"):
            loader.state_dict()
    assert (reader.resets, reader.stops) == (1, 2)
    with BatchedDataLoader(reader, 4, shuffling_queue_capacity=5) as loader:
        assert sorted(ids(loader)) == list(range(10))


def test_the_mock_of_a_reader_works():
    schema = Unischema("S", [UnischemaField("id", np.int64, (), None, False)])
    with DataLoader(ReaderMock(schema, schema_data_generator_example), 5) as loader:
        assert [len(batch["id"]) for batch in itertools.islice(loader, 3)] == [5, 5, 5]


def test_a_shuffling_queue_takes_no_memory_of_its_own(numbers):
    """Petastorm's makes room for a hundred million rows first."""
    import tracemalloc

    readers = [make_reader(numbers, seed=s) for s in (1, 2)]
    tracemalloc.start()
    with DataLoader(WeightedSamplingReader(readers, [0.5, 0.5], seed=3), 8, shuffling_queue_capacity=10**6) as loader:
        list(loader)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 20e6
