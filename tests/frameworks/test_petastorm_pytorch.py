"""`petastorm.pytorch`: Petastorm's loaders, their batches, and what Petastorm's get wrong."""

from __future__ import annotations

import datetime
import gc
import itertools
import json
import subprocess
import sys
import threading
from collections import namedtuple
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

import penstock
from penstock.errors import LoaderClosed, PenstockWarning, StateMismatch
from penstock.petastorm.ngram import NGram
from penstock.petastorm.predicates import in_lambda
from penstock.petastorm.pytorch import (
    BatchedDataLoader,
    DataLoader,
    InMemBatchedDataLoader,
    LoaderBase,
    decimal_friendly_collate,
)
from penstock.petastorm.reader import make_batch_reader, make_reader
from penstock.petastorm.test_util.reader_mock import ReaderMock, schema_data_generator_example
from penstock.petastorm.transform import TransformSpec
from penstock.petastorm.unischema import Unischema, UnischemaField
from penstock.petastorm.weighted_sampling_reader import WeightedSamplingReader
from penstock.testing import assert_resumes_exactly, make_parquet
from penstock.testing.data import mixed

torch = pytest.importorskip("torch")

FACTORIES = [make_reader, make_batch_reader]
LOADERS = [DataLoader, BatchedDataLoader]
NUM_ROWS = 51


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    return make_parquet(tmp_path_factory.mktemp("numbers")).as_uri()


@pytest.fixture(scope="module")
def kinds(tmp_path_factory):
    return make_parquet(tmp_path_factory.mktemp("kinds"), columns=mixed).as_uri()


@pytest.fixture(scope="module")
def typed(tmp_path_factory):
    """Every kind that has a tensor, without nulls; `id` first."""

    def columns(rows):
        small = rows % 100
        more = {
            np.dtype(t).name: pa.array(small.astype(t))
            for t in (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.uint64, np.float32, np.float64)
        }
        return {
            "id": pa.array(rows),
            **more,
            "bool": pa.array(rows % 3 == 0),
            "text": pa.array([f"t{i}" for i in rows], pa.string()),
            "blob": pa.array([bytes([i]) for i in rows], pa.binary()),
            "money": pa.array([Decimal(int(i)) for i in rows], pa.decimal128(9, 2)),
            "when": pa.array(rows * 1000, pa.timestamp("us")),
            "day": pa.array(rows.astype(np.int32)).cast(pa.date32()),
            "pair": pa.array([[float(i), -float(i)] for i in rows], pa.list_(pa.float32(), 2)),
        }

    return make_parquet(tmp_path_factory.mktemp("typed"), columns=columns).as_uri()


def ids(batches):
    return [int(one) for batch in batches for one in batch["id"]]


def rows(url, factory=make_reader, **options):
    """The ids that a reader gives, row by row."""
    with factory(url, **options) as reader:
        return [int(one) for row in reader for one in np.atleast_1d(row.id)]


def _pairs(batch, one, two):
    return zip(batch[one].tolist(), batch[two].tolist(), strict=True)


def _third(number):
    return number % 3 == 0


def plain(value):
    """A batch without tensors, for comparing; tensors keep their dtype."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), value.tolist()
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list) else value


class AsNumpy:
    """A loader whose batches have NumPy's arrays, as the check of resuming compares them."""

    def __init__(self, loader):
        self.loader = loader
        self.state_dict, self.load_state_dict, self.close = loader.state_dict, loader.load_state_dict, loader.close

    def __iter__(self):
        return map(self._numpy, self.loader)

    def __len__(self):
        return len(self.loader)

    def _numpy(self, value):
        if isinstance(value, dict):
            return {str(name): self._numpy(one) for name, one in value.items()}
        if isinstance(value, list):
            return [self._numpy(one) for one in value]
        return value.numpy() if isinstance(value, torch.Tensor) else value


