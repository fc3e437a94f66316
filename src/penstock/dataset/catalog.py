"""Which files belong to a dataset: the interface `Catalog`, and `FileCatalog` for folders, patterns and lists of files.

A catalog gives one `DataFile` for each file, in the order in which chunks are numbered. What is in the files is the
business of a `Format`. `FileCatalog` only lists; of files whose names do not end like Parquet it reads four bytes.

A list keeps the user's order; inside a folder files are ordered by the UTF-8 bytes of their relative paths. The root of
a source is the folder itself, or the parent folder of files and patterns; if that is a `key=value` folder, the nearest
one above that is not, so that partition values are known however the files were named. A folder that has its own
`_common_metadata` is a dataset by itself, whatever its name.

Of a folder or pattern these files count: names that end in .parquet, .parq or .pq, and other names if the file begins
with Parquet's magic (Hive writes `000000_0`). A README or CSV file is left out. Hidden names never count. A file that
the user names is always taken.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pyarrow.fs import FileSystem, FileType, LocalFileSystem

from penstock.dataset.tables import refuse_above, refuse_listed
from penstock.dataset.write_markers import MARKER, refuse_block, refuse_hidden, refuse_marked, refuse_spark
from penstock.errors import DatasetNotFound, FileChanged, StoreError
from penstock.storage import expand_glob, has_magic, is_hidden, resolve, walk
from penstock.storage.faults import attempt
from penstock.storage.filesystem import first_look, not_found
from penstock.storage.store import Store, store_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


MAGIC = b"PAR1"
_ENDINGS = (".parquet", ".parq", ".pq")
_SIDE_FILES = ("_metadata", "_common_metadata")
LOCAL_THREADS = 4
"""Footers are mostly parsing: two cores read 3,678 of them in 0.5 s with 2 threads, in 0.9 s with 4."""
REMOTE_THREADS = 32
"""A store answers in 10 to 100 ms, however small the request is."""


@dataclass(frozen=True, slots=True)
class Root:
    """The folder that relative paths and metadata files belong to."""

    fs: FileSystem
    path: str
    names: frozenset[str] | None = None
    """Names of the metadata files in it; None if it was not listed (files and patterns)."""
    store: Store = field(init=False, repr=False, compare=False)
    """The store through which its files are read."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "store", store_of(self.fs))


@dataclass(frozen=True, slots=True)
class DataFile:
    """One entry of a catalog: a file, and what the catalog knows about it without opening it."""

    root: Root
    relative: str
    """The path below the root; part of the fingerprint."""
    size: int | None
    """Bytes; None if unknown."""
    named: bool = False
    """The user named this very file, so it is taken whatever its name."""
    part_rows: Sequence[int] | None = None
    """Rows of each part. A file for which they are given is not indexed before it is read; None: unknown."""
    part_bytes: Sequence[int] | None = None
    """Bytes of each part before compression; None: unknown."""
    statistics: Any = None
    """The format's own summary of the file's statistics (Parquet: `FooterSummary`), as its index would give it."""
    constants: Mapping[str, str | None] | None = None
    """Columns that have one value in the whole file, as text (None: null), typed like partition folders. None: those
    of the `key=value` folders in the path."""
    deleted: NDArray[np.int64] | None = None
    """Rows of the file, counted from 0 over all its parts, that do not belong to the dataset: never delivered."""

    @property
    def path(self) -> str:
        """The whole path on the filesystem."""
        return posixpath.join(self.root.path, self.relative)


class Catalog(Protocol):
    """Which files a dataset consists of, and as of when."""

    @property
    def version(self) -> str | None:
        """The version of the table that is listed; None if there are no versions."""

    def entries(self) -> Sequence[DataFile]:
        """Return the files in their order: the same in every process that opens the same version.

        Raises:
            DatasetNotFound: Nothing is there.
            StoreUnavailable, StoreRefused: The store does not answer, or denies access.
        """


class FileCatalog(NamedTuple):
    """The files of a folder, of a pattern, or of a list of folders, files and patterns."""

    sources: Any
    """A path or URL, or several."""
    storage_options: Mapping[str, Any] | None = None
    filesystem: Any = None
    as_root: bool = False
    """Every folder is a dataset by itself, also one called `key=value`."""
    format: str | None = None
    """"parquet": do not look for tables of other formats."""

    @property
    def version(self) -> None:
        """None: folders have no versions."""

    def entries(self) -> list[DataFile]:
        """Return the data files of all sources, in order; a file named twice is listed twice.

        Costs one listing for each folder and one request for each file named. Files that are named one by one are not
        refused as part of another format's table: the readers of such tables list them like this.

        Raises:
            DatasetNotFound: A source is not there, or holds no Parquet file.
            DatasetIncomplete: A source is being written, or its writer died.
            StoreUnavailable, StoreRefused: The store of a source does not answer, or denies access.
            UnsupportedFormat: A folder or pattern is part of a Delta, Iceberg or Hudi table, or holds one.
        """
        sources = self.sources
        if not isinstance(sources, str | os.PathLike | Iterable) or isinstance(sources, bytes):
            raise TypeError(f"a source is a path or URL, or a list of them; got {sources!r}")
        listed = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
        if not listed:
            raise DatasetNotFound(
                "no source given; pass a path or URL of a folder, a file or a pattern, or a list of them"
            )
        finder = _Finder(self)
        files: list[DataFile] = []
        for source in listed:
            found = finder.find(source)
            parquet = _only_parquet(found)
            if not parquet:
                others = ", ".join(repr(file.relative) for file in found[:3]) + (", ..." if len(found) > 3 else "")
                raise DatasetNotFound(
                    f"no Parquet files in {os.fspath(source)!r}; "
                    + (f"it holds {len(found)} other files ({others})" if found else "it is empty (hidden names aside)")
                )
            files += parquet
        return files


