"""Find the pages of files without an offset index, and store where they begin: `penstock index`.

Such files are read in parts afterwards, as if their writer had stored the index, without being written again. Reads
only page headers, of row groups that are large enough for parts; `page_sidecar` has the stored form. Files that
are listed already and have not changed are not read again.
"""

from __future__ import annotations

import contextlib
import errno
import posixpath
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.dataset.catalog import threads_for
from penstock.dataset.divide import divide
from penstock.dataset.page_sidecar import (
    SIDECAR_SCHEMA,
    StoredPages,
    files_of,
    index_command,
    key_of,
    read_sidecar,
    sidecar_place,
    write_sidecar,
)
from penstock.dataset.pages import open_pages
from penstock.dataset.read import FileTouched
from penstock.errors import MetadataError, StoreRefused
from penstock.progress import progress

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from penstock.dataset.catalog import Root
    from penstock.dataset.divide import Unindexed
    from penstock.dataset.page_sidecar import FileKey
    from penstock.dataset.parquet import ParquetSource
    from penstock.dataset.read import StoredRowGroup


class StoredIndex(NamedTuple):
    """What was stored for one folder."""

    url: str
    num_bytes: int
    scanned: int
    """Row groups whose page headers were read now; the others were listed already."""
    pages: int
    """Pages that were found in them."""
    whole: Mapping[str, str]
    """Columns that are read whole all the same, and why."""


def store_pages(source: ParquetSource, *, beside: bool) -> list[StoredIndex]:
    """Find and store the pages of row groups without an offset index; see `penstock.doctor.index_pages`."""
    unindexed = divide(source).unindexed
    roots: dict[int, tuple[Root, list[int]]] = {}
    for chunk in sorted(unindexed):
        root = source.entries[source.facts.chunk_file[chunk]].root
        roots.setdefault(id(root), (root, []))[1].append(chunk)
    return [
        _index_root(source, root, {chunk: unindexed[chunk] for chunk in some}, beside=beside)
        for root, some in roots.values()
    ]


def _index_root(source: ParquetSource, root: Root, unindexed: Mapping[int, Unindexed], *, beside: bool) -> StoredIndex:
    """Bring the stored index of one folder up to date."""
    place, path = sidecar_place(root, beside=beside)
    url, before, stored = place.store.url(path), SIDECAR_SCHEMA.empty_table(), StoredPages()
    with contextlib.suppress(MetadataError):  # damaged: replaced
        before = read_sidecar(root, beside=beside) or before
    stored.add(root, url, before)
    missing = [chunk for chunk, one in unindexed.items() if not stored.covers(one.key, one.number)]
    kept = [*_kept(before, source, root, {one.key for one in unindexed.values()})]
    found = _scan(source, missing)
    table = pa.concat_tables([SIDECAR_SCHEMA.empty_table(), *kept, *(one.table for one in found)])
    if missing or table.num_rows != before.num_rows:
        table = table.sort_by([(name, "ascending") for name in ("file", "row_group", "leaf")])
        try:
            num_bytes = write_sidecar(place, path, table)
        except OSError as exc:
            if not beside or not (isinstance(exc, PermissionError) or exc.errno == errno.EROFS):
                raise
            raise StoreRefused(
                f"the index of pages cannot be stored at {url} ({exc}): run {index_command(root, beside=False)} on "
                "every host, which stores it in a cache, and load with parts=True; or ask who may write there",
                url=url,
            ) from exc
    else:
        num_bytes = place.store.stat(path).size or 0
    whole = {name: why for one in found for name, why in one.whole.items()}
    return StoredIndex(url, num_bytes, len(missing), sum(one.pages for one in found), whole)


def _kept(table: pa.Table, source: ParquetSource, root: Root, current: Collection[FileKey]) -> Iterator[pa.Table]:
    """Give the rows of a stored index that are still right: of files as they are, and of files that were not opened."""
    opened = {file.path for file in source.entries}
    for (relative, size, checksum), start, stop in files_of(table):
        path = posixpath.join(root.path, relative)
        other = root.names is None and path not in opened  # a pattern or a list: the folder may hold more files
        if other or (path, size, checksum) in current:
            yield table.slice(start, stop - start)


class _Scanned(NamedTuple):
    """What was found in one row group."""

    table: pa.Table
    """Rows to store."""
    pages: int
    whole: Mapping[str, str]
    """Columns that cannot be read by pages, and why."""


def _scan(source: ParquetSource, chunks: Sequence[int]) -> list[_Scanned]:
    """Read the page headers of row groups, in threads."""

    def scan_one(chunk: int) -> _Scanned:
        group = source.part(chunk)
        try:
            return _scan_group(group)
        except FileTouched:  # once more, without watching the file: it may be touched all the time
            return _scan_group(replace(group, watched=False))

    found: list[_Scanned] = []
    with (
        ThreadPoolExecutor(threads_for(source.entries[0].root.fs)) as pool,
        progress(len(chunks), "indexing pages", unit="row groups") as bar,
    ):
        for one in pool.map(scan_one, chunks):
            found.append(one)
            bar.update()
    return found


def _scan_group(group: StoredRowGroup) -> _Scanned:
    """Find the pages of the column chunks of a row group that have no offset index."""
    pages = open_pages(group, group.index.schema.names, scan=True)
    relative, (_, size, checksum) = group.file.relative, key_of(group)
    row = {"file": relative, "file_bytes": size, "footer_crc32": checksum, "row_group": group.number}
    rows: list[dict[str, Any]] = []
    leaves = [] if pages.file is None else pages.file.leaves
    for leaf, chunk, index in zip(leaves, pages.chunks, pages.indexes, strict=True):
        if chunk.index is None:
            counts, sizes = (np.diff(one).astype(np.int32) for one in (index.rows, index.offsets))
            found = {"dictionary_pages": index.dictionary_pages, "page_rows": counts, "page_bytes": sizes}
            rows.append(row | {"leaf": leaf} | found)
    num_pages = sum(len(one["page_rows"]) for one in rows)
    for name, why in pages.whole.items():
        no_pages = {"dictionary_pages": 0, "page_rows": [], "page_bytes": [], "reason": why}
        rows += [row | {"leaf": leaf} | no_pages for leaf in group.index.chunks.below(name)]
    return _Scanned(pa.Table.from_pylist(rows, SIDECAR_SCHEMA), num_pages, pages.whole)
