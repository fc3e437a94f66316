"""How well the lane order shuffles a dataset sorted by label: 1,000 row groups of 1,000 rows."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.plan import Cursor, Order, Share, choose_lanes, plan_epoch

GROUPS, ROWS = 1000, 1000
TOTAL, BATCH = GROUPS * ROWS, 256
ROW_BYTES = 1000


def order_of(seed, lanes, window_rows):
    chosen = choose_lanes([ROWS] * GROUPS, row_bytes=ROW_BYTES, shuffle_bytes=window_rows * ROW_BYTES, lanes=lanes)
    return Order("lanes", seed, *chosen)


def epoch_of(order):
    plan = plan_epoch(
        [ROWS] * GROUPS, order=order, cursor=Cursor(0, position=0), share=Share(0, 1, BATCH, "drop", False)
    )
    return plan.rows(0, TOTAL)


def distinct(chunk):
    """Distinct row groups in each full batch."""
    full = np.sort(chunk[: TOTAL // BATCH * BATCH].reshape(-1, BATCH), axis=1)
    return 1 + (full[:, 1:] != full[:, :-1]).sum(axis=1)


LANES = [1, 2, 4, 8, 24, 48, 96, 192, 250]
WINDOWS = [50_000, 100_000, 400_000]


@pytest.mark.parametrize("window_rows", WINDOWS)
@pytest.mark.parametrize("lanes", LANES)
def test_a_batch_draws_from_as_many_row_groups_as_there_are_lanes(lanes, window_rows):
    chunk, _ = epoch_of(order_of(3, lanes, window_rows))
    assert distinct(chunk).min() >= min(lanes, BATCH)


@pytest.mark.parametrize("seed", range(20))
def test_position_tells_nothing_of_the_index(seed):
    position = np.arange(TOTAL) - (TOTAL - 1) / 2
    for lanes, window_rows in ((48, 96_000), (192, 400_000)):
        chunk, row = epoch_of(order_of(seed, lanes, window_rows))
        index = chunk * ROWS + row - (TOTAL - 1) / 2
        correlation = (position * index).sum() / (position * position).sum()  # both are their own ranks
        assert abs(correlation) <= 4 / np.sqrt(GROUPS)


def test_the_figures_of_the_design():
    """L=48, B=1,000: a batch of 256 draws from about 80 row groups; a true permutation from about 225."""
    chunk, _ = epoch_of(Order("lanes", 3, 48, 1000))
    assert distinct(chunk).mean() == pytest.approx(80, abs=2)
    chunk, _ = epoch_of(Order("lanes", 3, 1, TOTAL))
    assert distinct(chunk).mean() == pytest.approx(226, abs=1)
