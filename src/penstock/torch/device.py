"""Copying batches to a device: through a ring of pinned memory, on a separate stream, followed by the user's transform.

A mover is driven by the threads of `engine.prefetch`; it starts copies and does not wait for them. Knows nothing of
datasets or orders. The consumer gets newly allocated device memory; only pinned memory is reused, once the copy that
reads it has ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from penstock.engine.randomness import transform_wants
from penstock.errors import PlanError, TransformError

if TYPE_CHECKING:
    from penstock.engine.delivery import Origin

    Tensors = dict[str, Any]

_ALIGN = 256
_SMALL_BYTES = 64 << 10
"""Columns up to this size are copied together: a copy costs some microseconds, and a table has many columns. Larger
ones get device memory of their own, so that keeping the labels of a batch does not keep its images."""
_DEVICE_KIND = 1
"""Second word of the random counter: 0 is the transform on the CPU, so the two never draw the same numbers."""


def check_device(device: Any, *, pin_memory: bool | None, prefetch: int) -> torch.device:
    """Return the device with its index; PlanError if it does not exist here."""
    try:
        where = torch.device("cpu" if device is None else device)
    except (RuntimeError, TypeError, ValueError) as error:
        raise PlanError(
            f"device={device!r} is not a device of this PyTorch ({torch.__version__}): {str(error).splitlines()[0]}; "
            "give None, 'cpu', 'cuda' or 'cuda:1'"
        ) from error
    if isinstance(prefetch, bool) or not isinstance(prefetch, int) or prefetch < 1:
        raise PlanError(f"prefetch must be a whole number, at least 1; got {prefetch!r}")
    if (where.type == "cuda" or (where.type == "cpu" and pin_memory)) and not torch.cuda.is_available():
        wanted = f"device={device!r}" if where.type == "cuda" else "pin_memory=True"
        built = "was built without CUDA" if torch.version.cuda is None else "sees no CUDA device"
        raise PlanError(
            f"{wanted} needs a CUDA GPU, and this PyTorch ({torch.__version__}) {built}; leave it out for tensors in "
            "memory, or install a PyTorch for your driver"
        )
    if where.type == "cuda":
        index = torch.cuda.current_device() if where.index is None else where.index
        if index >= torch.cuda.device_count():
            raise PlanError(
                f"device={device!r} does not exist: this process sees {torch.cuda.device_count()} CUDA devices"
            )
        return torch.device("cuda", index)
    if where.type not in ("cpu", "meta"):
        try:  # now rather than with the first batch
            torch.empty(0, device=where)
        except (AssertionError, NotImplementedError, RuntimeError) as error:
            raise PlanError(
                f"device={device!r} is not available: {str(error).splitlines()[0]}; leave it out for tensors in memory"
            ) from error
    return where


class DeviceTransform:
    """Calls the user's `device_transform`, with the random generators that it takes."""

    def __init__(self, function: Callable[..., Mapping[str, Any]]) -> None:
        if not callable(function):
            raise PlanError(f"device_transform must be a function of the batch; got {function!r}")
        self._function = function
        self._wants = transform_wants(function)
        self._generators: dict[torch.device, torch.Generator] = {}

    def __call__(self, batch: Tensors, origin: Origin, device: torch.device) -> Tensors:
        """Return the transformed batch; TransformError if the function fails or does not return a dict."""
        extra: dict[str, Any] = {}
        if "positions" in self._wants:
            extra["positions"] = torch.from_numpy(np.ascontiguousarray(origin.positions())).to(device)
        if self._wants & {"rng", "generator"}:
            rng = batch_rng(origin.seed, origin.epoch, origin.first_position())
            if "generator" in self._wants:
                extra["generator"] = self._generator(device).manual_seed(int(rng.integers(1 << 63)))
            if "rng" in self._wants:
                extra["rng"] = rng
        try:
            result = self._function(batch, **extra)
        except Exception as error:
            raise TransformError(f"device_transform raised {type(error).__name__}: {error}") from error
        if not isinstance(result, Mapping):
            raise TransformError(f"device_transform must return a dict of columns; got {type(result).__name__}")
        return dict(result)

    def _generator(self, device: torch.device) -> Any:
        """Return the generator of a device, to be seeded for each batch: a kernel reads its seed at launch."""
        where = device if device.type in ("cuda", "xpu", "mps") else torch.device("cpu")
        if where not in self._generators:
            self._generators[where] = torch.Generator(device=where)
        return self._generators[where]


