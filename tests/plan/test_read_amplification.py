"""Reads over all ranks against the sum of the ranks' own visits, and the figure for mixing against real batches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from penstock.plan import Cursor, Order, Share, plan_epoch
from penstock.plan.plan import Mixing, ReadAmplification, count_reads
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
    counts, groups = np.random.default_rng(1).integers(100, 300, 500), np.arange(500) // 5
    share, seen, expected = Share(world - 1, world, 64, "drop", False), [], []
    for seed in range(40):
        plan = plan_epoch(counts, order=Order("lanes", seed, lanes, block), cursor=Cursor(0, position=0), share=share)
        middle = plan.num_items // 2 // 64 * 64
        chunk, _ = plan.rows(middle, middle + 64)
        seen.append([len(np.unique(chunk)), len(np.unique(groups[chunk]))])
        mixing = Mixing.of(plan, groups)
        expected.append([mixing.chunks, mixing.groups])
        assert mixing.groups < 1.001 * mixing.chunks
        assert mixing.groups < 1.02 * mixing.permuted
        assert Mixing.of(plan, np.arange(500)).groups == mixing.chunks
    assert np.mean(expected, 0) == pytest.approx(np.mean(seen, 0), rel=0.1)


def test_a_true_permutation_mixes_as_rows_drawn_at_random_do():
    counts, groups = np.full(400, 25), np.arange(400) // 10
    plan = plan_epoch(
        counts, order=Order("lanes", 5, 1, 10_000), cursor=Cursor(0, position=0), share=Share(0, 1, 64, "drop", False)
    )
    chunk, _ = plan.rows(0, plan.num_items)
    seen = np.mean([len(np.unique(groups[chunk[lo : lo + 64]])) for lo in range(0, 9_900, 64)])
    mixing = Mixing.of(plan, groups)
    assert mixing.groups == pytest.approx(mixing.permuted)
    assert mixing.permuted == pytest.approx(seen, rel=0.02)
