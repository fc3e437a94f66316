"""Batches for PyTorch: dicts of tensors that share memory with what the engine decoded.

`loader` is the recommended way to train: one process, the engine's threads, the GPU fed from a ring of pinned memory.
`Batches` is for `torch.utils.data.DataLoader` and its worker processes. Both give the same global order and states.
Nothing here decides which rows come or when; see `penstock.Dataset.loader`.
"""

try:
    import torch as _torch  # noqa: F401 -- only to say what is missing
except ImportError:
    raise ImportError("penstock.torch needs PyTorch: pip install 'penstock[torch]'") from None

from penstock.torch.batches import Batches
from penstock.torch.loader import Loader, loader
from penstock.torch.tensors import as_tensors

__all__ = ["Batches", "Loader", "as_tensors", "loader"]
