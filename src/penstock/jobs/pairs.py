"""What the user wrote to a list of (input, output): patterns, numbered names, folders, templates, pairs.

First stage of a job. Lists folders if a pattern needs it, opens nothing. An input may be read by several pairs; an
output belongs to exactly one. Local names become absolute: workers may run in another folder than the driver.
"""

from __future__ import annotations

import functools
import itertools
import os
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyarrow.fs import FileType, LocalFileSystem

from penstock.errors import DatasetNotFound, PlanError, close_names
from penstock.storage import expand_glob, has_magic, list_files, resolve
from penstock.storage.filesystem import SAME_STORE, first_look

Path = str | os.PathLike[str]
Pair = tuple[str, str]
Outputs = Path | Sequence[Path] | Callable[[str], Path]

FIELDS = ("name", "stem", "suffix", "relative", "index")
"""Fields of an output template."""
_BRACES = re.compile(r"\{(?:(-?\d+)\.\.(-?\d+)|([^{}]*,[^{}]*))\}")
_FIELD = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class Resolver:
    """Where relative names and URLs lead."""

    storage_options: Mapping[str, Any] | None
    filesystem: Any

    def resolve(self, path: str) -> tuple[Any, str]:
        """Return filesystem and path of a name."""
        return resolve(path, storage_options=self.storage_options, filesystem=self.filesystem)


@dataclass(frozen=True, slots=True)
class _Input:
    path: str
    relative: str
    """Path below the folder or pattern it was found with; else the name."""


def make_pairs(inputs: Any, outputs: Outputs | None, store: Resolver) -> list[Pair]:
    """Return every (input, output), in the order of the inputs.

    Raises:
        PlanError: inputs and outputs do not match, or a pair would overwrite what another reads or makes.
        DatasetNotFound: a pattern or folder matches no files.
    """
    if outputs is None:
        pairs = _given(inputs)
    else:
        found = _inputs(inputs, store)
        pairs = list(zip([one.path for one in found], _outputs(found, outputs, inputs, store), strict=True))
    _check(pairs, store)
    return [(_absolute(source, store), _absolute(target, store)) for source, target in pairs]


def expand_braces(text: str) -> list[str]:
    """Expand `{000..147}` and `{a,b}` as a shell does, leftmost slowest; a text without them gives itself.

    >>> expand_braces("x-{08..10}.tar")
    ['x-08.tar', 'x-09.tar', 'x-10.tar']
    """
    match = _BRACES.search(text)
    if match is None:
        return [text]
    head, tail = text[: match.start()], expand_braces(text[match.end() :])
    return [f"{head}{word}{rest}" for word, rest in itertools.product(_words(match), tail)]


def _words(match: re.Match[str]) -> list[str]:
    first, last, listed = match.groups()
    if listed is not None:
        return [str(word) for word in listed.split(",")]
    step = 1 if int(first) <= int(last) else -1
    padded = any(number.lstrip("-").startswith("0") and len(number.lstrip("-")) > 1 for number in (first, last))
    width = max(len(first), len(last)) if padded else 0
    return [f"{number:0{width}d}" for number in range(int(first), int(last) + step, step)]


# --- pairs ------------------------------------------------------------------------------------------------------------


def _given(pairs: Any) -> list[Pair]:
    listed = list(pairs.items()) if isinstance(pairs, Mapping) else None
    if listed is None and isinstance(pairs, Iterable) and not isinstance(pairs, str | bytes):
        listed = list(pairs)
    if listed is None:
        raise PlanError(
            f"map_files got inputs {pairs!r} and no outputs; pass outputs= (a folder, a template such as "
            "'out/{name}', a list), or pairs [(input, output), ...] instead of inputs"
        )
    for index, pair in enumerate(listed):
        if isinstance(pair, str | bytes | os.PathLike) or not isinstance(pair, Sequence) or len(pair) != 2:
            raise PlanError(f"pair {index} must be (input, output); got {pair!r}. For plain inputs pass outputs= too")
    return [(_text(one), _text(other)) for one, other in listed]


def _text(path: Any) -> str:
    try:
        text = os.fspath(path)
    except TypeError:
        text = None
    if not isinstance(text, str):
        raise PlanError(f"inputs and outputs must be paths or URLs as text; got {path!r}")
    return text


