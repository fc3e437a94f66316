"""Which part of the data this process reads: rank and world of a launcher or framework, where they were not given.

Reads environment variables and frameworks that are *already* imported; imports none and changes nothing. An explicit
argument always takes precedence.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from typing import NamedTuple

from penstock.errors import PenstockWarning, PlanError, users_level

logger = logging.getLogger(__name__)


_ENVIRONMENTS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    # Set only inside an `srun` step: SLURM_NTASKS of a batch script, which runs once, would hide most of the data.
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)


_announced: dict[str, bool] = {}
"""Where rank and world were found so far in this process, and whether rank 0 warned."""


class FoundRank(NamedTuple):
    """Rank and world of this process, and the place that they come from."""

    rank: int
    world: int
    where: str


def rank_and_world(rank: int | None, world: int | None) -> tuple[int, int]:
    """Return rank and world of this process: the arguments, else a framework's, else the environment's, else 0 of 1.

    What is found is announced; see `announce`.
    """
    if rank is not None and world is not None:
        return rank, world
    if world is not None:
        if world == 1:
            return 0, 1
        raise PlanError(f"world={world} needs rank= as well: which of the {world} parts is this?")
    found = find_rank()
    if found is None:
        return 0, 1
    announce(found)
    return found.rank, found.world


def find_rank() -> FoundRank | None:
    """Return rank and world according to torch.distributed, JAX or the launcher's environment; None if there are none.

    Looks only at frameworks that are imported and initialized already.

    Raises:
        PlanError: Environment variables that are not a rank and a world.
    """
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return FoundRank(distributed.get_rank(), distributed.get_world_size(), "torch.distributed")
    jax = sys.modules.get("jax")
    initialized = getattr(getattr(jax, "distributed", None), "is_initialized", None)
    if jax is not None and initialized is not None and initialized():
        return FoundRank(jax.process_index(), jax.process_count(), "jax.distributed")
    for rank_name, world_name in _ENVIRONMENTS:
        if rank_name in os.environ and world_name in os.environ:
            rank, world = os.environ[rank_name], os.environ[world_name]
            where = f"the environment variables {rank_name} and {world_name}"
            try:
                found = FoundRank(int(rank), int(world), where)
            except ValueError:
                found = None
            if found is None or not 0 <= found.rank < found.world:
                raise PlanError(
                    f"{where} are {rank!r} and {world!r}, which is not a rank below a world; pass rank= and world="
                )
            return found
    return None


def announce(found: FoundRank) -> None:
    """Log where rank and world were found, once for each place; rank 0 of several also warns, once a process.

    A script that was written for one process would otherwise silently evaluate a part of the rows under a launcher.
    """
    if found.where in _announced:
        return
    logger.info("rank %d of %d, from %s; pass rank= and world= to override", *found)
    warns = found.rank == 0 and found.world > 1 and not any(_announced.values())
    _announced[found.where] = warns
    if warns:
        warnings.warn(
            f"each rank reads 1/{found.world} of the rows: according to {found.where} this process is rank 0 of "
            f"{found.world}. To silence this, pass rank= and world=; rank=0, world=1 reads all rows in every process "
            "(docs/evaluation.md)",
            PenstockWarning,
            stacklevel=users_level(),
        )


def check_still(rank: int, world: int) -> None:
    """Raise PlanError if this process has another rank now than `rank` of `world`, which were found earlier.

    Lightning, for one, starts the other ranks inside `fit`: a loader made before that would give all rows to each rank.
    """
    now = find_rank()
    if now is not None and now.world > 1 and now[:2] != (rank, world):
        raise PlanError(
            f"the loader was made for rank {rank} of {world}, but according to {now.where} this process is now rank "
            f"{now.rank} of {now.world}; make it after the ranks are started (in Lightning: in train_dataloader() or "
            "val_dataloader() of the module or data module), or pass rank= and world="
        )
