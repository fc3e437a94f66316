"""Loaders of a converter: every row once, in any framework, with a length, a state, and even shards."""

from __future__ import annotations

import importlib.util
import json
import os
import threading
import warnings
from urllib.parse import urlsplit

import numpy as np
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from penstock.errors import LoaderClosed, PenstockWarning
from penstock.petastorm import TransformSpec
from penstock.petastorm.spark import SparkDatasetConverter, _cache, make_spark_converter

KEY = SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF
NUM_ROWS = 103

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
needs_tensorflow = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed"
)


@pytest.fixture(scope="module")
def converter(spark, tmp_path_factory):
    """Rows with a number, a vector of three, a text and a target."""
    from pyspark.ml.linalg import Vectors

    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    spark.conf.set(KEY, tmp_path_factory.mktemp("cache").as_uri())
    rows = [(i, Vectors.dense([i, 2 * i, 1.0]), f"text {i}", float(i)) for i in range(NUM_ROWS)]
    df = spark.createDataFrame(rows, ["id", "features", "text", "label"]).coalesce(1)
    made = make_spark_converter(df, parquet_row_group_size_bytes=1)
    [url] = made.file_urls
    assert pq.read_metadata(urlsplit(url).path).num_row_groups > 8
    yield made
    spark.conf.unset(KEY)
    _cache.delete_all()


