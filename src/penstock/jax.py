"""Batches as `jax.Array`s: the loader of a dataset, put on the device or laid out over a mesh.

Takes NumPy batches of `Dataset.loader` and hands them to JAX, a few ahead of the consumer. On the CPU a batch shares
its memory with the arrays; elsewhere the copy runs while the step before it computes. The order, ranks and state are
the engine's: nothing here shuffles, and no thread is started. What JAX has no dtype for stays on the host
(docs/types.md).
"""

from __future__ import annotations

import functools
import logging
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from penstock.api import Dataset
from penstock.api import open as open_dataset
from penstock.errors import PlanError, SchemaError
from penstock.options import WINDOW_BYTES

try:
    import jax
except ImportError:
    raise ImportError("penstock.jax needs JAX: pip install 'penstock[jax]'") from None

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import TracebackType

    from numpy.typing import NDArray

    from penstock.engine.build import Skipped
    from penstock.engine.loader import Loader as HostLoader
    from penstock.engine.report import Report
    from penstock.options import OnError, Pool, Remainder, Shuffle, Window
    from penstock.plan.plan import Plan
    from penstock.schema.transform import TransformSpec

    Batch = dict[str, Any]
    Nulls = Literal["mask", "error"] | Iterable[str]

__all__ = ["Loader", "loader"]

logger = logging.getLogger(__name__)

VALID = "_valid"
"""What the name of a mask ends with."""
_HOST_KINDS = frozenset("mMOSUT")
"""Kinds of NumPy dtypes that JAX has no form for; kind V is also that of bfloat16, which it has."""


def loader(  # noqa: PLR0913 -- a public factory takes flat keywords
    dataset_or_url: Dataset | str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    batch_size: int,
    shuffle: Shuffle = False,
    seed: int = 0,
    epochs: int | None = 1,
    drop_last: bool = False,
    rank: int | None = None,
    world: int | None = None,
    remainder: Remainder = "drop",
    transform: Callable[..., Mapping[str, Any]] | TransformSpec | None = None,
    window: Window | None = None,
    pool: Pool = "thread",
    workers: int | None = None,
    memory_bytes: int | None = None,
    window_bytes: int = WINDOW_BYTES,
    lanes: int | None = None,
    on_error: OnError = "raise",
    skip_limit: int | None = None,
    pad: Any = None,
    columns: Iterable[Any] | None = None,
    filters: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    filesystem: Any = None,
    sharding: Any = None,
    prefetch: int = 2,
    nulls: Nulls = "mask",
) -> Loader:
    """Return a loader of dicts of `jax.Array`s, in the same order as `Dataset.loader` with the same options.

    Options that are not told of here are those of `Dataset.loader`. Numbers and booleans become `jax.Array`s. Dates,
    text, binary, decimals, lists and other objects have no form in JAX and stay what the NumPy batch has, on the host.
    Where 64-bit numbers are not enabled, numbers become 32-bit ones if they fit, and are an error if they do not.

    Options of its own:
        dataset_or_url: An open dataset, or what `penstock.open` takes.
        batch_size: Rows of a batch on each process (on each part of the batch, where `sharding` gives several
            processes the same one); the global batch has `world` times as many.
        rank: This process's part; default: what `sharding` says, else the process index of JAX where there are several
            processes, else as `Dataset.loader`.
        world: Number of parts.
        columns: Columns to choose, as `penstock.open` takes them.
        filters: Rows to keep, as `Dataset.where` takes them.
        storage_options: For a URL's filesystem.
        filesystem: A filesystem to use instead of the URL's.
        sharding: A `jax.sharding.Sharding` or device for all columns, or a dict of them by column. Each process reads
            the rows of its own devices, and arrays are global. Columns with fewer axes than a `PartitionSpec` names use
            the first of them. Columns that a dict leaves out go to the default device, with this process's rows only.
        prefetch: Most batches that are handed to the device before they are asked for; only what the engine has ready,
            so that nothing waits for it.
        nulls: "mask": a column with nulls in this batch comes filled (0, False, NaN), with a column `<name>_valid`
            beside it that is True where there is a value. Names of columns: these have it in every batch, so that the
            structure of batches is fixed under `jit`, and a null elsewhere is an error. "error": so is any null.

    Raises:
        PlanError: Options that contradict each other, or batches that do not divide among the devices.
    """
    dataset = _opened(dataset_or_url, columns, filters, storage_options, filesystem)
    layout = Layout.of(sharding)
    rank, world = layout.rank_and_world(rank, world)
    if layout.needs_equal_batches:
        _check_equal(dataset, remainder, on_error)
    host = dataset.loader(
        batch_size=batch_size, shuffle=shuffle, seed=seed, epochs=epochs, drop_last=drop_last, rank=rank, world=world,
        remainder=remainder, transform=transform, window=window, pool=pool, workers=workers, memory_bytes=memory_bytes,
        window_bytes=window_bytes, lanes=lanes, on_error=on_error, skip_limit=skip_limit, pad=pad,
    )  # fmt: skip
    if isinstance(prefetch, bool) or not isinstance(prefetch, int) or prefetch < 0:
        raise PlanError(f"prefetch is a number of batches from 0; got {prefetch!r}")
    layout.check_batches(host, batch_size)
    return Loader(host, Convert(layout, _names(nulls, dataset)), prefetch)


