"""Where pages begin in files without an offset index: found once by a scan, stored beside the dataset or in a cache.

`penstock index` scans page headers and writes what it finds with `write_sidecar`; `part_source` loads it as
`StoredPages` and reads parts of row groups by it, as if the files had offset indexes. Only a file beside the dataset is
used by default: all hosts see the same one, so all ranks of a run divide row groups alike.

On disk: a Parquet file with a row for each column chunk, `.penstock_pages` in the root of the dataset, or named
after the root's URL in the cache folder of the user. It names data files by relative path, size and the checksum of
their footer, so nothing is used for a file that was written again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import posixpath
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem

from penstock.dataset.catalog import Root
from penstock.dataset.footers import READ_ERRORS
from penstock.dataset.page_index import DamagedPages, PageIndex, Unsplittable, make_page_index
from penstock.dataset.read import CAN_VERIFY, verifying
from penstock.errors import MetadataError, StoreError, StoreRefused
from penstock.storage.disk_cache import user_cache_folder
from penstock.storage.publish import put

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from penstock.dataset.page_index import ChunkPages
    from penstock.dataset.read import StoredRowGroup

SIDECAR = ".penstock_pages"
"""Name of the file beside a dataset. Other readers skip names with a dot, and `*.parquet` must not find it."""
_VERSION = {b"penstock.pages": b"1"}
_INTEGER = pa.field("element", pa.int32())  # as Parquet calls it
SIDECAR_SCHEMA = pa.schema(
    {
        "file": pa.string(),  # path below the root
        "file_bytes": pa.int64(),
        "footer_crc32": pa.int64(),
        "row_group": pa.int32(),
        "leaf": pa.int32(),
        "dictionary_pages": pa.int32(),  # how many pages use the dictionary, the first ones
        "page_rows": pa.list_(_INTEGER),
        "page_bytes": pa.list_(_INTEGER),  # with the header; the last page ends where the column chunk ends
        "reason": pa.string(),  # why its pages cannot be read one by one; null if they can
    },
    metadata=_VERSION,
)
"""Columns of the file; rows of one data file are neighbours."""

FileKey = tuple[str, int, int]
"""Path, bytes, and checksum of the footer: what a data file is known by."""


def key_of(group: StoredRowGroup) -> FileKey:
    """Return what the file of a row group is known by; the path is the whole one."""
    return group.file.path, group.size, group.index.seen.checksum


def sidecar_place(root: Root, *, beside: bool) -> tuple[Root, str]:
    """Return where the pages of a dataset are stored: a folder, and the path of the file."""
    if beside:
        return root, posixpath.join(root.path, SIDECAR)
    folder = (Path(user_cache_folder()) / "pages").as_posix()
    name = hashlib.blake2b(root.store.url(root.path).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
    return Root(LocalFileSystem(), folder), posixpath.join(folder, f"{name}.parquet")


def index_command(root: Root, *, beside: bool) -> str:
    """Return the command that stores the pages of a dataset, for messages."""
    return f"`penstock index {'--beside ' if beside else ''}{root.store.url(root.path)}`"


def read_sidecar(root: Root, *, beside: bool) -> pa.Table | None:
    """Return what is stored about the files below a folder, beside it or in the cache; None if there is nothing.

    Raises:
        MetadataError: it is damaged, or of another version.
        StoreUnavailable, StoreRefused: the store does not answer, or denies access.
    """
    place, path = sidecar_place(root, beside=beside)
    try:
        size = place.store.stat(path).size or 0
        data = place.store.read_ranges(path, [(0, size)])[0]
        table = pq.ParquetFile(data, **verifying(verify=True)).read()
        is_known = (table.schema.metadata or {}).items() >= _VERSION.items() and table.schema.equals(SIDECAR_SCHEMA)
        if not is_known:
            raise OSError("it is not an index of pages that this version of Penstock knows")
    except FileNotFoundError:
        return None
    except StoreError:
        raise
    except READ_ERRORS as exc:
        wrong = (str(exc).strip() or type(exc).__name__).splitlines()[0]
        raise MetadataError(
            f"the index of pages at {place.store.url(path)} cannot be read ({wrong}) and is not used; run "
            f"{index_command(root, beside=beside)} again, or delete it"
        ) from exc
    return table


def write_sidecar(place: Root, path: str, table: pa.Table) -> int:
    """Store a table of `SIDECAR_SCHEMA`, replacing one that is there, atomically; return its bytes."""
    sink = pa.BufferOutputStream()
    checksums = {"write_page_checksum": True} if CAN_VERIFY else {}
    pq.write_table(table, sink, compression="zstd", **checksums)
    data = sink.getvalue()
    if isinstance(place.fs, LocalFileSystem):
        os.makedirs(posixpath.dirname(path), exist_ok=True)
    put(place.fs, path, data)
    return int(data.size)


def files_of(table: pa.Table) -> Iterator[tuple[FileKey, int, int]]:
    """Yield each data file of a table, by relative path, with the first of its rows and the stop."""
    columns = [table.column(name).to_numpy() for name in ("file", "file_bytes", "footer_crc32")]
    begins = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    firsts = [0, *(1 + np.flatnonzero(begins)).tolist()] if table.num_rows else []
    for start, stop in zip(firsts, [*firsts[1:], table.num_rows], strict=False):
        yield (columns[0][start], int(columns[1][start]), int(columns[2][start])), start, stop


class _Sidecar(NamedTuple):
    """The columns of one stored table."""

    url: str
    row_group: NDArray[np.int32]
    leaf: NDArray[np.int32]
    dictionary_pages: NDArray[np.int32]
    page_rows: pa.ListArray
    page_bytes: pa.ListArray
    reason: pa.StringArray


class StoredPages:
    """The pages that sidecars list, for the files as they are now; safe for threads. Takes 8 bytes for each page."""

    def __init__(self) -> None:
        self.paths: set[str] = set()
        """Data files that are listed, as they are now or as they were."""
        self._files: dict[FileKey, tuple[_Sidecar, int, int]] = {}

    def load(self, roots: Iterable[Root], *, beside: bool) -> None:
        """Add what is stored about the files below some folders: beside them, or in the cache.

        Raises:
            MetadataError, StoreUnavailable: as `read_sidecar`.
        """
        for root in roots:
            with contextlib.suppress(StoreRefused):  # some stores refuse to say that a file is not there
                table = read_sidecar(root, beside=beside)
                if table is not None:
                    place, path = sidecar_place(root, beside=beside)
                    self.add(root, place.store.url(path), table)

    def add(self, root: Root, url: str, table: pa.Table) -> None:
        """Add a stored table about the files below a folder; `url` is that of the table, for messages."""
        columns: Mapping[str, Any] = {name: table.column(name).combine_chunks() for name in _Sidecar._fields[4:]}
        numbers = (table.column(name).to_numpy() for name in _Sidecar._fields[1:4])
        stored = _Sidecar(url, *numbers, **columns)
        for (relative, size, checksum), start, stop in files_of(table):
            path = posixpath.join(root.path, relative)
            self.paths.add(path)
            self._files[path, size, checksum] = stored, start, stop

    def covers(self, key: FileKey, number: int) -> bool:
        """Tell whether the pages of a row group are listed."""
        stored, start, stop = self._files.get(key, (None, 0, 0))
        return stored is not None and bool((stored.row_group[start:stop] == number).any())

    def find(self, group: StoredRowGroup, leaf: int, chunk: ChunkPages) -> PageIndex | None:
        """Return the pages of a column chunk; None if they are not listed.

        Raises:
            Unsplittable: they cannot be read one by one.
            DamagedPages: what is stored does not fit the column chunk.
        """
        stored, start, stop = self._files.get(key_of(group), (None, 0, 0))
        if stored is None:
            return None
        here = (stored.row_group[start:stop] == group.number) & (stored.leaf[start:stop] == leaf)
        rows = start + np.flatnonzero(here)
        if not len(rows):
            return None
        row = int(rows[0])
        if stored.reason[row].is_valid:
            raise Unsplittable(stored.reason[row].as_py())
        try:
            counts, sizes = (
                np.array(column[row].as_py(), np.int64) for column in (stored.page_rows, stored.page_bytes)
            )
            used = int(stored.dictionary_pages[row])
            if len(counts) != len(sizes) or counts.sum() != chunk.num_rows or not 0 <= used <= len(counts):
                raise DamagedPages(f"{counts.sum()} rows in {len(sizes)} pages, of a row group of {chunk.num_rows}")
            offsets = chunk.stop - np.cumsum(sizes[::-1])[::-1]
            found = make_page_index(chunk, np.cumsum(counts) - counts, offsets, sizes)
        except (DamagedPages, ValueError, TypeError) as exc:
            raise DamagedPages(
                f"what {stored.url} says about its pages does not fit ({exc}); delete it, run `penstock index` again"
            ) from exc
        return PageIndex(found.rows, found.offsets, found.start, used)
