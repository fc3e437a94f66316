"""What a loader works from: the source, the selected rows, the columns, what is dealt out, and how large it all is.

Filled in by `api`; a frozen value that engine and plan work from. `choose_order` and `count_needs` derive the order and
the memory of a run from it. A `Column` says what a column of a batch is made of; gathering and decoding choose their
path by its `form`. Arithmetic only: reads no data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import numpy as np

from penstock.codecs.arrow import Fixed, Objects, column_kind
from penstock.codecs.arrow_kinds import form_of
from penstock.codecs.base import Codec, column_dtype, has_cells
from penstock.errors import UnsupportedType
from penstock.options import READ_COST
from penstock.plan.order import Order

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from penstock.codecs.base import DataframeColumnCodec
    from penstock.engine.stages import FilterRows, Fold, Stage
    from penstock.options import LoaderOptions, Pool
    from penstock.plan.grouping import Grouping
    from penstock.schema.unischema import UnischemaField
    from penstock.source import Selection, Source

Form = Literal["fixed", "cells", "ragged", "objects"]

_VARIABLE_GUESS_BYTES = 1 << 16
"""Decoded bytes assumed for a cell of unknown shape."""
_OBJECT_GUESS_BYTES = 64
_CELL_FORMS = ("bytes", "text", "dictionary")


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a batch."""

    name: str
    field: UnischemaField
    form: Form
    """fixed: stacked, straight from Arrow; cells: encoded, decoded into a stacked array;
    ragged: encoded, decoded into a list; objects: Python values."""
    dtype: np.dtype[Any] | None
    """Of the stacked array."""
    shape: tuple[int, ...]
    """Of one row of the stacked array."""
    kind: Fixed | Objects | None
    """How Arrow memory becomes values (fixed and objects)."""
    item_bytes: int
    """Bytes of one row in the batch; a guess for variable columns."""
    masked: bool = False
    """Whether a stacked column is a MaskedArray in every batch (`penstock.source.may_hold_nulls`)."""

    @property
    def codec(self) -> DataframeColumnCodec:
        """The codec of encoded cells; only for cells and ragged."""
        return cast("DataframeColumnCodec", self.field.codec)

    @property
    def light(self) -> bool:
        """Whether a row needs no decoding, or may need none: such rows are gathered for several batches at once."""
        codec = self.field.codec
        has_view = isinstance(codec, Codec) and type(codec).view_column is not Codec.view_column
        return self.form == "fixed" or (self.form == "cells" and has_view)


def columns_of(fields: Iterable[UnischemaField], types: Sequence[pa.DataType]) -> tuple[Column, ...]:
    """Return the columns of these fields, stored as these Arrow types; refuses what docs/types.md refuses."""
    return tuple(_column(field, kind) for field, kind in zip(fields, types, strict=True))


def _column(field: UnischemaField, arrow_type: pa.DataType) -> Column:
    if not has_cells(field.codec):
        kind = column_kind(arrow_type, numpy_dtype=field.asked_dtype, name=field.name, shape=field.shape)
        if isinstance(kind, Fixed):
            num_bytes = kind.dtype.itemsize * math.prod(kind.shape)
            return Column(field.name, field, "fixed", kind.dtype, kind.shape, kind, num_bytes)
        return Column(field.name, field, "objects", None, (), kind, _OBJECT_GUESS_BYTES)
    if form_of(arrow_type) not in _CELL_FORMS:
        raise UnsupportedType(
            f"column {field.name!r} is stored as {arrow_type}, and its codec {field.codec} reads bytes or text only; "
            "store its cells as binary, or open with columns= that leave it out"
        )
    dtype = column_dtype(field)
    if dtype is None:
        return Column(field.name, field, "ragged", None, (), None, _VARIABLE_GUESS_BYTES)
    shape = tuple(size for size in field.shape if size is not None)  # no free dimension: the field has a dtype
    return Column(field.name, field, "cells", dtype, shape, None, dtype.itemsize * math.prod(shape))


