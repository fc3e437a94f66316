"""The options of loaders: their names, types, defaults and meaning, each declared once.

`LoaderOptions` is the checked, frozen value that everything below the public API takes; its docstring is the only
description of the options, which `keywords` shows in signatures and help texts. Nothing here looks at a dataset, a
clock or the machine: defaults that depend on the host are filled in by `engine.host`.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from penstock.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    Function = Callable[..., Mapping[str, Any]]

Shuffle = bool | Literal["groups"]
Remainder = Literal["drop", "pad", "uneven"]
Pool = Literal["thread", "process", "serial"]
OnError = Literal["raise", "skip"]
Verify = bool | Literal["first"]

MEMORY_BYTES = 3 << 30
"""Bytes that the shuffle buffer, reads in flight and decoded batches may hold together."""
SHUFFLE_BYTES = 1 << 30
"""Bytes of the shuffle buffer of the whole job; a constant, so that every rank plans the same order."""
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
            object.__setattr__(self, name, at_least(name, getattr(self, name), 1))


@dataclass(frozen=True, slots=True)
class LoaderOptions:
    """The options of a loader, checked: what `Dataset.loader` was given, with defaults for the rest.

    Attributes:
        batch_size: Rows of a batch on each rank.
        shuffle: False: as stored. True: rows are shuffled through a buffer of `shuffle_bytes`. "groups": row groups
            are permuted, the rows inside them stay as stored.
        seed: Selects the order; 0 <= seed < 2**64.
        epochs: Epochs of one pass; None repeats forever.
        drop_last: Leave out a last batch that is not full.
        rank: Which of `world` parts this process reads, from 0. Default: found in torch.distributed, JAX or the
            launcher's environment variables, else 0 of 1.
        world: Number of parts.
        remainder: Rows that do not divide by `world`: "drop", "pad" (with a mask column `_valid`) or "uneven".
        transform: Function of a batch (a dict of columns) that may also take `rng`, `generator` (torch's) and
            `positions`; it may add, drop and reshape columns, but not rows. Or a list of such functions, called in
            order; or a `TransformSpec`, whose function takes one row.
        window: Time windows instead of rows: every column gets an axis of time; see `Window`.
        pool: Where decoding and the transform run: "thread", "process" (for transforms that hold the GIL) or "serial"
            (for debugging).
        workers: Threads or processes; default: this rank's share of the cores.
        memory_bytes: Bytes that the shuffle buffer, reads and batches in flight may hold together; default: 3 GiB, or
            less on a host or cgroup with little memory.
        shuffle_bytes: Bytes of the shuffle buffer of the whole job; each rank holds its share.
        lanes: Lanes of the shuffled order; default: chosen to fit the shuffle buffer.
        parts: Whether shuffle=True divides large row groups into parts of about 2 MiB, or more where pages are larger,
            which mix better in the same memory. None: where files have an offset index (Spark's do), or `penstock
            index --beside` has made one. True: also find the pages of other files, on local disks by reading their
            headers, elsewhere by an index that `penstock index` has stored. False: whole row groups.
        on_error: "raise", or "skip": leave out damaged rows and list them in `Loader.skipped`.
        skip_limit: With on_error="skip": skipping more rows than this is an error.
        pad: Fill value for columns of variable shape, or a dict column -> value; without it they come as lists. Also
            applies to columns that the transform makes.
    """

    batch_size: int
    shuffle: Shuffle = False
    seed: int = 0
    epochs: int | None = 1
    drop_last: bool = False
    rank: int | None = None
    world: int | None = None
    remainder: Remainder = "drop"
    transform: Any = None
    window: Window | None = None
    pool: Pool = "thread"
    workers: int | None = None
    memory_bytes: int | None = None
    shuffle_bytes: int = SHUFFLE_BYTES
    lanes: int | None = None
    parts: bool | None = None
    on_error: OnError = "raise"
    skip_limit: int | None = None
    pad: Any = None

    def __post_init__(self) -> None:
        for name, least in _NUMBERS.items():
            value = getattr(self, name)
            if value is not None or name in ("batch_size", "seed", "shuffle_bytes"):
                # A plain int: NumPy's integers overflow and cannot be written as JSON.
                object.__setattr__(self, name, at_least(name, value, least))
        one_of("shuffle", self.shuffle, (False, True, "groups"))
        if self.drop_last not in (False, True):
            raise PlanError(f"drop_last must be True or False; got {self.drop_last!r}")
        one_of("remainder", self.remainder, ("drop", "pad", "uneven"))
        one_of("pool", self.pool, ("thread", "process", "serial"))
        one_of("on_error", self.on_error, ("raise", "skip"))
        one_of("parts", self.parts, (None, True, False))
        if self.seed >= 1 << 64:
            raise PlanError(f"seed must be in [0, 2**64); got {self.seed}")
        if self.window is not None and not isinstance(self.window, Window):
            raise PlanError(f"window takes a penstock.Window(length, by=, max_gap=); got {self.window!r}")
        if self.lanes is not None and self.order_kind != "lanes":
            raise PlanError(f"lanes={self.lanes} needs shuffle=True: other orders have no lanes")
        if self.parts and (self.order_kind != "lanes" or self.window is not None):
            raise PlanError("parts=True needs shuffle=True without a window: otherwise row groups are read whole")
        if self.skip_limit is not None and self.on_error != "skip":
            raise PlanError(f"skip_limit={self.skip_limit} needs on_error='skip': otherwise the first error is raised")
        if self.rank is not None and self.world is None:
            raise PlanError(f"rank={self.rank} needs world= as well: how many parts are there?")
        if self.rank is not None and self.world is not None and self.rank >= self.world:
            raise PlanError(f"rank must be in [0, {self.world}); got {self.rank}")

    @property
    def transforms(self) -> tuple[Function, ...]:
        """The functions of `transform`, in the order of their calls."""
        if isinstance(self.transform, list | tuple):
            return tuple(self.transform)
        return () if self.transform is None else (cast("Function", self.transform),)

    @property
    def order_kind(self) -> Literal["natural", "groups", "lanes"]:
        """The kind of order that `shuffle` selects: natural, groups or lanes."""
        if self.shuffle == "groups":
            return "groups"
        return "lanes" if self.shuffle else "natural"


_NUMBERS = {
    "batch_size": 1, "shuffle_bytes": 1, "epochs": 1, "workers": 1, "lanes": 1, "memory_bytes": 1, "world": 1,
    "seed": 0, "rank": 0, "skip_limit": 0,
}  # fmt: skip
"""The least that each whole number may be."""


def at_least(name: str, value: Any, least: int) -> int:
    """Return a whole number; PlanError unless it is one and at least `least`."""
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
