"""What this host and this job give a loader: cores, memory, rank and world.

Reads cgroup files, environment variables and frameworks that are *already* imported; imports none and changes nothing.
Everything here is a default: an explicit argument always wins.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from penstock.errors import PlanError
from penstock.options import MEMORY_BYTES

logger = logging.getLogger(__name__)

_ENVIRONMENTS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    # Set inside an `srun` step only: a batch script's own SLURM_NTASKS would silently hide most of the data.
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
_LOCAL_WORLDS = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "HOROVOD_LOCAL_SIZE")
_said: set[str] = set()


def rank_and_world(rank: int | None, world: int | None) -> tuple[int, int]:
    """Return rank and world of this process: the arguments, else a framework's, else the environment's, else 0 of 1."""
    if rank is not None and world is not None:
        return rank, world
    if world is not None:
        if world == 1:
            return 0, 1
        raise PlanError(f"world={world} needs rank= as well: which of the {world} parts is this?")
    rank, world, where = _found()
    if where and where not in _said:
        _said.add(where)
        logger.info("rank %d of %d, from %s; pass rank= and world= to override", rank, world, where)
    return rank, world


def check_still(rank: int, world: int) -> None:
    """Raise PlanError where this process has become another rank since it found out that it is `rank` of `world`.

    Lightning, for one, starts the other ranks inside `fit`: a loader made before would give every row to each of them.
    """
    now_rank, now_world, where = _found()
    if now_world > 1 and (now_rank, now_world) != (rank, world):
        raise PlanError(
            f"the loader was made for rank {rank} of {world}, but {where} now says that this process is rank "
            f"{now_rank} of {now_world}; make it after the ranks are started (in Lightning: in train_dataloader() or "
            "val_dataloader() of the module or data module), or pass rank= and world="
        )


def _found() -> tuple[int, int, str]:
    """Return rank, world and where they were found; 0 of 1 and "" if nowhere."""
    return _from_torch() or _from_jax() or _from_environment() or (0, 1, "")


def _from_torch() -> tuple[int, int, str] | None:
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size(), "torch.distributed"


def _from_jax() -> tuple[int, int, str] | None:
    jax = sys.modules.get("jax")
    initialized = getattr(getattr(jax, "distributed", None), "is_initialized", None)
    if jax is None or initialized is None or not initialized():
        return None
    return jax.process_index(), jax.process_count(), "jax.distributed"


def _from_environment() -> tuple[int, int, str] | None:
    for rank_name, world_name in _ENVIRONMENTS:
        if rank_name in os.environ and world_name in os.environ:
            rank, world = os.environ[rank_name], os.environ[world_name]
            where = f"the environment variables {rank_name} and {world_name}"
            try:
                return _checked(int(rank), int(world), where)
            except ValueError:
                raise PlanError(
                    f"{where} hold {rank!r} and {world!r}, not a rank below a world; pass rank= and world="
                ) from None
    return None


def _checked(rank: int, world: int, where: str) -> tuple[int, int, str]:
    if not 0 <= rank < world:
        raise ValueError(rank)
    return rank, world, where


def ranks_here() -> int:
    """Return how many ranks share this host, as far as the launcher says."""
    for name in _LOCAL_WORLDS:
        if os.environ.get(name, "").isdigit():
            return max(1, int(os.environ[name]))
    return 1


def cores() -> int:
    """Return the cores this process may use: affinity and cgroup quota count."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup_cores()
    return max(1, min(count, quota) if quota else count)


def _cgroup_cores() -> int | None:
    text = _read("/sys/fs/cgroup/cpu.max")
    if text and not text.startswith("max"):
        quota, period = text.split()[:2]
        return max(1, round(int(quota) / int(period)))
    quota_text, period_text = (
        _read("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"),
        _read("/sys/fs/cgroup/cpu/cpu.cfs_period_us"),
    )
    if quota_text and period_text and int(quota_text) > 0:
        return max(1, round(int(quota_text) / int(period_text)))
    return None


def memory_limit() -> int | None:
    """Return the bytes this process may use at most: the cgroup's limit, else the machine's memory."""
    limits = []
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = _read(name)
        if text and text.isdigit():
            limits.append(int(text))
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(limits, default=None)


def default_workers() -> int:
    """Return the threads of a loader: this rank's share of the cores."""
    return max(1, cores() // ranks_here())


def default_memory() -> int:
    """Return the budget of a loader: the constant default, or half of this rank's share where that is less."""
    limit = memory_limit()
    return MEMORY_BYTES if limit is None else min(MEMORY_BYTES, limit // 2 // ranks_here())


def _read(name: str) -> str | None:
    try:
        return Path(name).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
