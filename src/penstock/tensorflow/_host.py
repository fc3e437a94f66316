"""Rank and world according to `TF_CONFIG`, the environment variable of TensorFlow's multi-worker strategies.

Only looked at if the caller gave neither rank nor world; without it the engine looks elsewhere, as for every loader.
"""

from __future__ import annotations

import json
import os

from penstock.engine.host import FoundRank, announce
from penstock.errors import PlanError


def rank_and_world(rank: int | None, world: int | None) -> tuple[int | None, int | None]:
    """Return the arguments; if both are None, the place of this worker in `TF_CONFIG`, or None, None without one."""
    text = os.environ.get("TF_CONFIG")
    if rank is not None or world is not None or not text:
        return rank, world
    try:
        config = json.loads(text)
        cluster, task = config.get("cluster", {}), config.get("task", {})
        kind, index = str(task.get("type", "")), int(task.get("index", 0))
        sizes = {name: len(cluster.get(name, ())) for name in ("chief", "master", "worker")}
    except (ValueError, TypeError, AttributeError) as error:
        raise PlanError(f"TF_CONFIG cannot be understood ({error}); pass rank= and world=") from None
    if kind not in sizes or sum(sizes.values()) < 2:
        return None, None
    before = sizes["chief"] + sizes["master"] if kind == "worker" else 0
    found = FoundRank(before + index, sum(sizes.values()), "TF_CONFIG")
    announce(found)
    return found.rank, found.world
