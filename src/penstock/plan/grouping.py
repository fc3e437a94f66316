"""Define what an epoch plan deals out: the protocol `Grouping`, and rows, the simplest one.

A plan orders and deals *items*, which it knows by part and number only. A `Grouping` says how many items each part has
and translates a plan's answers into chunks and rows for the engine; `parts` has the one for parts of chunks, `windows`
that for windows over time. Adding a kind of item (packs of token sequences, batches of similar lengths) takes one
subclass. Pure; memory is a few words for each part.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock.plan.epoch import Visits

Run = tuple[int, int, int]
"""Consecutive rows of a chunk (or items of a part): its number, the first and one more than the last."""


class ItemRows(NamedTuple):
    """The rows of some items, in order: either `runs`, or `chunk` and `row` are given.

    A batch consists of rows, or of windows that share rows: its *units*. Usually every unit is an item.
    """

    runs: list[Run] | None = None
    """Rows as runs of neighbours."""
    chunk: NDArray[np.int64] | None = None
    """Chunk of each row."""
    row: NDArray[np.int64] | None = None
    """Each row's number among the selected rows of its chunk."""
    windows: NDArray[np.int64] | None = None
    """Rows of each window, as indices into the rows above: shape (windows, length). None: units are rows."""
    starts: NDArray[np.int64] | None = None
    """First unit of each item, and the number of units at the end (ragged items). None: one unit per item."""


class Grouping(ABC):
    """What the items of a plan are. Implementations are immutable."""

    counts: NDArray[np.int64]
    """Items of each part: what the plan orders and deals. A part is a chunk unless the grouping says otherwise."""
    one_row: bool = False
    """Whether every item is one row, so that several batches may be gathered together and sliced."""

    @abstractmethod
    def locate(self, part: NDArray[np.int64], number: NDArray[np.int64]) -> ItemRows:
        """Return the rows of items, each given by its part and its number there."""

    def locate_runs(self, runs: Sequence[Run]) -> ItemRows:
        """Return the rows of items given as runs (part, first, end) of neighbours."""
        part = np.concatenate([np.full(end - first, one, np.int64) for one, first, end in runs])
        return self.locate(part, np.concatenate([np.arange(first, end, dtype=np.int64) for _, first, end in runs]))

    @abstractmethod
    def most_rows(self, num_items: int, *, neighbours: bool) -> int:
        """Return the most rows that a batch of `num_items` items can need; `neighbours`: all follow one another."""

    def count_units(self, part: NDArray[np.int64]) -> int:
        """Return how many units (rows or windows) items have together, given the part of each item."""
        return len(part)

    def visits(self, visits: Visits) -> Visits:
        """Return when each chunk is needed, given when each part is."""
        return visits

    @property
    @abstractmethod
    def name(self) -> str:
        """What states call the items: part of `digest`, as is `table_digest`."""

    def table_digest(self) -> str:
        """Return a digest of what was computed from data to find the items; empty if nothing was."""
        return ""

    def digest(self, selection: str) -> str:
        """Return the digest that states keep of the items, given that of the selected rows.

        A state resumes only where it is equal. Changing a digest breaks resumed runs.
        """
        return hashlib.blake2b(f"{selection} {self.name} {self.table_digest()}".encode(), digest_size=16).hexdigest()


@dataclass(frozen=True)
class RowGrouping(Grouping):
    """Every selected row is an item."""

    counts: NDArray[np.int64]
    one_row = True
    name = "rows"

    def locate(self, part: NDArray[np.int64], number: NDArray[np.int64]) -> ItemRows:
        """Return the rows as they are."""
        return ItemRows(chunk=part, row=number)

    def locate_runs(self, runs: Sequence[Run]) -> ItemRows:
        """Return the runs as they are."""
        return ItemRows(list(runs))

    def most_rows(self, num_items: int, *, neighbours: bool) -> int:  # noqa: ARG002 -- of `Grouping`
        """Return the number of items."""
        return num_items

    def digest(self, selection: str) -> str:
        """Return the digest of the selected rows."""
        return selection
