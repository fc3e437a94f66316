"""Measure planning: building a plan of 10^9 rows, and asking it for rows.

The engine asks for spans of consecutive rows while it reads, so what a row costs here is taken from the rate of the
whole loader. Each case prints the cost of the first span (a run's first batch waits for it), then the mean over the
following spans: permuting a block (15 ns a row on AVX-512, once for each rank that draws from it), one gather over
the lanes, and finding the chunk of each row (10 ns). Small blocks add 25 us a block, small spans 50 us a call. Thread
CPU time.

Run: `python bench/plan.py`.
"""

from __future__ import annotations

import time
import tracemalloc
from dataclasses import dataclass

import numpy as np

from penstock.plan import Cursor, EpochPlan, Order, Share, make_plan, plan_epoch
from penstock.plan.plan import Sizes

MILLION = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Case:
    """One shape of dataset and run."""

    num_chunks: int
    chunk_rows: int
    lanes: int
    block: int
    world: int = 1
    span: int = 4096
    position: int = 0

    def plan(self) -> EpochPlan:
        """Return the plan of rank 0."""
        counts = np.full(self.num_chunks, self.chunk_rows)
        share = Share(0, self.world, 256, "drop", False)
        order = Order("lanes", 7, self.lanes, self.block)
        return plan_epoch(counts, order=order, cursor=Cursor(0, position=self.position), share=share)


CASES = [
    Case(num_chunks=10_000, chunk_rows=1000, lanes=1, block=1 << 20),
    Case(num_chunks=10_000, chunk_rows=1000, lanes=96, block=1000),
    Case(num_chunks=10_000, chunk_rows=1000, lanes=96, block=10_000),
    Case(num_chunks=10_000, chunk_rows=1000, lanes=768, block=1400),
    Case(num_chunks=10_000, chunk_rows=1000, lanes=768, block=1400, span=256),
    Case(num_chunks=10_000, chunk_rows=1000, lanes=768, block=12_000, span=65_536),
    Case(num_chunks=10_000, chunk_rows=1000, lanes=96, block=10_000, world=5),
    Case(num_chunks=1000, chunk_rows=10_000, lanes=192, block=164_000),
    Case(num_chunks=1000, chunk_rows=10_000, lanes=192, block=164_000, span=256, position=9 * MILLION),
    Case(num_chunks=MILLION, chunk_rows=1000, lanes=768, block=1000, world=8),
]


def ask(case: Case, *, most_rows: int) -> tuple[float, float]:
    """Return seconds for the first span and nanoseconds a row over the following ones."""
    plan, span = case.plan(), case.span
    begin = time.thread_time()
    plan.rows(0, span)
    first, end = time.thread_time() - begin, min(plan.num_items, most_rows) // span * span
    begin = time.thread_time()
    for lo in range(span, end, span):
        plan.rows(lo, lo + span)
    return first, (time.thread_time() - begin) / max(1, end - span) * 1e9


def build(world: int) -> tuple[float, float, float]:
    """Return seconds and megabytes to build the last rank's plan of 10^6 chunks, and seconds to describe it."""
    counts, order = np.full(MILLION, 1000), Order("lanes", 7, 768, 1000)
    arguments = {"order": order, "cursor": Cursor(0, position=0), "share": Share(world - 1, world, 256, "drop", False)}
    tracemalloc.start()
    begin = time.thread_time()
    plan = plan_epoch(counts, **arguments)
    plan.window_rows()
    plan.rows(0, 256)
    seconds, (_, peak) = time.thread_time() - begin, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    begin = time.thread_time()
    make_plan(counts, **arguments, sizes=Sizes(1000, 1000, 1 << 30, "row group"), least_memory=int)
    return seconds, peak / 1e6, time.thread_time() - begin


def main() -> None:
    """Print both tables."""
    print("| chunks | rows a chunk | lanes | block | world | span | first span, ms | ns a row |\n|" + "---:|" * 8)
    for c in CASES:
        first, row_ns = ask(c, most_rows=4 * MILLION)
        head = f"| {c.num_chunks:,} | {c.chunk_rows:,} | {c.lanes} | {c.block:,} | {c.world} | {c.span:,} "
        print(f"{head}| {first * 1e3:.1f} | {row_ns:.0f} |")
    print("\n| world | build, s | build, MB | describe, s |\n|" + "---:|" * 4)
    for world in (1, 16, 64, 128, 256):
        seconds, megabytes, describe = build(world)
        print(f"| {world} | {seconds:.2f} | {megabytes:.0f} | {describe:.2f} |")


if __name__ == "__main__":
    main()
