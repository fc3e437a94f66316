"""Examine the layout of a dataset, and rewrite it in a better one.

`examine` reports what slows down a training run and by how much; `rewrite` fixes it without Spark. Both are also the
commands `penstock doctor` and `penstock rewrite`. Nothing else uses this package.
"""

from penstock.doctor.examine import examine
from penstock.doctor.report import DoctorReport, Finding
from penstock.doctor.rewriting import rewrite

__all__ = ["DoctorReport", "Finding", "examine", "rewrite"]
