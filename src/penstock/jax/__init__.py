"""Batches as `jax.Array`s: the loader of a dataset, put on the device or laid out over a mesh.

Takes NumPy batches of `Dataset.loader` and hands them to JAX, a few ahead of the consumer. On the CPU a batch shares
its memory with the arrays; elsewhere the copy runs while the step before it computes. The order, ranks and state are
the engine's: nothing here shuffles, and no thread is started. What JAX has no dtype for stays on the host
(docs/types.md).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Unpack, cast

from penstock.api import dataset_and_options, load
from penstock.engine.front import Front
from penstock.errors import PlanError
from penstock.options import FrameworkKeywords, show_keywords

try:
    import jax  # noqa: F401 -- the parts below need it
except ImportError:
    raise ImportError("penstock.jax needs JAX: pip install 'penstock[jax]'") from None

from penstock.jax._convert import Convert
from penstock.jax._layout import Layout
from penstock.jax._masks import check_names, choose

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from penstock.api import Dataset
    from penstock.engine.build import Built
    from penstock.engine.loader import Loader as HostLoader
    from penstock.options import LoaderOptions

    Batch = dict[str, Any]
    Nulls = Literal["mask", "error"] | Iterable[str]

__all__ = ["Loader", "loader"]


@show_keywords(FrameworkKeywords)
def loader(
    dataset_or_url: Dataset | str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    batch_size: int,
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
        dataset_or_url: An open dataset, or what `penstock.open` takes.
        batch_size: Rows of a batch on each process (on each part of the batch, where `sharding` gives several
            processes the same one); the global batch has `world` times as many.
        sharding: A `jax.sharding.Sharding` or device for all columns, or a dict of them by column. Each process reads
            the rows of its own devices, and arrays are global. Columns with fewer axes than a `PartitionSpec` names use
            the first of them. Columns that a dict leaves out go to the default device, with this process's rows only.
        prefetch: The most batches that are copied to the device ahead of the consumer. Only batches that the engine has
            ready are taken, so this never waits.
        nulls: "mask": a column with nulls in this batch comes filled (0, False, NaN), with a column `<name>_valid`
            beside it that is True where there is a value. Names of columns: these have it in every batch, so that the
            structure of batches is fixed under `jit`, and a null elsewhere is an error. "error": so is any null.
            Where processes form arrays together, "mask" is for columns that may hold nulls (by fields and footers),
            in every batch: all processes must run the same program.
        rank: This process's part; default: the one that `sharding` implies, else the process index of JAX where there
            are several processes, else as for `Dataset.loader`.
        **options: The keys of `penstock.options.FrameworkKeywords`.

    Raises:
        PlanError: Options that contradict each other, or batches that do not divide among the devices.
        ColumnNotFound: `sharding` or `nulls` names a column that no batch has.
    """
    dataset, given = dataset_and_options(
        dataset_or_url, batch_size, options, function=loader, owner="penstock.jax.loader"
    )
    layout = Layout.of(sharding)
    rank, world = layout.rank_and_world(given.rank, given.world)
    if layout.needs_equal_batches:
        _check_equal(dataset, given)
    host = load(dataset, replace(given, rank=rank, world=world))
    if isinstance(prefetch, bool) or not isinstance(prefetch, int) or prefetch < 0:
        raise PlanError(f"prefetch is a number of batches from 0; got {prefetch!r}")
    layout.check_batches(host, batch_size)
    check_names("sharding", layout.named, host)
    masks = choose(nulls, dataset, host, same=layout.needs_equal_batches)
    return Loader(host, Convert(layout, masks), prefetch)


def _check_equal(dataset: Dataset, options: LoaderOptions) -> None:
    """Refuse options that give processes batches of different sizes: a global array cannot be made of them."""
    cause = "on_error='skip'" if options.on_error == "skip" else None
    if options.remainder == "uneven":
        cause = "remainder='uneven'"
    if dataset.filters_late:
        cause = "where(..., exact=False)"
    if cause:
        raise PlanError(
            f"{cause} may give batches of other sizes to one process than to another, and arrays over several "
            "processes need equal ones; leave it out, or load without sharding="
        )


class Loader(Front):
    """Iterable of batches on the device; made by `penstock.jax.loader`.

    Everything but the batches is that of the loader of NumPy batches behind it: passes, length, state and plan. The
    state counts what the consumer has received, `stats()` what was taken to be prefetched.
    """

    def __init__(self, host: HostLoader, convert: Convert, prefetch: int) -> None:
        self._host = self._behind = host
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
        before = self._host._progress, self._host._delivered
        try:
            return self._next()
        except BaseException as error:  # Ctrl-C may have taken a batch along: nobody shall go on behind the gap
            self._batches.stop()
            self._ready.clear()
            if not isinstance(error, StopIteration):
                self._go_back(*before)
            raise

    def _go_back(self, progress: tuple[Any, int] | None, delivered: bool) -> None:
        """Put the loader where it was before a batch that was taken and not handed out."""
        host = self._host
        with host._lock:
            if host._is_active(self._batches) and host._progress is not None:
                host._progress = progress or (host._progress[0], 0)  # the first batch of the pass
                host._delivered = delivered

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
        """Take a batch and start its copies; where that fails, it was not delivered."""
        return cast("_Ready", self._batches.take_as(self._hand_over))

    def _hand_over(self, built: Built) -> _Ready:
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
