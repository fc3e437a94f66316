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
_said: set[tuple[int, int]] = set()


def with_group(options: LoaderOptions, group: Any) -> LoaderOptions:
    """Return the options with rank and world of a process group or device mesh, if one is given."""
    if group is None:
        return options
    if options.rank is not None or options.world is not None:
        raise PlanError("group= defines rank and world; give either group= or rank= and world=")
    rank, world = _place_in(group)
    if (rank, world) not in _said:
        _said.add((rank, world))
        logger.info("rank %d of %d, from group=", rank, world)
    return replace(options, rank=rank, world=world)


def _place_in(group: Any) -> tuple[int, int]:
    if not dist.is_available() or not dist.is_initialized():
        raise PlanError("group= needs torch.distributed: call torch.distributed.init_process_group first")
    if hasattr(group, "get_group"):
        group = _group_of(group)
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    if rank < 0:
        raise PlanError("this process is not in the group given as group=; give each process its data-parallel group")
    return rank, world


def _group_of(mesh: Any) -> Any:
    if mesh.ndim != 1:
        names = mesh.mesh_dim_names or tuple(range(mesh.ndim))
        raise PlanError(
            f"a device mesh of the dimensions {names} does not say which one the data is split over; give the "
            f"data-parallel one: group=mesh[{names[0]!r}]"
        )
    return mesh.get_group()
