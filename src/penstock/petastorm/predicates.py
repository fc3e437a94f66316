"""Petastorm's `petastorm.predicates`: the same names and arguments, on predicates that prune and work on columns.

The classes are those of `penstock.predicates`; `make_reader` and `make_batch_reader` take them. Defines nothing.
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

__all__ = [
    "PredicateBase",
    "in_intersection",
    "in_lambda",
    "in_negate",
    "in_pseudorandom_split",
    "in_reduce",
    "in_set",
]
