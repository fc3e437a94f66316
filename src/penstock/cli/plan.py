"""`penstock plan URL`: what a loader would do with a dataset.

Passes the options to `Dataset.plan` and returns its text. Reads no data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.cli.text import given

if TYPE_CHECKING:
    import argparse

    from penstock.api import Dataset

SHUFFLE: dict[str, Any] = {"no": False, "rows": True, "groups": "groups"}


def plan(dataset: Dataset, options: argparse.Namespace) -> str:
    """Return the plan of one epoch as text."""
    return str(
        dataset.plan(
            batch_size=options.batch_size,
            shuffle=SHUFFLE[options.shuffle],
            seed=options.seed,
            rank=options.rank,
            world=options.world,
            remainder=options.remainder,
            drop_last=options.drop_last,
            lanes=options.lanes,
            **given(options, ("shuffle_bytes",)),
        )
    )
