"""How a batch gets to a device: a ring of pinned memory, a stream of its own, and the user's transform there.

A mover is driven by the threads of a `feed`; it starts copies and never waits for them. Nothing here knows of datasets
or orders. What the consumer gets is fresh memory of the device: only pinned memory is used again, once the copy that
reads it has ended.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from penstock.errors import PlanError, TransformError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.engine.build import Built

    Tensors = dict[str, Any]

_ALIGN = 256
_SMALL_BYTES = 64 << 10
"""Columns up to this size are copied together: a copy costs some microseconds, and a table has many columns. Larger
ones have device memory of their own, so that keeping the labels of a batch does not keep its images."""
_DEVICE_KIND = 1
"""Second word of the counter of random numbers: 0 is the transform on the CPU, so the two never draw the same."""


def check_device(device: Any, *, pin_memory: bool | None, prefetch: int) -> torch.device:
    """Return the device asked for, with its number; PlanError where it is not there."""
    where = torch.device("cpu") if device is None else _device_of(device)
    if isinstance(prefetch, bool) or not isinstance(prefetch, int) or prefetch < 1:
        raise PlanError(f"prefetch must be a whole number, at least 1; got {prefetch!r}")
    if where.type == "cuda" or (where.type == "cpu" and pin_memory):
        _check_cuda(f"device={device!r}" if where.type == "cuda" else "pin_memory=True")
    if where.type != "cuda":
        _check_there(where, device)
        return where
    number = torch.cuda.current_device() if where.index is None else where.index
    if number >= torch.cuda.device_count():
        raise PlanError(f"device={device!r} is not there: this process sees {torch.cuda.device_count()} CUDA devices")
    return torch.device("cuda", number)


def _device_of(device: Any) -> torch.device:
    try:
        return torch.device(device)
    except (RuntimeError, TypeError, ValueError) as error:
        raise PlanError(
            f"device={device!r} is no device of this PyTorch ({torch.__version__}): {str(error).splitlines()[0]}; "
            "give None, 'cpu', 'cuda' or 'cuda:1'"
        ) from error


def _check_there(where: torch.device, device: Any) -> None:
    """Refuse a device that has no memory here, now and not with the first batch."""
    if where.type in ("cpu", "meta"):
        return
    try:
        torch.empty(0, device=where)
    except (AssertionError, NotImplementedError, RuntimeError) as error:
        raise PlanError(
            f"device={device!r} is not there: {str(error).splitlines()[0]}; leave it out for tensors in memory"
        ) from error


def _check_cuda(what: str) -> None:
    if not torch.cuda.is_available():
        built = "was built without CUDA" if torch.version.cuda is None else "sees no CUDA device"
        raise PlanError(
            f"{what} needs a CUDA GPU, and this PyTorch ({torch.__version__}) {built}; leave it out for tensors in "
            "memory, or install a PyTorch for your driver"
        )


class DeviceTransform:
    """A function of the user's on the batch of tensors, given the random generators it asks for."""

    def __init__(self, function: Callable[..., Mapping[str, Any]]) -> None:
        if not callable(function):
            raise PlanError(f"device_transform must be a function of the batch; got {function!r}")
        self._function = function
        self._wants = _wants(function)
        self._generators: dict[torch.device, torch.Generator] = {}

    def __call__(self, batch: Tensors, built: Built, device: torch.device) -> Tensors:
        """Return the transformed batch; TransformError where it fails or gives no dict."""
        extra = self._extra(built, device) if self._wants else {}
        try:
            result = self._function(batch, **extra)
        except Exception as error:
            raise TransformError(f"device_transform raised {type(error).__name__}: {error}") from error
        if not isinstance(result, Mapping):
            raise TransformError(f"device_transform must return a dict of columns; got {type(result).__name__}")
        return dict(result)

    def _extra(self, built: Built, device: torch.device) -> dict[str, Any]:
        plan, extra = built.work.plan, {}
        if "positions" in self._wants:
            positions = plan.positions(built.first, built.end)
            kept = positions if built.kept is None else positions[built.kept]
            extra["positions"] = torch.from_numpy(np.ascontiguousarray(kept)).to(device)
        if self._wants & {"rng", "generator"}:
            first = int(plan.positions(built.first, built.first + 1)[0]) if built.end > built.first else 0
            rng = batch_rng(plan.order.seed, plan.cursor.epoch, first)
            if "generator" in self._wants:
                extra["generator"] = self._generator(device).manual_seed(int(rng.integers(1 << 63)))
            if "rng" in self._wants:
                extra["rng"] = rng
        return extra

    def _generator(self, device: torch.device) -> Any:
        """Return the generator of a device, to be seeded for each batch: a kernel takes its seed at its launch."""
        where = device if device.type in ("cuda", "xpu", "mps") else torch.device("cpu")
        if where not in self._generators:
            self._generators[where] = torch.Generator(device=where)
        return self._generators[where]


