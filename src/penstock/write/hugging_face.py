"""A dataset of Hugging Face's `datasets` as a source: Arrow batches in turn, pictures as the files that they are.

Asked by `sources` for objects of that library. Columns come as Arrow has them; an `Image` column, there a pair of bytes
and path, becomes one of image files, not encoded again, with a field that the first picture decides. Class labels come
as numbers. Nothing is decoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.errors import SchemaError
from penstock.schema.arrow import infer_unischema
from penstock.schema.unischema import Unischema
from penstock.write.images import facts_of_image, image_field

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

BATCH_ROWS = 512


def as_source(data: Any, schema: Unischema | None) -> Any:
    """Return a dataset, streamed or not, as tables in turn.

    Raises:
        SchemaError: it is a dict of splits, or has no rows and no schema was given.
    """
    from penstock.write.sources import Tables

    if isinstance(data, dict):
        raise SchemaError(f"a DatasetDict has several datasets; give one of {sorted(map(str, data))}")
    images = [name for name, kind in (data.features or {}).items() if type(kind).__name__ == "Image"]
    tables = _tables(data, images)
    first = next(tables, None)
    if first is None:
        if schema is None:
            raise SchemaError("the dataset has no rows to infer a schema from; pass schema=Unischema(...)")
        return []
    return Tables(first, tables, schema or _infer(first, images))


def _tables(data: Any, images: Sequence[str]) -> Iterator[pa.Table]:
    for found in data.with_format("arrow").iter(batch_size=BATCH_ROWS):
        table = found.replace_schema_metadata(None)
        for name in images:
            at = table.schema.get_field_index(name)
            table = table.set_column(at, name, _files(table.column(name)))
        yield table


def _files(column: pa.ChunkedArray) -> pa.Array:
    """Return the bytes of each picture; those that are only named are read."""
    cells = []
    for row in column.to_pylist():
        cell = None if row is None else row["bytes"]
        if row is not None and cell is None:
            with open(row["path"], "rb") as file:
                cell = file.read()
        cells.append(cell)
    return pa.array(cells, pa.binary())


def _infer(table: pa.Table, images: Sequence[str]) -> Unischema:
    plain = infer_unischema(table.schema.remove_metadata())
    fields = dict(plain.fields)
    for name in images:
        cells = [cell for cell in table.column(name).to_pylist() if cell is not None]
        facts = [facts_of_image(cell) for cell in cells[:1]]
        if not facts:
            raise SchemaError(f"the first {BATCH_ROWS} pictures of {name!r} are null; pass schema=Unischema(...)")
        found = image_field(name, facts, nullable=True)
        free = (None, None) if len(found.shape) == 2 else (None, None, 3)  # the next picture may have another size
        fields[name] = found._replace(shape=free)
    return Unischema(plain._name, list(fields.values()))
