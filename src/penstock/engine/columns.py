"""What each column of a batch is made of, decided once when a loader is built.

Takes the schema's fields and the stored Arrow types; gives one `Column` for each name, in the user's order. Gathering
(`gather`) and finishing (`finish`) look at `form` and nothing else to choose their path. Reads no data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from penstock.codecs.arrow import Fixed, Objects, column_kind
from penstock.codecs.arrow_kinds import form_of
from penstock.codecs.base import Codec, column_dtype, has_cells
from penstock.errors import UnsupportedType

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np
    import pyarrow as pa

    from penstock.codecs.base import DataframeColumnCodec
    from penstock.schema.unischema import UnischemaField

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
        return self.form == "fixed" or (self.form == "cells" and has_view(self.field.codec))


def has_view(codec: object) -> bool:
    """Tell whether a codec may hand out uniform cells without decoding them."""
    return isinstance(codec, Codec) and type(codec).view_column is not Codec.view_column


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
