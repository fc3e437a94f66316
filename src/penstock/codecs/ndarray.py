"""Arrays as `.npy` cells, byte for byte what `numpy.save` writes.

A chunk of equal fixed-shape cells is never decoded: `view_column` lays a strided view over it. Other columns are
copied cell by cell with the header parsed once for each distinct one. Compressed arrays have their own file.
"""

from __future__ import annotations

import sys
from io import BytesIO
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from penstock.codecs import npy
from penstock.codecs.base import CellError, Cells, Codec, FieldLike, column_dtype, misfit, put

if TYPE_CHECKING:
    from numpy.typing import NDArray


class NdarrayCodec(Codec):
    """Store an array as `.npy` bytes; any shape, order and dtype other than objects.

    >>> NdarrayCodec()
    NdarrayCodec()
    """

    codec_id: ClassVar[str] = "ndarray"

    def encode(self, unischema_field: FieldLike, value: Any) -> bytes:
        """Return the bytes of `numpy.save`; Fortran order is kept."""
        check_array(unischema_field, value)
        file = BytesIO()
        np.save(file, value, allow_pickle=False)
        return file.getvalue()

    def decode(self, unischema_field: FieldLike, value: Any) -> NDArray[Any]:  # noqa: ARG002 - Petastorm's signature
        """Return the array of a cell by `numpy.load`: the plain twin of the column path."""
        array: NDArray[Any] = np.load(BytesIO(value), allow_pickle=False, max_header_size=npy.MAX_HEADER_BYTES)
        return array

    def view_column(
        self, field: FieldLike, data: NDArray[np.uint8], offsets: NDArray[np.integer]
    ) -> NDArray[Any] | None:
        """Return `(n, *shape)` as a view where all cells have equal headers that say what the field says, else None.

        Reads every header (one vectorised comparison) and no payload. The view is writable only where `data` is.
        """
        dtype, num_rows = column_dtype(field), len(offsets) - 1
        if dtype is None or num_rows < 1:
            return None
        first, last = int(offsets[0]), int(offsets[-1])
        width = int(offsets[1]) - first
        if last - first != width * num_rows or not bool(np.all(np.diff(offsets) == width)):
            return None
        header = _header_of(data[first : first + width])
        if header is None or (header.dtype, header.shape) != (dtype, field.shape) or not header.raw:
            return None
        if header.size + header.nbytes != width or header.nbytes == 0:
            return None
        rows = data[first:last].reshape(num_rows, width)
        if not _equal_rows(rows[:, : header.size]):
            return None
        return rows[:, header.size :].view(dtype).reshape(num_rows, *header.shape)

    def decode_column(self, field: FieldLike, cells: Cells, out: NDArray[Any]) -> None:
        """Copy every payload into `out`; equal headers in a row are compared, not parsed."""
        parts = cells.views()
        plain = out.size > 0 and out.dtype.kind in "biufc" and out.flags.c_contiguous
        raw = out.reshape(len(out), -1).view(np.uint8) if plain else None
        known, size, end = b"", 0, sys.maxsize  # no header is known yet, and no cell is long enough
        for i, p, a, b in cells.spans():
            cell = parts[p][a:b]
            if raw is not None and b - a >= end and cell[:size] == known:
                raw[i] = cell[size:end]
                continue
            header = _parsed(field, cell, i)
            put(field, npy_payload(cell, header, i), out, i)
            if header.raw and header.dtype == out.dtype and header.nbytes:
                known, size, end = bytes(cell[: header.size]), header.size, header.size + header.nbytes

    def decode_list(self, field: FieldLike, cells: Cells) -> list[NDArray[Any] | None]:
        """Return one owned, writable array for each cell, None for nulls."""
        parts = cells.views()
        values: list[NDArray[Any] | None] = [None] * len(cells)
        for i, p, a, b in cells.spans():
            cell = parts[p][a:b]
            array = npy_payload(cell, _parsed(field, cell, i), i)
            wrong = misfit(field, array)
            if wrong is not None:
                raise CellError(i, wrong)
            values[i] = array.copy(order="K")
        return values

    def claimed_bytes(self, field: FieldLike, cells: Cells) -> NDArray[np.int64]:  # noqa: ARG002 - a codec's signature
        """Return the bytes of the cells themselves: an array has fewer than its cell."""
        return cells.stop - cells.start


def check_array(field: FieldLike, value: Any) -> None:
    """Raise ValueError unless `value` is an array of the field's dtype and shape."""
    if not isinstance(value, np.ndarray):
        raise ValueError(  # noqa: TRY004 - what Petastorm raises
            f"Unexpected type: field {field.name!r} expects a NumPy array, got {type(value).__name__}"
        )
    wrong = misfit(field, value)
    if wrong is not None:
        raise ValueError(wrong.replace("the cell holds", "got"))


def npy_payload(cell: Any, header: npy.Header, index: int) -> NDArray[Any]:
    """Return the array behind a header, CellError where the cell is cut short."""
    try:
        return npy.payload(cell, header)
    except ValueError as exc:
        raise CellError(index, str(exc)) from exc


def _parsed(field: FieldLike, cell: Any, index: int) -> npy.Header:
    try:
        return npy.parse_header(npy.header_bytes(cell))
    except ValueError as exc:
        raise CellError(index, f"cannot decode a cell of field {field.name!r}: {exc}") from exc


def _header_of(cell: NDArray[np.uint8]) -> npy.Header | None:
    try:
        return npy.parse_header(npy.header_bytes(cell))
    except ValueError:
        return None  # decode_column says what is wrong, and with which cell


def _equal_rows(rows: NDArray[np.uint8]) -> bool:
    """Tell whether all rows equal the first; compares 8 bytes at a time where the length allows."""
    wide = rows.view(np.uint64) if rows.shape[1] % 8 == 0 else rows
    return bool((wide == wide[0]).all())
