"""A Hugging Face dataset as a source: a stream of Arrow batches, images as the files that they are.

Used by `sources` for objects of `datasets`. Columns come as Arrow has them; an `Image` column, there a pair of bytes
and path, becomes one of image files, not encoded again, with a field chosen by the first image that all must fit. Files
that are only named, also in lists, are read. In a stream without features, columns of images are recognised by their
values; images that exist only as pixels become PNG, which is lossless. Rows of a transform are rows, for a schema to
encode. Class labels come as numbers. Pixels are decoded only if the head of an image is not enough.
"""

from __future__ import annotations

import importlib
import itertools
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.codecs import CompressedImageCodec, decoders
from penstock.codecs.base import misfit
from penstock.errors import SchemaError
from penstock.schema.arrow import infer_unischema
from penstock.schema.unischema import Unischema, UnischemaField, schema_name
from penstock.write.cells import wanted
from penstock.write.images import describe, facts_of_image, image_field

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


BATCH_ROWS = 512


def as_source(data: Any, schema: Unischema | None) -> Any:
    """Return a dataset, streamed or not, as a stream of tables; one with a transform as the rows of the transform.

    Raises:
        SchemaError: it is a dict of splits or one column, or has a transform or no rows and no schema was given, or
            an image does not fit.
    """
    from penstock.write.sources import Tables

    if isinstance(data, dict):
        raise SchemaError(f"a DatasetDict contains several datasets; pass one of {sorted(map(str, data))}")
    if not (hasattr(data, "features") and hasattr(data, "with_format")):
        raise SchemaError(
            f"cannot write a {type(data).__name__} of datasets; pass a Dataset or IterableDataset, and for one column "
            "of it dataset.select_columns([name])"
        )
    # Rows made by a function; other formats only choose the Python types of the same values.
    if (getattr(data, "format", None) or {}).get("type") == "custom":
        if schema is None:
            raise SchemaError(
                "the dataset has a transform (with_transform or set_transform), whose results have no known types; "
                "pass schema=Unischema(...) to write the rows of the transform, or dataset.with_format(None) to "
                "write those below it"
            )
        return iter(data)
    batches = _batches(_with_files_of_pictures(data), is_told=schema is not None)
    first = next(batches, None)
    if first is None:
        if schema is None:
            raise SchemaError("the dataset has no rows to infer a schema from; pass schema=Unischema(...)")
        return []
    is_typed = data.features is not None
    features = dict(data.features) if is_typed else _seen(first)
    tables = _tables(itertools.chain([first], batches), features, is_typed=is_typed)
    images = [name for name, feature in features.items() if _is_image(feature)]
    start = next(tables)
    found = schema or _infer(start, images)
    fields = {name: field for name, field in found.fields.items() if name in images or not is_typed}
    checked = _checked(itertools.chain([start], tables), fields)
    return Tables(next(checked), checked, found)


def _is_image(feature: Any) -> bool:
    return type(feature).__name__ == "Image"


def _infer(table: pa.Table, images: list[str]) -> Unischema:
    plain = infer_unischema(table.schema.remove_metadata())
    fields = dict(plain.fields)
    for name in images:
        row, cell = next(((at, cell.as_py()) for at, cell in enumerate(table.column(name)) if cell.is_valid), (0, None))
        if cell is None:
            raise SchemaError(f"the first {BATCH_ROWS} pictures of {name!r} are null; pass schema=Unischema(...)")
        try:
            found = image_field(name, [facts_of_image(cell)], nullable=True)
        except ValueError as error:
            raise SchemaError(f"row {row}, column {name!r}: {error}; {_CURE}") from error
        free = (None, None) if len(found.shape) == 2 else (None, None, 3)  # the next image may have another size
        fields[name] = found._replace(shape=free)
    return Unischema(schema_name(plain), list(fields.values()))


# --- its rows ---------------------------------------------------------------------------------------------------------


