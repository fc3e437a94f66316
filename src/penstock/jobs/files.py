"""What the user wrote to a list of (input, output): patterns, numbered names, folders, templates, pairs.

`make_pairs` is the first stage of a job. Lists folders if a pattern needs it, opens nothing. An input may be read by
several pairs; an output belongs to exactly one. Local names become absolute: workers may run in another folder than the
driver.

`near` and `committed` are used by `task` around the user's function, in the process where it runs: they make an input
available locally, and publish an output whole or not at all. Cases:

- a local output is written under a hidden name in its own folder, synced to disk and renamed;
- an output on a store is written in a local scratch folder, uploaded under a hidden name beside the target, compared
  by size, and moved (most stores: copied on the server);
- an input on a store is downloaded to the scratch folder first;
- an error: what was written under the hidden name is removed;
- files that the function writes beside its output and that begin with the hidden name: removed when the run ends;
- a killed process: its hidden files stay until a later run with the same output ends (`sweep`). An attempt holds a lock
  beside a local output, so that files of other running jobs are kept; on a store, which has no locks, files that are a
  day old count as abandoned. Scratch folders of dead processes are removed by the next process.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import posixpath
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyarrow.fs import FileSelector, FileType, LocalFileSystem

from penstock.errors import DatasetNotFound, JobFailed, PlanError, close_names
from penstock.storage import expand_glob, has_magic, list_files, resolve
from penstock.storage.filesystem import first_look
from penstock.storage.locks import Lock, mutex, scratch_folder
from penstock.storage.publish import FILESYSTEM_ERRORS, publish_file, publish_folder, remove, sync_file
from penstock.storage.urls import SAME_STORE

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
    if not isinstance(pairs, Iterable) or isinstance(pairs, str | bytes):
        raise PlanError(
            f"map_files got inputs {pairs!r} and no outputs; pass outputs= (a folder, a template such as "
            "'out/{name}', a list), or pairs [(input, output), ...] instead of inputs"
        )
    listed = list(pairs.items() if isinstance(pairs, Mapping) else pairs)
    for index, pair in enumerate(listed):
        if isinstance(pair, str | bytes | os.PathLike) or not isinstance(pair, Sequence) or len(pair) != 2:
            raise PlanError(f"pair {index} must be (input, output); got {pair!r}. For plain inputs pass outputs= too")
    return [(_text(one), _text(other)) for one, other in listed]


def _text(path: Any) -> str:
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
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
    return (source.removesuffix(path) if source.endswith(path) else f"{source.split('://', 1)[0]}://") + found


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
    # A name with an extension such as `.txt` is a file, unless such a folder exists.
    is_folder = text.endswith("/") or not posixpath.splitext(text.replace(os.sep, "/"))[1]
    if not is_folder:
        fs, path = store.resolve(text)
        is_folder = fs.get_file_info(path).type == FileType.Directory
    if is_folder:
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
    read = {place: source for source, _ in pairs for place in places.read(source)}
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


PREFIX = ".penstock-"
"""Prefix of hidden names; then 12 hex digits (6 of the run, 6 of the attempt), a dot and the output's name, so that
programs see its ending. The lock of an attempt has `-lock` before the dot."""
SCRATCH = "penstock-map_files-"
"""Prefix of temporary folders for downloads and uploads."""
_HIDDEN = re.compile(re.escape(PREFIX) + r"([0-9a-f]{12})(-lock)?\.(.+)", re.DOTALL)
_ABANDONED_S = 86400
"""A file that has not changed for a day belongs to no running job."""
_COPY_BYTES = 4 << 20


def hidden_name(path: str, token: str) -> str:
    """Return a new hidden name in the folder of `path`, with the same extension; `token` identifies the run."""
    folder, name = posixpath.split(path)
    return posixpath.join(folder, f"{PREFIX}{token}{os.urandom(3).hex()}.{name}")


def exists(store: Resolver, path: str) -> bool:
    """Tell whether an output exists."""
    fs, place = store.resolve(path)
    return bool(fs.get_file_info(place).type != FileType.NotFound)


@contextlib.contextmanager
def near(store: Resolver, path: str, scratch: str | None) -> Iterator[str]:
    """Give a local path of an input: itself, or a copy that is removed afterwards."""
    fs, place = store.resolve(path)
    if isinstance(fs, LocalFileSystem):
        yield place
        return
    with _folder(scratch) as folder:
        local = os.path.join(folder, posixpath.basename(place))
        with fs.open_input_stream(place) as source, open(local, "wb") as sink:
            shutil.copyfileobj(source, sink, _COPY_BYTES)
        yield local


@contextlib.contextmanager
def committed(store: Resolver, path: str, scratch: str | None, token: str) -> Iterator[str]:
    """Give a local path to write an output to; it becomes the output if the block succeeds, else it is removed."""
    fs, place = store.resolve(path)
    if isinstance(fs, LocalFileSystem):
        folder = os.path.dirname(place)
        os.makedirs(folder, exist_ok=True)
        made = hidden_name(place, token)
        head = os.path.basename(made)[: len(PREFIX) + 12]
        lock = Lock(fs, folder, f"{head}-lock.{os.path.basename(place)}")
        with mutex(fs, folder):
            lock.acquire()
        try:
            yield made
            if not os.path.exists(made):
                raise _nothing_made(path)
            files = [os.path.join(folder, name) for folder, _, names in os.walk(made) for name in names] or [made]
            for file in filter(os.path.isfile, files):  # a power cut must not leave an empty file
                sync_file(fs, file)
            if os.path.isdir(made) or (os.path.isdir(place) and not os.path.islink(place)):
                publish_folder(fs, made, place)
            else:
                publish_file(fs, made, place, sync=True)
        finally:
            remove(fs, made)
            lock.remove()
        return
    with _folder(scratch) as folder:
        made = os.path.join(folder, posixpath.basename(place))
        yield made
        if not os.path.exists(made):
            raise _nothing_made(path)
        if os.path.isdir(made):
            raise JobFailed(f"a folder was made for {path!r}; on a store an output is one file")
        upload = hidden_name(place, token)
        fs.create_dir(posixpath.dirname(place), recursive=True)
        try:
            with open(made, "rb") as source, fs.open_output_stream(upload) as sink:
                shutil.copyfileobj(source, sink, _COPY_BYTES)
            size = fs.get_file_info(upload).size
            if size is not None and size != os.path.getsize(made):
                raise JobFailed(f"{size} bytes arrived at {place!r}, but {os.path.getsize(made)} were sent")
            publish_file(fs, upload, place)
        except BaseException:
            remove(fs, upload)  # closing a stream after an error completes an object of what was sent so far
            raise


@contextlib.contextmanager
def committed_url(store: Resolver, path: str, token: str) -> Iterator[str]:
    """Like `committed`, but give the URL of a hidden name on the store itself: the function uploads."""
    fs, place = store.resolve(path)
    made = hidden_name(path, token)
    made_place = store.resolve(made)[1]
    try:
        yield made
        if fs.get_file_info(made_place).type == FileType.NotFound:
            raise _nothing_made(path)
        publish_file(fs, made_place, place)
    except BaseException:
        remove(fs, made_place)
        raise


def is_local(store: Resolver, path: str) -> bool:
    """Tell whether a name refers to a local file."""
    return isinstance(store.resolve(path)[0], LocalFileSystem)


def there(store: Resolver, paths: Iterable[str]) -> set[str]:
    """Return the outputs that exist; one listing for each folder."""
    found: set[str] = set()
    for fs, folder, wanted in _by_folder(store, paths):
        listed = fs.get_file_info(FileSelector(folder, allow_not_found=True))
        found |= {wanted[info.base_name] for info in listed if info.base_name in wanted}
    return found


def sweep(store: Resolver, paths: Iterable[str], token: str) -> int:
    """Remove hidden files of the run `token`, and those that killed runs left for these outputs; return how many.

    Other jobs may be running in the same folders, even on the same outputs, and their files are kept.
    """
    count = 0
    for fs, folder, wanted in _by_folder(store, paths):
        with contextlib.suppress(*FILESYSTEM_ERRORS), mutex(fs, folder):
            found = fs.get_file_info(FileSelector(folder, allow_not_found=True))
            for info in _leftovers(fs, found, wanted, token):
                fs.delete_dir(info.path) if info.type == FileType.Directory else fs.delete_file(info.path)
                count += 1
    return count


def _leftovers(fs: Any, infos: Iterable[Any], wanted: Container[str], token: str) -> list[Any]:
    """Return what to remove in a folder: everything of this run; of other runs what dead attempts at these outputs
    left.

    If an attempt has ended and left only files beside its output, its run may still be going on, and a name that
    begins like an output may belong to another job: then the files must be old. So must all files where there are no
    locks.
    """
    attempts: dict[str, list[tuple[str | None, str, Any]]] = {}
    for info in infos:
        if match := _HIDDEN.fullmatch(info.base_name):
            attempts.setdefault(match[1], []).append((match[2], match[3], info))
    left = []
    for attempt, found in attempts.items():
        ours = any(name in wanted for _, name, _ in found)
        locks = [Lock(fs, *posixpath.split(info.path)) for kind, _, info in found if kind == "-lock"]
        held = [lock.is_held() for lock in locks] if isinstance(fs, LocalFileSystem) else [None]
        dead = attempt.startswith(token) or (ours and all(one is False for one in held))
        for _, name, info in found:
            old = info.mtime_ns is not None and time.time() - info.mtime_ns / 1e9 > _ABANDONED_S
            begins = any(name[:end] in wanted for end in range(1, len(name)))
            if dead or (True not in held and old and (ours or begins)):
                left.append(info)
    return left


def _by_folder(store: Resolver, paths: Iterable[str]) -> Iterator[tuple[Any, str, dict[str, str]]]:
    """Yield filesystem, folder, and the outputs in it: their names, and how the user wrote them."""
    folders: dict[str, tuple[Any, dict[str, str]]] = {}
    for path in paths:
        fs, place = store.resolve(path)
        folder, name = posixpath.split(place)
        folders.setdefault(folder, (fs, {}))[1][name] = path
    yield from ((fs, folder, wanted) for folder, (fs, wanted) in folders.items())


def _folder(scratch: str | None) -> contextlib.AbstractContextManager[str]:
    """Return a folder for one file, in the run's folder or, without one, in the system's temporary folder."""
    if scratch is None:
        return scratch_folder(tempfile.gettempdir(), SCRATCH)
    return tempfile.TemporaryDirectory(dir=scratch, ignore_cleanup_errors=True)


def _nothing_made(path: str) -> JobFailed:
    return JobFailed(
        f"it ended without an error and made nothing for {path!r}; it must write to the path in its second argument "
        "({output} in a command)"
    )
