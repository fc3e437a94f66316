"""Keywords of the public functions: names for signatures, help texts, and what to say about a name that is unknown.

The TypedDicts name the options of `penstock.options` for signatures (``**options: Unpack[LoaderKeywords]``),
`show_keywords` puts them into `help` and `inspect.signature`, and `check_keywords` explains unknown and deprecated
names. The meaning and the default of each option stand in `LoaderOptions`.
"""

from __future__ import annotations

import inspect
import re
import warnings
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from penstock.errors import PenstockDeprecationWarning, close_names, users_level
from penstock.options import LoaderOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from penstock.options import Function, OnError, Pool, Remainder, Shuffle, Window
    from penstock.schema.transform import TransformSpec


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
    parts: bool | None


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
    "collate_fn": "batches arrive complete: change them with transform=",
    "sampler": "the loader decides the order: see shuffle=, seed=, rank= and world=",
    "batch_sampler": "the loader decides the order: see shuffle=, seed=, rank= and world=",
    "worker_init_fn": "threads do the work; a transform may take rng or generator, seeded by the batch's position",
    "prefetch_factor": "memory_bytes= limits what is read ahead",
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
        types, kind = keywords.__annotations__, inspect.Parameter.KEYWORD_ONLY
        parameters += [
            inspect.Parameter(name, kind, default=_DEFAULTS[name], annotation=types[name].__forward_arg__)
            for name in names
        ]
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