_BUFFER_SLACK = 1.4
"""A buffer that grew by doubling keeps up to twice its bytes when it is cut to length; 1.31 was seen for JPEG cells."""
_MOST_BYTES = 1 << 50
"""Beyond any memory: damaged footers declare sizes whose sums do not fit into 64 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What a loader knows of its dataset, and how rows become batches where those are not simply `batch_size` rows."""

    source: Source
    selection: Selection
    columns: tuple[Column, ...]
    items: Grouping
    """What is dealt out."""
    row_bytes: float
    """Bytes of a row in memory, all columns: decides lanes and block, which must not depend on the columns read."""
    column_bytes: float
    """Bytes of a row in memory, the columns read; of a typical row group."""
    chunk_bytes: NDArray[np.float64]
    """Bytes of all rows of each chunk in memory, the columns read."""
    rows: str
    """Digest of the selection and of what is dealt out."""
    filter_rows: FilterRows | None = None
    """Leaves rows out on delivery."""
    rowwise: Stage | None = None
    """Changes rows, also their number, before they become windows."""
    fold: Fold | None = None
    """How windows become a batch; None: they are left to the consumer."""
    batch_items: int | None = None
    """Most items that are made at once; None: those of a step, which is `batch_size` of the options."""
    aligned: bool = False
    """Whether batches end with their chunk, in line orders."""
    most_waiting: int = 1 << 30
    """Most results that wait for the consumer, where memory allows more."""

    def most_items(self, options: LoaderOptions) -> int:
        """Return the most items of a batch."""
        return options.batch_size if self.batch_items is None else self.batch_items

    @property
    def selected(self) -> NDArray[np.int64]:
        """Selected rows of each chunk."""
        return self.selection.counts

    @property
    def chunk_rows(self) -> NDArray[np.int64]:
        """All rows of each chunk."""
        return self.source.facts.chunk_rows

    @property
    def counts(self) -> NDArray[np.int64]:
        """Items of each part: what the plan orders."""
        return self.items.counts

    @property
    def variable_bytes(self) -> float:
        """Bytes of a row in the columns of variable size."""
        return max(0.0, self.column_bytes - sum(c.item_bytes for c in self.columns if c.form == "fixed"))

    @property
    def slack(self) -> float:
        """How much more memory a chunk takes than its buffers are long."""
        return 1 + (_BUFFER_SLACK - 1) * self.variable_bytes / max(1.0, self.column_bytes)

    @property
    def held_bytes(self) -> float:
        """Bytes that a row takes while its chunk is in memory: decides what fits."""
        return self.column_bytes * self.slack

    @property
    def held_chunk_bytes(self) -> NDArray[np.int64]:
        """Bytes that the selected rows of each chunk take while they are in memory."""
        share = self.selected / np.maximum(1, self.chunk_rows)
        return np.minimum(np.ceil(self.chunk_bytes * share * self.slack), _MOST_BYTES).astype(np.int64)

    @property
    def excess_bytes(self) -> int:
        """Bytes that the heaviest chunk takes beyond typical ones of its rows: one row of it may hold them all.

        0 unless it takes at least twice as much, so that ordinary scatter does not count.
        """
        typical = self.chunk_rows * self.column_bytes
        heavy = (self.chunk_bytes - typical)[(self.selected > 0) & (self.chunk_bytes > 2 * typical)]
        return int(heavy.max(initial=0))

    @property
    def decoded_bytes(self) -> float:
        """Bytes of a row in a batch; objects take at least what they take in a chunk."""
        objects = self.variable_bytes if any(c.form == "objects" for c in self.columns) else 0.0
        return sum(c.item_bytes for c in self.columns) + objects


class Needs(NamedTuple):
    """Bytes that a run needs."""

    window_bytes: int
    """Chunks that must be in memory at once."""
    read_bytes: int
    """One read in flight, of the largest chunk."""
    batch_bytes: int
    """One batch, with what its making takes."""

    @property
    def least(self) -> int:
        """The smallest budget that will do."""
        return self.window_bytes + self.read_bytes + 2 * self.batch_bytes


def count_needs(inputs: Inputs, window_bytes: int, batch_size: int, pool: Pool) -> Needs:
    """Return what a run with a window of that many bytes needs."""
    largest = float(inputs.chunk_bytes[inputs.selected > 0].max(initial=0))
    row_bytes = inputs.decoded_bytes
    if pool == "process":  # gathered and packed for the process, then in its answer
        row_bytes += 2 * inputs.column_bytes
    batch_rows = min(batch_size, max(1, int(inputs.selected.sum())))
    return Needs(
        window_bytes,
        math.ceil(READ_COST * largest * inputs.slack),
        math.ceil(row_bytes * batch_rows) + inputs.excess_bytes,
    )


def choose_order(inputs: Inputs, options: LoaderOptions) -> Order:
    """Return the order of a fresh run: its kind, and for lanes their number and block."""
    kind = options.order_kind
    if kind != "lanes":
        return Order(kind, options.seed)
    from penstock.plan.shuffled import choose_lanes  # here: other orders have no lanes

    chosen = choose_lanes(
        inputs.counts, row_bytes=inputs.row_bytes, shuffle_bytes=options.shuffle_bytes, lanes=options.lanes
    )
    return Order("lanes", options.seed, chosen.lanes, chosen.block)
