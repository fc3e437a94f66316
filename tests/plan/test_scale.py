"""A plan of 10^9 rows in 10^6 chunks: small, quick, every row once, equal steps.

Seconds and bytes are guarded at ten times the limit here; bench/plan.py measures them.
"""

from __future__ import annotations

import time
import tracemalloc

import numpy as np
import pytest

from penstock.plan import Cursor, Order, Share, plan_epoch
from penstock.plan.plan import count_reads
from tests.depth import depth

CHUNKS, ROWS = 1_000_000, 1000
COUNTS = np.full(CHUNKS, ROWS)
ORDER = Order("lanes", 7, 768, 1000)


def plan_of(rank, world, *, order=ORDER, position=0, remainder="drop"):
    cursor = Cursor(2, position=position) if not order.is_line else Cursor.start(2, order, CHUNKS * ROWS)
    return plan_epoch(COUNTS, order=order, cursor=cursor, share=Share(rank, world, 256, remainder, False))


@pytest.mark.parametrize("world", [16, 64, 128, 256])
def test_a_plan_is_built_quickly_and_small(world):
    tracemalloc.start()
    try:
        begin = time.perf_counter()
        plan = plan_of(world - 1, world)
        plan.rows(0, 256)
        assert len(plan.visits) > CHUNKS // world
        assert plan.window_rows() < 768 // world * 4 * ROWS
        seconds, (_, peak) = time.perf_counter() - begin, tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert seconds < 50
    assert peak < 500e6


@pytest.mark.parametrize("world", [16, 64, 128, 256])
def test_bytes_are_read_once_over_the_ranks(world):
    reads = count_reads(COUNTS, order=ORDER, cursor=Cursor(2, position=0), share=Share(0, world, 256, "drop", False))
    assert reads.rows_needed == CHUNKS * ROWS
    assert reads.factor <= 1.05


@pytest.mark.parametrize("world", [16, 64, 128, 256])
def test_steps_are_equal_and_visits_cover_each_chunk(world):
    ranks = range(world) if depth(0, 1) else sorted({0, 1, world // 2, world - 1})
    seen, steps = np.zeros(CHUNKS, dtype=np.int64), set()
    for rank in ranks:
        plan = plan_of(rank, world)
        steps.add((plan.num_items, plan.num_steps))
        seen += np.bincount(plan.visits.chunk, minlength=CHUNKS)
    assert steps == {(CHUNKS * ROWS // world, -(-CHUNKS * ROWS // world // 256))}
    if len(ranks) == world:
        assert seen.min() == 1
        assert seen.sum() <= CHUNKS + 768


def test_sampled_spans_of_all_ranks_interleave_to_the_order_of_one():
    world, span = 16, 512
    one, ranks = plan_of(0, 1), [plan_of(rank, world) for rank in range(world)]
    for lo in (0, 31_249_000, 62_499_488):
        parts = [plan.rows(lo, lo + span) for plan in ranks]
        chunk, row = (np.stack(column, axis=1).reshape(-1) for column in zip(*parts, strict=True))
        expected = one.rows(lo * world, (lo + span) * world)
        assert (chunk == expected[0]).all()
        assert (row == expected[1]).all()


@pytest.mark.parametrize("kind", ["natural", "groups"])
def test_lines_of_that_size_are_built_as_well(kind):
    order = Order(kind, 7)
    plan = plan_of(200, 256, order=order, remainder="uneven")
    assert plan.window_rows() == ROWS
    assert sum(b - a for _, a, b in plan.runs(1_000_000, 1_000_256)) == 256


def every_row_once(counts, order, world):
    """Mark each row that each rank delivers; a byte a row."""
    borders = np.concatenate(([0], np.cumsum(counts)))
    seen = np.zeros(borders[-1], dtype=np.uint8)
    for rank in range(world):
        cursor = Cursor(2, position=0)
        plan = plan_epoch(counts, order=order, cursor=cursor, share=Share(rank, world, 256, "uneven", False))
        for lo in range(0, plan.num_items, 1 << 20):
            chunk, row = plan.rows(lo, min(lo + (1 << 20), plan.num_items))
            seen[borders[chunk] + row] += 1
    return bool((seen == 1).all())


@pytest.mark.timeout(depth(300, 3600))
def test_every_row_comes_once():
    """A fiftieth of the size by default; all 10^9 rows, with 64 ranks, in the soak."""
    assert every_row_once(COUNTS[: depth(20_000, CHUNKS)], ORDER, 64)
