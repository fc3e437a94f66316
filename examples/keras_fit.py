"""Train a small Keras network on handwritten digits with `model.fit`, stop in mid-epoch, and go on from there.

The digits are scikit-learn's; nothing is fetched. They are written as Parquet and read shuffled, as a
`tf.data.Dataset`. A callback saves weights and the place in the data together, so that the run that was interrupted
sees every picture exactly as often as one that was not. Takes less than a minute on a CPU.

    python examples/keras_fit.py [--output FOLDER]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import penstock
from penstock.tensorflow import Batches, loader

keras = tf.keras

EPOCHS, BATCH, SEED = 4, 32, 7
TRAIN_ROWS = 1500
STOP_AFTER = 70
"""Steps after which the first run is interrupted, in the middle of the second epoch."""


def write(folder: Path) -> tuple[penstock.Dataset, penstock.Dataset]:
    """Write the digits as Parquet and return the parts to train and to test on."""
    digits = load_digits()
    columns = {"id": np.arange(len(digits.target)), "image": digits.images.astype(np.uint8)}
    penstock.write({**columns, "digit": digits.target}, folder, overwrite=True)
    dataset = penstock.open(folder)
    return dataset.where([("id", "<", TRAIN_ROWS)]), dataset.where([("id", ">=", TRAIN_ROWS)])


def pairs(batches: Batches) -> Batches:
    """Return picture and label, as `fit` wants them; `map` keeps the state of the loader within reach."""
    return batches.map(lambda batch: (tf.cast(batch["image"], tf.float32)[..., tf.newaxis] / 16, batch["digit"]))


def make_model() -> Any:
    """Return a small convolutional network."""
    keras.utils.set_random_seed(SEED)
    layers = [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(16, 3, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(10, activation="softmax"),
    ]
    model = keras.Sequential(layers)
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


class Save(keras.callbacks.Callback):  # type: ignore[misc]
    """Saves weights and the place in the data every few steps, and stops after so many if asked to."""

    def __init__(self, data: Batches, folder: Path, stop_after: int | None) -> None:
        super().__init__()
        self._data, self._folder, self._stop_after = data, folder, stop_after
        self._steps = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002 -- Keras's signature
        """Save after every tenth step."""
        self._steps += 1
        if self._steps % 10 == 0:
            self.model.save(self._folder / "model.keras")
            (self._folder / "data.json").write_text(json.dumps(self._data.state_dict()), encoding="utf-8")
        if self._steps == self._stop_after:
            raise KeyboardInterrupt


def train(dataset: penstock.Dataset, folder: Path, stop_after: int | None = None) -> None:
    """Train from what was saved, if anything was, to the end of the last epoch."""
    saved = folder / "data.json"
    model = keras.models.load_model(folder / "model.keras") if saved.exists() else make_model()
    with loader(dataset, batch_size=BATCH, shuffle=True, seed=SEED, drop_last=True) as batches:
        data = pairs(batches)
        options = {"callbacks": [Save(data, folder, stop_after)], "shuffle": False, "verbose": 2}
        epoch = 0
        if saved.exists():
            data.load_state_dict(json.loads(saved.read_text(encoding="utf-8")))
            epoch = data.state_dict()["epoch"] + 1
            print(f"resumed: {len(data)} of {TRAIN_ROWS // BATCH} batches are left of epoch {epoch}")
            # Keras wants epochs of one length: what is left of this one is fitted by itself.
            model.fit(data, initial_epoch=epoch - 1, epochs=epoch, steps_per_epoch=len(data), **options)
        model.fit(data, initial_epoch=epoch, epochs=EPOCHS, **options)
        model.save(folder / "model.keras")


def main() -> int:
    """Run the example; the status is 0 if the digits were learned."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, help="where the dataset and the checkpoint go (a temporary folder)")
    with tempfile.TemporaryDirectory() as temporary:
        output = parser.parse_args().output or Path(temporary)
        output.mkdir(parents=True, exist_ok=True)
        training, testing = write(output / "digits")
        (output / "data.json").unlink(missing_ok=True)
        try:
            train(training, output, stop_after=STOP_AFTER)
        except KeyboardInterrupt:
            print(f"interrupted after {STOP_AFTER} steps")
        train(training, output)
        with loader(testing, batch_size=100) as batches:
            _, accuracy = keras.models.load_model(output / "model.keras").evaluate(pairs(batches), verbose=0)
        print(f"accuracy on {len(testing)} other digits: {accuracy:.1%}")
    return 0 if accuracy > 0.8 else 1


if __name__ == "__main__":
    sys.exit(main())
