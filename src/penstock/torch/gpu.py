"""Decode JPEG columns on the GPU: cells are copied as bytes, and torchvision's batched nvJPEG decodes them there.

Runs as a device transform, on the stream that copies, before the user's own. Shapes and dtypes are those of the CPU's
decoders; pixels may differ by a few levels, as nvJPEG rounds and upsamples differently (docs/gpu.md). If it is not
possible, a warning says why and the CPU decodes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from penstock.codecs import CompressedImageCodec
from penstock.errors import DecodeError, PenstockWarning, PlanError, users_level
from penstock.schema import UnischemaField

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.api import Dataset
    from penstock.engine.delivery import Origin
    from penstock.options import LoaderOptions
    from penstock.torch.device import DeviceTransform

    Tensors = dict[str, Any]


def jpeg_columns(dataset: Dataset) -> list[str]:
    """Return the names of the JPEG columns, grey or RGB, that are not nullable."""
    found = []
    for name, field in dataset.schema.fields.items():
        codec = field.codec
        is_jpeg = isinstance(codec, CompressedImageCodec) and codec.image_codec in ("jpeg", "jpg")
        if is_jpeg and not field.nullable and np.dtype(field.numpy_dtype) == np.uint8 and len(field.shape) in (2, 3):
            found.append(name)
    return found


def why_not(device: torch.device) -> str | None:
    """Return why the device cannot decode; None if it can."""
    if device.type != "cuda":
        return f"the batches go to {device}, not to a CUDA device"
    try:
        from torchvision.io import ImageReadMode, decode_jpeg
    except ImportError as error:
        return f"torchvision is missing ({error}); pip install torchvision"
    try:
        codec = CompressedImageCodec("jpeg", 90)
        field = UnischemaField("tiny", np.uint8, (8, 8, 3), codec, False)
        cell = np.frombuffer(codec.encode(field, np.zeros((8, 8, 3), np.uint8)), np.uint8)
        decode_jpeg([torch.from_numpy(cell.copy())], mode=ImageReadMode.RGB, device=device)
    except RuntimeError as error:
        return f"this torchvision cannot decode on the GPU ({str(error).splitlines()[0]})"
    return None


class EncodedImages:
    """The JPEG cells of a column, one tensor each; not a tensor itself, so movers do not copy it."""

    __slots__ = ("cells",)

    def __init__(self, arrays: Sequence[NDArray[np.uint8]]) -> None:
        self.cells = [torch.from_numpy(one) for one in arrays]


class KeepEncoded:
    """Converts batches as `convert` does, except for columns that stay encoded."""

    def __init__(self, convert: Callable[[Mapping[str, Any]], Tensors], names: Collection[str]) -> None:
        self._convert = convert
        self._names = names

    def __call__(self, batch: Mapping[str, Any]) -> Tensors:
        """Return the batch as tensors and `EncodedImages`."""
        kept = {name: EncodedImages(batch[name]) for name in self._names if _is_encoded(batch.get(name))}
        made = self._convert({name: values for name, values in batch.items() if name not in kept})
        added = [name for name in made if name not in batch]
        return {name: kept[name] if name in kept else made[name] for name in (*batch, *added)}


def _is_encoded(values: Any) -> bool:
    """Return whether a column holds cells as stored."""
    return isinstance(values, list) and all(
        isinstance(one, np.ndarray) and one.ndim == 1 and one.dtype == np.uint8 for one in values
    )


class GpuDecode:
    """Decodes columns on the device, then calls the user's transform; has the interface of `DeviceTransform`."""

    def __init__(self, dataset: Dataset, names: Sequence[str], then: DeviceTransform | None) -> None:
        self._fields = [dataset.schema.fields[name] for name in names]
        self._then = then

    def __call__(self, batch: Tensors, origin: Origin, device: torch.device) -> Tensors:
        """Return the batch with decoded images."""
        for field in self._fields:
            encoded = batch.get(field.name)
            if isinstance(encoded, EncodedImages):
                batch[field.name] = self._decode(field, encoded.cells, device)
        return batch if self._then is None else self._then(batch, origin, device)

    @staticmethod
    def _decode(field: Any, cells: list[Any], device: torch.device) -> Any:
        from torchvision.io import ImageReadMode, decode_jpeg

        if not cells:
            return torch.empty((0, *[size or 0 for size in field.shape]), dtype=torch.uint8, device=device)
        grey = len(field.shape) == 2
        mode = ImageReadMode.GRAY if grey else ImageReadMode.RGB
        try:
            images = decode_jpeg(cells, mode=mode, device=device)
        except RuntimeError as error:
            raise DecodeError(
                f"the GPU cannot decode a cell of column {field.name!r}: {str(error).splitlines()[0]}; without "
                "decode='gpu' the error names the file and the row",
                column=field.name,
            ) from error
        if len({tuple(image.shape) for image in images}) > 1:
            return [_as_field(image[None], grey=grey)[0] for image in images]
        return _as_field(torch.stack(images), grey=grey)


def _as_field(images: Any, *, grey: bool) -> Any:
    """Return images (n, channels, height, width) with the axes of the field's shape."""
    return images[:, 0] if grey else images.permute(0, 2, 3, 1).contiguous()


def why_cpu(options: LoaderOptions, names: Collection[str]) -> str | None:
    """Return which option needs decoded images on the CPU, and why; None if none does."""
    for name in ("transform", "window"):
        if getattr(options, name) is not None:
            return f"{name}= runs on the CPU, before the GPU decodes"
    if options.on_error == "skip":
        return "on_error='skip' skips rows on the CPU, before the GPU finds the damaged ones"
    pads = options.pad is not None and not (isinstance(options.pad, Mapping) and options.pad.keys().isdisjoint(names))
    return "pad= pads images on the CPU, before the GPU decodes" if pads else None


def decode_on_gpu(
    decode: str, dataset: Dataset, device: torch.device, then: DeviceTransform | None, options: LoaderOptions
) -> tuple[Dataset, Any, list[str]]:
    """Return (dataset with JPEG columns left encoded, decode step, their names), or the inputs and [] if not possible.

    Args:
        decode: "cpu": the inputs are returned unchanged; "gpu".
        dataset: The dataset to be loaded.
        device: Where batches go.
        then: The user's device transform, called after decoding.
        options: The options of the loader.
    """
    if decode not in ("cpu", "gpu"):
        raise PlanError(f"decode must be 'cpu' or 'gpu'; got {decode!r}")
    if decode == "cpu":
        return dataset, then, []
    names = jpeg_columns(dataset)
    reason: str | None = "no column holds JPEGs without nulls"
    if names:
        late = "where(..., exact=False) filters rows on the CPU" if dataset.filters_late else None
        reason = late or why_cpu(options, names) or why_not(device)
    if reason is not None:
        warnings.warn(
            f"decode='gpu' is not possible: {reason}; the CPU decodes", PenstockWarning, stacklevel=users_level()
        )
        return dataset, then, []
    return dataset.without_decoding(names), GpuDecode(dataset, names, then), names
