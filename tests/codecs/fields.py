"""Fields as codecs see them (duck-typed), and real pictures, for the tests of this folder; holds no tests itself."""

from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import skimage.data


@dataclass(frozen=True)
class Field:
    name: str
    numpy_dtype: Any
    shape: tuple[int | None, ...]
    nullable: bool = False


def photo(height: int = 96, width: int = 80) -> np.ndarray:
    return np.ascontiguousarray(skimage.data.astronaut()[20 : 20 + height, 150 : 150 + width])


def opencv_pixels(file: bytes) -> np.ndarray:
    """OpenCV's accurate decode as RGB: what all decoders are measured by."""
    pixels = cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_UNCHANGED)
    return np.ascontiguousarray(pixels[..., ::-1]) if pixels.ndim == 3 else pixels


def opencv_file(pixels: np.ndarray, kind: str, *options: int) -> bytes:
    swapped = pixels[..., ::-1] if pixels.ndim == 3 else pixels
    done, file = cv2.imencode(f".{kind}", swapped, list(options))
    assert done
    return file.tobytes()
