"""Image files of a folder and their captions: facts from the first bytes of an image, texts or a table beside them.

Where image files become cells unchanged, their column needs one field that fits all of them. JPEG and PNG in grey or
RGB are read from their headers, and truncated ones are recognised by their ends; anything else is decoded to find out.

Captions are text files with the name of the image that end in `.txt`, or one table (`captions.csv` or `.jsonl`, or
`metadata.csv` or `.jsonl`) with a column that names the image. Values are not guessed: a CSV contains text, and numbers
only if they print back unchanged; a JSONL contains the types of JSON. Captions are found without reading any image.
"""

from __future__ import annotations

import json
import posixpath
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.codecs import CompressedImageCodec, decoders
from penstock.dataset.catalog import threads_for
from penstock.errors import ColumnNotFound, DatasetNotFound, SchemaError, close_names
from penstock.schema.arrow import infer_unischema
from penstock.schema.unischema import UnischemaField

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    FileSystem = Any  # pyarrow.fs.FileSystem: pyarrow ships no types

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
    return _jpeg(head) if head[:2] == b"\xff\xd8" else None


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


TABLES = ("captions.csv", "captions.jsonl", "metadata.csv", "metadata.jsonl")
KEYS = ("file_name", "filename", "file", "image", "image_path", "path")
"""Columns that name the image; the first that exists is used."""
TEXTS = ("caption", "text")
"""Columns that contain text, whatever it looks like."""
_LEAST_BLOCK, _MOST_BLOCK = 1 << 20, 1 << 30


@dataclass(frozen=True, slots=True)
class Captions:
    """Columns beside the image, and which of their rows belong to each image."""

    columns: pa.Table
    rows: Mapping[str, list[int | None]]


def find_captions(
    fs: FileSystem, root: str, names: Sequence[str], images: Sequence[str], wanted: bool | str | None
) -> Captions | None:
    """Return the captions of a folder; None if there are none and none are required.

    Raises:
        DatasetNotFound: captions are required but missing.
        SchemaError: there are several tables, or one that is not in the folder itself; a table names an image that does
            not exist, has no column that names one, or contains what cannot be stored.
    """
    if wanted is False:
        return None
    if isinstance(wanted, str):
        return _from_table(fs, root, wanted, images)
    present = set(names)
    texts = {name: f"{posixpath.splitext(name)[0]}.txt" for name in images}
    texts = {name: text for name, text in texts.items() if text in present}
    tables = [name for name in TABLES if name in names]
    if len(tables) > 1:
        raise SchemaError(
            f"{root!r} holds {len(tables)} tables of captions: {', '.join(tables)}; keep one, or choose one: "
            f"captions={tables[0]!r}"
        )
    below = next((name for name in names if "/" in name and posixpath.basename(name) in TABLES), None)
    if below is not None:
        folder, table = posixpath.split(below)
        raise SchemaError(
            f"the table {below!r} does not lie in {root!r} itself, where one table names all images, as in file_name "
            f"'{folder}/0.jpg'; move it to {posixpath.join(root, table)!r}, or write that folder by itself: "
            f"write_folder({posixpath.join(root, folder)!r}, ...), or pass captions=False"
        )
    if tables and texts:
        image, text = next(iter(texts.items()))
        raise SchemaError(
            f"captions are both in the table {tables[0]} and in texts beside the images ({text!r} beside {image!r}, "
            f"{len(texts)} in all); pass captions={tables[0]!r} for the table, or move the table away for the texts"
        )
    if tables:
        return _from_table(fs, root, tables[0], images)
    if texts:

        def read(text: str) -> str:
            with fs.open_input_stream(posixpath.join(root, text)) as stream:
                return _decoded(bytes(stream.read()), posixpath.join(root, text)).strip()

        with ThreadPoolExecutor(threads_for(fs)) as pool:
            said = list(pool.map(read, texts.values()))
        columns = pa.table({"caption": pa.array(said, pa.string())})
        return Captions(columns, {name: [at] for at, name in enumerate(texts)})
    if wanted:
        raise DatasetNotFound(f"no captions in {root!r}: neither {', '.join(TABLES)} nor a .txt beside any image")
    return None


