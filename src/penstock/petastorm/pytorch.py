"""Petastorm's `pytorch`: its loaders are not in this version; the names can be imported and say so when used.

They will take a reader and give batches of tensors. Does not import torch.
"""

from __future__ import annotations

from functools import partial

from penstock.petastorm._later import later_class, later_function

__all__ = [
    "BatchedDataLoader",
    "DataLoader",
    "InMemBatchedDataLoader",
    "LoaderBase",
    "decimal_friendly_collate",
]

_INSTEAD = "until then penstock.open(url).loader(batch_size=...) gives NumPy batches for torch.as_tensor"
_class = partial(later_class, __name__, extra="torch", instead=_INSTEAD)

BatchedDataLoader = _class("BatchedDataLoader")
DataLoader = _class("DataLoader")
InMemBatchedDataLoader = _class("InMemBatchedDataLoader")
LoaderBase = _class("LoaderBase")
decimal_friendly_collate = later_function(__name__, "decimal_friendly_collate", extra="torch", instead=_INSTEAD)
