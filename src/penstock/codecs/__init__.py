"""Codecs: one value to one stored cell and back, and whole columns into given memory.

One codec a file. Cells come from `dataset`, arrays go to `engine`; schemas name codecs and are not known here. Own
codecs subclass `DataframeColumnCodec` or `Codec` and are registered by `register_codec`.
"""

import sys

from penstock.codecs import ndarray, scalar
from penstock.codecs.base import CellError, Cells, Codec, DataframeColumnCodec
from penstock.codecs.image import CompressedImageCodec
from penstock.codecs.ndarray import CompressedNdarrayCodec, NdarrayCodec
from penstock.codecs.registry import UnknownCodec, codec_from_json, codec_to_json, register_codec
from penstock.codecs.scalar import ScalarCodec

__all__ = [
    "CellError",
    "Cells",
    "Codec",
    "CompressedImageCodec",
    "CompressedNdarrayCodec",
    "DataframeColumnCodec",
    "NdarrayCodec",
    "ScalarCodec",
    "UnknownCodec",
    "codec_from_json",
    "codec_to_json",
    "register_codec",
]

# Schemas that were pickled by earlier versions name the modules that these classes were defined in.
sys.modules[f"{__name__}.compressed_ndarray"] = ndarray
sys.modules[f"{__name__}.sparktypes"] = scalar
