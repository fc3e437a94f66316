"""Petastorm's helpers for command lines that start Spark: two arguments, and a session builder that uses them.

Takes a builder and returns it; does not import PySpark and starts nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

__all__ = ["add_configure_spark_arguments", "configure_spark"]


def add_configure_spark_arguments(argparser: argparse.ArgumentParser) -> None:
    """Add `--master` and `--spark-session-config` to a parser."""
    group = argparser.add_argument_group("spark")
    group.add_argument("--master", help="Spark's master; default: that of the installation, else local[*]")
    group.add_argument(
        "--spark-session-config", nargs="+", default=[], metavar="KEY=VALUE", help="settings of the session"
    )


def configure_spark(spark_session_builder: Any, args: argparse.Namespace) -> Any:
    """Return the builder with the settings of the command line.

    Raises:
        RuntimeError: The arguments were not added by `add_configure_spark_arguments`.
        ValueError: A setting is not of the form KEY=VALUE.
    """
    if "spark_session_config" not in args:
        raise RuntimeError("the parser lacks the Spark arguments; call add_configure_spark_arguments(parser) first")
    for setting in args.spark_session_config or []:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise ValueError(f"--spark-session-config takes key=value; got {setting!r}")
        spark_session_builder = spark_session_builder.config(key, value)
    return spark_session_builder.master(args.master) if args.master else spark_session_builder