def _opened(
    source: Any, columns: Iterable[Any] | None, filters: Any, storage_options: Mapping[str, Any] | None, filesystem: Any
) -> Dataset:
    if not isinstance(source, Dataset):
        return open_dataset(
            source, columns=columns, filters=filters, storage_options=storage_options, filesystem=filesystem
        )
    if storage_options is not None or filesystem is not None:
        raise PlanError("storage_options and filesystem are for opening a URL; this dataset is open already")
    chosen = source if columns is None else source.select(columns)
    return chosen if filters is None else chosen.where(filters)


def _names(nulls: Any, dataset: Dataset) -> frozenset[str] | None:
    """Return the columns that may hold nulls; None for all."""
    if nulls in ("mask", "error"):
        return None if nulls == "mask" else frozenset()
    if isinstance(nulls, str):
        raise PlanError(f"nulls is 'mask', 'error' or names of columns; got {nulls!r}")
    names = frozenset(nulls)
    clash = sorted(f"{name}{VALID}" for name in names if f"{name}{VALID}" in dataset.columns)
    if clash:
        raise PlanError(f"the dataset has the column {clash[0]!r} already, where the mask would go; select others")
    return names


def _check_equal(dataset: Dataset, remainder: str, on_error: str) -> None:
    """Refuse what gives processes batches of different sizes: a global array cannot be made of them."""
    cause = "remainder='uneven'" if remainder == "uneven" else "on_error='skip'" if on_error == "skip" else None
    if dataset._late is not None:
        cause = "where(..., exact=False)"
    if cause:
        raise PlanError(
            f"{cause} may give batches of other sizes to one process than to another, and arrays over several "
            "processes need equal ones; leave it out, or load without sharding="
        )


