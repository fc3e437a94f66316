"""Batches as `jax.Array`s: the loader of a dataset, put on the device or laid out over a mesh.

Takes NumPy batches of `Dataset.loader` and hands them to JAX, a few ahead of the consumer. On the CPU a batch shares
its memory with the arrays; elsewhere the copy runs while the step before it computes. The order, ranks and state are
the engine's: nothing here shuffles, and no thread is started. What JAX has no dtype for stays on the host
(docs/types.md).
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Unpack

from penstock.engine.base_loader import BaseLoader, LoaderProxy
from penstock.errors import PlanError
from penstock.factories import loader_for
from penstock.keywords import FrameworkKeywords, show_keywords

try:
    import jax  # noqa: F401 -- the parts below need it
except ImportError:
    raise ImportError("penstock.jax needs JAX: pip install 'penstock[jax]'") from None

from penstock.jax._convert import Convert, Layout, check_names, choose

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Sequence

    from penstock.api import Dataset
    from penstock.engine.delivery import Delivery, Stream
    from penstock.options import LoaderOptions

    Batch = dict[str, Any]
    Nulls = Literal["mask", "error"] | Iterable[str]

OWNER = "penstock.jax.loader"
__all__ = ["Loader", "loader"]


@show_keywords(FrameworkKeywords)
def loader(
    dataset_or_url: Dataset | BaseLoader | str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    batch_size: int | None = None,
    sharding: Any = None,
    prefetch: int = 2,
    nulls: Nulls = "mask",
    **options: Unpack[FrameworkKeywords],
) -> Loader:
    """Return a loader of dicts of `jax.Array`s, in the same order as `Dataset.loader` with the same options.

    Numbers and booleans become `jax.Array`s. Dates, text, binary, decimals, lists and other objects have no equivalent
    in JAX and stay on the host, as in the NumPy batch. Where 64-bit numbers are not enabled, they become 32-bit ones if
    they fit, and are an error otherwise.

    Args:
        dataset_or_url: An open dataset, or what `penstock.open` takes; or a `penstock.Loader` or `penstock.mix(...)`,
            which has its own `batch_size` and options.
        batch_size: Rows of a batch on each process (on each part of the batch, where `sharding` gives several
            processes the same one); the global batch has `world` times as many.
        sharding: A `jax.sharding.Sharding` or device for all columns, or a dict of them by column. Each process reads
            the rows of its own devices, and arrays are global. Columns with fewer axes than a `PartitionSpec` names use
            the first of them. Columns that a dict leaves out go to the default device, with this process's rows only.
        prefetch: The most batches that are copied to the device ahead of the consumer. Only batches that the engine has
            ready are taken, so this never waits.
        nulls: "mask": a column that may hold nulls (by its field and the footers) comes filled (0, False, NaN) in every
            batch, with a column `<name>_valid` beside it that is True where there is a value. Names of columns: these
            have it in every batch, and a null elsewhere is an error. "error": so is any null.
        rank: This process's part; default: the one that `sharding` implies, else the process index of JAX where there
            are several processes, else as for `Dataset.loader`.
        **options: The keys of `penstock.keywords.FrameworkKeywords`.

    Raises:
        PlanError: Options that contradict each other, or batches that do not divide among the devices.
        ColumnNotFound: `sharding` or `nulls` names a column that no batch has.
    """
    layout = Layout.of(sharding)

    def shared(given: LoaderOptions) -> LoaderOptions:
        rank, world = layout.rank_and_world(given.rank, given.world)
        return replace(given, rank=rank, world=world)

    native = loader_for(
        dataset_or_url, batch_size, options, function=loader, owner="penstock.jax.loader", change=shared
    )
    if isinstance(prefetch, bool) or not isinstance(prefetch, int) or prefetch < 0:
        raise PlanError(f"prefetch is a number of batches from 0; got {prefetch!r}")
    for one in native.inside():
        if layout.needs_equal_batches and one.unequal_cause is not None:
            raise PlanError(
                f"{one.unequal_cause} may give batches of other sizes to one process than to another, and arrays "
                "over several processes need equal ones; leave it out, or load without sharding="
            )
        layout.check_batches(one)
    check_names("sharding", layout.named, native)
    masks = choose(nulls, native, same=layout.needs_equal_batches)
    return Loader(native, Convert(layout, masks), prefetch)


class Loader(LoaderProxy):
    """Iterable of batches on the device; made by `penstock.jax.loader`.

    Everything but the batches is forwarded to the loader of NumPy batches, `native`: passes, length, state and
    plan.
    """

    def __init__(self, native: BaseLoader, convert: Convert, prefetch: int) -> None:
        self.native = native
        self._convert = convert
        self._prefetch = prefetch

    def __iter__(self) -> Iterator[Batch]:
        convert = self._convert
        return _Prefetching(self.native.stream().map(lambda delivery: convert(delivery.batch)), self._prefetch)

    def __repr__(self) -> str:
        return f"penstock.jax.{self.native!r}"


class _Prefetching:
    """The iterator of one pass: starts the copies of batches that are ready before they are asked for.

    Takes only what the engine has made, in the consumer's own thread: JAX copies in the background.
    """

    def __init__(self, stream: Stream[Batch], prefetch: int) -> None:
        self._stream = stream
        self._prefetch = prefetch
        self._ready: deque[Delivery[Batch] | Exception] = deque()

    def __iter__(self) -> _Prefetching:
        return self

    def __next__(self) -> Batch:
        stream, began = self._stream, time.perf_counter()
        try:
            found = self._ready.popleft() if self._ready else stream.take()
            if isinstance(found, Exception):
                raise found
            if found is not None:
                self._fill()
                stream.received(found.place, time.perf_counter() - began)
                return found.batch
            if not stream.is_over:
                stream.received(stream.end)
        except BaseException:  # an interrupt may have lost a batch: end the pass instead of skipping it silently
            stream.stop()
            self._ready.clear()
            raise
        raise StopIteration

    def _fill(self) -> None:
        while len(self._ready) < self._prefetch and self._stream.ready():
            try:
                delivery = self._stream.take()
            except Exception as error:  # noqa: BLE001 -- raised when its turn comes, after the batches before it
                self._ready.append(error)
                return
            if delivery is None:
                return
            self._ready.append(delivery)
