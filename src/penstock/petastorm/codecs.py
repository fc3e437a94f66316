"""Petastorm's `codecs`: the codecs of `penstock`, under the names its users know.

Nothing is defined here. Own codecs subclass `DataframeColumnCodec` and are registered by `register_codec`, which
Petastorm did not have: it imported any class that a dataset named.
"""

from __future__ import annotations

from penstock.codecs import (
    CompressedImageCodec,
    CompressedNdarrayCodec,
    DataframeColumnCodec,
    NdarrayCodec,
    ScalarCodec,
    register_codec,
)

__all__ = [
    "CompressedImageCodec",
    "CompressedNdarrayCodec",
    "DataframeColumnCodec",
    "NdarrayCodec",
    "ScalarCodec",
    "register_codec",
]
