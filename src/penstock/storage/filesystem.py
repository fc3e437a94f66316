"""Turn a path or URL into a `pyarrow.fs` filesystem with a path on it, and list what lies below a folder or matches a
pattern.

Takes what the user wrote; gives filesystem objects, paths with forward slashes, and listings in one order everywhere.
It opens no data files, keeps no connection pool of its own and knows nothing of Parquet.
"""

from __future__ import annotations

import fnmatch
import os
import posixpath
import re
import stat
import threading
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from pyarrow.fs import FileSelector, FileSystem, FileType, LocalFileSystem

from penstock.errors import BadFile, DatasetNotFound, PenstockError, PenstockWarning, StoreUnavailable
from penstock.storage.faults import attempt, fault_of, store_error

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    FileSystem = Any

# Extra of ours that brings the library for a URL scheme.
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "abfs": "azure", "abfss": "azure", "az": "azure"}
_EXTRAS |= {"hdfs": "hdfs", "webhdfs": "hdfs"}
SAME_STORE = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "abfss"}
"""Schemes that are other names of one store."""
_SLOW_S = 5.0
"""How long a store may take for its first answer before a warning says that it is waited for."""
_GCS_PROBE_S = 5
"""How long pyarrow's client for Google's store tries to get in at first; its own limit is 15 minutes."""
_DRIVE = re.compile(r"/*([A-Za-z]:)(?=[/\\]|$)")


def resolve(
    source: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None, filesystem: Any
) -> tuple[FileSystem, str]:
    """Return the filesystem of `source` and the path on it, without a slash at the end.

    A path, `~` included, and a `file://` URL are local and come back absolute. Any other URL goes to fsspec with
    `storage_options`, or to pyarrow where fsspec has nothing installed for it. With `filesystem` (a pyarrow.fs or
    fsspec object) only the path of a URL is used. Looks nothing up: the path need not exist.

    Raises:
        DatasetNotFound: a `file://` URL that names another host, or a scheme that nothing knows.
        StoreUnavailable, StoreRefused: the library for the scheme connects at once, and fails.
        BadFile: a name that is not UTF-8.
        ImportError: nothing is installed for the scheme; names the line that installs it.
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
        return LocalFileSystem(), _local(_file_url_path(text))
    options = dict(storage_options or {})
    scheme = urlsplit(text).scheme
    with _answering(text):
        try:
            import fsspec

            fsspec.get_filesystem_class(scheme)
        except (ImportError, ValueError) as exc:  # ValueError: fsspec knows no such scheme
            return _remote_by_arrow(text, options, scheme, exc)
        found, path = fsspec.core.url_to_fs(text, **options)
        return to_arrow_filesystem(found), str(path).rstrip("/")


def to_arrow_filesystem(filesystem: Any) -> FileSystem:
    """Return `filesystem` as a pyarrow.fs object; fsspec's are wrapped.

    Raises:
        TypeError: it is neither.
    """
    if isinstance(filesystem, FileSystem):
        return filesystem
    if not (hasattr(filesystem, "open") and hasattr(filesystem, "protocol")):
        kind = type(filesystem).__name__
        raise TypeError(f"filesystem= takes a pyarrow.fs.FileSystem or an fsspec filesystem; got {kind}")
    from pyarrow.fs import FSSpecHandler, PyFileSystem

    protocol = filesystem.protocol
    if protocol == "file" or (isinstance(protocol, tuple) and "file" in protocol):
        return LocalFileSystem()
    return PyFileSystem(FSSpecHandler(filesystem))


def _path_on(filesystem: Any, text: str) -> str:
    if isinstance(to_arrow_filesystem(filesystem), LocalFileSystem):
        return _local(_file_url_path(text) if text.lower().startswith("file://") else text)
    path = text.split("://", 1)[1] if "://" in text else text
    return path.replace("\\", "/").rstrip("/") if "://" not in text else path.rstrip("/")


def _local(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path)).replace(os.sep, "/")


def _file_url_path(url: str) -> str:
    r"""Return the path of a `file://` URL: %-escapes decoded, `/C:/x` as `C:/x`, a host only if it is this one.

    >>> _file_url_path("file:///data/a%20b"), _file_url_path("file:///C:/x")
    ('/data/a b', 'C:/x')
    """
    rest = url[len("file://") :]
    if _DRIVE.match(rest):  # file://C:/x is wrong but common
        return unquote(rest.lstrip("/"))
    host, slash, path = rest.partition("/")
    if host and host.lower() != "localhost":
        if os.name == "nt":
            return f"//{host}/{unquote(path)}"
        raise DatasetNotFound(
            f"{url} names the host {host!r}; a local file URL has three slashes: file:///{host}/{path}"
        )
    return unquote(slash + path) or "/"


def _remote_by_arrow(url: str, options: dict[str, Any], scheme: str, cause: Exception) -> tuple[FileSystem, str]:
    tried = ""
    if not options:  # they are fsspec's names
        try:
            if scheme in ("gs", "gcs") and "retry_limit_seconds=" not in url:
                joint = "&" if "?" in url else "?"
                probe, path = FileSystem.from_uri(f"{url}{joint}retry_limit_seconds={_GCS_PROBE_S}")
                probe.get_file_info(path)
            found, path = FileSystem.from_uri(url)
        except OSError as exc:
            tried = f" (pyarrow, which has a client of its own, did not get in: {exc})"
        except (ValueError, NotImplementedError, ImportError):
            pass
        else:
            return found, str(path).rstrip("/")
    if isinstance(cause, ValueError):
        raise DatasetNotFound(f"cannot open {url}: {cause}; pass filesystem= for a store that fsspec does not know")
    extra = _EXTRAS.get(scheme)
    line = f"pip install 'penstock[{extra}]'" if extra else f"install what fsspec asks for: {cause}"
    raise ImportError(f"{scheme}:// needs a library that is not installed: {line}{tried}") from cause


_SCHEMES = {"s3": "s3", "gcs": "gs", "abfs": "abfss", "hdfs": "hdfs"}
"""Type names of pyarrow's filesystems, and the schemes of their URLs."""


