"""A dataset of Hugging Face's `datasets` as a source: Arrow batches in turn, pictures as the files that they are.

Asked by `sources` for objects of that library. Columns come as Arrow has them; an `Image` column, there a pair of bytes
and path, becomes one of image files, not encoded again, with a field that the first picture decides and all have to
fit. Files that are only named, also those in lists, are read. Class labels come as numbers. Pixels are decoded only
where the head of a picture does not tell what it is.
"""

from __future__ import annotations

import importlib
import itertools
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.codecs import CompressedImageCodec
from penstock.codecs.base import misfit
from penstock.errors import SchemaError
from penstock.schema.arrow import infer_unischema
from penstock.schema.unischema import Unischema
from penstock.write.cells import wanted
from penstock.write.images import describe, facts_of_image, image_field

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.schema.unischema import UnischemaField

BATCH_ROWS = 512


def as_source(data: Any, schema: Unischema | None) -> Any:
    """Return a dataset, streamed or not, as tables in turn.

    Raises:
        SchemaError: it is a dict of splits, or has no rows and no schema was given, or a picture does not fit.
    """
    from penstock.write.sources import Tables

    if isinstance(data, dict):
        raise SchemaError(f"a DatasetDict has several datasets; give one of {sorted(map(str, data))}")
    features = dict(data.features or {})
    tables = _tables(data, features, is_told=schema is not None)
    first = next(tables, None)
    if first is None:
        if schema is None:
            raise SchemaError("the dataset has no rows to infer a schema from; pass schema=Unischema(...)")
        return []
    images = [name for name, feature in features.items() if _is_image(feature)]
    found = schema or _infer(first, images)
    fields = {name: found.fields[name] for name in images if name in found.fields}
    checked = _checked(itertools.chain([first], tables), fields)
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
        free = (None, None) if len(found.shape) == 2 else (None, None, 3)  # the next picture may have another size
        fields[name] = found._replace(shape=free)
    return Unischema(plain._name, list(fields.values()))


# --- its rows ---------------------------------------------------------------------------------------------------------


def _tables(data: Any, features: Mapping[str, Any], *, is_told: bool) -> Iterator[pa.Table]:
    row = 0
    for found in _batches(data, is_told=is_told):
        table = found.replace_schema_metadata(None)
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
    """Yield the rows as they come; a stream that does not say its types has to keep to those of its first rows.

    `is_told`: a schema says the types anyway.
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
    """Tell whether a feature, or one inside of it, may hold the name of a file instead of its bytes."""
    if isinstance(feature, dict):
        return any(map(_names_files, feature.values()))
    if isinstance(feature, list | tuple):
        return any(map(_names_files, feature))
    return hasattr(feature, "embed_storage") or _names_files(getattr(feature, "feature", ()))


def _with_files(column: pa.ChunkedArray, feature: Any) -> Any:
    """Return a column with the bytes of all files: an `Image` column as these bytes, others as they are nested."""
    if not _is_image(feature):
        tables = importlib.import_module("datasets.table")  # it is there: the data are of it
        return tables.embed_array_storage(column, feature)
    cells = []
    for row in column.to_pylist():
        cell = None if row is None else row["bytes"]
        if row is not None and cell is None:
            cell = feature.embed_storage(pa.array([row], feature.pa_type))[0]["bytes"].as_py()
        cells.append(cell)
    return pa.array(cells, pa.binary())


# --- its pictures -----------------------------------------------------------------------------------------------------

_CURE = (
    "convert the pictures, as by dataset.map(lambda row: {'image': row['image'].convert('RGB')}), or leave this one out"
)


def _checked(tables: Iterator[pa.Table], fields: Mapping[str, UnischemaField]) -> Iterator[pa.Table]:
    """Yield the tables, once every picture of them is known to fit its field."""
    fields = {name: field for name, field in fields.items() if isinstance(field.codec, CompressedImageCodec)}
    first = 0
    for table in tables:
        for name, field in fields.items():
            for row, cell in enumerate(table.column(name), first):
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
        if misfit(field, pixels) is None:  # what reading would say
            return
        what = f"the picture is {describe(fact)}, {fact.height} x {fact.width}"
    raise SchemaError(f"row {row}, column {field.name!r}: {what}, where the field says {wanted(field)}; {_CURE}")