# --- inputs -----------------------------------------------------------------------------------------------------------


def _inputs(inputs: Any, store: Resolver) -> list[_Input]:
    if isinstance(inputs, str | os.PathLike):
        texts = expand_braces(_text(inputs))
        # Numbered names are not checked: a request for each would take longer than listing.
        looked = [_found(text, store) if len(texts) == 1 or has_magic(text) else [_named(text)] for text in texts]
        return [one for found in looked for one in found]
    if not isinstance(inputs, Iterable):
        raise PlanError(f"inputs must be a path, a pattern, a folder or a list of paths; got {inputs!r}")
    return [_named(_text(one)) for one in inputs]


def _named(text: str) -> _Input:
    return _Input(text, posixpath.basename(text.replace(os.sep, "/").rstrip("/")))


def _found(text: str, store: Resolver) -> list[_Input]:
    """Return what a single name stands for: the files of a pattern or folder, else itself."""
    fs, path = store.resolve(text)
    info = first_look(fs, path, text)
    if has_magic(path) and info.type == FileType.NotFound:
        base, infos = expand_glob(fs, path, underscores=True)
        files = [info.path for info in infos if info.type == FileType.File]
        if not files:
            raise DatasetNotFound(f"no file matches {text!r}; check the pattern, or the folder {base!r}")
        return [_Input(_like(text, path, one), one.removeprefix(base).lstrip("/")) for one in files]
    if info.type == FileType.Directory:
        names = [name for name, _ in list_files(fs, path, underscores=True)]
        if not names:
            raise DatasetNotFound(f"the folder {text!r} holds no files (names that begin with a dot do not count)")
        return [_Input(_like(text, path, posixpath.join(path, name)), name) for name in names]
    return [_named(text)]


def _like(source: str, path: str, found: str) -> str:
    """Return `found`, a path on the filesystem, as the user writes it: with the scheme and host of `source`."""
    if "://" not in source or "://" in found or source.lower().startswith("file:"):
        return found
    source = source.rstrip("/")
    if source.endswith(path):
        return source[: len(source) - len(path)] + found
    return f"{source.split('://', 1)[0]}://{found}"


# --- outputs ----------------------------------------------------------------------------------------------------------


def _outputs(found: Sequence[_Input], outputs: Any, inputs: Any, store: Resolver) -> list[str]:
    if callable(outputs):
        return [_text(outputs(one.path)) for one in found]
    if isinstance(outputs, str | os.PathLike):
        return _from_text(found, _text(outputs), inputs, store)
    listed = [_text(one) for one in outputs]
    if len(listed) != len(found):
        raise PlanError(f"{len(found):,} inputs and {len(listed):,} outputs: each input needs its own output")
    return listed


def _from_text(found: Sequence[_Input], text: str, inputs: Any, store: Resolver) -> list[str]:
    numbered = expand_braces(text)
    if len(numbered) > 1:
        if len(numbered) != len(found):
            raise PlanError(f"{len(found):,} inputs, and {text!r} names {len(numbered):,} outputs")
        return numbered
    if _FIELD.search(text):
        return [_fill(text, one, index) for index, one in enumerate(found)]
    if not _is_file(text, store):
        return [f"{text.rstrip('/')}/{one.relative}" for one in found]
    # One file that the user named, alone or in a list, is allowed; a pattern or folder that happens to hold one is not.
    is_text = isinstance(inputs, str | os.PathLike)
    if len(found) > 1 or (found and is_text and found[0].path != os.fspath(inputs)):
        what = "a pattern or folder" if is_text else f"{len(found):,} files"
        raise PlanError(
            f"outputs={text!r} reads as the name of one file, and the inputs are {what}; write {text + '/'!r} if it is "
            f"to be a folder, or a template such as '{{stem}}{posixpath.splitext(text)[1]}'"
        )
    return [text for _ in found]


def _is_file(text: str, store: Resolver) -> bool:
    """Tell whether outputs name one file, not a folder: by an extension such as `.txt`, unless such a folder exists."""
    if text.endswith("/") or not posixpath.splitext(text.replace(os.sep, "/"))[1]:
        return False
    fs, path = store.resolve(text)
    return bool(fs.get_file_info(path).type != FileType.Directory)


