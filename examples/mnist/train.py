"""Train a small convolutional net on handwritten digits, and test it: the shape of most training programs.

Run it as `python examples/mnist/train.py`; it needs PyTorch and scikit-learn and takes some seconds on a CPU. Images
lie in Parquet as PNG; a `TransformSpec` turns each row into what the net wants. The status is 0 only if it has learned.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from write import write_digits

from penstock import TransformSpec
from penstock.torch import loader


def prepare(row: dict[str, Any]) -> dict[str, Any]:
    """Scale the pixels of one row and give them a channel."""
    row["image"] = ((row["image"].astype(np.float32) - 78) / 100)[None]
    return row


TRANSFORM = TransformSpec(
    prepare, edit_fields=[("image", np.float32, (1, 28, 28), False)], selected_fields=["image", "digit"]
)


class Net(nn.Sequential):
    """Two convolutions and two layers."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 8, 5, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 5, stride=2), nn.ReLU(), nn.Flatten(),
            nn.Linear(16 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10),
        )  # fmt: skip


def train(model: nn.Module, batches: Any, optimizer: Any) -> float:
    """Train one epoch; return the mean loss."""
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        loss = cross_entropy(model(batch["image"]), batch["digit"])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


def test(model: nn.Module, batches: Any) -> float:
    """Return the share of digits that are told right."""
    right = total = 0
    with torch.no_grad():
        for batch in batches:
            right += int((model(batch["image"]).argmax(1) == batch["digit"]).sum())
            total += len(batch["digit"])
    return right / total


def main() -> int:
    """Write the digits, train, test."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("mnist-output"))
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--device", default="cpu", help="cuda: batches are copied there ahead of need")
    given = parser.parse_args()
    write_digits(given.output)
    torch.manual_seed(0)
    model = Net().to(given.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    options = {"transform": TRANSFORM, "device": given.device}
    train_batches = loader(given.output / "train", batch_size=64, shuffle=True, seed=1, **options)
    test_batches = loader(given.output / "test", batch_size=256, **options)
    accuracy = 0.0
    with train_batches, test_batches:
        for epoch in range(given.epochs):  # every pass over the loader is another order
            loss = train(model, train_batches, optimizer)
            accuracy = test(model, test_batches)
            print(f"epoch {epoch}: loss {loss:.3f}, accuracy on unseen digits {accuracy:.1%}")
    return 0 if accuracy > 0.9 else 1


if __name__ == "__main__":
    sys.exit(main())