def url_of(fs: FileSystem, path: str) -> str:
    """Return the URL of a path, for messages; the path itself on local disks and filesystems without a known scheme."""
    behind: Any = getattr(getattr(fs, "handler", None), "fs", None)
    if hasattr(behind, "unstrip_protocol"):
        return str(behind.unstrip_protocol(path))
    return f"{_SCHEMES[fs.type_name]}://{path}" if fs.type_name in _SCHEMES else path


def first_look(fs: FileSystem, path: str, source: Any) -> Any:
    """Return the FileInfo of a path, as the first request to its store; `source` is what the user wrote, for messages.

    Clients of stores may look for a network or credentials for minutes: after a few seconds a warning says so.

    Raises:
        StoreUnavailable: the store does not answer.
        StoreRefused: it denies access, or there are no valid credentials.
    """
    if isinstance(fs, LocalFileSystem):
        return attempt(lambda: fs.get_file_info(path), path)

    def ask() -> Any:
        info = fs.get_file_info(path)
        behind: Any = getattr(getattr(fs, "handler", None), "fs", None)
        if info.type == FileType.NotFound and hasattr(behind, "info"):
            try:
                behind.info(path)
            except FileNotFoundError as error:  # of which pyarrow keeps nothing
                if fault_of(error) != "gone":
                    raise
        return info

    with _answering(os.fspath(source)):
        return attempt(ask, os.fspath(source))


@contextmanager
def _answering(url: str) -> Iterator[None]:
    text = (
        f"{url} has not answered for {_SLOW_S:g} s, still waiting: without a network or credentials the library that "
        "asks it may try for minutes"
    )
    timer = threading.Timer(_SLOW_S, lambda: warnings.warn(text, PenstockWarning, stacklevel=1))
    timer.daemon = True
    timer.start()
    try:
        yield
    except (PenstockError, ImportError, TypeError):  # TypeError: storage_options that the library does not have
        raise
    except Exception as exc:  # every library has errors of its own
        known = store_error(exc, url)
        if known is not None:
            raise known from exc
        raise StoreUnavailable(
            f"{url} cannot be reached ({type(exc).__name__}: {exc}); check the network, the name, and the credentials "
            "(storage_options=, or where the library of the store looks for them)",
            url=url,
            attempts=1,
        ) from exc
    finally:
        timer.cancel()


NOT_UTF8 = "has a name that is not UTF-8, which pyarrow cannot open; rename it"


def is_utf8(name: str) -> bool:
    """Tell whether a name is text: bytes of a local name that are not UTF-8 come as surrogates."""
    return name.isascii() or not any("\ud800" <= character <= "\udfff" for character in name)


class LocalEntry(NamedTuple):
    """A local file or folder, as much of pyarrow's FileInfo as is used, which cannot hold names that are not UTF-8."""

    path: str
    type: FileType
    size: int | None

    @property
    def base_name(self) -> str:
        """The name without its folder."""
        return posixpath.basename(self.path)


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
    """Return what lies in the folder `path`, hidden names included; see `look`. OSError where it cannot be listed."""
    if isinstance(fs, LocalFileSystem):
        return [_entry(posixpath.join(path, name)) for name in attempt(lambda: os.listdir(path), path)]
    return attempt(lambda: list(fs.get_file_info(FileSelector(path))), url_of(fs, path))


