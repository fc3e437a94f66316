"""Where the arrays of a batch go: a device, a mesh, and which part of a batch this process reads.

`Layout.of` checks what the user gave as `sharding=`, once; `Layout.put` starts the copies of each batch. The engine's
rank and world follow from the layout, so that processes which hold the same rows read the same rows.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import jax

from penstock.engine.host import FoundRank, announce
from penstock.errors import PlanError
from penstock.jax._masks import VALID

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from penstock.engine.loader import Loader as NativeLoader

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of a batch that this process holds under a sharding."""

    index: int
    """Which part of the batch, in order."""
    count: int
    """Into how many parts the processes cut it; 1 where all hold all rows."""
    num_shards: int
    """Into how many shards the devices of this process cut the part."""


def part_of(sharding: Any) -> Part:
    """Return this process's part of the first axis; several processes may hold the same one.

    The rank of the process would be wrong under tensor or pipeline parallelism, where some share their rows.
    """
    devices = sharding.device_set
    rows: dict[int, set[tuple[int, int]]] = {}
    for device, (cut, *_) in cut_to(sharding, 1).devices_indices_map((len(devices),)).items():
        start, stop, _ = cut.indices(len(devices))
        rows.setdefault(device.process_index, set()).add((start, stop))
    held = {process: tuple(sorted(cuts)) for process, cuts in rows.items()}
    parts = sorted(set(held.values()))
    here = jax.process_index()
    if here not in held:
        raise PlanError(f"sharding has no device of this process ({here} of {jax.process_count()}): {sharding}")
    if len({cut for part in parts for cut in part}) != sum(map(len, parts)) or len({len(p) for p in parts}) > 1:
        raise PlanError(f"processes must hold the same rows of a batch or different ones, not partly; {sharding}")
    return Part(parts.index(held[here]), len(parts), len(held[here]))


@functools.lru_cache(maxsize=256)
def cut_to(sharding: Any, num_axes: int) -> Any:
    """Return a sharding for arrays of so many axes: a longer PartitionSpec loses its end."""
    spec = getattr(sharding, "spec", None)
    if spec is None or len(spec) <= num_axes:
        return sharding
    kept = jax.sharding.PartitionSpec(*tuple(spec)[:num_axes])
    return jax.sharding.NamedSharding(sharding.mesh, kept, memory_kind=sharding.memory_kind)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the columns of a batch go, and which part of it this process reads."""

    default: Any
    """Sharding of the columns that have none of their own; None: the default device."""
    by_name: Mapping[str, Any]
    """Shardings of single columns."""
    part: Part | None
    """None where there is no sharding."""

    @classmethod
    def of(cls, given: Any) -> Layout:
        """Check what the user gave: a sharding, a device, a dict of them, or None."""
        if given is None:
            return cls(None, {}, None)
        by_name = {name: _as_sharding(one) for name, one in given.items()} if hasattr(given, "items") else {}
        default = None if hasattr(given, "items") else _as_sharding(given)
        parts = {part_of(one) for one in ([default] if default is not None else by_name.values())}
        if len(parts) > 1:
            raise PlanError(f"the shardings of all columns must cut the batch alike; got {sorted(map(str, parts))}")
        return cls(default, by_name, parts.pop() if parts else None)

    @property
    def named(self) -> frozenset[str]:
        """Columns that the user has named; names of masks may be names of nothing."""
        return frozenset(name for name in self.by_name if not name.endswith(VALID))

    @property
    def needs_equal_batches(self) -> bool:
        """Whether processes form one array together."""
        return self.part is not None and self.part.count > 1

    def rank_and_world(self, rank: int | None, world: int | None) -> tuple[int | None, int | None]:
        """Return the arguments, else the place of this process in JAX; None, None for the engine to look elsewhere."""
        count = 1 if self.part is None else self.part.count
        if world is not None or rank is not None:
            if count not in (1, world):
                raise PlanError(
                    f"sharding cuts the batch into {count} parts, but world={world}; leave rank and world out"
                )
            return rank, world
        if jax.process_count() == 1:
            return None, None
        if self.part is not None:
            logger.info("rank %d of %d, from the sharding", self.part.index, count)
            return self.part.index, count
        announce(FoundRank(jax.process_index(), jax.process_count(), "JAX's process index"))
        return jax.process_index(), jax.process_count()

    def check_batches(self, loader: NativeLoader) -> None:
        """Refuse batches that the devices cannot share, the last one of an epoch included."""
        if self.part is None or self.part.num_shards == 1:
            return
        self.check_rows(loader.batch_size)
        plan = loader.plan
        if plan.share.remainder != "uneven":
            self.check_rows(plan.share.kept(plan.num_rows, loader.rank) % loader.batch_size)

    def check_rows(self, num_rows: int) -> None:
        """Refuse a batch that does not divide among this process's devices."""
        if self.part is not None and num_rows % self.part.num_shards:
            raise PlanError(
                f"a batch of {num_rows} rows does not divide among {self.part.num_shards} shards on this process; "
                "choose a batch_size that does, and drop_last=True where the last batch of an epoch is shorter"
            )

    def put(self, arrays: dict[str, NDArray[Any]], owners: Mapping[str, str]) -> dict[str, Any]:
        """Start the copies to the devices and return the arrays; on the CPU they share memory where it is aligned.

        `owners`: mask to its column, with which it goes where it has no place of its own.
        """
        if self.default is None and not self.by_name:
            return cast("dict[str, Any]", jax.device_put(arrays))
        places = {name: self._place(name, owners.get(name, name), array.ndim) for name, array in arrays.items()}
        here = {name: array for name, array in arrays.items() if _is_local(places[name])}
        placed = jax.device_put(here, {name: places[name] for name in here})
        return {name: placed[name] if name in placed else self._joined(arrays[name], places[name]) for name in arrays}

    def _place(self, name: str, owner: str, num_axes: int) -> Any:
        place = self.by_name.get(name, self.by_name.get(owner, self.default))
        return None if place is None else cut_to(place, num_axes)

    def _joined(self, array: NDArray[Any], sharding: Any) -> Any:
        shape = (len(array) * cast("Part", self.part).count, *array.shape[1:])
        return jax.make_array_from_process_local_data(sharding, array, shape)


def _as_sharding(given: Any) -> Any:
    if isinstance(given, jax.sharding.Sharding):
        return given
    if isinstance(given, jax.Device):
        return jax.sharding.SingleDeviceSharding(given)
    raise PlanError(f"sharding takes a jax.sharding.Sharding, a jax.Device or a dict of them; got {given!r}")


def _is_local(sharding: Any) -> bool:
    return sharding is None or bool(sharding.is_fully_addressable)
