"""Rank and world of a job that TensorFlow's own launcher describes.

Looks at the environment variable `TF_CONFIG` only, and only where nothing else was said. Everything else is decided by
the engine, as for every loader.
"""

from __future__ import annotations

import json
import logging
import os

from penstock.errors import PlanError

logger = logging.getLogger(__name__)
_said: set[str] = set()


def rank_and_world(rank: int | None, world: int | None) -> tuple[int | None, int | None]:
    """Return the arguments, or where both are None what `TF_CONFIG` says of this worker, if it says anything."""
    text = os.environ.get("TF_CONFIG")
    if rank is not None or world is not None or not text:
        return rank, world
    try:
        said = json.loads(text)
        cluster, task = said.get("cluster", {}), said.get("task", {})
        kind, index = str(task.get("type", "")), int(task.get("index", 0))
        sizes = {name: len(cluster.get(name, ())) for name in ("chief", "master", "worker")}
    except (ValueError, TypeError, AttributeError) as error:
        raise PlanError(f"TF_CONFIG cannot be understood ({error}); pass rank= and world=") from None
    if kind not in sizes or sum(sizes.values()) < 2:
        return None, None
    before = sum(sizes[name] for name in sizes if name < kind and name != "worker") if kind == "worker" else 0
    found = before + index, sum(sizes.values())
    if text not in _said:
        _said.add(text)
        logger.info("rank %d of %d, from TF_CONFIG; pass rank= and world= to override", *found)
    return found
