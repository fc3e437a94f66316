"""Count the batches of a pass without planning it.

A pass is `epochs` epochs, from k * epochs to (k + 1) * epochs; a resumed pass ends where the interrupted one would
have. Arithmetic only: costs nothing however large the dataset is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import PlanError

if TYPE_CHECKING:
    from penstock.plan.cursor import Cursor
    from penstock.plan.share import Share


def epochs_left(cursor: Cursor, epochs: int) -> int:
    """Return how many epochs of the pass are left, the one of the cursor included; at least 1."""
    if epochs < 1:
        raise PlanError(f"epochs must be at least 1, or None for ever; got {epochs}")
    return epochs - cursor.epoch % epochs


def steps_left(total_rows: int, *, cursor: Cursor, share: Share, epochs: int) -> int:
    """Return the batches that `share.rank` has left in the pass that `cursor` lies in; exact."""
    now = share.steps(cursor.num_left(total_rows), share.rank)
    return now + (epochs_left(cursor, epochs) - 1) * share.steps(total_rows, share.rank)
