"""Two ranks train, are killed, and three go on from the last checkpoint: every row of the epoch exactly once.

Run it as `python examples/ddp_resume.py`; it needs PyTorch and scikit-learn, no GPU and no network. Ranks are processes
of this machine that talk through gloo. Each notes the rows it gets, so that the end can be checked: the rows up to the
last checkpoint and those after it are together the epoch. The status is 0 only if they are.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import penstock
from penstock.torch import loader

BATCH_SIZE, SAVE_EVERY, PAUSE_S, LIMIT_S = 16, 5, 0.01, 120


# -- what each rank does ----------------------------------------------------------------------------------------------


def train(folder: Path, attempt: int, rank: int, world: int) -> None:
    """Train one epoch, or what the checkpoint says is left of it."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store-{attempt}", rank=rank, world_size=world)
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    # Rank and world come from torch.distributed. Padding keeps the steps of all ranks equal; `_valid` tells it apart.
    with loader(folder / "digits", batch_size=BATCH_SIZE, shuffle=True, seed=7, lanes=6, remainder="pad") as batches:
        step = resume(folder, model, optimizer, batches)
        with (folder / f"rows-{attempt}-{rank}.txt").open("w") as notes:
            for batch in batches:
                step += 1
                print(step, *batch["id"][batch["_valid"]].tolist(), file=notes, flush=True)
                valid = batch["_valid"].float()
                losses = cross_entropy(model(batch["pixels"]), batch["label"], reduction="none")
                optimizer.zero_grad()
                (losses * valid).sum().div(valid.sum().clamp(min=1)).backward()
                optimizer.step()
                if rank == 0 and step % SAVE_EVERY == 0:
                    save(folder, step, model, optimizer, batches)
                time.sleep(PAUSE_S)  # so that there is time to be killed
    dist.destroy_process_group()


def save(folder: Path, step: int, model: Any, optimizer: Any, batches: Any) -> None:
    """Write a checkpoint: the state of the loader is the same on every rank, so one of them is enough."""
    checkpoint = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save({**checkpoint, "loader": batches.state_dict()}, folder / "new.pt")
    os.replace(folder / "new.pt", folder / "checkpoint.pt")


def resume(folder: Path, model: Any, optimizer: Any, batches: Any) -> int:
    """Load the checkpoint, if there is one; return the steps done."""
    if not (folder / "checkpoint.pt").exists():
        return 0
    checkpoint = torch.load(folder / "checkpoint.pt", weights_only=True)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    batches.load_state_dict(checkpoint["loader"])
    return int(checkpoint["step"])


# -- the one who starts and kills them --------------------------------------------------------------------------------


def start(folder: Path, attempt: int, world: int) -> list[subprocess.Popen[bytes]]:
    """Start the ranks."""
    arguments = [sys.executable, __file__, "--output", str(folder), "--attempt", str(attempt), "--world", str(world)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "LOCAL_WORLD_SIZE": str(world)}
    if sys.platform.startswith("linux"):
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return [subprocess.Popen([*arguments, "--rank", str(rank)], env=environment) for rank in range(world)]


def kill_at(folder: Path, step: int, ranks: list[subprocess.Popen[bytes]]) -> None:
    """Wait until rank 0 has got to a step, and kill all ranks."""
    notes, end = folder / "rows-0-0.txt", time.monotonic() + LIMIT_S
    while not notes.exists() or notes.read_text().count("\n") < step:
        if any(rank.poll() is not None for rank in ranks) or time.monotonic() > end:
            raise SystemExit("a rank ended by itself")
        time.sleep(0.002)
    for rank in ranks:
        rank.send_signal(signal.SIGKILL)
        rank.wait()


def rows_of(folder: Path, attempt: int, world: int, most_steps: int) -> tuple[list[int], list[int]]:
    """Return the rows that all ranks noted up to a step, and the steps of each rank."""
    rows, steps = [], []
    for rank in range(world):
        lines = (folder / f"rows-{attempt}-{rank}.txt").read_text().splitlines()
        noted = [[int(word) for word in line.split()] for line in lines]
        noted = [line for line in noted if line[0] <= most_steps]
        rows += [row for line in noted for row in line[1:]]
        steps.append(len(noted))
    return rows, steps


def run(folder: Path, seed: int, before: int = 2, after: int = 3) -> dict[str, Any]:
    """Train, kill and resume; return what was seen."""
    total = write_digits(folder / "digits")
    kill_step = random.Random(seed).randrange(SAVE_EVERY + 1, total // BATCH_SIZE // before - SAVE_EVERY)
    kill_at(folder, kill_step, start(folder, 0, before))
    saved = torch.load(folder / "checkpoint.pt", weights_only=True)
    for rank in start(folder, 1, after):
        if rank.wait(LIMIT_S):
            raise SystemExit("a rank failed")
    first, _ = rows_of(folder, 0, before, saved["step"])
    rest, steps = rows_of(folder, 1, after, sys.maxsize)
    return {
        "rows": total,
        "killed after step": kill_step,
        "rows before the checkpoint": len(first),
        "rows after it": len(rest),
        "steps of the three ranks": steps,
        "every row once": sorted(first + rest) == list(range(total)),
        "equal steps": len(set(steps)) == 1,
    }


def write_digits(folder: Path) -> int:
    """Write scikit-learn's handwritten digits in row groups of about 60; return their number."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = (digits.data / 16).astype(np.float32)
    columns = {"id": np.arange(len(pixels)), "pixels": pixels, "label": digits.target.astype(np.int64)}
    penstock.write(columns, folder, row_group_bytes=16_000, overwrite=True)
    return len(pixels)


def main() -> int:
    """Run as a rank, or start the ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("ddp-output"))
    parser.add_argument("--seed", type=int, default=None, help="picks the step of the kill")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--world", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--attempt", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank is not None:
        train(given.output, given.attempt, given.rank, given.world)
        return 0
    given.output.mkdir(parents=True, exist_ok=True)
    for old in [*given.output.glob("store-*"), *given.output.glob("rows-*"), *given.output.glob("*.pt")]:
        old.unlink()
    seen = run(given.output.absolute(), random.randrange(1 << 30) if given.seed is None else given.seed)
    print(json.dumps(seen, indent=2))
    return 0 if seen["every row once"] and seen["equal steps"] else 1


if __name__ == "__main__":
    sys.exit(main())
