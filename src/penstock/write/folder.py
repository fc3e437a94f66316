"""`penstock.write_folder`: a folder of image files to a dataset, every file stored unchanged.

Finds the images, their labels and captions, and one field that fits all of them; then reads the files in threads and
passes Arrow batches to `write`. Pixels are decoded only to convert images that would not fit. Folders may be on any
filesystem that `penstock.open` reads.
"""

from __future__ import annotations

import inspect
import posixpath
import warnings
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from penstock.codecs import ScalarCodec, decoders
from penstock.dataset.catalog import threads_for
from penstock.errors import DatasetNotFound, PenstockWarning, PlanError, SchemaError, close_names
from penstock.options import one_of
from penstock.progress import progress
from penstock.schema.arrow import arrow_schema, infer_unischema
from penstock.schema.unischema import Unischema, UnischemaField
from penstock.storage import list_files, resolve
from penstock.storage.filesystem import first_look
from penstock.write.images import (
    HEAD_BYTES,
    TAIL_BYTES,
    Captions,
    ImageFacts,
    describe,
    facts_of_head,
    facts_of_image,
    find_captions,
    image_field,
    is_whole,
    refuse_cut,
)
from penstock.write.sources import Tables
from penstock.write.write import write

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence

    from penstock.write.files import Written

    FileSystem = Any  # pyarrow.fs.FileSystem: pyarrow ships no types

