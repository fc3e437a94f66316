"""Make the datasets that the benchmarks read; every byte follows from a fixed seed.

First step of the benchmark: `bench/limit.py` and `bench/run.py` read what this writes. It cuts real photographs and
digits (scikit-image, scikit-learn) and draws the rest at random, encodes cells as Petastorm's codecs do, and writes
plain Parquet with pyarrow's defaults in row groups of an exact number of rows. It measures nothing and fetches
nothing.

Usage: `python bench/data.py FOLDER [NAME...]`; without names all of them, about 4 GB. A dataset that is there already
is left alone.
"""

from __future__ import annotations

import argparse
import functools
import io
import itertools
import math
import os
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from penstock.schema.unischema import Unischema

    Cells = Sequence[bytes] | NDArray[Any]
    Fill = Callable[["Column", NDArray[np.int64]], Cells]

JPEG_QUALITY = 89  # about 18 KB for a photograph of 256x256
SEED = 20_240_229


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column: its field, how a cell is stored and where its values come from."""

    name: str
    dtype: str
    """NumPy name of the value's type."""
    shape: tuple[int, ...] = ()
    codec: str = "scalar"
    """`scalar`, `npy`, `png` or `jpeg`."""
    fill: Fill = field(repr=False)
    """Gives the stored cells of some row numbers."""


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """One folder of Parquet."""

    name: str
    rows: int
    group_rows: int
    """Rows of a row group; the last one of a file may be shorter."""
    files: int
    """Files of equal length, as nearly as whole row groups allow."""
    columns: tuple[Column, ...] = field(repr=False)


# --- values -----------------------------------------------------------------------------------------------------------


def _rng(*key: int) -> np.random.Generator:
    return np.random.default_rng((SEED, *key))


def _numbers(column: Column, rows: NDArray[np.int64]) -> NDArray[Any]:
    return rows.astype(column.dtype)


def _uniform(column: Column, rows: NDArray[np.int64]) -> NDArray[Any]:
    rng = _rng(_hash(column.name), int(rows[0]))
    return rng.random(len(rows), dtype=np.float32).astype(column.dtype, copy=False)


def _classes(count: int, column: Column, rows: NDArray[np.int64]) -> NDArray[Any]:
    return _rng(_hash(column.name), int(rows[0])).integers(0, count, len(rows)).astype(column.dtype)


def _hash(name: str) -> int:
    return int.from_bytes(name.encode()[:8], "little")


@functools.cache
def _photographs() -> list[NDArray[np.uint8]]:
    """Real colour photographs that two packages carry, at least 256 pixels high and wide."""
    import cv2
    import skimage.data
    import sklearn.datasets

    folder = Path(skimage.data.__file__).parent
    names = ("astronaut.png", "chelsea.png", "coffee.png", "hubble_deep_field.jpg", "ihc.png", "motorcycle_left.png")
    names += ("motorcycle_right.png", "retina.jpg", "rocket.jpg")
    photos = [cv2.imread(str(folder / name), cv2.IMREAD_COLOR) for name in names if (folder / name).exists()]
    photos += [image[..., ::-1] for image in sklearn.datasets.load_sample_images().images]  # everything here is BGR
    return [np.ascontiguousarray(photo) for photo in photos if photo is not None]


def _photo(row: int, size: int) -> NDArray[np.uint8]:
    """Cut, resize and perhaps mirror one photograph; BGR."""
    import cv2

    rng, photos = _rng(1, row), _photographs()
    photo = photos[row % len(photos)]
    side = int(rng.integers(min(160, *photo.shape[:2]), min(photo.shape[:2]) + 1))
    top, left = (int(rng.integers(0, have - side + 1)) for have in photo.shape[:2])
    cut = photo[top : top + side, left : left + side]
    cut = cut[:, ::-1] if rng.random() < 0.5 else cut
    return np.asarray(cv2.resize(np.ascontiguousarray(cut), (size, size), interpolation=cv2.INTER_AREA), np.uint8)


@functools.cache
def _digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """1,797 real handwritten digits, drawn 20x20 in a dark field of 28x28."""
    import cv2
    import sklearn.datasets

    digits = sklearn.datasets.load_digits()
    images = np.zeros((len(digits.images), 28, 28), np.uint8)
    for image, small in zip(images, digits.images, strict=True):
        large = cv2.resize(small.astype(np.float32) * 16, (20, 20), interpolation=cv2.INTER_CUBIC)
        image[4:24, 4:24] = np.where(large < 24, 0, large).clip(0, 255).astype(np.uint8)
    return images, digits.target.astype(np.int64)


