"""Image libraries: which are installed, and one image to pixels and back with each.

`pick` is the one place that chooses: simplejpeg for JPEG and imagecodecs for PNG (the fastest measured), then OpenCV,
then Pillow, each imported when first wanted. All give the pixels of OpenCV's accurate decode: RGB, C-contiguous, grey
as (H, W), no EXIF rotation. Columns and fields are not known here.
"""

from __future__ import annotations

import importlib
from functools import cache
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

JPEG, PNG = "jpeg", "png"
_ORDER = {JPEG: ("simplejpeg", "cv2", "PIL.Image"), PNG: ("imagecodecs", "cv2", "PIL.Image")}
_OTHERS = ("cv2", "PIL.Image")
MAX_PIXELS = 1 << 30
"""Largest image that is decoded, OpenCV's own limit: a damaged header may claim any size."""
_JPEG_MAGIC, _PNG_MAGIC = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"


@cache
def library(name: str) -> Any:
    """Return the module of that name, None where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def pick(image_format: str) -> Iterator[str]:
    """Yield the installed libraries that read and write a format, best first.

    Imported when needed: OpenCV and Pillow, which are seldom needed, cost a third of a second.
    """
    return (name for name in _ORDER.get(image_format, _OTHERS) if library(name) is not None)


def best(image_format: str) -> str | None:
    """Return the first library that can; None if none can. Called for every image, so without a generator."""
    for name in _ORDER.get(image_format, _OTHERS):
        if library(name) is not None:
            return name
    return None


@cache
def image_format(name: str) -> str:
    """Return "jpeg" or "png" for the usual spellings of those, else the name in lower case without its dot."""
    plain = name.lower().lstrip(".")
    return JPEG if plain in ("jpg", "jpeg", "jpe") else plain


def decode_image(cell: bytes) -> NDArray[Any]:
    """Return the pixels of any image that a library here can read; the file's own signature decides, not its name.

    ValueError if the bytes are not an image, are truncated, or have an alpha channel.
    """
    found = JPEG if cell[:3] == _JPEG_MAGIC else PNG if cell[:8] == _PNG_MAGIC else ""
    reasons = []
    for name in pick(found):
        try:
            pixels = _DECODERS[name](cell, found)
        except _Damaged as exc:
            raise ValueError(str(exc)) from exc
        except Exception as exc:  # noqa: BLE001 - libraries raise what they like; the next one may know the format
            reasons.append(f"{name}: {exc}")
            continue
        if pixels.ndim == 2 or pixels.shape[2] == 3:
            return np.ascontiguousarray(pixels)
        reasons.append(f"{name}: {pixels.shape[2]} channels in an image of {pixels.shape}; only grey and RGB are read")
    raise ValueError(
        f"not an image that can be read ({len(cell)} bytes, beginning {cell[:8]!r}): "
        + ("; ".join(reasons) or "no library for it is installed; pip install 'penstock[opencv]'")
    )


class ImageSize(NamedTuple):
    """The header of an image."""

    shape: tuple[int, ...]
    """(H, W), or (H, W, channels)."""
    num_bytes: int
    """Memory that decoding it takes."""


def image_size(cell: bytes | memoryview) -> ImageSize | None:
    """Return the size of an image from its header alone, 2 us; None where that is damaged, or no library reads it.

    PNG and JPEG are looked at here, other formats by Pillow where it is installed.
    """
    if cell[:8] == _PNG_MAGIC:
        if len(cell) < 26 or cell[12:16] != b"IHDR":
            return None
        channels = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}.get(cell[25], 4)
        return _size(
            int.from_bytes(cell[20:24], "big"), int.from_bytes(cell[16:20], "big"), channels, 2 if cell[24] == 16 else 1
        )
    if cell[:3] == _JPEG_MAGIC:
        return _jpeg_size(cell)
    pillow = library("PIL.Image")
    try:
        with pillow.open(BytesIO(cell)) as image:
            return _size(image.height, image.width, len(image.getbands()), 4)  # four bytes a pixel and channel at most
    except Exception:  # noqa: BLE001 - also without Pillow; decoding reports what is wrong
        return None


def _size(height: int, width: int, channels: int, pixel_bytes: int) -> ImageSize:
    shape = (height, width) if channels == 1 else (height, width, channels)
    return ImageSize(shape, height * width * channels * pixel_bytes)


def png_size_bytes(height: int, width: int) -> bytes:
    """Return the bytes 16 to 23 of a PNG of that size."""
    return width.to_bytes(4, "big") + height.to_bytes(4, "big")


def _jpeg_size(cell: bytes | memoryview) -> ImageSize | None:
    """Return the first frame header; goes from marker to marker as libjpeg does, over stray bytes too."""
    at = 2
    while at < len(cell) - 9:
        if cell[at] != 0xFF:
            cell = bytes(cell)
            if (at := cell.find(b"\xff", at)) < 0:
                return None
            continue
        marker = cell[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = int.from_bytes(cell[at + 5 : at + 7], "big"), int.from_bytes(cell[at + 7 : at + 9], "big")
            # All coefficients of a progressive image, two bytes each, are held until its last scan.
            pixel_bytes = 3 if marker in (0xC2, 0xC6, 0xCA, 0xCE) else 1
            return _size(height, width, 1 if cell[at + 9] == 1 else 3, pixel_bytes)
        if marker in (0xD9, 0xDA):  # the end, or pixels: without a frame header before them
            return None
        if marker in (0x00, 0xFF):  # stuffing
            at += 1
        elif marker == 0x01 or 0xD0 <= marker <= 0xD8:  # without a length
            at += 2
        else:
            at += 2 + int.from_bytes(cell[at + 2 : at + 4], "big")
    return None


def encode_image(pixels: NDArray[Any], image_codec: str, quality: int) -> bytes:
    """Return the file bytes of grey (H, W) or RGB (H, W, 3) pixels; ValueError where no library can write them."""
    kind = image_format(image_codec)
    if kind == JPEG and pixels.dtype != np.uint8:
        raise ValueError(f"JPEG holds 8 bits a channel, got {pixels.dtype}; use 'png' for uint16")
    name = best(kind)
    if name is None:
        raise ImportError(f"no library here writes {image_codec!r} images: pip install 'penstock[opencv]'")
    return _ENCODERS[name](np.ascontiguousarray(pixels), kind, quality)


class _Damaged(Exception):
    """The file is of a known format and broken: another library would only make up the missing pixels."""


def _decode_simplejpeg(cell: bytes, _found: str) -> NDArray[Any]:
    simplejpeg = library("simplejpeg")
    height, width, colour, _ = simplejpeg.decode_jpeg_header(cell)
    _refuse_huge(height, width)
    if colour not in ("Gray", "YCbCr", "RGB"):
        raise ValueError(f"{colour} pixels")  # OpenCV knows how to print CMYK as RGB
    try:
        pixels: NDArray[Any] = simplejpeg.decode_jpeg(cell, "GRAY" if colour == "Gray" else "RGB")
    except ValueError as exc:
        if "extraneous bytes" not in str(exc):
            raise _Damaged(f"damaged JPEG: {exc}") from exc
        # Padding before a marker, common in photographs of the web: OpenCV accepts those.
        pixels = simplejpeg.decode_jpeg(cell, "GRAY" if colour == "Gray" else "RGB", strict=False)
    return pixels[..., 0] if colour == "Gray" else pixels


def _decode_imagecodecs(cell: bytes, _found: str) -> NDArray[Any]:
    imagecodecs = library("imagecodecs")
    _refuse_huge(int.from_bytes(cell[20:24], "big"), int.from_bytes(cell[16:20], "big"))
    try:
        return np.asarray(imagecodecs.png_decode(cell))
    except Exception as exc:  # PngError, or UnicodeDecodeError where it cannot read libpng's message
        raise _Damaged(f"damaged PNG: {exc}") from exc


def _refuse_huge(height: int, width: int) -> None:
    if height * width > MAX_PIXELS:
        raise _Damaged(f"an image of {height} x {width} pixels is larger than the {MAX_PIXELS} that are read")


def _decode_cv2(cell: bytes, found: str) -> NDArray[Any]:
    cv2 = library("cv2")
    _refuse_cut(cell, found)
    pixels: NDArray[Any] | None = cv2.imdecode(np.frombuffer(cell, np.uint8), cv2.IMREAD_UNCHANGED) if cell else None
    if pixels is None:
        raise ValueError("OpenCV cannot read it")
    # By OpenCV: a view with the channels reversed costs more to copy than decoding did.
    return cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB) if pixels.ndim == 3 and pixels.shape[2] == 3 else pixels


def _refuse_cut(cell: bytes, found: str) -> None:
    """Refuse files that are cut short: OpenCV 4 fills what is missing with grey, and 5 takes a gigabyte for it."""
    # Inside a scan of a JPEG an end marker cannot occur by chance.
    if found == JPEG and cell.rfind(b"\xff\xd9") < cell.rfind(b"\xff\xda"):
        raise _Damaged("damaged JPEG: cut short, no end-of-image marker")
    at = 8
    while found == PNG and cell[at + 4 : at + 8] != b"IEND":
        at += 12 + int.from_bytes(cell[at : at + 4], "big")
        if at > len(cell) - 12:
            raise _Damaged("damaged PNG: cut short")


def _decode_pillow(cell: bytes, found: str) -> NDArray[Any]:
    _refuse_cut(cell, found)
    pillow = library("PIL.Image")
    try:
        opened = pillow.open(BytesIO(cell))
    except pillow.UnidentifiedImageError:  # its text only names the address of our buffer
        raise ValueError("Pillow cannot read it") from None
    with opened as image:
        if found == PNG and cell[24] == 16 and cell[25] != 0:
            raise ValueError("Pillow drops half of 16-bit colour; pip install imagecodecs")
        if image.mode in ("1", "P"):
            image = image.convert("L" if image.mode == "1" else ("RGBA" if "transparency" in image.info else "RGB"))
        if image.mode not in ("L", "RGB", "RGBA", "LA", "I", "I;16", "I;16B"):
            raise ValueError(f"{image.mode} pixels")
        pixels = np.asarray(image)
    return pixels.astype(np.uint16) if image.mode.startswith("I") else pixels


def _encode_simplejpeg(pixels: NDArray[Any], _kind: str, quality: int) -> bytes:
    grey = pixels.ndim == 2
    return cast(
        "bytes",
        library("simplejpeg").encode_jpeg(
            pixels[..., None] if grey else pixels,
            quality=quality,
            colorspace="GRAY" if grey else "RGB",
            colorsubsampling="Gray" if grey else "420",
            fastdct=False,
        ),
    )


def _encode_cv2(pixels: NDArray[Any], kind: str, quality: int) -> bytes:
    cv2 = library("cv2")
    swapped = cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR) if pixels.ndim == 3 else pixels
    done, file = cv2.imencode(f".{kind}", swapped, [int(cv2.IMWRITE_JPEG_QUALITY), quality])
    if not done:
        raise ValueError(f"OpenCV cannot write {pixels.dtype} pixels as {kind!r}")
    return bytes(file.tobytes())


def _encode_pillow(pixels: NDArray[Any], kind: str, quality: int) -> bytes:
    if pixels.dtype != np.uint8 and pixels.ndim == 3:
        raise ValueError(f"Pillow cannot write {pixels.dtype} colour; pip install imagecodecs")
    file = BytesIO()
    library("PIL.Image").fromarray(pixels).save(file, kind, quality=quality)
    return file.getvalue()


_DECODERS = {
    "simplejpeg": _decode_simplejpeg,
    "imagecodecs": _decode_imagecodecs,
    "cv2": _decode_cv2,
    "PIL.Image": _decode_pillow,
}
_ENCODERS: dict[str, Callable[[NDArray[Any], str, int], bytes]] = {
    "simplejpeg": _encode_simplejpeg,
    "imagecodecs": lambda pixels, _kind, _quality: bytes(library("imagecodecs").png_encode(pixels)),
    "cv2": _encode_cv2,
    "PIL.Image": _encode_pillow,
}
