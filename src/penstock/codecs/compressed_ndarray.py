"""Arrays as compressed `.npz` cells, as `numpy.savez_compressed(arr=value)` writes them.

A cell is a zip file with one deflated member, `arr.npy`. The column path inflates that member directly (zipfile costs
more than inflating a small array); anything unusual is left to zipfile. Never inflates more than the zip's own header
says, nor more than a field of fixed shape can hold. Plain `.npy` cells have their own file.
"""

from __future__ import annotations

import contextlib
import math
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
_BLOCK_BYTES, _INPUT_BYTES = 1 << 20, 1 << 16
_DEFLATED = 8
_IN_EXTRA, _ZIP64 = 0xFFFFFFFF, b"\x01\x00"  # a size that stands in the extra field, and the mark of that field
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
        most_bytes = npy.MAX_HEADER_BYTES + out.dtype.itemsize * math.prod(out.shape[1:])
        for i, p, a, b in cells.spans():
            put(field, _array(field, parts[p][a:b], i, most_bytes), out, i)

    def decode_list(self, field: FieldLike, cells: Cells) -> list[NDArray[Any] | None]:
        """Return one writable array for each cell, with memory of its own, None for nulls."""
        parts = cells.views()
        values: list[NDArray[Any] | None] = [None] * len(cells)
        for i, p, a, b in cells.spans():
            array = _array(field, parts[p][a:b], i, None)
            wrong = misfit(field, array)
            if wrong is not None:
                raise CellError(i, wrong)
            values[i] = array if array.flags.writeable else array.copy(order="K")
        return values

    def claimed_bytes(self, field: FieldLike, cells: Cells) -> NDArray[np.int64]:  # noqa: ARG002 - a codec's signature
        """Return the bytes of `arr.npy` that the zip's headers claim; decoding reads no more."""
        parts = cells.views()
        found = np.zeros(len(cells), np.int64)
        for i, p, a, b in cells.spans():
            with contextlib.suppress(Exception):  # decoding says what is wrong
                found[i] = min(_claimed(parts[p][a:b]), 1 << 62)
        return found


def _array(field: FieldLike, cell: memoryview, index: int, most_bytes: int | None) -> NDArray[Any]:
    try:
        return npy.read(_member(cell, most_bytes))
    except MemoryError:
        raise
    except Exception as exc:  # zipfile raises nearly anything for damaged bytes
        raise CellError(index, f"cannot decode a cell of field {field.name!r}: {exc}") from exc


def _member(cell: memoryview, most_bytes: int | None) -> bytes | memoryview:
    """Return the bytes of `arr.npy`, its checksum verified; ValueError where there are more than `most_bytes`."""
    usual = _usual(cell)
    if usual is None:
        return _member_by_zipfile(cell, most_bytes)
    first, size = usual
    _check_size(size, most_bytes)
    data = _inflate(cell[first:], size)
    if data is None or zlib.crc32(data) != int.from_bytes(cell[14:18], "little"):
        raise ValueError("damaged .npz cell: cut short, or its size or checksum is wrong")
    return data


def _inflate(cell: memoryview, size: int) -> bytes | memoryview | None:
    """Return the inflated bytes, exactly `size`; None where there are more or fewer.

    Large ones block by block into one array, which is theirs to keep: zlib alone would need twice the memory meanwhile.
    """
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    if size <= _BLOCK_BYTES:
        data = inflate.decompress(cell, size + 1)
        return data if inflate.eof and len(data) == size else None
    out, end = np.empty(size, np.uint8), 0
    for first in range(0, len(cell), _INPUT_BYTES):
        rest: bytes | memoryview = cell[first : first + _INPUT_BYTES]
        while True:
            block = inflate.decompress(rest, _BLOCK_BYTES)
            if end + len(block) > size:
                return None
            out[end : end + len(block)] = np.frombuffer(block, np.uint8)
            end += len(block)
            rest = inflate.unconsumed_tail
            if inflate.eof:
                return out.data if end == size else None
            if not rest and len(block) < _BLOCK_BYTES:
                break
    return None


def _usual(cell: memoryview) -> tuple[int, int] | None:
    """Return where the deflated bytes of a zip begin that NumPy has written, and how many bytes they become."""
    head = bytes(cell[:_LOCAL_HEADER_BYTES])
    if head[:4] != b"PK\x03\x04" or len(head) < _LOCAL_HEADER_BYTES or head[6] & _UNUSUAL_FLAGS or head[8] != _DEFLATED:
        return None
    names, size = _LOCAL_HEADER_BYTES + int.from_bytes(head[26:28], "little"), int.from_bytes(head[22:26], "little")
    if bytes(cell[_LOCAL_HEADER_BYTES:names]) != b"arr.npy":
        return None
    first = names + int.from_bytes(head[28:30], "little")
    if size == _IN_EXTRA:
        extra = bytes(cell[names:first])
        if extra[:2] != _ZIP64 or len(extra) < 12:
            return None
        size = int.from_bytes(extra[4:12], "little")
    return first, size


def _claimed(cell: memoryview) -> int:
    usual = _usual(cell)
    if usual is not None:
        return usual[1]
    with zipfile.ZipFile(BytesIO(cell)) as file:
        return file.getinfo("arr.npy").file_size


def _member_by_zipfile(cell: memoryview, most_bytes: int | None) -> bytes:
    with zipfile.ZipFile(BytesIO(cell)) as file:
        member = file.getinfo("arr.npy")
        _check_size(member.file_size, most_bytes)
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError("NumPy writes no such .npz: its array is neither stored nor deflated")
        return file.read(member)  # no more than file_size


def _check_size(size: int, most_bytes: int | None) -> None:
    if most_bytes is not None and size > most_bytes:
        raise ValueError(f"the .npz cell holds {size:,} bytes, the field has room for {most_bytes:,}")
