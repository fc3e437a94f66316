"""Turn a path or URL into a `pyarrow.fs` filesystem and a path on it; list folders.

Takes what the user wrote; gives filesystem objects, paths with forward slashes, and listings in one order everywhere.
URLs of remote stores are resolved by `urls`, patterns by `glob`. Opens no data files and knows nothing of Parquet.
"""

from __future__ import annotations

import os
import posixpath
import stat
from typing import TYPE_CHECKING, Any, NamedTuple

from pyarrow.fs import FileSelector, FileSystem, FileType, LocalFileSystem

from penstock.errors import BadFile, DatasetNotFound, StoreUnavailable
from penstock.storage.faults import attempt
from penstock.storage.urls import answering, file_url_path, resolve_url, to_arrow_filesystem, url_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def resolve(
    source: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None, filesystem: Any
) -> tuple[FileSystem, str]:
    """Return the filesystem of `source` and the path on it, without a slash at the end.

    A path, `~` included, and a `file://` URL are local and come back absolute. Any other URL goes to fsspec with
    `storage_options`, or to pyarrow if nothing that fsspec needs is installed. With `filesystem` (a pyarrow.fs or
    fsspec object) only the path of a URL is used. Makes no request for the path, which need not exist.

    Raises:
        DatasetNotFound: A `file://` URL names another host, or the scheme is unknown.
        StoreUnavailable, StoreRefused: The library for the scheme connects at once, and fails.
        BadFile: The name is not UTF-8.
        ImportError: Nothing is installed for the scheme; the message has the command that installs it.
    """
    text = os.fspath(source)
    if not isinstance(text, str):
        raise TypeError(f"a source is a path or URL as text; got {source!r}")
    if not is_utf8(text):
        raise BadFile(f"{text} {NOT_UTF8}", path=text)
    if text.lower().startswith("file:/") and not text.lower().startswith("file://"):  # as Hadoop and Spark write it
        text = f"file://{text[len('file:') :]}"
    if filesystem is not None:
        return to_arrow_filesystem(filesystem), _path_on(filesystem, text)
    if "://" not in text:
        return LocalFileSystem(), _local(text)
    if text.lower().startswith("file://"):
        return LocalFileSystem(), _local(file_url_path(text))
    return resolve_url(text, dict(storage_options or {}))


def _path_on(filesystem: Any, text: str) -> str:
    if isinstance(to_arrow_filesystem(filesystem), LocalFileSystem):
        return _local(file_url_path(text) if text.lower().startswith("file://") else text)
    return (text.split("://", 1)[1] if "://" in text else text.replace("\\", "/")).rstrip("/")


def _local(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path)).replace(os.sep, "/")


NOT_UTF8 = "has a name that is not UTF-8, which pyarrow cannot open; rename it"


def is_utf8(name: str) -> bool:
    """Tell whether a name is text: bytes of a local name that are not UTF-8 come as surrogates."""
    return name.isascii() or not any("\ud800" <= character <= "\udfff" for character in name)


class LocalEntry(NamedTuple):
    """A local file or folder; used in place of pyarrow's FileInfo, which cannot hold names that are not UTF-8."""

    path: str
    type: FileType
    size: int | None

    @property
    def base_name(self) -> str:
        """The name without its folder."""
        return posixpath.basename(self.path)


def first_look(fs: FileSystem, path: str, source: Any) -> Any:
    """Return the FileInfo of a path, as the first request to its store; `source` is what the user wrote, for messages.

    Clients of stores may look for a network or credentials for minutes: after a few seconds a warning says so.

    Raises:
        StoreUnavailable: The store does not answer.
        StoreRefused: It denies access, or there are no valid credentials.
    """
    if isinstance(fs, LocalFileSystem):
        return attempt(lambda: fs.get_file_info(path), path)
    with answering(url := os.fspath(source)):
        return attempt(lambda: fs.get_file_info(path), url)


def look(fs: FileSystem, paths: list[str]) -> list[Any]:
    """Return a FileInfo or LocalEntry for each path. A local link to nothing, or to itself, is a file of size 0."""
    if isinstance(fs, LocalFileSystem):
        return [_entry(path) for path in paths]
    return attempt(lambda: list(fs.get_file_info(paths)), url_of(fs, paths[0])) if paths else []


def _entry(path: str) -> LocalEntry:
    try:
        found = os.stat(path)
    except OSError:
        return LocalEntry(path, FileType.File if os.path.islink(path) else FileType.NotFound, 0)
    is_folder = stat.S_ISDIR(found.st_mode)
    return LocalEntry(path, FileType.Directory if is_folder else FileType.File, None if is_folder else found.st_size)


def list_folder(fs: FileSystem, path: str) -> list[Any]:
    """Return the entries of the folder `path`, hidden names included; see `look`. OSError if it cannot be listed."""
    if isinstance(fs, LocalFileSystem):
        return [_entry(posixpath.join(path, name)) for name in attempt(lambda: os.listdir(path), path)]
    return attempt(lambda: list(fs.get_file_info(FileSelector(path))), url_of(fs, path))


