"""The columns of a loader's batches, before there is one.

For options of the frameworks that name columns: a wrong name is told when a loader is made. Reads nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from penstock.engine.build import MASK

if TYPE_CHECKING:
    from penstock.engine.loader import Loader


def known_columns(loader: Loader) -> list[str] | None:
    """Return the columns of a batch in its order; None where a function of the user decides."""
    finisher = loader._finisher
    if finisher.transform is not None:
        return None
    if finisher.rowwise is not None:
        names = [field.name for field in cast("Any", finisher.rowwise).fields]
    else:
        names = [column.name for column in loader._facts.columns if column.name not in finisher.unseen]
    steps = None if finisher.fold is None else cast("Any", finisher.fold).steps
    return [*(steps or names), *([MASK] if loader._options.remainder == "pad" else [])]
