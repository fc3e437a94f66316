"""One file in, one file out: bring an input near, and make an output appear whole or not at all.

Used by `task` around the user's function, in whatever process that runs. Cases:

- a local output is made under a hidden name in its own folder, synced to disk and renamed;
- an output on a store is made in a local scratch folder, uploaded under a hidden name beside the target, compared by
  size, and moved (most stores: copied on the server);
- an input on a store is downloaded to the scratch folder first;
- an error: what was made under the hidden name is removed;
- a killed process: the hidden file stays until a later run that has the same output ends (`sweep`).
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import shutil
import tempfile
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow.fs import FileSelector, FileType, LocalFileSystem

from penstock.errors import JobFailed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.jobs.pairs import Store

PREFIX = ".penstock-"
"""Begins the hidden names; then 12 hex digits, a dot and the name itself, so that programs see its ending."""
_COPY_BYTES = 4 << 20
_CANNOT = (OSError, NotImplementedError, pa.ArrowException)


def hidden_name(path: str) -> str:
    """Return a new hidden name in the folder of `path`, with the same ending."""
    folder, name = posixpath.split(path)
    return posixpath.join(folder, f"{PREFIX}{os.urandom(6).hex()}.{name}")


def exists(store: Store, path: str) -> bool:
    """Tell whether an output is there."""
    fs, place = store.resolve(path)
    return bool(fs.get_file_info(place).type != FileType.NotFound)


@contextlib.contextmanager
def near(store: Store, path: str, scratch: str | None) -> Iterator[str]:
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
def committed(store: Store, path: str, scratch: str | None) -> Iterator[str]:
    """Give a local path to make an output at; when the block ends well it becomes the output, else it is removed."""
    fs, place = store.resolve(path)
    if isinstance(fs, LocalFileSystem):
        os.makedirs(os.path.dirname(place), exist_ok=True)
        made = hidden_name(place)
        try:
            yield made
            _check_made(made, path)
            _sync(made)
            _replace(made, place)
        finally:
            _remove(made)
        return
    with _folder(scratch) as folder:
        made = os.path.join(folder, posixpath.basename(place))
        yield made
        _check_made(made, path)
        if os.path.isdir(made):
            raise JobFailed(f"a folder was made for {path!r}; on a store an output is one file")
        _upload(fs, made, place)


@contextlib.contextmanager
def committed_url(store: Store, path: str) -> Iterator[str]:
    """As `committed`, but give the hidden name as the user writes it, on the store itself: the function uploads."""
    fs, place = store.resolve(path)
    made = hidden_name(path)
    made_place = store.resolve(made)[1]
    try:
        yield made
        if fs.get_file_info(made_place).type == FileType.NotFound:
            raise _nothing_made(path)
        _move(fs, made_place, place)
    except BaseException:
        with contextlib.suppress(*_CANNOT):
            fs.delete_file(made_place)
        raise


def is_local(store: Store, path: str) -> bool:
    """Tell whether a name leads to a local file."""
    return isinstance(store.resolve(path)[0], LocalFileSystem)


def there(store: Store, paths: Iterable[str]) -> set[str]:
    """Return those of the outputs that exist; one listing for each folder."""
    found: set[str] = set()
    for fs, folder, wanted in _by_folder(store, paths):
        listed = fs.get_file_info(FileSelector(folder, allow_not_found=True))
        found |= {wanted[info.base_name] for info in listed if info.base_name in wanted}
    return found


def sweep(store: Store, paths: Iterable[str]) -> int:
    """Remove what killed workers left of these outputs, from this run or an earlier one; return how many."""
    count = 0
    for fs, folder, wanted in _by_folder(store, paths):
        with contextlib.suppress(*_CANNOT):
            for info in fs.get_file_info(FileSelector(folder, allow_not_found=True)):
                if _owner(info.base_name) in wanted:
                    fs.delete_dir(info.path) if info.type == FileType.Directory else fs.delete_file(info.path)
                    count += 1
    return count


def _owner(name: str) -> str | None:
    """Return the output that a hidden name belongs to; None for other names."""
    token, dot, owner = name.removeprefix(PREFIX).partition(".")
    return owner if name.startswith(PREFIX) and dot and len(token) == 12 else None


def _by_folder(store: Store, paths: Iterable[str]) -> Iterator[tuple[Any, str, dict[str, str]]]:
    """Yield filesystem, folder, and the outputs in it: their names, and how the user wrote them."""
    folders: dict[str, tuple[Any, dict[str, str]]] = {}
    for path in paths:
        fs, place = store.resolve(path)
        folder, name = posixpath.split(place)
        folders.setdefault(folder, (fs, {}))[1][name] = path
    yield from ((fs, folder, wanted) for folder, (fs, wanted) in folders.items())


@contextlib.contextmanager
def _folder(scratch: str | None) -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="penstock-", dir=scratch)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _check_made(made: str, path: str) -> None:
    if not os.path.exists(made):
        raise _nothing_made(path)


def _nothing_made(path: str) -> JobFailed:
    return JobFailed(
        f"it ended without an error and made nothing for {path!r}; it must write to the path that it is given as its "
        "second argument ({output} in a command)"
    )


def _sync(made: str) -> None:
    """Bring bytes to disk before the name: else a power cut could leave an empty file under the right name."""
    files = [os.path.join(folder, name) for folder, _, names in os.walk(made) for name in names] or [made]
    for path in files:
        if os.path.isfile(path):
            with open(path, "rb+") as file:
                os.fsync(file.fileno())


def _replace(made: str, place: str) -> None:
    folders = os.path.isdir(made) or (os.path.isdir(place) and not os.path.islink(place))
    if not folders or not os.path.lexists(place):
        os.replace(made, place)
        return
    old = hidden_name(place)  # a folder is not replaced in one step: the old one steps aside
    os.rename(place, old)
    try:
        os.replace(made, place)
    except BaseException:
        os.rename(old, place)
        raise
    _remove(old)


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)


def _upload(fs: Any, local: str, place: str) -> None:
    made = hidden_name(place)
    fs.create_dir(posixpath.dirname(place), recursive=True)
    try:
        with open(local, "rb") as source, fs.open_output_stream(made) as sink:
            shutil.copyfileobj(source, sink, _COPY_BYTES)
        size = fs.get_file_info(made).size
        if size is not None and size != os.path.getsize(local):
            raise JobFailed(f"{size} bytes arrived at {place!r} where {os.path.getsize(local)} were sent")
        _move(fs, made, place)
    except BaseException:
        # Closing a stream after an error makes an object of what has come so far: it must not stay.
        with contextlib.suppress(*_CANNOT):
            fs.delete_file(made)
        raise


def _move(fs: Any, made: str, place: str) -> None:
    try:
        fs.move(made, place)
    except _CANNOT:
        if fs.get_file_info(place).type != FileType.File:
            raise
        fs.delete_file(place)  # some stores (HDFS) do not move onto a file
        fs.move(made, place)
