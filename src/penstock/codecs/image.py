"""Images as PNG, JPEG or any other file that OpenCV writes, decoded straight into the batch.

The column path calls the fastest library on each cell with the row of `out` as its target, and hands a cell that does
not fit to the careful decoder in `decoders`, which reports what is wrong. It also chooses the library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from penstock.codecs import decoders
from penstock.codecs.base import JSON, CellError, Cells, Codec, FieldLike, misfit, put
from penstock.codecs.ndarray import check_array

if TYPE_CHECKING:
    from numpy.typing import NDArray


# imagecodecs spends 1 us on a given target: below this size copying its own array is cheaper (28x28: 11.4 for 12.4).
_SMALL_BYTES = 4096


class CompressedImageCodec(Codec):
    """Store grey (H, W) or RGB (H, W, 3) pixels as an image file.

    `quality` counts for JPEG only. uint16 pixels need PNG. Decoding looks at the file, not at `image_codec`.

    >>> CompressedImageCodec("jpeg", 90)
    CompressedImageCodec('jpeg', 90)
    """

    codec_id: ClassVar[str] = "compressed_image"

    def __init__(self, image_codec: str = "png", quality: int = 80) -> None:
        self._image_codec = f".{image_codec.lstrip('.')}"
        self._quality = int(quality)

    @property
    def image_codec(self) -> str:
        """Format that is written, as "png" or "jpeg"."""
        return self._image_codec[1:]

    @property
    def quality(self) -> int:
        """Quality from 0 to 100 that JPEGs are written with."""
        return self._quality

    def config(self) -> dict[str, JSON]:
        """Return format and quality."""
        return {"image_codec": self.image_codec, "quality": self._quality}

    @classmethod
    def from_config(cls, config: dict[str, JSON]) -> CompressedImageCodec:
        """Rebuild a codec from what `config()` gave."""
        return cls(**config)  # type: ignore[arg-type]

    def encode(self, unischema_field: FieldLike, value: Any) -> bytes:
        """Return the file; ValueError for other channel counts than grey and RGB."""
        check_array(unischema_field, value)
        if value.ndim != 2 and not (value.ndim == 3 and value.shape[2] == 3):
            raise ValueError(
                f"Unexpected image dimensions: field {unischema_field.name!r} takes (H, W) or (H, W, 3), got "
                f"{value.shape}; use NdarrayCodec for other shapes"
            )
        return decoders.encode_image(value, self.image_codec, self._quality)

    def decode(self, unischema_field: FieldLike, value: Any) -> NDArray[Any]:  # noqa: ARG002 - Petastorm's signature
        """Return the pixels of one file, C-contiguous, in RGB: the plain twin of the column path."""
        return decoders.decode_image(bytes(value))

    def decode_column(self, field: FieldLike, cells: Cells, out: NDArray[Any]) -> None:
        """Decode every file into its row of `out`; other threads run meanwhile."""
        kind = decoders.image_format(self.image_codec)
        best = decoders.best(kind)
        images = out.ndim == 3 or (out.ndim == 4 and out.shape[3] == 3)
        if best == "simplejpeg" and images and out.dtype == np.uint8:
            _fill_jpeg(field, cells, out)
        elif best == "imagecodecs" and images and out.dtype in (np.uint8, np.uint16):
            _fill_png(field, cells, out)
        else:
            for i, p, a, b in cells.spans():
                put(field, _careful(field, cells.parts[p][a:b], i), out, i)

    def decode_list(self, field: FieldLike, cells: Cells) -> list[NDArray[Any] | None]:
        """Return one array of pixels for each cell, None for nulls."""
        values: list[NDArray[Any] | None] = [None] * len(cells)
        for i, p, a, b in cells.spans():
            values[i] = pixels = _careful(field, cells.parts[p][a:b], i)
            wrong = misfit(field, pixels)
            if wrong is not None:
                raise CellError(i, wrong)
        return values

    def claimed_bytes(self, field: FieldLike, cells: Cells) -> NDArray[np.int64]:  # noqa: ARG002 - a codec's signature
        """Return the bytes that decoding each file takes, from the sizes in its header."""
        parts = cells.views()
        found = np.zeros(len(cells), np.int64)
        for i, p, a, b in cells.spans():
            size = decoders.image_size(parts[p][a:b])
            found[i] = 0 if size is None else min(size.num_bytes, 1 << 62)
        return found

    def __repr__(self) -> str:
        return f"CompressedImageCodec({self.image_codec!r}, {self._quality})"


def _careful(field: FieldLike, cell: NDArray[np.uint8], index: int) -> NDArray[Any]:
    """Decode one file; one whose header contradicts the field is refused before, for it may be huge."""
    file = cell.tobytes()
    size = decoders.image_size(file)
    if size is not None and any(
        want not in (None, got) for want, got in zip(field.shape[:2], size.shape[:2], strict=False)
    ):
        raise CellError(index, f"field {field.name!r} expects shape {field.shape}, the cell holds {size.shape}")
    try:
        return decoders.decode_image(file)
    except (ValueError, ImportError) as exc:
        raise CellError(index, f"cannot decode a cell of field {field.name!r}: {exc}") from exc


def _fill_png(field: FieldLike, cells: Cells, out: NDArray[Any]) -> None:
    """Decode PNG cells; given a target, the library refuses a file whose channels or depth differ from the row's.

    Few pixels are copied instead, and shapes compared, since a grey image might spread over the row.
    """
    decode, parts = decoders.library("imagecodecs").png_decode, cells.views()
    size, shape, dtype = decoders.png_size_bytes(*out.shape[1:3]), out.shape[1:], out.dtype
    small = out.nbytes <= _SMALL_BYTES * len(out)
    for i, p, a, b in cells.spans():
        try:
            if parts[p][a + 16 : a + 24] == size:
                if not small:
                    decode(parts[p][a:b], out=out[i])
                    continue
                pixels = decode(parts[p][a:b])
                if pixels.shape == shape and pixels.dtype == dtype:
                    out[i] = pixels
                    continue
        except Exception:  # noqa: BLE001 - PngError, ValueError: the careful decoder names the reason
            pass
        put(field, _careful(field, cells.parts[p][a:b], i), out, i)


def _fill_jpeg(field: FieldLike, cells: Cells, out: NDArray[Any]) -> None:
    """Decode JPEG cells; headers (2 us) come first, for the library would fill a row from a smaller or grey image."""
    simplejpeg, parts = decoders.library("simplejpeg"), cells.views()
    header, decode = simplejpeg.decode_jpeg_header, simplejpeg.decode_jpeg
    size = out.shape[1:3]
    space, colours = ("GRAY", ("Gray",)) if out.ndim == 3 else ("RGB", ("YCbCr", "RGB"))
    for i, p, a, b in cells.spans():
        cell = parts[p][a:b]
        try:
            height, width, colour, _ = header(cell)
            if (height, width) == size and colour in colours:
                decode(cell, space, False, False, 0, 0, 1.0, out[i])
                continue
        except ValueError:
            pass
        # The careful decoder reports what is wrong, or tries another library.
        put(field, _careful(field, cells.parts[p][a:b], i), out, i)
