"""Look at the layout of a dataset, and write it again in a better one.

`examine` says what a training run will suffer from and how much; `rewrite` cures it without Spark. Both are the
commands `penstock doctor` and `penstock rewrite`. Nothing else uses this package.
"""

from penstock.doctor.examine import examine
from penstock.doctor.report import DoctorReport, Finding
from penstock.doctor.rewriting import rewrite

__all__ = ["DoctorReport", "Finding", "examine", "rewrite"]
