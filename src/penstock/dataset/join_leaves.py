"""Nested Arrow columns and their leaves: which leaves a type has, and columns put together from single leaves.

The pages of two leaves of one column begin with different rows, so `page_file` reads each leaf by itself (a list of
structs of two fields as two lists of structs of one field), cuts both to the same rows, and joins them here. Structure
comes from the first leaf; that of the others has to be the same. Copies validity and offsets, never values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.codecs.arrow_memory import validity
from penstock.dataset.page_index import DamagedPages, Unsplittable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


def children(kind: pa.DataType) -> list[pa.Field]:
    """Return the fields directly inside of a type, as Parquet stores them; none for leaves.

    Raises:
        Unsplittable: the type is nested in a way that is not known here.
    """
    if isinstance(kind, pa.BaseExtensionType):
        return children(kind.storage_type)
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    if pa.types.is_struct(kind):
        return [kind.field(index) for index in range(kind.num_fields)]
    if is_list(kind) or pa.types.is_fixed_size_list(kind):
        return [kind.value_field]
    if kind.num_fields and not pa.types.is_dictionary(kind):
        raise Unsplittable(f"its type {kind} cannot be cut into leaves")
    return []


def is_list(kind: pa.DataType) -> bool:
    """Tell whether a type is a list with offsets, of 32 or 64 bits."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def count_leaves(kind: pa.DataType) -> int:
    """Return the number of leaves below a type; 1 for a leaf."""
    return sum(count_leaves(field.type) for field in children(kind)) or 1


def innermost(kind: pa.DataType) -> pa.DataType:
    """Return the type of the values of a column that holds one leaf alone."""
    inside = children(kind)
    return innermost(inside[0].type) if inside else kind


def only_leaves(kind: pa.DataType, wanted: Sequence[int]) -> pa.DataType:
    """Return the type as pyarrow reads it if only some of its leaves are requested, which lie inside structs.

    Raises:
        Unsplittable: a list or map would lose some of its leaves.
    """
    if len(wanted) == count_leaves(kind):
        return kind
    if not pa.types.is_struct(kind):
        raise Unsplittable(f"a part of {kind} is requested")
    fields, first = [], 0
    for field in children(kind):
        stop = first + count_leaves(field.type)
        inside = [index - first for index in wanted if first <= index < stop]
        if inside:
            fields.append(field.with_type(only_leaves(field.type, inside)))
        first = stop
    return pa.struct(fields)


def only_leaf(kind: pa.DataType, leaf: int) -> pa.DataType:
    """Return the type of a column that holds one leaf of a type alone; maps become lists of keys or of values."""
    if count_leaves(kind) == 1:
        return kind
    if isinstance(kind, pa.BaseExtensionType):
        return only_leaf(kind.storage_type, leaf)
    first = 0
    for field in children(kind):
        stop = first + count_leaves(field.type)
        if leaf < stop:
            break
        first = stop
    inner = field.with_type(only_leaf(field.type, leaf - first))
    if pa.types.is_struct(kind):
        return pa.struct([inner])
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(inner, kind.list_size)
    return pa.large_list(inner) if pa.types.is_large_list(kind) else pa.list_(inner)


def join_leaves(kind: pa.DataType, leaves: Sequence[pa.Array], within: NDArray[np.bool_] | None = None) -> pa.Array:
    """Return a column of type `kind` from columns of its leaves (see `only_leaf`), all of the same rows.

    `within` says in which rows the struct around the column is there, None: in all. In others the leaves need not
    agree about nulls: pyarrow reads a struct that is not nullable inside of a null one as null or not.

    Raises:
        DamagedPages: the leaves do not agree about nulls and lengths of the lists that they share.
    """
    if len(leaves) == 1:
        return leaves[0]
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, join_leaves(kind.storage_type, leaves, within))
    length, valid = len(leaves[0]), validity(leaves[0])
    present = _both(valid, within)
    for leaf in leaves[1:]:
        if len(leaf) != length or not _equal(_both(validity(leaf), within), present):
            raise DamagedPages("its leaves do not agree about which rows are null")
    packed = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    nulls = leaves[0].null_count
    if pa.types.is_struct(kind):
        inner = _join_fields(kind, [leaf.field(0) for leaf in leaves], present)
        return pa.Array.from_buffers(kind, length, [packed], nulls, children=inner)
    if pa.types.is_fixed_size_list(kind):
        size = kind.list_size
        inside = [leaf.values.slice(leaf.offset * size, length * size) for leaf in leaves]
        return pa.Array.from_buffers(kind, length, [packed], nulls, children=_join_fields(kind, inside))
    offsets = [leaf.offsets for leaf in leaves]
    starts = [int(one[0].as_py()) for one in offsets]
    places = [_integers(one) - start for one, start in zip(offsets, starts, strict=True)]
    if not all(np.array_equal(one, places[0]) for one in places[1:]):
        raise DamagedPages("its leaves do not agree about the lengths of lists")
    inside = [leaf.values.slice(start, int(places[0][-1])) for leaf, start in zip(leaves, starts, strict=True)]
    inner = _join_fields(kind, inside)
    if pa.types.is_map(kind):
        entries = pa.struct([kind.key_field, kind.item_field])
        inner = [pa.Array.from_buffers(entries, int(places[0][-1]), [None], 0, children=inner)]
    return pa.Array.from_buffers(kind, length, [packed, pa.py_buffer(places[0])], nulls, children=inner)


def _join_fields(
    kind: pa.DataType, leaves: Sequence[pa.Array], within: NDArray[np.bool_] | None = None
) -> list[pa.Array]:
    """Return the columns of all fields inside of a type, from their leaves."""
    found, first = [], 0
    for field in children(kind):
        stop = first + count_leaves(field.type)
        found.append(join_leaves(field.type, leaves[first:stop], within))
        first = stop
    return found


def _integers(array: pa.Array) -> NDArray[np.integer[Any]]:
    dtype = np.dtype(np.int64 if pa.types.is_int64(array.type) else np.int32)
    return np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)


def _both(left: NDArray[np.bool_] | None, right: NDArray[np.bool_] | None) -> NDArray[np.bool_] | None:
    """Return where both are true; None stands for everywhere."""
    if left is None or right is None:
        return right if left is None else left
    both: NDArray[np.bool_] = left & right
    return both


def _equal(left: NDArray[np.bool_] | None, right: NDArray[np.bool_] | None) -> bool:
    if left is None or right is None:
        return left is right or bool((right if left is None else left).all())  # type: ignore[union-attr]
    return np.array_equal(left, right)
