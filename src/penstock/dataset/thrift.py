"""Read and write Thrift's compact protocol, in which Parquet footers and page headers are written.

`column_chunks` reads the row groups of a footer with it, `page_index` the places of pages, and `page_file` writes
footers. pyarrow parses footers too, but asking its parsed form about a column chunk ends the whole process where a
footer is damaged; this reader raises an error instead. It knows nothing of Parquet: structs come as dicts by field
number, whatever fields there are.

Costs about 0.3 microseconds a field. Bounded whatever the bytes say: nothing is allocated by a number that was read,
and structs may be nested only so deep.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_MOST_NESTED = 16
"""Parquet's own structs are nested six deep; logical types and encryption no deeper."""
_MOST_BITS = 70
"""Bits of the longest varint: ten bytes of seven."""
_TRUE, _BYTE, I32, I64, _DOUBLE, BINARY, LIST, STRUCT = 1, 3, 5, 6, 7, 8, 9, 12
BOOLEANS, _INTEGERS, _NESTING = frozenset({1, 2}), frozenset({4, 5, 6}), frozenset({9, 10, 12})

Struct = dict[int, Any]


class ThriftError(ValueError):
    """The bytes are not what the compact protocol would have written."""


def read_struct(data: bytes, position: int, nested: int = 0) -> tuple[Struct, int]:
    """Return a struct as a dict by field number, and the position behind it.

    Integers come as int, binary and text as bytes, lists and sets as list, structs as dict.

    Raises:
        ThriftError: the bytes are not a struct.
        IndexError: they end early.
    """
    fields: Struct = {}
    number = 0
    while header := data[position]:
        position += 1
        if header >> 4:
            number += header >> 4
        else:
            number, position = _integer(data, position)
        if number in fields:
            raise ThriftError(f"field {number} comes twice in one struct, at byte {position}")
        kind = header & 15
        if kind in _INTEGERS:  # in line: most fields of a footer are integers
            byte = data[position]
            position += 1
            value = byte & 127
            if byte > 127:
                value, position = _rest_of_varint(data, position, value)
            fields[number] = (value >> 1) ^ -(value & 1)
        elif kind in BOOLEANS:
            fields[number] = kind == _TRUE
        else:
            fields[number], position = read_value(data, position, kind, nested)
    return fields, position + 1


def read_field(data: bytes, position: int, before: int) -> tuple[int, int, int]:
    """Return number and type of the next field of a struct, and the position of its value; type 0 ends the struct.

    For structs that are too large to be read at once. `before` is the number of the field before, at first 0.

    Raises:
        ThriftError, IndexError: as `read_struct`.
    """
    header = data[position]
    position += 1
    if header >> 4 or not header:
        return before + (header >> 4), header & 15, position
    number, position = _integer(data, position)
    return number, header & 15, position


def read_value(data: bytes, position: int, kind: int, nested: int = 0) -> tuple[Any, int]:
    """Return a value of any type, and the position behind it. The boolean of a field has none: it is in the type.

    Raises:
        ThriftError, IndexError: as `read_struct`.
    """
    if kind == BINARY:
        size, position = _varint(data, position)
        stop = position + size
        if stop > len(data):
            raise ThriftError(f"{size} bytes are announced at byte {position}, {len(data) - position} are left")
        return data[position:stop], stop
    if kind in _INTEGERS:
        return _integer(data, position)
    if kind in _NESTING:
        if nested >= _MOST_NESTED:
            raise ThriftError(f"nested more than {_MOST_NESTED} deep, at byte {position}")
        if kind == STRUCT:
            return read_struct(data, position, nested + 1)
        return _read_list(data, position, nested + 1)
    if kind == _DOUBLE:
        return data[position : position + 8], position + 8
    if kind == _BYTE:
        return data[position], position + 1
    raise ThriftError(f"unknown type {kind} at byte {position}")


def read_list_header(data: bytes, position: int) -> tuple[int, int, int]:
    """Return length and type of the elements of a list, and the position of the first.

    Raises:
        ThriftError, IndexError: as `read_struct`.
    """
    header = data[position]
    length, position = header >> 4, position + 1
    if length == 15:
        length, position = _varint(data, position)
    if length > len(data) - position:  # every element takes a byte or more
        raise ThriftError(f"a list of {length} elements is announced at byte {position}, too many for the bytes left")
    return length, header & 15, position


def _read_list(data: bytes, position: int, nested: int) -> tuple[list[Any], int]:
    length, element, position = read_list_header(data, position)
    kind = _BYTE if element in BOOLEANS else element  # a boolean in a list takes a byte
    values = []
    for _ in range(length):
        value, position = read_value(data, position, kind, nested)
        values.append(value)
    return values, position


def _integer(data: bytes, position: int) -> tuple[int, int]:
    value, position = _varint(data, position)
    return (value >> 1) ^ -(value & 1), position


def _varint(data: bytes, position: int) -> tuple[int, int]:
    byte = data[position]
    return (byte, position + 1) if byte < 128 else _rest_of_varint(data, position + 1, byte & 127)


def _rest_of_varint(data: bytes, position: int, value: int) -> tuple[int, int]:
    shift = 7
    while shift < _MOST_BITS:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7
    raise ThriftError(f"a number of more than {_MOST_BITS} bits ends at byte {position}")


def integer_bytes(value: int) -> bytes:
    """Return an integer of 64 bits or less as it is stored: zigzag, seven bits a byte."""
    return _varint_bytes((value << 1) ^ (value >> 63))


def binary_bytes(value: bytes) -> bytes:
    """Return binary or text as it is stored: behind its length."""
    return _varint_bytes(len(value)) + value


def list_bytes(kind: int, elements: Sequence[bytes]) -> bytes:
    """Return a list of elements of one type that are encoded already."""
    length = len(elements)
    header = bytes((length << 4 | kind,)) if length < 15 else bytes((0xF0 | kind,)) + _varint_bytes(length)
    return header + b"".join(elements)


def struct_bytes(fields: Iterable[tuple[int, int, bytes]]) -> bytes:
    """Return a struct of fields (number, type, encoded value) whose numbers ascend."""
    parts, before = [], 0
    for number, kind, value in fields:
        step = number - before
        parts.append(bytes((step << 4 | kind,)) if step < 16 else bytes((kind,)) + integer_bytes(number))
        parts.append(value)
        before = number
    return b"".join(parts) + b"\0"


def _varint_bytes(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)