def _tables(batches: Iterator[pa.Table], features: dict[str, Any], *, is_typed: bool) -> Iterator[pa.Table]:
    """Yield the batches with their files; columns of a stream without features are checked in each."""
    row = 0
    for found in batches:
        table = found.replace_schema_metadata(None)
        if not is_typed:
            features |= _seen(table)
        for name, feature in features.items():
            if not _names_files(feature):
                continue
            at = table.schema.get_field_index(name)
            try:
                table = table.set_column(at, name, _with_files(table.column(name), feature))
            except OSError as error:
                raise SchemaError(
                    f"column {name!r}, rows from {row}: a file that the dataset names cannot be read: {error}; bring "
                    "it back, or leave its row out"
                ) from error
        yield table
        row += table.num_rows


def _batches(data: Any, *, is_told: bool) -> Iterator[pa.Table]:
    """Yield the rows as they come; a stream without types must keep to those of its first rows.

    `is_told`: a schema gives the types anyway.
    """
    if hasattr(data, "__len__"):
        yield from data.with_format("arrow").iter(batch_size=BATCH_ROWS)
        return
    rows = iter(data.with_format("arrow"))  # `iter` would join them before they have the types of the features
    first: pa.Schema | None = None
    while taken := list(itertools.islice(rows, BATCH_ROWS)):
        try:
            batch = pa.concat_tables([row.replace_schema_metadata(None) for row in taken], promote_options="default")
        except pa.ArrowException as error:
            raise _untold(" ".join(str(error).split())) from error
        first = batch.schema if first is None else first
        if not is_told and not batch.schema.equals(first):
            raise _untold(f"{_columns(first)} first, then {_columns(batch.schema)}")
        yield batch


def _untold(types: str) -> SchemaError:
    return SchemaError(
        f"the streamed dataset does not say its features, and its rows are of several types: {types}; give them to its "
        "last step, as in dataset.map(..., features=Features(...))"
    )


def _columns(schema: pa.Schema) -> str:
    return "(" + ", ".join(f"{field.name}: {field.type}" for field in schema) + ")"


# --- its files --------------------------------------------------------------------------------------------------------


def _names_files(feature: Any) -> bool:
    """Tell whether a feature, or one inside it, may contain the name of a file instead of its bytes."""
    if isinstance(feature, dict):
        return any(map(_names_files, feature.values()))
    if isinstance(feature, list | tuple):
        return any(map(_names_files, feature))
    return hasattr(feature, "embed_storage") or _names_files(getattr(feature, "feature", ()))


def _with_files(column: pa.ChunkedArray, feature: Any) -> Any:
    """Return a column with the bytes of all files: an `Image` column as these bytes, others nested as before."""
    if not _is_image(feature):
        tables = importlib.import_module("datasets.table")  # installed, since the data is of it
        return tables.embed_array_storage(column, feature)
    cells = []
    for row in column.to_pylist():
        cell = None if row is None else row["bytes"]
        if row is not None and cell is None:
            cell = feature.embed_storage(pa.array([row], feature.pa_type))[0]["bytes"].as_py()
        mode = getattr(feature, "mode", None)
        image = None if mode is None else _opened(cell)
        # In the mode of the feature: unchanged, or as a PNG of the pixels that `datasets` shows.
        cells.append(cell if image is None or image.mode == mode else _png(image.convert(mode)))
    return pa.array(cells, pa.binary())


# --- its pictures -----------------------------------------------------------------------------------------------------


def _seen(table: pa.Table) -> dict[str, Any]:
    """Return the columns of images in a stream without features: pairs of bytes and path, the first being an image.

    That is how `datasets` stores an `Image`; files of other kinds differ only in their content.
    """
    found = {}
    for field in table.schema:
        if not pa.types.is_struct(field.type) or {part.name for part in field.type} != {"bytes", "path"}:
            continue
        cell: dict[str, Any] = next((cell.as_py() for cell in table.column(field.name) if cell.is_valid), {})
        if _opened(cell.get("bytes") or _read(cell.get("path"))) is not None:
            found[field.name] = importlib.import_module("datasets").Image()
    return found


