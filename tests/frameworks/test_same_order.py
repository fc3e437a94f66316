"""One order in every framework: the same seed gives the same batches through NumPy, torch, TensorFlow and JAX.

Ids and bytes are compared for bool, uint8, int32 and float32, pictures included; other types as docs/types.md says. A
state is the same in all of them, and goes on in any.
"""

from __future__ import annotations

import contextlib
import itertools
from decimal import Decimal

import numpy as np
import pytest

torch = pytest.importorskip("torch")
tf = pytest.importorskip("tensorflow")
jax = pytest.importorskip("jax")

import pyarrow as pa  # noqa: E402

import penstock  # noqa: E402
import penstock.jax  # noqa: E402
import penstock.tensorflow  # noqa: E402
import penstock.torch  # noqa: E402
from penstock.codecs import CompressedImageCodec, NdarrayCodec, ScalarCodec  # noqa: E402

ROWS = 150
EXACT = ("id", "flag", "pixel", "weight", "cloud", "picture", "photo")
"""Columns whose bytes are the same in all frameworks."""

SCHEMA = penstock.Unischema(
    "Same",
    [
        penstock.UnischemaField("id", np.int32, (), ScalarCodec(), False),
        penstock.UnischemaField("flag", np.bool_, (), ScalarCodec(), False),
        penstock.UnischemaField("pixel", np.uint8, (), ScalarCodec(), False),
        penstock.UnischemaField("weight", np.float32, (), ScalarCodec(), False),
        penstock.UnischemaField("cloud", np.float32, (3, 2), NdarrayCodec(), False),
        penstock.UnischemaField("picture", np.uint8, (8, 8), CompressedImageCodec("png"), False),
        penstock.UnischemaField("photo", np.uint8, (16, 16, 3), CompressedImageCodec("jpeg"), False),
        penstock.UnischemaField("big", np.int64, (), ScalarCodec(), False),
        penstock.UnischemaField("double", np.float64, (), ScalarCodec(), False),
        penstock.UnischemaField("word", np.str_, (), ScalarCodec(), False),
        penstock.UnischemaField("price", Decimal, (), ScalarCodec(pa.decimal128(10, 2)), False),
        penstock.UnischemaField("when", np.datetime64, (), None, False),
        penstock.UnischemaField("list", np.float32, (None,), NdarrayCodec(), False),
    ],
)


def rows():
    rng = np.random.default_rng(0)
    for i in range(ROWS):
        yield {
            "id": i,
            "flag": bool(rng.integers(2)),
            "pixel": np.uint8(rng.integers(256)),
            "weight": np.float32(rng.standard_normal()),
            "cloud": rng.standard_normal((3, 2), np.float32),
            "picture": rng.integers(0, 256, (8, 8), dtype=np.uint8),
            "photo": rng.integers(0, 256, (16, 16, 3), dtype=np.uint8),
            "big": i * 1000,
            "double": float(rng.standard_normal()),
            "word": f"wörd {i}",
            "price": Decimal(i) / 100,
            "when": np.datetime64("2024-02-28T01:02:03", "us") + i,
            "list": rng.standard_normal(i % 4).astype(np.float32),
        }


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    where = tmp_path_factory.mktemp("same") / "d"
    penstock.write(rows(), where, schema=SCHEMA, row_group_bytes=12_000)
    opened = penstock.open(where)
    assert len(opened.chunks) > 8
    return opened


MAKERS = {
    "numpy": lambda ds, **options: ds.loader(**options),
    "torch": penstock.torch.loader,
    "tensorflow": penstock.tensorflow.loader,
    "jax": penstock.jax.loader,
}


def host(values):
    """Return a column of any framework as NumPy's."""
    if isinstance(values, tf.RaggedTensor):
        return values.to_list()
    if isinstance(values, tf.Tensor | torch.Tensor):
        return values.numpy()
    return values if isinstance(values, list) else np.asarray(values)


def batches(framework, ds, **options):
    with contextlib.closing(MAKERS[framework](ds, **options)) as loader:
        return [{name: host(values) for name, values in batch.items()} for batch in loader]


def assert_same(ours, plain):
    assert len(ours) == len(plain)
    for one, batch in zip(ours, plain, strict=True):
        assert one["id"].tolist() == batch["id"].tolist()
        for name in EXACT:
            assert one[name].dtype == batch[name].dtype
            assert one[name].shape == batch[name].shape
            assert one[name].tobytes() == batch[name].tobytes()


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("shuffle", [False, True, "groups"])
def test_the_same_seed_gives_the_same_batches_everywhere(ds, shuffle, world):
    seen = []
    for rank in range(world):
        options = {"batch_size": 16, "shuffle": shuffle, "seed": 11, "epochs": 2, "rank": rank, "world": world}
        plain = batches("numpy", ds, **options)
        seen += [int(i) for batch in plain for i in batch["id"]]
        for framework in ("torch", "tensorflow", "jax"):
            assert_same(batches(framework, ds, **options), plain)
    assert sorted(seen) == sorted([*range(ROWS), *range(ROWS)])


