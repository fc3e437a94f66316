"""`penstock.torch.loader`: batches as dicts of tensors, in memory or copied ahead of need to a device.

Maps the stream of a native loader or mix: batches become tensors (`tensors`) and, for a device, threads copy them
there before the consumer asks (`device`). The order, passes and states are those of the native loader; what waits on
the device does not count as received.
"""

from __future__ import annotations

import numbers
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

import torch

from penstock.api import load
from penstock.engine.base_loader import BaseLoader, LoaderProxy
from penstock.engine.prefetch import Prefetched
from penstock.errors import PlanError
from penstock.factories import dataset_and_options, loader_for
from penstock.keywords import FrameworkKeywords, show_keywords
from penstock.torch.device import DeviceTransform, Mover, check_device, map_tensors, mover_for
from penstock.torch.gpu import KeepEncoded, decode_on_gpu
from penstock.torch.process_group import with_group
from penstock.torch.tensors import converter
from penstock.torch.worker_states import place_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from penstock.engine.delivery import Delivery, Stream
    from penstock.engine.stages import Batch

    Tensors = dict[str, Any]
    Convert = Callable[[Mapping[str, Any]], Tensors]


_OWNER = "penstock.torch.loader"


@show_keywords(FrameworkKeywords)
def loader(  # noqa: PLR0913 -- a public factory takes flat keywords
    dataset_or_url: Any,
    *,
    batch_size: int | None = None,
    device: Any = None,
    pin_memory: bool | None = None,
    device_transform: Callable[..., Mapping[str, Any]] | None = None,
    group: Any = None,
    nulls: str | Iterable[str] = "mask",
    prefetch: int = 2,
    decode: str = "cpu",
    **options: Unpack[FrameworkKeywords],
) -> Loader:
    """Return a loader of batches as dicts of tensors, in one global order that can be saved and resumed at any batch.

    Tensors on the CPU share the memory of the decoded batch, and stay valid after the next batch.

    Args:
        dataset_or_url: A `penstock.Dataset`, or what `penstock.open` takes. Or a `penstock.Loader` or `penstock.Mix`
            that was made already; then only `device`, `pin_memory`, `device_transform`, `nulls` and `prefetch` may be
            given besides, and closing the returned loader closes it.
        batch_size: Rows of a batch on each rank; required for a dataset or URL.
        device: None or "cpu": tensors in memory. A CUDA device: copied there ahead of need, from pinned memory and on
            a separate stream. Any other device: copied there ahead of need.
        pin_memory: Without a device: put tensors into pinned memory, for copies of your own. With a CUDA device the
            copies go through pinned memory unless this is False.
        device_transform: Function of the batch of tensors, called once it is on the device, on the stream that copies.
            It may also take `generator` (a torch.Generator of the device), `rng` (NumPy's) and `positions`; the first
            two depend only on seed, epoch and the position of the batch, so that they repeat after resuming.
        group: A process group, or a device mesh of one dimension, whose ranks share the data; for tensor or pipeline
            parallelism, where the global rank is the wrong one. Default: see `rank` of `Dataset.loader`.
        nulls: "mask", "error", or names of columns; see `as_tensors`.
        prefetch: Batches that may wait on the device; has no effect without one.
        decode: "gpu": JPEG columns go to the CUDA device as bytes and are decoded there (needs torchvision). If that is
            not possible, or another option needs the pixels earlier, a warning says why and the CPU decodes. See
            docs/gpu.md for when it pays.
        **options: The keys of `penstock.keywords.FrameworkKeywords`.

    Raises:
        PlanError: Options that contradict each other, or a device that does not exist.
        ColumnNotFound: A name in `columns` or `nulls` that is not a column.
        TypeError: A keyword that does not exist, or one of a dataset given with a loader or mix.
    """
    where = check_device(device, pin_memory=pin_memory, prefetch=prefetch)
    transform: Any = None if device_transform is None else DeviceTransform(device_transform)
    native: BaseLoader
    encoded: list[str] = []
    if isinstance(dataset_or_url, BaseLoader):
        beside = {"group": group, "decode": None if decode == "cpu" else decode}
        given: Any = {**options, **{name: value for name, value in beside.items() if value is not None}}
        native = loader_for(dataset_or_url, batch_size, given, function=loader, owner=_OWNER)
    else:
        dataset, checked = dataset_and_options(dataset_or_url, batch_size, options, function=loader, owner=_OWNER)
        dataset, transform, encoded = decode_on_gpu(decode, dataset, where, transform, checked)
        if encoded:  # more threads would have nothing to decode, and would slow down the one that feeds the device
            checked = replace(checked, workers=checked.workers or 2)
        native = load(dataset, with_group(checked, group))
    convert = converter(nulls, native.columns, owner=_OWNER)
    if encoded:
        convert = KeepEncoded(convert, encoded)
    if where.type == "cpu":
        return Loader(native, ToMemory(convert, transform, pin=bool(pin_memory)))
    mover = mover_for(where, transform, pin=pin_memory is not False, depth=prefetch)
    return Loader(native, ToDevice(convert, mover, prefetch))


