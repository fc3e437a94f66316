"""Decode JPEG cells on the GPU: they go there as bytes, and torchvision's batched nvJPEG makes the pixels.

Stands where a device transform stands, on the stream that copies, before the user's own. Shapes and dtypes are those
of the CPU's decoders; pixels may differ by a few levels, as nvJPEG rounds and upsamples differently (docs/gpu.md).
Where it cannot be done, the reason is given and the CPU decodes.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from penstock.codecs import CompressedImageCodec
from penstock.errors import DecodeError, PenstockWarning, PlanError, users_level

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from numpy.typing import NDArray

    from penstock.api import Dataset
    from penstock.engine.build import Built
    from penstock.options import LoaderOptions
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


class Encoded:
    """The cells of a column on their way to the decoder: whoever copies tensors to the device leaves these here."""

    __slots__ = ("cells",)

    def __init__(self, arrays: Sequence[NDArray[np.uint8]]) -> None:
        self.cells = [torch.from_numpy(one) for one in arrays]


class Wrapped:
    """Converts batches as `convert` does, but for columns that stay encoded."""

    def __init__(self, convert: Callable[[Mapping[str, Any]], Tensors], names: Collection[str]) -> None:
        self._convert = convert
        self._names = names

    def __call__(self, batch: Mapping[str, Any]) -> Tensors:
        """Return the batch with tensors, and `Encoded` columns among them."""
        mine = {name: Encoded(batch[name]) for name in self._names if _is_encoded(batch.get(name))}
        made = self._convert({name: values for name, values in batch.items() if name not in mine})
        rest = [name for name in made if name not in batch]
        return {name: mine[name] if name in mine else made[name] for name in (*batch, *rest)}


def _is_encoded(values: Any) -> bool:
    """Tell cells as stored from what a transform= has made of them."""
    return isinstance(values, list) and all(
        isinstance(one, np.ndarray) and one.ndim == 1 and one.dtype == np.uint8 for one in values
    )


class GpuDecode:
    """Decodes columns of a batch on the device, then runs the user's transform; called as a `DeviceTransform` is."""

    def __init__(self, dataset: Dataset, names: Sequence[str], then: DeviceTransform | None) -> None:
        self._fields = [dataset.schema.fields[name] for name in names]
        self._then = then

    def __call__(self, batch: Tensors, built: Built, device: torch.device) -> Tensors:
        """Return the batch with pixels in place of bytes."""
        for field in self._fields:
            encoded = batch.get(field.name)
            if isinstance(encoded, Encoded):
                batch[field.name] = self._decode(field, encoded.cells, device)
        return batch if self._then is None else self._then(batch, built, device)

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


def in_the_way(options: LoaderOptions, names: Collection[str]) -> str | None:
    """Return the option that needs pixels on the CPU, where cells would be bytes still; None where there is none."""
    for name in ("transform", "window"):
        if getattr(options, name) is not None:
            return f"{name}= works on the CPU, before the GPU has decoded"
    if options.on_error == "skip":
        return "on_error='skip' leaves rows out on the CPU, before the GPU knows that they are damaged"
    pad = options.pad
    if pad is not None and not (isinstance(pad, Mapping) and not pad.keys() & set(names)):
        return "pad= fills up pictures on the CPU, before the GPU has decoded"
    return None


def on_gpu(
    decode: str, dataset: Dataset, device: torch.device, then: DeviceTransform | None, options: LoaderOptions
) -> tuple[Dataset, Any, list[str]]:
    """Return the dataset with JPEG cells as stored, what decodes them, and these columns; or all as it was and none."""
    if decode not in ("cpu", "gpu"):
        raise PlanError(f"decode must be 'cpu' or 'gpu'; got {decode!r}")
    if decode == "cpu":
        return dataset, then, []
    names = jpeg_columns(dataset)
    reason: str | None = "no column holds JPEGs without nulls"
    if names:
        late = "where(..., exact=False) looks at rows on the CPU" if dataset.filters_late else None
        reason = late or in_the_way(options, names) or why_not(device)
    if reason is not None:
        warnings.warn(
            f"decode='gpu' is not possible: {reason}; the CPU decodes", PenstockWarning, stacklevel=users_level()
        )
        return dataset, then, []
    return dataset.without_decoding(names), GpuDecode(dataset, names, then), names
