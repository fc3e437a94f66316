"""One file in, one file out: make an input available locally, and publish an output whole or not at all.

Used by `task` around the user's function, in whatever process it runs. Cases:

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
import os
import posixpath
import re
import shutil
import tempfile
import time
from typing import TYPE_CHECKING, Any

from pyarrow.fs import FileSelector, FileType, LocalFileSystem

from penstock.errors import JobFailed
from penstock.storage.locks import Lock, mutex, scratch_folder
from penstock.storage.publish import FILESYSTEM_ERRORS, publish_file, publish_folder, remove, sync_file

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

    from penstock.jobs.pairs import Resolver

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
    """Return a new hidden name in the folder of `path`, with the same extension; `token` is that of the run."""
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
    """Return those of the outputs that exist; one listing for each folder."""
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
        match = _HIDDEN.fullmatch(info.base_name)
        if match is not None:
            attempts.setdefault(match[1], []).append((match[2], match[3], info))
    left = []
    for attempt, found in attempts.items():
        ours = any(name in wanted for _, name, _ in found)
        locks = [Lock(fs, *posixpath.split(info.path)) for kind, _, info in found if kind == "-lock"]
        held = [lock.is_held() for lock in locks] if isinstance(fs, LocalFileSystem) else [None]
        dead = attempt.startswith(token) or (ours and all(one is False for one in held))
        alive = True in held
        for _, name, info in found:
            old = info.mtime_ns is not None and time.time() - info.mtime_ns / 1e9 > _ABANDONED_S
            begins = any(name[:end] in wanted for end in range(1, len(name)))
            if dead or (not alive and old and (ours or begins)):
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
    """Return a folder for one file, in that of the run, or, without one, in the system's temporary folder."""
    if scratch is None:
        return scratch_folder(tempfile.gettempdir(), SCRATCH)
    return tempfile.TemporaryDirectory(dir=scratch, ignore_cleanup_errors=True)


def _nothing_made(path: str) -> JobFailed:
    return JobFailed(
        f"it ended without an error and made nothing for {path!r}; it must write to the path in its second argument "
        "({output} in a command)"
    )
