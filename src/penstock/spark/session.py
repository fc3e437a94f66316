"""A Spark session as this package needs it: which kind it is, and Parquet settings for the time of a block.

Stands between `materialize_dataset` and PySpark, classic (with a JVM in this process) or Connect (a server elsewhere,
no RDDs, no Hadoop configuration). Also checks its arguments, and quotes column names for Spark. Never imports PySpark:
it is passed a session.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from penstock.errors import PlanError, SchemaError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PAGE_SHARE = 8
"""Open Parquet pages take at most one part in this many of a row group when it is measured."""
LEAST_PAGE_BYTES = 1 << 10
MOST_PAGE_BYTES = 1 << 20
"""Parquet's own page size, which is right for large row groups."""
CHECK_ROWS = 3
"""Rows after which the writer first measures a row group; its default of 100 is too late for large images."""
MOST_ROWS = 3
"""Most rows until it measures again, since rows may grow; its default of 10,000 saves 8% of the time."""


_OF_SESSIONS = ("conf", "createDataFrame", "read", "sql")


def is_connect(spark: Any) -> bool:
    """Tell whether a session is a client of Spark Connect."""
    return ".connect." in f"{type(spark).__module__}."


def check_session(spark: Any) -> None:
    """Raise PlanError unless this is a Spark session, classic or Connect."""
    if not all(hasattr(type(spark), name) for name in _OF_SESSIONS):
        got = "None" if spark is None else type(spark).__name__
        more = "; the session that belongs to it is SparkSession.builder.getOrCreate()" if got == "SparkContext" else ""
        raise PlanError(f"expected a SparkSession, as SparkSession.builder.getOrCreate() returns; got {got}{more}")


def check_columns(df: Any) -> None:
    """Raise SchemaError if two columns of a DataFrame have the same name, or names that Spark considers the same."""
    seen: dict[str, list[str]] = {}
    for name in df.columns:
        others = seen.setdefault(name.lower(), [])
        if name in others:
            raise SchemaError(f"two columns are named {name!r}, and a Parquet file has only one; rename one of them")
        if others and str(df.sparkSession.conf.get("spark.sql.caseSensitive", "false")).lower() != "true":
            raise SchemaError(
                f"the columns {others[0]!r} and {name!r} differ only by case, and Spark considers them the same; "
                "rename one of them, or set spark.sql.caseSensitive to true"
            )
        others.append(name)


def quoted(name: str) -> str:
    """Return the name of a column as Spark takes it literally: dots do not lead into structs.

    >>> quoted("a.b")
    '`a.b`'
    """
    return "`" + name.replace("`", "``") + "`"


def context_of(spark: Any, wanted_for: str) -> Any:
    """Return the SparkContext of a session.

    Raises:
        NotImplementedError: Spark Connect has none; names what to use.
        PlanError: It is not a session.
    """
    check_session(spark)
    if is_connect(spark):
        raise NotImplementedError(
            f"{wanted_for} needs RDDs, which Spark Connect does not have; DataFrames are written by "
            "penstock.spark.write(df, url, schema) and read by penstock.open(url), which work there too"
        )
    return spark.sparkContext


def row_group_settings(row_group_bytes: int | None, num_columns: int) -> dict[str, int | str]:
    """Return the settings with which Spark's Parquet writer makes row groups of this many bytes in the file.

    The writer measures finished pages as stored, open pages as they are in memory, and dictionaries not at all. So
    pages and dictionaries are kept small compared to the row group, and it is measured from the third row on: row
    groups come out within 6% of the given size, while Petastorm's settings give up to 3 times it.
    """
    settings: dict[str, int | str] = {
        "parquet.summary.metadata.level": "NONE",  # `_metadata` is written afterwards, if requested
        "parquet.block.size.row.check.min": CHECK_ROWS,
        "parquet.row-group.size.row.check.min": CHECK_ROWS,
        "parquet.page.size.row.check.min": CHECK_ROWS,
        "parquet.block.size.row.check.max": MOST_ROWS,
        "parquet.row-group.size.row.check.max": MOST_ROWS,
        "parquet.page.size.row.check.max": MOST_ROWS,
    }
    if row_group_bytes is not None:
        page = row_group_bytes // (PAGE_SHARE * max(num_columns, 1))
        page = min(max(page, LEAST_PAGE_BYTES), MOST_PAGE_BYTES)
        settings |= {
            "parquet.block.size": row_group_bytes,
            "parquet.page.size": page,
            "parquet.dictionary.page.size": page,
        }
    return settings


@contextmanager
def hadoop_settings(spark: Any, settings: Mapping[str, int | str]) -> Iterator[None]:
    """Set Hadoop's configuration for a block, and restore it afterwards, also after an exception.

    Settings of a session take precedence over Hadoop's, so a classic session gets both; on Connect only the former
    exist.
    """
    stores = [spark.conf] if is_connect(spark) else [spark.sparkContext._jsc.hadoopConfiguration(), spark.conf]
    with ExitStack() as after:
        for key, value in settings.items():
            for store in stores:  # both have the same three methods
                before = store.get(key, None)
                after.callback(*((store.unset, key) if before is None else (store.set, key, before)))
                store.set(key, str(value))
        yield


@contextmanager
def cancelled_on_error(spark: Any, tag: str) -> Iterator[None]:
    """Cancel the jobs that a block has started if it raises, also on Ctrl-C; other jobs of the session continue.

    Jobs are identified by a tag, which sessions have since PySpark 3.5; before that they end by themselves.
    """
    holder, names = spark, ("addTag", "removeTag", "interruptTag")
    if not is_connect(spark):
        holder, names = spark.sparkContext, ("addJobTag", "removeJobTag", "cancelJobsWithTag")
    # Functions that add a tag to the jobs of this thread, drop it, and cancel jobs that have it.
    add, drop, cancel = (getattr(holder, name, lambda _: None) for name in names)
    add(tag)
    try:
        yield
    except BaseException:
        with suppress(Exception):  # the session may be gone, perhaps the reason for the error
            cancel(tag)
        raise
    finally:
        with suppress(Exception):
            drop(tag)