def _read(path: Any) -> bytes:
    """Return the bytes of a local file, b"" if there is no such file."""
    return Path(path).read_bytes() if isinstance(path, str) and Path(path).is_file() else b""


def _opened(data: Any) -> Any:
    """Return a file as a Pillow image, None if it is not one."""
    pillow = decoders.library("PIL.Image")
    if pillow is None or not isinstance(data, bytes):
        return None
    try:
        return pillow.open(BytesIO(data))
    except (OSError, ValueError, SyntaxError):
        return None


def _with_files_of_pictures(data: Any) -> Any:
    """Return a stream of Python rows with its Pillow images as files; other datasets unchanged.

    `datasets` would encode them when the rows become Arrow: a JPEG again as JPEG, with a loss, and a file by its name,
    without later changes to the image.
    """
    source = getattr(data, "_ex_iterable", None)
    if hasattr(data, "__len__") or source is None or getattr(source, "iter_arrow", None) is not None:
        return data
    raw = data.with_format(None)  # a copy with its own info
    raw._info.features = None  # rows before features are applied, which would decode files
    rows = raw.map(_as_files)
    return rows if data.features is None else rows.cast(data.features)


def _as_files(value: Any) -> Any:
    """Return a value with each image in it as the pair that `datasets` stores."""
    if isinstance(value, dict):
        return {key: _as_files(part) for key, part in value.items()}
    if isinstance(value, list | tuple) and any(
        isinstance(part, dict | list | tuple) or _is_shown(part) for part in value
    ):
        return [_as_files(part) for part in value]
    return {"bytes": _file_of(value), "path": None} if _is_shown(value) else value


def _is_shown(value: Any) -> bool:
    pillow = decoders.library("PIL.Image")
    return pillow is not None and isinstance(value, pillow.Image)


def _file_of(image: Any) -> bytes:
    """Return the file that an image was opened from if it still shows just that, else a PNG of its pixels."""
    data = _read(getattr(image, "filename", None))
    try:
        pixels = np.asarray(image)
        before = _opened(data)
        if before is not None and before.mode == image.mode and np.array_equal(np.asarray(before), pixels):
            return data
        return _png(image)
    except (OSError, SyntaxError):
        if data:  # damaged: reported with its row by `_check`
            return data
        raise


def _png(image: Any) -> bytes:
    """Return an image as PNG, or as TIFF if PNG has no such pixels."""
    if image.mode in ("L", "RGB"):
        return decoders.encode_image(np.asarray(image), "png", 0)
    memory = BytesIO()
    image.save(memory, "PNG" if image.mode in ("1", "LA", "P", "RGBA", "I;16") else "TIFF")
    return memory.getvalue()


_CURE = (
    "convert the pictures, as by dataset.map(lambda row: {'image': row['image'].convert('RGB')}), or leave this one out"
)


def _checked(tables: Iterator[pa.Table], fields: Mapping[str, UnischemaField]) -> Iterator[pa.Table]:
    """Yield the tables, after checking that every image fits its field."""
    fields = {name: field for name, field in fields.items() if isinstance(field.codec, CompressedImageCodec)}
    first = 0
    for table in tables:
        for name, field in fields.items():
            is_there = name in table.column_names and pa.types.is_binary(table.schema.field(name).type)
            for row, cell in enumerate(table.column(name) if is_there else (), first):
                if cell.is_valid:
                    _check(cell.as_py(), field, row)
        yield table
        first += table.num_rows


def _check(cell: bytes, field: UnischemaField, row: int) -> None:
    try:
        fact = facts_of_image(cell)
    except ValueError as error:
        what = str(error)
    else:
        size = (fact.height, fact.width)
        pixels = SimpleNamespace(dtype=np.dtype(fact.dtype), shape=size if fact.channels == 1 else (*size, 3))
        if misfit(field, pixels) is None:  # the check of reading
            return
        what = f"the picture is {describe(fact)}, {fact.height} x {fact.width}"
    raise SchemaError(f"row {row}, column {field.name!r}: {what}, where the field says {wanted(field)}; {_CURE}")
