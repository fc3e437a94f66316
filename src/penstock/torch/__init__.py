"""Hand-over to PyTorch: batches as dicts of tensors that share memory with what the engine decoded.

`loader` is the way to train: one process, the engine's threads, the GPU fed from a ring of pinned memory. `Batches` is
for those who keep `torch.utils.data.DataLoader` and its worker processes. Both give the one global order and its state.
Nothing here decides which rows come or when: that is the plan's, see `penstock.Dataset.loader`.
"""

try:
    import torch as _torch  # noqa: F401 -- only to say what is missing
except ImportError:
    raise ImportError("penstock.torch needs PyTorch: pip install 'penstock[torch]'") from None

from penstock.torch.batches import Batches
from penstock.torch.hand_over import Loader, loader
from penstock.torch.tensors import as_tensors

__all__ = ["Batches", "Loader", "as_tensors", "loader"]
