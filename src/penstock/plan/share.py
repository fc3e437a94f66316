"""Say which part of an epoch belongs to one rank: how many items, steps, and what becomes of the remainder.

Arithmetic on numbers of items only; `lanes` and `lines` say which items these are. Holds nothing about chunks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from penstock.errors import PlanError

Remainder = Literal["drop", "pad", "uneven"]


@dataclass(frozen=True, slots=True)
class Share:
    """The part of one rank among `world`, and how it is cut into batches.

    10 items, world 4:   drop 2 2 2 2    pad 3 3 3 3 (two of them padding)    uneven 3 3 2 2
    """

    rank: int
    """Which rank, from 0."""
    world: int
    """Number of ranks W."""
    batch_size: int
    """Items of a batch of one rank."""
    remainder: Remainder
    """What becomes of the items that do not divide by `world`; the same on every rank."""
    drop_last: bool
    """Whether a rank's last batch is left out when it is not full."""

    def __post_init__(self) -> None:
        if self.world < 1 or not 0 <= self.rank < self.world:
            raise PlanError(f"rank must be in [0, world); got rank {self.rank} of world {self.world}")
        if self.batch_size < 1:
            raise PlanError(f"batch_size must be at least 1; got {self.batch_size}")
        if self.remainder not in get_args(Remainder):
            raise PlanError(f"remainder must be 'drop', 'pad' or 'uneven'; got {self.remainder!r}")

    def dealt(self, num_left: int, rank: int) -> int:
        """Return the items dealt to `rank` when `num_left` items are left in the epoch, padding included."""
        even, rest = divmod(num_left, self.world)
        if self.remainder == "drop":
            return even
        return even + (rest > 0 if self.remainder == "pad" else rank < rest)

    def kept(self, num_left: int, rank: int) -> int:
        """Return the items that `rank` delivers: those dealt, without the tail that `drop_last` leaves out."""
        dealt = self.dealt(num_left, rank)
        return dealt - dealt % self.batch_size if self.drop_last else dealt

    def steps(self, num_left: int, rank: int) -> int:
        """Return the batches that `rank` delivers."""
        return -(-self.kept(num_left, rank) // self.batch_size)
