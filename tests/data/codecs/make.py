"""Made the cells of this folder, once: `<codec>.<case>.cell` is what was stored, `<codec>.<case>.npy` what went in.

Kept so that old datasets stay readable; add cases, never rewrite one. Running this again writes only what is missing.
JPEG pixels are OpenCV's accurate decode.
"""

from pathlib import Path

import cv2
import numpy as np
import skimage.data

from penstock.codecs import CompressedImageCodec, CompressedNdarrayCodec, NdarrayCodec
from penstock.schema import UnischemaField

HERE = Path(__file__).parent
PHOTO = np.ascontiguousarray(skimage.data.astronaut()[60:81, 180:197])
ARRAYS = {
    "float32_4x3": np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3),
    "uint8_28x28": np.arange(784, dtype=np.uint16).astype(np.uint8).reshape(28, 28),
    "fortran_float64": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "big_endian": np.arange(5, dtype=">i4"),
    "unicode": np.array(["a", "né", ""]),
    "bytes": np.array([b"a", b"xyz"]),
    "empty": np.zeros((0, 14), np.uint16),
    "scalar": np.array(3, np.int64),
}
IMAGES = {
    "png.rgb8": PHOTO,
    "png.grey8": PHOTO[..., 1].copy(),
    "png.rgb16": PHOTO.astype(np.uint16) * 257,
    "png.grey16": PHOTO[..., 0].astype(np.uint16) * 255,
    "jpeg.rgb": PHOTO,
    "jpeg.grey": PHOTO[..., 1].copy(),
}


def write(name: str, cell: bytes, value: np.ndarray) -> None:
    path = HERE / f"{name}.cell"
    if not path.exists():
        path.write_bytes(cell)
        np.save(HERE / f"{name}.npy", value, allow_pickle=False)


def main() -> None:
    for case, value in ARRAYS.items():
        field = UnischemaField("x", value.dtype.type, value.shape)
        for codec in (NdarrayCodec(), CompressedNdarrayCodec()):
            write(f"{codec.codec_id}.{case}", codec.encode(field, value), value)
    for case, value in IMAGES.items():
        codec = CompressedImageCodec(case.partition(".")[0], 90)
        cell = codec.encode(UnischemaField("x", value.dtype.type, value.shape), value)
        pixels = cv2.imdecode(np.frombuffer(cell, np.uint8), cv2.IMREAD_UNCHANGED)
        write(f"{codec.codec_id}.{case}", cell, pixels[..., ::-1] if pixels.ndim == 3 else pixels)


if __name__ == "__main__":
    main()