@pytest.fixture(autouse=True)
def no_ranks(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "HOROVOD_RANK", "HOROVOD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        monkeypatch.delenv(name, raising=False)


def ids(batches) -> list[int]:
    return [int(one) for batch in batches for one in np.asarray(batch["id"] if isinstance(batch, dict) else batch.id)]


def threads() -> set[str]:
    return {one.name for one in threading.enumerate() if "penstock" in one.name.lower()}


# -- torch ------------------------------------------------------------------------------------------------------------


@needs_torch
def test_torch_gives_every_row_once_in_batches_of_the_size_asked_for(converter) -> None:
    with converter.make_torch_dataloader(batch_size=10, num_epochs=1) as loader:
        assert len(loader) == 11
        batches = list(loader)
    assert [len(batch["id"]) for batch in batches] == [10] * 10 + [3]
    assert sorted(ids(batches)) == list(range(NUM_ROWS))
    first = batches[0]
    assert str(first["features"].dtype) == "torch.float32"
    assert tuple(first["features"].shape) == (10, 3)
    assert first["text"] == [f"text {one}" for one in first["id"].tolist()]


@needs_torch
def test_torch_shuffles_all_rows_by_the_seed(converter) -> None:
    def read(**options):
        with converter.make_torch_dataloader(batch_size=10, num_epochs=2, **options) as loader:
            return ids(loader)

    one = read(shuffling_queue_capacity=50, seed=7)
    assert one == read(shuffling_queue_capacity=50, seed=7) == read(shuffle_rows=True, seed=7)
    assert one[:NUM_ROWS] != one[NUM_ROWS:]
    assert sorted(one) == sorted([*range(NUM_ROWS)] * 2)
    assert read(shuffle_row_groups=False) == [*range(NUM_ROWS)] * 2


@needs_torch
@pytest.mark.parametrize("shuffle", [{}, {"shuffling_queue_capacity": 50}])
def test_torch_goes_on_where_it_was(converter, shuffle) -> None:
    options = {"batch_size": 10, "num_epochs": 2, "seed": 3, **shuffle}
    with converter.make_torch_dataloader(**options) as loader:
        whole = ids(loader)
    with converter.make_torch_dataloader(**options) as loader:
        batches = iter(loader)
        seen = ids([next(batches) for _ in range(13)])
        state = json.loads(json.dumps(loader.state_dict()))
    with converter.make_torch_dataloader(**options) as loader:
        loader.load_state_dict(state)
        assert len(loader) == 21 - 13
        assert seen + ids(loader) == whole


@needs_torch
def test_other_loaders_of_torch(converter) -> None:
    from penstock.petastorm.pytorch import BatchedDataLoader

    fields = {"schema_fields": ["id", "label"]}
    with converter.make_torch_dataloader(10, 1, data_loader_fn=BatchedDataLoader, **fields) as loader:
        assert isinstance(loader, BatchedDataLoader)
        assert sorted(ids(loader)) == list(range(NUM_ROWS))

    def own(reader, batch_size, shuffling_queue_capacity):
        assert (batch_size, shuffling_queue_capacity) == (10, 0)
        return (int(one) for batch in reader for one in batch.id)

    with converter.make_torch_dataloader(10, 1, data_loader_fn=own) as numbers:
        assert sorted(numbers) == list(range(NUM_ROWS))
    with pytest.raises(TypeError, match="data_loader_fn makes a loader of a reader; got 3"):
        converter.make_torch_dataloader(num_epochs=1, data_loader_fn=3)


@needs_torch
def test_a_transform_sees_frames_and_may_leave_rows_out(converter) -> None:
    pytest.importorskip("pandas")

    def even(frame):
        frame = frame[frame["id"] % 2 == 0].copy()
        frame["half"] = frame["id"] // 2
        return frame

    spec = TransformSpec(even, edit_fields=[("half", np.int64, (), False)], selected_fields=["id", "half"])
    with converter.make_torch_dataloader(10, 1, transform_spec=spec) as loader:
        batches = list(loader)
    assert sorted(ids(batches)) == list(range(0, NUM_ROWS, 2))
    assert all((batch["half"] * 2 == batch["id"]).all() for batch in batches)


@needs_torch
@pytest.mark.parametrize("shuffle", [0, 50])
def test_shards_are_even_whatever_the_row_groups_are(spark, converter, shuffle) -> None:
    def read(source, shard, count):
        options = {"cur_shard": shard, "shard_count": count, "seed": 1, "shuffling_queue_capacity": shuffle}
        with source.make_torch_dataloader(10, 1, **options) as loader:
            return ids(loader)

    parts = [read(converter, shard, 4) for shard in range(4)]
    assert sorted(map(len, parts)) == [25, 26, 26, 26]
    assert sorted(one for part in parts for one in part) == list(range(NUM_ROWS))
    small = make_spark_converter(spark.range(9, numPartitions=1))  # one row group: Petastorm has no data for most
    parts = [read(small, shard, 4) for shard in range(4)]
    assert sorted(map(len, parts)) == [2, 2, 2, 3]
    assert sorted(one for part in parts for one in part) == list(range(9))


@needs_torch
def test_leaving_ends_the_threads_and_every_with_begins_anew(converter) -> None:
    made = converter.make_torch_dataloader(10, 1, seed=5)
    with made as loader:
        first = ids(loader)
        reader = made.reader
    assert reader.stopped
    assert made.reader is None
    assert not threads()
    with made as loader:
        assert ids(loader) == first
        made.reader.stop()
        with pytest.raises(LoaderClosed):
            next(iter(loader))


@needs_torch
def test_a_loader_that_cannot_be_made_leaves_no_reader_open(converter) -> None:
    def fail(**_):
        raise ValueError("no loader")

    made = converter.make_torch_dataloader(10, 1, data_loader_fn=fail)
    with pytest.raises(ValueError, match="no loader"):
        made.__enter__()
    assert made.reader is None


# -- arguments --------------------------------------------------------------------------------------------------------


def test_arguments_are_checked_before_anything_is_opened(converter) -> None:
    with pytest.raises(
        TypeError,
        match=r"got an unexpected keyword argument 'shufle_rows'; did you mean 'shuffle_rows'",
    ):
        converter.make_torch_dataloader(num_epochs=1, shufle_rows=True)
    for make in (converter.make_torch_dataloader, converter.make_tf_dataset):
        with pytest.raises(ValueError, match="batch_size must be a whole number, at least 1; got 0"):
            make(batch_size=0, num_epochs=1)
        with pytest.raises(ValueError, match="shuffling_queue_capacity must be a whole number, at least 0; got -1"):
            make(shuffling_queue_capacity=-1, num_epochs=1)
    with pytest.raises(ValueError, match="prefetch must be a whole number, at least -1; got 'many'"):
        converter.make_tf_dataset(prefetch="many", num_epochs=1)


def test_steps_per_epoch(converter) -> None:
    assert converter.steps_per_epoch() == NUM_ROWS // 32
    assert converter.steps_per_epoch(10) == 10
    assert converter.steps_per_epoch(10, shard_count=3) == 3
    assert converter.steps_per_epoch(1000) == 1
    with pytest.raises(ValueError, match="batch_size must be"):
        converter.steps_per_epoch(0)


def test_an_endless_loader_warns_once_and_tells_its_steps(converter) -> None:
    fresh = SparkDatasetConverter(converter.cache_dir_url, converter.file_urls, len(converter))
    message = r"forever: give num_epochs=1, .*converter\.steps_per_epoch\(10\) = 10 .*steps_per_epoch="
    with pytest.warns(PenstockWarning, match=message) as caught:
        fresh.make_tf_dataset(10)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fresh.make_tf_dataset(10)
        fresh.make_torch_dataloader(10)
    other = SparkDatasetConverter(converter.cache_dir_url, converter.file_urls, len(converter))
    with pytest.warns(PenstockWarning, match=r"steps_per_epoch\(10, shard_count=2\) = 5 "):
        other.make_torch_dataloader(10, cur_shard=0, shard_count=2)


@pytest.mark.parametrize(
    ("rank", "world"),
    [
        ("HOROVOD_RANK", "HOROVOD_SIZE"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
        ("RANK", "WORLD_SIZE"),
    ],
)
def test_a_shard_that_is_not_this_process_is_told(converter, monkeypatch, rank, world) -> None:
    monkeypatch.setenv(rank, "1")
    monkeypatch.setenv(world, "4")
    for make in (converter.make_torch_dataloader, converter.make_tf_dataset):
        with pytest.warns(PenstockWarning, match=rf"is 1 of 4 by .*{rank}.*give cur_shard=1, shard_count=4") as caught:
            make(num_epochs=1)
        assert caught[0].filename == __file__
        with pytest.warns(PenstockWarning, match="cur_shard=0, shard_count=4; for each"):
            make(num_epochs=1, cur_shard=0, shard_count=4)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            make(num_epochs=1, cur_shard=1, shard_count=4)
            monkeypatch.setenv(world, "1")
            monkeypatch.setenv(rank, "0")
            make(num_epochs=1)
        monkeypatch.setenv(rank, "1")
        monkeypatch.setenv(world, "4")


# -- TensorFlow -------------------------------------------------------------------------------------------------------


@needs_tensorflow
def test_tensorflow_gives_named_tuples_of_tensors_with_static_shapes(converter) -> None:
    with converter.make_tf_dataset(batch_size=10, num_epochs=1) as dataset:
        assert len(dataset) == int(dataset.cardinality()) == 11
        spec = dataset.element_spec
        assert spec._fields == ("id", "features", "text", "label")
        assert (spec.features.shape.as_list(), spec.features.dtype.name) == ([None, 3], "float32")
        batches = list(dataset)
    assert [len(batch.id) for batch in batches] == [10] * 10 + [3]
    assert sorted(ids(batches)) == list(range(NUM_ROWS))
    for batch in batches:
        assert [text.decode() for text in batch.text.numpy()] == [f"text {one}" for one in batch.id.numpy()]
        np.testing.assert_array_equal(batch.features.numpy()[:, 1], 2 * batch.id.numpy())
    assert not threads()


@needs_tensorflow
def test_tensorflow_and_torch_give_the_same_order(converter) -> None:
    options = {"batch_size": 10, "num_epochs": 2, "seed": 9, "shuffling_queue_capacity": 40}
    with converter.make_tf_dataset(**options) as dataset:
        one = ids(dataset)
    if importlib.util.find_spec("torch") is not None:
        with converter.make_torch_dataloader(**options) as loader:
            assert one == ids(loader)
    assert sorted(one) == sorted([*range(NUM_ROWS)] * 2)


@needs_tensorflow
def test_a_second_iteration_is_the_next_pass_also_after_break(converter) -> None:
    with converter.make_tf_dataset(10, num_epochs=1, shuffling_queue_capacity=40, seed=2) as dataset:
        first, second = ids(dataset), ids(dataset)
        for batch in dataset:
            third = ids([batch])
            break
        fourth = ids(dataset)
    assert sorted(first) == sorted(second) == sorted(fourth) == list(range(NUM_ROWS))
    assert len({tuple(one[:10]) for one in (first, second, third, fourth)}) == 4


@needs_tensorflow
@pytest.mark.parametrize("prefetch", [None, 0, 4])
def test_tensorflow_goes_on_where_the_consumer_was(converter, prefetch) -> None:
    options = {"batch_size": 10, "num_epochs": 2, "seed": 3, "prefetch": prefetch, "shuffling_queue_capacity": 40}
    with converter.make_tf_dataset(**options) as dataset:
        whole = ids(dataset)
    with converter.make_tf_dataset(**options) as dataset:
        batches = iter(dataset)
        seen = ids([next(batches) for _ in range(13)])
        state = json.loads(json.dumps(dataset.state_dict()))
    with converter.make_tf_dataset(**options) as dataset:
        dataset.load_state_dict(state)
        assert len(dataset) == 21 - 13
        assert seen + ids(dataset) == whole
        assert len(dataset) == 21
        assert sorted(ids(dataset)) == sorted(whole)


@needs_tensorflow
def test_a_transform_gives_its_own_shapes_and_no_length(converter) -> None:
    pytest.importorskip("pandas")

    def double(frame):
        frame["features"] = frame["features"].map(lambda value: np.concatenate([value, value]))
        return frame[frame["id"] < 50]

    spec = TransformSpec(
        double, edit_fields=[("features", np.float32, (6,), False)], selected_fields=["id", "features"]
    )
    with converter.make_tf_dataset(10, num_epochs=1, transform_spec=spec) as dataset:
        assert dataset.element_spec.features.shape.as_list() == [None, 6]
        assert int(dataset.cardinality()) == -2  # unknown
        for _ in range(2):
            assert sorted(ids(dataset)) == list(range(50))


@needs_tensorflow
def test_padding_is_refused_as_named_tuples_have_no_mask(converter) -> None:
    with pytest.raises(ValueError, match="remainder='pad' repeats rows"):
        converter.make_tf_dataset(10, num_epochs=1, remainder="pad").__enter__()


def model_of(tf, seen):
    """A linear model whose data is noted as it comes."""

    class Noted(tf.keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None) -> None:
            seen.append(batch)

    model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model, Noted()


@needs_tensorflow
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")
def test_keras_fits_with_steps_per_epoch(converter) -> None:
    tf = pytest.importorskip("tensorflow")
    seen: list[int] = []
    model, noted = model_of(tf, seen)
    steps = converter.steps_per_epoch(10)
    with converter.make_tf_dataset(10, shuffling_queue_capacity=40) as dataset:
        pairs = dataset.map(lambda row: (row.features / 100, row.label / 100))
        model.fit(pairs, steps_per_epoch=steps, epochs=3, verbose=0, callbacks=[noted])
    assert len(seen) == 3 * steps == 30


@needs_tensorflow
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")
def test_keras_fits_with_one_epoch_a_pass(converter) -> None:
    tf = pytest.importorskip("tensorflow")
    seen: list[int] = []
    model, noted = model_of(tf, seen)
    with converter.make_tf_dataset(10, num_epochs=1) as dataset:
        pairs = dataset.map(lambda row: (row.features / 100, row.label / 100))
        model.fit(pairs, epochs=3, verbose=0, callbacks=[noted])
    assert len(seen) == 3 * 11


@needs_tensorflow
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")
def test_keras_fits_without_an_end_until_it_is_told_to_stop(converter) -> None:
    tf = pytest.importorskip("tensorflow")
    seen: list[int] = []
    model, noted = model_of(tf, seen)

    class Enough(tf.keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None) -> None:
            if batch >= 24:
                raise InterruptedError("enough")

    with converter.make_tf_dataset(10) as dataset:
        assert int(dataset.cardinality()) == -1  # for ever
        with pytest.raises(TypeError, match="infinite"):
            len(dataset)
        pairs = dataset.map(lambda row: (row.features / 100, row.label / 100))
        with pytest.raises(InterruptedError, match="enough"):
            model.fit(pairs, epochs=1, verbose=0, callbacks=[noted, Enough()])
    assert len(seen) == 25  # more than the eleven batches of an epoch
    assert not threads()
