"""One function over many files, in parallel: `penstock.map_files` on this machine, on Ray or on Spark.

Works on whole files and knows nothing of their content. Every output appears complete or not at all, so a job that died
is simply run again.
"""

from penstock.jobs.map_files import FailedAttempt, JobReport, map_files

__all__ = ["FailedAttempt", "JobReport", "map_files"]
