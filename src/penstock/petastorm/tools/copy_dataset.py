"""Petastorm's `copy_dataset`, and its command `petastorm-copy-dataset.py`.

The command starts a Spark session and calls `penstock.spark.copy_dataset`, which does the work.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from penstock.petastorm.tools._command import command
from penstock.petastorm.tools.spark_session_cli import add_configure_spark_arguments, configure_spark
from penstock.spark.materialize import copy_dataset

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["copy_dataset", "main"]


@command("petastorm-copy-dataset.py")
def main(args: Sequence[str] | None = None) -> None:
    """Copy the dataset that the command line names; a session that runs already is used and left running."""
    given = _parser().parse_args(args)
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise ImportError("this command needs PySpark: pip install 'penstock[spark]'") from None
    # After a Ctrl-C no session is active in this thread, and yet one is running.
    running = SparkSession.getActiveSession() or getattr(SparkSession, "_instantiatedSession", None)
    spark = running or configure_spark(SparkSession.builder.appName("petastorm-copy"), given).getOrCreate()
    try:
        copy_dataset(
            spark,
            given.source_url,
            given.target_url,
            given.field_regex,
            given.not_null_fields,
            given.overwrite_output,
            given.partition_count,
            given.row_group_size_mb,
        )
    finally:
        if running is None:
            spark.stop()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="petastorm-copy-dataset.py",
        description="Copy a dataset with Spark: some of its columns, rows without nulls, in other row groups.",
    )
    parser.add_argument("source_url", help="the dataset to copy, e.g. file:///data/set")
    parser.add_argument("target_url", help="where the copy goes")
    parser.add_argument("--overwrite-output", action="store_true", help="replace what is at the target")
    parser.add_argument("--field-regex", nargs="+", metavar="R", help="columns to copy: regular expressions")
    parser.add_argument("--not-null-fields", nargs="+", metavar="F", help="leave out rows with a null in these")
    parser.add_argument("--partition-count", type=int, metavar="N", help="number of files")
    parser.add_argument("--row-group-size-mb", type=float, metavar="MB", help="size of the row groups")
    parser.add_argument("--hdfs-driver", default="libhdfs3", help="ignored: one driver is left")
    add_configure_spark_arguments(parser)
    return parser


if __name__ == "__main__":
    main()
