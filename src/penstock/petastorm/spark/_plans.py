"""Decide whether two DataFrames have the same rows, from Spark's plans and the files that they read.

Equal plans are not enough: the files that a plan reads may have changed, a table may have a new version, and
`current_timestamp()` returns another time. Only plans whose inputs can be compared are known; for others
UnknownPlanError says why, and the caller writes the rows again. Needs Spark's JVM, which Spark Connect does not have.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_FIXED = {"LocalRelation", "LogicalRDD", "OneRowRelation", "Range"}
"""Leaves whose rows are part of the plan, or come from one RDD."""
_REFERENCES = {"CTERelationRef"}
"""Leaves that stand for another part of the plan."""
_LISTINGS = {"CatalogFileIndex", "InMemoryFileIndex"}
"""Ways in which Spark lists plain files. Others (Delta's) may leave out rows of a file without touching it."""


@dataclass(frozen=True, slots=True)
class FramePlan:
    """What a DataFrame computes, and from which files."""

    application: str
    optimized: Any
    """Spark's plan with the current time filled in, so that it differs where that matters."""
    files: frozenset[tuple[str, int, int]]
    """Path, bytes and time of change of every file that is read."""
    columns: tuple[tuple[str, str], ...]
    """Name and type of every column: for Spark, results with other column names are the same."""

    def same(self, other: FramePlan) -> bool:
        """Return whether both give the same rows, under the same names; calls Spark's JVM."""
        mine, theirs = ((one.application, one.files, one.columns) for one in (self, other))
        return mine == theirs and bool(self.optimized.sameResult(other.optimized))


class UnknownPlanError(Exception):
    """It is unknown whether another DataFrame has the same rows; the message gives the reason."""


def plan_of(df: Any) -> FramePlan:
    """Return the plan of a DataFrame, with the files as they are now; costs a listing of their folders.

    Raises:
        UnknownPlanError: What the plan reads may change without notice.
    """
    if not hasattr(df, "_jdf"):
        raise UnknownPlanError("Spark Connect does not show what a DataFrame reads")
    bridge_error = import_module("py4j.protocol").Py4JError
    try:
        return _known(df)
    except (bridge_error, AttributeError, TypeError) as exc:  # a Spark that hides its JVM, or has another one
        raise UnknownPlanError(f"this Spark does not show what a DataFrame reads ({type(exc).__name__})") from exc


def _known(df: Any) -> FramePlan:
    execution = df._jdf.queryExecution()
    analyzed = execution.analyzed()
    plans = [analyzed, *_each(analyzed.subqueriesAll())]
    if not all(plan.deterministic() for plan in plans):
        raise UnknownPlanError("it has a function whose values are drawn, such as rand()")
    paths = {path for plan in plans for leaf in _each(plan.collectLeaves()) for path in _paths(leaf)}
    spark = df.sparkSession
    columns = tuple((field.name, field.dataType.json()) for field in df.schema.fields)
    files = frozenset(_stated(spark, paths))
    return FramePlan(spark.sparkContext.applicationId, execution.optimizedPlan(), files, columns)


def _each(found: Any) -> Iterator[Any]:
    for index in range(found.size()):
        yield found.apply(index)


def _paths(leaf: Any) -> list[str]:
    """Return the files that a leaf of a plan reads."""
    kind = str(leaf.getClass().getSimpleName())
    if kind in _FIXED | _REFERENCES:
        return []
    if kind == "LogicalRelation":
        relation = leaf.relation()
        kind = str(relation.getClass().getSimpleName())
        if kind == "HadoopFsRelation":
            kind = str(relation.location().getClass().getSimpleName())
            if kind in _LISTINGS:
                return list(relation.location().inputFiles())
    raise UnknownPlanError(f"it reads from a source ({kind}) whose rows may change while the plan stays the same")


def _stated(spark: Any, paths: set[str]) -> Iterator[tuple[str, int, int]]:
    """Yield path, bytes and time of change of files; one listing for each folder."""
    hadoop = spark._jvm.org.apache.hadoop.fs.Path
    configuration = spark._jsc.hadoopConfiguration()
    uri = spark._jvm.java.net.URI
    wanted = {
        hadoop(uri(path)).toString(): path for path in paths
    }  # paths in Spark's listings are escaped, in Hadoop's not
    folders = {hadoop(path).getParent().toString() for path in wanted}
    found = set()
    for folder in sorted(folders):
        path = hadoop(folder)
        for status in path.getFileSystem(configuration).listStatus(path):
            name = status.getPath().toString()
            if name in wanted:
                found.add(name)
                yield name, int(status.getLen()), int(status.getModificationTime())
    if len(found) < len(wanted):
        gone = sorted(set(wanted) - found)
        raise UnknownPlanError(f"{len(gone)} of the files that it reads no longer exist, {gone[0]} for example")
