"""Store a schema with a dataset that has none, or whose files have changed: `_common_metadata`, and nothing else.

Takes the schema from a Python object or from what is stored already, checks that it fits the files, and writes it as
JSON and as Petastorm's pickle. Needs no Spark; data files are not touched.
"""

from __future__ import annotations

import argparse
import importlib
from typing import TYPE_CHECKING, Any

from penstock.dataset.store_schema import store_schema
from penstock.errors import MetadataError
from penstock.petastorm.etl._datasets import files_at, source_at, stored_schema
from penstock.petastorm.etl.dataset_metadata import PetastormMetadataGenerationError
from penstock.petastorm.tools._command import command
from penstock.schema import Unischema

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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

    Reads the footers of all files once. Stores the schema, as Penstock's JSON and as Petastorm's pickle, and the
    numbers of row groups that Petastorm needs. Row-group indexes stay while the files are those that they were built
    from, else they are removed; other entries stay.

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
    try:
        store_schema(source, schema, summary=use_summary_metadata)
    except MetadataError as error:
        raise PetastormMetadataGenerationError(str(error)) from error


def _locate(dotted: str) -> Unischema:
    """Return the schema at `package.module.Name`."""
    module, _, name = dotted.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise PetastormMetadataGenerationError(f"cannot find the schema {dotted!r}: {error}") from error
    if not isinstance(found, Unischema):
        raise PetastormMetadataGenerationError(f"{dotted} is not a Unischema but a {type(found).__name__}")
    return found


@command("petastorm-generate-metadata.py")
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