def _decoded(data: bytes, path: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        byte = f"{data[error.start]:#x} at byte {error.start}"
        raise SchemaError(f"{path}: {byte} is not UTF-8; save the file as UTF-8") from error


# --- a table ----------------------------------------------------------------------------------------------------------


def _from_table(fs: FileSystem, root: str, name: str, images: Sequence[str]) -> Captions:
    table, lines = _read_table(fs, posixpath.join(root, name))
    key = next((key for key in KEYS if key in table.column_names), None)
    if key is None:
        raise ColumnNotFound(
            f"{name} has no column that names the image (one of {', '.join(KEYS)}); "
            f"{close_names('file_name', table.column_names)}"
        )
    known = set(images)
    rows: dict[str, list[int | None]] = {}
    for at, image in enumerate(table.column(key).to_pylist()):
        if not isinstance(image, str):
            raise SchemaError(f"{name}, line {lines[at]} of the data: {key!r} must name an image, got {_short(image)}")
        image = image.replace("\\", "/").removeprefix("./")
        if image not in known:
            raise SchemaError(
                f"{name}, line {lines[at]} of the data: there is no image {image!r} in {root!r}; "
                f"{close_names(image, images)}"
            )
        rows.setdefault(image, []).append(at)
    columns = table.drop_columns([key]) if hasattr(table, "drop_columns") else table.drop([key])
    nullable = pa.schema([field.with_nullable(True) for field in columns.schema])
    path = posixpath.join(root, name)
    for field in nullable:  # refuse what a dataset cannot store, in words about the table
        try:
            infer_unischema(pa.schema([field]))
        except SchemaError as error:
            raise SchemaError(
                f"{path}: column {field.name!r} is {field.type}, which cannot be stored; give its objects names and "
                "values, write it as text, or leave it out"
            ) from error
    try:
        infer_unischema(nullable)
    except SchemaError as error:
        raise SchemaError(f"{path}: {error}") from error
    return Captions(columns.cast(nullable), rows)


def _read_table(fs: FileSystem, path: str) -> tuple[pa.Table, Sequence[int]]:
    """Return a table, and for each row its line, the first of the data being 1."""
    if not fs.get_file_info(path).is_file:
        raise DatasetNotFound(f"no table of captions at {path!r}")
    if not path.lower().endswith((".csv", ".jsonl", ".json")):
        raise SchemaError(f"{path} is not a table; choose one that ends in .csv or .jsonl")
    with fs.open_input_stream(path) as stream:
        data = bytes(stream.read())
    if path.lower().endswith(".csv"):
        table = _from_csv(data, path)
        return table, range(1, table.num_rows + 1)
    # Objects, one a line, become columns of the types of JSON: text that looks like a date stays text.
    rows, lines = [], []
    for line, row in _objects(data, path):
        for name in TEXTS:
            if isinstance(row.get(name), int | float):
                raise SchemaError(
                    f"{path}, line {line}: column {name!r} is text, got {json.dumps(row[name])}; put it in quotes"
                )
        rows.append(row)
        lines.append(line)
    if not rows:
        raise SchemaError(f"{path} cannot be read as a table: it has no lines; remove it, or pass captions=False")
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = [_column([row.get(name) for row in rows], name, lines, path) for name in names]
    return pa.table(columns, names=names), lines


# --- CSV --------------------------------------------------------------------------------------------------------------


def _from_csv(data: bytes, path: str) -> pa.Table:
    """Return a CSV as text, and as numbers the columns that contain nothing else; empty values there are null."""
    from pyarrow import csv

    block = min(max(len(data), _LEAST_BLOCK), _MOST_BLOCK)  # a row must be inside one block
    options = {
        "read_options": csv.ReadOptions(block_size=block),
        "parse_options": csv.ParseOptions(newlines_in_values=True),
    }
    try:
        names = csv.open_csv(pa.BufferReader(data), **options).schema.names
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise SchemaError(f"{path} has two columns called {twice!r}; rename one of them")
        texts = csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False)
        table = csv.read_csv(pa.BufferReader(data), convert_options=texts, **options)
    except pa.ArrowInvalid as error:
        _decoded(data, path)  # raises if it is not UTF-8
        raise SchemaError(f"{path} cannot be read as a table: {error}; correct it, or pass captions=False") from error
    columns = [
        column if name.lower() in (*TEXTS, *KEYS) else _numbers(column)
        for name, column in zip(names, table.columns, strict=True)
    ]
    return pa.table(columns, names=names)


def _numbers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return text as int64 or double if every value that is not empty prints back unchanged; else unchanged."""
    values = [None if value == "" else value for value in column.to_pylist()]
    found = [value for value in values if value is not None]
    whole = re.compile(r"0|-?[1-9][0-9]{0,18}")
    if found and all(whole.fullmatch(text) and -(1 << 63) <= int(text) < 1 << 63 for text in found):
        return pa.chunked_array([pa.array([None if value is None else int(value) for value in values], pa.int64())])
    # All with the same number of decimals, like 0.50 and 12.25, none of them lost in a double.
    decimals = len(found[0].partition(".")[2]) if found else 0
    pattern = re.compile(rf"-?(0|[1-9][0-9]*)\.[0-9]{{{decimals}}}")
    are_even = all(pattern.fullmatch(text) and f"{float(text):.{decimals}f}" == text for text in found)
    # Or each as Python writes it: 0.5, -3.25, 1e-05, or a whole number among such.
    number = re.compile(r"-?[0-9]+(\.[0-9]+)?(e[-+][0-9]+)?")
    are_short = all(number.fullmatch(text) and repr(float(text)) in (text, f"{text}.0") for text in found)
    if found and (are_short or (decimals > 0 and are_even)):
        return pa.chunked_array([pa.array([None if value is None else float(value) for value in values], pa.float64())])
    return column


# --- JSONL ------------------------------------------------------------------------------------------------------------


def _objects(data: bytes, path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for line, text in enumerate(_decoded(data, path).split("\n"), 1):
        if not text.strip():
            continue
        try:
            row = json.loads(text)
        except ValueError as error:
            raise SchemaError(f"{path} cannot be read as a table: line {line} is not JSON: {error}") from error
        if not isinstance(row, dict):
            raise SchemaError(
                f"{path} cannot be read as a table: line {line} is a {type(row).__name__}; give one object a line, as "
                'in {"file_name": "cat.jpg", "caption": "a cat"}'
            )
        yield line, row


def _column(values: list[Any], name: str, lines: Sequence[int], path: str) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError, ValueError) as error:
        # Find the first value that has no common type with those before.
        low, high = 0, len(values)  # the first `low` go together, the first `high` do not
        while high - low > 1:
            middle = (low + high) // 2
            try:
                pa.array(values[:middle])
                low = middle
            except (pa.ArrowException, OverflowError, ValueError):
                high = middle
        at = high - 1
        raise SchemaError(
            f"{path}, line {lines[at]}: column {name!r} is {_short(values[at])}, which does not fit the lines "
            f"before: {error}; use one type in all lines, or write the column as text"
        ) from error


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
