"""`penstock plan URL`: what a loader would do with a dataset, before it does it.

Hands the options to `Dataset.plan` and returns its text. Reads no data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

    from penstock.api import Dataset

SHUFFLE: dict[str, Any] = {"no": False, "rows": True, "groups": "groups"}


def plan(dataset: Dataset, options: argparse.Namespace) -> str:
    """Return the plan of one pass as text; sizes that were not given keep the loader's defaults."""
    given = {"window_bytes": options.window_bytes, "memory_bytes": options.memory_bytes}
    return str(
        dataset.plan(
            batch_size=options.batch_size,
            shuffle=SHUFFLE[options.shuffle],
            seed=options.seed,
            epochs=options.epochs,
            world=options.world,
            remainder=options.remainder,
            drop_last=options.drop_last,
            lanes=options.lanes,
            **{name: value for name, value in given.items() if value is not None},
        )
    )
