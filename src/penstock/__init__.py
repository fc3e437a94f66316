"""Penstock feeds training from the Parquet you already have: one exact order, resumable at any row, bounded memory.

Start with `penstock.open(url)`, which gives a `Dataset`; `Dataset.loader(...)` gives batches. `penstock.write` makes
datasets without Spark. Importing this package imports no framework.
"""

from penstock import codecs, errors
from penstock.alias import install_as_petastorm
from penstock.api import Dataset, Loader, open
from penstock.codecs import register_codec
from penstock.engine.mix import Mix, mix
from penstock.options import Window
from penstock.schema import Unischema, UnischemaField
from penstock.schema.transform import TransformSpec
from penstock.storage import DiskCache, MemoryCache
from penstock.write import write

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
    "__version__",
    "codecs",
    "errors",
    "install_as_petastorm",
    "mix",
    "open",
    "register_codec",
    "write",
]