def is_hidden(relative: str, *, underscores: bool = False) -> bool:
    """Tell whether a relative path is skipped: a part begins with a dot, or with `_` and is no `_key=value` folder.

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

    Hidden files are included. Hidden folders (see `is_hidden`) are entered on stores, where one listing gives all;
    local ones come as their name with a slash at the end. A link to nothing or to itself has size 0, so
    that it is met as a bad file and does not vanish.

    Raises:
        DatasetNotFound: there is no such folder.
    """

    def listed() -> list[tuple[str, int | None]]:
        return list(_walk_local(path, "", underscores) if isinstance(fs, LocalFileSystem) else _walk_store(fs, path))

    try:
        found = attempt(listed, url_of(fs, path))
    except (FileNotFoundError, NotADirectoryError):
        raise not_found(fs, path) from None
    return sorted(found, key=lambda entry: entry[0].encode("utf-8", "surrogateescape"))


def _walk_local(root: str, prefix: str, underscores: bool) -> Iterator[tuple[str, int | None]]:
    """List by hand: pyarrow hides dangling links (a git-annex file that was not fetched) and enters hidden folders."""
    folders = []
    with os.scandir(os.path.join(root, prefix)) as entries:
        for entry in entries:
            if _is_folder(entry):
                if _is_hidden_name(entry.name, underscores or "=" in entry.name):
                    yield f"{prefix}{entry.name}/", None
                elif not entry.is_symlink() or not leads_back(entry.path, root):
                    folders.append(f"{prefix}{entry.name}/")
            else:
                yield f"{prefix}{entry.name}", _size(entry)
    for folder in folders:
        yield from _walk_local(root, folder, underscores)


def leads_back(link: str, root: str) -> bool:
    """Tell whether a link below `root` leads to a folder on the way to it, or above one: following it never ends."""
    target, folder = os.path.realpath(link), link
    while len(folder) > len(root):
        folder = os.path.dirname(folder)
        if os.path.commonpath([target, os.path.realpath(folder)]) == target:
            return True
    return False


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat().st_size
    except OSError:
        return 0


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


_MAGIC = re.compile(r"[*?[]")


def has_magic(path: str) -> bool:
    """Tell whether `path` holds `*`, `?` or `[`."""
    return _MAGIC.search(path) is not None


def expand_glob(fs: FileSystem, pattern: str, *, underscores: bool = False) -> tuple[str, list[Any]]:
    """Return the folder above the first wildcard and the matches below it, as FileInfo in UTF-8 byte order.

    `*`, `?` and `[...]` stay within one name, `**` stands for any number of folders. Names that begin with a dot or
    an underscore match only where the pattern does too (`_key=value` folders always); with `underscores` only a dot
    hides a name. No match gives an empty list.
    """
    parts = pattern.split("/")
    first = next(index for index, part in enumerate(parts) if has_magic(part))
    base = "/".join(parts[:first]) or ("/" if pattern.startswith("/") else "")
    found = {info.path: info for info in _match(fs, base, parts[first:], base, underscores)}
    return base, [found[path] for path in sorted(found, key=lambda path: path.encode("utf-8", "surrogateescape"))]


def _match(fs: FileSystem, folder: str, parts: list[str], base: str, underscores: bool) -> Iterator[Any]:
    """Yield what matches `parts` below `folder`, which is `base` or below; one listing for each folder entered."""
    part, rest = parts[0], parts[1:]
    if not has_magic(part):
        [info] = look(fs, [posixpath.join(folder, part)])
        if info.type != FileType.NotFound:
            yield from [info] if not rest else _deeper(fs, info, rest, base, underscores)
        return
    infos = _list(fs, folder)
    if part == "**":
        if rest:
            yield from _match(fs, folder, rest, base, underscores)
        else:
            yield from (info for info in infos if info.type == FileType.File and _matches(info, "*", underscores))
    for info in infos:
        if part == "**" and info.type == FileType.Directory and _matches(info, "*", underscores):
            if not (isinstance(fs, LocalFileSystem) and os.path.islink(info.path) and leads_back(info.path, base)):
                yield from _match(fs, info.path, parts, base, underscores)
        elif part != "**" and _matches(info, part, underscores):
            yield from [info] if not rest else _deeper(fs, info, rest, base, underscores)


def _list(fs: FileSystem, folder: str) -> list[Any]:
    try:
        return list_folder(fs, folder)
    except FileNotFoundError:
        return []
    except OSError:  # a file where the pattern has a folder
        if look(fs, [folder])[0].type == FileType.File:
            return []
        raise


def _deeper(fs: FileSystem, info: Any, rest: list[str], base: str, underscores: bool) -> Iterator[Any]:
    if info.type == FileType.Directory:
        yield from _match(fs, info.path, rest, base, underscores)


def _matches(info: Any, pattern: str, underscores: bool) -> bool:
    name = info.base_name
    hidden = name.startswith(".") or (name.startswith("_") and "=" not in name and not underscores)
    return fnmatch.fnmatchcase(name, pattern) and (not hidden or pattern[0] in "._")
