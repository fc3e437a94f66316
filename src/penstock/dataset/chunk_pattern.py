"""Read column chunks of a footer by one regular expression: the fast twin of `column_chunks.read_chunk`.

A footer of a thousand columns holds ten thousands of column chunks, and reading them field by field takes 15
microseconds each. Almost all are written in one way: fields in order of their numbers, statistics present, no value
longer than 64 bytes. The expression describes exactly that, so that `re` does the work in C; what it does not match is
read field by field. Reads no files.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

LEAST_CHUNKS = 256
"""For fewer, making the expression takes longer than it saves."""
_MOST_BYTES = 64
INTEGERS = ("values", "uncompressed", "compressed", "data_page", "dictionary_page", "nulls", "unencoded")
"""Groups that hold integers, as stored; see `integers`."""


@cache
def chunk_pattern() -> re.Pattern[bytes]:
    """Return the expression for one column chunk; costs some milliseconds the first time.

    Groups: those of `INTEGERS`; `path`, `min`, `max`, `min_old` and `max_old` with their length in front; `type`,
    `encodings` and `levels` (a list of integers) as stored.
    """
    number = rb"[\x80-\xff]{0,8}+[\x00-\x7f]"
    lengths = (re.escape(bytes([size])) + rb".{%d}" % size for size in range(_MOST_BYTES + 1))
    binary = b"(?>" + b"|".join(lengths) + b")"

    def listed(element: bytes, kind: int, most: int) -> bytes:
        sizes = (re.escape(bytes([size << 4 | kind])) + rb"(?:%s){%d}" % (element, size) for size in range(most + 1))
        return b"(?>" + b"|".join(sizes) + b")"

    def field(header: bytes, name: str, value: bytes = number) -> bytes:
        return header + b"(?P<%s>%s)" % (name.encode(), value)

    statistics = (
        b"(?:" + field(rb"\x18", "max_old", binary) + field(rb"\x18", "min_old", binary) + b")?+"
        + field(rb"(?(max_old)\x16|\x36)", "nulls")
        + b"(?:" + field(rb"\x16", "distinct") + b")?+"
        + b"(?:" + field(rb"(?(distinct)\x18|\x28)", "max", binary) + field(rb"\x18", "min", binary)
        + rb"[\x11\x12]{0,2}+)?+\x00"
    )  # fmt: skip
    encoding = rb"\x15%s\x15%s\x15%s\x00" % (number, number, number)
    sizes = (
        b"(?:" + field(rb"\x16", "unencoded") + b")?+"
        + rb"(?(unencoded)\x19|\x29)" + listed(number, 6, 14)
        + field(rb"\x19", "levels", listed(number, 6, 14)) + rb"\x00"
    )  # fmt: skip
    metadata = (
        field(rb"\x15", "type")
        + field(rb"\x19", "encodings", listed(rb"[\x00-\x7f]", 5, 7))
        + rb"\x19" + listed(binary, 8, 4)
        + rb"\x15" + number
        + field(rb"\x16", "values") + field(rb"\x16", "uncompressed") + field(rb"\x16", "compressed")
        + field(rb"\x26", "data_page") + b"(?:" + field(rb"\x26", "dictionary_page") + b")?+"
        + rb"(?(dictionary_page)\x1c|\x3c)" + statistics
        + b"(?:" + field(rb"\x19", "pages", listed(encoding, 12, 7)) + b")?+"
        + rb"(?:(?(pages)\x3c|\x4c)" + sizes + rb")?+\x00"
    )  # fmt: skip
    index = rb"\x16%s\x15%s" % (number, number)
    chunk = (
        b"(?:" + field(rb"\x18", "path", binary) + b")?+"
        + rb"(?(path)\x16|\x26)" + number
        + rb"\x1c" + metadata
        + b"(?:" + index + b"(?:" + index + rb")?+)?+\x00"
    )  # fmt: skip
    return re.compile(chunk, re.DOTALL)


def integers(stored: Sequence[bytes]) -> NDArray[np.int64]:
    """Return integers that are stored as the compact protocol does: seven bits a byte, the sign in the last bit."""
    data = np.frombuffer(b"".join(stored), np.uint8)
    ends = np.flatnonzero(data < 128)
    starts = np.concatenate(([0], ends[:-1] + 1))
    shift = np.arange(len(data)) - np.repeat(starts, ends - starts + 1)
    values = np.add.reduceat((data & 127).astype(np.uint64) << (7 * shift).astype(np.uint64), starts)
    return (values >> np.uint64(1)).astype(np.int64) ^ -(values & np.uint64(1)).astype(np.int64)
