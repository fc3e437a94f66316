"""What the columns of a batch become in JAX: arrays in a dtype that it keeps, masks of nulls, and the rest as it is.

`Convert` is called with every batch, after the engine and before the devices. Numbers are never changed silently: JAX
would wrap what does not fit, here it is an error. What JAX has no dtype for stays on the host (docs/types.md).

`Masks` are decided once, when a loader is made: where processes form one array together, each must run the same program
and have the same columns, whatever rows it has read. `Layout.of` checks what the user gave as `sharding=`; the engine's
rank and world follow from it, so that processes which hold the same rows read the same rows.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import jax
import numpy as np

from penstock.codecs.arrow_fixed import fill_masked
from penstock.engine.rank import FoundRank, announce
from penstock.errors import ColumnNotFound, PlanError, SchemaError, close_names
from penstock.nulls import check_nulls

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from penstock.engine.base_loader import BaseLoader
    from penstock.engine.loader import Loader as NativeLoader

    Batch = dict[str, Any]

_HOST_KINDS = frozenset("mMOSUT")
"""Kinds of NumPy dtypes that JAX has no form for; kind V also includes bfloat16, which JAX has."""


@dataclass(frozen=True, slots=True)
class Convert:
    """Turns a NumPy batch into one of JAX."""

    layout: Layout
    masks: Masks

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch on the device, columns in the same order, each mask behind its column."""
        self._check_names(batch)
        columns: Batch = {}
        owners: dict[str, str] = {}
        for name, values in batch.items():
            columns[name], valid = self._split(name, values)
            if valid is None:
                continue
            mask = f"{name}{VALID}"
            if mask in batch:
                raise SchemaError(f"the batch has a column {mask!r} already, where the mask of {name!r} would go")
            columns[mask], owners[mask] = valid, name
        arrays = {name: values for name, values in columns.items() if _fits_device(values)}
        if arrays:
            self.layout.check_rows(len(next(iter(arrays.values()))))
        placed = self.layout.put(arrays, owners)
        return {name: placed.get(name, values) for name, values in columns.items()}

    def _check_names(self, batch: Batch) -> None:
        """Refuse names that a transform does not give; others were looked at when the loader was made."""
        if not self.masks.wanted <= batch.keys():
            refuse_missing("nulls", self.masks.wanted, batch)
        if not self.layout.named <= batch.keys():
            refuse_missing("sharding", self.layout.named, batch)

    def _split(self, name: str, values: Any) -> tuple[Any, NDArray[np.bool_] | None]:
        """Return a column without its nulls, and its mask."""
        masked = isinstance(values, np.ma.MaskedArray)
        if not masked and not (isinstance(values, np.ndarray) and values.dtype.kind != "O"):
            return values, self._host_mask(name, values)
        valid: NDArray[np.bool_] | None = None
        if masked:
            valid, values = ~np.ma.getmaskarray(values), fill_masked(values)
        elif name in self.masks.always:
            valid = np.ones(values.shape, np.bool_)
        if valid is not None and self.masks.refuse and name not in self.masks.always:
            if not valid.all():
                raise self._null(name)
            valid = None
        return narrowed(name, values) if _fits_device(values) else values, valid

    def _host_mask(self, name: str, values: Any) -> NDArray[np.bool_] | None:
        """Return which values among texts, lists and other objects are there, where that was asked for."""
        if self.masks.same:  # no part of any program
            return None
        if name in self.masks.always:
            flat = values.ravel() if isinstance(values, np.ndarray) else values
            valid = np.fromiter((value is not None for value in flat), np.bool_, len(flat))
            return valid.reshape(values.shape) if isinstance(values, np.ndarray) else valid
        if self.masks.refuse and _holds_null(values):
            raise self._null(name)
        return None

    def _null(self, name: str) -> SchemaError:
        if self.masks.same:
            return SchemaError(
                f"column {name!r} has nulls that no field or footer tells of, and arrays over several processes need "
                f"the same columns in every process; name it in nulls=[...], or fill its nulls in transform="
            )
        return SchemaError(
            f"column {name!r} has nulls; name it in nulls=[...], use nulls='mask', or leave out such rows by filters="
        )


