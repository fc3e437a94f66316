"""Predicates for `Dataset.where`: keep rows by their values, by a function, or by a stable random split.

The public names of `dataset/predicates.py`; `penstock.petastorm.predicates` has the same classes. `evaluate` applies a
predicate to a batch in memory. Nothing is defined here.
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
