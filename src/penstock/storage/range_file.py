"""A file for pyarrow's readers some of whose byte ranges are in memory already; the others are fetched when asked for.

`dataset` fetches the column chunks of a row group from a store or a cache, and pyarrow decodes them through a file
made here. Knows nothing of Parquet.
"""

from __future__ import annotations

import bisect
import io
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.storage.store import Range

    Buffer = Any  # pyarrow.Buffer: pyarrow ships no types


def open_ranges(held: Mapping[int, Buffer], size: int, fetch: Callable[[Range], Buffer]) -> pa.PythonFile:
    """Return a file of `size` bytes to be read by one thread and closed.

    `held` has ranges by their start. Each is handed over once, without a copy, and forgotten: pyarrow reads a column
    chunk once. `fetch` returns other ranges.
    """
    return pa.PythonFile(_RangeFile(dict(held), size, fetch), mode="r")


class _RangeFile(io.RawIOBase):
    def __init__(self, held: dict[int, Buffer], size: int, fetch: Callable[[Range], Buffer]) -> None:
        super().__init__()
        self._held, self._size, self._fetch = held, size, fetch
        self._starts = sorted(held)
        self._position = 0

    def read(self, size: int | None = -1) -> Any:
        start = self._position
        stop = self._size if size is None or size < 0 else min(start + size, self._size)
        self._position = max(start, stop)
        return self._take(start, stop) if stop > start else b""

    def _take(self, start: int, stop: int) -> Buffer:
        whole = self._held.get(start)
        if whole is not None and whole.size == stop - start:
            return self._held.pop(start)
        near = bisect.bisect_right(self._starts, start) - 1
        if near >= 0:
            first = self._starts[near]
            data = self._held.get(first)
            if data is not None and stop <= first + data.size:
                return data.slice(start - first, stop - start)
        return self._fetch((start, stop))

    def seek(self, position: int, whence: int = 0) -> int:
        self._position = {0: 0, 1: self._position, 2: self._size}[whence] + position
        return self._position

    def tell(self) -> int:
        return self._position

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self._held.clear()
        super().close()