def batch_rng(seed: int, epoch: int, first: int) -> np.random.Generator:
    """Return the generator of a batch on the device: keyed by seed, epoch and the position of its first row."""
    counter = np.array((0, first, _DEVICE_KIND, 2), np.uint64)
    return np.random.Generator(np.random.Philox(key=np.array((seed, epoch), np.uint64), counter=counter))


# -- movers -----------------------------------------------------------------------------------------------------------


def mover_for(device: torch.device, transform: DeviceTransform | None, *, pin: bool, depth: int) -> Mover:
    """Return the mover of a device, for `depth` batches that wait there."""
    if device.type == "cuda":
        return CudaMover(device, transform, num_slots=depth + 1 if pin else 0)
    return Mover(device, transform)


class Mover:
    """Copies with `.to(device)`: for devices whose streams are not managed here."""

    def __init__(self, device: torch.device, transform: DeviceTransform | None) -> None:
        self._device = device
        self.transform = transform
        """Called with every batch on the device; None: nothing is."""

    def begin(self) -> None:
        """Prepare for a pass; called by the consumer."""

    def copy(self, batch: Tensors) -> Tensors:
        """Return the batch on the device; a CUDA copy is only started."""
        return cast("Tensors", map_tensors(batch, lambda tensor: tensor.to(self._device)))

    def send(self, moved: Tensors, origin: Origin) -> Any:
        """Transform a batch on the device and return it for `receive`."""
        return moved if self.transform is None else self.transform(moved, origin, self._device)

    def settle(self, sent: Any) -> None:
        """Wait until a batch is on the device, so that the consumer need not; called by a thread that is idle."""

    def receive(self, sent: Any) -> Tensors:
        """Return the batch for the consumer, who calls this."""
        return cast("Tensors", sent)


