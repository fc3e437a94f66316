"""Penstock on one workload, as a user would run it: open, loop over batches, look at each.

The other half of `run.py`. Opening counts, imports do not. Every batch is held until the next but one has come, so that
memory that is used again too early would show; rows are counted, and the count is checked.

Usage: `python bench/ours.py DATA WORKLOAD` prints one line of JSON.
"""

from __future__ import annotations

import argparse
import importlib
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from cases import Case, find
from limit import peak_bytes

import penstock
from penstock.petastorm import TransformSpec, make_batch_reader, make_reader

if TYPE_CHECKING:
    from collections.abc import Callable


def measure(case: Case, data: Path) -> dict[str, Any]:
    """Do the work once and return what it took; `rows` is the number of files where only opening is measured."""
    folder = data / case.dataset
    make = _framework(case) if case.framework else None
    start = time.perf_counter()
    if make is not None:
        rows, first, stats, total = _read_framework(make, folder, case, start)
    elif case.face != "native":
        rows, first, stats, total = _read_petastorm(folder, case, start)
    else:
        dataset = penstock.open(str(folder))
        rows, first, stats = _read(dataset, case, start) if case.epochs else (_num_files(folder), None, None)
        total = len(dataset)
    seconds = time.perf_counter() - start
    if case.epochs and rows != case.epochs * total:
        raise SystemExit(f"{case.name}: {rows} rows came, not {case.epochs * total}")
    first_s = seconds if first is None else first
    return {"rows": rows, "seconds": seconds, "first_s": first_s, "peak_bytes": peak_bytes(), "stats": stats}


def _read(dataset: penstock.Dataset, case: Case, start: float) -> tuple[int, float | None, str]:
    options = {"batch_size": case.batch_size, "shuffle": case.shuffle, "epochs": case.epochs}
    rows, first, held = 0, None, []
    with dataset.loader(**options, seed=1, rank=0, world=1) as loader:
        for batch in loader:
            if first is None:
                first = time.perf_counter() - start
            arrays = list(batch.values())
            if not all(isinstance(array, np.ndarray) for array in arrays):
                raise SystemExit(f"{case.name}: a batch holds {[type(array).__name__ for array in arrays]}")
            rows += len(arrays[0])
            held = [*held[-1:], batch]
        return rows, first, str(loader.stats())


def _framework(case: Case) -> Callable[..., Any]:
    """Import a framework and return its loader."""
    if case.face == "workers":
        from torch.utils.data import DataLoader

        from penstock.torch import Batches

        return lambda *args, **options: DataLoader(Batches(*args, **options), batch_size=None, num_workers=2)
    module = importlib.import_module(f"penstock.{case.framework}")
    if case.framework == "tensorflow":
        importlib.import_module("tensorflow").zeros(1)  # its first use takes a second
    if case.framework == "jax":
        importlib.import_module("jax").devices()
    loader: Callable[..., Any] = module.loader
    return loader


def _read_framework(make: Callable[..., Any], folder: Path, case: Case, start: float) -> tuple[int, Any, None, int]:
    dataset = penstock.open(str(folder))
    options = {"batch_size": case.batch_size, "shuffle": case.shuffle, "epochs": case.epochs}
    rows, first, held = 0, None, []
    for batch in make(dataset, **options, seed=1, rank=0, world=1):
        if first is None:
            first = time.perf_counter() - start
        rows += int(next(iter(batch.values())).shape[0])
        held = [*held[-1:], batch]
    if case.framework == "jax":
        importlib.import_module("jax").block_until_ready(held)
    return rows, first, None, len(dataset)


def _read_petastorm(folder: Path, case: Case, start: float) -> tuple[int, float | None, str, int]:
    """Read with the readers that users of Petastorm know, in its default order."""
    options: dict[str, Any] = {"num_epochs": case.epochs, "shuffle_row_groups": case.shuffle, "seed": 1}
    url, rows, first, held = f"file://{folder}", 0, None, []
    if case.face == "rows":
        reader = make_reader(url, **options)
    else:
        reader = make_batch_reader(url, transform_spec=TransformSpec(_same), **options)
    with reader:
        for one in reader:
            if first is None:
                first = time.perf_counter() - start
            rows += 1 if case.face == "rows" else len(one[0])
            held = [*held[-1:], one]
        return rows, first, str(reader.diagnostics), len(reader.dataset)


def _same(frame: Any) -> Any:
    return frame


def _num_files(folder: Path) -> int:
    return sum(1 for _ in folder.glob("*.parquet"))


def main() -> None:
    """Measure the workload named on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("workload", type=find)
    args = parser.parse_args()
    print(json.dumps({"workload": args.workload.name, **measure(args.workload, args.data)}))


if __name__ == "__main__":
    main()
