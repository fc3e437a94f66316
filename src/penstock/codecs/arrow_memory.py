"""Arrow's buffers as NumPy arrays: validity, offsets, bytes, and the text, bytes and decimals cut out of them.

The lowest layer under `arrow_fixed` and `arrow`: every function takes one Arrow array, honours its offset, and copies
only where it says so. Buffers may be absent (Arrow omits empty ones) and offsets are 32 or 64 bits
wide; callers need not know. Never goes through `to_numpy`, which imports pandas where it is installed.
"""

from __future__ import annotations

from decimal import Context, Decimal
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.codecs.arrow_kinds import form_of, type_id
from penstock.codecs.base import CellError
from penstock.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

_BITS = {type_id(f"DECIMAL{bits}"): bits for bits in (32, 64, 128)}
_LARGE = {type_id(name) for name in ("LARGE_STRING", "LARGE_BINARY", "LARGE_LIST", "LARGE_LIST_VIEW")}
_BYTE_VIEWS = {type_id("STRING_VIEW"): "string", type_id("BINARY_VIEW"): "binary"}
_LIST_VIEWS = {type_id("LIST_VIEW"), type_id("LARGE_LIST_VIEW")}
_FIXED_SIZE_BINARY = type_id("FIXED_SIZE_BINARY")

# Measured for short strings: 27 ns a cell from pyarrow 25 on, 700 ns before; cutting them ourselves costs 110 ns.
_FAST_PYLIST = int(pa.__version__.split(".", 1)[0]) >= 25

# Exact for every Arrow decimal (76 digits), in any context of the caller.
_EXACT = Context(prec=80)


def bits(buffer: pa.Buffer, offset: int, count: int) -> NDArray[np.bool_]:
    """Unpack `count` bits from bit `offset` on; copies (one byte a bit)."""
    first = offset >> 3
    packed = np.frombuffer(buffer, np.uint8, ((offset + count + 7) >> 3) - first, first)
    skip = offset & 7
    return np.unpackbits(packed, count=skip + count, bitorder="little")[skip:].view(np.bool_)


def validity(array: pa.Array) -> NDArray[np.bool_] | None:
    """Return which slots of an array hold a value; None, without a look at the bitmap, where all do.

    Slots of dictionaries and run-ends are judged by their outer array only; decode those first.
    """
    if array.null_count == 0:
        return None
    buffer = array.buffers()[0]
    if buffer is None:  # the null type has no bitmap
        return np.zeros(len(array), np.bool_)
    return bits(buffer, array.offset, len(array))


def numbers(array: pa.Array, dtype: np.dtype[Any]) -> NDArray[Any]:
    """View the values of a fixed-width array; what stands in null slots is undefined."""
    if len(array) == 0:
        return np.empty(0, dtype)
    return np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)


def _offset_dtype(array: pa.Array) -> np.dtype[Any]:
    return np.dtype(np.int64 if array.type.id in _LARGE else np.int32)


def _offsets(array: pa.Array) -> NDArray[np.integer[Any]]:
    """View the len + 1 offsets of a list or binary array; they are absolute."""
    dtype, buffer = _offset_dtype(array), array.buffers()[1]
    if buffer is None or buffer.size == 0:
        return np.zeros(len(array) + 1, dtype)
    return np.frombuffer(buffer, dtype, len(array) + 1, array.offset * dtype.itemsize)


def cells_view(
    array: pa.Array,
) -> tuple[NDArray[np.uint8], NDArray[np.integer[Any]], NDArray[np.bool_] | None]:
    """Return bytes, offsets and validity of a binary or text column: cell i is data[offsets[i] : offsets[i + 1]].

    A view of Arrow's memory for plain and large arrays, slices of them included; dictionaries and view types are laid
    out anew. Offsets are absolute, int32 or int64. A column of nulls gives empty cells, all of them null.
    """
    form = form_of(array.type)
    if form == "extension":
        return cells_view(array.storage)
    if form in ("dictionary", "runs"):
        return cells_view(decoded(array))
    if form == "null":
        return np.empty(0, np.uint8), np.zeros(len(array) + 1, np.int64), validity(array)
    if form not in ("text", "bytes"):
        raise InternalError(f"cells requested of an array of {array.type}; please report")
    array = takeable(array)
    valid = validity(array)
    if array.type.id == _FIXED_SIZE_BINARY:
        offsets = np.arange(array.offset, array.offset + len(array) + 1, dtype=np.int64) * array.type.byte_width
        return _bytes(array.buffers()[1]), offsets, valid
    return _bytes(array.buffers()[2]), _offsets(array), valid


