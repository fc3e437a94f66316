"""A predicate that is applied when rows are delivered, not when they are planned.

Handed to the engine, which calls it on each decoded batch; it travels to the processes of a pool, so it pickles where
the predicate does. `predicates_select` is for those that are evaluated before.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any

from penstock.dataset.predicates import in_intersection, in_negate, in_pseudorandom_split, in_reduce, in_set
from penstock.dataset.predicates_mask import evaluate
from penstock.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from penstock.dataset.predicates import PredicateBase


@dataclass(frozen=True)
class PredicateFilter:
    """Tells which rows of a batch a predicate keeps."""

    predicate: PredicateBase
    batched: bool
    """Whether functions of the user's get pandas Series."""

    @cached_property
    def fields(self) -> frozenset[str]:
        """Columns it looks at."""
        found = frozenset(str(getattr(name, "name", name)) for name in self.predicate.get_fields())
        if not found:
            raise SchemaError(f"the predicate {self.predicate!r} names no field: get_fields() must give at least one")
        return found

    @cached_property
    def digest(self) -> str:
        """Digest of what the predicate says, for states; of functions only which fields they look at."""
        return hashlib.blake2b(json.dumps(_meaning(self.predicate)).encode(), digest_size=16).hexdigest()

    def __call__(self, batch: Mapping[str, Any], num_rows: int) -> NDArray[np.bool_]:
        """Return which rows to keep."""
        return evaluate(self.predicate, batch, num_rows, batched=self.batched)


def _meaning(predicate: Any) -> list[Any]:
    """Return what a predicate says as JSON, the same for every way to write it in shipped classes."""
    kind = type(predicate)
    if kind in (in_set, in_intersection):
        return [kind.__name__, predicate._predicate_field, sorted(map(_key_text, predicate._inclusion_values.keys))]
    if kind is in_pseudorandom_split:
        shares = [float(share) for share in predicate._fraction_list]
        return [kind.__name__, predicate._predicate_field, shares, int(predicate._subset_index)]
    if kind is in_negate:
        return [kind.__name__, _meaning(predicate._predicate)]
    if kind is in_reduce:
        parts = [_meaning(part) for part in predicate._predicate_list]
        if predicate.is_all or predicate.is_any:
            return [kind.__name__, "all" if predicate.is_all else "any", sorted(parts, key=json.dumps)]
        return [kind.__name__, "function", parts]
    return ["function", sorted(str(getattr(name, "name", name)) for name in predicate.get_fields())]


def _key_text(key: Hashable) -> str:
    """Return a key of a set as text: equal numbers of all types give one text, as they are one key."""
    if isinstance(key, int | float | Decimal):
        return f"number {Fraction(key) if math.isfinite(key) else float(key)}"
    plain = isinstance(key, str | bytes | tuple) or key is None
    return f"{type(key).__name__} {key!r}" if plain else type(key).__name__  # the repr of others may hold an address
