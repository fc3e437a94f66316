"""Store a schema with a dataset that has none, or whose files have changed: `_common_metadata`, and nothing else.

Takes the schema from a Python object or from what is stored already, checks that it fits the files, and writes it as
JSON. Needs no Spark; data files are not touched.
"""

from __future__ import annotations

import argparse
import importlib
import json
from typing import TYPE_CHECKING, Any

from penstock.dataset.common_metadata import (
    SUMMARY_METADATA,
    read_common_metadata,
    replace_file,
    update_common_metadata,
)
from penstock.petastorm.etl._datasets import files_at, source_at, stored_schema
from penstock.petastorm.etl.dataset_metadata import (
    ROW_GROUPS_PER_FILE_KEY,
    UNISCHEMA_KEY,
    PetastormMetadataGenerationError,
)
from penstock.schema import Unischema
from penstock.schema.stored import SCHEMA_KEY, find_schema, schema_to_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.dataset.discover import Root
    from penstock.dataset.parquet import ParquetSource

__all__ = ["generate_petastorm_metadata", "main"]


def generate_petastorm_metadata(  # noqa: PLR0913 - Petastorm's signature
    spark: Any,  # noqa: ARG001
    dataset_url: str,
    unischema_class: str | None = None,
    use_summary_metadata: bool = False,
    hdfs_driver: str = "libhdfs3",  # noqa: ARG001
    *,
    storage_options: Mapping[str, Any] | None = None,
    filesystem: Any = None,
) -> None:
    """Store the schema of a dataset in its `_common_metadata`, replacing that file in one step.

    Reads the footers of all files once; other entries stay, but what Petastorm stored is brought in line with the files
    (the number of their row groups) or removed (a pickled schema that another one replaces).

    Args:
        spark: Petastorm's; not needed, pass None. A session is left as it is.
        dataset_url: The folder of the dataset.
        unischema_class: Where the schema is, as `package.module.Name`; None: the one that is stored already.
        use_summary_metadata: Also write `_metadata`, which holds the footers of all files and spares reading them.
        hdfs_driver: Petastorm's; without effect.
        storage_options: Passed to fsspec for URLs.
        filesystem: A pyarrow or fsspec filesystem to use instead of the URL's.

    Raises:
        PetastormMetadataGenerationError: No schema is given and none is stored, or there is none at `unischema_class`.
        SchemaError: The schema does not fit the files; nothing was written.
    """
    files = files_at(dataset_url, storage_options=storage_options, filesystem=filesystem)
    schema = stored_schema(files) if unischema_class is None else _locate(unischema_class)
    if schema is None:
        raise PetastormMetadataGenerationError(
            f"no schema is stored in {files[0].root.path}; name one by unischema_class='package.module.Name'"
        )
    source = source_at(dataset_url, schema=schema, storage_options=storage_options, filesystem=filesystem)
    update_common_metadata(files[0], _changes(files[0].root, schema, source))
    if use_summary_metadata:
        _write_summary(source)


def _changes(root: Root, schema: Unischema, source: ParquetSource) -> dict[bytes, bytes | None]:
    before = read_common_metadata(root)
    changes: dict[bytes, bytes | None] = {SCHEMA_KEY: schema_to_json(schema).encode()}
    if ROW_GROUPS_PER_FILE_KEY in before:
        groups = {path: source.footer(file).num_row_groups for file, path in enumerate(source.files)}
        changes[ROW_GROUPS_PER_FILE_KEY] = json.dumps(groups).encode()
    if UNISCHEMA_KEY in before and find_schema({UNISCHEMA_KEY: before[UNISCHEMA_KEY]}) != schema:
        changes[UNISCHEMA_KEY] = None
    return changes


def _write_summary(source: ParquetSource) -> None:
    """Put the footers of all files into one, which changes them: the source is not to be used afterwards."""
    whole: Any = None
    for file, path in enumerate(source.files):
        footer = source.footer(file)
        footer.set_file_path(path)
        try:
            whole = footer if whole is None else _appended(whole, footer)
        except RuntimeError as error:
            raise PetastormMetadataGenerationError(
                f"{path} has other columns than {source.files[0]}, and one _metadata cannot hold both; "
                "leave use_summary_metadata out"
            ) from error
    replace_file(source._files[0].root, SUMMARY_METADATA, whole.write_metadata_file)


def _appended(whole: Any, footer: Any) -> Any:
    whole.append_row_groups(footer)
    return whole


def _locate(dotted: str) -> Unischema:
    """Return the schema at `package.module.Name`."""
    module, _, name = dotted.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise PetastormMetadataGenerationError(f"cannot find the schema {dotted!r}: {error}") from error
    if not isinstance(found, Unischema):
        raise PetastormMetadataGenerationError(f"{dotted} is no Unischema but {type(found).__name__}")
    return found


def main(args: Sequence[str] | None = None) -> None:
    """Store the schema of a dataset, from the command line."""
    parser = argparse.ArgumentParser(prog="petastorm-generate-metadata.py", description=__doc__)
    parser.add_argument("--dataset_url", required=True, help="folder of the dataset, e.g. file:///data/set")
    parser.add_argument("--unischema_class", help="where the schema is: package.module.Name; default: the stored one")
    parser.add_argument("--use-summary-metadata", action="store_true", help="also write _metadata")
    parser.add_argument("--master", help="ignored: no Spark is needed")
    parser.add_argument("--spark-driver-memory", default="4g", help="ignored: no Spark is needed")
    parser.add_argument("--hdfs-driver", default="libhdfs3", help="ignored: one driver is left")
    given = parser.parse_args(args)
    generate_petastorm_metadata(None, given.dataset_url, given.unischema_class, given.use_summary_metadata)


if __name__ == "__main__":
    main()