def _holds_null(values: Any) -> bool:
    """Tell whether there is a null among values, at any depth."""
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        return True
    if isinstance(values, np.ndarray):
        return values.dtype.kind == "O" and any(map(_holds_null, values.ravel().tolist()))
    if isinstance(values, list | tuple):
        return any(map(_holds_null, values))
    if isinstance(values, dict):
        return any(map(_holds_null, values.values()))
    return values is None


def _fits_device(values: Any) -> bool:
    is_array = isinstance(values, np.ndarray)
    return is_array and values.dtype.kind not in _HOST_KINDS and values.dtype.type is not np.void


def narrowed(name: str, values: NDArray[Any]) -> NDArray[Any]:
    """Return values in a dtype that JAX keeps: 32 bits where it has no 64, and an error where a value does not fit.

    JAX itself would wrap: without 64-bit numbers, 2**40 arrives as 0. It also has no other order of bytes than its own.
    """
    if not values.dtype.isnative:
        values = values.astype(values.dtype.newbyteorder("="))
    is_wide = values.dtype.kind in "iufc" and values.dtype.itemsize > (8 if values.dtype.kind == "c" else 4)
    if not is_wide or jax.config.jax_enable_x64:
        return values
    to: np.dtype[Any] = np.dtype({"i": np.int32, "u": np.uint32, "f": np.float32, "c": np.complex64}[values.dtype.kind])
    if to.kind in "iu":
        limits = np.iinfo(to)
        fits = not values.size or (values.min() >= limits.min and values.max() <= limits.max)
        narrow = values.astype(to) if fits else values
    else:
        with np.errstate(over="ignore"):
            narrow = values.astype(to)
        fits = bool((np.isinf(narrow) <= np.isinf(values)).all())
    if not fits:
        raise SchemaError(
            f"column {name!r} has {values.dtype} values that do not fit {to}, and JAX has no 64-bit numbers here; set "
            "jax.config.update('jax_enable_x64', True), leave the column out, or change it by transform="
        )
    return narrow


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


VALID = "_valid"
"""What the name of a mask ends with."""


@dataclass(frozen=True, slots=True)
class Masks:
    """What becomes of nulls."""

    always: frozenset[str] = frozenset()
    """Columns with a mask in every batch."""
    refuse: bool = False
    """Whether a null in any other column is an error; else masked arrays have a mask."""
    same: bool = False
    """Whether this was decided for processes that form one array: of columns on the device only."""
    wanted: frozenset[str] = frozenset()
    """The columns that the user has named."""


def choose(nulls: Any, native: BaseLoader, *, same: bool) -> Masks:
    """Return what `nulls=` asks for; `same`: every process must have the same columns in every batch."""
    names = check_nulls(nulls, native.columns, owner="penstock.jax.loader")
    if names is None:
        if not same:
            return Masks()
        masks = Masks(_stacked(native), refuse=True, same=True)
        advice = "select other columns, rename it by transform=, or use nulls='error'"
    else:
        masks, advice = Masks(names, refuse=True, wanted=names), "select others"
    known = native.columns or ()
    clash = sorted(f"{name}{VALID}" for name in masks.always if f"{name}{VALID}" in known)
    if clash:
        raise PlanError(f"the dataset has the column {clash[0]!r} already, where the mask would go; {advice}")
    return masks


def check_names(option: str, names: Iterable[str], native: BaseLoader) -> None:
    """Refuse names that no batch will have, where that is known by now."""
    known = native.columns
    if known is not None:
        refuse_missing(option, names, known)


def refuse_missing(option: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise ColumnNotFound unless a batch has all these columns."""
    known = list(known)
    for name in sorted(names):
        if name not in known:
            raise ColumnNotFound(f"{option}= names the column {name!r}; {close_names(name, known)}")


# -- what may be null -------------------------------------------------------------------------------------------------


def _stacked(native: BaseLoader) -> frozenset[str]:
    """Return the columns on the device that may hold nulls; what stays on the host tells its nulls itself."""
    columns = [one for loader in native.inside() for one in loader.output_columns()]
    on_device = [one for one in columns if one.read is None or one.read.form in ("fixed", "cells")]
    return frozenset(one.name for one in on_device if one.nullable and one.padding is None)