class Loader:
    """Iterable of batches on the device; made by `penstock.jax.loader`.

    Everything but the batches is that of the loader of NumPy batches behind it: passes, length, state and plan. The
    state counts what the consumer has received, not what is prefetched.
    """

    def __init__(self, host: HostLoader, convert: Convert, prefetch: int) -> None:
        self._host = host
        self._convert = convert
        self._prefetch = prefetch

    def __iter__(self) -> Iterator[Batch]:
        return _Pass(self._host, self._convert, self._prefetch)

    def __len__(self) -> int:
        return len(self._host)

    def state_dict(self) -> dict[str, Any]:
        """Return the place of this run as small JSON: what the consumer has received; the same on every process."""
        return self._host.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state: of any world, batch size or framework, of the same dataset, rows and seed."""
        self._host.load_state_dict(state)

    def stats(self) -> dict[str, float]:
        """Return counters of the loader behind; batches count when they are taken to be prefetched."""
        return self._host.stats()

    def report(self) -> Report:
        """Return where the time went, to print: see docs/stalls.md."""
        return self._host.report()

    @property
    def skipped(self) -> list[Skipped]:
        """The rows left out so far under on_error="skip"."""
        return self._host.skipped

    @property
    def plan(self) -> Plan:
        """What this loader does from here to the end of the epoch; print it."""
        return self._host.plan

    @property
    def rank(self) -> int:
        """The part that this process reads."""
        return self._host.rank

    @property
    def world(self) -> int:
        """The number of parts."""
        return self._host.world

    def close(self) -> None:
        """Stop threads and processes; the loader cannot be used again. Arrays handed out stay valid."""
        self._host.close()

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"penstock.jax.{self._host!r}"


@dataclass(frozen=True, slots=True)
class _Ready:
    """A batch on its way to the device, or what went wrong on the way to it, and the place behind it."""

    batch: Batch
    place: tuple[Any, int] | None
    error: Exception | None


class _Pass:
    """The iterator of one pass. The threads behind it live no longer than it does."""

    def __init__(self, host: HostLoader, convert: Convert, prefetch: int) -> None:
        self._host = host
        self._convert = convert
        self._prefetch = prefetch
        self._batches = cast("Any", iter(host))
        self._ready: deque[_Ready] = deque()

    def __iter__(self) -> _Pass:
        return self

    def __next__(self) -> Batch:
        try:
            return self._next()
        except BaseException:  # Ctrl-C may have taken a batch along: nobody shall go on behind the gap
            self._batches.stop()
            raise

    def _next(self) -> Batch:
        if not self._host._is_active(self._batches):
            self._ready.clear()  # another iterator was made, or a state loaded: what is left belongs to nobody
        one = self._ready.popleft() if self._ready else self._take()
        if one.error is not None:
            raise one.error
        if one.place is not None:
            self._host.received(*one.place)
            self._fill(one.place)
        return one.batch

    def _take(self) -> _Ready:
        built = self._batches.take()
        place = built.work.plan, self._host.steps_of(built.end)
        return _Ready(self._convert(built.batch), place, None)

    def _fill(self, place: tuple[Any, int]) -> None:
        """Take what is ready, as far as there is room; the place stays that of the batch about to be handed out."""
        while len(self._ready) < self._prefetch and self._host.num_waiting():
            if self._ready and self._ready[-1].error is not None:
                return
            with self._host._lock:  # nobody shall save the place of a batch that is not handed out
                try:
                    self._ready.append(self._take())
                except Exception as error:  # noqa: BLE001 -- raised when its turn comes, after the batches before it
                    self._ready.append(_Ready({}, None, error))
                finally:
                    self._host.received(*place)


# -- where arrays go ------------------------------------------------------------------------------------------------


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
    def needs_equal_batches(self) -> bool:
        """Whether processes form one array together."""
        return self.part is not None and self.part.count > 1

    def rank_and_world(self, rank: int | None, world: int | None) -> tuple[int | None, int | None]:
        """Return what the user gave, else what this process is in JAX; None, None: the engine shall look elsewhere."""
        count = 1 if self.part is None else self.part.count
        if world is not None or rank is not None:
            if count not in (1, world):
                raise PlanError(
                    f"sharding cuts the batch into {count} parts, but world={world}; leave rank and world out"
                )
            return rank, world
        if jax.process_count() == 1:
            return None, None
        found = (jax.process_index(), jax.process_count()) if self.part is None else (self.part.index, count)
        logger.info("rank %d of %d, from %s", *found, "JAX's process index" if self.part is None else "the sharding")
        return found

    def check_batches(self, host: HostLoader, batch_size: int) -> None:
        """Refuse batches that the devices cannot share, the last one of an epoch included."""
        if self.part is None or self.part.num_shards == 1:
            return
        self.check_rows(batch_size)
        plan = host.plan
        if plan.share.remainder != "uneven":
            self.check_rows(plan.share.kept(plan.num_rows, host.rank) % batch_size)

    def check_rows(self, num_rows: int) -> None:
        """Refuse a batch that does not divide among this process's devices."""
        if self.part is not None and num_rows % self.part.num_shards:
            raise PlanError(
                f"a batch of {num_rows} rows does not divide among {self.part.num_shards} shards on this process; "
                "choose a batch_size that does, and drop_last=True where the last batch of an epoch is shorter"
            )

    def put(self, arrays: dict[str, NDArray[Any]]) -> Batch:
        """Start the copies to the devices and return the arrays; on the CPU they share memory where it is aligned."""
        if self.default is None and not self.by_name:
            return cast("Batch", jax.device_put(arrays))
        places = {name: self._place(name, array.ndim) for name, array in arrays.items()}
        here = {name: array for name, array in arrays.items() if _is_local(places[name])}
        placed = jax.device_put(here, {name: places[name] for name in here})
        return {name: placed[name] if name in placed else self._joined(arrays[name], places[name]) for name in arrays}

    def _place(self, name: str, num_axes: int) -> Any:
        place = self.by_name.get(name, self.default)
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


