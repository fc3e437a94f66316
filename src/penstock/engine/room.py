"""Memory for cells of variable shape, whose decoded size is known from their headers only: a few bytes may claim
gigabytes.

Asked by `build` before a batch is decoded, with the columns as they were gathered. `Room` says how much there is; the
run makes batches wait for each other in its `wait`. Reads headers, decodes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from penstock.codecs.base import claimed_bytes
from penstock.engine.chunk import CellLost
from penstock.engine.stages import Lost
from penstock.errors import BudgetError
from penstock.options import MEMORY_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.engine.columns import Column
    from penstock.engine.gather import Gathered


def go_on(number: int, num_bytes: int) -> None:
    """Do not wait."""


@dataclass(slots=True, kw_only=True)
class Room:
    """How many bytes decoded cells of variable shape may take."""

    cell_bytes: int = MEMORY_BYTES
    """Of one cell: one that claims more is damaged, or cannot be read in this budget."""
    batch_bytes: int | None = None
    """Of one batch; None: as many as it needs, though others wait for it."""
    all_bytes: int = MEMORY_BYTES
    """Of all batches that are being made, wait for the consumer, or were taken last."""
    copies: int = 1
    """How often a value is in memory while its batch is made."""
    wait: Callable[[int, int], None] = field(default=go_on)
    """Called with the number of a span and the bytes that it needs; returns when it may be decoded."""


def within(
    room: Room, columns: Sequence[Column], gathered: Sequence[Gathered], *, skip: bool
) -> tuple[list[Gathered], tuple[Lost, ...], int]:
    """Return the columns with those cells null that claim too many bytes, their rows, and the bytes of the others.

    Raises:
        CellLost: a cell claims more than there is, and is not to be skipped.
        BudgetError: all cells together claim more than a batch may have.
    """
    found, lost, used = list(gathered), dict[int, Lost](), 0
    most = room.cell_bytes // room.copies
    for number, (column, one) in enumerate(zip(columns, gathered, strict=True)):
        if column.form != "ragged" or one.cells is None:
            continue
        sizes = claimed_bytes(column.codec, column.field, one.cells)
        if sizes is None:
            continue
        over = sizes > most
        for row in np.flatnonzero(over).tolist():
            reason = (
                f"its header claims {int(sizes[row]):,} bytes of pixels or elements, and there is room for {most:,}; "
                "it is damaged, or memory_bytes= must be raised"
            )
            if not skip:
                raise CellLost(row, column.name, reason)
            lost.setdefault(row, Lost(row, column.name, reason))
        if over.any():
            valid = ~over if one.cells.valid is None else one.cells.valid & ~over
            found[number] = one._replace(valid=valid, cells=replace(one.cells, valid=valid))
        used += int(sizes[~over].sum()) * room.copies
        if room.batch_bytes is not None and used > room.batch_bytes:
            raise BudgetError(
                f"the cells of one batch up to column {column.name!r} need {used:,} bytes to be decoded, and "
                f"memory_bytes leaves {room.batch_bytes:,}; raise memory_bytes, or lower batch_size or shuffle_bytes",
                least=used,
            )
    return found, tuple(lost.values()), used