def is_hidden(relative: str, *, underscores: bool = False) -> bool:
    """Tell whether a relative path is hidden: a part begins with a dot, or with `_` and is no `_key=value` folder.

    With `underscores` names that begin with `_` count: only Parquet datasets give them a meaning.

    >>> is_hidden("_temporary/0/a.parquet"), is_hidden("_day=1/a.parquet"), is_hidden("a/.b.crc")
    (True, False, True)
    """
    *folders, name = relative.split("/")
    return _is_hidden_name(name, underscores) or any(_is_hidden_name(one, underscores or "=" in one) for one in folders)


def _is_hidden_name(name: str, underscores: bool) -> bool:
    return name.startswith(".") or (name.startswith("_") and not underscores)


def list_files(fs: FileSystem, path: str, *, underscores: bool = False) -> list[tuple[str, int | None]]:
    """Return (relative path, size) of every file below the folder `path`, hidden names left out, in UTF-8 byte order.

    The size is None where the store does not tell. `underscores`: see `is_hidden`. Costs one listing.
    """
    return [
        entry for entry in walk(fs, path, underscores=underscores) if not is_hidden(entry[0], underscores=underscores)
    ]


def walk(fs: FileSystem, path: str, *, underscores: bool = False) -> list[tuple[str, int | None]]:
    """Return (relative path, size) of every file below the folder `path` in UTF-8 byte order.

    Hidden files are included. The files of hidden folders (see `is_hidden`) are included on stores, where one listing
    returns everything; a local hidden folder is not entered and listed by its name with a slash at the end. A link to
    nothing or to itself has size 0, so that it is reported as a bad file and not silently left out.

    Raises:
        DatasetNotFound: there is no such folder.
    """
    try:
        if isinstance(fs, LocalFileSystem):
            found = attempt(lambda: list(_walk_local(path, "", underscores)), path)
        else:
            found = attempt(lambda: list(_walk_store(fs, path)), url_of(fs, path))
    except (FileNotFoundError, NotADirectoryError):
        raise not_found(fs, path) from None
    return sorted(found, key=lambda entry: entry[0].encode("utf-8", "surrogateescape"))


def _walk_local(root: str, prefix: str, underscores: bool) -> Iterator[tuple[str, int | None]]:
    """List without pyarrow, which omits dangling links (a git-annex file not fetched yet) and enters hidden folders."""
    folders = []
    with os.scandir(os.path.join(root, prefix)) as entries:
        for entry in entries:
            size = _file_size(entry)
            if size is None:
                if _is_hidden_name(entry.name, underscores or "=" in entry.name):
                    yield f"{prefix}{entry.name}/", None
                elif not entry.is_symlink() or not leads_back(entry.path, root):
                    folders.append(f"{prefix}{entry.name}/")
            else:
                yield f"{prefix}{entry.name}", size
    for folder in folders:
        yield from _walk_local(root, folder, underscores)


def _file_size(entry: os.DirEntry[str]) -> int | None:
    """Return the bytes of a file, 0 for a link to nothing or to itself; None for a folder."""
    try:
        return None if entry.is_dir() else entry.stat().st_size
    except OSError:
        return 0


def leads_back(link: str, root: str) -> bool:
    """Tell whether a link below `root` points to one of its parent folders, so that following it would never end."""
    target, folder = os.path.realpath(link), link
    while len(folder) > len(root):
        folder = os.path.dirname(folder)
        if os.path.commonpath([target, os.path.realpath(folder)]) == target:
            return True
    return False


def _walk_store(fs: FileSystem, root: str) -> Iterator[tuple[str, int | None]]:
    prefix = root.rstrip("/") + "/" if root else ""
    for info in fs.get_file_info(FileSelector(root, recursive=True)):
        relative = info.path.removeprefix(prefix).removeprefix("/" + prefix)
        # Stores mark folders by empty objects: the root itself, or a name with a slash at the end.
        if info.type == FileType.File and relative and not relative.endswith("/") and relative != root:
            yield relative, info.size


def not_found(fs: FileSystem, path: str) -> DatasetNotFound:
    """Return the error for a path that is not there, with near names from the folder that should hold it."""
    parent, name = posixpath.split(path.rstrip("/"))
    try:
        names = [info.base_name for info in list_folder(fs, parent)]
    except StoreUnavailable:
        raise
    except (OSError, NotImplementedError):
        return DatasetNotFound(f"nothing at {path!r}, and no folder {parent!r} either; check the path")
    import difflib  # late: only errors need it

    near = difflib.get_close_matches(name, names, n=3)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"check the path (in {parent!r})"
    return DatasetNotFound(f"nothing at {path!r}; {hint}")