class _PinnedSlot:
    """One buffer of the ring, and the event after which it may be overwritten."""

    def __init__(self) -> None:
        self.memory: Any = None
        self.copied: Any = None

    def claim(self, num_bytes: int) -> Any:
        """Return pinned memory of at least so many bytes, once the copy that used it last has ended."""
        if self.copied is not None:
            self.copied.synchronize()
        if self.memory is None or self.memory.numel() < num_bytes:
            self.memory = None  # first, so that the old and the new one are never allocated together
            self.memory = torch.empty(num_bytes + num_bytes // 8, dtype=torch.uint8, pin_memory=True)
        return self.memory


class _OnDevice:
    """A batch whose copies and transform are started."""

    __slots__ = ("batch", "done", "ready", "stream")

    def __init__(self, batch: Tensors, ready: Any, stream: Any) -> None:
        self.batch = batch
        self.ready = ready
        """Event after which it is complete."""
        self.stream = stream
        """The consumer's stream, for which its memory is recorded."""
        self.done = False
        """Whether the event is known to have occurred."""


class CudaMover(Mover):
    """Copies through a ring of pinned buffers on a separate stream; the consumer's stream waits for an event.

    If a batch was complete before the consumer asks for it, `receive` calls nothing that releases the GIL: the consumer
    would have to compete for it with every thread that decodes.
    """

    def __init__(self, device: torch.device, transform: DeviceTransform | None, *, num_slots: int) -> None:
        super().__init__(device, transform)
        # High-priority stream: copies for the next step are short and must not queue behind training kernels.
        self._stream = torch.cuda.Stream(device, priority=-1)
        self._slots = deque(_PinnedSlot() for _ in range(num_slots))
        self._consumer = torch.cuda.current_stream(device)

    def begin(self) -> None:
        """Note the stream of the consumer."""
        self._consumer = torch.cuda.current_stream(self._device)

    def copy(self, batch: Tensors) -> Tensors:
        """Start the copies of a batch; returns before they are done."""
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            return self._staged(batch) if self._slots else super().copy(batch)

    def _staged(self, batch: Tensors) -> Tensors:
        slot = self._slots[0]
        self._slots.rotate(-1)
        leaves: list[Any] = []
        map_tensors(batch, leaves.append)
        host = [tensor for tensor in leaves if tensor.device.type == "cpu"]
        layout = BufferLayout([tensor.numel() * tensor.element_size() for tensor in host])
        copied = copies(host, layout, slot.claim(max(1, layout.num_bytes)), self._device)
        moved = {id(tensor): one for tensor, one in zip(host, copied, strict=True)}
        slot.copied = torch.cuda.Event(blocking=True)
        slot.copied.record(self._stream)
        return cast("Tensors", map_tensors(batch, lambda tensor: moved.get(id(tensor), tensor)))

    def send(self, moved: Tensors, origin: Origin) -> _OnDevice:
        """Start the transform of a batch whose copies are started; returns before it is done."""
        consumer = self._consumer
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            moved = super().send(moved, origin)
            ready = torch.cuda.Event(blocking=True)
            ready.record(self._stream)
        _record(moved, consumer)
        return _OnDevice(moved, ready, consumer)

    def settle(self, sent: _OnDevice) -> None:
        """Wait until a batch is complete."""
        sent.ready.synchronize()
        sent.done = True

    def receive(self, sent: _OnDevice) -> Tensors:
        """Return the batch: what the consumer's current stream does from here on happens after the copies."""
        current = torch.cuda.current_stream(self._device)
        if not sent.done:
            current.wait_event(sent.ready)
        if current != sent.stream:
            self._consumer = current
            _record(sent.batch, current)
        return sent.batch


def _record(batch: Tensors, stream: Any) -> None:
    """Keep memory allocated on our stream from being reused while another stream computes with it."""
    map_tensors(batch, lambda tensor: tensor.record_stream(stream) if tensor.is_cuda else None)


def copies(host: list[Any], layout: BufferLayout, memory: Any, device: torch.device) -> list[Any]:
    """Return tensors on a device, copied by way of `memory`; if that is pinned the copies are only started."""
    staged = [_cut(memory, offset, tensor) for offset, tensor in zip(layout.offsets, host, strict=True)]
    for there, tensor in zip(staged, host, strict=True):
        there.copy_(tensor)
    together = torch.empty(layout.small_bytes, dtype=torch.uint8, device=device)
    together.copy_(memory[: layout.small_bytes], non_blocking=True)
    return [
        _cut(together, offset, tensor)
        if offset < layout.small_bytes
        else torch.empty(tensor.shape, dtype=tensor.dtype, device=device).copy_(there, non_blocking=True)
        for offset, tensor, there in zip(layout.offsets, host, staged, strict=True)
    ]


def _cut(memory: Any, offset: int, like: Any) -> Any:
    """Return a tensor of the dtype and shape of `like` inside a buffer of bytes."""
    size = like.numel() * like.element_size()
    return memory[offset : offset + size].view(like.dtype).view(like.shape)


class BufferLayout:
    """Where columns lie in one buffer: the small ones first and together, then the others.

    Sizes 100, 70,000 and 8:   offsets 0, 512 and 256; the small ones take 512 bytes, all of them 70,656.
    """

    def __init__(self, sizes: list[int]) -> None:
        self.offsets = [0] * len(sizes)
        self.small_bytes = self._place(sizes, 0, small=True)
        """Bytes of the small ones."""
        self.num_bytes = self._place(sizes, self.small_bytes, small=False)
        """Bytes of all."""

    def _place(self, sizes: list[int], end: int, *, small: bool) -> int:
        for number, size in enumerate(sizes):
            if (size <= _SMALL_BYTES) == small:
                self.offsets[number] = end
                end += max(_ALIGN, -(-size // _ALIGN) * _ALIGN)
        return end


def map_tensors(value: Any, function: Callable[[Any], Any], kind: type = torch.Tensor) -> Any:
    """Return a nested value with every tensor (or instance of `kind`) in it replaced by what a function returns."""
    if isinstance(value, kind):
        return function(value)
    if isinstance(value, dict):
        return {key: map_tensors(one, function, kind) for key, one in value.items()}
    if isinstance(value, list | tuple) and any(isinstance(one, (kind, dict, list, tuple)) for one in value):
        inside = (map_tensors(one, function, kind) for one in value)
        return tuple(inside) if isinstance(value, tuple) else list(inside)
    return value
