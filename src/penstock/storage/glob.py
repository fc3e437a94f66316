"""Patterns of paths: `*`, `?` and `[...]` within a name, `**` for any number of folders.

`expand_glob` lists the folders that a pattern needs, on any filesystem, in the order of `walk`.
"""

from __future__ import annotations

import fnmatch
import os
import posixpath
import re
from typing import TYPE_CHECKING, Any

from pyarrow.fs import FileSystem, FileType, LocalFileSystem

from penstock.storage.filesystem import leads_back, list_folder, look

if TYPE_CHECKING:
    from collections.abc import Iterator

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
