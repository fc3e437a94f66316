"""A predicate that is applied when rows are delivered, not when they are planned.

Handed to the engine, which calls it on each decoded batch; it travels to the processes of a pool, so it pickles where
the predicate does. `predicates_select` is for those that are evaluated before.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from penstock.dataset.predicates_mask import evaluate
from penstock.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Mapping

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

    def __call__(self, batch: Mapping[str, Any], num_rows: int) -> NDArray[np.bool_]:
        """Return which rows to keep."""
        return evaluate(self.predicate, batch, num_rows, batched=self.batched)
