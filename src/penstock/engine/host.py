"""Defaults that depend on the host and the job: cores, memory, rank and world.

Reads cgroup files, environment variables and frameworks that are *already* imported; imports none and changes nothing.
An explicit argument always takes precedence.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from pathlib import Path
from typing import NamedTuple

from penstock.errors import PenstockWarning, PlanError, users_level
from penstock.options import MEMORY_BYTES

logger = logging.getLogger(__name__)

_ENVIRONMENTS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    # Set only inside an `srun` step: SLURM_NTASKS of a batch script, which runs once, would hide most of the data.
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
_LOCAL_WORLDS = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "HOROVOD_LOCAL_SIZE")
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


def ranks_here() -> int:
    """Return how many ranks share this host according to the launcher, else 1."""
    for name in _LOCAL_WORLDS:
        if os.environ.get(name, "").isdigit():
            return max(1, int(os.environ[name]))
    return 1


def cores() -> int:
    """Return the cores that this process may use, limited by affinity and cgroup quota."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    text = _read("/sys/fs/cgroup/cpu.max")
    if text and not text.startswith("max"):
        quota, period = text.split()[:2]
    else:
        quota, period = (_read(f"/sys/fs/cgroup/cpu/cpu.cfs_{name}_us") or "0" for name in ("quota", "period"))
    if int(quota) > 0 and int(period) > 0:
        count = min(count, round(int(quota) / int(period)))
    return max(1, count)


def memory_limit() -> int | None:
    """Return the bytes that this process may use: the cgroup's limit or the machine's memory, whichever is less."""
    limits = []
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = _read(name)
        if text and text.isdigit():
            limits.append(int(text))
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(limits, default=None)


def default_workers() -> int:
    """Return the default number of threads of a loader: this rank's share of the cores."""
    return max(1, cores() // ranks_here())


def default_memory() -> int:
    """Return the default memory budget of a loader: a constant, or half of this rank's share if that is less."""
    limit = memory_limit()
    return MEMORY_BYTES if limit is None else min(MEMORY_BYTES, limit // 2 // ranks_here())


def _read(name: str) -> str | None:
    try:
        return Path(name).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
