"""What a codec is: the cells it reads, the base classes, and decoding a column with any of them.

Encoded cells come from the Parquet columns as flat byte buffers with offsets (`Cells`); decoded values go into memory
that the caller owns. A codec sees a duck-typed field (`name`, `numpy_dtype`, `shape`, `nullable`) and never a schema, a
file or a thread. Where a cell lies in a dataset is not known here: `CellError` carries only its place in the `Cells`.
`AsStored` replaces a codec where cells are decoded elsewhere, for instance on a GPU.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias, cast

import numpy as np

from penstock.errors import CodecError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"


class FieldLike(Protocol):
    """What a codec may know of a field."""

    @property
    def name(self) -> str:
        """Name of the column."""

    @property
    def numpy_dtype(self) -> Any:
        """A NumPy scalar class, `decimal.Decimal`, or None where values pass unchecked."""

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Shape of one value; None for a free dimension."""

    @property
    def nullable(self) -> bool:
        """Whether cells may be null."""


class CellError(Exception):
    """One cell cannot be decoded; `index` is its row in the `Cells`, `__cause__` the reason where there is one."""

    def __init__(self, index: int, message: str) -> None:
        super().__init__(message)
        self.index = index

    def __reduce__(self) -> tuple[type[CellError], tuple[int, str]]:
        return type(self), (self.index, str(self))


