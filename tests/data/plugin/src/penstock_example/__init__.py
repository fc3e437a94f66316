"""A package of somebody else: a source of numbers, `counting://10`, and a codec that stores bytes backwards.

Penstock finds both by the entry points in pyproject.toml; nobody imports this module by name.
"""

import numpy as np

from penstock.codecs import Codec
from penstock.testing import MemorySource


def open_counting(url: str, **options: object) -> MemorySource:
    """Return the numbers below that of the URL, in parts of four."""
    if set(options) - {"columns"}:
        raise TypeError(f"counting:// takes no {', '.join(sorted(set(options) - {'columns'}))}")
    total = int(url.removeprefix("counting://"))
    parts = [min(4, total - start) for start in range(0, total, 4)]
    return MemorySource({"number": np.arange(total), "half": np.arange(total) / 2}, parts)


class ReversedCodec(Codec):
    """Bytes, stored backwards."""

    codec_id = "reversed-bytes"

    def encode(self, unischema_field: object, value: bytes) -> bytes:
        return value[::-1]

    def decode(self, unischema_field: object, value: bytes) -> bytes:
        return bytes(value)[::-1]

    def config(self) -> dict[str, object]:
        return {}
