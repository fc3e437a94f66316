"""Unnamed shared memory between a loader and the processes of its pool.

A block is a mapping that two processes see; it has no name in any file system, so that nothing is left behind if
a process dies. Linux: memfd; other POSIX systems: a temporary file that is unlinked at once; Windows: a mapping whose
name is random and which the system removes with its last handle.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import tempfile
import uuid
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from numpy.typing import NDArray

    Description = tuple[str | np.dtype[Any], tuple[int, ...], int]
    """Type, shape and place of a packed array; the type by name if that is unambiguous (not for bfloat16)."""

_WINDOWS = sys.platform == "win32"


class SharedBlock:
    """Bytes seen by two processes; freed when neither maps them any more."""

    __slots__ = ("_fd", "_map", "_name", "memory")

    def __init__(self, num_bytes: int, *, fd: int | None = None, name: str | None = None) -> None:
        self._fd, self._name = fd, name
        if _WINDOWS:
            self._name = name or f"penstock-{uuid.uuid4().hex}"
            self._map = mmap.mmap(-1, num_bytes, tagname=self._name)  # type: ignore[call-arg, unused-ignore]
        else:
            if fd is None:
                self._fd = fd = _unnamed(num_bytes)
            self._map = mmap.mmap(fd, num_bytes)
        self.memory: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)

    def __len__(self) -> int:
        return len(self.memory)

    def send(self, connection: Connection, pid: int) -> None:
        """Hand the block to the process at the other end, which calls `receive`."""
        connection.send((len(self), self._name))
        if self._fd is not None:
            from multiprocessing.reduction import send_handle

            send_handle(connection, self._fd, pid)
            self._forget()

    @classmethod
    def receive(cls, connection: Connection) -> SharedBlock:
        """Take the block that the other end sends."""
        num_bytes, name = connection.recv()
        if _WINDOWS:
            return cls(num_bytes, name=name)
        from multiprocessing.reduction import recv_handle

        block = cls(num_bytes, fd=recv_handle(connection))
        block._forget()
        return block

    def _forget(self) -> None:
        """Close the descriptor: the mapping stays."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            self._forget()


def _unnamed(num_bytes: int) -> int:
    """Return a descriptor of that many bytes of memory without a name."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("penstock", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, num_bytes)
    return fd


class Packer:
    """Lays arrays and bytes one after another into a block, and describes where they are."""

    def __init__(self) -> None:
        self._todo: list[tuple[int, NDArray[np.uint8]]] = []
        self.num_bytes = 0

    def add(self, array: NDArray[Any]) -> Description:
        """Note an array to be packed; returns its description."""
        array = np.ascontiguousarray(array)
        at = self.num_bytes
        self._todo.append((at, array.reshape(-1).view(np.uint8)))
        self.num_bytes = (at + array.nbytes + 63) & -64
        dtype, name = array.dtype, array.dtype.str
        return name if np.dtype(name) == dtype else dtype, array.shape, at

    def pack(self, memory: NDArray[np.uint8]) -> None:
        """Copy everything into place."""
        for at, data in self._todo:
            memory[at : at + len(data)] = data


def unpack(memory: NDArray[np.uint8], description: Description) -> NDArray[Any]:
    """Return an array that lies in the block, without copying."""
    dtype, shape, at = description
    return np.ndarray(shape, np.dtype(dtype), memory, at)