@dataclass(frozen=True, slots=True)
class Cells:
    """Encoded cells of one column for some rows, in batch order.

    Cell i is `parts[part[i]][start[i]:stop[i]]`, and null where `valid` is given and False there.
    """

    parts: Sequence[NDArray[np.uint8]]
    """Flat byte buffers, one for each chunk that the rows come from."""
    part: NDArray[np.intp] | None
    """Which buffer a cell lies in; None: all in `parts[0]`."""
    start: NDArray[np.int64]
    """First byte of each cell."""
    stop: NDArray[np.int64]
    """One past the last byte of each cell."""
    valid: NDArray[np.bool_] | None
    """False where the cell is null; None: no nulls."""

    @classmethod
    def from_list(cls, cells: Sequence[bytes | None]) -> Cells:
        """Lay the given cells end to end in one buffer (copies them); None is a null."""
        stop = np.cumsum([0 if c is None else len(c) for c in cells], dtype=np.int64)
        start = np.concatenate([np.zeros(min(1, len(cells)), np.int64), stop[:-1]])
        data = np.frombuffer(b"".join(c for c in cells if c is not None), np.uint8)
        nulls = [c is None for c in cells]
        return cls([data], None, start, stop, ~np.array(nulls) if any(nulls) else None)

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, index: int) -> NDArray[np.uint8] | None:
        if self.valid is not None and not self.valid[index]:
            return None
        data = self.parts[0 if self.part is None else self.part[index]]
        return data[self.start[index] : self.stop[index]]

    def __iter__(self) -> Iterator[NDArray[np.uint8] | None]:
        parts, part = self.parts, repeat(0) if self.part is None else self.part.tolist()
        valid = repeat(True) if self.valid is None else self.valid.tolist()
        # The lists bound the zip: an empty column has no parts[0] to look at.
        for a, b, p, ok in zip(self.start.tolist(), self.stop.tolist(), part, valid, strict=False):
            yield parts[p][a:b] if ok else None

    def take(self, rows: NDArray[np.integer]) -> Cells:
        """Return the cells of these rows, in their order; no cell is copied."""
        part = None if self.part is None else self.part[rows]
        valid = None if self.valid is None else self.valid[rows]
        return Cells(self.parts, part, self.start[rows], self.stop[rows], valid)

    def to_arrow(self, arrow_type: pa.DataType) -> pa.Array:
        """Return the cells, copied end to end, as an Arrow array of this type: (large) binary or text."""
        import pyarrow as pa

        views = self.views()
        found = [b""] * len(self)
        for row, part, start, stop in self.spans():
            found[row] = bytes(views[part][start:stop])
        return pa.array(found, pa.large_binary(), mask=None if self.valid is None else ~self.valid).cast(arrow_type)

    def views(self) -> list[memoryview]:
        """Return the buffers as memory views: slicing one costs half of slicing an array."""
        return [np.ascontiguousarray(data).data for data in self.parts]

    def spans(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield (row, part, start, stop) of every cell that is not null, in order, at the price of a `zip`."""
        if self.valid is None:
            part = repeat(0) if self.part is None else self.part.tolist()
            return zip(range(len(self)), part, self.start.tolist(), self.stop.tolist(), strict=False)
        rows = np.flatnonzero(self.valid)
        part = repeat(0) if self.part is None else self.part[rows].tolist()
        return zip(rows.tolist(), part, self.start[rows].tolist(), self.stop[rows].tolist(), strict=False)


class DataframeColumnCodec:
    """Petastorm's base of a codec: one value to one cell and back.

    Subclass it with `encode`, `decode` and, where the cell is not binary, `spark_dtype`, and register the class by
    `penstock.register_codec`. `vars(instance)` is stored with the dataset and must be plain JSON. `decode` gets
    `bytes`, or `str` where `spark_dtype` is a string type.
    """

    def encode(self, unischema_field: Any, value: Any) -> Any:
        """Return the cell to store for a value that is not None."""
        raise NotImplementedError(f"{type(self).__name__} has no encode()")

    def decode(self, unischema_field: Any, value: Any) -> Any:
        """Return the value of a cell that is not null."""
        raise NotImplementedError(f"{type(self).__name__} has no decode()")

    def spark_dtype(self) -> Any:
        """Return the Spark type of the column (needs pyspark); binary unless overridden."""
        from penstock.codecs.scalar import SparkType

        return SparkType("BinaryType").to_pyspark()

    def restore(self, state: dict[str, Any]) -> None:
        """Set the attributes of an instance that was made without `__init__`, from what `vars` gave when stored."""
        self.__dict__.update(state)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in plain_state(self).items())})"

    def __str__(self) -> str:
        return repr(self)


class Codec(DataframeColumnCodec):
    """A codec that works on columns.

    Subclasses give `encode` and `decode`, which are enough; `decode_column` and `decode_list` are there to be made
    faster, and must agree with `decode`. `config()` is what the dataset stores: by default a dataclass's fields, else
    `vars(self)`.
    """

    codec_id: ClassVar[str] = ""
    """Name stored with the dataset; the class name where empty."""
    stores_cells: ClassVar[bool] = True
    """Whether values lie in the column as encoded bytes; False for native columns."""

    def config(self) -> dict[str, JSON]:
        """Return the state as plain JSON."""
        return plain_state(self)

    @classmethod
    def from_config(cls, config: dict[str, JSON]) -> Codec:
        """Rebuild a codec from what `config()` gave."""
        return cast("Codec", rebuild(cls, config))

    def storage_type(self, field: FieldLike) -> pa.DataType:  # noqa: ARG002 - for subclasses
        """Return the Arrow type of the stored column."""
        import pyarrow as pa

        return pa.binary()

    def view_column(
        self,
        field: FieldLike,  # noqa: ARG002 - for subclasses
        data: NDArray[np.uint8],  # noqa: ARG002 - for subclasses
        offsets: NDArray[np.integer],  # noqa: ARG002 - for subclasses
    ) -> NDArray[Any] | None:
        """Return a view `(n, *shape)` on `data` where the cells are uniform enough to need no decoding, else None."""
        return None

    def decode_column(self, field: FieldLike, cells: Cells, out: NDArray[Any]) -> None:
        """Decode into `out` `(len(cells), *field.shape)`; null rows are left untouched. Raises CellError."""
        _fill(self.decode, field, cells, out, read=_as_bytes)

    def decode_list(self, field: FieldLike, cells: Cells) -> list[Any]:
        """Decode into a list, None for nulls: for values of differing shapes. Raises CellError."""
        return _collect(self.decode, field, cells, read=_as_bytes)

    def claimed_bytes(
        self,
        field: FieldLike,  # noqa: ARG002 - for subclasses
        cells: Cells,  # noqa: ARG002 - for subclasses
    ) -> NDArray[np.int64] | None:
        """Return the bytes that each cell takes once it is decoded, according to its header; None: not known before.

        Asked for fields of variable shape, whose cells may claim any size, before they are decoded. Must cost little.
        A cell whose header is damaged counts 0: decoding it reports the damage.
        """
        return None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Codec) and type(self) is type(other) and self.config() == other.config()

    def __hash__(self) -> int:
        return hash((type(self), json.dumps(self.config(), sort_keys=True)))


def plain_state(codec: DataframeColumnCodec) -> dict[str, Any]:
    """Return what makes up a codec: a dataclass's fields, else its attributes."""
    if dataclasses.is_dataclass(codec):
        return {f.name: getattr(codec, f.name) for f in dataclasses.fields(codec)}
    return dict(vars(codec))


def rebuild(cls: type[Any], state: dict[str, Any]) -> Any:
    """Make an instance of a registered class from its plain state; `__init__` runs only for dataclasses."""
    if dataclasses.is_dataclass(cls):
        return cls(**state)
    codec = object.__new__(cls)
    codec.restore(state)
    return codec


def has_cells(codec: DataframeColumnCodec | None) -> bool:
    """Tell whether a column with this codec holds encoded cells (and not native values)."""
    return codec is not None and bool(getattr(codec, "stores_cells", True))


def storage_type(codec: DataframeColumnCodec, field: FieldLike) -> pa.DataType:
    """Return the Arrow type of the column a codec writes; for Petastorm-style codecs from `spark_dtype()`.

    Without pyspark such a codec cannot name its type, and binary is taken.
    """
    import pyarrow as pa

    from penstock.codecs.scalar import as_spark_type

    if isinstance(codec, Codec):
        return codec.storage_type(field)
    try:
        spark = as_spark_type(codec.spark_dtype())
    except (ImportError, NotImplementedError, NameError):
        return pa.binary()
    return pa.binary() if spark is None else spark.to_arrow()


def view_column(
    codec: DataframeColumnCodec, field: FieldLike, data: NDArray[np.uint8], offsets: NDArray[np.integer]
) -> NDArray[Any] | None:
    """Return `Codec.view_column`, and None for Petastorm-style codecs."""
    return codec.view_column(field, data, offsets) if isinstance(codec, Codec) else None


def decode_column(codec: DataframeColumnCodec, field: FieldLike, cells: Cells, out: NDArray[Any]) -> None:
    """Decode a column into `out` with a codec of either kind; see `Codec.decode_column`."""
    if isinstance(codec, Codec):
        codec.decode_column(field, cells, out)
    else:
        _fill(codec.decode, field, cells, out, read=_reader_of(codec, field))


def decode_list(codec: DataframeColumnCodec, field: FieldLike, cells: Cells) -> list[Any]:
    """Decode a column into a list with a codec of either kind; see `Codec.decode_list`."""
    if isinstance(codec, Codec):
        return codec.decode_list(field, cells)
    return _collect(codec.decode, field, cells, read=_reader_of(codec, field))


def claimed_bytes(codec: DataframeColumnCodec, field: FieldLike, cells: Cells) -> NDArray[np.int64] | None:
    """Return `Codec.claimed_bytes`, and None for Petastorm-style codecs."""
    return codec.claimed_bytes(field, cells) if isinstance(codec, Codec) else None


def column_dtype(field: FieldLike) -> np.dtype[Any] | None:
    """Return the dtype of a field whose rows can be stacked into one array, else None.

    None for free dimensions, for strings, bytes and dates (their width or unit is the cell's, not the field's), for
    Decimal and for fields that pass unchecked.
    """
    kind = field.numpy_dtype
    if None in field.shape or not (isinstance(kind, type) and issubclass(kind, np.number | np.bool_)):
        return None
    dtype = np.dtype(kind)
    return None if dtype.kind in "mM" else dtype


def misfit(field: FieldLike, value: Any) -> str | None:
    """Return what is wrong with the dtype or shape of a decoded array, None where it fits the field."""
    kind = field.numpy_dtype
    if value.dtype.type is kind and value.shape == field.shape:  # nearly always true, and evaluated for every cell
        return None
    if isinstance(kind, type) and issubclass(kind, np.generic) and value.dtype.type is not kind:
        return (
            f"Unexpected type: field {field.name!r} expects dtype {np.dtype(kind).name}, the cell holds {value.dtype}"
        )
    if len(value.shape) != len(field.shape) or any(
        want is not None and want != got for want, got in zip(field.shape, value.shape, strict=True)
    ):
        return f"Unexpected dimensions: field {field.name!r} expects shape {field.shape}, the cell holds {value.shape}"
    return None


def put(field: FieldLike, value: Any, out: NDArray[Any], index: int) -> None:
    """Write a decoded value into row `index` of `out`; CellError where dtype or shape contradict field or `out`."""
    array = np.asarray(value)
    wrong = misfit(field, array) if array.dtype != object or out.dtype != object else None
    if wrong is None and not np.can_cast(array.dtype, out.dtype, "safe"):
        wrong = f"field {field.name!r} is read as {out.dtype}, the cell holds {array.dtype}"
    if wrong is not None:
        raise CellError(index, wrong)
    out[index] = array


def _as_bytes(cell: NDArray[np.uint8]) -> bytes:
    return cell.tobytes()


def _reader_of(codec: DataframeColumnCodec, field: FieldLike) -> Callable[[NDArray[np.uint8]], bytes | str]:
    import pyarrow.types as kinds

    stored = storage_type(codec, field)
    return (
        (lambda cell: cell.tobytes().decode())
        if kinds.is_string(stored) or kinds.is_large_string(stored)
        else _as_bytes
    )


def _fill(
    decode: Callable[[Any, Any], Any],
    field: FieldLike,
    cells: Cells,
    out: NDArray[Any],
    *,
    read: Callable[[NDArray[np.uint8]], bytes | str],
) -> None:
    for index, cell in enumerate(cells):
        if cell is not None:
            put(field, _decoded(decode, field, read(cell), index), out, index)


def _collect(
    decode: Callable[[Any, Any], Any],
    field: FieldLike,
    cells: Cells,
    *,
    read: Callable[[NDArray[np.uint8]], bytes | str],
) -> list[Any]:
    values: list[Any] = [None] * len(cells)
    for index, cell in enumerate(cells):
        if cell is not None:
            values[index] = value = _decoded(decode, field, read(cell), index)
            wrong = misfit(field, value) if isinstance(value, np.ndarray) else None
            if wrong is not None:
                raise CellError(index, wrong)
    return values


def _decoded(decode: Callable[[Any, Any], Any], field: FieldLike, cell: bytes | str, index: int) -> Any:
    try:
        return decode(field, cell)
    except (CellError, CodecError):
        raise
    except Exception as exc:
        raise CellError(index, f"cannot decode a cell of field {field.name!r}: {exc}") from exc


class AsStored(Codec):
    """Returns the bytes of cells."""

    def encode(self, unischema_field: Any, value: Any) -> bytes:  # noqa: ARG002 - a codec's signature
        """Return the bytes."""
        return bytes(value)

    def decode(self, unischema_field: Any, value: Any) -> NDArray[np.uint8]:  # noqa: ARG002 - a codec's signature
        """Return the bytes as a separate array."""
        return np.frombuffer(value, np.uint8).copy()

    def decode_list(self, field: FieldLike, cells: Cells) -> list[Any]:  # noqa: ARG002 - a codec's signature
        """Return views of one block; None for nulls."""
        there = [(row, part, start, stop) for row, part, start, stop in cells.spans() if stop > start]
        sizes = cells.stop - cells.start
        if cells.valid is not None:
            sizes = np.where(cells.valid, sizes, 0)
        ends = np.cumsum(sizes).tolist()
        block = np.empty(ends[-1] if ends else 0, np.uint8)
        if there:
            np.concatenate([cells.parts[part][start:stop] for _, part, start, stop in there], out=block)
        views: list[Any] = [block[end - size : end] for end, size in zip(ends, sizes.tolist(), strict=True)]
        if cells.valid is not None:
            for row in np.flatnonzero(~cells.valid).tolist():
                views[row] = None
        return views
