"""Examine the layout of a dataset, and rewrite it in a better one or index its pages.

`examine` reports what slows down a training run and by how much; `rewrite` fixes it without Spark; `index_pages` lets
shuffling read files without an offset index in parts. They are also the commands `penstock doctor`, `rewrite` and
`index`. Nothing else uses this package.
"""

from penstock.doctor.examine import examine
from penstock.doctor.indexing import IndexedPages, index_pages
from penstock.doctor.report import DoctorReport, Finding
from penstock.doctor.rewriting import rewrite

__all__ = ["DoctorReport", "Finding", "IndexedPages", "examine", "index_pages", "rewrite"]