ENDINGS = (".jpg", ".jpeg", ".jpe", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif")
_SPLITS = {"train", "training", "val", "valid", "validation", "dev", "test", "testing"}
_BATCH_BYTES = 8 << 20

Misfits = Literal["error", "convert", "skip"]


@dataclass(frozen=True, slots=True)
class _ImageFolder:
    """What was found."""

    fs: FileSystem
    root: str
    images: tuple[str, ...]
    """Relative paths, in order."""
    facts: Mapping[str, ImageFacts]
    """The facts of each image; only of those that fit the field."""
    kind: ImageFacts
    """An image with the channels and dtype of the field."""

    def read(self, relative: str) -> bytes:
        with self.fs.open_input_stream(posixpath.join(self.root, relative)) as stream:
            return bytes(stream.read())


def write_folder(  # noqa: PLR0913 - the public factory takes flat keywords
    path: str | os.PathLike[str],
    url: str | os.PathLike[str],
    *,
    labels: bool | None = None,
    captions: bool | str | None = None,
    misfits: Misfits = "error",
    shuffle: bool = True,
    seed: int = 0,
    storage_options: Mapping[str, Any] | None = None,
    filesystem: Any = None,
    **options: Any,
) -> Written:
    """Write the images of a folder as a dataset, with labels and captions; return what was written.

    The bytes of the files are stored unchanged: nothing is encoded again. The columns, those without content left out:

    - `image`: a `CompressedImageCodec` field; height and width are fixed if all images have the same;
    - `label`, `label_name`: the folder directly below `path` that an image is in, as a number (folders sorted by name)
      and as text; also with captions;
    - `caption`: the text of `cat.txt` beside `cat.jpg`; or the columns of `captions.csv`, `captions.jsonl`,
      `metadata.csv` or `metadata.jsonl` in `path`, whose column `file_name` names the image. Without a caption: null.
      An image with several lines in the table gives several rows. Types are those of JSON; a CSV has text, and
      numbers if all values of a column print back unchanged;
    - `path`: relative to the folder, with forward slashes.

        >>> penstock.write_folder("flowers", "flowers-dataset")

    Args:
        path: the folder; a path or URL. Names that begin with a dot and files that are not images are skipped.
        url: the dataset to write.
        labels: whether folders are labels; None: if images are in folders, and then all of them must be.
        captions: False: none; True: required; a name: this table in `path`; None: if there are any.
        misfits: what to do with images that have other channels or another depth than most (grey among RGB, alpha,
            palettes), and with damaged ones: "error" names them, "convert" stores their pixels in the form of the
            others as PNG (but refuses damaged ones), "skip" leaves them out with a warning.
        shuffle: rows in random order, the same for the same `seed` and files; False: by path. Training on one
            class after another works badly.
        seed: selects the random order.
        storage_options: options for the filesystems of URLs.
        filesystem: a pyarrow or fsspec filesystem to read from and write to instead.
        **options: keywords of `penstock.write`: `row_group_bytes`, `overwrite`, `resume`, `partition_by` ...

    Raises:
        DatasetNotFound: there is no such folder, or no image in it.
        PlanError: `schema` is given.
        SchemaError: images do not fit one field, or lie beside folders that would be labels; or captions are ambiguous:
            a line names an image that does not exist, there are two tables, a column has no type.
    """
    one_of("misfits", misfits, ("error", "convert", "skip"))
    if "schema" in options:
        raise PlanError(
            "write_folder derives the schema from the images and captions, and takes no schema=...; leave it out, or "
            "read the files yourself and pass rows to penstock.write(rows, url, schema)"
        )
    known = [name for name, one in inspect.signature(write).parameters.items() if one.kind is one.KEYWORD_ONLY]
    for name in options:
        if name not in known:
            raise TypeError(f"write_folder() got an unexpected keyword argument {name!r}; {close_names(name, known)}")
    where: dict[str, Any] = {"storage_options": storage_options, "filesystem": filesystem}
    fs, root = resolve(path, **where)
    if first_look(fs, root, path).is_file:
        raise DatasetNotFound(f"{root!r} is a file; pass the folder that contains the images")
    names = [name for name, _ in list_files(fs, root, underscores=True)]
    images = tuple(name for name in names if name.lower().endswith(ENDINGS))
    if not images:
        raise DatasetNotFound(f"no images in {root!r}; names that end in {', '.join(ENDINGS)} count")
    table = find_captions(fs, root, names, images, captions)
    classes = _classes(root, images, labels)
    folder = _look(fs, root, images, misfits)
    # Several captions of one image give several rows.
    captioned: Mapping[str, Sequence[int | None]] = {} if table is None else table.rows
    rows = [(name, at) for name in folder.images if name in folder.facts for at in captioned.get(name, [None])]
    if shuffle:
        rows = [rows[i] for i in np.random.Generator(np.random.PCG64(seed)).permutation(len(rows))]
    schema, stored = _schema(folder, classes, table)
    batches = _batches(folder, rows, (classes, table), stored)
    return write(Tables(stored.empty_table(), batches, schema, len(rows)), url, **where, **options)


def _classes(root: str, images: Sequence[str], labels: bool | None) -> dict[str, int] | None:
    """Return the number of each class folder, None if folders are not labels."""
    outside = [name for name in images if "/" not in name]
    if labels is False or (labels is None and len(outside) == len(images)):
        return None
    if outside:
        more = f" (as {len(outside) - 1} more)" if len(outside) > 1 else ""
        wanted = "labels=True needs every image in a class folder" if labels else "folders are labels"
        raise SchemaError(
            f"{wanted}; {outside[0]!r}{more} lies in {root!r} itself, beside {len(images) - len(outside)} images in "
            "folders; move it into a folder or away, or pass labels=False to write all images without labels"
        )
    names = sorted({name.split("/", 1)[0] for name in images})
    if labels is None and {name.lower() for name in names} <= _SPLITS:
        raise SchemaError(
            f"{root!r} contains the splits {', '.join(names)}, not classes; write each of them separately: "
            f"write_folder('{posixpath.join(root, names[0])}', ...), or pass labels=True or False"
        )
    return {name: number for number, name in enumerate(names)}


# --- one field for all images -----------------------------------------------------------------------------------------


def _look(fs: FileSystem, root: str, images: tuple[str, ...], misfits: Misfits) -> _ImageFolder:
    """Read the head of every image and choose the field."""

    def facts(name: str) -> ImageFacts | str:
        try:
            with fs.open_input_file(posixpath.join(root, name)) as file:
                return _facts(file)
        except (ValueError, OSError) as error:
            return str(error)

    with ThreadPoolExecutor(threads_for(fs)) as pool:
        found = dict(zip(images, progress(pool.map(facts, images), f"looking at {root}"), strict=True))
    good = {name: fact for name, fact in found.items() if isinstance(fact, ImageFacts)}
    if not good:
        name, reason = next(iter(found.items()))
        raise SchemaError(f"none of the {len(images)} images in {root!r} can be read; {name!r}: {reason}")
    [(kind, _)] = Counter((fact.channels, fact.dtype) for fact in good.values()).most_common(1)
    fitting = {name: fact for name, fact in good.items() if (fact.channels, fact.dtype) == kind}
    like = next(iter(fitting.values()))
    if len(fitting) < len(images):
        fitting |= _handle_misfits(root, {n: f for n, f in found.items() if n not in fitting}, like, misfits)
    return _ImageFolder(fs, root, images, fitting, like)


def _facts(file: Any) -> ImageFacts:
    """Return the facts of an open file, from its head and its end if those suffice; ValueError if it is damaged."""
    head = bytes(file.read(HEAD_BYTES))
    found = facts_of_head(head) if len(head) == HEAD_BYTES else None
    if found is not None:
        file.seek(file.size() - TAIL_BYTES)
        if is_whole(head, bytes(file.read())):
            return found
        file.seek(HEAD_BYTES)
    return facts_of_image(head + bytes(file.read()))


def _handle_misfits(
    root: str, others: Mapping[str, ImageFacts | str], like: ImageFacts, misfits: Misfits
) -> dict[str, ImageFacts]:
    """Return the images to convert; raise for the others, or warn that they are left out."""
    reasons = [f"{name!r} ({_describe(fact)})" for name, fact in others.items()]
    shown = f"{', '.join(reasons[:3])}{f' and {len(reasons) - 3} more' if len(reasons) > 3 else ''}"
    if misfits == "skip":
        text = f"{len(others)} images of {root} are left out: {shown}"
        warnings.warn(text, PenstockWarning, stacklevel=5)
        return {}
    if misfits == "error":
        raise SchemaError(
            f"most images in {root!r} are {_describe(like)}, and these are not: {shown}; convert them, or pass "
            "misfits='convert' or misfits='skip'"
        )
    # A size that only the pixels show counts as another one.
    sizes = {name: (-1, -1) if isinstance(fact, str) else (fact.height, fact.width) for name, fact in others.items()}
    return {name: ImageFacts("png", *size, like.channels, like.dtype) for name, size in sizes.items()}


def _describe(fact: ImageFacts | str) -> str:
    return fact if isinstance(fact, str) else describe(fact)


def convert(data: bytes, like: ImageFacts) -> bytes:
    """Return an image as PNG with other channels or depth; ValueError if no installed library reads it."""
    pixels = _pixels(data)
    if pixels.dtype == np.uint16 and like.dtype is np.uint8:
        pixels = (pixels >> 8).astype(np.uint8)
    elif pixels.dtype == np.uint8 and like.dtype is np.uint16:
        pixels = pixels.astype(np.uint16) * 257
    if pixels.ndim == 2 and like.channels == 3:
        pixels = np.repeat(pixels[..., None], 3, axis=2)
    elif pixels.ndim == 3 and like.channels == 1:
        pixels = np.rint(pixels @ np.array([0.299, 0.587, 0.114])).astype(pixels.dtype)
    return decoders.encode_image(pixels, "png", 0)


def _pixels(data: bytes) -> Any:
    refuse_cut(data)
    try:
        return decoders.decode_image(data)
    except ValueError:
        pillow = decoders.library("PIL.Image")
        if pillow is None:
            raise
    try:
        with pillow.open(BytesIO(data)) as image:
            return np.asarray(image.convert("RGB"))  # drops alpha, converts palettes and CMYK
    except pillow.UnidentifiedImageError:  # its message has only the address of our buffer
        raise ValueError(f"damaged, or no image ({len(data)} bytes, beginning {data[:8]!r})") from None
    except (OSError, SyntaxError, ValueError) as error:
        raise ValueError(f"damaged, or no image: {error}") from error


# --- rows -------------------------------------------------------------------------------------------------------------


def _schema(
    folder: _ImageFolder, classes: Mapping[str, int] | None, table: Captions | None
) -> tuple[Unischema, pa.Schema]:
    """Return the fields, and the columns as stored; columns of captions are unchanged."""
    image = image_field("image", list(folder.facts.values()), nullable=False)
    if any(fact.height < 0 for fact in folder.facts.values()):
        image = image._replace(shape=(None, None, *image.shape[2:]))
    label = [UnischemaField("label", np.int32, (), ScalarCodec(), False)] if classes is not None else []
    label += [UnischemaField("label_name", np.str_, (), ScalarCodec(), False)] if classes is not None else []
    path = UnischemaField("path", np.str_, (), ScalarCodec(), False)
    said = pa.schema([]) if table is None else table.columns.schema
    inferred = list(infer_unischema(said).fields.values())
    own = arrow_schema(Unischema("images", [image, *label, path]))
    for name in (*said.names, *(field.name for field in inferred)):
        if name in own.names:
            raise SchemaError(
                f"the table of captions has a column {name!r}, which the images have too; rename it"
                + (", or pass labels=False" if name.startswith("label") else "")
            )
    stored = pa.schema([*list(own)[:-1], *said, own.field("path")])
    return Unischema("images", [image, *label, *inferred, path]), stored


def _batches(
    folder: _ImageFolder,
    rows: Sequence[tuple[str, int | None]],
    said: tuple[Mapping[str, int] | None, Captions | None],
    stored: pa.Schema,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows in order; files are read in threads, a bounded number of bytes ahead."""
    threads = threads_for(folder.fs)
    with ThreadPoolExecutor(threads, thread_name_prefix="penstock-read") as pool:
        ahead: deque[Any] = deque()
        for group in _groups(folder, rows):
            ahead.append(pool.submit(_batch, folder, group, said, stored))
            if len(ahead) > threads:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


def _groups(folder: _ImageFolder, rows: Sequence[tuple[str, int | None]]) -> Iterator[list[tuple[str, int | None]]]:
    group: list[tuple[str, int | None]] = []
    size = 0
    for row in rows:
        group.append(row)
        fact = folder.facts[row[0]]
        size += abs(fact.height * fact.width * fact.channels) // 4  # a guess: only the order of magnitude matters
        if size >= _BATCH_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _batch(folder: _ImageFolder, rows: Any, said: tuple[Any, Captions | None], stored: pa.Schema) -> pa.RecordBatch:
    classes, table = said
    names = [name for name, _ in rows]
    columns: dict[str, Any] = {"image": [_image(folder, name) for name in names], "path": names}
    if classes is not None:
        columns["label_name"] = [name.split("/", 1)[0] for name in names]
        columns["label"] = [classes[name] for name in columns["label_name"]]
    if table is not None:
        taken = table.columns.take(pa.array([at for _, at in rows], pa.int64()))
        columns |= {name: taken.column(name).combine_chunks() for name in taken.column_names}
    arrays = [_as_array(columns[field.name], field.type) for field in stored]
    return pa.RecordBatch.from_arrays(arrays, schema=stored)


def _as_array(values: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)
    if isinstance(values, pa.Array):
        return values if values.type == kind else values.cast(kind)
    return pa.array(values, kind)


def _image(folder: _ImageFolder, name: str) -> bytes:
    data = folder.read(name)
    try:
        fact = facts_of_image(data)
        if (fact.channels, fact.dtype) == (folder.kind.channels, folder.kind.dtype):
            return data
    except ValueError:
        pass  # alpha, or damaged: `convert` decides
    try:
        return convert(data, folder.kind)
    except ValueError as error:
        raise SchemaError(f"{posixpath.join(folder.root, name)} cannot be converted: {error}; remove it") from error
