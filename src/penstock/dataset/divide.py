"""How the row groups of a dataset are divided into parts, by the footers of its files, and why some are not.

`divide` applies `parts.part_borders` to every row group: by its offset index, and for files without one as a scan of
page headers would allow. `find_pages` decides whether the latter are divided, and from where their pages are known
(`page_sidecar`); it warns, once for a dataset, where large row groups have to be shuffled as a whole. Reads footers
that are not in memory, and stored indexes of pages; no data.
"""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from pyarrow.fs import LocalFileSystem

from penstock.dataset.catalog import threads_for
from penstock.dataset.page_sidecar import StoredPages, index_command, key_of
from penstock.dataset.pages import part_facts, why_whole
from penstock.dataset.parts import may_be_divided, part_borders
from penstock.errors import BadFile, FileChanged, MetadataError, PenstockWarning, PlanError, users_level

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from penstock.dataset.catalog import Root
    from penstock.dataset.page_sidecar import FileKey
    from penstock.dataset.parquet import ParquetSource

    Integers = NDArray[np.int64]

FEW_GROUPS, LARGE_BYTES = 8, 32 << 20
"""More row groups than that, each larger than that, mix badly in the default shuffle buffer."""


class Unindexed(NamedTuple):
    """A row group that can be divided once its pages are found."""

    borders: Integers
    """First row of each part, and the number of rows."""
    key: FileKey
    """Its file."""
    number: int
    num_bytes: int
    """Before compression."""


class Whole(NamedTuple):
    """Why a row group without an offset index cannot be divided."""

    column: str
    why: str
    num_bytes: int
    """Before compression."""


class Division(NamedTuple):
    """How row groups are divided, by the number of their chunk."""

    indexed: dict[int, Integers]
    """Borders of the parts of chunks that offset indexes in the files divide: first rows, and the number of rows."""
    unindexed: dict[int, Unindexed]
    """Chunks that are not divided for want of an offset index."""
    whole: dict[int, Whole]
    """Large chunks without an offset index that cannot be divided, not even after a scan."""
    told: set[str]
    """Warnings that were given about the dataset."""


def divide(source: ParquetSource) -> Division:
    """Return how the row groups of a dataset can be divided; the source keeps it.

    A row group of a file whose footer is damaged is one part. Looks at large row groups only.

    Raises:
        FileChanged: a file is not the one that was opened.
        StoreUnavailable, StoreRefused: the store does not answer, or denies access.
    """
    if source.division is None:
        source.division = _divide(source)
    return source.division


def _divide(source: ParquetSource) -> Division:
    facts, found = source.facts, Division({}, {}, {}, set())
    stored = facts.file_bytes[facts.chunk_file]  # one column cannot have more bytes than its file
    num_bytes = np.where(source._part_bytes > 0, source._part_bytes, np.iinfo(np.int64).max)
    is_large = may_be_divided(num_bytes, stored)

    def divide_file(chunks: Integers) -> None:
        for chunk in chunks.tolist():
            try:
                divide_one(chunk)
            except FileChanged:  # other processes may have seen the old file, and would divide it
                raise
            except BadFile:
                continue

    def divide_one(chunk: int) -> None:
        group = source.part(chunk)
        footer = part_facts(group)
        borders = part_borders(footer)
        if len(borders) > 2:
            found.indexed[chunk] = borders
            return
        if all(leaf.pages for leaf in footer.leaves):  # it is too small, or a scan would find nothing new
            return
        borders = part_borders(part_facts(group, scan=True))
        num_bytes = int(group.index.chunks.uncompressed_bytes[group.number].sum())
        if len(borders) > 2:
            found.unindexed[chunk] = Unindexed(borders, key_of(group), group.number, num_bytes)
        elif may_be_divided(num_bytes / 2, footer.leaves[0].num_bytes / 2):
            found.whole[chunk] = Whole(*why_whole(group), num_bytes)

    large = np.flatnonzero(is_large)
    if len(large):
        firsts = np.flatnonzero(np.diff(facts.chunk_file[large]))
        with ThreadPoolExecutor(threads_for(source.entries[0].root.fs)) as pool:
            list(pool.map(divide_file, np.split(large, firsts + 1)))
    return found


def find_pages(source: ParquetSource, division: Division, *, scan: bool) -> StoredPages | None:
    """Return what is stored about the pages of row groups without an offset index; None: they are not divided.

    With `scan`, pages that are not listed have to be found by a scan. See `part_source.split_row_groups`.

    Raises:
        PlanError: they should be scanned, and are not on a local disk.
    """
    whole = [chunk for chunk, one in division.whole.items() if scan or one.num_bytes > LARGE_BYTES]
    if len(whole) > (0 if scan else FEW_GROUPS):
        column, why, _ = division.whole[min(whole)]
        _warn(
            division,
            f"{len(whole):,} of the {len(source.facts.chunk_rows):,} row groups of {_url(_roots(source, whole)[0])} "
            f"cannot be read in parts and will be shuffled as a whole. Column {column!r}: {why} (first in "
            f"{source.locate(min(whole))})",
        )
    unindexed, stored, missing = division.unindexed, StoredPages(), sorted(division.unindexed)
    if not missing:
        return None
    roots = _roots(source, unindexed)
    for beside in (True, False) if scan else (True,):
        try:
            stored.load(roots, beside=beside)
        except MetadataError as exc:
            _warn(division, str(exc))
        missing = [chunk for chunk in missing if not stored.covers(unindexed[chunk].key, unindexed[chunk].number)]
        if not missing:
            return stored
    roots = _roots(source, missing)
    url, first_path = _url(roots[0]), unindexed[missing[0]].key[0]
    is_local = all(isinstance(root.fs, LocalFileSystem) for root in roots)
    wrong = (
        f"{len(missing):,} large row groups of {url} have no offset index, which says where their pages begin (first "
        f"in {first_path})"
    )
    if stored.paths:
        is_old = first_path in stored.paths
        why = (
            "has changed since its pages were indexed"
            if is_old
            else "is not listed in the index of pages, as others are"
        )
        wrong = f"{first_path} {why}"
    shared, own = (index_command(roots[0], beside=where) for where in (True, False))
    if not scan and stored.paths:
        _warn(
            division, f"{wrong}, so row groups without an offset index are read whole, in all files: run {shared} again"
        )
    elif not scan and sum(unindexed[chunk].num_bytes > LARGE_BYTES for chunk in missing) > FEW_GROUPS:
        cure = " or load with parts=True," if is_local else ""
        _warn(
            division,
            f"{wrong}, so they are shuffled as a whole, few at a time: run {shared} once,{cure} to read them in parts; "
            "pyarrow writes such an index with write_page_index=True",
        )
    elif scan and not is_local:
        raise PlanError(
            f"{wrong}; run {own} on every host, or {shared} for all of them, to find their pages; a new run can "
            "also load with parts=None, which shuffles whole row groups"
        )
    elif stored.paths:
        _warn(division, f"{wrong}, so its page headers are read again by every run: run {own} again")
    return stored if scan else None


def _roots(source: ParquetSource, chunks: Collection[int]) -> list[Root]:
    """Return the folders of the files that chunks lie in, each once."""
    files = sorted({int(source.facts.chunk_file[chunk]) for chunk in chunks})
    return [*{id(root): root for root in (source.entries[file].root for file in files)}.values()]


def _url(root: Root) -> str:
    return root.store.url(root.path)


def _warn(division: Division, text: str) -> None:
    if text not in division.told:
        division.told.add(text)
        warnings.warn(text, PenstockWarning, stacklevel=users_level())
