"""`penstock.torch.loader`: batches of a dataset as tensors, on the CPU or ahead of need on a device.

Makes the native loader, converts what it gives (`tensors`) and, for a device, lets a `Feed` copy ahead (`device`). The
order, the state and the threads are the native loader's; the state counts what the consumer has received, never what
is on its way to the device.
"""

from __future__ import annotations

import numbers
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, Unpack

import torch

from penstock.api import dataset_and_options, load
from penstock.engine.front import Front
from penstock.engine.passes import ENDED
from penstock.engine.run import now
from penstock.errors import LoaderClosed, PlanError
from penstock.options import FrameworkKeywords, show_keywords
from penstock.torch.device import DeviceTransform, check_device, mover_for, pinned
from penstock.torch.feed import Feed
from penstock.torch.gpu import Wrapped, on_gpu
from penstock.torch.process_group import with_group
from penstock.torch.tensors import converter
from penstock.torch.turns import resumed_state, start_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from penstock.api import Loader as NativeLoader
    from penstock.engine.build import Built

    Tensors = dict[str, Any]


_OWNER = "penstock.torch.loader"
_FAILED = "an earlier batch of this iterator has failed; iterate the loader anew"


@show_keywords(FrameworkKeywords)
def loader(  # noqa: PLR0913 -- a public factory takes flat keywords
    dataset_or_url: Any,
    *,
    batch_size: int,
    device: Any = None,
    pin_memory: bool | None = None,
    device_transform: Callable[..., Mapping[str, Any]] | None = None,
    group: Any = None,
    nulls: str | Iterable[str] = "mask",
    prefetch: int = 2,
    decode: str = "cpu",
    **options: Unpack[FrameworkKeywords],
) -> Loader:
    """Return a loader of batches as dicts of tensors, in the one global order, which can be saved at any batch.

    On the CPU tensors share the memory of the decoded batch. A tensor is yours: it stays valid after the next batch.

    Args:
        dataset_or_url: A `penstock.Dataset`, or what `penstock.open` takes.
        batch_size: Rows of a batch on each rank.
        device: None or "cpu": tensors in memory. A CUDA device: copied there ahead of need, from pinned memory and on
            a stream of its own. Any other device: copied there ahead of need.
        pin_memory: Without a device: put tensors into pinned memory, for copies of your own. With a CUDA device the
            copies go through pinned memory unless this is False.
        device_transform: Function of the batch of tensors, run where the batch arrives, on the stream that copies. It
            may also take `generator` (a torch.Generator of the device), `rng` (NumPy's) and `positions`; the first two
            depend only on seed, epoch and the batch's place, so that they repeat after resuming.
        group: A process group, or a device mesh of one dimension, whose ranks share the data; for tensor or pipeline
            parallelism, where the global rank is the wrong one. Default: see `rank` of `Dataset.loader`.
        nulls: "mask", "error", or names of columns; see `as_tensors`.
        prefetch: Batches that may wait on the device; without one it does nothing.
        decode: "gpu": JPEG columns go to the CUDA device as bytes and are decoded there (needs torchvision); where that
            cannot be done, or another option needs the pixels before, a warning says why, and the CPU decodes. See
            docs/gpu.md for when it pays.
        **options: The keys of `penstock.options.FrameworkKeywords`.

    Raises:
        PlanError: Options that contradict each other, or a device that is not there.
        ColumnNotFound: A name in `columns` or `nulls` that is no column.
    """
    dataset, given = dataset_and_options(dataset_or_url, batch_size, options, function=loader, owner=_OWNER)
    where = check_device(device, pin_memory=pin_memory, prefetch=prefetch)
    after = None if device_transform is None else DeviceTransform(device_transform)
    convert = converter(nulls, dataset.columns if given.transform is None else None, owner=_OWNER)
    dataset, after, encoded = on_gpu(decode, dataset, where, after, given)
    if encoded:  # decoding is off the CPU: more threads would only compete with the one that feeds the GPU
        given = replace(given, workers=given.workers or 2)
        convert = Wrapped(convert, encoded)
    native = load(dataset, with_group(given, group))
    if where.type == "cpu":
        return Loader(native, convert, after, pin=bool(pin_memory))
    return DeviceLoader(native, convert, mover_for(where, after, pin=pin_memory is not False, depth=prefetch), prefetch)


