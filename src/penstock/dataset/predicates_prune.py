"""What is known of a predicate for whole chunks, before anything is read: passes it, fails it, or must be looked at.

`predicates_select` asks once. Predicates over partition columns are answered by evaluating them, once for each
combination of values; `in_set` by the footers' minimum and maximum; `in_negate` and `in_reduce` combine what is known
of their parts. Never wrong: where statistics are missing or uncertain nothing is known. Reads footers, no pages.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.codecs.arrow_kinds import Fixed, natural_kind
from penstock.codecs.base import has_cells
from penstock.dataset.predicates import PredicateBase, in_negate, in_reduce, in_set
from penstock.dataset.predicates_keys import key_of
from penstock.dataset.predicates_mask import mask_of
from penstock.dataset.predicates_view import ChunkView
from penstock.dataset.prune import has_statistics

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from numpy.typing import NDArray

    from penstock.dataset.parquet import ParquetSource
    from penstock.schema.unischema import UnischemaField

    Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Known:
    """What can be said of a predicate, for each of some chunks."""

    may_pass: Flags
    """False: no row of the chunk passes."""
    may_fail: Flags
    """False: every row of the chunk passes."""

    @classmethod
    def nothing(cls, num_chunks: int) -> Known:
        """Anything may be."""
        return cls(np.ones(num_chunks, np.bool_), np.ones(num_chunks, np.bool_))

    def inverted(self) -> Known:
        """What is known of the opposite."""
        return Known(self.may_fail, self.may_pass)


def known_of(source: ParquetSource, predicate: PredicateBase, chunks: NDArray[np.int64], *, batched: bool) -> Known:
    """Return what is known of a predicate for these chunks."""
    if batched and set(predicate.get_fields()) == set(source.partitions):
        # Petastorm's exception: over exactly the partition columns a predicate gets values, in batch readers too.
        return _by_partitions(source, predicate, chunks, _ask_by_values)
    return _Judge(source, chunks, batched).judge(predicate)


@dataclass(frozen=True, slots=True)
class _Judge:
    source: ParquetSource
    chunks: NDArray[np.int64]
    batched: bool

    def judge(self, predicate: PredicateBase) -> Known:
        fields = set(predicate.get_fields())
        if fields and fields <= set(self.source.partitions):
            return _by_partitions(self.source, predicate, self.chunks, self.ask_by_mask)
        if type(predicate) is in_negate:
            return self.judge(predicate._predicate).inverted()
        if type(predicate) is in_reduce:
            return self.combined(predicate)
        if type(predicate) is in_set:
            return _by_statistics(self.source, predicate, self.chunks)
        return Known.nothing(len(self.chunks))

    def ask_by_mask(self, predicate: PredicateBase, view: ChunkView) -> bool:
        return bool(mask_of(predicate, view, batched=self.batched)[0])

    def combined(self, predicate: in_reduce) -> Known:
        if not (predicate.is_all or predicate.is_any) or not predicate._predicate_list:
            return Known.nothing(len(self.chunks))
        parts = [self.judge(part) for part in predicate._predicate_list]
        both = np.logical_and, np.logical_or
        for_pass, for_fail = both if predicate.is_all else both[::-1]
        return Known(reduce(for_pass, [p.may_pass for p in parts]), reduce(for_fail, [p.may_fail for p in parts]))


def _ask_by_values(predicate: PredicateBase, view: ChunkView) -> bool:
    return bool(predicate.do_include({name: view.values(name)[0] for name in predicate.get_fields()}))


def _by_partitions(
    source: ParquetSource,
    predicate: PredicateBase,
    chunks: NDArray[np.int64],
    ask: Callable[[PredicateBase, ChunkView], bool],
) -> Known:
    """Evaluate a predicate over partition columns, once for each combination of values."""
    names = sorted(set(predicate.get_fields()))
    answers: dict[tuple[Hashable, ...], bool] = {}
    keep = np.empty(len(chunks), np.bool_)
    for place, chunk in enumerate(chunks.tolist()):
        file = int(source.chunk_file[chunk])
        values = tuple(source.partitions[name][file] for name in names)
        if values not in answers:
            answers[values] = ask(predicate, ChunkView(source, chunk, np.zeros(1, np.int64)))
        keep[place] = answers[values]
    return Known(keep, ~keep)


def _by_statistics(source: ParquetSource, predicate: in_set, chunks: NDArray[np.int64]) -> Known:
    [name] = predicate.get_fields()
    stored = source.arrow_schema.field(name)
    found = Known.nothing(len(chunks))
    if not has_statistics(stored, "") or not _as_stored(source.unischema.fields[name], stored.type):
        return found
    for place, chunk in enumerate(chunks.tolist()):
        nulls, bounds = source.statistics(chunk, name)
        if nulls == source.chunk_rows[chunk]:
            has_null = predicate._inclusion_values.has_null
            found.may_pass[place], found.may_fail[place] = has_null, not has_null
        elif bounds is not None:
            found.may_pass[place], found.may_fail[place] = _judged(predicate, nulls, bounds, stored.type)
    return found


def _as_stored(field: UnischemaField, stored: pa.DataType) -> bool:
    """Tell whether a column's values are those that its statistics speak of: no codec, no conversion that rounds."""
    natural = natural_kind(stored, field.name)
    if has_cells(field.codec):
        return False
    if field.numpy_dtype is None or field.numpy_dtype is np.object_:
        return True
    if not isinstance(natural, Fixed):
        return natural.item is {np.str_: str, np.bytes_: bytes}.get(field.numpy_dtype, field.numpy_dtype)
    wanted: np.dtype[Any] = np.dtype(field.numpy_dtype)
    if natural.dtype.kind == "f":
        return wanted.kind == "f" and wanted.itemsize >= natural.dtype.itemsize
    same = {"i": "iu", "u": "iu", "b": "b", "M": "M", "m": "m"}
    return wanted.kind in same.get(natural.dtype.kind, "")


def _judged(predicate: in_set, nulls: int, bounds: tuple[pa.Scalar, pa.Scalar], kind: pa.DataType) -> tuple[bool, bool]:
    """Return whether rows of a column chunk may pass, and whether some may fail."""
    keys = predicate._inclusion_values
    least, most = (_key(bound, kind) for bound in bounds)
    may_pass = keys.any_between(least, most) or (keys.has_null and nulls != 0)
    # Writers leave NaN out of the bounds, so floats between equal bounds need not be equal.
    equal = least == most and least in keys.keys and not pa.types.is_floating(kind)
    return may_pass, not (equal and (nulls == 0 or keys.has_null))


def _key(bound: pa.Scalar, kind: pa.DataType) -> Hashable:
    if pa.types.is_timestamp(kind):
        return key_of(np.int64(bound.value).view(f"M8[{kind.unit}]"))
    return key_of(bound.as_py())
