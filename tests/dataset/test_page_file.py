"""Schemas that can be cut into leaves, and those that cannot."""

import pyarrow as pa
import pytest

from penstock.dataset.page_file import PageFile
from penstock.dataset.page_index import Unsplittable
from penstock.dataset.thrift import BINARY, I32, STRUCT, binary_bytes, integer_bytes, list_bytes, struct_bytes

REQUIRED, OPTIONAL, REPEATED = range(3)
LIST_TYPE, MAP_TYPE = 3, 1


def element(name: str, repetition: int, *, children: int = 0, annotated: int | None = None) -> bytes:
    fields = [] if children else [(1, I32, integer_bytes(1))]
    fields += [(3, I32, integer_bytes(repetition)), (4, BINARY, binary_bytes(name.encode()))]
    fields += [(5, I32, integer_bytes(children))] if children else []
    fields += [(6, I32, integer_bytes(annotated))] if annotated is not None else []
    return struct_bytes(fields)


def schema(*elements: bytes, columns: int = 1) -> bytes:
    root = struct_bytes([(4, BINARY, binary_bytes(b"schema")), (5, I32, integer_bytes(columns))])
    return list_bytes(STRUCT, [root, *elements])


def list_of_pairs(repeated: str) -> bytes:
    """A list of two levels, as old writers stored lists of structs."""
    return schema(
        element("l", OPTIONAL, children=1, annotated=LIST_TYPE),
        element(repeated, REPEATED, children=2),
        element("a", REQUIRED),
        element("b", OPTIONAL),
    )


def test_leaves_of_a_list_of_structs():
    file = PageFile(list_of_pairs("array"), None, ["l"])
    pair = pa.struct([pa.field("a", pa.int32(), nullable=False), pa.field("b", pa.int32())])
    assert file.leaves == [0, 1]
    assert file.counts == [2]
    assert file.fields[0].type == pa.list_(pa.field("array", pair, nullable=False))
    assert [kind.value_type.num_fields for kind in file.types] == [1, 1]


def test_a_list_that_would_be_another_one_without_a_leaf_is_left_to_a_whole_read():
    # With two fields the repeated group is a struct; with one it would be the list's own wrapper.
    with pytest.raises(Unsplittable, match="pyarrow reads differently once it is cut into leaves"):
        PageFile(list_of_pairs("pair"), None, ["l"])


@pytest.mark.parametrize("key_value", ["key_value", "map", "entries"])
def test_leaves_of_a_map(key_value):
    stored = schema(
        element("m", OPTIONAL, children=1, annotated=MAP_TYPE),
        element(key_value, REPEATED, children=2, annotated=2),
        element("key", REQUIRED),
        element("value", OPTIONAL),
    )
    file = PageFile(stored, None, ["m"])
    assert file.fields[0].type == pa.map_(pa.int32(), pa.int32())
    assert [(kind.num_fields, kind.value_type) for kind in file.types] == [(1, pa.int32()), (1, pa.int32())]


def test_columns_are_found_by_path():
    stored = schema(
        element("id", REQUIRED),
        element("s", OPTIONAL, children=2),
        element("x", REQUIRED),
        element("t", OPTIONAL, children=2),
        element("y", OPTIONAL),
        element("z", OPTIONAL),
        element("s2", OPTIONAL),
        columns=3,
    )
    assert PageFile(stored, None, ["s"]).leaves == [1, 2, 3]
    assert PageFile(stored, None, ["s.t"]).leaves == [2, 3]
    assert PageFile(stored, None, ["s2", "id", "s.t.z"]).leaves == [0, 3, 4]
    [field] = PageFile(stored, None, ["s.t.z"]).fields
    assert field.type == pa.struct([pa.field("t", pa.struct([pa.field("z", pa.int32())]))])
