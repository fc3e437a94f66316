"""Take batches from a worker process to the one that trains: through blocks of shared memory that are used again.

Torch itself makes new shared memory for every tensor of every batch: each page of it is touched for the first time, and
each tensor costs a file descriptor. Here a worker packs all tensors of a batch into one block; the receiver's tensors
are views of it, and when the last of them is gone a byte in the block says so and the worker uses it again. A receiver
that keeps many batches makes the worker run out of blocks; from there on batches go torch's way.

Blocks are torch's shared memory, so they are unnamed wherever torch's are, and gone with the processes.
"""

from __future__ import annotations

import math
import os
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from penstock.torch.device import map_tensors

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ALIGN = 64
_HEAD_BYTES = 64
"""The first byte of a block says whether the receiver needs it still."""
_SMALL_BYTES = 16 << 10
"""Tensors up to this size are copied by the receiver, so that keeping labels does not keep a block."""
_MOST_BLOCKS = 16
"""Of one worker."""
_GROW = 1.25


class Cell(NamedTuple):
    """Stands for a tensor that lies in a block."""

    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """Its size."""
        return math.prod(self.shape) * int(self.dtype.itemsize)


class Parcel(NamedTuple):
    """A batch on its way."""

    content: dict[str, Any]
    """The batch, a `Cell` in place of each tensor that lies in the block."""
    memory: Any
    """The block; None: everything is in the content."""
    sender: tuple[int, int]
    """Process and number of the block, for the receiver to know it again."""


class Sender:
    """The blocks of a worker process. Batches are packed by the thread that feeds torch's queue."""

    def __init__(self) -> None:
        self._blocks: list[Any] = []
        self._lock = threading.Lock()

    def pack(self, batch: dict[str, Any]) -> Parcel:
        """Return a batch with its tensors copied into a block that nobody needs."""
        cells: dict[int, Cell] = {}
        end = _HEAD_BYTES

        def place(tensor: Any) -> None:
            nonlocal end
            if _is_plain(tensor) and id(tensor) not in cells:
                cells[id(tensor)] = Cell(end, tuple(tensor.shape), tensor.dtype)
                end += -(-tensor.numel() * tensor.element_size() // _ALIGN) * _ALIGN

        map_tensors(batch, place)
        with self._lock:
            number = self._claim(end) if cells else None
        if number is None:
            return Parcel(batch, None, (0, 0))
        memory = self._blocks[number]

        def copy(tensor: Any) -> Any:
            cell = cells.get(id(tensor))
            if cell is None:
                return tensor
            _view(memory, cell).copy_(tensor)
            return cell

        return Parcel(map_tensors(batch, copy), memory, (os.getpid(), number))

    def _claim(self, num_bytes: int) -> int | None:
        """Return the number of a block of that size which is now taken; None where there are enough of them."""
        free = [number for number, block in enumerate(self._blocks) if not block[0]]
        for number in free:
            if len(self._blocks[number]) >= num_bytes:
                self._blocks[number][0] = 1
                return number
        if not free and len(self._blocks) >= _MOST_BLOCKS:
            return None
        block = torch.empty(int(num_bytes * _GROW), dtype=torch.uint8).share_memory_()
        block[0] = 1
        if free:  # too small: batches have grown
            self._blocks[free[0]] = block
            return free[0]
        self._blocks.append(block)
        return len(self._blocks) - 1


def _is_plain(tensor: Any) -> bool:
    return bool(
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not tensor.requires_grad
        and not tensor.is_quantized
        and type(tensor) is torch.Tensor
    )


def _view(memory: Any, cell: Cell) -> Any:
    return memory[cell.offset : cell.offset + cell.num_bytes].view(cell.dtype).view(cell.shape)


class _Lease:
    """Tells the worker that a block may be used again once no tensor looks at it."""

    __slots__ = ("__array_interface__", "_memory")

    def __init__(self, memory: NDArray[np.uint8]) -> None:
        self._memory = memory
        self.__array_interface__ = memory.__array_interface__

    def __del__(self) -> None:
        self._memory[0] = 0


class Receiver:
    """What has come from the workers of one pass; keeps their blocks mapped, as mapping anew would touch every page."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[tuple[int, int], tuple[int, Any]] = OrderedDict()

    def unpack(self, parcel: Parcel, number: int) -> dict[str, Any]:
        """Return the batch of a parcel, of pass `number`."""
        if parcel.memory is None:
            return parcel.content
        self._keep(parcel, number)
        base = torch.from_numpy(np.asarray(_Lease(parcel.memory.numpy())))
        out: dict[str, Any] = _filled(parcel.content, base)
        return out

    def _keep(self, parcel: Parcel, number: int) -> None:
        if parcel.sender not in self._blocks:  # of new workers, maybe: those of an earlier pass are gone
            for sender in [one for one, (last, _) in self._blocks.items() if last < number - 1]:
                del self._blocks[sender]
        self._blocks[parcel.sender] = number, parcel.memory


def _filled(value: Any, base: Any) -> Any:
    """Return a nested value with the tensors that its cells stand for."""
    if isinstance(value, Cell):
        tensor = _view(base, value)
        return tensor.clone() if value.num_bytes <= _SMALL_BYTES else tensor
    if isinstance(value, dict):
        return {key: _filled(one, base) for key, one in value.items()}
    if isinstance(value, list | tuple) and any(isinstance(one, Cell | dict | list | tuple) for one in value):
        inside = (_filled(one, base) for one in value)
        return tuple(inside) if isinstance(value, tuple) else list(inside)
    return value
