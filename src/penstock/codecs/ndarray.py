"""Arrays as `.npy` cells, byte for byte what `numpy.save` writes, and as the `.npz` cells of `numpy.savez_compressed`.

A chunk of equal fixed-shape cells is never decoded: `view_column` lays a strided view over it. Other columns are
copied cell by cell with the header parsed once for each distinct one.

A compressed cell is a zip file with one deflated member, `arr.npy`. The column path inflates that member directly, and
never more than the zip's headers declare or a field of fixed shape can hold.
"""

from __future__ import annotations

import ast
import contextlib
import math
import re
import sys
import zlib
from functools import lru_cache
from io import BytesIO
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from penstock.codecs.base import CellError, Cells, Codec, FieldLike, column_dtype, misfit, put

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MAGIC = b"\x93NUMPY"
MAX_HEADER_BYTES = 1 << 16
"""Longest header that is read; real ones have 64 or 128 bytes, wide structured dtypes some thousands. Parsing takes
some hundred times the memory of the text."""
_SHORT_HEADER_BYTES = 512
_MOST_EMPTY_ITEMS = 1 << 20
"""Most items of no bytes (dtype S0) in an array: NumPy gives each a byte when it copies them."""


class Header(NamedTuple):
    """The header of one `.npy` cell."""

    size: int
    """Bytes before the payload."""
    dtype: np.dtype[Any]
    """Stored dtype, byte order included."""
    fortran: bool
    """Whether the payload runs along the first axis first."""
    shape: tuple[int, ...]
    """Shape of the array."""
    nbytes: int
    """Bytes of the payload."""

    @property
    def raw(self) -> bool:
        """Whether the payload is the memory of a native C-ordered array."""
        return self.dtype.isnative and (not self.fortran or sum(n != 1 for n in self.shape) <= 1)


def header_bytes(cell: Any) -> bytes:
    """Return the bytes before the payload of a cell (anything sliced to bytes); ValueError if it is not `.npy`."""
    start = bytes(cell[:12])
    if start[:6] != _MAGIC:
        raise ValueError(f"not an .npy cell: begins with {start[:6]!r}, wanted {_MAGIC!r}")
    if len(start) < 12 or start[6] not in (1, 2, 3):
        raise ValueError(f".npy cell of {len(cell)} bytes and version {start[6:7].hex()}; known are 1, 2 and 3")
    wide = start[6] > 1
    size = (12 if wide else 10) + int.from_bytes(start[8:12] if wide else start[8:10], "little")
    if size > min(len(cell), MAX_HEADER_BYTES):
        raise ValueError(f".npy header of {size} bytes in a cell of {len(cell)} bytes: the cell is cut short")
    return bytes(cell[:size])


def parse_header(header: bytes) -> Header:
    """Parse header bytes; ValueError where they are damaged or name an object dtype. Cached by the bytes."""
    return _parse_short(header) if len(header) <= _SHORT_HEADER_BYTES else _parse_long(header)


def _parse(header: bytes) -> Header:
    text = header[10 if header[6] == 1 else 12 :].decode("utf-8" if header[6] == 3 else "latin1")
    facts = _literal(text, old=header[6] < 3)
    if not isinstance(facts, dict) or facts.keys() != {"descr", "fortran_order", "shape"}:
        raise ValueError(f"damaged .npy header: {text[:80]!r}")
    shape = facts["shape"]
    if not isinstance(shape, tuple) or not all(type(n) is int and 0 <= n < 1 << 63 for n in shape):
        raise ValueError(f"damaged .npy header: shape {shape!r:.80}")
    if facts["fortran_order"] not in (True, False):
        raise ValueError(f"damaged .npy header: fortran_order {facts['fortran_order']!r:.80}")
    try:
        dtype = np.lib.format.descr_to_dtype(facts["descr"])
    except Exception as exc:  # NumPy raises nearly anything for a damaged description
        raise ValueError(f"damaged .npy header: dtype {facts['descr']!r:.80}") from exc
    if dtype.hasobject:
        raise ValueError("object arrays are pickles and never read; store numbers or strings")
    num_items = math.prod(shape)
    if not dtype.itemsize and num_items > _MOST_EMPTY_ITEMS:
        raise ValueError(f"damaged .npy header: {num_items} items of dtype {dtype}, which has no bytes")
    return Header(len(header), dtype, bool(facts["fortran_order"]), shape, num_items * dtype.itemsize)


# Two caches: 4,096 of the longest headers would be 256 MiB.
_parse_short = lru_cache(maxsize=4096)(_parse)
_parse_long = lru_cache(maxsize=64)(_parse)


def read(cell: Any) -> np.ndarray[Any, Any]:
    """Return the array of a cell as a view on it (read-only where the cell is); ValueError where it is damaged."""
    return payload(cell, parse_header(header_bytes(cell)))


