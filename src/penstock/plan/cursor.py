"""Mark a place in the run: an epoch and what is left of it, in terms of the global order.

`epoch` builds a rank's plan from a cursor and gives the cursor after some steps; `state` stores it. It says nothing of
batches or workers, and of ranks only where they have parted: that is what lets a run resume under others.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from penstock.errors import PlanError, StateMismatch

if TYPE_CHECKING:
    from penstock.plan.order import Order

Left = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place between two batches of a run; exactly one of `position` and `left` is given."""

    epoch: int
    """Which epoch, from 0."""
    position: int | None = None
    """Lanes: how many items of the epoch's global order are out."""
    left: Left | None = None
    """Lines: the intervals of the epoch's line that are not out, rising and disjoint."""
    owner: tuple[int, int] | None = None
    """Rank and world, where only this rank is here; None: all ranks are, and any number of them can go on.

    Ranks part where they have unequal numbers of batches in an epoch and each goes on with the next one.
    """

    def __post_init__(self) -> None:
        if not 0 <= self.epoch < 1 << 64:
            raise PlanError(f"epoch must be in [0, 2**64); got {self.epoch}")
        if (self.position is None) == (self.left is None):
            raise PlanError(f"a cursor has either a position or intervals that are left; got {self}")

    @classmethod
    def start(cls, epoch: int, order: Order, total_rows: int, owner: tuple[int, int] | None = None) -> Cursor:
        """Return the cursor at the beginning of `epoch`."""
        if order.is_line:
            return cls(epoch, left=((0, total_rows),) if total_rows else (), owner=owner)
        return cls(epoch, position=0, owner=owner)

    def num_left(self, total_rows: int) -> int:
        """Return how many items of the epoch are left."""
        if self.left is not None:
            return sum(last - first for first, last in self.left)
        return total_rows - (self.position or 0)

    def check(self, order: Order, total_rows: int) -> None:
        """Raise StateMismatch unless this is a place in an epoch of `total_rows` under `order`."""
        if order.is_line != (self.left is not None):
            raise StateMismatch(f"order {order.name!r} does not go with the cursor {self}")
        bounds = [b for pair in self.left or () for b in pair] if self.left is not None else [self.position or 0]
        rising = all(a <= b for a, b in pairwise(bounds)) and all(a < b for a, b in self.left or ())
        if bounds and (bounds[0] < 0 or bounds[-1] > total_rows or not rising):
            place = f"position {self.position}" if self.left is None else f"left {list(self.left)}"
            raise StateMismatch(f"{place} is not within an epoch of {total_rows:,} rows; the state is damaged")
