"""The options of loaders: their names, types, defaults and meaning, each declared once.

`LoaderOptions` is the checked, frozen value that everything below the public API takes; its docstring is the only
description of the options. The TypedDicts name them for signatures (``**options: Unpack[LoaderKeywords]``), and
`show_keywords` puts them into `help` and `inspect.signature`. Nothing here looks at a dataset, a clock or the machine:
defaults that depend on the host are filled in by `engine.host`.
"""

from __future__ import annotations

import inspect
import operator
import re
import warnings
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, cast

from penstock.errors import PenstockDeprecationWarning, PlanError, close_names, users_level

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from penstock.schema.transform import TransformSpec

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
            object.__setattr__(self, name, _at_least(name, getattr(self, name), 1))


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
    on_error: OnError = "raise"
    skip_limit: int | None = None
    pad: Any = None

    def __post_init__(self) -> None:
        for name, least in _NUMBERS.items():
            value = getattr(self, name)
            if value is not None or name in ("batch_size", "seed", "shuffle_bytes"):
                # A plain int: NumPy's integers overflow and cannot be written as JSON.
                object.__setattr__(self, name, _at_least(name, value, least))
        one_of("shuffle", self.shuffle, (False, True, "groups"))
        one_of("remainder", self.remainder, ("drop", "pad", "uneven"))
        one_of("pool", self.pool, ("thread", "process", "serial"))
        one_of("on_error", self.on_error, ("raise", "skip"))
        if self.seed >= 1 << 64:
            raise PlanError(f"seed must be in [0, 2**64); got {self.seed}")
        if self.window is not None and not isinstance(self.window, Window):
            raise PlanError(f"window takes a penstock.Window(length, by=, max_gap=); got {self.window!r}")
        if self.lanes is not None and self.order_kind != "lanes":
            raise PlanError(f"lanes={self.lanes} needs shuffle=True: other orders have no lanes")
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


class PlanKeywords(TypedDict, total=False):
    """The keywords of `Dataset.plan` beside `batch_size`: what decides which rows come in which batch."""

    shuffle: Shuffle
    seed: int
    drop_last: bool
    rank: int | None
    world: int | None
    remainder: Remainder
    shuffle_bytes: int
    window_bytes: int  # the deprecated name of shuffle_bytes
    lanes: int | None


class LoaderKeywords(PlanKeywords, total=False):
    """The keywords of `Dataset.loader` beside `batch_size`; `LoaderOptions` has their meaning and defaults."""

    epochs: int | None
    transform: Function | Sequence[Function] | TransformSpec | None
    window: Window | None
    pool: Pool
    workers: int | None
    memory_bytes: int | None
    on_error: OnError
    skip_limit: int | None
    pad: Any


class FrameworkKeywords(LoaderKeywords, total=False):
    """The keywords that the loaders of torch, TensorFlow and JAX share: those of `Dataset.loader`, and of opening.

    Attributes:
        columns: Columns to read; see `penstock.open`.
        filters: Rows to keep; see `Dataset.where`.
        storage_options: For the filesystem of a URL.
        filesystem: A pyarrow or fsspec filesystem to use instead of the URL's.
    """

    columns: Iterable[Any] | None
    filters: Any
    storage_options: Mapping[str, Any] | None
    filesystem: Any


OPENING = tuple(name for name in FrameworkKeywords.__annotations__ if name not in LoaderKeywords.__annotations__)
"""The keywords of `FrameworkKeywords` that choose the dataset, its columns and rows."""
_RENAMED = {"window_bytes": "shuffle_bytes"}
_FOREIGN = {
    "num_workers": "threads do the work: workers= sets their number, pool='process' makes them processes",
    "collate_fn": "batches arrive complete: change them with transform= or device_transform=",
    "sampler": "the loader decides the order: see shuffle=, seed=, rank= and world=",
    "batch_sampler": "the loader decides the order: see shuffle=, seed=, rank= and world=",
    "worker_init_fn": "threads do the work; a transform may take rng or generator, seeded by the batch's position",
    "prefetch_factor": "memory_bytes= limits what is read ahead, prefetch= what waits on a device",
    "persistent_workers": "threads live as long as an iterator; starting them takes milliseconds",
    "num_epochs": "epochs= is the number of epochs of one pass",
}
"""Options of other libraries, and what to use here instead."""
_Function = TypeVar("_Function", bound="Callable[..., Any]")


def check_keywords(options: Mapping[str, Any], function: Callable[..., Any], *, owner: str) -> dict[str, Any]:
    """Return the ``**options`` that `function` was called with, under their current names.

    A deprecated name gives a PenstockDeprecationWarning that points to the user's line.

    Raises:
        TypeError: A keyword that is not in the signature of `function`, with near matches or what to use instead; or
            both names of an option that was renamed.
    """
    known = [name for name in inspect.signature(function).parameters if name != "self"]
    checked = dict(options)
    for name in options:
        current = _RENAMED.get(name, name)
        if current not in known:
            hint = _FOREIGN.get(name) or close_names(name, known)
            raise TypeError(f"{owner}() got an unexpected keyword argument {name!r}; {hint}")
        if current != name:
            if current in options:
                raise TypeError(f"{owner}() got both {current}= and {name}=, its deprecated name")
            warn_renamed(name, current)
            checked[current] = checked.pop(name)
    return checked


def warn_renamed(name: str, current: str) -> None:
    """Warn that an option has a new name; the warning points to the first line outside of this package."""
    text = f"{name}= is now {current}=; the old name will be removed in version 1.0"
    warnings.warn(text, PenstockDeprecationWarning, stacklevel=users_level())


def show_keywords(keywords: Any) -> Callable[[_Function], _Function]:
    """Return a decorator that lists the keys of a TypedDict in a function that takes them as ``**options``.

    Type checkers and editors read `Unpack`; `help`, notebooks and `inspect.signature` read the signature and the
    docstring that are set here: the line ``**options: ...`` of the docstring becomes an entry for each keyword.
    """

    def show(function: _Function) -> _Function:
        own = inspect.signature(function)
        names = [name for name in _DEFAULTS if name in keywords.__annotations__ and name not in own.parameters]
        parameters = [one for one in own.parameters.values() if one.kind is not one.VAR_KEYWORD]
        for name in names:
            kind, annotation = inspect.Parameter.KEYWORD_ONLY, keywords.__annotations__[name].__forward_arg__
            parameters.append(inspect.Parameter(name, kind, default=_DEFAULTS[name], annotation=annotation))
        shown: Any = function
        shown.__signature__ = own.replace(parameters=parameters)
        if function.__doc__:  # None under python -OO
            own_text = inspect.cleandoc(function.__doc__)
            texts = _entries(LoaderOptions.__doc__) | _entries(FrameworkKeywords.__doc__)
            listed = [f"    {name}: {texts[name]}" for name in names if name not in _entries(own_text)]
            pattern = re.compile(r"^ {4}\*\*options: .*(\n {8}.*)*", re.MULTILINE)
            function.__doc__ = pattern.sub(lambda _: "\n".join(listed), own_text)
        return function

    return show


def _entries(text: str | None) -> dict[str, str]:
    """Return the entries of a docstring's Args or Attributes by name."""
    return dict(re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", inspect.cleandoc(text or ""), re.MULTILINE))


_DEFAULTS = {one.name: one.default for one in fields(LoaderOptions)} | dict.fromkeys(OPENING)
"""The default of every keyword, in the order in which they are shown."""
