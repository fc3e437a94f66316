"""Index the pages of files without an offset index: `penstock index`.

Opens the dataset, lets `dataset.index_pages` find and store the pages, and tells what was done. Reads no data.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.api import open as open_dataset
from penstock.dataset.divide import divide
from penstock.dataset.index_pages import store_pages
from penstock.dataset.parquet import as_parquet
from penstock.display import count_text, size_text

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class IndexedPages:
    """What `index_pages` has done; print it."""

    paths: tuple[str, ...]
    """URLs of the stored indexes: one for each folder of the source, none if no row group needs one."""
    num_bytes: int
    """Bytes of all of them."""
    row_groups: int
    """Row groups without an offset index that can be read in parts by the stored one."""
    scanned: int
    """Row groups whose page headers were read now; the others were listed already."""
    pages: int
    """Pages that were found in them."""
    whole: Mapping[str, str]
    """Columns that are read whole all the same, and why."""
    undivided: Mapping[tuple[str, str], int]
    """How many other large row groups without an offset index cannot be read in parts, by column and reason."""

    def __str__(self) -> str:
        others = [
            f"{count_text(count, 'row group')} without an offset index cannot be read in parts: column {name!r}, {why}"
            for (name, why), count in self.undivided.items()
        ]
        if not self.row_groups:
            small = "all row groups have an offset index, or are too small to be read in parts"
            return "\n".join(["nothing to index" if others else f"nothing to index: {small}", *others])
        new, old = f"{self.pages:,} pages found in {self.scanned:,}", self.row_groups - self.scanned
        lines = [
            f"{count_text(self.row_groups, 'row group')} to be read in parts: {new}, {old:,} listed before",
            *(f"column {name!r} is read whole: {why}" for name, why in self.whole.items()),
            *others,
            f"stored in {', '.join(self.paths)} ({size_text(self.num_bytes)})",
        ]
        return "\n".join(lines)


def index_pages(
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    beside: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    filesystem: Any = None,
) -> IndexedPages:
    """Store where pages begin in files without an offset index, so that shuffling can read their row groups in parts.

    Reads the page headers of all large row groups, in threads: some kilobytes for each page. Files that are added or
    written again later need another call, which reads only those.

        >>> print(penstock.doctor.index_pages("s3://bucket/frames", beside=True))

    Args:
        source: As for `penstock.open`.
        beside: Store the index in the dataset's own folder, as the hidden file `.penstock_pages`. Every run
            then reads these files in parts. By default it is stored in the cache of this user on this host, where
            `parts=True` uses it: other hosts do not see it, and all ranks of a run must have the same parts.
        storage_options: For the filesystem of a URL.
        filesystem: A pyarrow or fsspec filesystem to use instead.

    Raises:
        DatasetNotFound: Nothing is there, or it is still being written.
        BadFile: A file or a page header is damaged.
        UnsupportedFormat: The URL belongs to a custom source.
        StoreUnavailable, StoreRefused: The store does not answer, or denies access; with `beside`, to write there.
    """
    opened = open_dataset(source, storage_options=storage_options, filesystem=filesystem)
    files = as_parquet(opened.source)
    done, division = store_pages(files, beside=beside), divide(files)
    return IndexedPages(
        tuple(one.url for one in done),
        sum(one.num_bytes for one in done),
        len(division.unindexed),
        sum(one.scanned for one in done),
        sum(one.pages for one in done),
        {name: why for one in done for name, why in one.whole.items()},
        Counter((one.column, one.why) for one in division.whole.values()),
    )
