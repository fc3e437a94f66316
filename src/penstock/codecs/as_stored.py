"""Cells as they are stored, for code that decodes them elsewhere, for instance on a GPU.

Replaces a column's codec; a batch then holds each cell's bytes as a one-dimensional array. All cells of a batch lie end
to end in one block of memory owned by the batch. Not registered: no dataset is stored with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.codecs.base import Codec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.codecs.base import Cells, FieldLike


class AsStored(Codec):
    """Returns the bytes of cells."""

    def encode(self, unischema_field: Any, value: Any) -> bytes:  # noqa: ARG002 - a codec's signature
        """Return the bytes."""
        return bytes(value)

    def decode(self, unischema_field: Any, value: Any) -> NDArray[np.uint8]:  # noqa: ARG002 - a codec's signature
        """Return the bytes as an array of its own."""
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