def test_windows_of_lanes_are_the_same_too(ds):
    options = {"batch_size": 16, "shuffle": True, "lanes": 2, "shuffle_bytes": 40_000}
    plain = batches("numpy", ds, **options)
    assert [i for batch in plain for i in batch["id"].tolist()] != list(range(ROWS))
    for framework in ("torch", "tensorflow", "jax"):
        assert_same(batches(framework, ds, **options), plain)


@pytest.mark.parametrize("framework", MAKERS)
@pytest.mark.parametrize("epochs", [1, 2])
def test_every_loader_counts_its_passes_the_same_way(ds, framework, epochs):
    options = {"batch_size": 64, "shuffle": True, "epochs": epochs}
    with contextlib.closing(MAKERS[framework](ds, **options)) as loader:
        numbers = [loader.pass_number]
        for _ in range(2):
            for _ in loader:
                numbers += [loader.pass_number]
            numbers.append(loader.pass_number)
        state = loader.state_dict()
    steps = 3 * epochs
    assert numbers == [0] * steps + [1, 1] + [1] * (steps - 1) + [2, 2]
    with contextlib.closing(MAKERS[framework](ds, **options)) as loader:
        loader.load_state_dict(state)
        assert loader.pass_number == 2


@pytest.mark.parametrize("framework", ["numpy", "torch", "tensorflow"])
def test_a_rank_with_fewer_batches_counts_its_passes_too(ds, framework):
    options = {"batch_size": 16, "rank": 1, "world": 2, "remainder": "uneven"}
    few = ds.where([("id", "<", 33)])
    with contextlib.closing(MAKERS[framework](few, **options)) as loader:
        for number in range(1, 4):
            assert len(list(loader)) == 1
            assert loader.pass_number == number


def flip(batch, rng):
    turned = rng.random(len(batch["id"])) < 0.5
    batch["photo"][turned] = batch["photo"][turned, :, ::-1]
    return batch


def test_augmentation_is_the_same_too(ds):
    options = {"batch_size": 16, "shuffle": True, "seed": 3, "transform": flip}
    plain = batches("numpy", ds, **options)
    for framework in ("torch", "tensorflow", "jax"):
        assert_same(batches(framework, ds, **options), plain)


def test_other_types_are_what_the_table_says(ds):
    options = {"batch_size": ROWS, "shuffle": True, "seed": 5}
    [plain] = batches("numpy", ds, **options)
    found = {framework: batches(framework, ds, **options)[0] for framework in ("torch", "tensorflow", "jax")}
    nanoseconds = plain["when"].astype("M8[ns]").view(np.int64)
    for framework, one in found.items():
        narrow = framework == "jax"  # no 64 bits by default
        np.testing.assert_array_equal(one["big"], plain["big"].astype(np.int32 if narrow else np.int64))
        assert one["big"].dtype == (np.int32 if narrow else np.int64)
        np.testing.assert_array_equal(one["double"], plain["double"].astype(np.float32 if narrow else np.float64))
        assert one["double"].dtype == (np.float32 if narrow else np.float64)
        np.testing.assert_array_equal(one["when"], plain["when"] if narrow else nanoseconds)
        for row, given in zip(one["list"], plain["list"], strict=True):
            np.testing.assert_array_equal(np.asarray(row, np.float32), given)
    words, prices = plain["word"].tolist(), plain["price"].tolist()
    assert found["torch"]["word"] == found["jax"]["word"].tolist() == words
    assert [word.decode() for word in found["tensorflow"]["word"]] == words
    assert found["torch"]["price"] == found["jax"]["price"].tolist() == prices
    assert [Decimal(price.decode()) for price in found["tensorflow"]["price"]] == prices


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_state_is_the_same_in_all_and_goes_on_in_any(ds, shuffle):
    options = {"batch_size": 16, "shuffle": shuffle, "seed": 11, "epochs": 2}
    whole, steps, states = batches("numpy", ds, **options), 13, {}
    for framework, make in MAKERS.items():
        with contextlib.closing(make(ds, **options)) as loader:
            kept = itertools.islice(iter(loader), steps)
            assert sum(1 for _ in kept) == steps
            states[framework] = loader.state_dict()
    assert len({str(state) for state in states.values()}) == 1, states
    for make in MAKERS.values():
        with contextlib.closing(make(ds, **options)) as loader:
            loader.load_state_dict(states["tensorflow"])
            rest = [{name: host(values) for name, values in batch.items()} for batch in loader]
        assert_same(rest, whole[steps:])