def _bytes(buffer: pa.Buffer | None) -> NDArray[np.uint8]:
    if buffer is None or buffer.size == 0:  # all cells are empty
        return np.empty(0, np.uint8)
    return np.frombuffer(buffer, np.uint8)


class Lists(NamedTuple):
    """Where the rows of a list column are: row i is child[start[i] : stop[i]]."""

    child: pa.Array
    """The values that the rows use, and no others before or after."""
    start: NDArray[np.int64]
    stop: NDArray[np.int64]
    valid: NDArray[np.bool_] | None
    shared: bool
    """Whether two rows may use the same values (list views)."""


def lists(array: pa.Array) -> Lists:
    """Return the rows of an array of lists of any type, or of maps (whose child is their struct of key and value).

    Null rows have no length. The child is sliced to what the rows span, so that its cost is theirs.
    """
    valid = validity(array)
    start, stop = _bounds(array)
    if valid is not None:  # a null row may have a length: Arrow lets it
        stop = np.where(valid, stop, start)
    used = stop > start
    low, high = (int(start[used].min()), int(stop[used].max())) if used.any() else (0, 0)
    child = _child(array).slice(low, high - low)
    return Lists(
        child, np.where(used, start - low, 0), np.where(used, stop - low, 0), valid, array.type.id in _LIST_VIEWS
    )


def _child(array: pa.Array) -> pa.Array:
    """Return all values of a list array, for any offset."""
    if form_of(array.type) != "map":
        return array.values
    fields = [pa.field("key", array.type.key_type), pa.field("value", array.type.item_type)]
    # Not MapArray.keys and .items: those may be longer than the entries, and then differ in length.
    entries = array.values
    return pa.StructArray.from_arrays([entries.field(0), entries.field(1)], fields=fields)