def _fill(template: str, one: _Input, index: int) -> str:
    name = posixpath.basename(one.path.replace(os.sep, "/"))
    stem, suffix = posixpath.splitext(name)
    values = {"name": name, "stem": stem, "suffix": suffix, "relative": one.relative, "index": index}

    def value(match: re.Match[str]) -> str:
        field, _, form = match[1].partition(":")
        if field not in values:
            raise PlanError(f"outputs={template!r}: no field {match[0]!r}; {close_names(field, FIELDS)}")
        try:
            return format(values[field], form)
        except ValueError as error:
            raise PlanError(
                f"outputs={template!r}: {match[0]!r} cannot be filled with {values[field]!r}: {error}; numbers as in "
                "'{index:05d}' fit {index} alone"
            ) from error

    return _FIELD.sub(value, template)


# --- checks -----------------------------------------------------------------------------------------------------------


def _check(pairs: Sequence[Pair], store: Resolver) -> None:
    """Refuse pairs of which one would overwrite what another one reads or makes, following links to folders."""
    places = _Places(store)
    read: dict[str, str] = {}
    for source, _ in pairs:
        read |= dict.fromkeys(places.read(source), source)
    made: dict[str, str] = {}
    for source, target in pairs:
        place = places.made(target)
        if place in places.read(source):
            raise PlanError(f"{source!r} is input and output at once; write the output somewhere else")
        if place in read:
            raise PlanError(
                f"the output {target!r} of {source!r} is the input {read[place]!r} of another pair, which would be "
                "overwritten; write the output somewhere else"
            )
        if place in made:
            raise PlanError(
                f"two inputs have the output {target!r}: {made[place]!r} and {source!r}; "
                "use outputs='folder/{relative}' or '{index}', or give the outputs one by one"
            )
        made[place] = source
    # An output that is a folder above an input or another output would remove them when it is published.
    for what, inners in (("input", read), ("output", made)):
        above: dict[str, str] = {}
        for inner in inners:
            folder = posixpath.dirname(inner)
            while folder not in above and folder != posixpath.dirname(folder):
                above[folder] = inner
                folder = posixpath.dirname(folder)
        inside = next((above[place] for place in made if place in above), None)
        if inside is not None:
            output = next(place for place in made if f"{inside}/".startswith(f"{place}/") and place != inside)
            raise PlanError(
                f"the {what} {inside!r} lies in {output!r}, which is the output of {made[output]!r}: one would replace "
                "the other; write the output somewhere else"
            )


class _Places:
    """One name for one place, without requests to a store; local folders are checked once each, for links."""

    def __init__(self, store: Resolver) -> None:
        self._store = store
        self._real = functools.cache(os.path.realpath)

    def made(self, path: str) -> str:
        """Return where an output goes: a link is replaced itself, not what it leads to."""
        return self._place(path)[0]

    def read(self, path: str) -> set[str]:
        """Return where an input is: its name and, if that is a link, what it leads to."""
        place, local = self._place(path)
        return {place, os.path.realpath(place).replace(os.sep, "/")} if local and os.path.islink(place) else {place}

    def _place(self, path: str) -> tuple[str, bool]:
        scheme, found, rest = path.partition("://")
        if found and scheme.lower() != "file" and self._store.filesystem is None:
            return f"{SAME_STORE.get(scheme.lower(), scheme.lower())}://{rest.strip('/')}", False
        fs, place = self._store.resolve(path)
        if not isinstance(fs, LocalFileSystem):
            return place.strip("/"), False
        folder, name = posixpath.split(place)
        return posixpath.join(self._real(folder).replace(os.sep, "/"), name), True


def _absolute(path: str, store: Resolver) -> str:
    """Return a local name as an absolute path, seen from the driver; names on a store are unchanged.

    A trailing slash stays too: it means a folder.
    """
    if "://" in path and not path.lower().startswith("file:"):
        return path
    fs, place = store.resolve(path)
    if not isinstance(fs, LocalFileSystem):
        return path
    return f"{place.rstrip('/')}/" if path.endswith("/") else place
