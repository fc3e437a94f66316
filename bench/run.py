"""Penstock against the least work by hand, in pairs, as a Markdown table.

Runs `limit.py` and `ours.py` in turn, each in a process of its own, five pairs for every workload, the first of a pair
changing places. The ratio is the median of the pairs' ratios, because on a shared machine only neighbours in time can
be compared; rates and seconds are medians, memory is the most of all runs.

How to read it: what a workload misses of 1.00 is the price of order, batches and bounded memory. It is smallest where
decoding dominates (JPEG, PNG), and largest where a row is a few hundred bytes and shuffling it costs as much as reading
it (the shuffled table). docs/performance.md has the figures and the profiles.

Usage: `python bench/run.py --data FOLDER [--workload NAME]... [--pairs 5] [--output FILE]`. Datasets that are missing
are made first. The machine should be quiet.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import data
from cases import CASES, Case, find

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True, kw_only=True)
class Result:
    """What the pairs of one workload gave."""

    case: Case
    ours: tuple[dict[str, Any], ...]
    limit: tuple[dict[str, Any], ...]

    @property
    def ratios(self) -> list[float]:
        """Penstock's rate over the limit's, pair by pair, smallest first."""
        return sorted(_rate(ours) / _rate(limit) for ours, limit in zip(self.ours, self.limit, strict=True))

    @property
    def ratio(self) -> float:
        """The median of the pairs."""
        return statistics.median(self.ratios)

    def line(self) -> str:
        """Return one line of the table."""
        rates = [statistics.median(map(_rate, runs)) for runs in (self.ours, self.limit)]
        first = statistics.median(run["first_s"] for run in self.ours)
        peaks = [max(run["peak_bytes"] for run in runs) / 1e6 for runs in (self.ours, self.limit)]
        cells = [self.case.title, f"{rates[0]:,.0f}", f"{rates[1]:,.0f}", f"**{self.ratio:.2f}**"]
        cells += [f"{self.ratios[0]:.2f} to {self.ratios[-1]:.2f}", f"{self.case.aim:.2f}", f"{first:.2f} s"]
        return "| " + " | ".join([*cells, f"{peaks[0]:,.0f} MB", f"{peaks[1]:,.0f} MB"]) + " |"


HEADER = (
    "| workload | Penstock rows/s | limit rows/s | ratio | pairs | wanted | first batch | peak memory | limit's |\n"
    "|---|--:|--:|--:|--:|--:|--:|--:|--:|"
)


def _rate(run: dict[str, Any]) -> float:
    return float(run["rows"] / run["seconds"])


def _measure(script: str, case: Case, folder: Path) -> dict[str, Any]:
    path = [str(HERE.parent / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}
    command = [sys.executable, str(HERE / script), str(folder), case.name]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"{script} {case.name} failed:\n{done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def run(case: Case, folder: Path, pairs: int) -> Result:
    """Measure one workload; a first run of the limit, which warms the page cache, does not count."""
    _measure("limit.py", case, folder)
    ours, limit = [], []
    for pair in range(pairs):
        _say(f"{case.name}: pair {pair + 1} of {pairs}")
        for script in ("limit.py", "ours.py") if pair % 2 else ("ours.py", "limit.py"):
            (ours if script == "ours.py" else limit).append(_measure(script, case, folder))
    _say("")
    return Result(case=case, ours=tuple(ours), limit=tuple(limit))


def _say(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{text}\x1b[K")
        sys.stderr.flush()


def machine() -> str:
    """Return what the figures depend on: cores, system and versions."""
    words = [f"{os.cpu_count()} cores", platform.system(), platform.machine(), f"Python {platform.python_version()}"]
    for name in ("numpy", "pyarrow", "simplejpeg", "imagecodecs"):
        try:
            words.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(words)


def main() -> None:
    """Measure what the command line names, or everything, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the datasets; missing ones are made")
    parser.add_argument("--workload", type=find, action="append", help=", ".join(case.name for case in CASES))
    parser.add_argument("--pairs", type=int, default=5, help="runs of each (5)")
    parser.add_argument("--output", type=Path, help="write the table there too")
    args = parser.parse_args()
    cases = args.workload or CASES
    for case in cases:
        data.generate(data.find(case.dataset), args.data)
    lines = [f"{machine()}; {args.pairs} pairs, medians", "", *HEADER.splitlines()]
    print("\n".join(lines), flush=True)
    for case in cases:
        lines.append(run(case, args.data, args.pairs).line())
        print(lines[-1], flush=True)
    if args.output:
        args.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
