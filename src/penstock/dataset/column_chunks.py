"""The column chunks of a footer as arrays: offsets, sizes, statistics.

All users of this information (sizes, pruning, nulls, the chunk cache, the doctor, the digest of the content) get it
here. The footer's bytes are parsed by our own reader, because in pyarrow an exception inside
`RowGroupMetaData.column()` ends the process, and one flipped bit in a footer is enough to cause one. Reads no files.
"""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import pyarrow as pa

from penstock.dataset.chunk_pattern import INTEGERS, LEAST_CHUNKS, chunk_pattern, integers
from penstock.dataset.thrift import (
    BOOLEANS,
    LIST,
    STRUCT,
    Struct,
    ThriftError,
    read_field,
    read_list_header,
    read_struct,
    read_value,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

# Field numbers of parquet.thrift.
_SCHEMA, _ROW_GROUPS, _COLUMN_ORDERS = 2, 4, 7
_ELEMENT_TYPE, _ELEMENT_LENGTH, _ELEMENT_REPETITION, _ELEMENT_NAME, _ELEMENT_CHILDREN = 1, 2, 3, 4, 5
_ELEMENT_CONVERTED, _ELEMENT_SCALE, _ELEMENT_LOGICAL = 6, 7, 10
_LOGICAL_TIMESTAMP, _LOGICAL_INTEGER, _TIMESTAMP_UNIT, _INTEGER_SIGNED = 8, 10, 2, 2
_GROUP_COLUMNS = 1
_CHUNK_FILE, _CHUNK_META, _CHUNK_ENCRYPTED = 1, 3, (8, 9)
_META_TYPE, _META_ENCODINGS, _META_VALUES, _META_UNCOMPRESSED, _META_COMPRESSED = 1, 2, 5, 6, 7
_META_DATA_PAGE, _META_DICTIONARY_PAGE, _META_STATISTICS, _META_SIZES = 9, 11, 12, 16
_STAT_MAX_OLD, _STAT_MIN_OLD, _STAT_NULLS, _STAT_MAX, _STAT_MIN = 1, 2, 3, 5, 6
_SIZES_UNENCODED, _SIZES_LEVELS = 1, 3

_BOOLEAN, _INT32, _INT64, _INT96, _FLOAT, _DOUBLE, _BYTE_ARRAY, _FIXED_BYTES = range(8)
_WIDTHS = {_BOOLEAN: 1, _INT32: 4, _INT64: 8, _INT96: 12, _FLOAT: 4, _DOUBLE: 8, _BYTE_ARRAY: None}
_PAIRS = {_FLOAT: struct.Struct("<2f"), _DOUBLE: struct.Struct("<2d")}
_OPTIONAL, _REPEATED = 1, 2
_UNSIGNED = frozenset({11, 12, 13, 14})
"""Converted types UINT_8 to UINT_64."""
_TIMESTAMPS = {9: 1, 10: 2}
"""Converted types of timestamps: unit as in logical types."""
_SECOND = {1: 10**3, 2: 10**6, 3: 10**9, "s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
"""Units in a second, by the unit's number in logical types, and by Arrow's name for it."""
_SPELLED_OUT = frozenset({0, 3, 4, 9})
"""PLAIN, RLE, BIT_PACKED and BYTE_STREAM_SPLIT: neither dictionaries nor differences."""
_SPELLED_OUT_STORED = frozenset(2 * encoding for encoding in _SPELLED_OUT)
"""The same as Thrift stores small integers."""
OFFSET_BYTES, VALIDITY_BYTES = 4, 1 / 8
"""Of one value of varying width in Arrow's memory."""
_FIGURES = 9
_MATCHED = ("type", "encodings", "path", "min", "max", "levels")
_MINUS_ONE = b"\x01"
_UNKNOWN = (-1, -1, -1, -1, -1, -1, -1, 0, -1)

Bounds = tuple[bytes | None, bytes | None]


@dataclass(frozen=True, slots=True)
class Leaf:
    """One column as it is stored: a column of numbers or text, or the innermost part of a struct or list."""

    path: str
    """Names from the outermost column inwards, with dots between."""
    element: Struct
    """Its schema element, by field number."""
    repeated: bool
    """Whether it is inside a list or map, so that a row has any number of values."""
    ordered: bool = False
    """Whether the footer promises that least and greatest values follow the order of the logical type."""

    @property
    def physical(self) -> int:
        """Number of the physical type."""
        return int(self.element[_ELEMENT_TYPE])

    @property
    def width(self) -> int | None:
        """Bytes of a value; None if they vary."""
        return int(self.element[_ELEMENT_LENGTH]) if self.physical == _FIXED_BYTES else _WIDTHS[self.physical]


class ColumnChunks:
    """The column chunks of one footer, as arrays of one row for each row group and one column for each leaf.

    Counts and offsets that the footer does not have are -1.
    """

    def __init__(self, raw: bytes) -> None:
        """Read a footer. Costs about 3 microseconds for each column chunk, for unusual ones 15.

        Raises:
            ThriftError: the bytes are damaged, or contradict their own schema.
        """
        self.leaves: list[Leaf] = []
        self.file_paths: list[str] = []
        """File of each row group, relative to the dataset; "" where it is the footer's own file."""
        self.schema_range = (0, 0)
        """Start and stop of the schema in the bytes of the footer: a list of elements."""
        self.positions: list[Integers] = []
        """Where the struct of each column chunk begins in the bytes of the footer, by row group and leaf."""
        self._bounds: list[list[Bounds]] = []
        self._figures = figures = self._read(raw)
        if figures.shape[1] != len(self.leaves):
            raise ThriftError("the row groups come before the schema")
        if (figures[:, :, :4] < -1).any():  # -1: not known
            raise ThriftError("a column chunk has a negative size or offset")
        (
            self.num_values,
            self.uncompressed_bytes,
            self.compressed_bytes,
            self.data_page_offset,
            self.dictionary_page_offset,
            self.null_count,
            self.unencoded_bytes,  # of all values of a column of binary or text, without lengths; newer writers only
            spelled_out,
            self._one_level_short,  # values with all definition levels but the last: null, with everything around them
        ) = cast("list[Integers]", np.moveaxis(figures, 2, 0))
        self.spelled_out: NDArray[np.bool_] = spelled_out == 1
        """Whether every value is stored with all its bytes, so that `uncompressed_bytes` is their size."""
        self.flat = {leaf.path: index for index, leaf in enumerate(self.leaves) if not leaf.repeated}
        """Number of each leaf that is not inside a list, by path."""
        self._below = leaves_below([leaf.path for leaf in self.leaves])

    def _read(self, raw: bytes) -> Integers:
        position = number = 0
        figures = None
        try:
            while True:
                number, kind, position = read_field(raw, position, number)
                if not kind:
                    return np.empty((0, len(self.leaves), _FIGURES), np.int64) if figures is None else figures
                if number == _ROW_GROUPS and kind == LIST:
                    figures, position = self._read_groups(raw, position)
                    continue
                start = position
                value, position = read_value(raw, position, kind)
                if number == _SCHEMA:
                    self.leaves, self.schema_range = _leaves(value), (start, position)
                elif number == _COLUMN_ORDERS and isinstance(value, list) and len(value) == len(self.leaves):
                    ordered = [isinstance(order, dict) and 1 in order for order in value]
                    self.leaves = [replace(leaf, ordered=one) for leaf, one in zip(self.leaves, ordered, strict=True)]
        except IndexError:
            raise ThriftError(f"the bytes end early, at byte {len(raw)}") from None
        except TypeError as exc:  # a struct or list where a number is wanted
            raise ThriftError("a field has another type than it should") from exc

    def _read_groups(self, raw: bytes, position: int) -> tuple[Integers, int]:
        length, kind, position = read_list_header(raw, position)
        if length and kind != STRUCT:
            raise ThriftError("the list of row groups holds something else")
        kinds = [_Kind(leaf.physical, leaf.width, leaf.repeated) for leaf in self.leaves]
        figures = np.empty((length, len(kinds), _FIGURES), np.int64)
        match = chunk_pattern().match if length * len(kinds) >= LEAST_CHUNKS else None
        for index in range(length):
            found, position = _read_group(raw, position, kinds, match)
            if len(found.chunks) != len(kinds):
                raise ThriftError(f"row group {index} has no list of column chunks")
            if kinds:
                figures[index] = found.figures()
            self.file_paths.append(found.path.decode("utf-8", "surrogateescape"))
            self._bounds.append(found.bounds)
            self.positions.append(np.array(found.positions, np.int64))
        return figures, position

    @cached_property
    def digests(self) -> list[bytes]:
        """16 bytes for each row group over offsets, sizes and statistics: see `_digest`."""
        kinds = [leaf.physical for leaf in self.leaves]
        return [
            _digest(figures, [_settled(*one) for one in zip(bounds, kinds, strict=True)])
            for figures, bounds in zip(self._figures, self._bounds, strict=True)
        ]

    @cached_property
    def memory_bytes(self) -> NDArray[np.float64]:
        """Bytes that each column chunk takes in memory, as Arrow; NaN where they are not known.

        Known for values of fixed width, for those stored with all their bytes, and where the writer has noted their
        size before encoding.
        """
        values = self.num_values.astype(np.float64)
        widths = np.array([np.nan if leaf.width is None else leaf.width for leaf in self.leaves], np.float64)
        stored = np.where(self.spelled_out, self.uncompressed_bytes - OFFSET_BYTES * values, np.nan)
        varying = np.where(self.unencoded_bytes >= 0, self.unencoded_bytes, stored)
        return np.where(np.isnan(widths), varying, values * widths) + (OFFSET_BYTES + VALIDITY_BYTES) * values

    def below(self, name: str) -> list[int]:
        """Return the leaves of a column: of a struct or list, all that lie below it."""
        return self._below.get(name, [])

    def null_elements(self) -> Integers:
        """Return `null_count` without the empty and null lists that it includes; -1 where they are not told apart."""
        counts = self.null_count.copy()
        for index, leaf in enumerate(self.leaves):
            if leaf.repeated:
                optional = leaf.element.get(_ELEMENT_REPETITION) == _OPTIONAL
                short = self._one_level_short[:, index]
                counts[:, index] = np.where(counts[:, index] == 0, 0, short) if optional else 0
        return counts

    def range_of(self, group: int, leaf: int) -> tuple[int, int]:
        """Return start and stop of a column chunk in its file, found as pyarrow does."""
        start, dictionary = int(self.data_page_offset[group, leaf]), int(self.dictionary_page_offset[group, leaf])
        if 0 < dictionary < start:
            start = dictionary
        return start, start + int(self.compressed_bytes[group, leaf])

    def has_bounds(self, group: int, leaf: int) -> bool:
        """Tell whether a least and a greatest value are stored, of any kind."""
        return None not in self._bounds[group][leaf]

    def bounds(self, group: int, leaf: int, kind: pa.DataType) -> tuple[pa.Scalar, pa.Scalar] | None:
        """Return least and greatest value of a column chunk as Arrow scalars of type `kind`.

        None if there are none, or they cannot be trusted for a comparison in Arrow's order: those of NaN, of types
        whose order is not defined, and of writers that do not say which order they used (but for signed numbers, about
        which all agree). Values may be shortened, so that they lie outside of those that occur, never inside.
        """
        least, most = self._bounds[group][leaf]
        if least is None or most is None:
            return None
        try:
            found = _decoded(self.leaves[leaf], (least, most), kind)
            if found is None or not found[0] <= found[1]:  # NaN is not <= anything
                return None
            return pa.scalar(found[0], kind), pa.scalar(found[1], kind)
        except (
            pa.ArrowInvalid,
            pa.ArrowTypeError,
            pa.ArrowNotImplementedError,
            ValueError,
            TypeError,
            ArithmeticError,
        ):
            return None


def leaves_below(paths: Sequence[str]) -> dict[str, list[int]]:
    """Return the numbers of the leaves of each column: of a struct or list, of all that lie below it."""
    below: dict[str, list[int]] = {}
    for index, path in enumerate(paths):
        for depth in range(1, path.count(".") + 2):
            below.setdefault(".".join(path.split(".")[:depth]), []).append(index)
    return below


def _leaves(elements: Any) -> list[Leaf]:
    """Return the leaves of a schema, which is stored as a list of its nodes, parents first."""
    found: list[Leaf] = []
    if not isinstance(elements, list) or not all(isinstance(element, dict) for element in elements):
        raise ThriftError("the schema is not a list of elements")
    above: list[list[Any]] = []  # of each open parent: children left, path, whether repeated
    for number, element in enumerate(elements):
        children, name = element.get(_ELEMENT_CHILDREN, 0), element.get(_ELEMENT_NAME)
        if type(children) is not int or not isinstance(name, bytes):
            raise ThriftError(f"schema element {number} has no name, or no number of children")
        path, repeated = "", False
        if number:
            while above and not above[-1][0]:
                above.pop()
            if not above:
                raise ThriftError("the schema has elements that belong to no parent")
            above[-1][0] -= 1
            path = above[-1][1] + name.decode("utf-8", "surrogateescape")
            repeated = above[-1][2] or element.get(_ELEMENT_REPETITION) == _REPEATED
        if children > 0 or not number:
            above.append([children, f"{path}." if number else "", repeated])
            continue
        kind = element.get(_ELEMENT_TYPE)
        fixed = kind == _FIXED_BYTES and type(element.get(_ELEMENT_LENGTH)) is int
        if not fixed and kind not in _WIDTHS:
            raise ThriftError(f"column {path!r} has an unknown physical type ({kind})")
        found.append(Leaf(path, element, repeated))
    return found


class _Kind(NamedTuple):
    """What the schema says about the column chunks of a leaf."""

    physical: int
    width: int | None
    repeated: bool


@dataclass(slots=True)
class _Group:
    """What was read of one row group: a list entry for each column chunk."""

    path: bytes = b""
    chunks: list[tuple[int, ...] | None] = field(default_factory=list)
    """Figures; None for those that the pattern has read, which are in `stored` and `more`."""
    bounds: list[Bounds] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    stored: list[bytes] = field(default_factory=list)
    """Integers as stored, `len(INTEGERS)` for each such column chunk."""
    more: list[tuple[int, int]] = field(default_factory=list)
    """The figures that are not integers as stored."""

    def figures(self) -> Integers:
        """Return the figures of all column chunks."""
        if not self.stored:
            return np.array(self.chunks, np.int64)
        by_pattern = integers(self.stored).reshape(-1, len(INTEGERS))
        by_pattern[:, 4][by_pattern[:, 4] == 0] = -1  # parquet-mr writes 0 for no dictionary page
        figures = np.empty((len(self.chunks), _FIGURES), np.int64)
        where = np.array([chunk is None for chunk in self.chunks])
        figures[where] = np.concatenate((by_pattern, np.array(self.more, np.int64)), axis=1)
        if not where.all():
            figures[~where] = [chunk for chunk in self.chunks if chunk is not None]
        return figures


def _read_group(
    raw: bytes, position: int, kinds: Sequence[_Kind], match: Callable[[bytes, int], Any] | None
) -> tuple[_Group, int]:
    """Read one row group, its column chunks by `match` where that finds one, else field by field."""
    found, number = _Group(), 0
    while True:
        number, kind, position = read_field(raw, position, number)
        if not kind:
            return found, position
        if number != _GROUP_COLUMNS or kind != LIST:
            if kind not in BOOLEANS:
                _, position = read_value(raw, position, kind)
            continue
        length, element, position = read_list_header(raw, position)
        if length != len(kinds) or element != STRUCT:
            raise ThriftError(f"a row group has {length} column chunks, the schema {len(kinds)} columns")
        for leaf in kinds:
            found.positions.append(position)
            one = None if match is None else match(raw, position)
            if one is not None and _take_matched(one, leaf, found):
                position = one.end()
                continue
            chunk, position = read_struct(raw, position)
            found.chunks.append(_read_chunk(chunk, leaf, found.bounds))
            if len(found.chunks) == 1:
                found.path = chunk.get(_CHUNK_FILE, b"")
                if not isinstance(found.path, bytes):
                    raise ThriftError("a row group names a file that is not text")


def _take_matched(one: Any, leaf: _Kind, found: _Group) -> bool:
    """Take a column chunk that the pattern has read; False if it is to be read field by field."""
    kind, encodings, path, least, most, levels, *numbers = one.group(*_MATCHED, *INTEGERS)
    if kind != bytes((2 * leaf.physical,)):
        return False
    if least is None and leaf.physical not in (_BYTE_ARRAY, _FIXED_BYTES):
        least, most = one.group("min_old", "max_old")
    bounds = (None, None) if least is None else (least[1:], most[1:])  # behind their lengths
    fits = leaf.width is None or (least is not None and len(least) == len(most) == leaf.width + 1)
    if not found.chunks and path is not None:
        found.path = path[1:]
    found.chunks.append(None)
    found.bounds.append(bounds if fits else (None, None))
    found.stored += [number or _MINUS_ONE for number in numbers]
    short = _one_level_short(read_value(levels, 0, LIST)[0]) if leaf.repeated and levels else -1
    found.more.append((int(_SPELLED_OUT_STORED.issuperset(encodings[1:])), short))
    return True


def _read_chunk(chunk: Struct, leaf: _Kind, bounds: list[Bounds]) -> tuple[int, ...]:
    """Return the figures of a column chunk, and add its least and greatest value to `bounds`.

    Raises:
        ThriftError: it lacks a required field, or has another type than the schema says.
    """
    if not chunk.keys().isdisjoint(_CHUNK_ENCRYPTED):
        bounds.append((None, None))
        return _UNKNOWN
    meta = chunk.get(_CHUNK_META)
    if not isinstance(meta, dict):
        raise ThriftError("a column chunk has no metadata")
    if meta.get(_META_TYPE) != leaf.physical:
        raise ThriftError(
            f"a column chunk has physical type {meta.get(_META_TYPE)} where the schema says {leaf.physical}"
        )
    encodings = meta.get(_META_ENCODINGS)
    statistics, sizes = meta.get(_META_STATISTICS, {}), meta.get(_META_SIZES, {})
    if not isinstance(encodings, list) or not isinstance(statistics, dict) or not isinstance(sizes, dict):
        raise ThriftError("encodings or statistics of a column chunk are of another type")
    least, most = statistics.get(_STAT_MIN), statistics.get(_STAT_MAX)
    if least is None and most is None and leaf.physical not in (_BYTE_ARRAY, _FIXED_BYTES):
        # The deprecated pair: writers disagreed about the order of bytes, never about that of numbers.
        least, most = statistics.get(_STAT_MIN_OLD), statistics.get(_STAT_MAX_OLD)
    for bound in (least, most):
        if bound is not None and not isinstance(bound, bytes):
            raise ThriftError("the least or greatest value of a column chunk is not binary")
    width = leaf.width
    fits = width is None or (least is not None and most is not None and len(least) == len(most) == width)
    bounds.append((least, most) if fits else (None, None))
    return (
        _integer(meta, _META_VALUES),
        _integer(meta, _META_UNCOMPRESSED),
        _integer(meta, _META_COMPRESSED),
        _integer(meta, _META_DATA_PAGE),
        _integer(meta, _META_DICTIONARY_PAGE, -1) or -1,  # parquet-mr writes 0 for none
        _integer(statistics, _STAT_NULLS, -1),
        _integer(sizes, _SIZES_UNENCODED, -1),
        int(_SPELLED_OUT.issuperset(encodings)),
        _one_level_short(sizes.get(_SIZES_LEVELS)) if leaf.repeated else -1,
    )


def _one_level_short(levels: Any) -> int:
    """Return the last but one entry of a histogram of definition levels; -1 where there is none."""
    if not isinstance(levels, list) or len(levels) < 2 or type(levels[-2]) is not int:
        return -1
    return levels[-2] if 0 <= levels[-2] < 1 << 63 else -1


def _integer(struct: Struct, number: int, default: int | None = None) -> int:
    value = struct.get(number, default)
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        raise ThriftError(f"field {number} of a column chunk is missing, or not a number of 64 bits")
    return value


def _settled(bounds: Bounds, physical: int) -> Bounds:
    """Return bounds of floating-point numbers as parquet-mr puts them into `_metadata`: no NaN, and zeros with a sign.

    Its own footers, from which it makes that file, hold them as they were found.
    """
    floats = _PAIRS.get(physical)
    if floats is None or bounds[0] is None or bounds[1] is None:
        return bounds
    least, most = floats.unpack(bounds[0] + bounds[1])
    if math.isnan(least) or math.isnan(most):
        return None, None
    zero = bytes(len(bounds[0]))
    return bounds[0] if least else zero[1:] + b"\x80", bounds[1] if most else zero


def _digest(figures: Integers, bounds: Sequence[Bounds]) -> bytes:
    """Digest a row group: offsets, sizes, null counts, least and greatest values. Changing how breaks resumed runs.

    What writers of `_metadata` leave out or write in another way (distinct counts, encodings, size statistics, paths,
    deprecated fields beside new ones, bounds that are NaN or zero) is not part of it, so that footers and `_metadata`
    agree.
    """
    both = [bound for pair in bounds for bound in pair]
    sums = hashlib.blake2b(np.ascontiguousarray(figures[:, :6], "<i8").tobytes(), digest_size=16)
    sums.update(np.array([-1 if bound is None else len(bound) for bound in both], "<i8").tobytes())
    sums.update(b"".join(bound or b"" for bound in both))
    return sums.digest()


def _decoded(leaf: Leaf, bounds: tuple[bytes, bytes], kind: pa.DataType) -> tuple[Any, Any] | None:
    """Return bounds as values of which Arrow makes scalars of type `kind`; None if their order is not known."""
    if pa.types.is_decimal(kind):
        return _decimals(leaf, bounds)
    if leaf.physical in (_BYTE_ARRAY, _FIXED_BYTES):  # ordered by unsigned bytes only where the footer promises it
        if not leaf.ordered:
            return None
        text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        return (bounds[0].decode(), bounds[1].decode()) if text else bounds
    if leaf.physical == _BOOLEAN:
        return bool(bounds[0][0]), bool(bounds[1][0])
    if leaf.physical in (_FLOAT, _DOUBLE):
        code = "<f4" if leaf.physical == _FLOAT else "<f8"
        return float(np.frombuffer(bounds[0], code)[0]), float(np.frombuffer(bounds[1], code)[0])
    if leaf.physical == _INT96:
        return None
    unsigned = _is_unsigned(leaf.element)
    if unsigned and not leaf.ordered:
        return None
    least, most = (int.from_bytes(bound, "little", signed=not unsigned) for bound in bounds)
    if not pa.types.is_timestamp(kind):
        return least, most
    unit = _timestamp_unit(leaf.element)
    if unit is None:
        return None
    stored, wanted = _SECOND[unit], _SECOND[kind.unit]
    return least * wanted // stored, -(-most * wanted // stored)


def _decimals(leaf: Leaf, bounds: tuple[bytes, bytes]) -> tuple[Decimal, Decimal] | None:
    binary = leaf.physical in (_BYTE_ARRAY, _FIXED_BYTES)
    if leaf.physical not in (_INT32, _INT64) and not (binary and leaf.ordered):
        return None
    scale = leaf.element.get(_ELEMENT_SCALE, 0)
    least, most = (int.from_bytes(bound, "big" if binary else "little", signed=True) for bound in bounds)
    return Decimal(f"{least}e{-scale}"), Decimal(f"{most}e{-scale}")


def _is_unsigned(element: Struct) -> bool:
    logical = element.get(_ELEMENT_LOGICAL)
    integer = logical.get(_LOGICAL_INTEGER) if isinstance(logical, dict) else None
    if isinstance(integer, dict):
        return integer.get(_INTEGER_SIGNED) is False
    return element.get(_ELEMENT_CONVERTED) in _UNSIGNED


def _timestamp_unit(element: Struct) -> int | None:
    """Return the number that logical types have for the unit: 1 for milliseconds, 2 micro, 3 nano."""
    logical = element.get(_ELEMENT_LOGICAL)
    timestamp = logical.get(_LOGICAL_TIMESTAMP) if isinstance(logical, dict) else None
    unit = timestamp.get(_TIMESTAMP_UNIT) if isinstance(timestamp, dict) else None
    if isinstance(unit, dict) and len(unit) == 1 and next(iter(unit)) in _SECOND:
        return int(next(iter(unit)))
    return _TIMESTAMPS.get(element.get(_ELEMENT_CONVERTED, -1))
