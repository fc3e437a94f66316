"""Sources of third parties: the functions that open URLs of schemes of their own.

`register_source` adds one, and installed packages do by an entry point; `api.open` asks for the opener of a URL.
Nothing that a dataset stores is ever imported by its path.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from penstock.errors import PlanError
from penstock.plugins import find_installed

if TYPE_CHECKING:
    from penstock.source import Source

ENTRY_POINTS = "penstock.sources"
"""Entry point group of packages that add sources: the name is the scheme, the object the opener."""


Opener: TypeAlias = "Callable[..., Source]"
"""Called as `opener(url, columns=..., storage_options=..., ...)` with the arguments of `penstock.open` that were
given; returns a source. An argument that it does not take is a TypeError, as for any function."""


_OPENERS: dict[str, Opener] = {}


def register_source(scheme: str, opener: Opener) -> None:
    """Let `penstock.open("SCHEME://...")` open what `opener` returns.

    An installed package does the same, without being imported first, by an entry point of the group
    `penstock.sources` whose name is the scheme. Schemes that fsspec or pyarrow know, and the plain paths, stay theirs
    unless one is registered here.

    Raises:
        PlanError: The name is not a scheme, or another opener is registered for it.
    """
    if not re.fullmatch(r"[a-z][a-z0-9+.-]+", scheme):
        raise PlanError(f"a scheme is lower case letters, digits and '+.-'; got {scheme!r}")
    if not callable(opener):
        raise TypeError(f"register_source takes a function that returns a Source; got {opener!r}")
    if _OPENERS.setdefault(scheme, opener) is not opener:
        raise PlanError(f"{scheme!r} is registered already, for {_OPENERS[scheme]!r}; choose another scheme")


def find_opener(url: Any) -> Opener | None:
    """Return the registered opener of a URL's scheme; None for paths and for the URLs of stores.

    Installed packages are searched only for a scheme that neither is registered nor belongs to a store.

    Raises:
        PlanError: Several installed packages add the scheme.
        ImportError: The package that adds it cannot be imported.
        TypeError: What it adds is not a function.
    """
    scheme, found, _ = url.partition("://") if isinstance(url, str) else ("", "", "")
    if not found:
        return None
    opener: Opener | None = _OPENERS.get(scheme) or (
        None if _is_store(scheme) else find_installed(ENTRY_POINTS, scheme)
    )
    if opener is not None and not callable(opener):
        raise TypeError(
            f"the entry point {scheme!r} of {ENTRY_POINTS} must be a function that returns a Source; it is {opener!r}"
        )
    return opener


def check_path(value: Any) -> None:
    """Raise TypeError for data given where a path is wanted: iterating it would read it all as a list of paths."""
    if not isinstance(value, Mapping) and not any(
        hasattr(value, name) for name in ("columns", "column_names", "native", "received")
    ):
        return
    what = "write it first, with penstock.write(data, path)"
    if hasattr(value, "loader"):
        what = "it is open already"
    elif any(hasattr(value, name) for name in ("native", "received", "stream")):
        what = "pass the dataset or the path that it was made from"
    raise TypeError(f"a path or URL, a list of them or a Source is wanted; got {type(value).__name__}: {what}")


def _is_store(scheme: str) -> bool:
    """Tell whether pyarrow or fsspec open URLs of this scheme."""
    if scheme.split("::", maxsplit=1)[0] in ("file", "s3", "gs", "gcs", "hdfs", "viewfs", "abfs", "abfss", "mock"):
        return True
    from fsspec.registry import known_implementations, registry

    return scheme in known_implementations or scheme in registry