class Loader(LoaderProxy):
    """Iterable of batches (dict of column -> tensor); made by `penstock.torch.loader`.

    Iterating, passes, length and states are those of the native loader or mix, which is `native`.
    """

    def __init__(self, native: BaseLoader, to_tensors: Callable[[Stream[Batch]], Stream[Tensors]]) -> None:
        self.native = native
        self._to_tensors = to_tensors
        self._resumed_at: Any = None
        """The place of the last state loaded; the native loader is still there until a batch is received."""
        self._resumed: tuple[weakref.ref[Stream[Tensors]], int] | None = None
        """The stream that began at a loaded state, and its pass."""

    def __iter__(self) -> Iterator[Tensors]:
        stream = self._to_tensors(self.native.stream())
        at_state = self.native.place() is self._resumed_at
        self._resumed = (weakref.ref(stream), self.native.pass_number) if at_state else None
        return iter(stream)

    def __len__(self) -> int:
        """Return the batches of this iteration, or of the next one; constant while iterating.

        After a state these are the batches left. While a resumed pass is iterated they are those of the whole pass:
        Lightning compares `len` with a count that it has resumed as well.
        """
        if self._resumed is not None:
            running, pass_number = self._resumed
            stream = running()
            whole = self.native.count(self.native.place_at(pass_number))
            if stream is not None and not stream.is_over and whole is not None:
                return whole
        return super().__len__()

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of pass `epoch` (of that epoch, with the default epochs=1), as a sampler would.

        Never needed: every pass has its own order. Does nothing in the pass that a loaded state belongs to, so
        that a resumed run may call it before every epoch; going back from there raises PlanError.
        """
        if not isinstance(epoch, numbers.Integral) or isinstance(epoch, bool) or epoch < 0:
            raise ValueError(f"set_epoch takes a whole number from 0 on; got {epoch!r}")
        current = self.pass_number
        if self.native.place() is self._resumed_at and epoch <= current:
            if epoch == current:
                return
            raise PlanError(
                f"a state of pass {current} was loaded, and set_epoch({epoch}) would discard it; count the passes of a "
                f"resumed run from {current} on: set_epoch({current}), on the DataLoader that Accelerate has prepared "
                "if there is one (it counts from 0 by itself)"
            )
        self.native.go_to(self.native.place_at(int(epoch)))
        self._resumed = None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of any world, batch size, workers or framework; ends a running iterator.

        Also takes the state of a `StatefulDataLoader` over `Batches`.
        """
        place = place_of(self.native, state)
        self.native.go_to(place)
        self._resumed_at, self._resumed = place, None

    def __repr__(self) -> str:
        return f"penstock.torch.{self.native!r}"


class ToMemory:
    """Turns the batches of a stream into tensors in memory, in the consumer's thread."""

    def __init__(self, convert: Convert, transform: Any = None, *, pin: bool = False) -> None:
        self._convert, self._transform, self._pin = convert, transform, pin

    def __call__(self, stream: Stream[Batch]) -> Stream[Tensors]:
        """Return the stream of tensors."""
        return stream.map(self._tensors)

    def _tensors(self, delivery: Delivery[Batch]) -> Tensors:
        batch = self._convert(delivery.batch)
        if self._transform is not None:
            batch = self._transform(batch, delivery.origin, torch.device("cpu"))
        return map_tensors(batch, torch.Tensor.pin_memory) if self._pin else batch


class ToDevice:
    """Copies the batches of a stream to a device, by threads that run ahead of the consumer."""

    def __init__(self, convert: Convert, mover: Mover, prefetch: int) -> None:
        self._convert, self._mover, self._prefetch = convert, mover, prefetch

    def __call__(self, stream: Stream[Batch]) -> Stream[Tensors]:
        """Return the stream of tensors on the device."""
        mover = self._mover
        mover.begin()
        sent: Prefetched[Any, Any]
        if mover.transform is None:
            sent = Prefetched(stream, lambda one: mover.send(self._copied(one), one.origin), self._prefetch)
        else:  # a transform may wait for the device: another thread copies the next batch meanwhile
            copied = stream.map(self._copied, ahead=1)
            sent = Prefetched(copied, lambda one: mover.send(one.batch, one.origin), self._prefetch)
        return sent.when_idle(mover.settle).when_taken(mover.receive)

    def _copied(self, delivery: Delivery[Batch]) -> Tensors:
        return self._mover.copy(self._convert(delivery.batch))