def batch_rng(seed: int, epoch: int, first: int) -> np.random.Generator:
    """Return the generator of a batch on the device: keyed by seed, epoch and the position of its first row."""
    counter = np.array((0, first, _DEVICE_KIND, 2), np.uint64)
    return np.random.Generator(np.random.Philox(key=np.array((seed, epoch), np.uint64), counter=counter))


def _wants(function: Callable[..., Any]) -> frozenset[str]:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin without a signature takes just the batch
        return frozenset()
    return frozenset({"rng", "generator", "positions"} & parameters.keys())


# -- movers -----------------------------------------------------------------------------------------------------------


def mover_for(device: torch.device, after: DeviceTransform | None, *, pin: bool, depth: int) -> Any:
    """Return what takes batches to a device."""
    if device.type == "cuda":
        return CudaMover(device, after, num_slots=depth + 1 if pin else 0)
    return PlainMover(device, after)


class PlainMover:
    """Copies with `.to(device)`: for devices without streams of ours."""

    def __init__(self, device: torch.device, after: DeviceTransform | None) -> None:
        self._device = device
        self.after = after

    def begin(self) -> None:
        """Do nothing: the consumer has no stream."""

    def copy(self, batch: Tensors) -> Tensors:
        """Copy a batch to the device."""
        moved: Tensors = map_tensors(batch, lambda tensor: tensor.to(self._device))
        return moved

    def send(self, moved: Tensors, built: Built) -> Tensors:
        """Transform a batch on the device."""
        return moved if self.after is None else self.after(moved, built, self._device)

    def settle(self, sent: Tensors) -> None:
        """Do nothing: the copy is done."""

    def receive(self, sent: Tensors) -> Tensors:
        """Return the batch for the consumer."""
        return sent


