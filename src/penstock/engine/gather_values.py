"""Gather what is not a plain array: nulls and Python values, and values that cannot be made.

Called by `gather` for columns that have nulls or become Python objects, and by `make_chunk` for a chunk with values
that do not fit their column. Works column by column on the chunks in memory; decodes no cells.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from penstock.codecs.arrow import Objects, objects
from penstock.codecs.arrow_memory import takeable
from penstock.codecs.base import CellError
from penstock.codecs.decode import reason_of
from penstock.codecs.row_values import objects_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from penstock.engine.gather import ObjectsPart, Part, Runs
    from penstock.engine.inputs import Column
    from penstock.engine.picks import Picks


class CellLost(Exception):
    """A cell cannot be made into a value: its row (of the current chunk or batch), its column, and the reason."""

    def __init__(self, row: int, column: str, reason: str) -> None:
        super().__init__(row, column, reason)
        self.row = row
        self.column = column
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Damaged:
    """Stands for a value that could not be made, where its row is to be skipped."""

    reason: str


def find_misfits(array: pa.Array, column: Column, make: Callable[[pa.Array, Column], Any]) -> dict[int, CellError]:
    """Return the rows of an array that cannot be made into values, each with the error."""
    found = {}
    for row in range(len(array)):
        try:
            make(array.slice(row, 1), column)
        except CellError as error:
            found[row] = error
    return found


def nulled(array: pa.Array, rows: list[int]) -> pa.Array:
    """Return the array with these rows null."""
    import pyarrow as pa

    valid = np.ones(len(array), np.bool_)
    valid[rows] = False
    buffers = [pa.py_buffer(np.packbits(valid, bitorder="little")), pa.py_buffer(np.arange(len(array)))]
    return takeable(array).take(pa.Array.from_buffers(pa.int64(), len(array), buffers, len(rows)))


def gather_valid(rows: Runs | Picks, parts: Sequence[Part]) -> NDArray[np.bool_] | None:
    """Gather validity of a column with nulls in any of the chunks; None if none of the rows is null."""
    masks = [part.valid for part in parts]
    wide = max((mask.ndim for mask in masks if mask is not None), default=1)
    shape = next(mask.shape[1:] for mask in masks if mask is not None and mask.ndim == wide)
    filled = []
    for chunk, mask in zip(rows.chunks, masks, strict=True):
        if mask is None:
            mask = np.ones((chunk.num_rows, *shape), np.bool_)
        elif mask.ndim < wide:
            mask = np.broadcast_to(mask.reshape(-1, *[1] * len(shape)), (len(mask), *shape))
        filled.append(mask)
    out = np.empty((rows.num_rows, *shape), np.bool_)
    rows.fixed(filled, out)
    return None if out.all() else out


def gather_objects(
    rows: Runs | Picks, column: Column, parts: Sequence[Part], *, skip: bool
) -> NDArray[np.object_] | list[Any]:
    """Make the Python values of a column of objects: an array of them, or a list where the column comes as one."""
    kind = cast("Objects", column.kind)
    arrays = rows.arrays([cast("ObjectsPart", part).array for part in parts])
    if len(arrays) == 1 and isinstance(arrays[0][1], slice):
        return _values(*arrays[0], column, skip=skip)
    out = np.empty(rows.num_rows, np.object_)
    for array, where in arrays:
        values = _values(array, where, column, skip=skip)
        out[where] = values if isinstance(values, np.ndarray) else objects_of(values)
    return list(out) if kind.as_list else out


def _values(
    array: pa.Array, where: slice | NDArray[np.intp], column: Column, *, skip: bool
) -> NDArray[np.object_] | list[Any]:
    """Make the values of an array whose rows go to `where` in the span."""
    kind = cast("Objects", column.kind)
    try:
        return objects(array, kind)
    except CellError as error:
        if not skip:
            row = where.start + error.index if isinstance(where, slice) else int(where[error.index])
            raise CellLost(row, column.name, reason_of(error, column.name)) from error
    found: list[Any] = []
    for row in range(len(array)):
        try:
            found.append(objects(array.slice(row, 1), kind)[0])
        except CellError as error:
            found.append(Damaged(str(error)))
    return found
