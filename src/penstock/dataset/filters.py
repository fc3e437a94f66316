"""Filters: from what the user wrote to the rows of each chunk that pass.

`normalise` makes one Arrow expression; `select` narrows a `Selection` by it. First partition values and row-group
statistics rule chunks out unread (`prune`); what remains is read once, in threads, only the columns that the filter
names, and kept as bitmaps. Nulls count as in pyarrow: a comparison with null is null, and null does not pass.

Written as pyarrow does: a list of (column, operator, value) joined by AND, or a list of such lists joined by OR, with
the operators = == != < <= > >= in and not in; or a pyarrow.compute expression. Leaves of structs are named by path.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.codecs.arrow_memory import without_views
from penstock.dataset.dnf import from_tuples
from penstock.dataset.prune import surviving_chunks
from penstock.dataset.selection import Selection, pack
from penstock.errors import BadFile, ColumnNotFound, FileChanged, SchemaError, close_names
from penstock.progress import progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock.dataset.parquet import ParquetSource

    Expression = Any  # pyarrow.compute.Expression: pyarrow ships no types


def normalise(filters: Any, schema: pa.Schema | None = None) -> Expression | None:
    """Return filters as one expression; None, and an empty list, filter nothing and give None.

    With `schema`, names and types are checked against it at once.

    Raises:
        SchemaError: filters in none of the forms, or values that cannot be compared with their columns.
        ColumnNotFound: a column that `schema` does not have.
    """
    if filters is None:
        return None
    import pyarrow.compute as pc

    if not isinstance(filters, pc.Expression):
        filters = from_tuples(filters, None if schema is None else _comparable(schema))
    if filters is not None and schema is not None:
        filter_columns(filters, schema)
    return filters


def filter_columns(expression: Expression, schema: pa.Schema) -> list[str]:
    """Return the columns that an expression needs, in the schema's order.

    Arrow does not tell, so it is found by trying: a column is needed if the expression does not work without it. Only
    names that occur in its text are tried.

    Raises:
        ColumnNotFound: it names a column that is not there.
        SchemaError: it does not fit the columns' types, or is no condition.
    """
    _check_fits(expression, schema)
    text = str(expression)
    needed = [name for name in schema.names if name in text]
    for name in list(needed):
        fewer = [other for other in needed if other != name]
        try:
            _bind(expression, _subset(schema, fewer))
        except pa.ArrowException:
            continue
        needed = fewer
    return needed


def _check_fits(expression: Expression, schema: pa.Schema) -> None:
    try:
        kind = _bind(expression, schema)
    except pa.ArrowException as exc:
        missing = re.search(r"No match for FieldRef\.Name\((.*?)\) in ", str(exc))
        if missing and missing[1] not in schema.names:
            raise ColumnNotFound(
                f"no column {missing[1]!r} to filter by; {close_names(missing[1], schema.names)}"
            ) from exc
        cure = "compare each column with values of its own type"
        if "Nested" in str(exc):
            cure = "leaves of structs are columns named by path, as in pc.field('s.a')"
        raise SchemaError(f"the filter {expression} does not fit: {str(exc).splitlines()[0]}; {cure}") from exc
    if not (pa.types.is_boolean(kind) or pa.types.is_null(kind)):
        raise SchemaError(f"the filter {expression} gives {kind} where a condition (bool) is wanted")


def _bind(expression: Expression, schema: pa.Schema) -> pa.DataType:
    """Return the type that an expression gives over a schema, by evaluating it over no rows."""
    return _evaluate(expression, schema.empty_table()).type


def _subset(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    return pa.schema([schema.field(name) for name in names])


def _comparable(schema: pa.Schema) -> pa.Schema:
    """Return a schema with plain text and bytes in place of views, which Arrow cannot compare (seen in 26)."""
    return pa.schema([field.with_type(without_views(field.type)) for field in schema])


def _evaluate(expression: Expression, table: pa.Table) -> pa.ChunkedArray:
    from pyarrow import acero

    schema = _comparable(table.schema)
    if schema != table.schema:
        table = table.cast(schema)
    # A third of what a dataset scanner takes, which counts where row groups are small. One thread keeps the order.
    rows = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
    keep = acero.Declaration("project", acero.ProjectNodeOptions([expression], ["keep"]))
    return acero.Declaration.from_sequence([rows, keep]).to_table(use_threads=False).column(0)


def keep_mask(expression: Expression, table: pa.Table) -> NDArray[np.bool_]:
    """Return for each row of a table whether it passes; null does not."""
    column = _evaluate(expression, table)
    if pa.types.is_null(column.type):
        return np.zeros(table.num_rows, np.bool_)
    return np.concatenate([_bits(part) for part in column.chunks] or [np.zeros(0, np.bool_)])


def _bits(array: pa.BooleanArray) -> NDArray[np.bool_]:
    """Unpack a boolean array from its buffers, null as False."""
    keep = np.ones(len(array), np.bool_)
    for buffer in array.buffers():
        if buffer is not None:
            bits = np.unpackbits(np.frombuffer(buffer, np.uint8), bitorder="little")
            keep &= bits[array.offset : array.offset + len(array)].view(np.bool_)
    return keep


def select(source: ParquetSource, expression: Expression | None, previous: Selection, *, workers: int) -> Selection:
    """Return the rows of `previous` that pass; the order of evaluation does not matter.

    Costs one read of the filter's own columns in each chunk that partitions and statistics cannot decide; none where
    only partition columns are named. A bar is drawn on a terminal when that takes long.

    Raises:
        SchemaError, ColumnNotFound: the filter does not fit the dataset.
        BadFile: a chunk cannot be read; in a source opened with on_error="skip" it is left out and listed instead.
    """
    if expression is None:
        return previous
    names = filter_columns(expression, source.arrow_schema)
    schema = _comparable(_subset(source.arrow_schema, names))
    chunks = surviving_chunks(source, expression, schema, previous.counts)
    work = _Work(source, expression, names, previous)
    counts = np.zeros_like(previous.counts)
    bitmaps: dict[int, NDArray[np.uint8]] = {}
    pool = ThreadPoolExecutor(max(1, workers))
    try:
        with progress(len(chunks), "filter", unit="row groups") as bar:
            for chunk, (count, bitmap) in zip(chunks, pool.map(work.pass_chunk, chunks), strict=True):
                counts[chunk] = count
                if bitmap is not None:
                    bitmaps[chunk] = bitmap
                bar.update()
    finally:  # an error or Ctrl-C stops the rest
        pool.shutdown(wait=True, cancel_futures=True)
    return Selection(counts, bitmaps)


class _Work:
    """Evaluates a filter over one chunk; called from several threads."""

    def __init__(self, source: ParquetSource, expression: Expression, names: list[str], previous: Selection) -> None:
        self.source = source
        self.expression = expression
        self.names = names
        self.previous = previous
        self.only_partitions = all(name in source.partitions for name in names)

    def pass_chunk(self, chunk: int) -> tuple[int, NDArray[np.uint8] | None]:
        """Return the number of rows that pass, and their bitmap if that is some but not all."""
        num_rows = int(self.source.chunk_rows[chunk])
        try:
            table = self.source.read_chunk(chunk, self.names)
        except BadFile as exc:
            if self.source.on_error != "skip" or isinstance(exc, FileChanged):
                raise
            self.source.skipped.append((exc.path, str(exc)))
            return 0, None
        if self.only_partitions:  # every row alike
            table = table.slice(0, 1)
        try:
            keep = np.broadcast_to(keep_mask(self.expression, table), num_rows)
        except pa.ArrowException as exc:
            group = int(self.source.chunk_group[chunk])
            raise SchemaError(
                f"the filter {self.expression} cannot be evaluated in {self.source.path_of(chunk)}, row group {group}: "
                f"{str(exc).splitlines()[0]}; compare each column with values of its own type, write the comparison as "
                f"(column, operator, value), or cast the column, as in pc.field('x').cast('float64', safe=False)"
            ) from exc
        before = self.previous.rows_of(chunk)
        if before is not None:
            keep = _only(keep, before)
        count = int(np.count_nonzero(keep))
        return count, None if count in (0, num_rows) else pack(keep)


def _only(keep: NDArray[np.bool_], rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    mask = np.zeros(len(keep), np.bool_)
    mask[rows] = keep[rows]
    return mask
