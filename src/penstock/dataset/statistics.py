"""Decide chunks without reading them: by partition values and by the statistics of files.

`judge` returns for each chunk whether rows may pass a filter and whether rows may fail it. Filters over partition
columns are evaluated once for each combination of values. For Arrow filters, what is known about a chunk is written as
an expression ("x lies between 3 and 7, or is null") and Arrow decides what cannot hold under it; `in_set` is compared
with the bounds directly; `in_negate` and `in_reduce` combine the answers for their parts. Never wrong: where statistics
are missing, of an uncertain kind, or silent about NaN, nothing is decided. Reads footers, no pages.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.dataset.arrow_filter import ArrowFilter, delivered_type
from penstock.dataset.predicates import PredicateBase, in_negate, in_reduce, in_set
from penstock.dataset.row_filter import RowFilter
from penstock.dataset.row_views import ChunkRows
from penstock.dataset.value_keys import key_of

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from numpy.typing import NDArray

    from penstock.schema.unischema import UnischemaField
    from penstock.source import Source

    Flags = NDArray[np.bool_]
    Expression = Any

_CALLS = re.compile(r"(\w+)\(")
_NAN_SAFE = frozenset({"is_in", "is_null", "is_valid"})


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known about a filter, for each of some chunks."""

    may_pass: Flags
    """False: no row of the chunk passes."""
    may_fail: Flags
    """False: every row of the chunk passes."""


def judge(source: Source, row_filter: RowFilter, chunks: NDArray[np.int64]) -> Verdict:
    """Return what is known about a filter for these chunks."""
    # Petastorm's exception: over exactly the partition columns a predicate gets values, in batch readers too.
    batched = row_filter.batched and row_filter.fields != set(source.facts.constants)
    return _Judge(source, chunks, batched).judge(row_filter.predicate)


@dataclass(frozen=True, slots=True)
class _Judge:
    source: Source
    chunks: NDArray[np.int64]
    batched: bool

    def judge(self, predicate: PredicateBase) -> Verdict:
        fields = set(predicate.get_fields())
        if fields <= set(self.source.facts.constants) and (fields or type(predicate) is ArrowFilter):
            return self._by_partitions(predicate)
        if type(predicate) is ArrowFilter:
            return self._by_arrow(predicate)
        if type(predicate) is in_set:
            return self._by_bounds(predicate)
        if type(predicate) is in_negate:
            found = self.judge(predicate._predicate)
            return Verdict(found.may_fail, found.may_pass)
        if type(predicate) is in_reduce and (predicate.is_all or predicate.is_any):
            parts = [self.judge(part) for part in predicate._predicate_list]
            both = np.logical_and, np.logical_or
            for_pass, for_fail = both if predicate.is_all else both[::-1]
            return Verdict(reduce(for_pass, [p.may_pass for p in parts]), reduce(for_fail, [p.may_fail for p in parts]))
        return self._unknown()

    def _unknown(self) -> Verdict:
        return Verdict(np.ones(len(self.chunks), np.bool_), np.ones(len(self.chunks), np.bool_))

    def _by_partitions(self, predicate: PredicateBase) -> Verdict:
        """Evaluate a filter over partition columns, once for each combination of values."""
        names = sorted(set(predicate.get_fields()))
        answers: dict[tuple[Hashable, ...], bool] = {}
        keep = np.empty(len(self.chunks), np.bool_)
        for place, chunk in enumerate(self.chunks.tolist()):
            file = int(self.source.facts.chunk_file[chunk])
            values = tuple(self.source.facts.constants[name][file] for name in names)
            if values not in answers:
                first = ChunkRows(self.source, chunk, np.zeros(1, np.int64))
                answers[values] = bool(RowFilter(predicate, self.batched).mask(first)[0])
            keep[place] = answers[values]
        return Verdict(keep, ~keep)

    def _bounds(self, name: str, chunks: list[int]) -> Iterator[tuple[int, int, pa.Scalar, pa.Scalar]]:
        """Yield chunk, number of nulls (-1: unknown), least and greatest value (null: unknown) of a column."""
        stored = self.source.statistics(name, chunks=np.array(chunks, np.int64))
        if stored is not None and stored.low is not None and stored.high is not None:
            for chunk in chunks:
                yield chunk, int(stored.nulls[chunk]), stored.low[chunk], stored.high[chunk]

    def _by_bounds(self, predicate: in_set) -> Verdict:
        """Compare the values of a set with the bounds of a column."""
        [name] = predicate.get_fields()
        facts, keys, found = self.source.facts, predicate._inclusion_values, self._unknown()
        kind = facts.arrow_schema.field(name).type
        if not _has_order(kind) or not _as_stored(kind, facts.unischema.fields[name]):
            return found
        for place, (chunk, nulls, *bounds) in enumerate(self._bounds(name, self.chunks.tolist())):
            if nulls == facts.chunk_rows[chunk]:
                found.may_pass[place], found.may_fail[place] = keys.has_null, not keys.has_null
            elif bounds[0].is_valid:
                low, high = (_key(bound, kind) for bound in bounds)
                found.may_pass[place] = keys.any_between(low, high) or (keys.has_null and nulls != 0)
                # Writers leave NaN out of the bounds, so floats between equal bounds need not be equal.
                equal = low == high and low in keys.keys and not pa.types.is_floating(kind)
                found.may_fail[place] = not (equal and (nulls == 0 or keys.has_null))
        return found

    def _by_arrow(self, condition: ArrowFilter) -> Verdict:
        """Let Arrow decide which chunks cannot hold rows that pass, and which cannot hold others."""
        found, expression = self._unknown(), condition.expression
        chunk_file = self.source.facts.chunk_file
        constant = {file: self._constant_facts(condition, file) for file in np.unique(chunk_file[self.chunks]).tolist()}
        # First by partition values alone, so that no footer is read for files that these rule out.
        files = constant.keys() - _contradicted(expression, condition, constant)
        found.may_pass[:] = np.isin(chunk_file[self.chunks], list(files))
        left = self.chunks[found.may_pass].tolist()
        columns = [
            one for one in condition.columns if _has_order(one.type) and one.name not in self.source.facts.constants
        ]
        bounds = {one: self._bound_facts(one.name, left) for one in columns}
        for flags, wanted in ((found.may_pass, expression), (found.may_fail, ~expression | expression.is_null())):
            known = {chunk: list(constant[int(chunk_file[chunk])]) for chunk in left}
            for column in columns:
                if not _may_be_nan(column.type, wanted):
                    for chunk, fact in bounds[column].items():
                        known[chunk].append(fact)
            flags[np.isin(self.chunks, list(_contradicted(wanted, condition, known)))] = False
        return found

    def _constant_facts(self, condition: ArrowFilter, file: int) -> list[Expression]:
        """Return what partition values say about the columns of a filter in a file."""
        import pyarrow.compute as pc

        constants = self.source.facts.constants
        values = {name: constants[name][file] for name in condition.columns.names if name in constants}
        return [pc.field(n) == value if value.is_valid else pc.field(n).is_null() for n, value in values.items()]

    def _bound_facts(self, name: str, chunks: list[int]) -> dict[int, Expression]:
        """Return what statistics say about a column in each chunk, for those that have any."""
        import pyarrow.compute as pc

        field, found = pc.field(name), {}
        for chunk, nulls, low, high in self._bounds(name, chunks):
            if nulls == self.source.facts.chunk_rows[chunk]:
                found[chunk] = field.is_null()
            elif low.is_valid:
                between = (field >= low) & (field <= high)
                found[chunk] = between if nulls == 0 else between | field.is_null()
        return found


