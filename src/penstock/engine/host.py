"""Defaults that depend on the host: how many threads a loader has, and how much memory.

Reads cgroup files and environment variables, and changes nothing. An explicit argument always takes precedence.
"""

from __future__ import annotations

import os
from pathlib import Path

from penstock.options import MEMORY_BYTES

_LOCAL_WORLDS = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "HOROVOD_LOCAL_SIZE")


def ranks_here() -> int:
    """Return how many ranks share this host according to the launcher, else 1."""
    found = (os.environ.get(name, "") for name in _LOCAL_WORLDS)
    return max(1, next((int(text) for text in found if text.isdigit()), 1))


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
    texts = map(_read, ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"))
    limits = [int(text) for text in texts if text and text.isdigit()]
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
