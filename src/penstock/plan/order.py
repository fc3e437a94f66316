"""Define the values that fix a run: the order of an epoch, one rank's share of it, a place in it, and what an item is.

`Order`, `Share` and `Cursor` are small frozen values that know nothing of files or batches in flight; together with the
items of each chunk they determine every batch. `epoch` and `shuffled` lay out the items. Changing an order would break
runs that resume, so a better one gets a new name beside these.

A plan orders and deals *items*, which it knows by part and number only. A `Grouping` says how many items each part has
and translates a plan's answers into chunks and rows for the engine: `RowGrouping` does for rows, `parts` for parts of
chunks, `windows` for windows over time. Another kind of item (packs of token sequences) takes one subclass.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np

from penstock.errors import PlanError, StateMismatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock.plan.epoch import Visits

Kind = Literal["natural", "groups", "lanes"]


MAX_LANES = 1 << 20
"""The most lanes allowed: every rank keeps a few words for each of its lanes."""


@dataclass(frozen=True, slots=True)
class Order:
    """The kind and the parameters of an order; with the rows per chunk and the epoch it fixes every position."""

    kind: Kind
    """"natural" (as stored), "groups" (chunks permuted) or "lanes" (rows shuffled)."""
    seed: int
    """In [0, 2^64)."""
    lanes: int | None = None
    """Number of lanes L; None for the two kinds that are a line."""
    block: int | None = None
    """Rows of a block B; None for the two kinds that are a line."""
    parts: bool = False
    """Whether chunks are the parts into which a source divides its row groups (`penstock.source.Split`): lanes only."""
    scanned: bool = False
    """Whether the parts include those that a source finds only by scanning (`penstock.source.Split.scanned`)."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise PlanError(f"order must be one of {', '.join(map(repr, get_args(Kind)))}; got {self.kind!r}")
        check_seed(self.seed)
        if not self.is_line:
            check_lanes(self.lanes)
            if not isinstance(self.block, int) or self.block < 1:
                raise PlanError(f"a block must have at least one row; got block={self.block!r}")
            if self.scanned and not self.parts:
                raise PlanError("an order of whole chunks has no parts that were found by scanning; got scanned=True")
        elif self.lanes is not None or self.block is not None or self.parts or self.scanned:
            raise PlanError(
                f"order {self.kind!r} has no lanes, blocks or parts; got lanes={self.lanes}, block={self.block}, "
                f"parts={self.parts}, scanned={self.scanned}"
            )

    @property
    def is_line(self) -> bool:
        """Whether the order is a line of items (natural, groups), dealt out in contiguous parts."""
        return self.kind != "lanes"

    @property
    def name(self) -> str:
        """The name under which states keep this order; the number grows when an order changes."""
        return "lanes-2" if self.parts else f"{self.kind}-1"


def check_seed(seed: int) -> None:
    """Raise PlanError unless 0 <= seed < 2^64."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 1 << 64:
        raise PlanError(f"seed must be an integer in [0, 2**64); got {seed!r}")


def check_lanes(lanes: Any) -> None:
    """Raise PlanError unless `lanes` is a usable number of lanes."""
    if isinstance(lanes, bool) or not isinstance(lanes, int) or not 1 <= lanes <= MAX_LANES:
        raise PlanError(f"lanes must be an integer from 1 to {MAX_LANES:,}; got {lanes!r}")


def as_counts(counts: Sequence[int] | NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Return selected rows per chunk as one int64 array; PlanError where it is not one or a count is negative."""
    array = np.asarray(counts, dtype=np.int64)
    if array.ndim != 1 or (array.size and array.min() < 0):
        raise PlanError(f"rows per chunk must be a list of counts >= 0; got shape {array.shape}")
    return array


def typical_rows(counts: NDArray[np.int64]) -> int:
    """Return s = ceil(sum n_i^2 / N): the rows of the chunk that a random row lies in; 0 without rows."""
    total = int(counts.sum())
    if counts.size and int(counts.max()) ** 2 * counts.size >= 1 << 63:
        squares = sum(n * n for n in counts.tolist())  # would overflow int64
    else:
        squares = int((counts * counts).sum())
    return -(-squares // total) if total else 0


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
        more = {"drop": False, "pad": rest > 0, "uneven": rank < rest}
        return even + more[self.remainder]

    def kept(self, num_left: int, rank: int) -> int:
        """Return the items that `rank` delivers: those dealt, without the tail that `drop_last` leaves out."""
        dealt = self.dealt(num_left, rank)
        return dealt - dealt % self.batch_size if self.drop_last else dealt

    def steps(self, num_left: int, rank: int) -> int:
        """Return the batches that `rank` delivers."""
        return -(-self.kept(num_left, rank) // self.batch_size)


Left = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place between two batches of a run; exactly one of `position` and `left` is given."""

    epoch: int
    """Which epoch, from 0."""
    position: int | None = None
    """Lanes: how many items of the epoch's global order are delivered."""
    left: Left | None = None
    """Lines: the intervals of the epoch's line that are not delivered, ascending and disjoint."""
    owner: tuple[int, int] | None = None
    """Rank and world, if only this rank is here; None: all ranks are, and any number of ranks can resume.

    Ranks diverge if they have unequal numbers of batches in an epoch and each continues with the next one.
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
        return (
            total_rows - (self.position or 0) if self.left is None else sum(last - first for first, last in self.left)
        )

    def check(self, order: Order, total_rows: int) -> None:
        """Raise StateMismatch unless this is a place in an epoch of `total_rows` under `order`."""
        if order.is_line != (self.left is not None):
            raise StateMismatch(f"order {order.name!r} does not go with the cursor {self}")
        bounds = [b for pair in self.left or () for b in pair] if self.left is not None else [self.position or 0]
        rising = all(a <= b for a, b in pairwise(bounds)) and all(a < b for a, b in self.left or ())
        if bounds and (bounds[0] < 0 or bounds[-1] > total_rows or not rising):
            place = f"position {self.position}" if self.left is None else f"left {list(self.left)}"
            raise StateMismatch(f"{place} is not within an epoch of {total_rows:,} rows; the state is damaged")


def epochs_left(cursor: Cursor, epochs: int) -> int:
    """Return how many epochs of the pass are left, the one of the cursor included; at least 1."""
    if epochs < 1:
        raise PlanError(f"epochs must be at least 1, or None to repeat forever; got {epochs}")
    return epochs - cursor.epoch % epochs


def steps_left(total_rows: int, *, cursor: Cursor, share: Share, epochs: int) -> int:
    """Return the batches that `share.rank` has left in the pass that `cursor` lies in; exact."""
    now = share.steps(cursor.num_left(total_rows), share.rank)
    return now + (epochs_left(cursor, epochs) - 1) * share.steps(total_rows, share.rank)


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
