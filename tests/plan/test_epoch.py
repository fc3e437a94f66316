"""The fast plan against its plain twin, for any rows per chunk, order, place and share."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from penstock.errors import InternalError, PlanError, StateMismatch
from penstock.plan import Cursor, Order, Share, plan_epoch, steps_left
from tests.depth import depth
from tests.plan import plain
from tests.plan.cases import cases

pytestmark = pytest.mark.timeout(depth(300, 3600))
deep = settings(max_examples=depth(50, 1000), deadline=None)


def pairs(chunk, row):
    return list(zip(chunk.tolist(), row.tolist(), strict=True))


@given(case=cases())
@deep
def test_items_equal_the_twins(case):
    for rank, plan in enumerate(case.plans()):
        positions = [p for batch in case.dealt[rank] for p in batch]
        assert plan.total_rows == case.total
        assert plan.num_items == len(positions)
        assert plan.num_steps == len(case.dealt[rank])
        assert plan.max_steps == max(map(len, case.dealt))
        assert plan.positions(0, plan.num_items).tolist() == positions
        assert plan.valid(0, plan.num_items).tolist() == [p < case.total for p in positions]
        expected = [case.plain_order[plain.repeated(case.total, p)] for p in positions]
        assert pairs(*plan.rows(0, plan.num_items)) == expected


@given(case=cases(), data=st.data())
@deep
def test_any_spans_equal_one_span(case, data):
    plan = case.plan(data.draw(st.integers(0, case.world - 1)))
    whole = pairs(*plan.rows(0, plan.num_items))
    fresh = case.plan(plan.share.rank)
    for _ in range(6):
        lo = data.draw(st.integers(0, plan.num_items))
        hi = data.draw(st.integers(lo, plan.num_items))
        assert pairs(*fresh.rows(lo, hi)) == whole[lo:hi]
        assert fresh.positions(lo, hi).tolist() == plan.positions(0, plan.num_items).tolist()[lo:hi]
        assert fresh.valid(lo, hi).tolist() == plan.valid(0, plan.num_items).tolist()[lo:hi]
        runs = fresh.runs(lo, hi)
        if case.order.is_line:
            assert [(c, r) for c, a, b in runs for r in range(a, b)] == whole[lo:hi]
            assert all(a < b for _, a, b in runs)
        else:
            assert runs is None


@given(case=cases())
@deep
def test_every_row_comes_once_over_the_ranks(case):
    assume(not case.drop_last)
    got = [pair for plan in case.plans() for pair in pairs(*plan.rows(0, plan._num_real))]
    left = plain.left_positions(case.total, case.cursor.position, case.cursor.left)
    expected = sorted(case.plain_order[p] for p in left)
    if case.remainder == "drop":
        assert len(set(got)) == len(got) == len(left) // case.world * case.world
        assert set(got) <= set(expected)
    else:
        assert sorted(got) == expected


@given(case=cases())
@deep
def test_visits_equal_the_twins(case):
    order = case.order
    stays = {} if order.is_line else plain.stays(case.counts, order.seed, case.cursor.epoch, order.lanes, order.block)
    for rank, plan in enumerate(case.plans()):
        positions = [p for batch in case.dealt[rank] for p in batch]
        item_at = {p: i for i, p in enumerate(positions)}
        expected = [(c, items) for (c, _), ps in stays.items() if (items := [item_at[p] for p in ps if p in item_at])]
        if order.is_line:
            expected = line_stays(plan)
        else:
            padding = [i for i, p in enumerate(positions) if p >= case.total]
            expected += [(case.plain_order[plain.repeated(case.total, positions[i])][0], [i]) for i in padding]
        found = plan.visits
        got = list(zip(found.chunk.tolist(), found.first.tolist(), found.last.tolist(), strict=True))
        assert sorted(got) == sorted((c, min(items), max(items) + 1) for c, items in expected)
        assert found.first.tolist() == sorted(found.first.tolist())


def line_stays(plan):
    """Runs of items of one chunk."""
    stays: list[tuple[int, list[int]]] = []
    for item, (chunk, _) in enumerate(pairs(*plan.rows(0, plan.num_items))):
        if not stays or stays[-1][0] != chunk:
            stays.append((chunk, []))
        stays[-1][1].append(item)
    return stays


@given(case=cases())
@deep
def test_each_item_lies_within_a_visit_of_its_chunk(case):
    for plan in case.plans():
        visits = plan.visits
        for item, (chunk, _) in enumerate(pairs(*plan.rows(0, plan.num_items))):
            assert ((visits.chunk == chunk) & (visits.first <= item) & (item < visits.last)).any()


@given(case=cases())
@deep
def test_window_rows_equal_a_count_item_by_item(case):
    for plan in case.plans():
        visits, most = plan.visits, 0
        for item in range(plan.num_items):
            here = (visits.first <= item) & (item < visits.last)
            most = max(most, sum(case.counts[c] for c in set(visits.chunk[here].tolist())))
        assert plan.window_rows() == most


@given(case=cases())
@deep
def test_after_gives_what_every_rank_has_left(case):
    steps_of = [len(batches) for batches in case.dealt]
    left = plain.left_positions(case.total, case.cursor.position, case.cursor.left)
    for steps in range(max(steps_of) + 2):
        cursors = {plan.after(steps) for plan in case.plans()}
        assert len(cursors) == 1  # the same on every rank
        (cursor,) = cursors
        if steps >= max(steps_of):
            assert cursor == Cursor.start(case.cursor.epoch + 1, case.order, case.total)
            continue
        out = {p for batches in case.dealt for batch in batches[:steps] for p in batch}
        rest = [p for p in left if p not in out]
        assert cursor.epoch == case.cursor.epoch
        assert plain.left_positions(case.total, cursor.position, cursor.left) == rest
        if case.order.is_line:
            assert cursor.left == plain.intervals(rest)


@given(case=cases(), data=st.data())
@deep
def test_legs_under_other_worlds_give_one_order(case, data):
    """Stop after some steps, go on with another world, batch size and remainder: nothing is lost or repeated."""
    cursor, epoch, seen = Cursor.start(2, case.order, case.total), 2, []
    for _ in range(8):
        world, batch = data.draw(st.sampled_from([1, 2, 3, 5])), data.draw(st.integers(1, 9))
        plans = [
            plan_epoch(case.counts, order=case.order, cursor=cursor, share=Share(r, world, batch, "uneven", False))
            for r in range(world)
        ]
        steps = data.draw(st.integers(0, plans[0].max_steps))
        got = [(p, *pair) for plan in plans for p, pair in zip(*delivered(plan, steps), strict=True)]
        seen += sorted(got)
        cursor = plans[0].after(steps)
        if cursor.epoch != epoch:
            break
    else:
        plan = plan_epoch(case.counts, order=case.order, cursor=cursor, share=Share(0, 1, 1, "uneven", False))
        seen += [(p, *pair) for p, pair in zip(*delivered(plan, plan.num_steps), strict=True)]
    order = plain.order(case.counts, case.order.kind, case.order.seed, 2, case.order.lanes, case.order.block)
    assert sorted(seen) == [(p, *pair) for p, pair in enumerate(order)]
    if not case.order.is_line:
        assert seen == sorted(seen)


def delivered(plan, steps):
    hi = min(steps * plan.share.batch_size, plan.num_items)
    return plan.positions(0, hi).tolist(), pairs(*plan.rows(0, hi))


@given(case=cases(), epochs=st.integers(1, 4))
@deep
def test_steps_left_counts_the_pass(case, epochs):
    for rank, plan in enumerate(case.plans()):
        steps, cursor = plan.num_steps, plan.after(plan.max_steps)
        while cursor.epoch % epochs:
            plan = plan_epoch(case.counts, order=case.order, cursor=cursor, share=case.share(rank))
            steps, cursor = steps + plan.num_steps, plan.after(plan.max_steps)
        assert steps_left(case.total, cursor=case.cursor, share=case.share(rank), epochs=epochs) == steps


@pytest.mark.parametrize("lanes", [1, 2, 3, 24, 96, 768, 5000])
@pytest.mark.parametrize("world", [1, 2, 5, 16, 768])
def test_long_spans_equal_the_twin(lanes, world):
    """Spans longer than the ring, blocks that wrap in it, and lanes shared by ranks."""
    counts = np.random.default_rng(lanes).integers(0, 300, 400)
    order, cursor = Order("lanes", 11, lanes, 777), Cursor(1, position=12_345)
    expected = plain.order(counts.tolist(), "lanes", 11, 1, lanes, 777)
    for rank in {0, world // 3, world - 1}:
        plan = plan_epoch(counts, order=order, cursor=cursor, share=Share(rank, world, 64, "uneven", False))
        assert pairs(*plan.rows(0, plan.num_items)) == expected[12_345 + rank :: world]
        at, got = 0, []
        for size in [1, 300, 5000, 3, 20_000] * 20:
            got += pairs(*plan.rows(at, min(at + size, plan.num_items)))
            at = min(at + size, plan.num_items)
        assert got == expected[12_345 + rank :: world][:at]


def test_an_empty_dataset_has_no_items():
    for order in (Order("natural", 0), Order("lanes", 0, 4, 10)):
        for counts in ([], [0, 0]):
            for remainder in ("drop", "pad", "uneven"):
                plan = plan_epoch(
                    counts, order=order, cursor=Cursor.start(0, order, 0), share=Share(1, 3, 4, remainder, False)
                )
                assert (plan.num_items, plan.num_steps, len(plan.visits), plan.window_rows()) == (0, 0, 0, 0)
                assert pairs(*plan.rows(0, 0)) == []
                assert plan.after(0) == Cursor.start(1, order, 0)


def test_a_cursor_outside_the_epoch_is_refused():
    share = Share(0, 1, 4, "drop", False)
    for order, cursor in (
        (Order("lanes", 0, 1, 1), Cursor(0, position=11)),
        (Order("lanes", 0, 1, 1), Cursor(0, position=-1)),
        (Order("natural", 0), Cursor(0, left=((0, 11),))),
        (Order("natural", 0), Cursor(0, left=((4, 6), (2, 3)))),
        (Order("natural", 0), Cursor(0, left=((4, 4),))),
        (Order("natural", 0), Cursor(0, position=3)),
    ):
        with pytest.raises(StateMismatch):
            plan_epoch([4, 6], order=order, cursor=cursor, share=share)


def test_options_that_cannot_be_planned_are_refused():
    with pytest.raises(PlanError, match=r"rank 2 of world 2"):
        Share(2, 2, 1, "drop", False)
    with pytest.raises(PlanError, match=r"batch_size must be at least 1; got 0"):
        Share(0, 1, 0, "drop", False)
    with pytest.raises(PlanError, match=r"remainder must be .* got 'keep'"):
        Share(0, 1, 1, "keep", False)
    with pytest.raises(PlanError, match=r"rows per chunk"):
        plan_epoch([3, -1], order=Order("natural", 0), cursor=Cursor(0, left=()), share=Share(0, 1, 1, "drop", False))
    with pytest.raises(PlanError, match=r"epochs must be at least 1"):
        steps_left(3, cursor=Cursor(0, position=0), share=Share(0, 1, 1, "drop", False), epochs=0)


def test_items_outside_the_plan_are_our_bug():
    plan = plan_epoch(
        [5], order=Order("natural", 0), cursor=Cursor(0, left=((0, 5),)), share=Share(0, 1, 2, "drop", False)
    )
    for lo, hi in ((0, 6), (-1, 2), (3, 2)):
        with pytest.raises(InternalError):
            plan.rows(lo, hi)