class Loader(Front):
    """Iterable of batches (dict of column -> tensor); made by `penstock.torch.loader`.

    Iterating, passes and states are as in `penstock.Loader`, which is `native`.
    """

    def __init__(
        self,
        native: NativeLoader,
        convert: Callable[[Mapping[str, Any]], Tensors],
        after: DeviceTransform | None = None,
        *,
        pin: bool = False,
    ) -> None:
        self.native = self._behind = native
        """The loader that does the work."""
        self._convert = convert
        self._after = after
        self._pin = pin
        self._resumed = False
        """Whether a state was loaded and nothing has been delivered since."""
        self._delivered = False
        """Whether anything of the current pass has been delivered by this loader."""
        self._running: weakref.ref[Any] | None = None
        self._whole = None if native._options.epochs is None else len(native)

    # -- iteration ------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Tensors]:
        batches = _Batches(self, iter(self.native))
        self._delivered = False
        self._running = weakref.ref(batches)
        return batches

    def __len__(self) -> int:
        """Return the batches that iterating will give; while an iterator is alive, those of its whole pass."""
        running = None if self._running is None else self._running()
        alive = running is not None and not running.ended
        # After `break` the next pass comes, whatever was left of this one.
        return self._whole if self._whole is not None and (alive or self._delivered) else self._left()

    def _left(self) -> int:
        return len(self.native)

    def _finish(self, built: Built) -> Tensors:
        """Return a batch as the user gets it."""
        batch = self._convert(built.batch)
        if self._after is not None:
            batch = self._after(batch, built, torch.device("cpu"))
        if self._pin:
            batch = pinned(batch)
        self._resumed, self._delivered = False, True
        return batch

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of pass `epoch` (of that epoch, with the default epochs=1), as a sampler would.

        Never needed: every pass has an order of its own. Inside the pass that a loaded state belongs to it does
        nothing, so that a resumed run may call it before every epoch; going back from there is refused.
        """
        if not isinstance(epoch, numbers.Integral) or isinstance(epoch, bool) or epoch < 0:
            raise ValueError(f"set_epoch takes a whole number from 0 on; got {epoch!r}")
        state, length = self.state_dict(), self.native._options.epochs or 1
        current = state["epoch"] // length
        if self._resumed and epoch <= current:
            if epoch == current:
                return
            raise PlanError(
                f"a state of pass {current} was loaded, and set_epoch({epoch}) would lose it; count the passes of a "
                f"resumed run from {current} on: set_epoch({current}), of the DataLoader that Accelerate has prepared "
                "where there is one (it counts from 0 by itself)"
            )
        self._go_to(start_of(self.native, state, int(epoch) * length))

    def _go_to(self, state: Mapping[str, Any]) -> None:
        self.native.load_state_dict(state)
        self._resumed = self._delivered = False

    # -- state ----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the place of this run as small JSON: what the consumer has received; the same on every rank."""
        return self.native.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of any world, batch size, workers or framework; ends a running iterator.

        Takes what a `StatefulDataLoader` over `Batches` gave as well.
        """
        self._go_to(resumed_state(self.native, state))
        self._resumed = True

    def next_state(self) -> dict[str, Any]:
        """Return the state from which the next iteration will begin: after `break` that is the next pass."""
        state, length = self.state_dict(), self.native._options.epochs or 1
        fresh = start_of(self.native, state, state["epoch"])  # without the rank that a state may name
        if not self._delivered or (state["epoch"] % length == 0 and state | fresh == state):
            return state
        return start_of(self.native, state, (state["epoch"] // length + 1) * length)

    # -- what it says about itself --------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"penstock.torch.{self.native!r}"


class _Batches:
    """The iterator of one pass on the CPU; ends the native one when it is dropped."""

    def __init__(self, loader: Loader, native: Any) -> None:
        self._loader = loader
        self._native = native
        self.ended = False

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> Tensors:
        try:
            batch: Tensors = self._native.take_as(self._loader._finish)
        except BaseException:
            self.ended = True
            raise
        return batch


class DeviceLoader(Loader):
    """A loader whose batches are copied to a device ahead of need.

    The native loader runs ahead of the consumer by what is on its way; `_place` is what the consumer has received.
    """

    def __init__(self, native: NativeLoader, convert: Any, mover: Any, prefetch: int) -> None:
        super().__init__(native, convert)
        self._mover = mover
        self._prefetch = prefetch
        self._place: tuple[dict[str, Any], int | None] = self._now()

    def _now(self) -> tuple[dict[str, Any], int | None]:
        """Return state and length of the native loader: costs microseconds, and is taken along with every batch."""
        return self.native.state_dict(), None if self._whole is None else len(self.native)

    def __iter__(self) -> Iterator[Tensors]:
        self._stop()
        self.native.load_state_dict(self.next_state())
        self._place = self._now()
        self._delivered = False
        self._mover.begin()
        source: Any = iter(self.native)
        source.ahead = True
        if self._mover.after is not None:  # it may wait for the device: the next batch is copied meanwhile
            source = Feed(source, self._copy, 1)
        send = self._send if self._mover.after is None else self._transform
        feed = Feed(source, send, self._prefetch, receive=self._receive, settle=self._settle)
        batches = _Fed(self, feed)
        self._running = weakref.ref(batches)
        return batches

    def _send(self, built: Any) -> Any:
        """Start a batch on its way; called by a thread of the feed, as the next three are."""
        return self._transform(self._copy(built))

    def _copy(self, built: Built) -> Any:
        place, began = self._now(), now()
        copied = self._mover.copy(self._convert(built.batch))
        self.native.note_hand_over(now() - began, ahead=True)
        return copied, built, place

    def _transform(self, copied: Any) -> Any:
        began = now()
        moved, built, place = copied
        sent = self._mover.send(moved, built)
        self.native.note_hand_over(now() - began, ahead=True)
        return sent, place, built.num_rows

    def _settle(self, sent: Any) -> None:
        self._mover.settle(sent[0])

    def _receive(self, sent: Any) -> tuple[Tensors, int]:
        """Note that a batch is received; called by the consumer."""
        moved, place, num_rows = sent
        batch: Tensors = self._mover.receive(moved)
        self._place, self._resumed, self._delivered = place, False, True
        return batch, num_rows

    def _end(self) -> None:
        """Note the end of the pass."""
        self._place, self._delivered = self._now(), False

    def _left(self) -> int:
        if self._place[1] is None:
            return len(self.native)
        return self._place[1]

    def _stop(self) -> None:
        running, self._running = None if self._running is None else self._running(), None
        if running is not None:
            running.stop()

    def _go_to(self, state: Mapping[str, Any]) -> None:
        before, self._running = self._running, None
        try:
            self.native.load_state_dict(state)
        except Exception:
            self._running = before
            raise
        running = None if before is None else before()
        if running is not None:
            running.stop()
        self._place = self._now()
        self._resumed = self._delivered = False

    @property
    def pass_number(self) -> int:
        """The pass, counted from 0, of the batch that the consumer receives next."""
        return int(self._place[0]["epoch"]) // (self.native._options.epochs or 1)

    def state_dict(self) -> dict[str, Any]:
        """Return the place of this run: what the consumer has received, not what is on the device already."""
        return self._place[0]

    def close(self) -> None:
        """Stop the feed, threads and processes; the loader cannot be used again."""
        self._stop()
        super().close()


class _Fed:
    """The iterator of one pass through a feed, whose thread lives no longer than it does."""

    def __init__(self, loader: DeviceLoader, feed: Feed) -> None:
        self._loader = loader
        self._feed = feed
        self.ended = False
        self._over = self._failed = False
        """Whether it came to its end, or to an error."""
        self._finalizer = weakref.finalize(self, feed.stop)

    def __iter__(self) -> _Fed:
        return self

    def __next__(self) -> Tensors:
        began = now()
        if self.ended:
            self._refuse()
        watch = self._loader.native.watch
        try:
            if watch is not None:
                watch.user_waits()
            batch: Tensors
            batch, num_rows = self._feed.take()
        except BaseException as error:
            self._stopped_by(error)
            raise
        finally:
            if watch is not None:
                watch.user_works()
        self._loader.native.note_received(num_rows, now() - began)
        return batch

    def _stopped_by(self, error: BaseException) -> None:
        if self.ended and isinstance(error, LoaderClosed):  # another thread ended it while this one waited
            if self._over:
                raise StopIteration from None
            return
        if isinstance(error, StopIteration):
            self._over = True
            self._loader._end()
        else:
            self._failed = True
        self.stop()

    def _refuse(self) -> NoReturn:
        """Say why nothing comes any more."""
        if self._over:
            raise StopIteration
        self._loader.native._check_open()
        raise LoaderClosed(_FAILED if self._failed else ENDED) from None

    def stop(self) -> None:
        """End the feed; its thread is gone on return."""
        self.ended = True
        self._finalizer()
