"""The one home of defaults: what `Dataset.loader` accepts, checked once into a frozen value.

The public factory takes flat keywords and builds a `LoaderOptions`; everything below takes that value. Nothing here
looks at a dataset, a clock or the machine: what depends on the host is filled in by `engine.host`.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from penstock.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    Function = Callable[..., Mapping[str, Any]]

Shuffle = bool | Literal["groups"]
Remainder = Literal["drop", "pad", "uneven"]
Pool = Literal["thread", "process", "serial"]
OnError = Literal["raise", "skip"]
Verify = bool | Literal["first"]

MEMORY_BYTES = 3 << 30
"""Bytes that window, reads in flight and decoded batches may hold together."""
WINDOW_BYTES = 1 << 30
"""Bytes of the shuffle window of the whole job; a constant, so that every rank plans the same order."""
SPAN_BYTES = 8 << 20
"""Small batches are gathered several at a time, up to this many bytes: a take of 65,000 rows runs without the GIL."""
READ_COST = 3
"""A read in flight holds about this many times its chunk: compressed pages, decompressed pages, Arrow arrays."""


@dataclass(frozen=True, slots=True)
class Window:
    """Windows over time (n-grams): stretches of rows that follow each other without a gap.

    ``Window(length=3, by="time", max_gap=10)`` is every stretch of three rows whose timestamps in column "time" lie at
    most 10 apart; a batch of 32 of them has columns of shape (32, 3, ...).
    """

    length: int
    """Rows of a window."""
    by: str
    """Windows are formed by this column of timestamps: numbers or times, not decreasing within a row group."""
    max_gap: Any
    """The most that a timestamp may lie after the one before it: a number, or a timedelta for times."""
    stride: int = 1
    """Least rows between the beginnings of two windows."""
    overlap: bool = True
    """False: a window begins after the last timestamp of the one before it."""
    span_row_groups: bool = False
    """Whether a window may go on in the next row group or file."""
    columns: Mapping[int, Iterable[str]] | None = None
    """Columns of each step, counted from 0; None: all columns at every step."""

    def __post_init__(self) -> None:
        for name in ("length", "stride"):
            object.__setattr__(self, name, _at_least(name, getattr(self, name), 1))


@dataclass(frozen=True, slots=True)
class LoaderOptions:
    """How to read a dataset: what the keywords of `Dataset.loader` say, checked."""

    batch_size: int
    """Rows of a batch on each rank."""
    shuffle: Shuffle = False
    """False: as stored; True: rows shuffled within the window; "groups": row groups permuted, rows as stored."""
    seed: int = 0
    """Picks the order; 0 <= seed < 2**64."""
    epochs: int | None = 1
    """Epochs of one pass; None for ever."""
    drop_last: bool = False
    """Leave out a last batch that is not full."""
    rank: int | None = None
    """Which of `world` equal parts this process reads."""
    world: int | None = None
    """Number of parts."""
    remainder: Remainder = "drop"
    """What happens when the rows do not divide evenly among the ranks."""
    transform: Function | Sequence[Function] | None = None
    """Function of the batch, or several in the order of their calls; each may also take `rng`, `generator` and
    `positions`."""
    pool: Pool = "thread"
    """Where decoding and the transform run."""
    workers: int | None = None
    """Threads or processes; None: the cores of this process, divided by the ranks on this host."""
    memory_bytes: int | None = None
    """Budget in bytes; None: the default, or less where this host or its cgroup has less to give."""
    window_bytes: int = WINDOW_BYTES
    """Shuffle window of the whole job, in bytes of memory."""
    lanes: int | None = None
    """Lanes of the shuffled order; None: chosen from the dataset and the window."""
    on_error: OnError = "raise"
    """What a damaged cell or row group does."""
    skip_limit: int | None = None
    """With on_error="skip": more skipped rows than this are an error."""
    pad: Any = None
    """Fill value for variable shapes, or a dict column -> value; None: they come as a list."""

    def __post_init__(self) -> None:
        for name, least in _NUMBERS.items():
            self._check_number(name, least)
        one_of("shuffle", self.shuffle, (False, True, "groups"))
        one_of("remainder", self.remainder, ("drop", "pad", "uneven"))
        one_of("pool", self.pool, ("thread", "process", "serial"))
        one_of("on_error", self.on_error, ("raise", "skip"))
        if self.seed >= 1 << 64:
            raise PlanError(f"seed must be in [0, 2**64); got {self.seed}")
        for function in self.transforms:
            if not callable(function):
                found = type(function).__name__
                raise PlanError(f"transform must be a function of the batch, or a list of such functions; got {found}")
        self._check_together()
        self._check_share()

    def _check_number(self, name: str, least: int) -> None:
        """Check a whole number and make it a plain int: NumPy's would wrap around, and are no JSON."""
        value = getattr(self, name)
        if value is not None or name in ("batch_size", "seed", "window_bytes"):
            object.__setattr__(self, name, _at_least(name, value, least))

    def _check_together(self) -> None:
        if self.lanes is not None and self.order_kind != "lanes":
            raise PlanError(f"lanes={self.lanes} needs shuffle=True: other orders have no lanes")
        if self.skip_limit is None:
            return
        if self.on_error != "skip":
            raise PlanError(f"skip_limit={self.skip_limit} needs on_error='skip': otherwise the first error is raised")

    def _check_share(self) -> None:
        if self.rank is None:
            return
        if self.world is None:
            raise PlanError(f"rank={self.rank} needs world= as well: how many parts are there?")
        if self.rank >= self.world:
            raise PlanError(f"rank must be in [0, {self.world}); got {self.rank}")

    @property
    def transforms(self) -> tuple[Function, ...]:
        """The functions of `transform`, in the order of their calls."""
        if isinstance(self.transform, list | tuple):
            return tuple(self.transform)
        return () if self.transform is None else (cast("Function", self.transform),)

    @property
    def order_kind(self) -> Literal["natural", "groups", "lanes"]:
        """The kind of order that `shuffle` asks for: natural, groups or lanes."""
        if self.shuffle == "groups":
            return "groups"
        return "lanes" if self.shuffle else "natural"


_NUMBERS = {
    "batch_size": 1, "window_bytes": 1, "epochs": 1, "workers": 1, "lanes": 1, "memory_bytes": 1, "seed": 0, "world": 1,
    "rank": 0, "skip_limit": 0,
}  # fmt: skip
"""The least that each whole number may be."""


def _at_least(name: str, value: Any, least: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise PlanError(f"{name} must be a whole number; got {value!r}") from None
    if number < least or isinstance(value, bool):
        raise PlanError(f"{name} must be at least {least}; got {value!r}")
    return number


def one_of(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Raise PlanError unless `value` is one of the choices themselves (1 is not True)."""
    if not any(value is choice or (isinstance(value, str) and value == choice) for choice in choices):
        raise PlanError(f"{name} must be one of {', '.join(map(repr, choices))}; got {value!r}")