def _digit_images(rows: NDArray[np.int64]) -> Iterator[NDArray[np.uint8]]:
    images = _digits()[0]
    for row in rows.tolist():
        shift = (row // len(images)) % 25
        yield np.roll(images[row % len(images)], (shift // 5 - 2, shift % 5 - 2), axis=(0, 1))


def _digit_labels(column: Column, rows: NDArray[np.int64]) -> NDArray[Any]:
    labels = _digits()[1]
    return labels[rows % len(labels)].astype(column.dtype)


# --- cells ------------------------------------------------------------------------------------------------------------


def _npy(value: NDArray[Any]) -> bytes:
    memory = io.BytesIO()
    np.save(memory, value)
    return memory.getvalue()


def _image(value: NDArray[np.uint8], ending: str) -> bytes:
    import cv2

    options = [int(cv2.IMWRITE_JPEG_QUALITY), JPEG_QUALITY] if ending == ".jpeg" else []
    done, cell = cv2.imencode(ending, value, options)
    if not done:
        raise RuntimeError(f"OpenCV could not encode an image of shape {value.shape} as {ending}")
    return bytes(cell)


def _threaded(make: Callable[[int], bytes], rows: NDArray[np.int64]) -> list[bytes]:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(make, rows.tolist()))


def _photo_cells(column: Column, rows: NDArray[np.int64]) -> list[bytes]:
    return _threaded(lambda row: _image(_photo(row, column.shape[0]), ".jpeg"), rows)


def _noise_cells(column: Column, rows: NDArray[np.int64]) -> list[bytes]:
    def make(row: int) -> bytes:
        value = _rng(_hash(column.name), row).integers(0, 256, column.shape, np.uint8)
        return _npy(value) if column.codec == "npy" else _image(value, ".png")

    return _threaded(make, rows)


def _digit_cells(column: Column, rows: NDArray[np.int64]) -> list[bytes]:
    encode = _npy if column.codec == "npy" else functools.partial(_image, ending=".png")
    return [encode(image) for image in _digit_images(rows)]


def _cloud_cells(column: Column, rows: NDArray[np.int64]) -> list[bytes]:
    points = _rng(7, int(rows[0])).standard_normal((len(rows), *column.shape), np.float32)
    return [_npy(cloud) for cloud in points * np.float32(20)]


# --- the datasets -----------------------------------------------------------------------------------------------------


def _floats(count: int, start: str = "f") -> tuple[Column, ...]:
    return tuple(Column(name=f"{start}{i}", dtype="float32", fill=_uniform) for i in range(count))


def _ids(name: str = "id", dtype: str = "int32") -> Column:
    return Column(name=name, dtype=dtype, fill=_numbers)


def _label(name: str = "label", count: int = 10) -> Column:
    return Column(name=name, dtype="int64", fill=functools.partial(_classes, count))


def _mnist(name: str, codec: str) -> Dataset:
    image = Column(name="image", dtype="uint8", shape=(28, 28), codec=codec, fill=_digit_cells)
    digit = Column(name="digit", dtype="int64", fill=_digit_labels)
    return Dataset(name=name, rows=60_000, group_rows=4_000, files=3, columns=(_ids("idx"), digit, image))


DATASETS = (
    Dataset(
        name="p_jpeg",
        rows=6_000,
        group_rows=220,  # about 4 MB
        files=4,
        columns=(
            _ids(),
            _label(count=1_000),
            Column(name="image", dtype="uint8", shape=(256, 256, 3), codec="jpeg", fill=_photo_cells),
        ),
    ),
    _mnist("p_mnist", "npy"),
    _mnist("p_mnistpng", "png"),
    Dataset(
        name="p_hello",
        rows=2_000,
        group_rows=110,  # about 16 MB
        files=4,
        columns=(
            _ids(),
            Column(name="image1", dtype="uint8", shape=(128, 256, 3), codec="png", fill=_noise_cells),
            Column(name="array_4d", dtype="uint8", shape=(4, 128, 30, 3), codec="npy", fill=_noise_cells),
        ),
    ),
    Dataset(
        name="p_lidar",
        rows=8_000,
        group_rows=325,  # about 16 MB
        files=5,
        columns=(
            _ids("timestamp", "int64"),
            Column(name="xyz", dtype="float32", shape=(4096, 3), codec="npy", fill=_cloud_cells),
        ),
    ),
    Dataset(name="wide", rows=200_000, group_rows=5_000, files=4, columns=_floats(1_000)),
    Dataset(
        name="table",
        rows=2_000_000,
        group_rows=50_000,
        files=8,
        columns=(*_floats(30), *(_label(f"c{i}", 10 ** (i % 6 + 1)) for i in range(9)), _label()),
    ),
    Dataset(name="small_files", rows=367_800, group_rows=100, files=3_678, columns=_floats(10)),
    Dataset(name="resume10m", rows=10_000_000, group_rows=10_000, files=10, columns=_floats(8)),
)
"""All benchmark datasets, as in docs/performance.md."""


# --- writing ----------------------------------------------------------------------------------------------------------


def unischema(dataset: Dataset) -> Unischema:
    """Return the schema that goes into every footer: Petastorm's codecs, nothing nullable."""
    from penstock.codecs import CompressedImageCodec, NdarrayCodec, ScalarCodec
    from penstock.schema.unischema import Unischema, UnischemaField

    codecs = {
        "scalar": ScalarCodec,
        "npy": NdarrayCodec,
        "png": lambda: CompressedImageCodec("png"),
        "jpeg": lambda: CompressedImageCodec("jpeg", JPEG_QUALITY),
    }
    fields = [
        UnischemaField(c.name, np.dtype(c.dtype).type, c.shape, codecs[c.codec](), False) for c in dataset.columns
    ]
    return Unischema(dataset.name, fields)


def _arrow_schema(dataset: Dataset) -> pa.Schema:
    from penstock.schema.stored import SCHEMA_KEY, schema_to_json

    def kind(column: Column) -> pa.DataType:
        return pa.from_numpy_dtype(np.dtype(column.dtype)) if column.codec == "scalar" else pa.binary()

    fields = [pa.field(column.name, kind(column), nullable=False) for column in dataset.columns]
    return pa.schema(fields, metadata={SCHEMA_KEY: schema_to_json(unischema(dataset))})


def _file_bounds(dataset: Dataset) -> list[tuple[int, int]]:
    groups = math.ceil(dataset.rows / dataset.group_rows)
    cuts = [groups * i // dataset.files * dataset.group_rows for i in range(dataset.files + 1)]
    bounds = [(lo, min(hi, dataset.rows)) for lo, hi in itertools.pairwise(cuts)]
    return [(lo, hi) for lo, hi in bounds if lo < hi]


def _row_group(dataset: Dataset, schema: pa.Schema, lo: int, hi: int) -> pa.Table:
    rows = np.arange(lo, hi, dtype=np.int64)
    arrays = [pa.array(c.fill(c, rows), schema.field(c.name).type) for c in dataset.columns]
    return pa.Table.from_arrays(arrays, schema=schema)


def generate(dataset: Dataset, folder: Path) -> Path:
    """Write one dataset below `folder` and return its path; a dataset that is there is left alone.

    It is written beside its place and renamed, so that an interrupted run leaves nothing that looks finished.
    """
    target, partial = folder / dataset.name, folder / f".{dataset.name}.partial"
    if target.exists():
        return target
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    schema = _arrow_schema(dataset)
    for number, (start, stop) in enumerate(_file_bounds(dataset)):
        with pq.ParquetWriter(partial / f"part-{number:05d}.parquet", schema) as writer:
            for lo in range(start, stop, dataset.group_rows):
                table = _row_group(dataset, schema, lo, min(lo + dataset.group_rows, stop))
                writer.write_table(table, row_group_size=dataset.group_rows)
        _show(dataset, stop)
    pq.write_metadata(schema, partial / "_common_metadata")
    partial.rename(target)
    return target


def make_readable_by_petastorm(path: Path) -> None:
    """Add to a dataset's `_common_metadata` what Petastorm's readers ask for."""
    import penstock
    from penstock.dataset.store_schema import store_schema

    dataset = penstock.open(str(path))
    store_schema(dataset.source, dataset.schema, summary=False)


def _show(dataset: Dataset, done: int) -> None:
    if sys.stderr.isatty():
        end = "\n" if done == dataset.rows else ""
        sys.stderr.write(f"\r{dataset.name:>12} {'#' * (40 * done // dataset.rows):40} {done:>10,} rows{end}")
        sys.stderr.flush()


def find(name: str) -> Dataset:
    """Return the dataset called `name`."""
    known = {dataset.name: dataset for dataset in DATASETS}
    if name not in known:
        raise SystemExit(f"no dataset {name!r}; there are: {', '.join(known)}")
    return known[name]


def main() -> None:
    """Make the datasets named on the command line, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(d.name for d in DATASETS))
    args = parser.parse_args()
    for dataset in [find(name) for name in args.names] or DATASETS:
        start = time.perf_counter()
        path = generate(dataset, args.folder)
        size = sum(file.stat().st_size for file in path.rglob("*.parquet"))
        print(f"{path}: {dataset.rows:,} rows, {size / 1e6:,.0f} MB, {time.perf_counter() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()
