"""A program of Petastorm's users, run with Petastorm or with Penstock: the same lines, only the package differs.

The other half of `against_petastorm.py`; runs under any Python that has the package named. Opening counts, imports do
not. Rows are counted as batches come.

Usage: `python bench/petastorm_user.py petastorm|penstock.petastorm DATA CASE` prints one line of JSON.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

TAKEN = {"jpeg": 6_000, "npy": 60_000, "table": 2_000_000, "tf-jpeg": 6_000}
"""Rows of one run: an epoch."""


def measure(package: str, folder: Path, case: str) -> dict[str, Any]:
    """Read one epoch and return what it took."""
    root = importlib.import_module(package)
    _ = root.make_reader, root.make_batch_reader  # which may import more
    loaders = importlib.import_module(f"{package}.{'tf_utils' if case == 'tf-jpeg' else 'pytorch'}")
    importlib.import_module("tensorflow" if case == "tf-jpeg" else "torch").zeros(1)
    start, rows = time.perf_counter(), 0
    for count in {"jpeg": _jpeg, "npy": _npy, "table": _table, "tf-jpeg": _tf_jpeg}[case](root, loaders, folder):
        rows += count
    return {"package": package, "case": case, "rows": rows, "seconds": time.perf_counter() - start}


def _jpeg(root: Any, loaders: Any, folder: Path) -> Any:
    with loaders.DataLoader(root.make_reader(f"file://{folder}/p_jpeg", num_epochs=1), batch_size=64) as batches:
        for batch in batches:
            yield len(batch["image"])


def _npy(root: Any, loaders: Any, folder: Path) -> Any:
    with loaders.DataLoader(root.make_reader(f"file://{folder}/p_mnist", num_epochs=1), batch_size=1000) as batches:
        for batch in batches:
            yield len(batch["image"])


def _table(root: Any, loaders: Any, folder: Path) -> Any:
    reader = root.make_batch_reader(f"file://{folder}/table", num_epochs=1)
    with loaders.BatchedDataLoader(reader, batch_size=4096, shuffling_queue_capacity=200_000) as batches:
        for batch in batches:
            yield len(next(iter(batch.values())))


def _tf_jpeg(root: Any, loaders: Any, folder: Path) -> Any:
    with root.make_reader(f"file://{folder}/p_jpeg", num_epochs=1) as reader:
        for batch in loaders.make_petastorm_dataset(reader).batch(64):
            yield int(batch.image.shape[0])


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], Path(sys.argv[2]), sys.argv[3])))
