"""`petastorm.tf_utils`: readers as tf.data datasets and as tensors of a graph, with Petastorm's types."""

from __future__ import annotations

import datetime
import subprocess
import sys
import textwrap
import threading
import time
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

tf = pytest.importorskip("tensorflow")

import penstock  # noqa: E402
from penstock import Unischema, UnischemaField, codecs  # noqa: E402
from penstock.petastorm import TransformSpec, make_batch_reader, make_reader  # noqa: E402
from penstock.petastorm.ngram import NGram  # noqa: E402
from penstock.petastorm.predicates import in_lambda  # noqa: E402
from penstock.petastorm.test_util.reader_mock import ReaderMock, schema_data_generator_example  # noqa: E402
from penstock.petastorm.tf_utils import (  # noqa: E402
    RANDOM_SHUFFLING_QUEUE_SIZE,
    date_to_nsec_from_epoch,
    make_namedtuple_tf_ngram,
    make_petastorm_dataset,
    tf_tensors,
)
from penstock.petastorm.weighted_sampling_reader import WeightedSamplingReader  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path

ROWS = 50

SCHEMA = Unischema(
    "Rows",
    [
        UnischemaField("id", np.int64, (), codecs.ScalarCodec(), False),
        UnischemaField("small", np.uint16, (), codecs.ScalarCodec(), False),
        UnischemaField("large", np.uint32, (), codecs.ScalarCodec(), False),
        UnischemaField("flag", np.bool_, (), codecs.ScalarCodec(), False),
        UnischemaField("word", np.str_, (), codecs.ScalarCodec(), False),
        UnischemaField("money", Decimal, (), codecs.ScalarCodec(pa.decimal128(10, 2)), False),
        UnischemaField("matrix", np.float32, (2, 3), codecs.NdarrayCodec(), False),
        UnischemaField("free", np.uint16, (None, 2, None), codecs.NdarrayCodec(), False),
        UnischemaField("image", np.uint8, (4, 5, 3), codecs.CompressedImageCodec("png"), False),
        UnischemaField("maybe", np.int32, (), codecs.ScalarCodec(), True),
    ],
)
NAMES = [name for name in SCHEMA.fields if name != "maybe"]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("tf_utils") / "rows"
    penstock.write(
        [
            {
                "id": np.int64(row),
                "small": np.uint16(60_000 + row),
                "large": np.uint32(4_000_000_000 + row),
                "flag": np.bool_(row % 2),
                "word": f"wörd {row}",
                "money": Decimal(f"{row}.50"),
                "matrix": np.full((2, 3), row, np.float32),
                "free": np.full((row % 3, 2, row % 4), row, np.uint16),
                "image": np.full((4, 5, 3), row, np.uint8),
                "maybe": None if row % 7 == 0 else np.int32(row),
            }
            for row in range(ROWS)
        ],
        path,
        schema=SCHEMA,
        row_group_bytes=2500,
    )
    return f"file://{path}"


def ids(dataset: Any) -> list[int]:
    return [int(row.id) for row in dataset]


def threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name.startswith("penstock")]


def gone(seconds: float = 3.0) -> bool:
    until = time.monotonic() + seconds
    while threads() and time.monotonic() < until:
        time.sleep(0.01)
    return not threads()


# -- rows -------------------------------------------------------------------------------------------------------------


def test_rows_are_named_tuples_with_static_specs(url: str) -> None:
    with make_reader(url, schema_fields=NAMES, shuffle_row_groups=False) as reader:
        dataset = make_petastorm_dataset(reader)
        spec = dataset.element_spec
        assert spec._fields == tuple(NAMES)
        assert spec.small == tf.TensorSpec([], tf.int32)
        assert spec.large == tf.TensorSpec([], tf.int64)
        assert spec.word == spec.money == tf.TensorSpec([], tf.string)
        assert spec.matrix == tf.TensorSpec([2, 3], tf.float32)
        assert spec.free == tf.TensorSpec([None, 2, None], tf.int32)
        assert spec.image == tf.TensorSpec([4, 5, 3], tf.uint8)
        rows = list(dataset)
    assert len(rows) == ROWS
    for number, row in enumerate(rows):
        assert int(row.id) == number
        assert int(row.small) == 60_000 + number
        assert int(row.large) == 4_000_000_000 + number
        assert bool(row.flag) == bool(number % 2)
        assert row.word.numpy().decode() == f"wörd {number}"
        assert row.money.numpy().decode() == str(Decimal(f"{number}.50").normalize())
        assert (row.matrix.numpy() == number).all()
        assert row.free.numpy().shape == (number % 3, 2, number % 4)
        assert (row.free.numpy() == number).all()
        assert (row.image.numpy() == number).all()


