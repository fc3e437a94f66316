"""Send batches from a worker process to the consumer's, through blocks of shared memory that are reused.

Torch itself allocates shared memory for every tensor of every batch: each page is touched for the first time, and each
tensor costs a file descriptor. Here a worker packs all tensors of a batch into one block; the receiver's tensors are
views of it, and once the last of them is gone a byte in the block says so and the worker reuses it. If the receiver
keeps many batches, the worker runs out of blocks, and from then on batches are sent as torch does it.

Blocks are torch's shared memory: unnamed wherever torch's are, and freed with the processes.
"""

from __future__ import annotations

import atexit
import math
import os
import threading
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch

from penstock.halt import EXIT_WAIT_S
from penstock.torch.device import map_tensors

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ALIGN = 64
_HEAD_BYTES = 64
"""The first byte of a block says whether the receiver still needs it."""
_SMALL_BYTES = 16 << 10
"""Tensors up to this size are copied by the receiver, so that keeping labels does not keep a block."""
_MOST_BLOCKS = 16
"""Of one worker."""
_GROW = 1.25


class PackedTensor(NamedTuple):
    """Stands for a tensor that lies in a block."""

    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """Its size."""
        return math.prod(self.shape) * int(self.dtype.itemsize)

    def inside(self, memory: Any) -> Any:
        """Return the tensor as a view of a block."""
        return memory[self.offset : self.offset + self.num_bytes].view(self.dtype).view(self.shape)


class Parcel(NamedTuple):
    """A packed batch."""

    content: dict[str, Any]
    """The batch, with a `PackedTensor` for each tensor in the block."""
    memory: Any
    """The block; None: everything is in the content."""
    sender: tuple[int, int]
    """Process and number of the block, by which the receiver recognizes it."""


class Sender:
    """The blocks of a worker process. Batches are pickled by the thread that feeds torch's queue.

    That thread must not be inside torch when its process exits: a thread that asks for the GIL then is ended, which
    aborts the process if C++ frames are on its stack. So all that calls torch, the end of tensors too, happens under a
    lock that the exit takes first.
    """

    def __init__(self) -> None:
        self._blocks: dict[int, Any] = {}
        self._lock = threading.Lock()
        self._latest: dict[str, Any] | None = None
        """Kept until the next one, so that its tensors end under the lock."""
        atexit.register(self._lock.acquire, timeout=EXIT_WAIT_S)

    def pickled(self, batch: dict[str, Any]) -> bytes:
        """Return the parcel of a batch, pickled for another process."""
        with self._lock:
            self._latest = batch
            return bytes(ForkingPickler.dumps(tuple(self.pack(batch))))

    def pack(self, batch: dict[str, Any]) -> Parcel:
        """Return a batch with its tensors copied into a free block."""
        packed: dict[int, PackedTensor] = {}
        end = _HEAD_BYTES

        def place(tensor: Any) -> None:
            nonlocal end
            if _is_plain(tensor) and id(tensor) not in packed:
                packed[id(tensor)] = PackedTensor(end, tuple(tensor.shape), tensor.dtype)
                end += -(-tensor.numel() * tensor.element_size() // _ALIGN) * _ALIGN

        map_tensors(batch, place)
        number = self._claim(end) if packed else None
        if number is None:
            return Parcel(batch, None, (0, 0))
        memory = self._blocks[number]

        def copy(tensor: Any) -> Any:
            one = packed.get(id(tensor))
            if one is None:
                return tensor
            one.inside(memory).copy_(tensor)
            return one

        return Parcel(map_tensors(batch, copy), memory, (os.getpid(), number))

    def _claim(self, num_bytes: int) -> int | None:
        """Take a free block of that size and return its number; None if there are enough blocks and none is free."""
        free = [number for number, block in self._blocks.items() if not block[0]]
        number = next((number for number in free if len(self._blocks[number]) >= num_bytes), None)
        if number is None:
            if not free and len(self._blocks) >= _MOST_BLOCKS:
                return None
            number = free[0] if free else len(self._blocks)  # a free one is too small: batches have grown
            self._blocks[number] = torch.empty(int(num_bytes * _GROW), dtype=torch.uint8).share_memory_()
        self._blocks[number][0] = 1
        return number


def _is_plain(tensor: Any) -> bool:
    return bool(
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not tensor.requires_grad
        and not tensor.is_quantized
        and type(tensor) is torch.Tensor
    )


class _BlockLease:
    """Tells the worker that a block may be reused once no tensor refers to it."""

    __slots__ = ("__array_interface__", "_memory", "_pid")

    def __init__(self, memory: NDArray[np.uint8]) -> None:
        self._memory = memory
        self._pid = os.getpid()
        self.__array_interface__ = memory.__array_interface__

    def __del__(self) -> None:
        if os.getpid() == self._pid:  # a forked child drops a copy: the tensors here are in use
            self._memory[0] = 0


class Receiver:
    """Unpacks batches of all workers; keeps their blocks mapped, as mapping them again would touch every page."""

    def __init__(self) -> None:
        self._blocks: dict[tuple[int, int], tuple[int, Any]] = {}

    def unpack(self, parcel: Parcel, number: int) -> dict[str, Any]:
        """Return the batch of a parcel of pass `number`."""
        if parcel.memory is None:
            return parcel.content
        if parcel.sender not in self._blocks:  # new workers, maybe: those of earlier passes are gone
            for sender in [one for one, (last, _) in self._blocks.items() if last < number - 1]:
                del self._blocks[sender]
        self._blocks[parcel.sender] = number, parcel.memory
        base = torch.from_numpy(np.asarray(_BlockLease(parcel.memory.numpy())))

        def unpacked(one: PackedTensor) -> Any:
            return one.inside(base).clone() if one.num_bytes <= _SMALL_BYTES else one.inside(base)

        return cast("dict[str, Any]", map_tensors(parcel.content, unpacked, PackedTensor))
