"""A program that reads a dataset within a budget and says how much memory that took; `test_memory` runs it.

`python -m tests.engine.weigh DATA EPOCHS OPTIONS` with the options of a loader as JSON; prints JSON: `peak_bytes` above
what the program took after it had opened the dataset, `after_epoch` (the same after each epoch), `reads`, and `refused`
(the BudgetError, or null).
"""

from __future__ import annotations

import contextlib
import gc
import json
import sys
from pathlib import Path

import penstock
from penstock.errors import BudgetError


def status(name: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise KeyError(name)


def plus_one(batch):
    """A transform that makes new arrays; at the top level, for processes."""
    return {name: values + 1 for name, values in batch.items()}


def weigh(data: str, epochs: int, options: dict) -> dict:
    if options.get("transform"):
        options["transform"] = plus_one
    ds = penstock.open(data)
    if options.pop("head", True):
        ds.head(1)  # libraries of codecs are imported when they are first needed
    base = status("VmRSS")
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak counts from here
    refused, after_epoch, reads = None, [], 0
    try:
        loader = ds.loader(epochs=epochs, **options)
        steps = len(loader) // epochs
        for number, batch in enumerate(loader, 1):
            assert batch
            if number % steps == 0:
                del batch
                after_epoch.append(status("VmRSS") - base)
        reads = loader.stats()["chunks_read"]
    except BudgetError as error:
        refused = str(error)
    gc.collect()
    return {"peak_bytes": status("VmHWM") - base, "after_epoch": after_epoch, "reads": reads, "refused": refused}


if __name__ == "__main__":
    print(json.dumps(weigh(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]))))
