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

    Rows keep their order. The dataset appears complete after the last row, or not at all. Values are encoded on all
    cores; memory is bounded by a few row groups, for any number of rows.

        >>> schema = Unischema("Digits", [UnischemaField("image", np.uint8, (28, 28), NdarrayCodec(), False)])
        >>> penstock.write(({"image": image} for image in images), "/data/digits", schema)

    Args:
        data: an iterable of dicts, one for each row, or a dict of columns of equal length, both encoded by the codecs
            of the schema; or Arrow data (a table, a batch, a reader, an iterable of tables or batches), whose columns
            are stored as they are; or a DataFrame of pandas or Polars, or a Hugging Face dataset.
        url: folder to write; a path or any URL that `penstock.open` takes. It may be an existing empty folder.
        schema: fields and codecs; needed for rows. None: inferred, where arrays of more than one dimension become
            `NdarrayCodec` cells. A field that is missing in the data must be nullable.
        row_group_bytes: most bytes of a row group, encoded and before Parquet's compression; at least one row.
        rows_per_file: rows of each file except the last of its folder; None: files of about 512 MiB.
        partition_by: columns that become folders (`name=value`) instead of being stored in the files.
        overwrite: replace an existing dataset at `url`; on filesystems that rename folders, in one step. A folder with
            other files than Parquet is never replaced.
        resume: continue where an earlier `write` of the same data stopped, if there was one: the rows in its finished
            files are skipped. If this call fails, its finished files are kept for the next one.
        part: which of several writers of one dataset this is; see `penstock.Writer` and `penstock.commit`.
        workers: threads that encode; None: one for each core.
        storage_options: for the filesystem of a URL.
        filesystem: a pyarrow or fsspec filesystem to use instead.
        compression: Parquet's codec, or one for each column; "auto" is snappy, and none for images and zipped arrays.

    Raises:
        DatasetExists: something is at `url` already.
        SchemaError: a row or column does not fit the schema; names row, field, what was expected and what was given.
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
