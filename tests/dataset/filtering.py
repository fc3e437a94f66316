"""Apply filters to a source, and look at what is left."""

import numpy as np

from penstock.dataset.row_filter import make_row_filter
from penstock.dataset.select_rows import select_rows
from penstock.source import Selection


def chosen(source, filters, before=None, *, workers=2, batched=False):
    """Return the rows of `before`, by default all, that filters of any kind keep."""
    before = before or Selection.all(source.facts.chunk_rows)
    found = make_row_filter(filters, source.facts.arrow_schema, batched=batched)
    return before if found is None else select_rows(source, found, before, workers=workers)


def rows(source, selection):
    """Return the numbers of the selected rows, checking that counts and bitmaps agree."""
    found, start = [], 0
    for chunk, size in enumerate(source.facts.chunk_rows.tolist()):
        inside = selection.rows_of(chunk)
        inside = np.arange(size) if inside is None else inside
        assert len(inside) == selection.counts[chunk]
        assert (chunk in selection.bitmaps) == (0 < len(inside) < size)
        found += (inside + start).tolist()
        start += size
    return found


def kept(source, filters, before=None, *, batched=False):
    """Return the numbers of the rows that filters keep."""
    return rows(source, chosen(source, filters, before, batched=batched))
