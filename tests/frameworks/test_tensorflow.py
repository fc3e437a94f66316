"""`penstock.tensorflow.loader`: a tf.data.Dataset with the engine's order, length, spec and state."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import penstock  # noqa: E402
from penstock.errors import ColumnNotFound, LoaderClosed, PlanError, StateMismatch  # noqa: E402
from penstock.tensorflow import Batches, loader  # noqa: E402
from tests.frameworks.make_tf import ROWS, ids, numbers  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return numbers(tmp_path_factory.mktemp("tf") / "numbers")


def expected(url: str, **options: Any) -> list[list[int]]:
    with penstock.open(url).loader(**options) as native:
        return ids(native)


def threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name.startswith("penstock")]


def gone(seconds: float = 3.0) -> bool:
    until = time.monotonic() + seconds
    while threads() and time.monotonic() < until:
        time.sleep(0.01)
    return not threads()


# -- what it is -------------------------------------------------------------------------------------------------------


def test_it_is_a_dataset_with_a_static_spec_and_an_exact_length(url: str) -> None:
    with loader(url, batch_size=8, shuffle=True) as batches:
        assert isinstance(batches, tf.data.Dataset)
        assert batches.element_spec == {
            "x": tf.TensorSpec([None], tf.int64),
            "image": tf.TensorSpec([None, 4, 3], tf.uint8),
            "text": tf.TensorSpec([None], tf.string),
        }
        assert len(batches) == 13 == int(batches.cardinality()) == int(tf.data.experimental.cardinality(batches))
        assert sum(1 for _ in batches) == 13


def test_full_batches_have_a_static_size(url: str) -> None:
    with loader(url, batch_size=8, drop_last=True) as batches:
        assert batches.element_spec["image"].shape.as_list() == [8, 4, 3]
        assert len(batches) == 12
    with loader(url, batch_size=8, drop_last=True, on_error="skip") as batches:
        assert batches.element_spec["image"].shape.as_list() == [None, 4, 3]


@pytest.mark.parametrize("shuffle", [False, True, "groups"])
@pytest.mark.parametrize("world", [1, 2])
def test_the_order_is_that_of_the_engine(url: str, shuffle: Any, world: int) -> None:
    options = {"batch_size": 7, "shuffle": shuffle, "seed": 5, "world": world}
    for rank in range(world):
        with loader(url, rank=rank, **options) as batches:
            assert ids(batches) == expected(url, rank=rank, **options)


def test_every_iteration_is_the_next_pass(url: str) -> None:
    both = expected(url, batch_size=8, shuffle=True, epochs=2)
    with loader(url, batch_size=8, shuffle=True) as batches:
        assert [*ids(batches), *ids(batches)] == both
        assert ids(batches.repeat(2)) == expected(url, batch_size=8, shuffle=True, epochs=4)[26:]


def test_endless_loaders_are_infinite(url: str) -> None:
    with loader(url, batch_size=8, shuffle=True, epochs=None) as batches:
        assert int(batches.cardinality()) == tf.data.INFINITE_CARDINALITY
        with pytest.raises(TypeError, match="infinite"):
            len(batches)
        assert ids(batches.take(30)) == expected(url, batch_size=8, shuffle=True, epochs=3)[:30]


def test_values_are_those_of_numpy_to_the_byte(url: str) -> None:
    with (
        loader(url, batch_size=16, shuffle=True) as batches,
        penstock.open(url).loader(batch_size=16, shuffle=True) as native,
    ):
        for tensors, arrays in zip(batches, native, strict=True):
            assert (tensors["image"].numpy() == arrays["image"]).all()
            assert [text.decode() for text in tensors["text"].numpy()] == arrays["text"].tolist()


def test_tensors_stay_valid_after_the_next_batch(url: str) -> None:
    with loader(url, batch_size=8, shuffle=True) as batches:
        kept = list(batches)
    copies = [batch["image"].numpy().copy() for batch in kept]
    with penstock.open(url).loader(batch_size=8, shuffle=True) as native:
        for image, arrays in zip(copies, native, strict=True):
            assert (image == arrays["image"]).all()


def test_a_dataset_may_be_given_with_columns_and_filters(url: str) -> None:
    ds = penstock.open(url)
    with loader(ds, batch_size=10, columns=["x"], filters=[("x", "<", 25)]) as batches:
        assert ids(batches) == [list(range(10)), list(range(10, 20)), list(range(20, 25))]
        assert list(batches.element_spec) == ["x"]
    with pytest.raises(PlanError, match="open already"):
        loader(ds, batch_size=10, storage_options={"a": 1})


def test_padding_has_its_mask(url: str) -> None:
    with loader(url, batch_size=8, rank=1, world=3, remainder="pad") as batches:
        assert batches.element_spec["_valid"] == tf.TensorSpec([None], tf.bool)
        assert sum(int(tf.reduce_sum(tf.cast(b["_valid"], tf.int32))) for b in batches) in (33, 34)


def test_an_empty_dataset_has_no_batches(url: str) -> None:
    with loader(url, batch_size=8, filters=[("x", "<", 0)]) as batches:
        assert len(batches) == 0
        assert list(batches) == []


# -- state ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [0, 1, 6, 12, 13])
def test_a_state_resumes_exactly(url: str, stop: int) -> None:
    options = {"batch_size": 8, "shuffle": True, "seed": 2}
    both = expected(url, epochs=2, **options)
    with loader(url, **options) as first:
        iterator = iter(first)
        seen = [next(iterator)["x"].numpy().tolist() for _ in range(stop)]
        state = json.loads(json.dumps(first.state_dict()))
        assert first.penstock.batches_left == 13 - stop
    with loader(url, **options) as second:
        second.load_state_dict(state)
        assert len(second) == (13 - stop or 13)
        assert int(second.cardinality()) == 13  # of a whole pass: what Keras asks for
        rest = ids(second)
        assert len(second) == 13
        after = ids(second)
    if stop < 13:
        assert [*seen, *rest, *after] == both
    else:
        assert [*seen, *rest] == both


def test_a_state_goes_on_in_another_world(url: str) -> None:
    with loader(url, batch_size=8, shuffle=True) as first:
        iterator = iter(first)
        seen = [row for _ in range(4) for row in next(iterator)["x"].numpy().tolist()]
        state = first.state_dict()
    rest: list[int] = []
    for rank in range(3):
        with loader(url, batch_size=5, shuffle=True, rank=rank, world=3, remainder="uneven") as part:
            part.load_state_dict(state)
            rest += [row for batch in ids(part) for row in batch]
    assert sorted([*seen, *rest]) == list(range(ROWS))


def test_a_state_goes_on_in_numpy_and_comes_back(url: str) -> None:
    plain = expected(url, batch_size=8, shuffle=True)
    with penstock.open(url).loader(batch_size=8, shuffle=True) as native:
        iterator = iter(native)
        first = [next(iterator)["x"].tolist() for _ in range(3)]
        with loader(url, batch_size=8, shuffle=True) as batches:
            batches.load_state_dict(native.state_dict())
            over = iter(batches)
            second = [next(over)["x"].numpy().tolist() for _ in range(3)]
            native.load_state_dict(batches.state_dict())
        assert [*first, *second, *ids(native)] == plain


def ahead(batches: Batches) -> dict[str, Any]:
    return {
        "prefetch": batches.prefetch(4),
        "parallel map": batches.map(lambda batch: batch, num_parallel_calls=3),
        "both": batches.map(lambda batch: batch, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE),
        "map": batches.map(lambda batch: batch),
        "options": batches.prefetch(2).with_options(tf.data.Options()),
    }


@pytest.mark.parametrize("kind", ["prefetch", "parallel map", "both", "map", "options"])
def test_the_state_counts_what_came_out_whatever_runs_ahead(url: str, kind: str) -> None:
    options = {"batch_size": 8, "shuffle": True, "seed": 2}
    plain = expected(url, **options)
    with loader(url, **options) as batches:
        made = ahead(batches)[kind]
        iterator = iter(made)
        assert made.state_dict()["position"] == 0
        for step in range(5):
            next(iterator)
            if step == 2:
                time.sleep(0.1)  # stages that run ahead fill up
            assert made.state_dict()["position"] == 8 * (step + 1)
            assert made.penstock.batches_left == 13 - step - 1
        state = made.state_dict()
        del iterator
        assert ids(ahead(batches)[kind]) == expected(url, epochs=2, **options)[13:]  # after break: the next pass
    with loader(url, **options) as second:
        resumed = ahead(second)[kind]  # made before the state is loaded: lengths must not be baked in
        second.load_state_dict(state)
        assert len(resumed) == 8
        assert ids(resumed) == plain[5:]
        assert len(list(resumed)) == 13


def test_other_stages_made_before_a_state_is_loaded_end_with_the_shorter_pass(url: str) -> None:
    with loader(url, batch_size=8, shuffle=True) as first:
        for _ in zip(range(4), first, strict=False):
            pass
        state = first.state_dict()
    with loader(url, batch_size=8, shuffle=True) as second:
        rows = second.unbatch().map(lambda row: row["x"])
        second.load_state_dict(state)
        assert len(list(rows)) == ROWS - state["position"]
        assert len(list(rows)) == ROWS


def test_a_stage_that_is_not_ours_behind_one_that_runs_ahead_is_counted_too(url: str) -> None:
    with loader(url, batch_size=8, shuffle=True) as batches:
        made = batches.prefetch(3)
        iterator = iter(made.take(6))
        for step in range(3):
            next(iterator)
            time.sleep(0.05)
            assert made.state_dict()["position"] == 8 * (step + 1)


def test_a_state_of_another_dataset_is_refused(url: str, tmp_path: Path) -> None:
    with loader(numbers(tmp_path / "other", 50), batch_size=8) as other, loader(url, batch_size=8) as batches:
        with pytest.raises(StateMismatch):
            batches.load_state_dict(other.state_dict())
        assert len(ids(batches)) == 13


# -- fit --------------------------------------------------------------------------------------------------------------


def test_fit_takes_it_and_a_callback_saves_exact_states(url: str) -> None:
    keras = tf.keras
    states = []

    class Save(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            states.append(data.state_dict())

    model = keras.Sequential([keras.Input([4, 3]), keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with loader(url, batch_size=8, shuffle=True) as train, loader(url, batch_size=32) as val:
        data = train.map(lambda b: (tf.cast(b["image"], tf.float32) / 255, tf.cast(b["x"], tf.float32) / 100))
        checked = val.map(lambda b: (tf.cast(b["image"], tf.float32), tf.cast(b["x"], tf.float32)))
        history = model.fit(data, epochs=2, validation_data=checked, callbacks=[Save()], shuffle=False, verbose=0)
        assert len(history.history["loss"]) == 2
        places = [(state["epoch"], state["position"]) for state in states]
        one = [(0, 8 * step) for step in range(1, 13)]
        assert places == [*one, (1, 0), *((1, position) for _, position in one), (2, 0)]
    assert gone()


def test_fit_goes_on_from_a_state_and_takes_whole_epochs_after_it(url: str) -> None:
    model = tf.keras.Sequential([tf.keras.Input([4, 3]), tf.keras.layers.Flatten(), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with loader(url, batch_size=8, shuffle=True) as batches:
        iterator = iter(batches)
        for _ in range(5):
            next(iterator)
        state = batches.state_dict()

    def steps(**options: Any) -> list[tuple[int, int]]:
        seen: list[tuple[int, int]] = []
        note = tf.keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: seen.append((data.state_dict()["epoch"], batch))
        )
        model.fit(data, callbacks=[note], shuffle=False, verbose=0, **options)
        return seen

    with loader(url, batch_size=8, shuffle=True) as batches:
        data = batches.map(lambda b: (tf.cast(b["image"], tf.float32), tf.cast(b["x"], tf.float32)))
        data.load_state_dict(state)
        first = steps(epochs=1, steps_per_epoch=len(data))
        assert len(first) == 8
        assert data.state_dict()["epoch"] == 1
        assert len(steps(epochs=3, initial_epoch=1)) == 2 * 13
        data.load_state_dict(state)
        with pytest.warns(UserWarning, match="ran out of data"):  # Keras expects epochs of one length
            assert len(steps(epochs=3)) == 8 + 2 * 13


# -- the end ----------------------------------------------------------------------------------------------------------


def test_break_and_the_end_leave_no_thread(url: str) -> None:
    with loader(url, batch_size=8, shuffle=True) as batches:
        for _ in batches:
            break
        assert gone()
        for _ in batches.prefetch(2):
            break
        assert gone()
        assert len(list(batches)) == 13
        assert gone()


def test_no_thread_is_there_before_the_first_batch(url: str) -> None:
    with loader(url, batch_size=8, shuffle=True):
        assert not threads()


def test_a_closed_dataset_says_so(url: str) -> None:
    batches = loader(url, batch_size=8)
    iterator = iter(batches)
    next(iterator)
    batches.close()
    assert not threads()
    with pytest.raises(LoaderClosed):
        iter(batches)
    with pytest.raises(tf.errors.OpError, match="closed"):
        for _ in iterator:
            pass


def test_an_iterator_ended_by_another_one_says_so_instead_of_ending_early(url: str) -> None:
    with loader(url, batch_size=8) as batches:
        first = iter(batches)
        next(first)
        assert len(list(batches)) == 13
        with pytest.raises(tf.errors.OpError, match="another one was made"):
            next(first)
        with pytest.raises(tf.errors.OpError, match="another one was made"):
            list(tf.data.Dataset.zip((batches, batches)))


def test_an_error_in_a_transform_comes_through_and_the_next_pass_works(url: str) -> None:
    broken = [True]

    def transform(batch: dict[str, Any]) -> dict[str, Any]:
        if broken[0] and batch["x"][0] >= 40 and len(batch["x"]) == 8:
            raise ValueError("forty is too much")
        return {"x": batch["x"]}

    with loader(url, batch_size=8, transform=transform, pool="serial") as batches:
        iterator = iter(batches)
        assert len([next(iterator) for _ in range(5)]) == 5
        with pytest.raises(tf.errors.OpError, match="forty is too much"):
            next(iterator)
        with pytest.raises(StopIteration):
            next(iterator)
        broken[0] = False
        assert len(list(batches)) == 13
    assert gone()


@pytest.mark.parametrize("end", ["pass", "raise SystemExit(0)"])
def test_a_program_may_end_in_mid_pass(url: str, end: str) -> None:
    code = f"""
        from penstock.tensorflow import loader
        batches = loader({url!r}, batch_size=8, shuffle=True, epochs=None)
        iterator = iter(batches.prefetch(2))
        next(iterator)
        {end}
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