# -- what arrays become ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Convert:
    """Turns a NumPy batch into one of JAX."""

    layout: Layout
    nullable: frozenset[str] | None
    """Columns that always have a mask; None: those that have nulls in this batch."""

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch on the device, columns in the same order, each mask behind its column."""
        columns: Batch = {}
        for name, values in batch.items():
            if _fits_device(values) or isinstance(values, np.ma.MaskedArray):
                self._add(columns, name, values, taken=f"{name}{VALID}" in batch)
            else:
                self._check_host(name, values)
                columns[name] = values
        arrays = {name: v for name, v in columns.items() if _fits_device(v)}
        if arrays:
            self.layout.check_rows(len(next(iter(arrays.values()))))
        placed = self.layout.put(arrays)
        return {name: placed.get(name, values) for name, values in columns.items()}

    def _add(self, columns: Batch, name: str, values: NDArray[Any], *, taken: bool) -> None:
        """Add a column as plain array, and its mask."""
        valid: NDArray[np.bool_] | None = None
        if isinstance(values, np.ma.MaskedArray):
            valid, values = ~np.ma.getmaskarray(values), values.filled()
            if valid.all():
                valid = None
        if valid is not None and not self._may_be_null(name):
            raise _null(name)
        columns[name] = narrowed(name, values)
        if valid is None and self.nullable is not None and name in self.nullable:
            valid = np.ones(values.shape, np.bool_)
        if valid is not None:
            if taken:
                raise SchemaError(
                    f"the batch has a column {name + VALID!r} already, where the mask of {name!r} would go"
                )
            columns[f"{name}{VALID}"] = valid

    def _may_be_null(self, name: str) -> bool:
        return self.nullable is None or name in self.nullable

    def _check_host(self, name: str, values: Any) -> None:
        """Refuse a None among texts, lists and other objects, where nulls are refused."""
        listed = isinstance(values, list) or (isinstance(values, np.ndarray) and values.dtype.kind == "O")
        if listed and not self._may_be_null(name) and any(value is None for value in values):
            raise _null(name)


def _null(name: str) -> SchemaError:
    return SchemaError(
        f"column {name!r} has nulls; name it in nulls=[...], use nulls='mask', or leave out such rows by filters="
    )


def _fits_device(values: Any) -> bool:
    is_array = isinstance(values, np.ndarray)
    return is_array and values.dtype.kind not in _HOST_KINDS and values.dtype.type is not np.void


def narrowed(name: str, values: NDArray[Any]) -> NDArray[Any]:
    """Return values in a dtype that JAX keeps: 32 bits where it has no 64, and an error where a value does not fit.

    JAX itself would wrap: without 64-bit numbers, 2**40 arrives as 0.
    """
    if values.dtype.kind not in "iufc" or values.dtype.itemsize < 8 or jax.config.jax_enable_x64:
        return values
    if values.dtype.kind == "c" and values.dtype.itemsize == 8:
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
