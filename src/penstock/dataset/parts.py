"""Divide row groups into parts: chunks of a few megabytes, so that a shuffle draws from many row groups at once.

A pure function of what the footer of a file says, so that every process comes to the same parts without reading
anything else: never of the columns read, the store, or where pages really begin. The number of pages is in the footer
too. Where a writer cut its pages after equal numbers of rows (Spark does for rows of 5 KB or more, Penstock and pyarrow
for large cells), parts begin where pages begin, and no page is read for two of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

TARGET_BYTES = 2 << 20
"""Bytes of a part, about. Spark's row groups of 128 MB then have 74 parts: a batch of 256 rows comes from 0.95 as many
row groups as under a true permutation with a shuffle buffer of 1 GiB, from 0.61 with 256 MiB (4 MiB: 0.82, 0.39)."""
LEAST_BYTES = 1 << 20
"""Bytes of the widest column in a part, at least: an object store answers many small requests slowly. So a table of
many narrow columns has few parts or none."""
_PAGE_BYTES = 1 << 20
"""What writers aim at, for those that do not count their pages."""


class PartFacts(NamedTuple):
    """What the footer says about a row group."""

    num_rows: int
    num_bytes: int
    """Bytes of all columns, before compression."""
    widest_bytes: int
    """Bytes of the largest column chunk, as stored."""
    widest_pages: int
    """Data pages of that column chunk; 0 if it has no offset index, -1 if the writer has not counted them."""


def part_borders(facts: PartFacts) -> NDArray[np.int64]:
    """Return the first row of each part of a row group, and its number of rows at the end.

    All parts but the last have the same number of rows. A row group without an offset index, of one page or of few
    bytes is one part.
    """
    rows, num_bytes, widest_bytes, pages = facts
    if pages < 0:
        pages = max(1, widest_bytes // _PAGE_BYTES)
    if pages < 2 or rows < 2:
        return np.array([0, rows], np.int64)
    wanted = rows * max(TARGET_BYTES / max(num_bytes, 1), LEAST_BYTES / max(widest_bytes, 1))
    page_rows = rows_of_pages(rows, pages)
    size = min(rows, page_rows * max(1, round(wanted / page_rows)))
    count = max(1, (2 * rows + size) // (2 * size))
    return np.append(np.arange(count, dtype=np.int64) * size, rows)


def rows_of_pages(num_rows: int, pages: int) -> int:
    """Return the rows of each page, if a writer has cut so many rows into pages of equal length but for the last one.

    Several lengths give the same number of pages. Writers look at the size of a page every 100 or 1,024 rows or a power
    of two, so the answer is the length with the greatest factor of that kind.
    """
    least, most = -(-num_rows // pages), -(-num_rows // (pages - 1)) - 1
    steps = sorted((step << shift for shift in range(most.bit_length()) for step in (1, 100)), reverse=True)
    fitting = (found for step in steps if (found := -(-least // step) * step) <= most)
    return next(fitting, max(1, num_rows // pages))
