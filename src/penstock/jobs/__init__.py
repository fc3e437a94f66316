"""One function over many files, in parallel: `penstock.map_files` on this machine, on Ray or on Spark.

Stands beside the writing side: it moves whole files and knows nothing of what is in them. Every output appears whole or
not at all, so that a job that died is simply run again.
"""

from penstock.jobs.map_files import map_files
from penstock.jobs.report import FailedAttempt, JobReport

__all__ = ["FailedAttempt", "JobReport", "map_files"]
