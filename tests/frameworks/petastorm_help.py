"""What the tests of Petastorm's torch loaders share: ids, rows, batches without tensors. Holds no tests itself."""

from __future__ import annotations

import numpy as np
import torch

from penstock.petastorm.pytorch import BatchedDataLoader, DataLoader
from penstock.petastorm.reader import make_batch_reader, make_reader

FACTORIES = [make_reader, make_batch_reader]
LOADERS = [DataLoader, BatchedDataLoader]
NUM_ROWS = 51


def ids(batches):
    return [int(one) for batch in batches for one in batch["id"]]


def rows(url, factory=make_reader, **options):
    """The ids that a reader gives, row by row."""
    with factory(url, **options) as reader:
        return [int(one) for row in reader for one in np.atleast_1d(row.id)]


def pairs(batch, one, two):
    return zip(batch[one].tolist(), batch[two].tolist(), strict=True)


def third(number):
    return number % 3 == 0


def plain(value):
    """A batch without tensors, for comparing; tensors keep their dtype."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), value.tolist()
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list) else value


class AsNumpy:
    """A loader whose batches have NumPy's arrays, as the check of resuming compares them."""

    def __init__(self, loader):
        self.loader = loader
        self.state_dict, self.load_state_dict, self.close = loader.state_dict, loader.load_state_dict, loader.close

    def __iter__(self):
        return map(self._numpy, self.loader)

    def __len__(self):
        return len(self.loader)

    def _numpy(self, value):
        if isinstance(value, dict):
            return {str(name): self._numpy(one) for name, one in value.items()}
        if isinstance(value, list):
            return [self._numpy(one) for one in value]
        return value.numpy() if isinstance(value, torch.Tensor) else value
