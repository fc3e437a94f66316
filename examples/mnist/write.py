"""Write handwritten digits as a dataset like MNIST: 28x28 images as PNG, in one folder for training and one for test.

The digits are scikit-learn's 1,797 real ones of 8x8 pixels, scaled up: nothing is fetched.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits

import penstock
from penstock import Unischema, UnischemaField
from penstock.codecs import CompressedImageCodec, ScalarCodec

SCHEMA = Unischema(
    "Mnist",
    [
        UnischemaField("idx", np.int64, (), ScalarCodec(), False),
        UnischemaField("digit", np.int64, (), ScalarCodec(), False),
        UnischemaField("image", np.uint8, (28, 28), CompressedImageCodec("png"), False),
    ],
)


def write_digits(folder: Path) -> None:
    """Write `train` (four of five digits) and `test` below a folder."""
    digits = load_digits()
    small = torch.from_numpy(digits.images).float()[:, None] * (255 / 16)
    large = torch.nn.functional.interpolate(small, size=(28, 28), mode="bilinear", align_corners=False)
    images, labels = large[:, 0].round().to(torch.uint8).numpy(), digits.target
    for name, chosen in (("train", np.arange(len(labels)) % 5 > 0), ("test", np.arange(len(labels)) % 5 == 0)):
        where = np.flatnonzero(chosen)
        columns = {"idx": where, "digit": labels[where].astype(np.int64), "image": images[where]}
        penstock.write(columns, folder / name, schema=SCHEMA, row_group_bytes=16_000, overwrite=True)


if __name__ == "__main__":
    write_digits(Path(sys.argv[1] if len(sys.argv) > 1 else "mnist-output"))
