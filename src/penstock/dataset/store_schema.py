"""Store a schema beside a dataset's files: as JSON, and in Petastorm's form if it has one.

Called when the files are complete: after writing with Spark, and by the tool that adds a schema to plain Parquet. Uses
footers that the source has read, and replaces `_common_metadata` (and `_metadata`, on request) in one step each.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from penstock.dataset.common_metadata import (
    SUMMARY_METADATA,
    read_common_metadata,
    replace_file,
    update_common_metadata,
)
from penstock.dataset.index_store import INDEX_KEY, load_indexes
from penstock.dataset.parquet import ParquetSource, as_parquet
from penstock.errors import MetadataError, SchemaError
from penstock.schema.petastorm_dump import ROW_GROUPS_PER_FILE_KEY, dump_row_group_counts, dump_unischema
from penstock.schema.petastorm_pickle import load_unischema
from penstock.schema.stored import PETASTORM_INDEX_KEY, PETASTORM_SCHEMA_KEY, SCHEMA_KEY, schema_to_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.schema.unischema import Unischema
    from penstock.source import Source

logger = logging.getLogger(__name__)


def metadata_pairs(schema: Unischema, row_groups: Mapping[str, int]) -> dict[bytes, bytes | None]:
    """Return what `_common_metadata` says of a schema and of the row groups of each file (by relative path).

    Petastorm's keys are None, to be removed, where it could not read the schema; that is logged once at INFO.
    """
    pairs: dict[bytes, bytes | None] = {SCHEMA_KEY: schema_to_json(schema).encode()}
    try:
        pairs[PETASTORM_SCHEMA_KEY] = dump_unischema(schema)
        pairs[ROW_GROUPS_PER_FILE_KEY] = dump_row_group_counts(row_groups)
    except SchemaError as error:
        logger.info("the dataset gets no metadata for Petastorm, only our own: %s", error)
        pairs[PETASTORM_SCHEMA_KEY] = pairs[ROW_GROUPS_PER_FILE_KEY] = None
    return pairs


def store_schema(dataset: Source, schema: Unischema, *, summary: bool) -> None:
    """Store a schema and the numbers of row groups with a dataset; an index built from other files is removed.

    With `summary` also `_metadata`, which holds all footers and spares reading them; one that is there is made anew in
    any case, since it would hide files that are newer. The source is not to be used afterwards.

    Raises:
        MetadataError: The files have columns that one `_metadata` cannot hold together.
    """
    source = as_parquet(dataset)
    first = source.entries[0]
    groups = {path: int(source.footer(file).arrow.num_row_groups) for file, path in enumerate(source.facts.files)}
    pairs = metadata_pairs(schema, groups)
    try:
        load_indexes(source)
    except MetadataError:  # none, or of files that have changed since
        pairs |= {INDEX_KEY: None, PETASTORM_INDEX_KEY: None}
    before = read_common_metadata(first.root).get(PETASTORM_SCHEMA_KEY)
    if pairs[PETASTORM_SCHEMA_KEY] is None and before is not None and _says(before, schema):
        pairs[PETASTORM_SCHEMA_KEY] = before  # with a codec that only its owner can pickle
        pairs[ROW_GROUPS_PER_FILE_KEY] = dump_row_group_counts(groups)
    update_common_metadata(first, pairs)
    if summary or SUMMARY_METADATA in (first.root.names or ()):
        _write_summary(source)


def _says(pickled: bytes, schema: Unischema) -> bool:
    try:
        return load_unischema(pickled) == schema
    except MetadataError:
        return False


def _write_summary(source: ParquetSource) -> None:
    """Put the footers of all files into one, which changes them."""
    whole: Any = None
    for file, path in enumerate(source.facts.files):
        footer = source.footer(file).arrow
        footer.set_file_path(path)
        if whole is None:
            whole = footer
            continue
        try:
            whole.append_row_groups(footer)
        except RuntimeError as error:
            raise MetadataError(
                f"{path} has other columns than {source.facts.files[0]}, and one _metadata cannot hold both; "
                "leave use_summary_metadata out"
            ) from error
    replace_file(source.entries[0].root, SUMMARY_METADATA, whole.write_metadata_file)
