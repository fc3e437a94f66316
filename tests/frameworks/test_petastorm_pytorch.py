"""`petastorm.pytorch`: what Petastorm's loaders give, with functions of the user and of which types."""

from __future__ import annotations

import datetime
import subprocess
import sys
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.errors import UnsupportedType
from penstock.petastorm.ngram import NGram
from penstock.petastorm.predicates import in_lambda
from penstock.petastorm.pytorch import (
    BatchedDataLoader,
    DataLoader,
    InMemBatchedDataLoader,
    decimal_friendly_collate,
)
from penstock.petastorm.reader import Reader, make_batch_reader, make_reader
from penstock.petastorm.transform import TransformSpec
from penstock.testing import make_parquet
from penstock.testing.data import mixed

torch = pytest.importorskip("torch")

from tests.frameworks.petastorm_help import FACTORIES, LOADERS, NUM_ROWS, ids, pairs, plain, rows, third  # noqa: E402


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
        seen += [i for batch in batches for i, valid in pairs(batch, "id", "_valid") if valid]
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
    reader = make_reader(numbers, predicate=in_lambda(["id"], third), exact=False, seed=1)
    with DataLoader(reader, 4) as loader:
        with pytest.raises(TypeError, match="on delivery"):
            len(loader)
        batches = list(loader)
    assert sorted(ids(batches)) == list(range(0, NUM_ROWS, 3))
    assert [len(batch["id"]) for batch in batches] == [4] * 4 + [1]


BIG = 2**53 + 1


@pytest.mark.parametrize("loader_type", [DataLoader, BatchedDataLoader])
def test_integers_with_nulls_are_never_rounded(tmp_path, loader_type):
    """A batch may join rows of several row groups, with and without nulls."""
    first = pa.table({"small": [1, 2, 3], "big": [BIG, 2, 3], "none": [BIG, 2, 3]})
    second = pa.table({"small": [4, None, 6], "big": [4, None, 6], "none": [4, 5, 6]})
    with pq.ParquetWriter(tmp_path / "a.parquet", first.schema) as writer:
        writer.write_table(first)
        writer.write_table(second)
    with loader_type(make_batch_reader(tmp_path, shuffle_row_groups=False), 2) as loader:
        batches = list(loader)
    assert [batch["none"].tolist() for batch in batches] == [[BIG, 2], [3, 4], [5, 6]]
    assert {batch["none"].dtype for batch in batches} == {torch.int64}
    assert {batch["small"].dtype for batch in batches} == {torch.float64}
    assert [batch["big"].tolist() for batch in batches[:2]] == [[BIG, 2], [3, 4]]
    assert batches[2]["big"] == [None, 6]  # a list only where there is a null


def test_rows_of_integers_and_floats_are_not_rounded_into_one_tensor():
    values = [np.int64(BIG), np.float64(0.5)]
    assert decimal_friendly_collate(values) == values
    assert decimal_friendly_collate([np.int64(3), np.float64(0.5)]).tolist() == [3.0, 0.5]


def test_collating_what_petastorm_collates():
    assert decimal_friendly_collate([Decimal(1), Decimal(2)]) == [Decimal(1), Decimal(2)]
    assert decimal_friendly_collate(["a", "b"]) == ["a", "b"]
    assert decimal_friendly_collate([b"a", b"b"]) == [b"a", b"b"]
    assert torch.equal(decimal_friendly_collate([1.5, 2.5]), torch.tensor([1.5, 2.5], dtype=torch.float64))
    assert torch.equal(decimal_friendly_collate([np.zeros(2, np.int8)] * 3), torch.zeros(3, 2, dtype=torch.int8))
    assert decimal_friendly_collate((Decimal(1), Decimal(2))) == (Decimal(1), Decimal(2))
    numbers, texts = decimal_friendly_collate(([1, "a"], [2, "b"]))
    assert (numbers.tolist(), texts) == ([1, 2], ("a", "b"))
    found = decimal_friendly_collate([{"a": {"b": (1, "x", Decimal(3))}}, {"a": {"b": (2, "y", Decimal(4))}}])
    number, text, money = found["a"]["b"]
    assert number.tolist() == [1, 2]
    assert (text, money) == (("x", "y"), (Decimal(3), Decimal(4)))  # tuples, as Petastorm transposes them


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
    assert decimal_friendly_collate([np.datetime64("NaT", "us")] * 2) == [None, None]
    assert decimal_friendly_collate([datetime.date(2020, 1, 1)]) == [datetime.date(2020, 1, 1)]

    class Own:
        pass

    with pytest.raises(TypeError, match="default_collate"):
        decimal_friendly_collate([Own()])


@pytest.mark.parametrize("pool", ["thread", "process", "dummy"])
def test_all_pools_give_the_same(typed, pool):
    with DataLoader(make_reader(typed, seed=1, reader_pool_type=pool, workers_count=2), 8) as loader:
        found = [plain(batch) for batch in loader]
    with DataLoader(make_reader(typed, seed=1), 8) as loader:
        assert found == [plain(batch) for batch in loader]


def test_the_class_of_readers_goes_with_the_old_transform_over_many_epochs(numbers):
    seen = 0
    with DataLoader(Reader(numbers, num_epochs=10), batch_size=64, transform=lambda row: (row["value"], 1)) as loader:
        for data, target in loader:
            assert len(data) == len(target)
            seen += len(target)
    assert seen == 10 * NUM_ROWS


def test_a_dtype_that_torch_lacks_is_named():
    with pytest.raises(UnsupportedType, match="no dtype for"):
        decimal_friendly_collate([np.longdouble(1), np.longdouble(2)])


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
