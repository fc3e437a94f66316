"""The folders of converters: what Spark writes to, what readers open, and what may be deleted again.

A folder that a converter has made contains a marker that lists its files. Nothing else is ever deleted: a folder
without the marker is kept, and so is a file that the marker does not list. Knows URLs and filesystems; no Spark.
"""

from __future__ import annotations

import os
import posixpath
import time
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from pyarrow.fs import FileSelector, FileSystem, FileType, LocalFileSystem

from penstock.dataset.write_markers import read_json
from penstock.errors import PenstockWarning
from penstock.petastorm.fs_utils import checked_url, normalize_dir_url
from penstock.storage import resolve
from penstock.storage.publish import put_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


MARKER = "_penstock_converter.json"
"""The file that lists which files of a folder a converter has written; readers and Spark skip names with `_`."""
_MADE_BY = "penstock.petastorm.spark"
_DATABRICKS = "DATABRICKS_RUNTIME_VERSION"
_MOUNTS = ("/dbfs", "/Volumes")
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.05, 2.0


@dataclass(frozen=True, slots=True)
class ConverterFolder:
    """A folder, with its names for Spark and for readers."""

    spark_url: str
    """For Spark: not escaped, as Hadoop expects."""
    url: str
    """For readers."""
    fs: FileSystem
    path: str
    """The folder on `fs`."""

    def below(self, name: str) -> ConverterFolder:
        """Return a folder inside."""
        return ConverterFolder(f"{self.spark_url}/{name}", f"{self.url}/{quote(name)}", self.fs, f"{self.path}/{name}")

    def url_of(self, relative: str) -> str:
        """Return the URL of a file inside."""
        local = isinstance(self.fs, LocalFileSystem)
        return f"{self.url}/{quote(relative) if local else relative}"


def place_of(url: str, storage_options: Mapping[str, Any] | None) -> ConverterFolder:
    """Return the folder of a URL; makes no requests.

    On a Databricks cluster `dbfs:/x`, `/dbfs/x` and `/Volumes/x` are the same folders for Spark and as local paths.

    Raises:
        ValueError: No scheme, or `dbfs:` on another machine than such a cluster.
    """
    url = reading_url(url)
    checked_url(url)
    fs, path = resolve(url, storage_options=storage_options, filesystem=None)
    if isinstance(fs, LocalFileSystem):
        slash = "" if path.startswith("/") else "/"  # C:/x
        return ConverterFolder(_spark_url(slash + path), f"file://{slash}{quote(path, safe='/:')}", fs, path)
    return ConverterFolder(url, url, fs, path)


def reading_url(url: str) -> str:
    """Return the URL by which Python reaches a URL of Spark; they differ on Databricks only.

    >>> reading_url("s3://bucket/x/"), reading_url("file:/x")
    ('s3://bucket/x', 'file:///x')
    """
    if not isinstance(url, str | os.PathLike):
        raise ValueError(f"wanted the URL of a folder as text; got {url!r}")  # noqa: TRY004 - what Petastorm raises
    url = normalize_dir_url(url)
    if url.lower().startswith("dbfs:"):
        if not on_databricks():
            raise ValueError(
                f"{url!r}: dbfs: is a folder on the machines of a Databricks cluster only, and {_DATABRICKS} is not "
                "set here; use the URL of the store behind it"
            )
        path = urlsplit(url)
        if path.netloc:
            raise ValueError(f"{url!r} names a host, which dbfs does not have; wanted dbfs:/{path.netloc}{path.path}")
        mount = "" if _is_below(path.path, "/Volumes") else "/dbfs"
        return f"file://{mount}{path.path}"
    return f"file://{url}" if on_databricks() and any(_is_below(url, mount) for mount in _MOUNTS) else url


def on_databricks() -> bool:
    """Tell whether this process runs on a Databricks cluster."""
    return _DATABRICKS in os.environ


def warn_if_not_shared(place: ConverterFolder) -> None:
    """Warn if a folder on Databricks is on the machine's own disk, which the others do not see."""
    local = isinstance(place.fs, LocalFileSystem)
    if local and on_databricks() and not any(_is_below(place.path, mount) for mount in _MOUNTS):
        warnings.warn(
            f"{place.url} is on the local disk of each machine of the cluster; the files that workers write there are "
            "not visible elsewhere. Use dbfs:/... or /Volumes/...",
            PenstockWarning,
            stacklevel=4,
        )


def _spark_url(path: str) -> str:
    """Return the URL of a local path for Spark, which does not decode escapes; Databricks mounts by their names."""
    if on_databricks() and _is_below(path, "/dbfs"):
        return f"dbfs:{path.removeprefix('/dbfs')}"
    if on_databricks() and _is_below(path, "/Volumes"):
        return f"dbfs:{path}"
    return f"file://{path}"


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(folder + "/")


