"""The obligations of a codec, as one check to call from a test.

`check_codec` takes a codec, a field and some values, and raises AssertionError naming the first obligation that is not
met. It is used for Penstock's own codecs and for users' codecs, and touches no file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock.codecs import (
    Cells,
    Codec,
    DataframeColumnCodec,
    codec_from_json,
    codec_to_json,
)
from penstock.codecs.base import FieldLike, column_dtype, decode_column, decode_list, has_cells, view_column

Same = Callable[[Any, Any], bool]


def check_codec(
    codec: DataframeColumnCodec, field: FieldLike, values: Sequence[Any], *, same: Same | None = None
) -> None:
    """Check round trip, nulls, empty columns, stored form, repr, and that whole columns decode as single cells do.

    `same(decoded, value)` compares; the default wants equal dtype, shape and elements, so lossy codecs pass their own.
    The codec's class must be registered. Costs a few decodes of every value.
    """
    same = same or equal_values
    cells = [codec.encode(field, value) for value in values]
    for value, cell in zip(values, cells, strict=True):
        decoded = codec.decode(field, cell)
        assert same(decoded, value), f"{codec} gave {decoded!r:.80} for {value!r:.80}"
    stored = codec_to_json(codec)
    again = codec_from_json(json.loads(json.dumps(stored)))
    assert type(again) is type(codec), f"{codec} comes back as {again!r}"
    assert codec_to_json(again) == stored, f"{codec} does not keep its state: {stored}"
    assert repr(again) == repr(codec), f"{codec} comes back as {again!r}"
    assert " object at 0x" not in repr(codec), f"{type(codec).__name__} needs a readable repr"
    assert not isinstance(codec, Codec) or (again == codec and hash(again) == hash(codec)), f"{codec} != {again!r}"
    if has_cells(codec):
        assert all(isinstance(cell, bytes | bytearray) for cell in cells), f"{codec}: encode() must give bytes"
        _check_columns(codec, field, [bytes(cell) for cell in cells])


def equal_values(decoded: Any, value: Any) -> bool:
    """Tell whether two values have the same dtype, shape and elements; NaN equals NaN, NaT equals NaT."""
    a, b = np.asarray(decoded), np.asarray(value)
    same_kind = a.dtype == b.dtype or (a.dtype.kind == b.dtype.kind and a.dtype.kind in "US")
    return same_kind and a.shape == b.shape and bool(np.array_equal(a, b, equal_nan=a.dtype.kind in "fcmM"))


def _check_columns(codec: DataframeColumnCodec, field: FieldLike, cells: list[bytes]) -> None:
    """Compare the column paths with single decodes: with nulls between, from several buffers, and with no cells."""
    padded = [None, *cells, None]
    plain = [None if cell is None else codec.decode(field, cell) for cell in padded]
    whole = Cells.from_list(padded)
    # The same cells, alternately from one of two buffers.
    spare = np.concatenate([np.zeros(3, np.uint8), whole.parts[0]])
    part = np.arange(len(padded)) % 2
    split = Cells([whole.parts[0], spare], part, whole.start + 3 * part, whole.stop + 3 * part, whole.valid)
    for column in (whole, split):
        listed = decode_list(codec, field, column)
        assert len(listed) == len(plain), f"{codec}: decode_list gave {len(listed)} values for {len(plain)} cells"
        for got, want in zip(listed, plain, strict=True):
            assert (got is None) == (want is None), f"{codec}: decode_list mixes up nulls"
            assert got is None or equal_values(got, want), f"{codec}: decode_list differs from decode"
        _check_fill(codec, field, column, plain)
    assert decode_list(codec, field, Cells.from_list([])) == []
    one_column = Cells.from_list(cells)
    offsets = np.concatenate([one_column.start[:1], one_column.stop])
    view = view_column(codec, field, one_column.parts[0], offsets) if cells else None
    for viewed, cell in zip(view if view is not None else [], cells, strict=False):
        assert equal_values(viewed, codec.decode(field, cell)), f"{codec}: view_column differs from decode"


def _check_fill(codec: DataframeColumnCodec, field: FieldLike, column: Cells, plain: list[Any]) -> None:
    dtype = column_dtype(field)
    if dtype is None:
        return
    shape = tuple(n or 0 for n in field.shape)  # column_dtype is None if a size is free
    out = np.full((len(plain), *shape), 77, dtype)
    decode_column(codec, field, column, out)
    for got, want in zip(out, plain, strict=True):
        right = np.full(shape, 77, dtype) if want is None else np.asarray(want, dtype)  # in native byte order
        assert equal_values(got, right), f"{codec}: decode_column differs from decode, or writes where the cell is null"
