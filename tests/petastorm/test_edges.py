"""What a reviewer found at the edges of the readers: nulls in lists, refused states, slow functions, odd arguments."""

from __future__ import annotations

import datetime
import itertools
import threading
import time
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.errors import PenstockWarning, StateMismatch, TransformError
from penstock.petastorm import NoDataAvailableError, Reader, TransformSpec, make_batch_reader, make_reader
from penstock.petastorm.cache import NullCache
from penstock.petastorm.ngram import NGram
from penstock.petastorm.predicates import in_lambda, in_set
from penstock.petastorm.weighted_sampling_reader import WeightedSamplingReader
from penstock.testing import make_parquet


@pytest.fixture
def table(tmp_path):
    return make_parquet(tmp_path / "data", [[10] * 10])


def write(path, **columns):
    pq.write_table(pa.table(columns), path)
    return path


# -- nulls -----------------------------------------------------------------------------------------------------------


def test_null_elements_of_lists_are_never_numbers(tmp_path):
    lists = pa.array([[1, 2], [3, None]], pa.list_(pa.int32()))
    fixed = pa.array([[1, 2], [3, None]], pa.list_(pa.int32(), 2))
    data = write(tmp_path / "a.parquet", lists=lists, fixed=fixed)
    with make_batch_reader(data) as reader:
        batch = next(reader)
    for column in (batch.lists, batch.fixed):
        assert [[None if np.isnan(v) else v for v in row] for row in column] == [[1, 2], [3, None]]
    with make_reader(data, shuffle_row_groups=False) as reader:
        _, row = reader
    assert row.fixed.tolist() == [3, None]
    assert row.lists.tolist() == [3, None]
    with make_reader(data, shuffle_row_groups=False, transform_spec=TransformSpec(_same)) as reader:
        _, row = reader
    assert row.fixed.tolist() == [3, None]


def _same(value):
    return value


def test_an_identity_of_frames_changes_no_value(tmp_path):
    pytest.importorskip("pandas")
    day = datetime.date(2020, 2, 29)
    data = write(
        tmp_path / "a.parquet", text=["a", None], day=pa.array([day, None]), flag=pa.array([True, None]),
        number=pa.array([1, None], pa.int16()), time=pa.array([10**9, None], pa.timestamp("us")),
    )  # fmt: skip
    with make_batch_reader(data) as plain, make_batch_reader(data, transform_spec=TransformSpec(_same)) as frames:
        one, two = next(plain), next(frames)
    assert two.text.tolist() == one.text.tolist() == ["a", None]
    assert two.day.tolist() == one.day.tolist() == [day, None]
    assert two.flag.tolist() == one.flag.tolist() == [True, None]
    np.testing.assert_array_equal(two.number, one.number)
    assert two.time.dtype == one.time.dtype
    np.testing.assert_array_equal(two.time, one.time)


def _twice(frame):
    import pandas as pd

    return pd.concat([frame, frame[["id"]]], axis=1)


def test_columns_of_the_same_name_are_an_error(table):
    pytest.importorskip("pandas")
    with (
        make_batch_reader(table, transform_spec=TransformSpec(_twice)) as reader,
        pytest.raises(TransformError, match="columns of the same name: id"),
    ):
        next(reader)


# -- states ----------------------------------------------------------------------------------------------------------


def test_shards_filtered_on_delivery_give_no_state_that_would_not_fit(table):
    with make_reader(table, predicate=in_set({1, 2}, "id"), exact=False, cur_shard=0, shard_count=2) as reader:
        next(reader)
        with pytest.raises(NotImplementedError, match="exact=False"):
            reader.state_dict()


@pytest.mark.parametrize("wrong", [None, [], {}, {"seed": 5}, {"seed": "abc"}, "other"])
def test_a_refused_state_changes_nothing(table, tmp_path, wrong):
    if wrong == "other":
        with make_reader(make_parquet(tmp_path / "other", [[3]])) as other:
            wrong = other.state_dict()
    with make_reader(table) as reader:
        first = [int(next(reader).id) for _ in range(35)]
        before = reader.state_dict()
        with pytest.raises(StateMismatch):
            reader.load_state_dict(wrong)
        assert reader.state_dict() == before
        assert sorted(first + [int(row.id) for row in reader]) == list(range(100))


# -- functions that take long, and predicates that leave nothing ---------------------------------------------------


def test_stopping_waits_for_one_row_not_for_all(tmp_path):
    data = make_parquet(tmp_path / "data", [[1000]])
    calls = []

    def slow(row):
        calls.append(row["id"])
        time.sleep(0.02)
        return row

    reader = make_reader(data, transform_spec=TransformSpec(slow))
    next(reader)
    assert len(calls) < 500
    reader.stop()
    assert len(calls) < 750


def test_an_interrupted_predicate_ends_with_the_call_it_is_in(tmp_path):
    data = make_parquet(tmp_path / "data", [[2000] * 2])
    calls = []

    def fails_later(value):
        calls.append(value)
        time.sleep(0.005)
        if len(calls) > 20:
            raise KeyboardInterrupt
        return True

    with pytest.raises(KeyboardInterrupt):
        make_reader(data, predicate=in_lambda(["id"], fails_later))
    assert len(calls) < 400  # of 2000


def test_an_endless_reader_that_never_gives_anything_is_an_error(table):
    with make_reader(table, num_epochs=None, predicate=in_set({-1}, "id"), exact=False) as reader:
        done = []

        def take():
            try:
                next(reader)
            except NoDataAvailableError as error:
                done.append(error)

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        thread.join(30)
        assert done


# -- windows ---------------------------------------------------------------------------------------------------------


