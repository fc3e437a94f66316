"""Refuse frameworks that would shard again what `Batches` has sharded already.

`Batches` gives each rank its own part. Accelerate, and the Trainer of Transformers through it, also shards every
IterableDataset that it prepares: process 0 reads for all of them, or each process keeps every n-th item. Done twice,
most rows would be lost. Inspects only frameworks that are imported already, and changes nothing.
"""

from __future__ import annotations

import sys
from typing import Any

from torch.utils.data import IterableDataset

from penstock.errors import PlanError


def check_sharded_once(batches: IterableDataset, rank: int, world: int, caller: Any = None) -> None:
    """Raise PlanError if another framework shards the batches of one of several ranks.

    `caller` is the object that iterates `batches`. To be called in every process that iterates or starts workers.
    """
    if world == 1:
        return
    count = getattr(caller, "num_processes", 1)  # an IterableDatasetShard, of Accelerate or of Transformers
    accelerate = sys.modules.get("accelerate.state")
    if accelerate is not None and count == 1:
        active = accelerate.GradientState().active_dataloader
        if active is not None and _holds(active.dataset, batches):
            count = accelerate.PartialState().num_processes
    if count != 1:
        raise PlanError(
            f"Batches gives this process its part already (rank {rank} of {world}), and the prepared DataLoader would "
            f"share that out among {count} processes again, so that most rows are lost; give accelerator.prepare() "
            "what penstock.torch.loader(...) returns, which it leaves unchanged, or iterate the DataLoader without "
            "preparing it (in a Trainer: return it from get_train_dataloader()); see docs/trainers.md"
        )


def _holds(dataset: Any, batches: IterableDataset) -> bool:
    """Whether a dataset is `batches`, or one that wraps it."""
    inner = vars(dataset).values() if isinstance(dataset, IterableDataset) else ()
    return dataset is batches or any(isinstance(one, IterableDataset) and _holds(one, batches) for one in inner)
