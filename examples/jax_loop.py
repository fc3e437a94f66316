"""Train a small network on handwritten digits with plain JAX, stop in the middle of an epoch, and go on from there.

The digits are scikit-learn's; nothing is fetched. They are written as Parquet, read shuffled and laid out over the
devices that JAX has (one CPU will do). The place in the data is saved with the weights, so the run that was interrupted
ends with the very weights of one that was not. Takes a few seconds.

    python examples/jax_loop.py [--output FOLDER]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from sklearn.datasets import load_digits

import penstock
from penstock.jax import loader

EPOCHS, BATCH, SEED, RATE = 6, 64, 7, 0.2
TRAIN_ROWS = 1500

Weights = dict[str, jax.Array]


def write(folder: Path) -> tuple[penstock.Dataset, penstock.Dataset]:
    """Write the digits as Parquet and return the parts to train and to test on."""
    digits = load_digits()
    columns = {"id": np.arange(len(digits.target), dtype=np.int32), "image": digits.images.astype(np.float32)}
    penstock.write({**columns, "digit": digits.target.astype(np.int32)}, folder, overwrite=True)
    dataset = penstock.open(folder)
    return dataset.where([("id", "<", TRAIN_ROWS)]), dataset.where([("id", ">=", TRAIN_ROWS)])


def brighten(batch: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Scale the pixels and vary the brightness; `rng` depends on the place in the data only, so resuming repeats it."""
    factor = rng.uniform(0.9, 1.1, (len(batch["image"]), 1, 1)).astype(np.float32)
    return {"image": batch["image"] / 16 * factor, "digit": batch["digit"]}


def start_weights() -> Weights:
    """Return the weights of a network of one hidden layer."""
    first, second = jax.random.split(jax.random.key(SEED))
    return {
        "hidden": jax.random.normal(first, (64, 64)) / 8,
        "output": jax.random.normal(second, (64, 10)) / 8,
    }


def guess(weights: Weights, image: jax.Array) -> jax.Array:
    """Return the scores of the ten digits."""
    return jax.nn.relu(image.reshape(len(image), -1) @ weights["hidden"]) @ weights["output"]


def loss(weights: Weights, batch: dict[str, jax.Array]) -> jax.Array:
    """Return the cross entropy of a batch."""
    scores = jax.nn.log_softmax(guess(weights, batch["image"]))
    return -jnp.take_along_axis(scores, batch["digit"][:, None], axis=1).mean()


@jax.jit
def step(weights: Weights, batch: dict[str, jax.Array]) -> Weights:
    """Return the weights after one step down the gradient."""
    gradient = jax.grad(loss)(weights, batch)
    return jax.tree.map(lambda weight, slope: weight - RATE * slope, weights, gradient)


def train(dataset: penstock.Dataset, checkpoint: Path, *, stop_after: int | None) -> Weights:
    """Train from the checkpoint, if there is one, to the end, or save one after so many steps and stop."""
    weights, state = load(checkpoint)
    devices = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data"))
    options: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "seed": SEED, "epochs": EPOCHS, "drop_last": True}
    with loader(dataset, **options, transform=brighten, sharding=devices) as batches:
        if state is not None:
            batches.load_state_dict(state)
            print(f"resumed: {len(batches)} steps are left")
        for number, batch in enumerate(batches, 1):
            weights = step(weights, batch)
            if number == stop_after:
                save(checkpoint, weights, batches.state_dict())
                print(f"stopped after {number} steps, in the middle of epoch {batches.state_dict()['epoch']}")
                return weights
        print(batches.report())
    return weights


def save(checkpoint: Path, weights: Weights, state: dict[str, Any]) -> None:
    """Save weights and the place in the data."""
    np.savez(checkpoint, state=json.dumps(state), **{name: np.asarray(w) for name, w in weights.items()})


def load(checkpoint: Path) -> tuple[Weights, dict[str, Any] | None]:
    """Return what was saved, or the beginning."""
    if not checkpoint.exists():
        return start_weights(), None
    with np.load(checkpoint) as saved:
        return {name: jnp.asarray(saved[name]) for name in ("hidden", "output")}, json.loads(str(saved["state"]))


def accuracy(weights: Weights, dataset: penstock.Dataset) -> float:
    """Return the share of digits that are read right."""
    right = 0
    with loader(dataset, batch_size=100, transform=partial(brighten, rng=np.random.default_rng(0))) as batches:
        for batch in batches:
            right += int((guess(weights, batch["image"]).argmax(axis=1) == batch["digit"]).sum())
    return right / len(dataset)


def main() -> int:
    """Run the example; the status is 0 only if the interrupted run ended like the other one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, help="where the dataset and the checkpoint go (a temporary folder)")
    with tempfile.TemporaryDirectory() as temporary:
        output = parser.parse_args().output or Path(temporary)
        output.mkdir(parents=True, exist_ok=True)
        training, testing = write(output / "digits")
        checkpoint = output / "checkpoint.npz"
        checkpoint.unlink(missing_ok=True)

        whole = train(training, checkpoint, stop_after=None)
        train(training, checkpoint, stop_after=50)
        resumed = train(training, checkpoint, stop_after=None)

        same = all(bool((whole[name] == resumed[name]).all()) for name in whole)
        print(f"accuracy on {len(testing)} other digits: {accuracy(resumed, testing):.1%}")
        print(f"weights after interrupting and resuming: {'the same, bit for bit' if same else 'DIFFERENT'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
