"""Make a small Parquet file in memory out of some pages of a large one, so that pyarrow decodes them.

pyarrow reads whole column chunks only. `PageFile` knows the schema of some columns of a file; `decode` writes a footer
for some of their pages, which pyarrow then reads as a file of its own. Each leaf becomes a column by itself, because
the pages of two leaves begin with different rows even where both belong to one struct or list; `join_leaves` puts such
columns together again, after the rows were cut. Pages are not copied. Reads no files.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.dataset.footers import READ_ERRORS, READ_OPTIONS
from penstock.dataset.join_leaves import count_leaves, only_leaf, only_leaves
from penstock.dataset.page_index import DamagedPages, Unsplittable
from penstock.dataset.thrift import (
    BINARY,
    I32,
    I64,
    LIST,
    STRUCT,
    binary_bytes,
    integer_bytes,
    list_bytes,
    read_field,
    read_list_header,
    read_struct,
    read_value,
    struct_bytes,
)
from penstock.storage.remote_store import open_ranges

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.dataset.thrift import Struct

# Field numbers and values of parquet.thrift.
_ELEMENT_TYPE, _ELEMENT_REPETITION, _ELEMENT_NAME, _ELEMENT_CHILDREN = 1, 3, 4, 5
_ELEMENT_CONVERTED, _ELEMENT_LOGICAL = 6, 10
_REPEATED, _CONVERTED_MAPS, _CONVERTED_LIST, _LOGICAL_MAP, _LOGICAL_LIST = 2, (1, 2), 3, 2, 3
_ENCODINGS = list_bytes(I32, [integer_bytes(encoding) for encoding in (0, 3, 8)])
"""PLAIN, RLE and RLE_DICTIONARY: a footer must have some. pyarrow takes the encoding from the page headers."""
_LIST_CHANGES = {
    _ELEMENT_CONVERTED: integer_bytes(_CONVERTED_LIST),
    _ELEMENT_LOGICAL: struct_bytes([(_LOGICAL_LIST, STRUCT, struct_bytes([]))]),
}
_NO_ANNOTATION = {_ELEMENT_CONVERTED: None, _ELEMENT_LOGICAL: None}
_ARROW_SCHEMA = binary_bytes(b"ARROW:schema")
_MAGIC = b"PAR1"


class LeafPages(NamedTuple):
    """Pages of one leaf that lie one behind the other, the dictionary page first if they need it."""

    data: pa.Buffer
    codec: int
    """Number of the compression."""
    values: int
    """Values of the data pages, nulls included."""
    rows: int
    """Rows that they should hold."""
    most_bytes: float
    """Bytes that they take in memory, at most."""
    is_exact: bool
    """Whether they take about that many; otherwise values are repeated by a dictionary, and may take far less."""
    may_be_dictionary: bool = False
    """Whether pyarrow can return them as a dictionary, which can be cast to their type."""


class PageFile:
    """The schema of some columns of a file, to decode pages of them. The same for all row groups; safe for threads."""

    def __init__(self, schema: bytes, arrow_schema: bytes | None, names: Sequence[str]) -> None:
        """Take the schema of a footer as stored, its `ARROW:schema` if there is one, and columns, or leaves by path.

        Raises:
            Unsplittable: a column is nested in a way that cannot be cut into leaves.
        """
        wanted = frozenset(names)
        self.leaves: list[int] = []
        """Numbers of the leaves in the file, ascending."""
        self.fields: list[pa.Field] = []
        """The top-level columns that they make up, as pyarrow reads them."""
        self.counts: list[int] = []
        """Number of leaves in each of these columns."""
        chains: list[list[_Element]] = []
        leaf_fields = [_FIRST_FIELD]
        first = 0
        for top, stored in zip(_parse(schema), _open(_footer(schema, arrow_schema)).schema_arrow, strict=True):
            below = top.leaves()
            found = [index for index, chain in enumerate(below) if _is_wanted(chain, wanted)]
            if found:
                if count_leaves(stored.type) != len(below):
                    raise Unsplittable(f"it is stored as {len(below)} leaves, where {stored.type} has another number")
                kind = only_leaves(stored.type, found)
                self.fields.append(stored.with_type(kind))
                self.counts.append(len(found))
                self.leaves += [first + index for index in found]
                chains += [below[index] for index in found]
                # The metadata of a field may name an extension type, which a single leaf of it is not.
                metadata = stored.metadata if len(found) == 1 else None
                leaf_fields += [
                    pa.field(stored.name, only_leaf(kind, place), stored.nullable, metadata)
                    for place in range(len(found))
                ]
            first += len(below)
        self.types = [one.type for one in leaf_fields[1:]]
        """Types of the columns that `decode` returns."""
        self._chunk_heads = [_chunk_head(chain) for chain in chains]
        self._schema = _schema_of(schema, chains)
        self._arrow = None if arrow_schema is None else base64.b64encode(pa.schema(leaf_fields).serialize())
        if _open(_footer(self._schema, self._arrow)).schema_arrow.types[1:] != self.types:
            raise Unsplittable("it is nested in a way that pyarrow reads differently once it is cut into leaves")

    def decode(
        self, pages: Sequence[LeafPages], options: Mapping[str, Any], dictionaries: Sequence[int] = ()
    ) -> list[pa.ChunkedArray]:
        """Return all rows of pages, as a column for each leaf; `options` are further keywords of pyarrow's reader.

        The columns are of different lengths: each has the rows of its own pages, however many there are. Text and
        binary of the leaves `dictionaries` come as dictionaries (see `LeafPages.may_be_dictionary`).

        Raises:
            DamagedPages: the pages of a leaf cannot be decoded; `leaf` is its place in `leaves`.
        """
        held: dict[int, pa.Buffer] = {}
        chunks, position = [], 0
        for head, one in zip(self._chunk_heads, pages, strict=True):
            held[position] = one.data
            chunks.append(_chunk_bytes(head, one, position))
            position += one.data.size
        # pyarrow reads as many rows as the row group has, or fewer if the pages end, and reserves memory for all. So
        # leaves of about the same length share a row group; it has one row more, which comes from wrong pages only.
        sizes = [one.rows.bit_length() for one in pages]
        groups = {size: 1 + max(one.rows for one in pages if one.rows.bit_length() == size) for size in sizes}
        footer = _footer(self._schema, self._arrow, [_group_bytes(chunks, rows) for rows in groups.values()])
        source = pa.BufferReader(pages[0].data) if len(pages) == 1 else open_ranges(held, position, _never)
        reader, columns = pq.ParquetReader(), []
        if dictionaries:
            options = {**options, "read_dictionary": [1 + leaf for leaf in dictionaries]}
        reader.open(source, metadata=_open(footer).metadata, **{**READ_OPTIONS, **options})
        places = {size: place for place, size in enumerate(groups)}
        for leaf, size in enumerate(sizes):
            try:
                table = reader.read_row_group(places[size], column_indices=[1 + leaf], use_threads=False)
            except READ_ERRORS as exc:
                what = (str(exc).strip() or type(exc).__name__).splitlines()[0]
                raise DamagedPages(f"its pages cannot be decoded ({what})", leaf) from exc
            columns.append(table.column(0))
        return columns


@dataclass(frozen=True, slots=True)
class _Element:
    """A node of a Parquet schema."""

    start: int
    stop: int
    fields: Struct
    children: list[_Element] = field(default_factory=list)

    def leaves(self) -> list[list[_Element]]:
        """Return the way down to each leaf, this node included."""
        below = [chain for child in self.children for chain in child.leaves()]
        return [[self, *chain] for chain in below] or [[self]]

    def is_map(self) -> bool:
        """Tell whether it is a map of keys and values; one of keys alone is read as a list."""
        logical = self.fields.get(_ELEMENT_LOGICAL)
        annotated = self.fields.get(_ELEMENT_CONVERTED) in _CONVERTED_MAPS
        if not annotated and not (isinstance(logical, dict) and _LOGICAL_MAP in logical):
            return False
        repeated = self.fields.get(_ELEMENT_REPETITION) == _REPEATED
        return not repeated and len(self.children) == 1 and len(self.children[0].children) == 2


def _parse(schema: bytes) -> list[_Element]:
    """Return the top-level columns of a schema, which is stored as a list of its nodes, parents first."""
    length, _, position = read_list_header(schema, 0)
    top: list[_Element] = []
    above: list[tuple[int, list[_Element]]] = []
    for number in range(length):
        start = position
        fields, position = read_struct(schema, position)
        count = fields.get(_ELEMENT_CHILDREN, 0)
        if not number:
            above.append((count, top))
            continue
        while len(above[-1][1]) == above[-1][0]:
            above.pop()
        element = _Element(start, position, fields)
        above[-1][1].append(element)
        if count:
            above.append((count, element.children))
    return top


def _is_wanted(chain: Sequence[_Element], wanted: frozenset[str]) -> bool:
    names = [element.fields[_ELEMENT_NAME].decode("utf-8", "surrogateescape") for element in chain]
    return any(".".join(names[:depth]) in wanted for depth in range(1, len(names) + 1))


def _schema_of(schema: bytes, chains: Sequence[Sequence[_Element]]) -> bytes:
    """Return a schema in which each leaf is a column by itself, inside the lists and structs around it."""
    root = [(_ELEMENT_NAME, BINARY, binary_bytes(b"schema")), (_ELEMENT_CHILDREN, I32, integer_bytes(1 + len(chains)))]
    elements = [struct_bytes(root), _FIRST_ELEMENT]
    for chain in chains:
        inside_map = False
        for element in chain:
            changes: dict[int, bytes | None] = {}
            if element.children:
                changes[_ELEMENT_CHILDREN] = integer_bytes(1)
            if element.is_map():
                changes |= _LIST_CHANGES
            elif inside_map:
                changes |= _NO_ANNOTATION
            inside_map = element.is_map()
            elements.append(_changed(schema, element, changes))
    return list_bytes(STRUCT, elements)


def _changed(schema: bytes, element: _Element, changes: Mapping[int, bytes | None]) -> bytes:
    """Return a schema element with other values for some of the fields that it has; None leaves a field out."""
    if not changes:
        return schema[element.start : element.stop]
    fields: list[tuple[int, int, bytes]] = []
    position, number = element.start, 0
    while True:
        number, kind, position = read_field(schema, position, number)
        if not kind:
            return struct_bytes(fields)
        start = position
        _, position = read_value(schema, position, kind)
        value = changes.get(number, b"") if number in changes else schema[start:position]
        if value is not None:
            fields.append((number, kind, value))


def _chunk_head(chain: Sequence[_Element]) -> bytes:
    """Return the first bytes of the struct of a column chunk: what is the same in every row group."""
    path = list_bytes(BINARY, [binary_bytes(element.fields[_ELEMENT_NAME]) for element in chain])
    kind = integer_bytes(chain[-1].fields[_ELEMENT_TYPE])
    metadata = struct_bytes([(1, I32, kind), (2, LIST, _ENCODINGS), (3, LIST, path)])[:-1]
    return struct_bytes([(2, I64, integer_bytes(0)), (3, STRUCT, metadata)])[:-1]


def _chunk_bytes(head: bytes, pages: LeafPages, position: int) -> bytes:
    """Return the struct of a column chunk: head, compression, values, both sizes, place, and the end of two structs.

    A dictionary page is found because it is the first one; the footer need not tell.
    """
    size = integer_bytes(pages.data.size)
    numbers = (integer_bytes(pages.codec), integer_bytes(pages.values), size, size, integer_bytes(position))
    return head + b"\x15%b\x16%b\x16%b\x16%b\x26%b\x00\x00" % numbers


def _group_bytes(chunks: Sequence[bytes], num_rows: int) -> bytes:
    """Return a row group. Old versions of pyarrow take the rows to be read from the values of its first column."""
    first = LeafPages(pa.py_buffer(b""), 0, num_rows, num_rows, 0, is_exact=True)
    columns = [_chunk_bytes(_FIRST_HEAD, first, 0), *chunks]
    return struct_bytes(
        [(1, LIST, list_bytes(STRUCT, columns)), (2, I64, integer_bytes(0)), (3, I64, integer_bytes(num_rows))]
    )


_FIRST: Struct = {_ELEMENT_TYPE: 1, _ELEMENT_REPETITION: 0, _ELEMENT_NAME: b"rows"}
"""A column of integers in front of the others, which is never read: see `_group_bytes`."""
_FIRST_FIELD = pa.field("rows", pa.int32(), nullable=False)
_FIRST_ELEMENT = struct_bytes(
    [
        (_ELEMENT_TYPE, I32, integer_bytes(_FIRST[_ELEMENT_TYPE])),
        (_ELEMENT_REPETITION, I32, integer_bytes(_FIRST[_ELEMENT_REPETITION])),
        (_ELEMENT_NAME, BINARY, binary_bytes(_FIRST[_ELEMENT_NAME])),
    ]
)
_FIRST_HEAD = _chunk_head([_Element(0, 0, _FIRST)])


def _footer(schema: bytes, arrow_schema: bytes | None, groups: Sequence[bytes] = ()) -> bytes:
    """Return the end of a file: footer, length and magic."""
    fields = [
        (1, I32, integer_bytes(2)),
        (2, LIST, schema),
        (3, I64, integer_bytes(0)),
        (4, LIST, list_bytes(STRUCT, groups)),
    ]
    if arrow_schema is not None:
        entry = struct_bytes([(1, BINARY, _ARROW_SCHEMA), (2, BINARY, binary_bytes(arrow_schema))])
        fields.append((5, LIST, list_bytes(STRUCT, [entry])))
    footer = struct_bytes(fields)
    return b"%b%b%b" % (footer, len(footer).to_bytes(4, "little"), _MAGIC)


def _open(tail: bytes) -> Any:
    reader = pq.ParquetReader()
    reader.open(pa.BufferReader(tail), **READ_OPTIONS)
    return reader


def _never(missing: Any) -> pa.Buffer:
    raise pa.ArrowInvalid(f"bytes {missing} do not belong to the pages")
