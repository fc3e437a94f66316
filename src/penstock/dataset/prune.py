"""Rule out row groups that hold no row a filter would pass, by partition values and footer statistics.

`filters.select` asks before it reads. What is known of each row group is written as an expression ("x lies between 3
and 7, or is null") and Arrow decides which filters cannot hold under it. Never rules out a row group wrongly: where
statistics are missing, of an uncertain kind, or silent about NaN, they are not used. Reads footers, no pages.
"""

from __future__ import annotations

import re
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from penstock.dataset.parquet import ParquetSource

    Expression = Any

_CALLS = re.compile(r"(\w+)\(")
_NAN_SAFE = frozenset({"is_in", "is_null", "is_valid"})


def surviving_chunks(
    source: ParquetSource, expression: Expression, schema: pa.Schema, counts: NDArray[np.int64]
) -> list[int]:
    """Return the chunks, of those with `counts`, that may hold rows that pass; `schema` has the filter's columns."""
    chunks = np.flatnonzero(counts)
    files = np.unique(source.chunk_file[chunks])
    partitions = {int(file): _partition_facts(source, schema.names, int(file)) for file in files}
    kept_files = np.array(_satisfiable(expression, schema, partitions), np.int64)
    chunks = chunks[np.isin(source.chunk_file[chunks], kept_files)]
    columns = [field for field in schema if has_statistics(field, expression) and field.name not in source.partitions]
    if not columns:
        return [int(chunk) for chunk in chunks]
    facts = {int(chunk): partitions[int(source.chunk_file[chunk])] for chunk in chunks}
    facts = {chunk: [*known, *_statistics_facts(source, chunk, columns)] for chunk, known in facts.items()}
    return _satisfiable(expression, schema, facts)


def _satisfiable(expression: Expression, schema: pa.Schema, facts: dict[int, list[Expression]]) -> list[int]:
    """Return the keys whose facts do not contradict the expression.

    Arrow shows its simplifier only through fragments of a dataset, so each key becomes a fragment that is never opened.
    """
    import pyarrow.dataset as ds
    from pyarrow.fs import LocalFileSystem

    format_, fs = ds.ParquetFileFormat(), LocalFileSystem()
    known = {key: reduce(and_, parts) for key, parts in facts.items() if parts}
    fragments = [format_.make_fragment(str(key), fs, partition_expression=fact) for key, fact in known.items()]
    dataset = ds.FileSystemDataset(fragments, schema, format_, filesystem=fs)
    try:
        kept = {int(fragment.path) for fragment in dataset.get_fragments(expression)}
    except pa.ArrowException:  # a bound that cannot be cast as the filter asks: to be met when rows are looked at
        return list(facts)
    return [key for key in facts if key not in known or key in kept]


def _partition_facts(source: ParquetSource, names: Sequence[str], file: int) -> list[Expression]:
    import pyarrow.compute as pc

    facts = []
    for name in names:
        if name in source.partitions:
            value = source.partition_scalar(name, file)
            facts.append(pc.field(name) == value if value.is_valid else pc.field(name).is_null())
    return facts


def has_statistics(field: pa.Field, expression: Expression) -> bool:
    """Tell whether the statistics of such a column can be trusted for this expression.

    Writers leave NaN out of minimum and maximum. So for floats they serve only where no NaN can pass, that is in
    expressions of plain comparisons: NaN is neither less, equal nor greater, but `!=` and negations let it through, and
    `is_in` where NaN is among its values. Arrow exposes an expression only as text, which omits the middle of long
    lists.
    """
    kind = field.type
    if pa.types.is_floating(kind):
        text = str(expression).replace("nan_is_null=false", "")
        plain = set(_CALLS.findall(text)) <= _NAN_SAFE and not any(sign in text for sign in ("!=", "nan", "..."))
        return plain and not pa.types.is_float16(kind)
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_date32(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or (pa.types.is_timestamp(kind) and kind.unit != "ns")
        or pa.types.is_decimal128(kind)
    )


def _statistics_facts(source: ParquetSource, chunk: int, fields: Sequence[pa.Field]) -> Iterator[Expression]:
    import pyarrow.compute as pc

    for field in fields:
        nulls, bounds = source.statistics(chunk, field.name)
        here = pc.field(field.name)
        if nulls == source.chunk_rows[chunk]:
            yield here.is_null()
        elif bounds is not None:
            between = (here >= bounds[0]) & (here <= bounds[1])
            yield between if nulls == 0 else between | here.is_null()
