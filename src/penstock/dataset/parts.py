"""Divide row groups into parts: chunks of a few megabytes, so that a shuffle draws from many row groups at once.

A pure function of what the footer of a file says, so that every process comes to the same parts without reading
anything else: never of the columns read, the store, or where pages really begin. The number of pages is in the footer
too. Where a writer cut its pages after equal numbers of rows (Spark does for rows of 5 KB or more, Penstock and pyarrow
for large cells), parts begin where pages begin, and no page is read for two of them. Otherwise a page at the border of
two parts is read for both: then parts are made larger, until little is read twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

TARGET_BYTES = 2 << 20
"""Bytes of a part, about. Spark's row groups of 128 MB then have 74 parts: a batch of 256 rows comes from 0.95 as many
row groups as under a true permutation with a shuffle buffer of 1 GiB, from 0.61 with 256 MiB (4 MiB: 0.82, 0.39)."""
LEAST_BYTES = 1 << 20
"""Bytes of the widest column in a part, at least: an object store answers many small requests slowly. So a table of
many narrow columns has few parts or none."""
MOST_READ = 1.1
"""Bytes read for each byte that is needed, at most, as far as the footer tells. Narrow columns are counted as if they
were read again for every part: a cache of some megabytes keeps them, but not for thousands of row groups."""
PAGE_BYTES = 1 << 20
"""What writers aim at, for columns whose pages are not counted."""
_MOST_ROWS = 20_000
"""Rows of a page of narrow cells: parquet-java and pyarrow put no more into one."""
_USUAL_STEP = 100
"""Writers look at the size of a page after so many rows, or more; with larger cells after a power of two."""
_CREDIBLE = 4
"""Pages of varying lengths are taken for equally long ones at most once in so many cases."""


class LeafFacts(NamedTuple):
    """What the footer says about the pages of a large column chunk."""

    num_bytes: int
    """As stored."""
    pages: int
    """Data pages; 0 if it can only be read whole, -1 if the writer has not counted them."""
    dictionary_bytes: int
    """Bytes of the dictionary that a part needs on average: writers give up on a large one after some pages."""


class PartFacts(NamedTuple):
    """What the footer says about a row group."""

    num_rows: int
    num_bytes: int
    """Bytes of all columns, before compression."""
    leaves: Sequence[LeafFacts]
    """Its large column chunks, the largest one first."""
    rest_bytes: int = 0
    """Stored bytes of all others."""
    border_bytes: int = 0
    """Bytes of the others that are read once more for each further part, at most."""


def may_be_divided(num_bytes: Any, widest_bytes: Any) -> Any:
    """Tell whether a row group is large enough for parts: bytes of all columns, and stored bytes of the widest one.

    Takes numbers or arrays.
    """
    return (num_bytes > TARGET_BYTES) & (widest_bytes > LEAST_BYTES)


def part_borders(facts: PartFacts) -> NDArray[np.int64]:
    """Return the first row of each part of a row group, and its number of rows at the end.

    All parts but the last have the same number of rows. A row group without an offset index, of one page or of few
    bytes is one part, and so is one whose parts would read much more than their rows.
    """
    rows, widest = facts.num_rows, facts.leaves[0] if facts.leaves else LeafFacts(0, 0, 0)
    pages = _pages_of(widest)
    if pages < 2 or rows < 2:
        return np.array([0, rows], np.int64)
    wanted = rows * max(TARGET_BYTES / max(facts.num_bytes, 1), LEAST_BYTES / max(widest.num_bytes, 1))
    page_rows, _ = rows_of_pages(rows, pages)
    pages_each = max(1, round(wanted / page_rows))
    needed = facts.rest_bytes + sum(leaf.num_bytes for leaf in facts.leaves)
    while _twice_bytes(facts, size := page_rows * pages_each) > (MOST_READ - 1) * needed:  # none for one part
        pages_each += max(1, pages_each // 4)
    return np.append(np.arange(_count(rows, size), dtype=np.int64) * size, rows)


def rows_of_pages(num_rows: int, pages: int) -> tuple[int, bool]:
    """Return the rows of each page, if a writer has cut so many rows into pages of equal length but for the last one.

    Several lengths give the same number of pages. Writers look at the size of a page every 100 or 1,024 rows or a power
    of two, so the answer is the length with the greatest factor of that kind. The second value tells whether that is
    more than chance.
    """
    if pages < 2:
        return num_rows, True
    least, most = -(-num_rows // pages), -(-num_rows // (pages - 1)) - 1
    if least <= _MOST_ROWS <= most:
        return _MOST_ROWS, True
    for step in sorted((step << shift for shift in range(most.bit_length()) for step in (1, 100)), reverse=True):
        if (found := -(-least // step) * step) <= most:
            is_usual = found == step or step >= _USUAL_STEP
            return found, is_usual and step * pages * (pages - 1) >= _CREDIBLE * num_rows
    return max(1, num_rows // pages), False


def _count(rows: int, size: int) -> int:
    """Return how many parts of `size` rows there are: the last one has between half and one and a half of them."""
    return max(1, (2 * rows + size) // (2 * size))


def _twice_bytes(facts: PartFacts, size: int) -> float:
    """Return the bytes that parts of `size` rows read more than once, at most."""
    each = float(facts.border_bytes)
    for leaf in facts.leaves:
        pages = max(1, _pages_of(leaf))
        page_rows, is_known = rows_of_pages(facts.num_rows, pages)
        cut = 0.0 if is_known and leaf.pages > 0 and size % page_rows == 0 else leaf.num_bytes / pages
        each += min(leaf.num_bytes, cut + leaf.dictionary_bytes)
    return each * (_count(facts.num_rows, size) - 1)


def _pages_of(leaf: LeafFacts) -> int:
    return max(1, leaf.num_bytes // PAGE_BYTES) if leaf.pages < 0 else leaf.pages
