"""Join neighbouring byte ranges of a file into fewer, larger reads: pure arithmetic.

Code that reads several parts of a file asks here which reads to make; the parts come back as slices of them. Opens
nothing and knows no store: how large a gap is worth reading over is the caller's to say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

Range = tuple[int, int]
"""Start and stop, in bytes."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """One read, and which of the ranges asked for lie in it."""

    start: int
    stop: int
    members: tuple[int, ...]
    """Indices of the ranges, by their place in the file."""


def coalesce(ranges: Sequence[Range], *, max_gap_bytes: int, max_fetch_bytes: int) -> list[Fetch]:
    """Return the reads that cover all ranges, in the order of the file; every range lies in exactly one.

    Ranges at most `max_gap_bytes` apart (or overlapping) are read together, unless that makes a read of more than
    `max_fetch_bytes`; a range that is larger by itself stays whole.

    >>> coalesce([(10, 20), (0, 10), (90, 99)], max_gap_bytes=5, max_fetch_bytes=100)
    [Fetch(start=0, stop=20, members=(1, 0)), Fetch(start=90, stop=99, members=(2,))]
    """
    found: list[Fetch] = []
    for index in sorted(range(len(ranges)), key=ranges.__getitem__):
        start, stop = ranges[index]
        last = found[-1] if found else None
        if last is not None and start - last.stop <= max_gap_bytes:
            end = max(stop, last.stop)
            if end - last.start <= max_fetch_bytes:
                found[-1] = Fetch(last.start, end, (*last.members, index))
                continue
        found.append(Fetch(start, stop, (index,)))
    return found
