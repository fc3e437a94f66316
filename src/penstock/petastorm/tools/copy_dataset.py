"""Petastorm's `copy_dataset`: not in this version; its names can be imported and say so when used.

It will write a copy of a dataset with some of its fields and rows. Does not import pyspark.
"""

from __future__ import annotations

from functools import partial

from penstock.petastorm._later import later_function

__all__ = ["copy_dataset", "main"]

_INSTEAD = "until then penstock.open(url, columns=..., filters=...) and penstock.write make such a copy"
_function = partial(later_function, __name__, extra="spark", instead=_INSTEAD)

copy_dataset = _function("copy_dataset")
main = _function("main")