class _Slot:
    """One buffer of the ring, and the event after which it may be written again."""

    def __init__(self) -> None:
        self.memory: Any = None
        self.copied: Any = None

    def claim(self, num_bytes: int) -> Any:
        """Return pinned memory of at least so many bytes, once the copy that used it last has ended."""
        if self.copied is not None:
            self.copied.synchronize()
        if self.memory is None or self.memory.numel() < num_bytes:
            self.memory = None  # first: two of them need not be there at once
            self.memory = torch.empty(num_bytes + num_bytes // 8, dtype=torch.uint8, pin_memory=True)
        return self.memory


class _Sent:
    """A batch on the device, or on its way there."""

    __slots__ = ("batch", "done", "ready", "stream")

    def __init__(self, batch: Tensors, ready: Any, stream: Any) -> None:
        self.batch = batch
        self.ready = ready
        """Event after which it is there."""
        self.stream = stream
        """The consumer's, which its memory is recorded for."""
        self.done = False
        """Whether the event has come to pass; False: nobody has looked."""


class CudaMover:
    """Copies through a ring of pinned buffers on a stream of its own; the consumer's stream waits for an event.

    A consumer that comes late finds all done for it: `receive` then calls nothing that lets go of the interpreter's
    lock, which it would have to win back from every thread that decodes.
    """

    def __init__(self, device: torch.device, after: DeviceTransform | None, *, num_slots: int) -> None:
        self._device = device
        self.after = after
        # Before the kernels of the training step: what it needs next is a little work, and must not stand in its queue.
        self._stream = torch.cuda.Stream(device, priority=-1)
        self._slots = deque(_Slot() for _ in range(num_slots))
        self._consumer = torch.cuda.current_stream(device)

    def begin(self) -> None:
        """Note the stream of the consumer, who calls this."""
        self._consumer = torch.cuda.current_stream(self._device)

    def copy(self, batch: Tensors) -> Tensors:
        """Start the copies of a batch; returns before they are done."""
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            return self._staged(batch) if self._slots else self._straight(batch)

    def send(self, moved: Tensors, built: Built) -> _Sent:
        """Start the transform of a batch whose copies are started; returns before it is done."""
        stream = self._consumer
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            if self.after is not None:
                moved = self.after(moved, built, self._device)
            ready = torch.cuda.Event(blocking=True)
            ready.record(self._stream)
        _record(moved, stream)
        return _Sent(moved, ready, stream)

    def settle(self, sent: _Sent) -> None:
        """Wait until a batch is there, so that its consumer need not; for a thread that has nothing else to do."""
        sent.ready.synchronize()
        sent.done = True

    def receive(self, sent: _Sent) -> Tensors:
        """Return the batch: work that the consumer's current stream gets from here on comes after the copies."""
        current = torch.cuda.current_stream(self._device)
        if not sent.done:
            current.wait_event(sent.ready)
        if current != sent.stream:
            self._consumer = current
            _record(sent.batch, current)
        return sent.batch

    def _straight(self, batch: Tensors) -> Tensors:
        moved: Tensors = map_tensors(batch, lambda tensor: tensor.to(self._device))
        return moved

    def _staged(self, batch: Tensors) -> Tensors:
        slot = self._slots[0]
        self._slots.rotate(-1)
        leaves: list[Any] = []
        map_tensors(batch, leaves.append)
        host = [tensor for tensor in leaves if tensor.device.type == "cpu"]
        layout = Layout([tensor.numel() * tensor.element_size() for tensor in host])
        memory = slot.claim(max(1, layout.num_bytes))
        there = copies(host, layout, memory, self._device)
        moved = {id(tensor): one for tensor, one in zip(host, there, strict=True)}
        slot.copied = torch.cuda.Event(blocking=True)
        slot.copied.record(self._stream)
        out: Tensors = map_tensors(batch, lambda tensor: moved.get(id(tensor), tensor))
        return out


def _record(batch: Tensors, stream: Any) -> None:
    """Keep memory that was taken on our stream from being given out again while another stream computes with it."""
    map_tensors(batch, lambda tensor: tensor.record_stream(stream) if tensor.is_cuda else None)


def copies(host: list[Any], layout: Layout, memory: Any, device: torch.device) -> list[Any]:
    """Return tensors on a device, copied by way of `memory`; where that is pinned the copies are only started."""
    staged = [cut(memory, offset, tensor) for offset, tensor in zip(layout.offsets, host, strict=True)]
    for there, tensor in zip(staged, host, strict=True):
        there.copy_(tensor)
    together = torch.empty(layout.small_bytes, dtype=torch.uint8, device=device)
    together.copy_(memory[: layout.small_bytes], non_blocking=True)
    return [
        cut(together, offset, tensor)
        if offset < layout.small_bytes
        else torch.empty(tensor.shape, dtype=tensor.dtype, device=device).copy_(there, non_blocking=True)
        for offset, tensor, there in zip(layout.offsets, host, staged, strict=True)
    ]


class Layout:
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
                self.offsets[number], end = end, end + _aligned(size)
        return end


def _aligned(num_bytes: int) -> int:
    return max(_ALIGN, -(-num_bytes // _ALIGN) * _ALIGN)


def cut(memory: Any, offset: int, like: Any) -> Any:
    """Return a tensor of the dtype and shape of `like` inside a buffer of bytes."""
    size = like.numel() * like.element_size()
    return memory[offset : offset + size].view(like.dtype).view(like.shape)


def map_tensors(value: Any, function: Callable[[Any], Any]) -> Any:
    """Return a nested value with a function of every tensor in it in its place."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: map_tensors(one, function) for key, one in value.items()}
    if isinstance(value, list | tuple) and any(isinstance(one, torch.Tensor | dict | list | tuple) for one in value):
        inside = (map_tensors(one, function) for one in value)
        return tuple(inside) if isinstance(value, tuple) else list(inside)
    return value


def pinned(batch: Tensors) -> Tensors:
    """Return a batch with its tensors in pinned memory."""
    out: Tensors = map_tensors(batch, lambda tensor: tensor.pin_memory())
    return out