class _Finder:
    """Lists the sources of a catalog; files of one folder share a root."""

    def __init__(self, catalog: FileCatalog) -> None:
        self.catalog = catalog
        self.roots: dict[tuple[int, str], Root] = {}
        self.local = LocalFileSystem()

    def find(self, source: str | os.PathLike[str]) -> list[DataFile]:
        catalog = self.catalog
        fs, path = resolve(source, storage_options=catalog.storage_options, filesystem=catalog.filesystem)
        if isinstance(fs, LocalFileSystem):
            fs = self.local  # roots are told apart by their filesystem object
        info = first_look(fs, path, source)
        if info.type == FileType.Directory:
            return self.find_in_folder(fs, path)
        if info.type == FileType.File:
            root = self.root(fs, root_folder(posixpath.dirname(info.path)))
            return [DataFile(root, info.path.removeprefix(root.path).lstrip("/"), info.size, named=True)]
        if has_magic(path):
            return self.find_matches(fs, path)
        refuse_hidden(fs, path)
        raise not_found(fs, path)

    def find_in_folder(self, fs: FileSystem, path: str) -> list[DataFile]:
        entries = walk(fs, path)
        visible = [entry for entry in entries if not is_hidden(entry[0])]
        if not visible:
            refuse_hidden(fs, path)
        names = [name for name, _ in entries]
        side = frozenset(name for name in _SIDE_FILES if name in names)
        top = path if self.catalog.as_root or "_common_metadata" in side else root_folder(path)
        if top != path or MARKER in names:
            refuse_marked(fs, top)
        if self.catalog.format is None and (top != path or posixpath.basename(top) == "data"):
            refuse_above(fs, top)
        if len(visible) + len(side) < len(names) or not all(name.lower().endswith(_ENDINGS) for name, _ in visible):
            self.refuse_others(fs, path, names)
        root = Root(fs, path, side) if top == path else self.root(fs, top)
        prefix = path.removeprefix(top).lstrip("/")
        return [DataFile(root, posixpath.join(prefix, name), size) for name, size in visible]

    def refuse_others(self, fs: FileSystem, path: str, names: list[str]) -> None:
        """Refuse a folder with files of another table format, or of a write that has not ended."""
        if self.catalog.format is None:
            refuse_listed(fs, path, names)
        refuse_spark(fs, path, names)
        refuse_block(fs, path, names)

    def find_matches(self, fs: FileSystem, pattern: str) -> list[DataFile]:
        base, infos = expand_glob(fs, pattern)
        if not infos:
            raise DatasetNotFound(f"nothing matches {pattern!r}; check the pattern, or the folder {base!r}")
        root = self.root(fs, root_folder(base))
        refuse_marked(fs, root.path)
        if self.catalog.format is None:
            folders = [posixpath.dirname(i.path) if i.type == FileType.File else i.path for i in infos]
            above = dict.fromkeys([root.path, *map(root_folder, folders)])
            with ThreadPoolExecutor(threads_for(fs)) as pool:  # a pattern may match files in thousands of folders
                list(pool.map(partial(refuse_above, fs), above))
        files: list[DataFile] = []
        for info in infos:
            relative = info.path.removeprefix(root.path).lstrip("/")
            if info.type == FileType.File:
                files.append(DataFile(root, relative, info.size))
                continue
            entries = walk(fs, info.path)
            if self.catalog.format is None:
                refuse_listed(fs, info.path, (name for name, _ in entries))
            files += [DataFile(root, f"{relative}/{name}", size) for name, size in entries if not is_hidden(name)]
        return files

    def root(self, fs: FileSystem, path: str) -> Root:
        return self.roots.setdefault((id(fs), path), Root(fs, path))


def root_folder(path: str) -> str:
    """Return the nearest folder at or above `path` that is not named `key=value`.

    >>> root_folder("/data/year=2024/month=1"), root_folder("/data")
    ('/data', '/data')
    """
    while "=" in posixpath.basename(path)[1:]:
        path = posixpath.dirname(path)
    return path


def _only_parquet(files: Sequence[DataFile]) -> list[DataFile]:
    """Leave out files that neither have a name of Parquet nor begin like it; reads only unclear ones, in threads."""
    unclear = {id(file): file for file in files if not (file.named or file.relative.lower().endswith(_ENDINGS))}
    if not unclear:
        return list(files)
    with ThreadPoolExecutor(threads_for(files[0].root.fs)) as pool:
        begins = dict(zip(unclear, pool.map(_begins_like_parquet, unclear.values()), strict=True))
    return [file for file in files if begins.get(id(file), True)]


def _begins_like_parquet(file: DataFile) -> bool:
    if file.size is not None and file.size < len(MAGIC):
        return False
    try:
        if isinstance(file.root.fs, LocalFileSystem):  # where names need not be UTF-8
            with attempt(lambda: open(file.path, "rb"), file.path) as stream:
                return stream.read(len(MAGIC)) == MAGIC
        return bytes(file.root.store.read_ranges(file.path, [(0, len(MAGIC))])[0]) == MAGIC
    except FileChanged:  # shorter than that
        return False
    except StoreError:
        raise
    except OSError:
        return True  # unreadable: reported as a bad file later, not silently left out


def threads_for(fs: FileSystem) -> int:
    """Return the number of threads that send requests to this filesystem."""
    return min(LOCAL_THREADS, os.cpu_count() or 1) if isinstance(fs, LocalFileSystem) else REMOTE_THREADS
