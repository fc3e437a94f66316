"""What is said of the images of a folder: texts beside them, or one table that names them.

Asked by `folder`. A table is `captions.csv` or `.jsonl`, or `metadata.csv` or `.jsonl`, with a column that names the
image; a text has the image's name and ends in `.txt`. Reads those, and no image.
"""

from __future__ import annotations

import posixpath
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.dataset.discover import threads_for
from penstock.errors import ColumnNotFound, DatasetNotFound, SchemaError, close_names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    FileSystem = Any  # pyarrow.fs.FileSystem: pyarrow ships no types

TABLES = ("captions.csv", "captions.jsonl", "metadata.csv", "metadata.jsonl")
KEYS = ("file_name", "filename", "file", "image", "image_path", "path")
"""Columns that name the image; the first that is there counts."""


@dataclass(frozen=True, slots=True)
class Captions:
    """Columns beside the image, and which of their rows belong to each."""

    columns: pa.Table
    rows: Mapping[str, list[int | None]]
    is_table: bool
    """Whether one table names the images; else texts lie beside them."""


def find_captions(
    fs: FileSystem, root: str, names: Sequence[str], images: Sequence[str], wanted: bool | str | None
) -> Captions | None:
    """Return the captions of a folder; None where there are none and none are wanted.

    Raises:
        DatasetNotFound: captions are wanted and not there.
        SchemaError: a table names an image that is not there, or has no column that names one.
    """
    if wanted is False:
        return None
    table = next((name for name in TABLES if name in names), None) if not isinstance(wanted, str) else wanted
    if table is not None:
        return _from_table(fs, root, table, images)
    texts = {name: f"{posixpath.splitext(name)[0]}.txt" for name in images}
    present = set(names)
    found = {name: text for name, text in texts.items() if text in present}
    if found:
        return _from_texts(fs, root, found)
    if wanted:
        raise DatasetNotFound(f"no captions in {root!r}: neither {', '.join(TABLES)} nor a .txt beside any image")
    return None


def _from_texts(fs: FileSystem, root: str, texts: Mapping[str, str]) -> Captions:
    def read(text: str) -> str:
        with fs.open_input_stream(posixpath.join(root, text)) as stream:
            return bytes(stream.read()).decode("utf-8-sig").strip()

    with ThreadPoolExecutor(threads_for(fs)) as pool:
        said = list(pool.map(read, texts.values()))
    columns = pa.table({"caption": pa.array(said, pa.string())})
    return Captions(columns, {name: [at] for at, name in enumerate(texts)}, is_table=False)


def _from_table(fs: FileSystem, root: str, name: str, images: Sequence[str]) -> Captions:
    table = _read_table(fs, posixpath.join(root, name))
    key = next((key for key in KEYS if key in table.column_names), None)
    if key is None:
        raise ColumnNotFound(
            f"{name} has no column that names the image (one of {', '.join(KEYS)}); "
            f"{close_names('file_name', table.column_names)}"
        )
    known = set(images)
    rows: dict[str, list[int | None]] = {}
    for at, image in enumerate(table.column(key).to_pylist()):
        image = str(image).replace("\\", "/").removeprefix("./")
        if image not in known:
            raise SchemaError(
                f"{name}, line {at + 1} of the data: there is no image {image!r} in {root!r}; "
                f"{close_names(image, images)}"
            )
        rows.setdefault(image, []).append(at)
    columns = table.drop_columns([key]) if hasattr(table, "drop_columns") else table.drop([key])
    nullable = pa.schema([field.with_nullable(True) for field in columns.schema])
    return Captions(columns.cast(nullable), rows, is_table=True)


def _read_table(fs: FileSystem, path: str) -> pa.Table:
    info = fs.get_file_info(path)
    if not info.is_file:
        raise DatasetNotFound(f"no table of captions at {path!r}")
    try:
        with fs.open_input_stream(path) as stream:
            if path.endswith(".csv"):
                from pyarrow import csv

                return csv.read_csv(stream, parse_options=csv.ParseOptions(newlines_in_values=True))
            from pyarrow import json

            return json.read_json(stream)
    except pa.ArrowInvalid as error:
        raise SchemaError(f"{path} cannot be read as a table: {error}") from error