# -- what was written -------------------------------------------------------------------------------------------------


def begin(place: ConverterFolder) -> None:
    """Create the folder, with a marker that lists nothing yet."""
    place.fs.create_dir(place.path, recursive=True)
    _write_marker(place, [])


def commit(place: ConverterFolder) -> list[str]:
    """List everything in the folder as the converter's, and return the relative paths of its data files."""
    found = sorted(set(_files(place)) - {MARKER})
    _write_marker(place, found)
    return [name for name in found if not posixpath.basename(name).startswith(("_", "."))]


def is_made_here(place: ConverterFolder) -> bool:
    """Tell whether a folder exists that a converter has made."""
    return _read_marker(place) is not None


def remove_new(place: ConverterFolder) -> None:
    """Delete a folder whose writing failed: it was created by this call, under a unique name."""
    if is_made_here(place):
        place.fs.delete_dir(place.path)


def remove(place: ConverterFolder) -> list[str] | None:
    """Delete the files that the marker lists, and the folder when it is empty.

    Returns:
        The files that were kept because the converter has not written them; None if nothing was touched because the
        folder was not made by a converter. If the folder does not exist any more, there is nothing to delete.
    """
    listed = _read_marker(place)
    if listed is None:
        return [] if place.fs.get_file_info(place.path).type == FileType.NotFound else None
    there = _files(place)
    kept = sorted(set(there) - {*listed, MARKER})
    if not kept:
        place.fs.delete_dir(place.path)
        return []
    for name in sorted({*listed, MARKER} & set(there), key=lambda name: name == MARKER):  # the marker goes last
        place.fs.delete_file(f"{place.path}/{name}")
    return kept


def _files(place: ConverterFolder) -> list[str]:
    """Return the relative paths of all files below a folder, including hidden ones."""
    found = place.fs.get_file_info(FileSelector(place.path, recursive=True))
    prefix = place.path.rstrip("/") + "/"
    paths = [info.path for info in found if info.type == FileType.File]
    return [path.removeprefix(prefix).removeprefix("/" + prefix) for path in paths]


def data_sizes(place: ConverterFolder) -> list[int]:
    """Return the bytes of each data file of a folder."""
    found = place.fs.get_file_info(FileSelector(place.path, recursive=True))
    return [
        info.size or 0 for info in found if info.type == FileType.File and not info.base_name.startswith(("_", "."))
    ]


def _write_marker(place: ConverterFolder, files: Sequence[str]) -> None:
    put_json(place.fs, f"{place.path}/{MARKER}", {"made_by": _MADE_BY, "version": 1, "files": list(files)})


def _read_marker(place: ConverterFolder) -> list[str] | None:
    """Return the files that a marker lists; None if there is none, or it is not one of ours."""
    marker = read_json(place.fs, f"{place.path}/{MARKER}") or {}
    is_ours = marker.get("made_by") == _MADE_BY and isinstance(marker.get("files"), list)
    return [str(name) for name in marker["files"]] if is_ours else None


# -- waiting ----------------------------------------------------------------------------------------------------------


def wait_for_files(
    urls: Sequence[str], timeout_s: float, storage_options: Mapping[str, Any] | None, *, deleted: str | None = None
) -> None:
    """Return when all files are visible from here: mounts and stores may show new files with a delay.

    Args:
        urls: The files.
        timeout_s: Longest wait.
        storage_options: Passed to fsspec.
        deleted: Their folder, if this process has deleted it: then waiting is useless.

    Raises:
        RuntimeError: Some are not visible after `timeout_s` seconds, or were deleted.
    """
    end, wait = time.monotonic() + timeout_s, _FIRST_WAIT_S
    missing = _missing(urls, storage_options)
    if missing and deleted is not None:
        raise RuntimeError(
            f"the files of this converter were deleted by converter.delete(): {deleted}; make the converter again with "
            "make_spark_converter(df)"
        )
    while missing:
        if (left := end - time.monotonic()) <= 0:
            shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
            raise RuntimeError(
                f"Timeout while waiting for all parquet-store files to appear: {len(missing)} of {len(urls)} files "
                f"cannot be seen after {timeout_s:g} s: {shown}; they were deleted (make the converter again), or this "
                "process has no access to them"
            )
        time.sleep(min(wait, left))
        wait = min(2 * wait, _LONGEST_WAIT_S)
        missing = _missing(missing, storage_options)


def _missing(urls: Sequence[str], storage_options: Mapping[str, Any] | None) -> list[str]:
    if not urls:
        return []
    found = [resolve(url, storage_options=storage_options, filesystem=None) for url in urls]
    infos = found[0][0].get_file_info([path for _, path in found])
    return [url for url, info in zip(urls, infos, strict=True) if info.type == FileType.NotFound]
