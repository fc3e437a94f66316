"""`penstock.write`: rows, arrays or Arrow tables to a Parquet dataset, without Spark.

The only file of this package that sees all its stages: `inputs` encodes, `layout` says how columns are stored, `files`
cuts and writes, `place` makes it appear whole or not at all. Reads nothing back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow.fs import FileSelector

from penstock.errors import SchemaError
from penstock.progress import progress
from penstock.schema.arrow import arrow_schema, infer_unischema
from penstock.schema.unischema import Unischema, UnischemaField
from penstock.storage.filesystem import resolve
from penstock.write.files import FileWriter, Written
from penstock.write.inputs import ArrowData, batches, num_rows
from penstock.write.layout import Layout, plan_layout
from penstock.write.options import AUTO, ROW_GROUP_BYTES, Compression, WriteOptions
from penstock.write.place import Place

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence


def write(  # noqa: PLR0913 - the public factory takes flat keywords
    data: Iterable[Mapping[str, Any]] | Mapping[str, Any] | pa.Table | pa.RecordBatch | pa.RecordBatchReader,
    url: str | os.PathLike[str],
    schema: Unischema | None = None,
    *,
    row_group_bytes: int = ROW_GROUP_BYTES,
    rows_per_file: int | None = None,
    partition_by: str | Sequence[str] | None = None,
    overwrite: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    filesystem: Any = None,
    compression: Compression = AUTO,
) -> Written:
    """Write a dataset that `penstock.open` (and Petastorm, and any Parquet reader) can read; return what was written.

    Rows keep their order. The dataset appears whole when the last row is in, or not at all: it is written into a hidden
    folder beside `url` and renamed. Memory is bounded by a few row groups, however many rows come.

        >>> schema = Unischema("Digits", [UnischemaField("image", np.uint8, (28, 28), NdarrayCodec(), False)])
        >>> penstock.write(({"image": image} for image in images), "/data/digits", schema)

    Args:
        data: an iterable of dicts, one a row, encoded by the schema's codecs as it is consumed; or a dict of equally
            long arrays, encoded too; or Arrow data (a DataFrame gives it), whose columns are taken as they are stored.
        url: folder to write; a path or any URL that `penstock.open` takes. An empty folder may be there.
        schema: fields and codecs; None: inferred from an Arrow table or from a dict of arrays (arrays of more than one
            dimension become `NdarrayCodec` cells). A field that is missing in the data must be nullable.
        row_group_bytes: most bytes of a row group, encoded and before Parquet's compression; at least one row is in.
        rows_per_file: rows of each file but the last of its folder; None: files of about 512 MiB.
        partition_by: columns that become folders (`name=value`) instead of being stored in the files.
        overwrite: replace the dataset at `url` if there is one; old or new is there at any time. A folder with anything
            but Parquet in it is never replaced.
        storage_options: for the filesystem of a URL.
        filesystem: a pyarrow or fsspec filesystem to use instead.
        compression: Parquet's codec, or one for each column; "auto" is snappy, and none for images and zipped arrays.

    Raises:
        DatasetExists: something is at `url` already.
        SchemaError: a row or column does not fit the schema; names row, field and cure. Nothing is left behind.
    """
    names = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by or ())
    options = WriteOptions(row_group_bytes, rows_per_file, names, overwrite, compression)
    data, layout = _describe(data, schema, names)
    fs, path = resolve(url, storage_options=storage_options, filesystem=filesystem)
    place = Place(fs, path.rstrip("/") or path)
    with place.filling(overwrite=options.overwrite) as folder:
        with FileWriter(fs, folder, layout, options) as writer:
            _pump(data, layout, writer, str(url))
        size = _size(fs, folder)
    return Written(str(url), writer.rows, writer.files, writer.row_groups, size)


def _pump(data: Any, layout: Layout, writer: FileWriter, label: str) -> None:
    with progress(num_rows(data), f"writing {label}", unit="rows") as bar:
        for batch in batches(data, layout):
            writer.add(batch)
            bar.update(batch.num_rows)


def _size(fs: Any, folder: str) -> int:
    found = fs.get_file_info(FileSelector(folder, recursive=True))
    return sum(info.size for info in found if info.path.endswith(".parquet"))


def _describe(data: Any, schema: Unischema | None, partition_by: tuple[str, ...]) -> tuple[Any, Layout]:
    """Return the data, as Arrow where it offers that, and the layout it is to have."""
    if hasattr(data, "__arrow_c_stream__") and not isinstance(data, ArrowData):
        data = pa.table(data)  # DataFrames of pandas, polars and others
    if schema is not None:
        if not isinstance(schema, Unischema):
            raise SchemaError(f"schema must be a Unischema or None; got {type(schema).__name__}")
        return data, plan_layout(schema, arrow_schema(schema), partition_by)
    if isinstance(data, ArrowData):
        columns = data.schema.remove_metadata()
        return data, plan_layout(infer_unischema(columns), columns, partition_by)
    if isinstance(data, Mapping):
        schema, columns = _infer(data)
        return data, plan_layout(schema, columns, partition_by)
    raise SchemaError(
        "rows need a schema: pass schema=Unischema(name, [UnischemaField(...), ...]), or give an Arrow table or a dict "
        "of arrays, whose schema can be inferred"
    )


def _infer(columns: Mapping[str, Any]) -> tuple[Unischema, pa.Schema]:
    """Return a schema for a dict of arrays: as Arrow sees them, `NdarrayCodec` for more than one dimension."""
    from penstock.codecs import NdarrayCodec

    num_rows(columns)  # refuses what is no column
    stored, fields = [], []
    for name, column in columns.items():
        if isinstance(column, np.ndarray) and column.ndim > 1:
            stored.append(pa.field(name, pa.binary(), nullable=False))
            fields.append(UnischemaField(name, column.dtype.type, column.shape[1:], NdarrayCodec(), False))
        else:
            stored.append(_arrow_field(name, column))
            fields.extend(infer_unischema(pa.schema(stored[-1:])).fields.values())
    return Unischema("inferred_schema", fields), pa.schema(stored)


def _arrow_field(name: str, column: Any) -> pa.Field:
    if isinstance(column, np.ndarray) and column.dtype.kind in "biuf":
        return pa.field(name, pa.from_numpy_dtype(column.dtype), nullable=isinstance(column, np.ma.MaskedArray))
    try:
        values = column if isinstance(column, pa.Array | pa.ChunkedArray) else pa.array(column)
    except pa.ArrowException as error:
        raise SchemaError(
            f"column {name!r}: cannot infer a type from {type(column).__name__}: {error}; pass schema=Unischema(...)"
        ) from error
    return pa.field(name, values.type, nullable=values.null_count > 0)