def test_blocks_give_what_items_one_by_one_give(url: str) -> None:
    from penstock.petastorm import _tf_dataset
    from penstock.petastorm.tf_utils import Shape

    options = {"schema_fields": NAMES, "shuffle_rows": True, "seed": 3, "num_epochs": 2}
    with make_reader(url, **options) as one, make_reader(url, **options) as other:
        fast, plain = make_petastorm_dataset(one), _tf_dataset._items(other, Shape(other))
        assert fast.element_spec == plain.element_spec
        count = 0
        for left, right in zip(fast, plain, strict=True):
            count += 1
            for mine, its in zip(left, right, strict=True):
                assert mine.dtype == its.dtype
                assert np.array_equal(mine.numpy(), its.numpy())
        assert count == 2 * ROWS


def test_batching_and_fit_work(url: str) -> None:
    with make_reader(url, schema_fields=["id", "matrix"], num_epochs=None, seed=1) as reader:
        data = make_petastorm_dataset(reader).map(lambda row: (row.matrix / 50, tf.cast(row.id, tf.float32))).batch(8)
        model = tf.keras.Sequential([tf.keras.Input([2, 3]), tf.keras.layers.Flatten(), tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(data, steps_per_epoch=5, epochs=2, shuffle=False, verbose=0)
    assert gone()


def test_a_null_is_an_error_that_names_the_field(url: str) -> None:
    told = pytest.raises(tf.errors.OpError, match="field 'maybe' is null, and TensorFlow has no null")
    with make_reader(url, schema_fields=["id", "maybe"]) as reader, told:
        list(make_petastorm_dataset(reader))
    with make_batch_reader(url, schema_fields=["id", "maybe"]) as reader, told:
        list(make_petastorm_dataset(reader))
    spec = TransformSpec(
        lambda row: {"id": row["id"], "maybe": np.int32(-1 if row["maybe"] is None else row["maybe"])},
        edit_fields=[("maybe", np.int32, (), False)],
    )
    with make_reader(url, schema_fields=["id", "maybe"], transform_spec=spec, shuffle_row_groups=False) as reader:
        values = [int(row.maybe) for row in make_petastorm_dataset(reader)]
    assert values == [-1 if row % 7 == 0 else row for row in range(ROWS)]


def test_predicates_and_filters_on_delivery_work(url: str) -> None:
    predicate = in_lambda(["id"], lambda number: number % 3 == 0)
    for exact in (True, False):
        with make_reader(
            url, schema_fields=["id"], predicate=predicate, exact=exact, shuffle_row_groups=False
        ) as reader:
            assert ids(make_petastorm_dataset(reader)) == list(range(0, ROWS, 3))


# -- passes and places ------------------------------------------------------------------------------------------------


def test_iterating_again_is_the_next_pass_without_a_warning(url: str) -> None:
    with make_reader(url, schema_fields=["id"], seed=5) as reader:
        dataset = make_petastorm_dataset(reader)
        first, second = ids(dataset), ids(dataset)
        assert first != second
        assert sorted(first) == sorted(second) == list(range(ROWS))
        for _ in dataset:
            break
        assert sorted(ids(dataset)) == list(range(ROWS))
    with make_reader(url, schema_fields=["id"], seed=5, num_epochs=2) as reader:
        assert [row.id for row in reader] == [*first, *second]


@pytest.mark.parametrize("rows", [1, 17, 49])
def test_the_state_of_the_reader_is_that_of_the_consumer(url: str, rows: int) -> None:
    options = {"schema_fields": ["id"], "shuffle_rows": True, "seed": 5}
    with make_reader(url, **options) as reader:
        whole = [row.id for row in reader]
    with make_reader(url, **options) as reader:
        dataset = make_petastorm_dataset(reader)
        iterator = iter(dataset)
        seen = []
        for number in range(rows):
            seen.append(int(next(iterator).id))
            assert len(reader) == ROWS - number - 1
        state = reader.state_dict()
        assert [*seen, *[int(row.id) for row in iterator]] == whole  # asking changes nothing
    with make_reader(url, **options) as reader:
        reader.load_state_dict(state)
        assert [*seen, *ids(make_petastorm_dataset(reader))] == whole


def test_a_reader_that_has_begun_goes_on(url: str) -> None:
    with make_reader(url, schema_fields=["id"], shuffle_row_groups=False) as reader:
        assert [next(reader).id for _ in range(5)] == list(range(5))
        iterator = iter(make_petastorm_dataset(reader))
        assert int(next(iterator).id) == 5
        assert len(reader) == ROWS - 6
        assert [int(row.id) for row in iterator] == list(range(6, ROWS))


def test_two_iterators_at_once_are_told(url: str) -> None:
    with make_reader(url, schema_fields=["id"]) as reader:
        dataset = make_petastorm_dataset(reader)
        with pytest.raises(tf.errors.OpError, match="another iterator"):
            list(tf.data.Dataset.zip((dataset, dataset)))


def test_break_and_stop_leave_no_thread(url: str) -> None:
    reader = make_reader(url, schema_fields=["id"], num_epochs=None)
    dataset = make_petastorm_dataset(reader)
    iterator = iter(dataset.batch(4).prefetch(2))
    next(iterator)
    reader.stop()
    reader.join()
    assert not threads()
    with pytest.raises(tf.errors.OpError, match=r"stopped|closed"):
        list(iterator)


def test_a_program_may_end_in_mid_pass(url: str) -> None:
    code = f"""
        from penstock.petastorm import make_reader
        from penstock.petastorm.tf_utils import make_petastorm_dataset
        reader = make_reader({url!r}, schema_fields=["id"], num_epochs=None)
        iterator = iter(make_petastorm_dataset(reader).batch(3).prefetch(2))
        next(iterator)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


# -- batches, mixes, mocks --------------------------------------------------------------------------------------------


def test_batches_are_named_tuples_of_columns(tmp_path: Path) -> None:
    days = [datetime.date(2020, 1, 1) + datetime.timedelta(row) for row in range(10)]
    table = {
        "id": list(range(10)),
        "word": [str(row) for row in range(10)],
        "day": days,
        "when": pa.array([datetime.datetime(2020, 1, 1, 0, 0, row) for row in range(10)]),
        "money": [Decimal(f"{row}.10") for row in range(10)],
        "pair": [[row, row + 1] for row in range(10)],
    }
    pq.write_table(pa.table(table), tmp_path / "a.parquet", row_group_size=4)
    with make_batch_reader(f"file://{tmp_path}", shuffle_row_groups=False) as reader:
        dataset = make_petastorm_dataset(reader)
        assert dataset.element_spec.pair == tf.TensorSpec([None, None], tf.int64)
        batches = list(dataset)
    assert [batch.id.numpy().tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert batches[0].word.numpy().tolist() == [b"0", b"1", b"2", b"3"]
    assert batches[0].day.numpy()[1] == date_to_nsec_from_epoch(days[1]) == 1_577_923_200_000_000_000
    assert batches[0].when.numpy().view("M8[ns]")[2] == np.datetime64("2020-01-01T00:00:02")
    assert batches[0].money.numpy()[1] == b"1.1"
    assert batches[2].pair.numpy().tolist() == [[8, 9], [9, 10]]


def test_lists_of_unequal_length_in_batches_are_told(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [[1], [1, 2]]}), tmp_path / "a.parquet")
    told = pytest.raises(tf.errors.OpError, match=r"field 'x' has rows of different shapes.*RaggedTensor")
    with make_batch_reader(f"file://{tmp_path}") as reader, told:
        list(make_petastorm_dataset(reader))


def test_a_mix_of_readers_is_taken_item_by_item(url: str) -> None:
    readers = [make_reader(url, schema_fields=["id"], num_epochs=None, seed=seed) for seed in (1, 2)]
    with WeightedSamplingReader(readers, [0.5, 0.5], seed=1) as mixed:
        assert len(ids(make_petastorm_dataset(mixed).take(30))) == 30


def test_a_mock_of_a_reader_will_do() -> None:
    schema = Unischema("S", [UnischemaField("id", np.int32, (), None, False), SCHEMA.matrix])
    mock = ReaderMock(schema, schema_data_generator_example)
    rows = list(make_petastorm_dataset(mock).take(3))
    assert [row.matrix.shape.as_list() for row in rows] == [[2, 3]] * 3


def test_a_field_without_a_type_in_tensorflow_is_refused(tmp_path: Path) -> None:
    column = pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))
    pq.write_table(pa.table({"m": column}), tmp_path / "a.parquet")
    with make_reader(f"file://{tmp_path}") as reader, pytest.raises(ValueError, match="field 'm' has no dtype"):
        make_petastorm_dataset(reader)


def test_batches_without_a_null_come_though_others_have_some(tmp_path: Path) -> None:
    """Such integers are float64 or objects in all batches; the tensors have the field's dtype."""
    with pq.ParquetWriter(tmp_path / "a.parquet", pa.schema([("i", pa.int64()), ("big", pa.int64())])) as writer:
        writer.write_table(pa.table({"i": [1, 2], "big": [2**53 + 1, 2]}))
        writer.write_table(pa.table({"i": [3, None], "big": [None, 2]}))
    with make_batch_reader(tmp_path.as_uri(), shuffle_row_groups=False) as reader:
        rows = iter(make_petastorm_dataset(reader))
        first = next(rows)
        assert (first.i.dtype, first.big.dtype) == (tf.int64, tf.int64)
        assert (first.i.numpy().tolist(), first.big.numpy().tolist()) == ([1, 2], [2**53 + 1, 2])
        with pytest.raises(tf.errors.InvalidArgumentError, match="is null"):
            next(rows)


def test_types_that_petastorm_refused(tmp_path: Path) -> None:
    table = {"big": pa.array([2**63], pa.uint64()), "half": pa.array(np.array([0.5], np.float16))}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    with make_reader(f"file://{tmp_path}") as reader:
        [row] = list(make_petastorm_dataset(reader))
    assert (row.big.dtype, row.half.dtype) == (tf.uint64, tf.float16)
    assert int(row.big.numpy()) == 2**63


# -- n-grams ----------------------------------------------------------------------------------------------------------


def ngram() -> NGram:
    return NGram({-1: ["id", "matrix"], 1: ["id", "free"]}, 1, "id")


def test_ngrams_are_dicts_of_named_tuples(url: str) -> None:
    with make_reader(url, schema_fields=ngram(), shuffle_row_groups=False) as reader:
        want = list(reader)
    with make_reader(url, schema_fields=ngram(), shuffle_row_groups=False) as reader:
        dataset = make_petastorm_dataset(reader)
        assert sorted(dataset.element_spec) == [-1, 0, 1]
        assert dataset.element_spec[-1].matrix == tf.TensorSpec([2, 3], tf.float32)
        assert dataset.element_spec[0] == ()
        got = list(dataset)
    assert len(got) == len(want) > 10
    for mine, its in zip(got, want, strict=True):
        assert int(mine[-1].id) == its[-1].id
        assert int(mine[1].id) == its[1].id == its[-1].id + 2
        assert (mine[-1].matrix.numpy() == its[-1].matrix).all()
        assert (mine[1].free.numpy() == its[1].free).all()
        assert mine[1].free.shape == its[1].free.shape


def test_the_state_counts_windows(url: str) -> None:
    options = {"schema_fields": ngram(), "shuffle_rows": True, "seed": 4}
    with make_reader(url, **options) as reader:
        whole = [window[1].id for window in reader]
    with make_reader(url, **options) as reader:
        iterator = iter(make_petastorm_dataset(reader))
        seen = [int(next(iterator)[1].id) for _ in range(7)]
        state = reader.state_dict()
    with make_reader(url, **options) as reader:
        reader.load_state_dict(state)
        assert [*seen, *[int(window[1].id) for window in make_petastorm_dataset(reader)]] == whole


def test_named_tuples_of_ngrams_by_position_and_name(url: str) -> None:
    with make_reader(url, schema_fields=ngram()) as reader:
        schema = reader.schema
        window = make_namedtuple_tf_ngram(schema, reader.ngram, 1, 2, 3, 4)
        assert {step: tuple(row) for step, row in window.items()} == {-1: (1, 2), 0: (), 1: (3, 4)}
        named = make_namedtuple_tf_ngram(
            schema, reader.ngram, **{"-1": {"id": 1, "matrix": 2}, "1": {"id": 3, "free": 4}}
        )
        assert named == window


# -- graphs -----------------------------------------------------------------------------------------------------------


def test_tensors_of_a_graph_give_a_row_each_time(url: str) -> None:
    with make_reader(url, schema_fields=NAMES, shuffle_row_groups=False) as reader, tf.Graph().as_default():
        row = tf_tensors(reader)
        assert row.matrix.shape.as_list() == [2, 3]
        assert row.free.shape.as_list() == [None, 2, None]
        assert row.small.dtype == tf.int32
        with tf.compat.v1.Session() as session:
            for number in range(ROWS):
                got = session.run(row)
                assert got.id == number
                assert got.word.decode() == f"wörd {number}"
                assert (got.image == number).all()
            with pytest.raises(tf.errors.OutOfRangeError):
                session.run(row)


def test_tensors_of_a_graph_through_a_queue(url: str) -> None:
    v1 = tf.compat.v1
    with make_reader(url, schema_fields=["id", "matrix"], num_epochs=None) as reader, tf.Graph().as_default() as graph:
        row = tf_tensors(reader, shuffling_queue_capacity=20, min_after_dequeue=10)
        assert row.matrix.shape.as_list() == [2, 3]
        with v1.Session() as session:
            coordinator = v1.train.Coordinator()
            runners = v1.train.start_queue_runners(session, coordinator)
            found = [int(session.run(row).id) for _ in range(40)]
            size = graph.get_tensor_by_name(f"{RANDOM_SHUFFLING_QUEUE_SIZE}:0")
            assert 0 <= session.run(size) <= 20
            coordinator.request_stop()
            coordinator.join(runners, ignore_live_threads=True, stop_grace_period_secs=5)
    assert found != sorted(found)
    assert set(found) <= set(range(ROWS))


def test_windows_in_a_graph(url: str) -> None:
    with make_reader(url, schema_fields=ngram(), shuffle_row_groups=False) as reader, tf.Graph().as_default():
        window = tf_tensors(reader)
        assert window[-1].matrix.shape.as_list() == [2, 3]
        with tf.compat.v1.Session() as session:
            got = session.run({step: window[step] for step in (-1, 1)})
            assert (int(got[-1].id), int(got[1].id)) == (0, 2)


def test_a_queue_of_batches_is_refused(url: str) -> None:
    with make_batch_reader(url, schema_fields=["id"]) as reader, pytest.raises(ValueError, match="reader of batches"):
        tf_tensors(reader, shuffling_queue_capacity=5)


def test_batches_in_a_graph(url: str) -> None:
    with make_batch_reader(url, schema_fields=["id"], shuffle_row_groups=False) as reader, tf.Graph().as_default():
        batch = tf_tensors(reader)
        assert batch.id.shape.as_list() == [None]
        with tf.compat.v1.Session() as session:
            assert session.run(batch).id[:2].tolist() == [0, 1]


def test_a_dataset_in_a_graph_of_version_one(url: str) -> None:
    v1 = tf.compat.v1
    with make_reader(url, schema_fields=["id", "word"], shuffle_row_groups=False) as reader, tf.Graph().as_default():
        row = v1.data.make_one_shot_iterator(make_petastorm_dataset(reader)).get_next()
        with v1.Session() as session:
            assert [int(session.run(row.id)) for _ in range(5)] == list(range(5))


# -- values -----------------------------------------------------------------------------------------------------------


def test_dates_become_nanoseconds() -> None:
    assert date_to_nsec_from_epoch(datetime.date(1970, 1, 2)) == 86_400_000_000_000
    assert date_to_nsec_from_epoch(datetime.date(1969, 12, 31)) == -86_400_000_000_000
    zone = datetime.timezone(datetime.timedelta(hours=1))
    assert date_to_nsec_from_epoch(datetime.datetime(1970, 1, 1, 1, 0, 0, 5, zone)) == 5000
