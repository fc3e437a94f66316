"""From what the user hands over to a native loader: a URL or dataset, its keywords, a process group.

`hand_over` and `batches` take the same first arguments; they are understood here, once. Opens and plans; reads no data
and starts no thread.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypedDict

import torch.distributed as dist

from penstock.api import Dataset
from penstock.api import open as open_dataset
from penstock.errors import PlanError, close_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.options import Function, OnError, Pool, Remainder, Shuffle, Window
    from penstock.schema.transform import TransformSpec

logger = logging.getLogger(__name__)
_said: set[tuple[int, int]] = set()


class Keywords(TypedDict, total=False):
    """The keywords of `Dataset.loader` beside `batch_size`; their defaults and meanings are there."""

    shuffle: Shuffle
    seed: int
    epochs: int | None
    drop_last: bool
    rank: int | None
    world: int | None
    remainder: Remainder
    transform: Function | Sequence[Function] | TransformSpec | None
    window: Window | None
    pool: Pool
    workers: int | None
    memory_bytes: int | None
    window_bytes: int
    lanes: int | None
    on_error: OnError
    skip_limit: int | None
    pad: Any


_HINTS = {
    "num_workers": "the work is done by threads: workers= says how many, pool='process' makes them processes",
    "collate_fn": "batches are made already: change them with transform= or device_transform=",
    "sampler": "the order is the loader's: shuffle=, seed=, rank= and world= say which",
    "batch_sampler": "the order is the loader's: shuffle=, seed=, rank= and world= say which",
    "worker_init_fn": "the work is done by threads; a transform may take rng or generator, which depend on its place",
    "prefetch_factor": "memory_bytes= says how much is read ahead, prefetch= how much waits on a device",
    "persistent_workers": "threads live as long as an iterator, which costs milliseconds",
    "num_epochs": "epochs= says how many epochs one pass has",
}
"""What people know from elsewhere, and what it is here."""


def check_keywords(options: Mapping[str, Any], own: Iterable[str], *, owner: str) -> None:
    """Raise TypeError for a keyword that neither `owner` nor `Dataset.loader` has."""
    known = [*own, *Keywords.__annotations__]
    for name in options:
        if name not in known:
            hint = _HINTS.get(name) or close_names(name, known)
            raise TypeError(f"{owner}() got an unexpected keyword argument {name!r}; {hint}")


def columns_for(dataset: Dataset, options: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the columns of batches; None where a transform decides."""
    return dataset.columns if options.get("transform") is None else None


class Opening(TypedDict, total=False):
    """What says which dataset, columns and rows."""

    columns: Iterable[Any] | None
    filters: Any
    storage_options: Mapping[str, Any] | None
    filesystem: Any


def dataset_of(source: Any, opening: Opening) -> Dataset:
    """Return the dataset: a URL is opened, a dataset is narrowed to the columns and rows asked for."""
    if not isinstance(source, Dataset):
        return open_dataset(source, **opening)
    for name in ("storage_options", "filesystem"):
        if opening.get(name) is not None:
            raise PlanError(f"{name}= is for opening a URL; the dataset is open already: give it to penstock.open")
    columns, filters = opening.get("columns"), opening.get("filters")
    chosen = source if filters is None else source.where(filters)
    return chosen if columns is None else chosen.select(columns)


def with_group(options: Keywords, group: Any) -> Keywords:
    """Return the options with rank and world of a process group or device mesh, if one is given."""
    if group is None:
        return options
    if options.get("rank") is not None or options.get("world") is not None:
        raise PlanError("group= says rank and world; give either group= or rank= and world=")
    rank, world = _place_in(group)
    if (rank, world) not in _said:
        _said.add((rank, world))
        logger.info("rank %d of %d, from group=", rank, world)
    return {**options, "rank": rank, "world": world}


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
