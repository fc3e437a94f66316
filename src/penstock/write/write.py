"""`penstock.write`: rows, arrays, Arrow data or DataFrames to a Parquet dataset, without Spark.

One call over `Writer`: everything is there when it returns, or nothing. Reads nothing back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.write.options import AUTO, ROW_GROUP_BYTES, Compression

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from penstock.schema.unischema import Unischema
    from penstock.write.files import Written


def write(  # noqa: PLR0913 - the public factory takes flat keywords
    data: Any,
    url: str | os.PathLike[str],
    schema: Unischema | None = None,
    *,
    row_group_bytes: int = ROW_GROUP_BYTES,
    rows_per_file: int | None = None,
    partition_by: str | Sequence[str] | None = None,
    overwrite: bool = False,
    resume: bool = False,
    part: int | None = None,
    workers: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    filesystem: Any = None,
    compression: Compression = AUTO,
) -> Written:
    """Write a dataset that `penstock.open` (and Petastorm, and any Parquet reader) can read; return what was written.

    Rows keep their order. The dataset appears whole when the last row is in, or not at all. Values are encoded on all
    cores; memory is bounded by a few row groups, however many rows come.

        >>> schema = Unischema("Digits", [UnischemaField("image", np.uint8, (28, 28), NdarrayCodec(), False)])
        >>> penstock.write(({"image": image} for image in images), "/data/digits", schema)

    Args:
        data: an iterable of dicts, one a row, or a dict of equally long columns, both encoded by the schema's codecs;
            or Arrow data (a table, a batch, a reader, an iterable of tables or batches), whose columns are taken as
            they are stored; or a DataFrame of pandas or Polars, or a dataset of Hugging Face.
        url: folder to write; a path or any URL that `penstock.open` takes. An empty folder may be there.
        schema: fields and codecs; None: inferred, but for rows (arrays of more than one dimension become
            `NdarrayCodec` cells). A field that is missing in the data must be nullable.
        row_group_bytes: most bytes of a row group, encoded and before Parquet's compression; at least one row is in.
        rows_per_file: rows of each file but the last of its folder; None: files of about 512 MiB.
        partition_by: columns that become folders (`name=value`) instead of being stored in the files.
        overwrite: replace the dataset at `url` if there is one; where folders can be renamed, old or new is there at
            any time. A folder with anything but Parquet in it is never replaced.
        resume: go on where an earlier `write` of the same data stopped, if there was one: the rows in its finished
            files are passed over. If this one fails, what is safe is kept for the next.
        part: which of several writers of one dataset this is; see `penstock.Writer` and `penstock.commit`.
        workers: threads that encode; None: one for each core.
        storage_options: for the filesystem of a URL.
        filesystem: a pyarrow or fsspec filesystem to use instead.
        compression: Parquet's codec, or one for each column; "auto" is snappy, and none for images and zipped arrays.

    Raises:
        DatasetExists: something is at `url` already.
        SchemaError: a row or column does not fit the schema; names row, field, what is wanted and what came.
    """
    from penstock.write.writer import Writer

    writer = Writer(
        url,
        schema,
        row_group_bytes=row_group_bytes,
        rows_per_file=rows_per_file,
        partition_by=partition_by,
        overwrite=overwrite,
        resume=resume,
        part=part,
        workers=workers,
        storage_options=storage_options,
        filesystem=filesystem,
        compression=compression,
    )
    with writer:
        writer._take(writer._expect(data), skip=writer.rows, copy=False)
    return writer.written
