"""Penstock against Petastorm itself, in pairs: the same user program with either package, as a Markdown table.

Runs `petastorm_user.py` in turn with this Python (Penstock) and with one that has Petastorm 0.13.1, each run a process
of its own. The factor is the median of the pairs' factors. Petastorm's default thread pool is known to lose rows; what
it delivers is counted, and the table says so where rows are missing.

Usage: `python bench/against_petastorm.py --data FOLDER --petastorm PYTHON [--case NAME]... [--pairs 3]`. PYTHON is that
of a venv (3.11) with `pip install petastorm==0.13.1 pyarrow==14.0.2 "numpy<2" "pandas<2.2" pyspark==3.5.3
"setuptools<70" "opencv-python-headless<4.11" torch "tensorflow-cpu<2.18"`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import data
from petastorm_user import TAKEN

HERE = Path(__file__).resolve().parent
WANTED = {"jpeg": 4, "npy": 20, "table": 3, "tf-jpeg": 4}
TITLES = {
    "jpeg": "JPEGs of 256x256, `make_reader`, `DataLoader`",
    "npy": "28x28 `.npy` cells, `make_reader`, `DataLoader`",
    "table": "40 scalar columns, `make_batch_reader`, `BatchedDataLoader`, shuffled",
    "tf-jpeg": "JPEGs of 256x256, `make_reader`, `make_petastorm_dataset`",
}
DATASETS = {"jpeg": "p_jpeg", "npy": "p_mnist", "table": "table", "tf-jpeg": "p_jpeg"}


def _measure(python: str, package: str, folder: Path, case: str) -> dict[str, Any]:
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore"}
    if package != "petastorm":
        path = [str(HERE.parent / "src"), os.environ.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    command = [python, str(HERE / "petastorm_user.py"), package, str(folder), case]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"{package} {case} failed:\n{done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def line(case: str, ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> str:
    """Return one line of the table."""
    rates = [[run["rows"] / run["seconds"] for run in runs] for runs in (ours, theirs)]
    factors = sorted(one / two for one, two in zip(*rates, strict=True))
    medians = [f"{statistics.median(one):,.0f}" for one in rates]
    lost = max(TAKEN[case] - run["rows"] for run in theirs)
    cells = [TITLES[case], *medians, f"**{statistics.median(factors):.1f}**", f"{factors[0]:.1f} to {factors[-1]:.1f}"]
    return "| " + " | ".join([*cells, str(WANTED[case]), f"{lost:,}" if lost else "none"]) + " |"


def main() -> None:
    """Measure what the command line names, or everything, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the datasets; missing ones are made")
    parser.add_argument("--petastorm", required=True, help="a Python that has Petastorm 0.13.1")
    parser.add_argument("--case", action="append", choices=TITLES)
    parser.add_argument("--pairs", type=int, default=3)
    args = parser.parse_args()
    print("| program | Penstock rows/s | Petastorm rows/s | factor | pairs | wanted | rows Petastorm lost |")
    print("|---|--:|--:|--:|--:|--:|--:|", flush=True)
    for case in args.case or TITLES:
        data.make_readable_by_petastorm(data.generate(data.find(DATASETS[case]), args.data))
        ours, theirs = [], []
        for _ in range(args.pairs):
            ours.append(_measure(sys.executable, "penstock.petastorm", args.data, case))
            theirs.append(_measure(args.petastorm, "petastorm", args.data, case))
        print(line(case, ours, theirs), flush=True)


if __name__ == "__main__":
    main()