def test_batches_of_shuffled_windows(tmp_path):
    data = make_parquet(tmp_path / "data", [[10] * 5])
    with make_batch_reader(data, NGram({0: ["id"], 1: ["id"]}, 1, "id"), shuffle_rows=True, seed=1) as reader:
        pairs = [(int(a), int(b)) for batch in reader for a, b in zip(batch[0].id, batch[1].id, strict=True)]
    assert sorted(pairs) == [(i, i + 1) for i in range(50) if i % 10 != 9]


def test_the_first_window_of_a_large_row_group_comes_soon(tmp_path):
    data = make_parquet(tmp_path / "data", [[200_000]])
    began = time.perf_counter()
    with make_reader(data, NGram({i: ["id", "value"] for i in range(20)}, 1, "id")) as reader:
        assert next(reader)[19].id == 19
    assert time.perf_counter() - began < 10


def _halve(row):
    return {**row, "id": np.int64(row["id"] // 2)}


def test_a_transform_of_the_timestamps_is_warned_of(table):
    spec = TransformSpec(_halve, edit_fields=[("id", np.int64, (), False)])
    with pytest.warns(PenstockWarning, match="stored timestamps"):
        make_reader(table, NGram({0: ["id"], 1: ["id"]}, 1, "id"), transform_spec=spec).stop()


def test_native_windows_of_a_spec_that_adds_and_removes(table):
    def add(row):
        return {"id": row["id"], "more": np.float32(row["id"])}

    spec = TransformSpec(add, edit_fields=[("more", np.float32, (), False)], removed_fields=["value"])
    window = penstock.Window(2, by="id", max_gap=1, columns={0: ["id", "more"], 1: ["more"]})
    batch = next(iter(penstock.open(table).loader(batch_size=3, window=window, transform=spec)))
    assert {name: values.shape for name, values in batch.items()} == {"id": (3, 1), "more": (3, 2)}
    wrong = penstock.Window(2, by="id", max_gap=1, columns={0: ["value"]})
    with pytest.raises(penstock.errors.ColumnNotFound, match="value"):
        penstock.open(table).loader(batch_size=3, window=wrong, transform=spec)


# -- arguments -------------------------------------------------------------------------------------------------------


def test_readers_are_true_whatever_their_length(table):
    with make_reader(table, num_epochs=None) as one, make_reader(table, num_epochs=None) as two:
        assert one
        assert WeightedSamplingReader([one, two], [1, 1])


def test_a_null_cache_and_a_url_by_name(table):
    with Reader(None, str(table), cache=NullCache()) as reader:
        assert len(list(reader)) == 100
    with Reader(dataset_url=str(table)) as reader:
        assert len(list(reader)) == 100


@pytest.mark.parametrize(
    "given",
    [{"seed": 1.5}, {"cur_shard": 0.0, "shard_count": 2}, {"cur_shard": 0, "shard_count": "2"}, {"exact": "no"}],
)
def test_arguments_of_the_wrong_kind_are_refused(table, given):
    with pytest.raises(ValueError, match="must be"):
        make_reader(table, **given)


def test_new_fields_without_a_function_are_refused(table):
    spec = TransformSpec(None, edit_fields=[("z", np.float32, (), False)])
    for make in (make_reader, make_batch_reader):
        with pytest.raises(ValueError, match="no func that makes them"):
            make(table, transform_spec=spec)


def test_a_warning_made_an_error_loses_no_row(table):
    def text(row):
        return {**row, "value": str(row["value"])}

    with warnings.catch_warnings(), make_reader(table, transform_spec=TransformSpec(text)) as reader:
        warnings.simplefilter("error")
        with pytest.raises(PenstockWarning, match=r"\('value', np.str_, \(\), "):
            next(reader)
        assert len(list(reader)) == 100


def test_names_that_become_equal_stay_apart(tmp_path):
    data = write(tmp_path / "a.parquet", **{"a-b": [1], "a_b": [2]})
    with make_reader(data) as reader:
        assert next(reader)._asdict() == {"a_b_2": 1, "a_b": 2}  # the exact name wins


def test_a_mix_of_readers_with_other_orders_of_odd_names(tmp_path):
    one = write(tmp_path / "a.parquet", **{"a-b": [1], "c": [2]})
    two = write(tmp_path / "b.parquet", **{"c": [4], "a-b": [3]})
    readers = [make_reader(one, num_epochs=None), make_reader(two, num_epochs=None)]
    with WeightedSamplingReader(readers, [1, 1], seed=1) as mixed:
        assert {tuple(row) for row in itertools.islice(mixed, 20)} == {(1, 2), (3, 4)}


def test_dropping_everything_is_warned_of(tmp_path):
    data = make_parquet(tmp_path / "data", [[5] * 2])
    with pytest.warns(PenstockWarning, match="remainder='drop' leaves nothing"):
        make_batch_reader(data, cur_shard=0, shard_count=3, remainder="drop").stop()


def test_native_specs_give_columns_as_batches_have_them(tmp_path):
    data = write(tmp_path / "a.parquet", id=[1, 2, 3], text=["a", "b", None])

    def some(row):
        return {**row, "maybe": None if row["id"] == 2 else np.float32(row["id"])}

    spec = TransformSpec(some, edit_fields=[("maybe", np.float32, (), True)])
    batch = next(iter(penstock.open(data).loader(batch_size=3, transform=spec)))
    assert batch["text"].tolist() == ["a", "b", None]
    assert batch["maybe"].tolist() == [1, None, 3]
    assert batch["maybe"].dtype == np.float32


@pytest.mark.parametrize("given", [{"cache_extra_settings": {"shards": 3}}, {"cache_row_size_estimate": 10}])
def test_settings_that_a_memory_cache_does_not_have_are_refused(table, given):
    with pytest.raises(ValueError, match="takes cache_size_limit only"):
        make_reader(table, cache_type="memory", **given)
