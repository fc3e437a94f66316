"""Train with Lightning on handwritten digits, stop in the middle of an epoch, and go on from Lightning's checkpoint.

The digits are scikit-learn's; nothing is fetched. Loaders go to `trainer.fit` as they are. Lightning saves their place
with the weights, so the run that was interrupted sees exactly the rows that were left and ends with the very weights of
one that was not. Needs PyTorch, Lightning and scikit-learn, and takes a few seconds on a CPU.

    python examples/lightning_fit.py [--output FOLDER]
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

import penstock
from penstock.torch import loader

EPOCHS, BATCH, SEED = 4, 64, 7
TRAIN_ROWS = 1500
STOP_AFTER = 34
"""Steps, 24 an epoch: in the middle of the second one."""


class Net(pl.LightningModule):
    """Two layers; notes the rows that it was trained on."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(SEED)
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
        self.rows: list[int] = []
        self.right = self.seen = 0

    def training_step(self, batch: dict[str, Any]) -> Any:
        """Return the loss of a batch."""
        self.rows += batch["id"].tolist()
        return cross_entropy(self.layers(batch["image"].flatten(1)), batch["digit"])

    def on_validation_epoch_start(self) -> None:
        """Count anew."""
        self.right = self.seen = 0

    def validation_step(self, batch: dict[str, Any]) -> None:
        """Count the digits that are read right."""
        self.right += int((self.layers(batch["image"].flatten(1)).argmax(1) == batch["digit"]).sum())
        self.seen += len(batch["digit"])

    def configure_optimizers(self) -> Any:
        """Return the optimizer."""
        return torch.optim.Adam(self.parameters(), lr=0.003)


def write(folder: Path) -> tuple[penstock.Dataset, penstock.Dataset]:
    """Write the digits as Parquet and return the parts to train and to validate on."""
    digits = load_digits()
    columns = {"id": np.arange(len(digits.target)), "image": (digits.images / 16).astype(np.float32)}
    penstock.write({**columns, "digit": digits.target.astype(np.int64)}, folder, overwrite=True)
    dataset = penstock.open(folder)
    return dataset.where([("id", "<", TRAIN_ROWS)]), dataset.where([("id", ">=", TRAIN_ROWS)])


def fit(parts: tuple[Any, Any], folder: Path, *, resume: Path | None = None, **limits: int) -> Net:
    """Train a net, from a checkpoint if there is one, and save one after `STOP_AFTER` steps."""
    net = Net()
    saves = ModelCheckpoint(folder, filename="{step}", every_n_train_steps=STOP_AFTER, save_top_k=-1)
    trainer = pl.Trainer(
        **limits, accelerator="cpu", callbacks=[saves], logger=False, enable_progress_bar=False,
        enable_model_summary=False, num_sanity_val_steps=0,
    )  # fmt: skip
    with loader(parts[0], batch_size=BATCH, shuffle=True, seed=SEED) as train, loader(parts[1], batch_size=99) as val:
        trainer.fit(net, train, val, ckpt_path=resume)
    return net


def main() -> int:
    """Run the example; the status is 0 only if the interrupted run ended like the other one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, help="where the dataset and the checkpoints go (a temporary folder)")
    warnings.filterwarnings("ignore", module="lightning")  # much advice, none of it on this
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as temporary:
        output = parser.parse_args().output or Path(temporary)
        parts = write(output / "digits")

        whole = fit(parts, output / "whole", max_epochs=EPOCHS)
        first = fit(parts, output / "stopped", max_epochs=EPOCHS, max_steps=STOP_AFTER)
        print(f"stopped after {len(first.rows)} rows, in the middle of epoch 1")
        rest = fit(parts, output / "rest", resume=output / "stopped" / f"step={STOP_AFTER}.ckpt", max_epochs=EPOCHS)

    same_rows = first.rows + rest.rows == whole.rows
    pairs = zip(whole.parameters(), rest.parameters(), strict=True)
    same_weights = all(torch.equal(one, other) for one, other in pairs)
    print(f"accuracy on {rest.seen} other digits: {rest.right / rest.seen:.1%}")
    print(f"rows after interrupting and resuming: {'the same, in the same order' if same_rows else 'DIFFERENT'}")
    print(f"weights: {'the same, bit for bit' if same_weights else 'DIFFERENT'}")
    return 0 if same_rows and same_weights else 1


if __name__ == "__main__":
    sys.exit(main())
