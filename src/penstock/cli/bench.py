"""`penstock bench URL`: how fast a loader reads a dataset, compared with the least work by hand.

Turns the options into a `Workload`, lets `penstock.bench` measure it, and returns the result as text or JSON.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from penstock.bench import Workload, measure
from penstock.cli.plan import SHUFFLE
from penstock.cli.text import given

if TYPE_CHECKING:
    import argparse

    from penstock.api import Dataset

_ORDERS = {"no": "as stored", "rows": "shuffled", "groups": "row groups permuted"}
_NAMES = ("workers", "pool", "memory_bytes", "shuffle_bytes", "lanes", "device")


def bench(dataset: Dataset, options: argparse.Namespace) -> str:
    """Return rates, the ratio to the limit and where the time went; `--json`: the numbers on one line."""
    chosen = {"batch_size": options.batch_size, "shuffle": SHUFFLE[options.shuffle], "seed": options.seed}
    task = Workload(
        options=chosen | given(options, _NAMES),
        framework=options.framework,
        seconds=options.seconds,
        batches=options.batches,
        warm_up_s=options.warm_up,
        rounds=options.rounds,
    )
    result = measure(dataset, task)
    if options.json:
        return json.dumps(result.to_json())
    return (
        f"{len(dataset):,} rows x {len(dataset.columns):,} columns in {len(dataset.chunks):,} row groups, "
        f"{dataset.num_bytes / 1e6:,.0f} MB; batches of {options.batch_size:,}, {_ORDERS[options.shuffle]}\n\n{result}"
    )