def _bounds(array: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    if form_of(array.type) == "fixed_list":
        edges = np.arange(array.offset, array.offset + len(array) + 1, dtype=np.int64) * array.type.list_size
        return edges[:-1], edges[1:]
    if array.type.id not in _LIST_VIEWS:
        offsets = _offsets(array).astype(np.int64)
        return offsets[:-1], offsets[1:]
    if len(array) == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    dtype, buffers = _offset_dtype(array), array.buffers()
    start, size = (
        np.frombuffer(buffer, dtype, len(array), array.offset * dtype.itemsize).astype(np.int64)
        for buffer in buffers[1:3]
    )
    return start, start + size


def decoded(array: pa.Array) -> pa.Array:
    """Lay out a dictionary or run-end encoded array value by value; copies."""
    if form_of(array.type) == "runs":
        import pyarrow.compute as pc

        return pc.run_end_decode(array)
    return takeable(array.dictionary).take(array.indices)


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array; more than 2 GiB of text or bytes get 64-bit offsets."""
    if column.num_chunks == 1:
        return column.chunk(0)
    if pa.types.is_binary(column.type):
        column = column.cast(pa.large_binary())
    elif pa.types.is_string(column.type):
        column = column.cast(pa.large_string())
    return column.combine_chunks()


def take_rows(array: pa.Array, rows: NDArray[np.int64]) -> pa.Array:
    """Return some rows of a column, of any type that is read."""
    index = pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(np.ascontiguousarray(rows))])
    return takeable(array).take(index)


def takeable(array: pa.Array) -> pa.Array:
    """Return the array in a form that `Array.take` accepts: Arrow cannot take string and binary views (seen in 26).

    Such views, also inside lists, maps and structs, become large strings and binaries, and an extension of them its
    storage; other arrays pass as they are.
    """
    if form_of(array.type) == "extension":
        storage = array.storage
        plain = takeable(storage)
        return array if plain is storage else plain
    wanted = without_views(array.type)
    return array if wanted is array.type else array.cast(wanted)


def without_views(kind: pa.DataType) -> pa.DataType:
    """Return the type without string and binary views, the same object where it has none."""
    if kind.id in _BYTE_VIEWS:
        return getattr(pa, f"large_{_BYTE_VIEWS[kind.id]}")()
    remake = _REMAKE.get(form_of(kind))
    if remake is None or kind.id in _LIST_VIEWS:  # list views are taken without a look at their values
        return kind
    inner = [kind.field(i) for i in range(kind.num_fields)]
    types = [without_views(field.type) for field in inner]
    if all(new is field.type or new == field.type for new, field in zip(types, inner, strict=True)):
        return kind
    return remake(kind, [field.with_type(new) for new, field in zip(types, inner, strict=True)])


_REMAKE: dict[str, Callable[[pa.DataType, list[pa.Field]], pa.DataType]] = {
    "list": lambda kind, fields: pa.large_list(fields[0]) if kind.id in _LARGE else pa.list_(fields[0]),
    "fixed_list": lambda kind, fields: pa.list_(fields[0], kind.list_size),
    "struct": lambda _, fields: pa.struct(fields),
    "map": lambda _, fields: pa.map_(fields[0].type.field(0).type, fields[0].type.field(1).type),
}


def texts(array: pa.Array) -> list[str | None]:
    """Return the rows of a text column as str; CellError for a row that is not UTF-8."""
    try:
        found: list[str | None] = array.to_pylist() if _FAST_PYLIST else _cut_texts(array)
    except UnicodeDecodeError:
        return [_decode(row, cell) for row, cell in enumerate(byte_strings(array))]
    return found


def _decode(row: int, cell: bytes | None) -> str | None:
    try:
        return None if cell is None else cell.decode()
    except UnicodeDecodeError as error:
        raise CellError(row, f"text that is not UTF-8: {cell!r:.60}; read the column as np.bytes_") from error


def _cut_texts(array: pa.Array) -> list[str | None]:
    data, offsets, valid = cells_view(array)
    low, high = int(offsets[0]), int(offsets[-1])
    raw, edges = data[low:high].tobytes(), (offsets - low).tolist()
    if raw.isascii():  # decoded once, cut by character
        text = raw.decode("ascii")
        rows: list[str | None] = [text[a:b] for a, b in pairwise(edges)]
    else:
        rows = [raw[a:b].decode() for a, b in pairwise(edges)]
    return _with_nulls(rows, valid)


def byte_strings(array: pa.Array) -> list[bytes | None]:
    """Return the rows of a binary or text column as bytes."""
    data, offsets, valid = cells_view(array)
    cells, edges = memoryview(data.data), offsets.tolist()
    return _with_nulls([cells[a:b].tobytes() for a, b in pairwise(edges)], valid)


def _with_nulls(rows: list[Any], valid: NDArray[np.bool_] | None) -> list[Any]:
    """Put None where no value is, in place."""
    if valid is not None:
        for row in np.flatnonzero(~valid).tolist():
            rows[row] = None
    return rows


def decimals(array: pa.Array) -> list[Decimal | None]:
    """Return the rows of a decimal column, exact, with the column's scale."""
    values = _unscaled(array)
    if values is None:
        return list(array.to_pylist())
    scale, scaled = -array.type.scale, _EXACT.scaleb
    return _with_nulls([scaled(Decimal(value), scale) for value in values.tolist()], validity(array))


def _unscaled(array: pa.Array) -> NDArray[np.integer[Any]] | None:
    """Return the integers of a decimal column, or None where they need more than 64 bits."""
    width = _BITS.get(array.type.id)
    if width is None:
        return None
    if width < 128:
        return numbers(array, np.dtype(f"i{width // 8}"))
    words = numbers(array, np.dtype([("low", np.int64), ("high", np.int64)]))
    low = words["low"]
    # Undefined null slots may look too wide: that costs speed, never a value.
    return low if np.array_equal(words["high"], low >> 63) else None
