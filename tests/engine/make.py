"""What the tests of the engine share: small datasets, ranks run side by side, and the tightest budget.

Several ranks are carried out one after another in this process, which is what the ranks of a job would see.
Holds no tests itself.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import penstock
from penstock.errors import BudgetError
from penstock.testing import make_parquet


def three(rows):
    """Columns `id`, `value` (with nulls) and `text` (with nulls)."""
    ids = rows.tolist()
    return {
        "id": pa.array(rows),
        "value": pa.array([None if i % 5 == 2 else i / 2 for i in ids], pa.float32()),
        "text": pa.array([None if i % 4 == 1 else f"row {i}" for i in ids], pa.string()),
    }


@contextlib.contextmanager
def dataset(files, columns=three):
    """Open a fresh dataset with these row groups; gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        yield penstock.open(make_parquet(Path(folder) / "data", files, columns=columns))


def with_positions(batch, positions):
    """A transform that adds the global position of every row."""
    return {**batch, "position": positions}


def ids(batches) -> list[int]:
    """All ids; the batches are kept to the end, so that memory used again too early shows."""
    return [int(i) for batch in list(batches) for i in batch["id"]]


def tightest(ds, *, world: int = 1, **options: Any) -> int:
    """The least memory_bytes that loaders with these options take on every rank."""
    least = 1
    for rank in range(world):
        try:
            ds.loader(memory_bytes=1, rank=rank, world=world, **options).close()
        except BudgetError as error:
            least = max(least, error.least)
    return least


def save(loader) -> dict[str, Any]:
    """The state as a checkpoint holds it."""
    return json.loads(json.dumps(loader.state_dict()))


def run_ranks(ds, *, world: int, take: int | None = None, state=None, **options: Any):
    """Run every rank for `take` batches; return their batches and the states they end in."""
    batches, states = [], []
    for rank in range(world):
        with ds.loader(rank=rank, world=world, **options) as loader:
            if state is not None:
                loader.load_state_dict(state)
            batches.append(list(itertools.islice(iter(loader), take)))
            states.append(save(loader))
    return batches, states


def deal(streams):
    """Join the rows of ranks as the lane order deals them out: one to each in turn."""
    longest = max(map(len, streams), default=0)
    return [stream[i] for i in range(longest) for stream in streams if i < len(stream)]


def column(batches, name):
    """One column over several batches, as a list of Python values, None for masked."""
    return [value for batch in batches for value in as_list(batch[name])]


def as_list(values):
    return values.tolist() if isinstance(values, np.ndarray) else list(values)
