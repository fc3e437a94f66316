"""Turn what the user wrote into a filesystem and a path; the only package that knows fsspec, pyarrow.fs and URLs.

`dataset` and `write` get `pyarrow.fs` objects and listings from here. Atomic publishing (`publish`), file locks
(`locks`) and caches of byte ranges (`cache`, `disk_cache`) are here too, imported where they are used. Nothing here
knows Parquet.
"""

from penstock.storage.filesystem import is_hidden, list_files, resolve, walk
from penstock.storage.glob import expand_glob, has_magic
from penstock.storage.urls import to_arrow_filesystem

__all__ = [
    "expand_glob",
    "has_magic",
    "is_hidden",
    "list_files",
    "resolve",
    "to_arrow_filesystem",
    "walk",
]
