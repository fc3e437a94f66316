"""Read and replace `_common_metadata`, the key-value pairs that are stored beside the files of a dataset.

The schema, row-group indexes and Petastorm's metadata are in this one file, a Parquet file without rows. Readers see
the old file or the new one, never a part of it. Does not interpret keys and values.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.dataset.catalog import DataFile, Root
from penstock.dataset.footers import read_footer
from penstock.storage.publish import put, remove
from penstock.storage.store import has_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

COMMON_METADATA = "_common_metadata"
SUMMARY_METADATA = "_metadata"
_OWN = b"ARROW:schema"  # pyarrow writes it by itself


def read_common_metadata(root: Root) -> dict[bytes, bytes]:
    """Return the pairs of a dataset's `_common_metadata`; {} if there is no such file.

    Raises:
        BadFile: It is there and is no Parquet file.
    """
    return _pairs(_footer(root, COMMON_METADATA))


def update_common_metadata(first: DataFile, changes: Mapping[bytes, bytes | None]) -> None:
    """Set these pairs (None removes one) in the `_common_metadata` beside `first`, keeping the others and the columns.

    If there is no such file it is created with the columns of `_metadata`, or else of `first`. The file is replaced in
    one step; of two concurrent writers the later one wins, with its own pairs only.
    """
    root = first.root
    before = _footer(root, COMMON_METADATA)
    pairs = {**_pairs(before), **changes}
    columns = (before or _footer(root, SUMMARY_METADATA) or read_footer(first).arrow).schema.to_arrow_schema()
    schema = columns.with_metadata({key: value for key, value in pairs.items() if value is not None})
    replace_file(root, COMMON_METADATA, lambda sink: pq.write_metadata(schema, sink))


def replace_file(root: Root, name: str, fill: Callable[[Any], None]) -> None:
    """Write a file of the dataset's own folder so that readers see the old one or the new one; `fill` gets a stream."""
    sink = pa.BufferOutputStream()
    fill(sink)
    put(root.fs, posixpath.join(root.path, name), sink.getvalue())
    remove(root.fs, posixpath.join(root.path, f".{name}.crc"))  # Hadoop's checksum of the file that was replaced


def _footer(root: Root, name: str) -> Any:
    file = DataFile(root, name, None)
    # Requested now: `root.names` was listed when the dataset was opened.
    return read_footer(file).arrow if has_file(root.store, file.path) else None


def _pairs(footer: Any) -> dict[bytes, bytes]:
    stored = {} if footer is None else footer.metadata or {}
    return {key: value for key, value in stored.items() if key != _OWN}
