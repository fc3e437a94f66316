"""Decode JPEG cells on the GPU: they go there as bytes, and torchvision's batched nvJPEG makes the pixels.

Stands where a device transform stands, on the stream that copies, before the user's own. Shapes and dtypes are those
of the CPU's decoders; pixels may differ by a few levels, as nvJPEG rounds and upsamples differently (docs/gpu.md).
Where it cannot be done, the reason is given and the CPU decodes.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from penstock.codecs import CompressedImageCodec
from penstock.errors import DecodeError, PenstockWarning, PlanError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.api import Dataset
    from penstock.engine.build import Built
    from penstock.torch.device import DeviceTransform

    Tensors = dict[str, Any]


def jpeg_columns(dataset: Dataset) -> list[str]:
    """Return the columns of a dataset whose cells are JPEGs of one colour or three, without nulls."""
    found = []
    for name, field in dataset.schema.fields.items():
        codec = field.codec
        is_jpeg = isinstance(codec, CompressedImageCodec) and codec.image_codec in ("jpeg", "jpg")
        if is_jpeg and not field.nullable and np.dtype(field.numpy_dtype) == np.uint8 and len(field.shape) in (2, 3):
            found.append(name)
    return found


def why_not(device: torch.device) -> str | None:
    """Return why cells cannot be decoded on that device; None where they can."""
    if device.type != "cuda":
        return f"the batches go to {device}, not to a CUDA device"
    try:
        from torchvision.io import ImageReadMode, decode_jpeg
    except ImportError as error:
        return f"torchvision is missing ({error}); pip install torchvision"
    try:
        decode_jpeg([torch.from_numpy(_tiny_jpeg())], mode=ImageReadMode.RGB, device=device)
    except RuntimeError as error:
        return f"this torchvision cannot decode on the GPU ({str(error).splitlines()[0]})"
    return None


def _tiny_jpeg() -> Any:
    from penstock.schema import UnischemaField

    codec = CompressedImageCodec("jpeg", 90)
    field = UnischemaField("tiny", np.uint8, (8, 8, 3), codec, False)
    return np.frombuffer(codec.encode(field, np.zeros((8, 8, 3), np.uint8)), np.uint8).copy()


class GpuDecode:
    """Decodes columns of a batch on the device, then runs the user's transform; called as a `DeviceTransform` is."""

    def __init__(self, dataset: Dataset, names: Sequence[str], then: DeviceTransform | None) -> None:
        self._fields = [dataset.schema.fields[name] for name in names]
        self._then = then

    def __call__(self, batch: Tensors, built: Built, device: torch.device) -> Tensors:
        """Return the batch with pixels in place of bytes."""
        for field in self._fields:
            batch[field.name] = self._decode(field, batch[field.name], device)
        return batch if self._then is None else self._then(batch, built, device)

    @staticmethod
    def _decode(field: Any, cells: Sequence[bytes], device: torch.device) -> Any:
        from torchvision.io import ImageReadMode, decode_jpeg

        if not len(cells):
            return torch.empty((0, *[size or 0 for size in field.shape]), dtype=torch.uint8, device=device)
        grey = len(field.shape) == 2
        mode = ImageReadMode.GRAY if grey else ImageReadMode.RGB
        # torch.frombuffer warns of bytes, which must not be written to; nobody does.
        encoded = [torch.from_numpy(np.frombuffer(cell, np.uint8).copy()) for cell in cells]
        try:
            images = decode_jpeg(encoded, mode=mode, device=device)
        except RuntimeError as error:
            raise DecodeError(
                f"the GPU cannot decode a cell of column {field.name!r}: {str(error).splitlines()[0]}; leave out "
                "decode='gpu' to learn which file and row it is",
                column=field.name,
            ) from error
        if len({tuple(image.shape) for image in images}) > 1:
            return [_laid_out(image[None], grey=grey)[0] for image in images]
        return _laid_out(torch.stack(images), grey=grey)


def _laid_out(images: Any, *, grey: bool) -> Any:
    """Return images (n, channels, height, width) as the codec's shape has them."""
    return images[:, 0] if grey else images.permute(0, 2, 3, 1).contiguous()


def on_gpu(
    decode: str, dataset: Dataset, device: torch.device, then: DeviceTransform | None
) -> tuple[Dataset, Any, bool]:
    """Return the dataset with JPEG cells as bytes, what decodes them, and True; or all as it was and False."""
    if decode != "gpu":
        raise PlanError(f"decode must be 'cpu' or 'gpu'; got {decode!r}")
    names = jpeg_columns(dataset)
    reason = why_not(device) if names else "no column holds JPEGs without nulls"
    if reason is not None:
        warnings.warn(f"decode='gpu' is not possible: {reason}; the CPU decodes", PenstockWarning, stacklevel=3)
        return dataset, then, False
    return dataset._undecoded(names), GpuDecode(dataset, names, then), True
