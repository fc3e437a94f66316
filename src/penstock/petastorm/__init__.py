"""The names that users of Petastorm know, on the engine of this library.

The tree mirrors Petastorm's, so that moving over is one change in the imports; every file is thin. Importing it
imports no framework, no Spark and no pandas.
"""

from penstock.petastorm.errors import NoDataAvailableError
from penstock.petastorm.reader import Reader, make_batch_reader, make_reader
from penstock.petastorm.transform import TransformSpec

__version__ = "0.13.1"

__all__ = ["NoDataAvailableError", "Reader", "TransformSpec", "__version__", "make_batch_reader", "make_reader"]