# -- what comes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loader_class", LOADERS)
@pytest.mark.parametrize("factory", FACTORIES)
@pytest.mark.parametrize("size", [1, 4, 51, 100])
@pytest.mark.parametrize("num_epochs", [1, 3])
def test_batches_are_the_rows_of_the_reader_over_the_borders_of_row_groups_and_epochs(
    numbers, loader_class, factory, size, num_epochs
):
    options = {"seed": 3, "num_epochs": num_epochs}
    with loader_class(factory(numbers, **options), size) as loader:
        assert len(loader) == -(-NUM_ROWS * num_epochs // size)
        batches = list(loader)
    assert ids(batches) == rows(numbers, factory, **options)
    assert [len(batch["id"]) for batch in batches[:-1]] == [size] * (len(batches) - 1)
    assert len(batches) == -(-NUM_ROWS * num_epochs // size)


PROMOTED = {"uint16": torch.int32, "uint32": torch.int64, "bool": torch.uint8, "when": torch.int64, "day": torch.int64}
PROMOTED |= {"id": torch.int64, "pair": torch.float32}


@pytest.mark.parametrize("loader_class", LOADERS)
@pytest.mark.parametrize("shuffled", [0, 10])
def test_types_are_promoted_as_petastorm_does(typed, loader_class, shuffled):
    with loader_class(make_reader(typed, seed=1), 10, shuffling_queue_capacity=shuffled) as loader:
        for batch in loader:
            for name, values in batch.items():
                if name in ("text", "blob", "money"):
                    assert type(values) is list
                else:
                    assert values.dtype == PROMOTED.get(name, getattr(torch, name, None)), name
            number = batch["id"]
            assert batch["uint16"].tolist() == (number % 100).tolist()
            assert batch["bool"].tolist() == (number % 3 == 0).int().tolist()
            assert batch["text"] == [f"t{i}" for i in number.tolist()]
            assert batch["blob"] == [bytes([i]) for i in number.tolist()]
            assert batch["money"] == [Decimal(i) for i in number.tolist()]
            assert batch["when"].tolist() == (number * 1_000_000).tolist()
            assert batch["day"].tolist() == (number * 86400 * 10**9).tolist()
            assert torch.equal(batch["pair"], torch.stack([number, -number], 1).float())


@pytest.mark.parametrize("loader_class", LOADERS)
def test_batch_readers_give_the_same_as_row_readers_where_nothing_is_null(typed, loader_class):
    options = {"seed": 1, "shuffle_row_groups": False}
    with (
        loader_class(make_reader(typed, **options), 7) as one,
        loader_class(make_batch_reader(typed, **options), 7) as two,
    ):
        for a, b in zip(one, two, strict=True):
            assert plain(a) == plain(b)


def test_texts_nulls_and_ragged_lists_arrive_as_lists(kinds):
    with DataLoader(make_reader(kinds, shuffle_row_groups=False), 51) as loader:
        (batch,) = loader
    number = range(NUM_ROWS)
    assert batch["id"].tolist() == list(number)
    assert batch["small"] == [None if i % 5 == 2 else i % 100 for i in number]
    assert batch["flag"] == [None if i % 6 == 1 else i % 3 == 0 for i in number]
    assert batch["text"] == [None if i % 4 == 1 else f"row {i} \u00e9" for i in number]
    assert batch["blob"] == [None if i % 9 == 4 else bytes([i]) * (i % 5) for i in number]
    assert batch["money"] == [None if i % 11 == 5 else Decimal(i).scaleb(-2) for i in number]
    assert batch["when"] == [None if i % 8 == 6 else np.datetime64(i * 1_000_003, "us") for i in number]
    ragged = [None if one is None else (one.dtype, one.tolist()) for one in batch["ragged"]]
    assert ragged == [None if i % 7 == 3 else (torch.int32, list(range(i % 4))) for i in number]
    assert batch["pair"].tolist() == [[i, -i] for i in number]


def test_batch_readers_give_numbers_with_nulls_as_floats(kinds):
    with BatchedDataLoader(make_batch_reader(kinds, shuffle_row_groups=False), 51) as loader:
        (batch,) = loader
    small = batch["small"]
    assert small.dtype == torch.float64
    assert [None if v != v else v for v in small.tolist()] == [None if i % 5 == 2 else i for i in range(NUM_ROWS)]
    assert batch["flag"] == [None if i % 6 == 1 else i % 3 == 0 for i in range(NUM_ROWS)]
    assert batch["text"] == [None if i % 4 == 1 else f"row {i} \u00e9" for i in range(NUM_ROWS)]


@pytest.mark.parametrize("url", ["kinds", "typed"])
@pytest.mark.parametrize("factory", FACTORIES)
@pytest.mark.parametrize("size", [1, 5, 16])
def test_columns_give_what_collated_rows_give(request, url, factory, size):
    """The fast way takes columns; the plain one makes rows and collates them."""
    options = {"seed": 5, "num_epochs": 2}
    url = request.getfixturevalue(url)

    def collate(samples):  # not the default: rows are made
        return decimal_friendly_collate(samples)

    with DataLoader(factory(url, **options), size) as fast, DataLoader(factory(url, **options), size, collate) as slow:
        for a, b in zip(fast, slow, strict=True):
            assert repr(plain(a)).replace("True", "1").replace("False", "0") == repr(plain(b)).replace(
                "True", "1"
            ).replace("False", "0")


def test_tensors_share_the_memory_of_the_decoded_batch(numbers):
    with DataLoader(make_reader(numbers, shuffle_row_groups=False), 10) as loader:
        batches = list(loader)
    assert len({batch["id"].data_ptr() - 80 * i for i, batch in enumerate(batches)}) == 1
    batches[0]["id"][:] = -1
    assert ids(batches[1:]) == list(range(10, NUM_ROWS))


@pytest.mark.parametrize("loader_class", LOADERS)
@pytest.mark.parametrize("factory", FACTORIES)
def test_batches_stay_valid_after_the_next_one(numbers, loader_class, factory):
    with loader_class(factory(numbers, seed=2, num_epochs=4), 6) as loader:
        kept, copies = [], []
        for batch in loader:
            kept.append(batch)
            copies.append({name: values.clone() for name, values in batch.items()})
    assert all(torch.equal(a[name], b[name]) for a, b in zip(kept, copies, strict=True) for name in a)


def test_padding_is_told(numbers):
    readers = [make_reader(numbers, cur_shard=i, shard_count=4, remainder="pad", seed=1) for i in range(4)]
    seen = []
    for reader in readers:
        with DataLoader(reader, 5) as loader:
            batches = list(loader)
        assert len(batches) == 3
        seen += [i for batch in batches for i, valid in _pairs(batch, "id", "_valid") if valid]
    assert sorted(seen) == list(range(NUM_ROWS))


@pytest.mark.parametrize("loader_class", LOADERS)
def test_windows_arrive_step_by_step(numbers, loader_class):
    ngram = NGram({-1: ["id"], 0: ["id", "value"]}, delta_threshold=1, timestamp_field="id")
    expected = [(w[-1].id, w[0].id) for w in make_reader(numbers, schema_fields=ngram, seed=1)]
    with loader_class(make_reader(numbers, schema_fields=ngram, seed=1), 4) as loader:
        assert len(loader) == -(-len(expected) // 4)
        batches = list(loader)
    assert set(batches[0]) == {-1, 0}
    assert set(batches[0][0]) == {"id", "value"}
    found = [pair for b in batches for pair in zip(b[-1]["id"].tolist(), b[0]["id"].tolist(), strict=True)]
    assert found == expected
    assert batches[0][0]["value"].dtype == torch.float32


def test_readers_of_batches_of_windows(numbers):
    ngram = NGram({0: ["id"], 1: ["id"]}, delta_threshold=1, timestamp_field="id")
    options = {"schema_fields": ngram, "shuffle_row_groups": False}
    with DataLoader(make_batch_reader(numbers, **options), 4) as loader:
        found = [pair for b in loader for pair in zip(b[0]["id"].tolist(), b[1]["id"].tolist(), strict=True)]
    assert found == [(w[0].id, w[1].id) for w in make_reader(numbers, **options)]


# -- functions of the user --------------------------------------------------------------------------------------------


def test_the_old_transform_takes_rows_and_may_give_tuples(typed):
    def transform(row):
        assert type(row) is dict
        return torch.tensor([row["float32"]]) * 2, row["id"]

    with DataLoader(make_reader(typed, seed=1), batch_size=8, transform=transform) as loader:
        for data, target in loader:
            assert torch.equal(data[:, 0], (target % 100).float() * 2)
            assert target.dtype == torch.int64
            assert data.shape == (len(target), 1)


@pytest.mark.parametrize("factory", FACTORIES)
def test_a_collate_function_gets_rows_of_promoted_values(typed, factory):
    got = []
    with DataLoader(
        factory(typed, seed=1), 10, collate_fn=lambda samples: got.append(samples) or len(samples)
    ) as loader:
        assert list(loader) == [10] * 5 + [1]
    first = got[0][0]
    assert type(first) is dict
    assert (type(first["uint16"]), type(first["uint32"]), type(first["bool"])) == (np.int32, np.int64, np.uint8)
    assert type(first["text"]) is str


def test_a_transform_fn_is_called_for_columns_that_have_tensors(typed):
    called = []

    def to_half(values):
        called.append(len(values))
        return torch.as_tensor(values).to(torch.float16)

    with BatchedDataLoader(make_reader(typed, seed=1), 10, transform_fn=to_half) as loader:
        batch = next(iter(loader))
    assert batch["text"] == [f"t{i}" for i in batch["id"].int().tolist()]
    assert {values.dtype for values in batch.values() if isinstance(values, torch.Tensor)} == {torch.float16}
    assert set(called) == {10}


def test_transform_specs_that_give_tensors_are_stacked(numbers):
    def func(row):
        row["image"] = torch.full((1, 2, 2), float(row["id"]))
        return row

    spec = TransformSpec(func, edit_fields=[("image", np.float32, (1, 2, 2), False)])
    with DataLoader(make_reader(numbers, transform_spec=spec, seed=1), 8) as loader:
        for batch in loader:
            assert batch["image"].shape == (len(batch["id"]), 1, 2, 2)
            assert torch.equal(batch["image"][:, 0, 0, 0], batch["id"].float())


def test_transforms_of_frames_may_change_the_number_of_rows(numbers):
    pytest.importorskip("pandas")
    spec = TransformSpec(lambda frame: frame[frame["id"] % 2 == 0])
    with DataLoader(make_batch_reader(numbers, transform_spec=spec, shuffle_row_groups=False), 4) as loader:
        with pytest.raises(TypeError, match="number of rows"):
            len(loader)
        assert ids(loader) == list(range(0, NUM_ROWS, 2))
        assert ids(loader) == list(range(0, NUM_ROWS, 2))


def test_a_predicate_on_delivery_leaves_full_batches(numbers):
    reader = make_reader(numbers, predicate=in_lambda(["id"], _third), exact=False, seed=1)
    with DataLoader(reader, 4) as loader:
        with pytest.raises(TypeError, match="on delivery"):
            len(loader)
        batches = list(loader)
    assert sorted(ids(batches)) == list(range(0, NUM_ROWS, 3))
    assert [len(batch["id"]) for batch in batches] == [4] * 4 + [1]


def test_collating_what_petastorm_collates():
    assert decimal_friendly_collate([Decimal(1), Decimal(2)]) == [Decimal(1), Decimal(2)]
    assert decimal_friendly_collate(["a", "b"]) == ["a", "b"]
    assert decimal_friendly_collate([b"a", b"b"]) == [b"a", b"b"]
    assert torch.equal(decimal_friendly_collate([1.5, 2.5]), torch.tensor([1.5, 2.5], dtype=torch.float64))
    assert torch.equal(decimal_friendly_collate([np.zeros(2, np.int8)] * 3), torch.zeros(3, 2, dtype=torch.int8))
    found = decimal_friendly_collate([{"a": {"b": (1, "x", Decimal(3))}}, {"a": {"b": (2, "y", Decimal(4))}}])
    number, text, money = found["a"]["b"]
    assert number.tolist() == [1, 2]
    assert (text, money) == (["x", "y"], [Decimal(3), Decimal(4)])


def test_collating_what_petastorm_fails_on():
    assert decimal_friendly_collate([None, 2]) == [None, 2]
    assert decimal_friendly_collate([3, None]) == [3, None]
    ragged = decimal_friendly_collate([np.arange(2), np.arange(3)])
    assert [one.tolist() for one in ragged] == [[0, 1], [0, 1, 2]]
    assert decimal_friendly_collate([(1, 2), (3,)]) == [(1, 2), (3,)]
    assert decimal_friendly_collate([np.array(["a", "b"])] * 2)[0].tolist() == ["a", "b"]
    times = decimal_friendly_collate([np.datetime64("1970-01-02"), np.datetime64("1970-01-03")])
    assert times.tolist() == [86400 * 10**9, 2 * 86400 * 10**9]
    far = [np.datetime64("9999-01-01", "D"), np.datetime64("1970-01-03", "D")]
    assert decimal_friendly_collate(far) == far
    assert decimal_friendly_collate([np.datetime64("NaT")] * 2) == [None, None]
    assert decimal_friendly_collate([datetime.date(2020, 1, 1)]) == [datetime.date(2020, 1, 1)]

    class Own:
        pass

    with pytest.raises(TypeError, match="default_collate"):
        decimal_friendly_collate([Own()])


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
        predicate = in_lambda(["id"], _third)
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


# -- small datasets, missing torch ------------------------------------------------------------------------------------


@pytest.mark.parametrize("loader_class", LOADERS)
def test_defect_5_2_0_a_dataset_of_one_row_group_is_never_lost(tmp_path, loader_class):
    url = make_parquet(tmp_path / "one", [(30,)]).as_uri()
    for _ in range(30):
        with loader_class(make_batch_reader(url), 8) as loader:
            assert sorted(ids(loader)) == list(range(30))


@pytest.mark.filterwarnings("ignore:No matching data")
@pytest.mark.parametrize("loader_class", [*LOADERS, InMemBatchedDataLoader])
def test_no_rows_are_no_batches(numbers, loader_class):
    with loader_class(make_reader(numbers, filters=[("id", "<", 0)]), 8) as loader:
        assert len(loader) == 0
        assert list(loader) == []
        assert list(loader) == []


def test_without_torch_the_extra_is_named():
    code = """
import sys
sys.modules["torch"] = None
from penstock.petastorm.pytorch import DataLoader
try:
    DataLoader(None)
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "penstock.petastorm.pytorch needs PyTorch: pip install 'penstock[torch]'"
