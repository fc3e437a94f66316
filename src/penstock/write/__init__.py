"""Write rows or tables as datasets, without Spark: the writing side of `penstock`.

`write` and `Writer` take values through the schema's codecs to Parquet and publish the dataset in one step; `commit`
does so for several writers. Nothing that reads imports this package, and its modules are imported when something is
written.
"""

from typing import TYPE_CHECKING, Any

from penstock.write.write import write

if TYPE_CHECKING:
    from penstock.write.commits import commit, discard
    from penstock.write.files import Written
    from penstock.write.folder import write_folder
    from penstock.write.writer import Writer

__all__ = ["Writer", "Written", "commit", "discard", "write", "write_folder"]

_LATE = {
    "Writer": "penstock.write.writer",
    "Written": "penstock.write.files",
    "commit": "penstock.write.commits",
    "discard": "penstock.write.commits",
    "write_folder": "penstock.write.folder",
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module 'penstock.write' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_LATE[name]), name)
    return value
