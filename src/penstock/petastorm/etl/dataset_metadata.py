"""Schema and row groups of a dataset, from its metadata; and the context in which Spark writes a dataset.

On top of `penstock.dataset` and `penstock.spark`; `make_reader` does not come through here. `dataset` may be a URL, a
`penstock.Dataset` or a pyarrow dataset (see `_datasets`). Pickles that Petastorm stored are read without running them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import MetadataError
from penstock.petastorm._reader_options import petastorm_order
from penstock.petastorm.etl._datasets import files_at, files_of, source_of, stored_schema
from penstock.schema.petastorm_dump import ROW_GROUPS_PER_FILE_KEY
from penstock.schema.stored import PETASTORM_SCHEMA_KEY
from penstock.spark.materialize import PetastormMetadataGenerationError, materialize_dataset

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.dataset.catalog import DataFile
    from penstock.schema import Unischema

__all__ = [
    "ROW_GROUPS_PER_FILE_KEY",
    "UNISCHEMA_KEY",
    "DatasetRowGroup",
    "PetastormMetadataError",
    "PetastormMetadataGenerationError",
    "get_schema",
    "get_schema_from_dataset_url",
    "infer_or_load_unischema",
    "load_row_groups",
    "materialize_dataset",
]

UNISCHEMA_KEY = PETASTORM_SCHEMA_KEY
"""Where Petastorm keeps its pickled schema; ours is JSON under its own key."""
PetastormMetadataError = MetadataError
"""Stored metadata is missing or damaged: the error that all of Penstock raises for it."""


@dataclass(frozen=True, slots=True)
class DatasetRowGroup:
    """One row group of a dataset."""

    path: str
    """Its file, on the dataset's filesystem."""
    row_group: int
    """Its number in the file."""
    partition_keys: tuple[tuple[str, Any], ...]
    """Names and values of the folders it lies in."""
    num_rows: int
    """Its rows."""


def get_schema(dataset: Any) -> Unischema:
    """Return the schema that is stored with a dataset.

    Raises:
        PetastormMetadataError: None is stored, or it is damaged.
    """
    return _schema(files_of(dataset))


def get_schema_from_dataset_url(
    dataset_url_or_urls: Any,
    hdfs_driver: str = "libhdfs3",  # noqa: ARG001
    storage_options: Mapping[str, Any] | None = None,
    filesystem: Any = None,
) -> Unischema:
    """Return the schema that is stored with the dataset at a URL, or of files in one folder.

    Costs one listing and one to three small reads, however large the dataset is.

    Raises:
        PetastormMetadataError: None is stored (plain Parquet, which `make_batch_reader` reads), or it is damaged.
        ValueError: Not a URL, or a URL without a scheme.
    """
    return _schema(files_at(dataset_url_or_urls, storage_options=storage_options, filesystem=filesystem))


def _schema(files: list[DataFile]) -> Unischema:
    found = stored_schema(files)
    if found is None:
        raise PetastormMetadataError(
            f"no schema is stored in {files[0].root.path}: it is plain Parquet; read it with make_batch_reader, or "
            "store a schema by penstock.petastorm.etl.petastorm_generate_metadata"
        )
    return found


def infer_or_load_unischema(dataset: Any) -> Unischema:
    """Return the schema of a dataset: the stored one, else one inferred from the columns of its files.

    Reads the footers of all files: it also has the partition columns (first, where no schema is stored), and columns
    that a stored schema does not know.
    """
    return petastorm_order(source_of(dataset))


def load_row_groups(dataset: Any) -> list[DatasetRowGroup]:
    """Return the row groups of a dataset in the order of their ordinals: files by relative path, then as stored.

    Row groups without rows have no ordinal. Reads the footers of all files (or `_metadata`), never numbers that another
    writer stored.
    """
    source = source_of(dataset)
    facts = source.facts
    partitions = [
        tuple((name, values[file].as_py()) for name, values in facts.constants.items())
        for file in range(len(facts.files))
    ]
    chunks = zip(facts.chunk_file.tolist(), facts.chunk_part.tolist(), facts.chunk_rows.tolist(), strict=True)
    return [
        DatasetRowGroup(source.locate(chunk).path, group, partitions[file], rows)
        for chunk, (file, group, rows) in enumerate(chunks)
    ]