# -- options ----------------------------------------------------------------------------------------------------------


def test_rank_and_world_come_from_tf_config(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}
    for kind, index, rank in (("chief", 0, 0), ("worker", 0, 1), ("worker", 1, 2)):
        said = {"cluster": cluster, "task": {"type": kind, "index": index}}
        monkeypatch.setenv("TF_CONFIG", json.dumps(said))
        with loader(url, batch_size=8) as batches:
            assert (batches.rank, batches.world) == (rank, 3)
        with loader(url, batch_size=8, rank=0, world=1) as batches:
            assert (batches.rank, batches.world) == (0, 1)
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "evaluator", "index": 0}}))
    with loader(url, batch_size=8) as batches:
        assert batches.world == 1
    monkeypatch.setenv("TF_CONFIG", "{")
    with pytest.raises(PlanError, match="TF_CONFIG"):
        loader(url, batch_size=8)


def test_wrong_words_are_refused(url: str) -> None:
    with pytest.raises(PlanError, match="'mask', 'error' or a list of columns"):
        loader(url, batch_size=8, nulls="maks")
    with pytest.raises(ColumnNotFound, match="'image'"):
        loader(url, batch_size=8, nulls=["imaeg"])


def test_stats_plan_and_skipped_are_those_of_the_loader(url: str) -> None:
    with loader(url, batch_size=8) as batches:
        list(batches)
        assert batches.stats()["rows"] == ROWS
        assert batches.skipped == []
        assert "13" in str(batches.plan)


def test_importing_penstock_imports_no_tensorflow() -> None:
    code = "import penstock, penstock.petastorm, penstock.petastorm.tf_utils, sys; print('tensorflow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_numbers_share_memory_with_the_batch(tmp_path: Path) -> None:
    penstock.write({"image": np.zeros((64, 64, 64), np.uint8)}, tmp_path / "big")
    seen = []

    def transform(batch: dict[str, Any]) -> dict[str, Any]:
        seen.append(batch["image"].__array_interface__["data"][0])
        return batch

    with loader(tmp_path / "big", batch_size=32, transform=transform) as batches:
        got = [np.asarray(memoryview(batch["image"])).__array_interface__["data"][0] for batch in batches]
    assert set(got) <= set(seen)
