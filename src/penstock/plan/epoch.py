"""Build the plan of one rank for what is left of one epoch.

The entry to this package for the engine: rows per chunk, an order, a cursor and a share in; an `EpochPlan` out. Pure;
reads nothing and starts nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.plan.base import EpochPlan
from penstock.plan.lanes import LanePlan
from penstock.plan.lines import LinePlan
from penstock.plan.order import as_counts

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from penstock.plan.cursor import Cursor
    from penstock.plan.order import Order
    from penstock.plan.share import Share

__all__ = ["EpochPlan", "plan_epoch"]


def plan_epoch(
    counts: Sequence[int] | NDArray[np.integer[Any]], *, order: Order, cursor: Cursor, share: Share
) -> EpochPlan:
    """Return the plan of `share.rank` from `cursor` to the end of that epoch.

    `counts` is the selected rows of each chunk, zeros included. Costs about a microsecond a chunk once its chunks are
    asked for; no array of all rows is built. StateMismatch where the cursor lies outside the epoch.
    """
    plan = LinePlan if order.is_line else LanePlan
    return plan(as_counts(counts), order=order, cursor=cursor, share=share)