def _contradicted(expression: Expression, condition: ArrowFilter, known: dict[int, list[Expression]]) -> set[int]:
    """Return the keys under whose facts the expression cannot be true.

    Arrow offers its simplifier only through fragments of a dataset, so each key becomes a fragment, never opened.
    """
    import pyarrow.dataset as ds
    from pyarrow.fs import LocalFileSystem

    format_, fs = ds.ParquetFileFormat(), LocalFileSystem()
    facts = {key: reduce(and_, parts) for key, parts in known.items() if parts}
    fragments = [format_.make_fragment(str(key), fs, partition_expression=fact) for key, fact in facts.items()]
    dataset = ds.FileSystemDataset(fragments, condition.columns, format_, filesystem=fs)
    try:
        return facts.keys() - {int(fragment.path) for fragment in dataset.get_fragments(expression)}
    except pa.ArrowException:  # a bound that cannot be cast as the filter wants: an error once rows are evaluated
        return set()


def _has_order(kind: pa.DataType) -> bool:
    """Tell whether the bounds that writers store for columns of a type can be trusted."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_float32(kind)
        or pa.types.is_float64(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_date32(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or (pa.types.is_timestamp(kind) and kind.unit != "ns")
        or pa.types.is_decimal128(kind)
    )


def _may_be_nan(kind: pa.DataType, expression: Expression) -> bool:
    """Tell whether an expression may be true for NaN, which writers leave out of bounds.

    It is not where there are plain comparisons only: NaN is neither less, equal nor greater, but `!=` and negations let
    it through, and so does `is_in` if NaN is among its values. Arrow exposes an expression only as text, which omits
    the middle of long lists.
    """
    if not pa.types.is_floating(kind):
        return False
    text = str(expression).replace("nan_is_null=false", "")
    return not set(_CALLS.findall(text)) <= _NAN_SAFE or any(sign in text for sign in ("!=", "nan", "..."))


def _as_stored(stored: pa.DataType, field: UnischemaField) -> bool:
    """Tell whether delivered values compare as the stored ones do, so that bounds hold: no codec, no rounding."""
    delivered = delivered_type(stored, field)
    if pa.types.is_floating(stored) and pa.types.is_floating(delivered):
        return bool(delivered.bit_width >= stored.bit_width)
    same = (pa.types.is_integer, pa.types.is_timestamp)
    return delivered == stored or any(kind(stored) and kind(delivered) for kind in same)


def _key(bound: pa.Scalar, kind: pa.DataType) -> Hashable:
    if pa.types.is_timestamp(kind):
        return key_of(np.int64(bound.value).view(f"M8[{kind.unit}]"))
    return key_of(bound.as_py())
