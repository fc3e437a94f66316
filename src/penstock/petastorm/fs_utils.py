"""URLs of datasets to filesystems and paths, under Petastorm's names.

Everything is found by `penstock.storage`; here its filesystems are returned as fsspec objects, whose methods (`open`,
`ls`, `exists`, `walk`, ...) are those that code written for Petastorm calls. Opens and lists nothing itself.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import SplitResult, urlsplit

from pyarrow.fs import FSSpecHandler, LocalFileSystem, PyFileSystem

from penstock.storage import resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = [
    "FilesystemResolver",
    "get_dataset_path",
    "get_filesystem_and_path_or_paths",
    "normalize_dataset_url_or_urls",
    "normalize_dir_url",
]


class FilesystemResolver:
    """The filesystem of one dataset URL, and the path on it.

    `hdfs_driver`, `hadoop_configuration`, `connector` and `user` are Petastorm's and without effect: one driver is
    left, and it reads Hadoop's configuration itself.

    Raises:
        ValueError: The URL has no scheme, or no host where its scheme needs one.
        ImportError: Nothing is installed for the scheme; names the line that installs it.
    """

    def __init__(  # noqa: PLR0913 - Petastorm's signature
        self,
        dataset_url: str,
        hadoop_configuration: Any = None,  # noqa: ARG002
        connector: Any = None,  # noqa: ARG002
        hdfs_driver: str = "libhdfs3",  # noqa: ARG002
        user: str | None = None,  # noqa: ARG002
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._url = checked_url(dataset_url)
        self._parsed = urlsplit(self._url)
        self._storage_options = dict(storage_options or {})
        self._filesystem = _open(self._url, self._storage_options)

    def parsed_dataset_url(self) -> SplitResult:
        """Return the URL in parts."""
        return self._parsed

    def get_dataset_path(self) -> str:
        """Return the path on the filesystem."""
        return get_dataset_path(self._parsed)

    def filesystem(self) -> Any:
        """Return the filesystem, as fsspec has it; `penstock.open(filesystem=...)` takes it too."""
        return self._filesystem

    def filesystem_factory(self) -> Callable[[], Any]:
        """Return a function without arguments that opens the filesystem again, to be pickled to other processes."""
        return partial(_open, self._url, self._storage_options)

    def __getstate__(self) -> NoReturn:
        raise RuntimeError("a FilesystemResolver is not pickled: it may hold a connection; send filesystem_factory()")


def get_dataset_path(parsed_url: Any) -> str:
    """Return the path of a parsed URL: the path itself for file and hdfs, `bucket/path` for stores."""
    return str(parsed_url.path) if parsed_url.scheme in ("file", "hdfs") else f"{parsed_url.netloc}{parsed_url.path}"


def get_filesystem_and_path_or_paths(
    url_or_urls: str | Sequence[str],
    hdfs_driver: str = "libhdfs3",  # noqa: ARG001
    storage_options: Mapping[str, Any] | None = None,
    filesystem: Any = None,
) -> tuple[Any, Any]:
    """Return the filesystem and the path of a URL, or the paths of a list of URLs, which must all be in one place.

    `filesystem`, if given, is returned unchanged.

    Raises:
        ValueError: URLs without a scheme, of different schemes or hosts, or none at all.
    """
    urls = normalize_dataset_url_or_urls(url_or_urls)
    listed = [checked_url(url) for url in ([urls] if isinstance(urls, str) else urls)]
    parsed = [urlsplit(url) for url in listed]
    places = {(one.scheme, one.netloc) for one in parsed}
    if len(places) > 1:
        shown = ", ".join(sorted(f"{scheme}://{host}" for scheme, host in places))
        raise ValueError(f"the URLs of one dataset must have the same scheme and host; got {shown}")
    found = filesystem if filesystem is not None else _open(listed[0], dict(storage_options or {}))
    paths = [get_dataset_path(one) for one in parsed]
    return found, paths[0] if isinstance(urls, str) else paths


def normalize_dataset_url_or_urls(dataset_url_or_urls: Any) -> str | list[str]:
    """Return a URL, or the URLs of a list, without slashes at the end.

    Raises:
        ValueError: An empty list, or something that is not text.
    """
    if isinstance(dataset_url_or_urls, list | tuple):
        if not dataset_url_or_urls:
            raise ValueError("the list of dataset URLs is empty; give at least one")
        return [normalize_dir_url(url) for url in dataset_url_or_urls]
    return normalize_dir_url(dataset_url_or_urls)


def normalize_dir_url(dataset_url: str | os.PathLike[str]) -> str:
    """Return the URL of a folder as `penstock.open` takes it: no slashes at its end, `file:/x` (Spark's) as `file:///x`.

    Raises:
        ValueError: It is neither text nor a path.

    >>> normalize_dir_url("s3://bucket/data/"), normalize_dir_url("file:/data"), normalize_dir_url("file:///")
    ('s3://bucket/data', 'file:///data', 'file:///')
    """
    if isinstance(dataset_url, os.PathLike):
        dataset_url = os.fspath(dataset_url)
    if not isinstance(dataset_url, str):
        raise ValueError(  # noqa: TRY004 - what Petastorm raises
            f"a dataset URL is text such as 'file:///data/set' or 's3://bucket/set'; got {dataset_url!r}"
        )
    if dataset_url.startswith("file:") and not dataset_url.startswith("file://"):
        dataset_url = "file://" + dataset_url[len("file:") :]
    stripped = dataset_url.rstrip("/")
    return dataset_url if stripped.endswith(":") else stripped


def checked_url(url: str) -> str:
    """Return a URL as `normalize_dir_url` does.

    Raises:
        ValueError: It has no scheme, or no host where its scheme needs one.
    """
    url = normalize_dir_url(url)
    parsed = urlsplit(url)
    if not parsed.scheme or len(parsed.scheme) == 1:  # one letter is a drive
        raise ValueError(f"{url!r} has no scheme; instead of a scheme-less path give file:///path/of/the/folder")
    if not parsed.netloc and parsed.scheme not in ("file", "hdfs", "memory"):
        raise ValueError(f"{url!r} names no host or bucket; wanted {parsed.scheme}://bucket/path")
    return url


def _open(url: str, storage_options: Mapping[str, Any]) -> Any:
    """Return the fsspec filesystem of a URL; those that only pyarrow has are wrapped."""
    found, _ = resolve(url, storage_options=storage_options, filesystem=None)
    if isinstance(found, PyFileSystem) and isinstance(found.handler, FSSpecHandler):
        return found.handler.fs
    if isinstance(found, LocalFileSystem):
        from fsspec.implementations.local import LocalFileSystem as LocalFsspec

        return LocalFsspec()
    from fsspec.implementations.arrow import ArrowFSWrapper

    return ArrowFSWrapper(found)
