"""Parts of Petastorm that programs use by hand: the table queue, mock reader, buffers, serializers, pools."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.petastorm.codecs import NdarrayCodec, ScalarCodec
from penstock.petastorm.pyarrow_helpers.batching_table_queue import BatchingTableQueue
from penstock.petastorm.reader_impl.arrow_table_serializer import ArrowTableSerializer
from penstock.petastorm.reader_impl.pickle_serializer import PickleSerializer
from penstock.petastorm.reader_impl.shuffling_buffer import NoopShufflingBuffer, RandomShufflingBuffer
from penstock.petastorm.test_util.reader_mock import ReaderMock, schema_data_generator_example
from penstock.petastorm.unischema import Unischema, UnischemaField
from penstock.petastorm.workers_pool import EmptyResultError, TimeoutWaitingForResultError
from penstock.petastorm.workers_pool.dummy_pool import DummyPool
from penstock.petastorm.workers_pool.process_pool import ProcessPool
from penstock.petastorm.workers_pool.thread_pool import ThreadPool

if TYPE_CHECKING:
    from collections.abc import Sequence

SCHEMA = Unischema(
    "S", [UnischemaField("id", np.int64, (), None, False), UnischemaField("a", np.float32, (None, 2), None, False)]
)


def table(start: int, count: int) -> pa.Table:
    return pa.table({"x": pa.array(range(start, start + count), pa.int64())})


# -- the table queue ------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 12), max_size=8), st.integers(1, 9))
@settings(max_examples=50, deadline=None)
def test_tables_of_any_length_come_out_in_one_length_and_order(lengths: Sequence[int], size: int) -> None:
    queue, start, found = BatchingTableQueue(size), 0, []
    for count in lengths:
        queue.put(table(start, count))
        start += count
        while not queue.empty():
            found.append(queue.get().column("x").to_pylist())
    whole = start - start % size
    assert found == [list(range(first, first + size)) for first in range(0, whole, size)]
    with pytest.raises(IndexError, match=f"only {start % size} rows are waiting"):
        queue.get()


def test_record_batches_fit_and_other_schemas_do_not() -> None:
    queue = BatchingTableQueue(3)
    queue.put(table(0, 2).to_batches()[0])
    queue.put(table(2, 2))
    with pytest.raises(ValueError, match="does not fit the rows waiting"):
        queue.put(pa.table({"y": [1]}))
    queue.put(pa.table({"x": pa.array([], pa.null())}))  # without rows: nothing that could differ
    assert queue.get().column("x").to_pylist() == [0, 1, 2]
    with pytest.raises(ValueError, match="at least 1, got 0"):
        BatchingTableQueue(0)


# -- the mock reader ------------------------------------------------------------------------------------------------


def test_a_mock_reader_gives_rows_of_the_schema_also_after_a_with_block() -> None:
    with ReaderMock(SCHEMA, schema_data_generator_example) as reader:
        rows = [next(reader), reader.next(), next(iter(reader)), reader.fetch()]
        assert all(type(row).__name__ == "S_view" and row.a.shape == (10, 2) for row in rows)
        assert reader.schema_data_generator is schema_data_generator_example
        reader.reset()
        next(reader)
        assert not reader.batched_output
        assert not reader.last_row_consumed
        assert reader.ngram is None
        assert reader.schema is SCHEMA
        assert reader.diagnostics == {}
    reader.stop()
    reader.join()
    with reader:
        assert next(reader).id == 0


def test_the_example_row_of_the_mock_reader_is_all_zeros() -> None:
    schema = Unischema(
        "Z",
        [
            UnischemaField("d", Decimal, (), ScalarCodec(pa.decimal128(10, 9)), False),
            UnischemaField("s", np.str_, (), ScalarCodec(pa.string()), False),
            UnischemaField("n", np.int32, (), ScalarCodec(pa.int32()), False),
            UnischemaField("m", np.float32, (None, 3), NdarrayCodec(), True),
        ],
    )
    row = schema_data_generator_example(schema)
    assert list(row) == ["d", "s", "n", "m"]
    assert row["d"] == Decimal("0.0")
    assert row["s"] == ""
    assert (row["n"], row["n"].dtype, row["n"].shape) == (0, np.int32, ())
    assert (row["m"].dtype, row["m"].shape) == (np.float32, (10, 3))
    assert not row["m"].any()


def test_a_mock_reader_gives_what_the_function_makes() -> None:
    numbers = iter(range(9))
    reader = ReaderMock(SCHEMA, lambda schema: {"id": next(numbers), "a": 0, "more": 1})
    assert [next(reader).id for _ in range(3)] == [0, 1, 2]


def test_a_mock_reader_gives_windows() -> None:
    ngram = pytest.importorskip("penstock.petastorm.ngram")
    numbers = iter(range(99))
    wanted = ngram.NGram({-1: ["id", "a"], 1: ["id"]}, delta_threshold=1, timestamp_field="id")
    reader = ReaderMock(SCHEMA, lambda schema: {"id": next(numbers), "a": 0}, ngram=wanted)
    window = next(reader)
    assert sorted(window) == [-1, 0, 1]
    assert [row._fields for _, row in sorted(window.items())] == [("id", "a"), (), ("id",)]
    assert window[1].id > window[-1].id


# -- buffers --------------------------------------------------------------------------------------------------------


def drain(buffer: NoopShufflingBuffer | RandomShufflingBuffer) -> list[int]:
    found = []
    while buffer.can_retrieve():
        found.append(buffer.retrieve())
    return found


def test_the_plain_buffer_keeps_the_order() -> None:
    buffer = NoopShufflingBuffer()
    buffer.add_many(range(3))
    buffer.add_many([3])
    assert buffer.can_add()
    assert buffer.size == 4
    buffer.finish()
    assert drain(buffer) == [0, 1, 2, 3]


@given(st.lists(st.integers(0, 5), max_size=10), st.integers(0, 8), st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_the_random_buffer_loses_nothing_and_keeps_its_least(sizes: list[int], least: int, seed: int) -> None:
    buffer, given_in, found = RandomShufflingBuffer(10, least, seed=seed), 0, []
    for size in sizes:
        if buffer.can_add():
            buffer.add_many(range(given_in, given_in + size))
            given_in += size
        found += drain(buffer)
        assert buffer.size < max(1, least)
    buffer.finish()
    assert not buffer.can_add()
    assert sorted(found + drain(buffer)) == list(range(given_in))


def test_a_full_random_buffer_never_stalls() -> None:
    """Full, it takes no more items; where as many must be in, one has to be given out all the same."""
    buffer = RandomShufflingBuffer(4, 4, seed=1)
    found = []
    for item in range(10):
        assert buffer.can_add()
        buffer.add_many([item])
        found += drain(buffer)
    assert len(found) == 7
    buffer.finish()
    assert sorted(found + drain(buffer)) == list(range(10))


def test_the_random_buffer_shuffles_repeatably_and_refuses_too_much() -> None:
    orders = []
    for seed in (1, 1, 2):
        buffer = RandomShufflingBuffer(50, 10, seed=seed)
        buffer.add_many(range(50))
        buffer.finish()
        orders.append(drain(buffer))
    assert orders[0] == orders[1] != orders[2]
    assert orders[0] != sorted(orders[0])
    buffer = RandomShufflingBuffer(4, 1, extra_capacity=1)
    with pytest.raises(RuntimeError, match="6 items do not fit beside 0: at most 5"):
        buffer.add_many(range(6))
    with pytest.raises(RuntimeError, match="only 0 items"):
        buffer.retrieve()
    buffer.finish()
    with pytest.raises(RuntimeError, match=r"after finish\(\)"):
        buffer.add_many([1])
    with pytest.raises(ValueError, match="between 0 and the capacity 4"):
        RandomShufflingBuffer(4, 5)


# -- serializers and pools ------------------------------------------------------------------------------------------


def test_serializers_give_back_what_they_got() -> None:
    rows = [{"a": np.arange(3)}]
    assert PickleSerializer().deserialize(PickleSerializer().serialize(rows))[0]["a"].tolist() == [0, 1, 2]
    for value in (table(0, 5), table(0, 0)):
        assert ArrowTableSerializer().deserialize(ArrowTableSerializer().serialize(value)).equals(value)


def test_pools_say_what_they_are() -> None:
    assert [(pool.pool_type, pool.workers_count) for pool in (ThreadPool(10), ProcessPool(2), DummyPool())] == [
        ("thread", 10),
        ("process", 2),
        ("dummy", 1),
    ]
    assert issubclass(EmptyResultError, Exception)
    assert issubclass(TimeoutWaitingForResultError, Exception)
