"""Predicates for `Dataset.where`: rows to keep, said by values, by functions, or by a stable random split.

The public names of what `dataset/predicates.py` holds; `penstock.petastorm.predicates` has the same classes. `evaluate`
applies one to a batch that is in memory already. Nothing is defined here.
"""

from penstock.dataset.predicates import (
    PredicateBase,
    in_intersection,
    in_lambda,
    in_negate,
    in_pseudorandom_split,
    in_reduce,
    in_set,
)
from penstock.dataset.row_filter import evaluate

__all__ = [
    "PredicateBase",
    "evaluate",
    "in_intersection",
    "in_lambda",
    "in_negate",
    "in_pseudorandom_split",
    "in_reduce",
    "in_set",
]
