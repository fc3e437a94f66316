"""The `.npy` format, read from memory: header bytes to dtype, order and shape, and payload to array.

Used by both array codecs. A header is parsed once for each distinct run of bytes, then remembered: cells of
a column nearly always share one. Object arrays (pickles) are refused. Damage of any kind is a ValueError. Writing is
left to `numpy.save`.
"""

from __future__ import annotations

import ast
import math
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

_MAGIC = b"\x93NUMPY"
MAX_HEADER_BYTES = 1 << 16
"""Longest header that is read; real ones have 64 or 128 bytes, wide structured dtypes some thousands. Parsing takes
some hundred times the memory of the text."""
_SHORT_HEADER_BYTES = 512
_MOST_EMPTY_ITEMS = 1 << 20
"""Most items of no bytes (dtype S0) in an array: NumPy gives each a byte when it copies them."""


@dataclass(frozen=True, slots=True)
class Header:
    """What the header of one `.npy` cell says."""

    size: int
    """Bytes before the payload."""
    dtype: np.dtype[Any]
    """Stored dtype, byte order included."""
    fortran: bool
    """Whether the payload runs along the first axis first."""
    shape: tuple[int, ...]
    """Shape of the array."""
    nbytes: int
    """Bytes of the payload."""

    @property
    def raw(self) -> bool:
        """Whether the payload is the memory of a native C-ordered array."""
        return self.dtype.isnative and (not self.fortran or sum(n != 1 for n in self.shape) <= 1)


def header_bytes(cell: Any) -> bytes:
    """Return the bytes before the payload of a cell (anything sliced to bytes); ValueError if it is not `.npy`."""
    start = bytes(cell[:12])
    if start[:6] != _MAGIC:
        raise ValueError(f"not an .npy cell: begins with {start[:6]!r}, wanted {_MAGIC!r}")
    if len(start) < 12 or start[6] not in (1, 2, 3):
        raise ValueError(f".npy cell of {len(cell)} bytes and version {start[6:7].hex()}; known are 1, 2 and 3")
    wide = start[6] > 1
    size = (12 if wide else 10) + int.from_bytes(start[8:12] if wide else start[8:10], "little")
    if size > min(len(cell), MAX_HEADER_BYTES):
        raise ValueError(f".npy header of {size} bytes in a cell of {len(cell)} bytes: the cell is cut short")
    return bytes(cell[:size])


def parse_header(header: bytes) -> Header:
    """Parse header bytes; ValueError where they are damaged or name an object dtype. Cached by the bytes."""
    return _parse_short(header) if len(header) <= _SHORT_HEADER_BYTES else _parse_long(header)


def _parse(header: bytes) -> Header:
    text = header[10 if header[6] == 1 else 12 :].decode("utf-8" if header[6] == 3 else "latin1")
    facts = _literal(text, old=header[6] < 3)
    if not isinstance(facts, dict) or facts.keys() != {"descr", "fortran_order", "shape"}:
        raise ValueError(f"damaged .npy header: {text[:80]!r}")
    shape = facts["shape"]
    if not isinstance(shape, tuple) or not all(type(n) is int and 0 <= n < 1 << 63 for n in shape):
        raise ValueError(f"damaged .npy header: shape {shape!r:.80}")
    if facts["fortran_order"] not in (True, False):
        raise ValueError(f"damaged .npy header: fortran_order {facts['fortran_order']!r:.80}")
    try:
        dtype = np.lib.format.descr_to_dtype(facts["descr"])
    except Exception as exc:  # NumPy raises nearly anything for a damaged description
        raise ValueError(f"damaged .npy header: dtype {facts['descr']!r:.80}") from exc
    if dtype.hasobject:
        raise ValueError("object arrays are pickles and never read; store numbers or strings")
    num_items = math.prod(shape)
    if not dtype.itemsize and num_items > _MOST_EMPTY_ITEMS:
        raise ValueError(f"damaged .npy header: {num_items} items of dtype {dtype}, which has no bytes")
    return Header(len(header), dtype, bool(facts["fortran_order"]), shape, num_items * dtype.itemsize)


# Two caches: 4,096 of the longest headers would be 256 MiB.
_parse_short = lru_cache(maxsize=4096)(_parse)
_parse_long = lru_cache(maxsize=64)(_parse)


def read(cell: Any) -> np.ndarray[Any, Any]:
    """Return the array of a cell as a view on it (read-only where the cell is); ValueError where it is damaged."""
    return payload(cell, parse_header(header_bytes(cell)))


def payload(cell: Any, header: Header) -> np.ndarray[Any, Any]:
    """Return the array behind a parsed header, as a view on the cell; bytes after the payload are ignored."""
    if len(cell) < header.size + header.nbytes:
        raise ValueError(
            f".npy cell cut short: {header.shape!r:.80} {header.dtype!s:.80} needs {header.size + header.nbytes} "
            f"bytes, the cell has {len(cell)}"
        )
    if header.nbytes == 0:
        return np.empty(header.shape, header.dtype)
    count = header.nbytes // header.dtype.itemsize
    flat = np.frombuffer(cell, header.dtype, count=count, offset=header.size)
    return flat.reshape(header.shape, order="F" if header.fortran else "C")


def _literal(text: str, *, old: bool) -> Any:
    try:
        return ast.literal_eval(text.strip())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        if not old:
            raise ValueError(f"damaged .npy header: {text[:80]!r}") from None
    try:  # Python 2 wrote long integers as 3L
        return ast.literal_eval(re.sub(r"(?<=\d)L\b", "", text.strip()))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError(f"damaged .npy header: {text[:80]!r}") from None
