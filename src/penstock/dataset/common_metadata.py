"""What is stored beside the files of a dataset: key-value pairs in `_common_metadata`, read and replaced whole.

The schema, row-group indexes and what Petastorm left there live in this one file, a Parquet file without rows. Readers
of the dataset see the old file or the new one, never half of one. Knows no key and no value.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem

from penstock.dataset.discover import DataFile, Root
from penstock.dataset.footers import read_footer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

COMMON_METADATA = "_common_metadata"
SUMMARY_METADATA = "_metadata"
_OWN = b"ARROW:schema"  # pyarrow writes it by itself


def read_common_metadata(root: Root) -> dict[bytes, bytes]:
    """Return the pairs of a dataset's `_common_metadata`; an empty dict where there is no such file.

    Raises:
        BadFile: It is there and is no Parquet file.
    """
    footer = _footer(root, COMMON_METADATA)
    return {} if footer is None else _pairs(footer)


def update_common_metadata(first: DataFile, changes: Mapping[bytes, bytes | None]) -> None:
    """Set these pairs (None removes one) in the `_common_metadata` beside `first`, keeping the others and the columns.

    Without such a file one is made with the columns of `_metadata`, else of `first`. The file is replaced in one step;
    of two writers at once the later one wins, with its own pairs only.
    """
    root = first.root
    before = _footer(root, COMMON_METADATA)
    pairs = {} if before is None else _pairs(before)
    pairs.update({key: value for key, value in changes.items() if value is not None})
    for key in [key for key, value in changes.items() if value is None]:
        pairs.pop(key, None)
    columns = (before or _footer(root, SUMMARY_METADATA) or read_footer(first)[0].arrow).schema.to_arrow_schema()
    schema = columns.with_metadata(pairs)
    replace_file(root, COMMON_METADATA, lambda sink: pq.write_metadata(schema, sink))


def replace_file(root: Root, name: str, fill: Callable[[Any], None]) -> None:
    """Write a file of the dataset's own folder so that it appears whole; `fill` gets a stream.

    Locally it is written under a hidden name and renamed; a store shows an object only when it is complete.
    """
    path = posixpath.join(root.path, name)
    if not isinstance(root.fs, LocalFileSystem):
        with root.fs.open_output_stream(path) as sink:
            fill(sink)
        return
    hidden = posixpath.join(root.path, f".{name}.{os.urandom(6).hex()}.writing")
    try:
        with root.fs.open_output_stream(hidden) as sink:
            fill(sink)
        os.replace(hidden, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(hidden)
        raise
    with contextlib.suppress(FileNotFoundError):
        os.remove(posixpath.join(root.path, f".{name}.crc"))  # Hadoop's checksum of the file that was there


def _footer(root: Root, name: str) -> Any:
    file = DataFile(root, name, None)
    # Asked for now: `root.names` is what was there when the dataset was listed.
    return read_footer(file)[0].arrow if root.fs.get_file_info(file.path).is_file else None


def _pairs(footer: Any) -> dict[bytes, bytes]:
    return {key: value for key, value in (footer.metadata or {}).items() if key != _OWN}
