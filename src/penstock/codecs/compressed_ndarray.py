"""Arrays as compressed `.npz` cells, as `numpy.savez_compressed(arr=value)` writes them.

A cell is a zip file with one deflated member, `arr.npy`. The column path inflates that member directly (zipfile costs
more than inflating a small array); anything unusual is left to zipfile. Plain `.npy` cells have their own file.
"""

from __future__ import annotations

import zipfile
import zlib
from io import BytesIO
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from penstock.codecs import npy
from penstock.codecs.base import CellError, Cells, Codec, FieldLike, misfit, put
from penstock.codecs.ndarray import check_array

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LOCAL_HEADER_BYTES = 30
_DEFLATED = 8
_UNUSUAL_FLAGS = 0x1 | 0x8 | 0x20 | 0x40  # encrypted, sizes after the data, patched, strongly encrypted


class CompressedNdarrayCodec(Codec):
    """Store an array as the bytes of `numpy.savez_compressed`.

    >>> CompressedNdarrayCodec()
    CompressedNdarrayCodec()
    """

    codec_id: ClassVar[str] = "compressed_ndarray"

    def encode(self, unischema_field: FieldLike, value: Any) -> bytes:
        """Return a zip with the one member `arr.npy`; Fortran order is kept."""
        check_array(unischema_field, value)
        if value.dtype.hasobject:
            raise ValueError(f"field {unischema_field.name!r}: object arrays are pickles and never stored")
        file = BytesIO()
        np.savez_compressed(file, arr=value)
        return file.getvalue()

    def decode(self, unischema_field: FieldLike, value: Any) -> NDArray[Any]:  # noqa: ARG002 - Petastorm's signature
        """Return the array of a cell by `numpy.load`: the plain twin of the column path."""
        with np.load(BytesIO(value), allow_pickle=False, max_header_size=npy.MAX_HEADER_BYTES) as members:
            array: NDArray[Any] = members["arr"]
            return array

    def decode_column(self, field: FieldLike, cells: Cells, out: NDArray[Any]) -> None:
        """Inflate every cell and copy its payload into `out`."""
        parts = cells.views()
        for i, p, a, b in cells.spans():
            put(field, _array(field, parts[p][a:b], i), out, i)

    def decode_list(self, field: FieldLike, cells: Cells) -> list[NDArray[Any] | None]:
        """Return one owned, writable array for each cell, None for nulls."""
        parts = cells.views()
        values: list[NDArray[Any] | None] = [None] * len(cells)
        for i, p, a, b in cells.spans():
            array = _array(field, parts[p][a:b], i)
            wrong = misfit(field, array)
            if wrong is not None:
                raise CellError(i, wrong)
            values[i] = array.copy(order="K")
        return values


def _array(field: FieldLike, cell: memoryview, index: int) -> NDArray[Any]:
    try:
        return npy.read(_member(cell))
    except (ValueError, KeyError, zlib.error, zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as exc:
        raise CellError(index, f"cannot decode a cell of field {field.name!r}: {exc}") from exc


def _member(cell: memoryview) -> bytes:
    """Return the bytes of `arr.npy`, its checksum verified."""
    head = bytes(cell[:_LOCAL_HEADER_BYTES])
    names = _LOCAL_HEADER_BYTES + int.from_bytes(head[26:28], "little")
    usual = head[:4] == b"PK\x03\x04" and not head[6] & _UNUSUAL_FLAGS and head[8] == _DEFLATED
    if not usual or bytes(cell[_LOCAL_HEADER_BYTES:names]) != b"arr.npy":
        return _member_by_zipfile(cell)
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    data = inflate.decompress(cell[names + int.from_bytes(head[28:30], "little") :])
    if not inflate.eof or zlib.crc32(data) != int.from_bytes(head[14:18], "little"):
        raise ValueError("damaged .npz cell: cut short or its checksum is wrong")
    return data


def _member_by_zipfile(cell: memoryview) -> bytes:
    with zipfile.ZipFile(BytesIO(cell)) as file:
        return file.read("arr.npy")
