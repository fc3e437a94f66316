"""Reads over all ranks against the sum of the ranks' own visits, and the figure for mixing against real batches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from penstock.plan import Cursor, Order, Share, plan_epoch
from penstock.plan.plan import ReadAmplification, chunks_per_batch, count_reads
from tests.depth import depth
from tests.plan.cases import cases


@given(case=cases())
@settings(max_examples=depth(50, 1000), deadline=None)
def test_reads_are_the_sum_of_the_ranks_visits(case):
    counts, read, needed = np.array(case.counts, dtype=np.int64), 0, set()
    for plan in case.plans():
        visits = plan.visits
        own = visits.first < plan._num_real  # padding is not counted
        merged = type(visits)(
            visits.chunk[own], visits.first[own], np.minimum(visits.last[own], plan._num_real)
        ).merged()
        read += int(counts[merged.chunk].sum())
        needed |= set(merged.chunk.tolist())
    got = count_reads(counts, order=case.order, cursor=case.cursor, share=case.share(0))
    assert got == ReadAmplification(read, int(counts[list(needed)].sum()) if needed else 0)


def test_many_stays_are_counted_one_by_one(monkeypatch):
    counts, order = np.full(2000, 100), Order("lanes", 1, 24, 150)
    arguments = {"order": order, "cursor": Cursor(0, position=777), "share": Share(0, 5, 8, "drop", False)}
    exact = count_reads(counts, **arguments)
    monkeypatch.setattr("penstock.plan.plan.EXACT_STAYS", 0)
    assert count_reads(counts, **arguments).factor == pytest.approx(exact.factor, rel=0.01)


@pytest.mark.parametrize(("lanes", "world"), [(24, 1), (24, 8), (1, 1), (4, 2), (24, 5)])
@pytest.mark.parametrize("block", [250, 1000, 4000])
def test_mixing_is_what_batches_show(lanes, world, block):
    counts = np.random.default_rng(1).integers(100, 300, 500)
    share = Share(world - 1, world, 64, "drop", False)
    plan = plan_epoch(counts, order=Order("lanes", 5, lanes, block), cursor=Cursor(0, position=0), share=share)
    chunk, _ = plan.rows(0, plan.num_items)
    middle = range(plan.num_items // 4 // 64 * 64, plan.num_items * 3 // 4, 64)
    seen = np.mean([len(np.unique(chunk[lo : lo + 64])) for lo in middle])
    assert chunks_per_batch(plan) == pytest.approx(seen, rel=0.25)
