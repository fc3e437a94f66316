"""Penstock feeds training from the Parquet you already have: one exact order, resumable at any row, bounded memory.

Start with `penstock.open(url)`, which gives a `Dataset`; `Dataset.loader(...)` gives batches. `penstock.write` makes
datasets without Spark. Importing this package imports no framework.
"""

from typing import TYPE_CHECKING, Any

from penstock import codecs, errors
from penstock.api import Dataset, Loader, open
from penstock.codecs import register_codec
from penstock.openers import register_source
from penstock.options import Window
from penstock.schema import Unischema, UnischemaField
from penstock.schema.transform import TransformSpec
from penstock.write import write

if TYPE_CHECKING:
    from penstock import doctor
    from penstock.alias import install_as_petastorm
    from penstock.engine.mix import Mix, mix
    from penstock.jobs import map_files
    from penstock.storage.cache import MemoryCache
    from penstock.storage.disk_cache import DiskCache
    from penstock.write.commits import commit, discard
    from penstock.write.folder import write_folder
    from penstock.write.writer import Writer

__version__ = "0.1.0"

__all__ = [
    "Dataset",
    "DiskCache",
    "Loader",
    "MemoryCache",
    "Mix",
    "TransformSpec",
    "Unischema",
    "UnischemaField",
    "Window",
    "Writer",
    "__version__",
    "codecs",
    "commit",
    "discard",
    "doctor",
    "errors",
    "install_as_petastorm",
    "map_files",
    "mix",
    "open",
    "register_codec",
    "register_source",
    "write",
    "write_folder",
]

_LATE = {
    "DiskCache": "penstock.storage.disk_cache",
    "MemoryCache": "penstock.storage.cache",
    "Mix": "penstock.engine.mix",
    "Writer": "penstock.write.writer",
    "commit": "penstock.write.commits",
    "discard": "penstock.write.commits",
    "doctor": "penstock.doctor",
    "install_as_petastorm": "penstock.alias",
    "map_files": "penstock.jobs",
    "mix": "penstock.engine.mix",
    "write_folder": "penstock.write.folder",
}
"""Names that few programs use; the others need not wait for them."""


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    from importlib import import_module

    module = import_module(_LATE[name])
    value = globals()[name] = module if module.__name__ == f"penstock.{name}" else getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATE})
