"""From what the user wrote to a filesystem and a path: the only place that knows fsspec, pyarrow.fs and URLs.

`dataset` and `write` ask here for places and listings and get `pyarrow.fs` objects back; caches of what was read from
them live here too (`cache`, `disk_cache`), imported where they are asked for. Nothing here knows Parquet.
"""

from penstock.storage.filesystem import is_hidden, list_files, resolve, to_arrow_filesystem, walk
from penstock.storage.glob import expand_glob, has_magic

__all__ = [
    "expand_glob",
    "has_magic",
    "is_hidden",
    "list_files",
    "resolve",
    "to_arrow_filesystem",
    "walk",
]
