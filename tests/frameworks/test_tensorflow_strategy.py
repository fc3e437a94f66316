"""`penstock.tensorflow`: states where something runs ahead that nobody sees: strategies, and options of tf.data."""

from __future__ import annotations

import time
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from penstock.errors import PenstockWarning  # noqa: E402
from penstock.tensorflow import loader  # noqa: E402
from tests.frameworks.make_tf import ROWS, ids, numbers  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return numbers(tmp_path_factory.mktemp("tf") / "numbers")


@pytest.fixture(scope="module")
def one_cpu() -> Any:
    return tf.distribute.MirroredStrategy(["/cpu:0"])


OPTIONS: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 2}


def middle(url: str) -> dict[str, Any]:
    """Return a state behind five batches of thirteen."""
    with loader(url, **OPTIONS) as batches:
        iterator = iter(batches)
        for _ in range(5):
            next(iterator)
        return batches.state_dict()


def quiet(strategy: Any, data: Any) -> Any:
    """Distribute a dataset without buffers that run ahead."""
    return strategy.experimental_distribute_dataset(
        data, tf.distribute.InputOptions(experimental_per_replica_buffer_size=0)
    )


def places(strategy: Any, batches: Any, data: Any, state: Any, epochs: int) -> Iterator[tuple[int, int]]:
    """Fit a model under a strategy, from a state, and return the places that a callback sees."""
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input([4, 3]), tf.keras.layers.Flatten(), tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    seen: list[dict[str, Any]] = []

    class Resume(tf.keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            batches.load_state_dict(state)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append(batches.state_dict())

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Your input ran out of data")
        model.fit(data, epochs=epochs, callbacks=[Resume()], shuffle=False, verbose=0)
    return ((one["epoch"], one["position"]) for one in seen)


def pair(batch: Any) -> Any:
    return tf.cast(batch["image"], tf.float32), tf.cast(batch["x"], tf.float32)


def test_fit_under_a_strategy_goes_on_from_a_state_that_a_callback_loads(url: str, one_cpu: Any) -> None:
    state = middle(url)
    with loader(url, **OPTIONS) as batches:
        data = batches.map(pair)
        seen = list(places(one_cpu, data, quiet(one_cpu, data), state, 2))
    first = [(0, 8 * step) for step in range(6, 13)]
    assert seen == [*first, (1, 0), *((1, 8 * step) for step in range(1, 13)), (2, 0)]


def test_a_strategy_without_buffers_leaves_the_state_exact(url: str, one_cpu: Any) -> None:
    with loader(url, **OPTIONS) as batches:
        data = batches.prefetch(2)
        for step, _ in enumerate(quiet(one_cpu, data), 1):
            if step == 3:
                time.sleep(0.1)  # whatever runs ahead fills up
            assert data.state_dict()["position"] == (8 * step if step < 13 else 0)


def test_values_for_replicas_may_be_made_of_a_batch_by_hand(url: str, one_cpu: Any) -> None:
    count, total = one_cpu.num_replicas_in_sync, 0
    with loader(url, **OPTIONS) as batches:
        for step, batch in enumerate(batches, 1):
            parts = np.array_split(batch["x"].numpy(), count)
            shared = one_cpu.experimental_distribute_values_from_function(
                lambda context, parts=parts: tf.constant(parts[context.replica_id_in_sync_group])
            )
            total += int(one_cpu.reduce("SUM", one_cpu.run(tf.reduce_sum, args=(shared,)), axis=None))
            assert batches.state_dict()["position"] == (8 * step if step < 13 else 0)
    assert total == sum(range(ROWS))


def test_a_resumed_pass_that_is_left_in_the_middle_is_warned_of(url: str) -> None:
    state = middle(url)
    with loader(url, **OPTIONS) as batches:
        batches.load_state_dict(state)
        for _ in batches:
            break
        with pytest.warns(PenstockWarning, match=r"1 of the 8 batches .* on_train_begin"):
            assert len(ids(batches)) == 13
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in batches:
                break  # no resumed pass
            assert len(ids(batches)) == 13
            batches.load_state_dict(state)
            assert len(ids(batches.take(8))) == 8  # as `steps_per_epoch` does
            assert len(ids(batches)) == 13


def test_options_that_run_ahead_are_counted_behind(url: str) -> None:
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = True
    with loader(url, **OPTIONS) as batches:
        both = batches.with_options(options), batches.prefetch(2).with_options(options).map(lambda b: b["x"])
        for epoch, data in enumerate(both):
            iterator = iter(data)
            for step in range(1, 4):
                next(iterator)
                time.sleep(0.05)  # whatever runs ahead fills up
                assert (data.state_dict()["epoch"], data.state_dict()["position"]) == (epoch, 8 * step)
            del iterator


def test_a_resumed_pass_whose_first_batch_cannot_be_handed_over_may_be_tried_again(url: str) -> None:
    spec = {"x": tf.TensorSpec([None], tf.int8)}

    def large(batch: dict[str, Any]) -> dict[str, Any]:
        return {"x": batch["x"] + 1000}

    with loader(url, transform=large, element_spec=spec, **OPTIONS) as batches:
        state = middle(url)
        batches.load_state_dict(state)
        for _ in range(2):
            with pytest.raises(tf.errors.InvalidArgumentError, match="do not fit int8"):
                list(batches)
            assert batches.state_dict() == state
