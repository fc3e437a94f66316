"""Facts about an image file from its first bytes: format, shape and dtype, without decoding if the header has them.

Used where image files become cells unchanged: their column needs one field that fits all of them. JPEG and PNG in grey
or RGB are read from their headers, and truncated ones are recognised by their ends; anything else is decoded to find
out. Opens no files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.codecs import CompressedImageCodec, decoders
from penstock.schema.unischema import UnischemaField

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

HEAD_BYTES = 64 << 10
"""Enough of a file to find its size, except for a JPEG with a large preview in front."""
TAIL_BYTES = 4 << 10
"""Enough of a file to find the end of its image, except for one with much padding behind."""
_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_CHANNELS = {0: 1, 2: 3}  # grey and RGB; palettes and alpha are left to the decoder
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_SCAN = 0xDA
_JPEG_SCAN, _JPEG_END, _PNG_END = b"\xff\xda", b"\xff\xd9", b"IEND\xaeB`\x82"


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """Format, size and type of one image."""

    format: str
    """As named by `CompressedImageCodec`."""
    height: int
    width: int
    channels: int
    """1 for grey, 3 for RGB."""
    dtype: type[np.generic]


def facts_of_head(head: bytes) -> ImageFacts | None:
    """Return the facts of an image from its first bytes; None if they are not enough, or it is of a rarer kind."""
    if head[:8] == _PNG and len(head) >= 26:
        return _png(head)
    if head[:2] == b"\xff\xd8":
        return _jpeg(head)
    return None


def facts_of_image(data: bytes) -> ImageFacts:
    """Return the facts of a complete image file, decoding it if needed.

    Raises ValueError if it cannot be read, or is truncated.
    """
    found = facts_of_head(data)
    if found is not None and is_whole(data, data):
        return found
    refuse_cut(data)
    pixels = decoders.decode_image(data)
    kind = "jpeg" if data[:2] == b"\xff\xd8" else "png"
    height, width = pixels.shape[:2]
    return ImageFacts(kind, height, width, 1 if pixels.ndim == 2 else 3, pixels.dtype.type)


def describe(fact: ImageFacts) -> str:
    """Return what an image is, for messages: "RGB of uint8"."""
    return f"{'grey' if fact.channels == 1 else 'RGB'} of {np.dtype(fact.dtype).name}"


def is_whole(head: bytes, tail: bytes) -> bool:
    """Tell whether the last bytes of a JPEG or PNG contain its end; False also if the two do not show it.

    Whatever follows the end (padding, the rest of a sector) is ignored. For a complete file in memory `head` and `tail`
    are the same object; else `tail` ends where the file does.
    """
    if head[:8] == _PNG:
        return tail.rfind(_PNG_END) >= 0
    scan = next((at for at, marker in _segments(head) if marker == _SCAN), None)
    if scan is None:
        return False
    start = scan + 2 if head is tail else 0  # the end of a preview lies before the scan
    end = tail.rfind(_JPEG_END, start)
    return end >= 0 and tail.find(_JPEG_SCAN, end) < 0  # as the decoders have it: no scan follows the last end


def refuse_cut(data: bytes) -> None:
    """Raise ValueError for a truncated JPEG or PNG: decoders may make up the missing pixels."""
    if data[:8] == _PNG and data.rfind(_PNG_END) < 0:
        raise ValueError("damaged PNG: truncated, its end is missing")
    if data[:2] == b"\xff\xd8" and data.rfind(_JPEG_END) <= data.rfind(_JPEG_SCAN):
        raise ValueError("damaged JPEG: truncated, its end is missing")


def _png(head: bytes) -> ImageFacts | None:
    width, height = int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")
    depth, channels = head[24], _PNG_CHANNELS.get(head[25])
    if channels is None or depth not in (8, 16) or b"tRNS" in head:
        return None
    return ImageFacts("png", height, width, channels, np.uint8 if depth == 8 else np.uint16)


def _jpeg(head: bytes) -> ImageFacts | None:
    """Find the segment of the frame: marker, length, and in it precision, height, width, components."""
    at = next((at for at, marker in _segments(head) if marker in _FRAMES), None)
    if at is None:
        return None
    height, width = int.from_bytes(head[at + 5 : at + 7], "big"), int.from_bytes(head[at + 7 : at + 9], "big")
    channels = head[at + 9]
    return ImageFacts("jpeg", height, width, channels, np.uint8) if channels in (1, 3) and height else None


def _segments(head: bytes) -> Iterator[tuple[int, int]]:
    """Yield position and marker of each segment of a JPEG, up to its first scan."""
    at = 2
    while at + 10 <= len(head) and head[at] == 0xFF:
        marker = head[at + 1]
        yield at, marker
        if marker == _SCAN:
            return
        at += 1 if marker == 0xFF else 2 + int.from_bytes(head[at + 2 : at + 4], "big")


def image_field(name: str, images: Collection[ImageFacts], *, nullable: bool) -> UnischemaField:
    """Return the field that fits images of one number of channels: a size that they share is fixed, others are free."""
    first = next(iter(images))
    size: list[int | None] = [
        next(iter(sizes)) if len(sizes) == 1 else None
        for sizes in ({image.height for image in images}, {image.width for image in images})
    ]
    shape: Any = tuple(size) if first.channels == 1 else (*size, 3)
    formats = [image.format for image in images]
    codec = CompressedImageCodec(max(sorted(set(formats)), key=formats.count))
    return UnischemaField(name, first.dtype, shape, codec, nullable)