def payload(cell: Any, header: Header) -> np.ndarray[Any, Any]:
    """Return the array behind a parsed header, as a view on the cell; bytes after the payload are ignored."""
    if len(cell) < header.size + header.nbytes:
        raise ValueError(
            f".npy cell cut short: {header.shape!r:.80} {header.dtype!s:.80} needs {header.size + header.nbytes} "
            f"bytes, the cell has {len(cell)}"
        )
    if header.nbytes == 0:
        return np.empty(header.shape, header.dtype)
    count = header.nbytes // header.dtype.itemsize
    flat = np.frombuffer(cell, header.dtype, count=count, offset=header.size)
    return flat.reshape(header.shape, order="F" if header.fortran else "C")


def _literal(text: str, *, old: bool) -> Any:
    plain = text.strip()
    for form in (plain, re.sub(r"(?<=\d)L\b", "", plain)) if old else (plain,):  # Python 2 wrote long integers as 3L
        with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            return ast.literal_eval(form)
    raise ValueError(f"damaged .npy header: {text[:80]!r}")


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
        return np.asarray(np.load(BytesIO(value), allow_pickle=False, max_header_size=MAX_HEADER_BYTES))

    def view_column(
        self, field: FieldLike, data: NDArray[np.uint8], offsets: NDArray[np.integer]
    ) -> NDArray[Any] | None:
        """Return `(n, *shape)` as a view if all cells have equal headers that match the field, else None.

        Reads every header (one vectorised comparison) and no payload. The view is writable only where `data` is.
        """
        dtype, num_rows = column_dtype(field), len(offsets) - 1
        if dtype is None or num_rows < 1:
            return None
        first, last = int(offsets[0]), int(offsets[-1])
        width = int(offsets[1]) - first
        if last - first != width * num_rows or not bool(np.all(np.diff(offsets) == width)):
            return None
        try:
            header = parse_header(header_bytes(data[first : first + width]))
        except ValueError:  # decode_column reports what is wrong, and in which cell
            return None
        if (header.dtype, header.shape) != (dtype, field.shape) or not header.raw:
            return None
        if header.size + header.nbytes != width or header.nbytes == 0:
            return None
        rows = data[first:last].reshape(num_rows, width)
        headers = rows[:, : header.size]
        wide = headers.view(np.uint64) if header.size % 8 == 0 else headers  # 8 bytes at a time
        if not (wide == wide[0]).all():
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


def npy_payload(cell: Any, header: Header, index: int) -> NDArray[Any]:
    """Return the array behind a header, CellError where the cell is cut short."""
    try:
        return payload(cell, header)
    except ValueError as exc:
        raise CellError(index, str(exc)) from exc


def _parsed(field: FieldLike, cell: Any, index: int) -> Header:
    try:
        return parse_header(header_bytes(cell))
    except ValueError as exc:
        raise CellError(index, f"cannot decode a cell of field {field.name!r}: {exc}") from exc


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
        with np.load(BytesIO(value), allow_pickle=False, max_header_size=MAX_HEADER_BYTES) as members:
            return np.asarray(members["arr"])

    def decode_column(self, field: FieldLike, cells: Cells, out: NDArray[Any]) -> None:
        """Inflate every cell and copy its payload into `out`."""
        parts = cells.views()
        most_bytes = MAX_HEADER_BYTES + out.dtype.itemsize * math.prod(out.shape[1:])
        for i, p, a, b in cells.spans():
            put(field, _array(field, parts[p][a:b], i, most_bytes), out, i)

    def decode_list(self, field: FieldLike, cells: Cells) -> list[NDArray[Any] | None]:
        """Return one writable array for each cell, with its own memory, None for nulls."""
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
            with contextlib.suppress(Exception):  # decoding reports what is wrong
                usual = _usual(parts[p][a:b])
                if usual is None:
                    import zipfile  # late: only cells that other programs wrote need it

                    with zipfile.ZipFile(BytesIO(parts[p][a:b])) as file:
                        usual = 0, file.getinfo("arr.npy").file_size
                found[i] = min(usual[1], 1 << 62)
        return found


def _array(field: FieldLike, cell: memoryview, index: int, most_bytes: int | None) -> NDArray[Any]:
    try:
        return read(_member(cell, most_bytes))
    except MemoryError:
        raise
    except Exception as exc:  # zipfile raises nearly anything for damaged bytes
        raise CellError(index, f"cannot decode a cell of field {field.name!r}: {exc}") from exc


def _member(cell: memoryview, most_bytes: int | None) -> bytes | memoryview:
    """Return the bytes of `arr.npy`, its checksum verified; ValueError where there are more than `most_bytes`."""
    usual = _usual(cell)
    if usual is None:
        import zipfile

        with zipfile.ZipFile(BytesIO(cell)) as file:
            member = file.getinfo("arr.npy")
            _check_size(member.file_size, most_bytes)
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ValueError("NumPy writes no such .npz: its array is neither stored nor deflated")
            return file.read(member)  # no more than file_size
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


def _check_size(size: int, most_bytes: int | None) -> None:
    if most_bytes is not None and size > most_bytes:
        raise ValueError(f"the .npz cell holds {size:,} bytes, the field has room for {most_bytes:,}")
