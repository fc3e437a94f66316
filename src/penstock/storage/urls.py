"""URLs: those of local files, and those of remote stores, which fsspec or pyarrow open.

`filesystem` calls this for everything but local paths. Knows the schemes, the extras that bring their libraries, and
how long a store may take to answer.
"""

from __future__ import annotations

import os
import re
import threading
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from pyarrow.fs import FileSystem, LocalFileSystem

from penstock.errors import DatasetNotFound, PenstockError, PenstockWarning, StoreUnavailable
from penstock.storage.fault_kinds import store_error

if TYPE_CHECKING:
    from collections.abc import Iterator

# The extra that installs the library for a URL scheme.
_EXTRAS = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gcs",
    "gcs": "gcs",
    "abfs": "azure",
    "abfss": "azure",
    "az": "azure",
    "hdfs": "hdfs",
    "webhdfs": "hdfs",
}
SAME_STORE = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "abfss"}
"""Schemes that are aliases of another one."""
_SLOW_S = 5.0
"""How long a store may take for its first answer before a warning says that penstock is waiting."""
_GCS_PROBE_S = 5
"""How long pyarrow's client for Google's store tries to get in at first; its own limit is 15 minutes."""
_DRIVE = re.compile(r"/*([A-Za-z]:)(?=[/\\]|$)")


def to_arrow_filesystem(filesystem: Any) -> FileSystem:
    """Return `filesystem` as a pyarrow.fs object; fsspec's are wrapped (see `fsspec_handler`).

    Raises:
        TypeError: it is neither.
    """
    from pyarrow.fs import FSSpecHandler, PyFileSystem

    if type(getattr(filesystem, "handler", None)) is FSSpecHandler:
        filesystem = filesystem.handler.fs
    if isinstance(filesystem, FileSystem):
        return filesystem
    if not (hasattr(filesystem, "open") and hasattr(filesystem, "protocol")):
        kind = type(filesystem).__name__
        raise TypeError(f"filesystem= takes a pyarrow.fs.FileSystem or an fsspec filesystem; got {kind}")
    protocol = filesystem.protocol
    if protocol == "file" or (isinstance(protocol, tuple) and "file" in protocol):
        return LocalFileSystem()
    from penstock.storage.fsspec_handler import RaisingHandler

    return PyFileSystem(RaisingHandler(filesystem))


def resolve_url(url: str, options: dict[str, Any]) -> tuple[FileSystem, str]:
    """Return the filesystem of a URL of a remote store, and the path on it; `options` go to fsspec."""
    scheme = urlsplit(url).scheme
    with answering(url):
        try:
            import fsspec

            for one in url.partition("://")[0].split("::"):  # simplecache::s3://bucket
                fsspec.get_filesystem_class(one)
        except (ImportError, ValueError) as exc:  # ValueError: fsspec knows no such scheme
            return _remote_by_arrow(url, options, scheme, exc)
        found, path = fsspec.core.url_to_fs(url, **options)
        return to_arrow_filesystem(found), str(path).rstrip("/")


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
        raise DatasetNotFound(
            f"cannot open {url}: {cause}; schemes are lower case: pass filesystem= for a store that fsspec does not "
            "know; the scheme of a custom source is added by penstock.register_source or by an installed package, and "
            "works in penstock.open, for one URL (no list, no '::')"
        )
    extra = _EXTRAS.get(scheme)
    line = f"pip install 'penstock[{extra}]'" if extra else f"install what fsspec asks for: {cause}"
    raise ImportError(f"{scheme}:// needs a library that is not installed: {line}{tried}") from cause


def file_url_path(url: str) -> str:
    r"""Return the path of a `file://` URL: %-escapes decoded, `/C:/x` as `C:/x`, a host only if it is this one.

    >>> file_url_path("file:///data/a%20b"), file_url_path("file:///C:/x")
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


_SCHEMES = {"s3": "s3", "gcs": "gs", "abfs": "abfss", "hdfs": "hdfs"}
"""Type names of pyarrow's filesystems, and the schemes of their URLs."""


def url_of(fs: FileSystem, path: str) -> str:
    """Return the URL of a path, for messages; the path itself on local disks and filesystems without a known scheme."""
    behind: Any = getattr(getattr(fs, "handler", None), "fs", None)
    if hasattr(behind, "unstrip_protocol"):
        return str(behind.unstrip_protocol(path))
    return f"{_SCHEMES[fs.type_name]}://{path}" if fs.type_name in _SCHEMES else path


@contextmanager
def answering(url: str) -> Iterator[None]:
    """Make the first requests to a remote store: a warning says if they take long, their errors name the URL."""
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
