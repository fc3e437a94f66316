"""Time to the next batch when a run is resumed at 90% of an epoch of 10,000,000 rows, beside a fresh start.

Both are measured in processes of their own, in turn: open the dataset, (restore the state,) take one batch. The state
is what a run would have saved there; it costs nothing to make, because a state is only a position. Resuming should cost
one window of reads and none of the rows before it: at most 1.5 times a fresh start, and half a second. The larger the
batch, the more row groups its rows lie in: 256 rows in about 250 of the 1,000, 4,096 rows in about 900.

Usage: `python bench/resume.py DATA [--pairs 5] [--batch-size 256]`; `DATA/resume10m` is made if it is missing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import data

SHARE = 0.9


def first_batch_s(folder: Path, share: float, batch_size: int) -> float:
    """Return the seconds from opening to the first batch at that share of the epoch."""
    import penstock

    start = time.perf_counter()
    dataset = penstock.open(str(folder))
    with dataset.loader(batch_size=batch_size, shuffle=True, seed=1, rank=0, world=1) as loader:
        if share:
            state = loader.state_dict()
            state["position"] = int(share * len(dataset))
            loader.load_state_dict(state)
        batches = iter(loader)
        next(batches)
        return time.perf_counter() - start  # before the iterator is gone: ending it waits for what its threads are at


def _child(folder: Path, share: float, batch_size: int) -> float:
    command = [sys.executable, __file__, str(folder), "--share", str(share), "--batch-size", str(batch_size)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return float(json.loads(done.stdout))


def main() -> None:
    """Print both times and their ratio."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--share", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.share is not None:
        print(json.dumps(first_batch_s(args.data, args.share, args.batch_size)))
        return
    folder = data.generate(data.find("resume10m"), args.data)
    size = args.batch_size
    pairs = [(_child(folder, 0.0, size), _child(folder, SHARE, size)) for _ in range(args.pairs)]
    fresh, resumed = (statistics.median(times) for times in zip(*pairs, strict=True))
    ratio = statistics.median(late / early for early, late in pairs)
    print(f"first batch {fresh:.3f} s, resumed at {SHARE:.0%} {resumed:.3f} s, ratio {ratio:.2f} (wanted 1.5, 0.5 s)")


if __name__ == "__main__":
    main()
