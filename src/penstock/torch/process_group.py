"""Rank and world of a loader from the process group or device mesh that the user gives as `group=`.

Used by `penstock.torch.loader` and `penstock.torch.Batches`; talks to torch.distributed and to nothing else.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from penstock.errors import PlanError

if TYPE_CHECKING:
    from penstock.options import LoaderOptions

logger = logging.getLogger(__name__)


def with_group(options: LoaderOptions, group: Any) -> LoaderOptions:
    """Return the options with rank and world of a process group or device mesh, if one is given."""
    if group is None:
        return options
    if options.rank is not None or options.world is not None:
        raise PlanError("group= defines rank and world; give either group= or rank= and world=")
    if not dist.is_available() or not dist.is_initialized():
        raise PlanError("group= needs torch.distributed: call torch.distributed.init_process_group first")
    if hasattr(group, "get_group"):  # a device mesh
        if group.ndim != 1:
            names = group.mesh_dim_names or tuple(range(group.ndim))
            raise PlanError(
                f"a device mesh of the dimensions {names} does not define over which one the data is split; give the "
                f"data-parallel one: group=mesh[{names[0]!r}]"
            )
        group = group.get_group()
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    if rank < 0:
        raise PlanError("this process is not in the group given as group=; give each process its data-parallel group")
    logger.info("rank %d of %d, from group=", rank, world)
    return replace(options, rank=rank, world=world)
