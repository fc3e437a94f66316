"""The plan as a value to print, and its warnings with their cures."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings

from penstock.plan import Cursor, EpochPlan, Order, Share, Sizes, choose_lanes, make_plan
from penstock.plan.plan import bytes_text
from tests.depth import depth
from tests.plan.cases import cases


def plan_of(
    counts, *, world=1, row_bytes=1000, shuffle_bytes=1 << 30, lanes=None, remainder="drop", kind="lanes", **sizes
):
    counts = np.asarray(counts)
    chosen = choose_lanes(counts, row_bytes=row_bytes, shuffle_bytes=shuffle_bytes, lanes=lanes)
    order = Order(kind, 7, *(chosen if kind == "lanes" else ()), parts="groups" in sizes)
    return make_plan(
        counts,
        order=order,
        cursor=Cursor.start(0, order, int(counts.sum())),
        share=Share(0, world, 256, remainder, False),
        sizes=Sizes(row_bytes, row_bytes, shuffle_bytes, "row group", **sizes),
        least_memory=lambda plan: plan.window_rows() * row_bytes,
    )


def test_a_plan_prints_what_will_happen():
    plan = plan_of([1000] * 1000, world=5, row_bytes=1100, shuffle_bytes=1 << 28, lanes=50)
    assert str(plan).splitlines() == [
        "Plan",
        "  rows     1,000,000 in 1,000 row groups",
        "  order    lanes-1: rows shuffled over 50 lanes in blocks of 3,880 rows, seed 7",
        "  steps    782 on each of 5 ranks: batches of 256 rows",
        "  buffer   256.0 MiB for the job, at most 52.5 MiB on this rank",
        "  reads    1.000 bytes by all ranks for each byte needed",
        "  mixing   a batch of this rank draws from about 46 row groups; under a true permutation from 226",
        "  memory   at least 52.5 MiB on this rank",
    ]
    assert repr(plan) == (
        "Plan(epoch=0, rank=0/5, steps=782, rows=1_000_000, order='lanes-1', lanes=50, block=3880, left=1_000_000)"
    )


def test_a_plan_of_parts_names_them_their_row_groups_and_what_their_pages_cost():
    options = {"row_bytes": 20_000, "shuffle_bytes": 1 << 28}
    plan = plan_of([100] * 14_800, groups=np.arange(14_800) // 74, page_factor=1.02, **options)
    rows, order, _, _, reads, mixing = str(plan).splitlines()[1:7]
    assert rows == "  rows     1,480,000 in 14,800 parts of 200 row groups, 1.9 MiB each"
    assert order.startswith("  order    lanes-2: rows shuffled over ")
    assert reads.endswith(" for each byte needed (pages of parts: 1.020, measured on a few row groups)")
    assert re.fullmatch(r"  mixing   .* draws from about \d\d row groups; under a true permutation from 145", mixing)
    assert plan.read_factor >= 1.02
    assert (plan.num_chunks, plan.num_groups, plan.page_factor, plan.chunk_bytes) == (14_800, 200, 1.02, 2_000_000)
    whole = plan_of([7_400] * 200, **options)
    assert (whole.num_chunks, whole.num_groups, whole.page_factor) == (200, 200, None)
    assert whole.groups_per_batch == whole.chunks_per_batch < 3
    assert whole.permuted_groups_per_batch == plan.permuted_groups_per_batch
    assert plan.groups_per_batch > 20 * whole.groups_per_batch


def test_advice_for_parts_never_asks_for_smaller_row_groups():
    crowded = plan_of([50_000] * 40, row_bytes=2000, shuffle_bytes=1 << 26, groups=np.arange(40) // 2, world=3)
    assert len(crowded.warnings) == 3
    assert "smaller" not in " ".join(crowded.warnings)
    assert "a part of a row group of 50,000 rows has" in " ".join(crowded.warnings)
    few = plan_of([100] * 150, row_bytes=20_000, groups=np.arange(150) // 75, shuffle_bytes=1 << 26)
    assert few.warnings == (), "there are two row groups: a batch cannot draw from more"


@given(case=cases())
@settings(max_examples=depth(50, 500), deadline=None)
def test_any_plan_can_be_printed(case):
    share, sizes = case.share(case.world - 1), Sizes(8, 8, 500, "row group")
    plan = make_plan(
        case.counts, order=case.order, cursor=case.cursor, share=share, sizes=sizes, least_memory=EpochPlan.window_rows
    )
    assert plan.num_steps == len(case.dealt[-1])
    assert (plan.least_steps, plan.max_steps) == (min(map(len, case.dealt)), max(map(len, case.dealt)))
    assert "\n" not in repr(plan)
    assert len(str(plan).splitlines()) >= 6


def test_the_remainder_is_told():
    assert "rows dropped: 4" in str(plan_of([1004] * 1, world=5))
    assert "rows of padding: 1" in str(plan_of([1004] * 1, world=5, remainder="pad"))
    assert "steps    3 to 4 on each of 5 ranks" in str(plan_of([256 * 15 + 1], world=5, remainder="uneven"))


def test_a_world_that_does_not_divide_the_lanes_is_told_the_lanes_that_fit():
    plan = plan_of([1000] * 10_000, world=5, row_bytes=100)
    assert plan.read_factor == pytest.approx(5, rel=0.01)
    (warning,) = plan.warnings
    assert "5 ranks do not divide 768 lanes" in warning
    assert plan_of([1000] * 10_000, world=5, row_bytes=100, lanes=named_lanes(warning)).warnings == ()


def test_lanes_that_cut_too_many_chunks_are_told_fewer():
    plan = plan_of([1000] * 100, world=8, row_bytes=18_000)
    (warning,) = [w for w in plan.warnings if "bytes needed" in w]
    assert "24 lanes cut too many row groups; start the run with lanes=16" in warning


def named_lanes(warning):
    return int(re.search(r"lanes=(\d+)", warning)[1])


@pytest.mark.parametrize("world", [1, 2, 3, 5, 7, 12, 48])
@pytest.mark.parametrize("num_chunks", [4, 30, 100, 250, 3000])
@pytest.mark.parametrize("row_bytes", [100, 50_000])
def test_the_lanes_that_are_named_do_fit(world, num_chunks, row_bytes):
    counts = np.random.default_rng(num_chunks).integers(1, 500, num_chunks)
    plan = plan_of(counts, world=world, row_bytes=row_bytes, shuffle_bytes=1 << 27)
    reads = [w for w in plan.warnings if "times the bytes needed" in w]
    assert bool(reads) == (plan.read_factor > 1.2)
    if not reads:
        return
    if "no number of lanes helps" in reads[0]:
        assert num_chunks < world
        return
    found = re.search(r"lanes=(\d+)(?: and shuffle_bytes=(\d+) << 20)?", reads[0])
    shuffle_bytes = int(found[2]) << 20 if found[2] else 1 << 27
    better = plan_of(counts, world=world, row_bytes=row_bytes, shuffle_bytes=shuffle_bytes, lanes=int(found[1]))
    assert int(found[1]) % world == 0
    if "only lowers it to" in reads[0]:
        assert num_chunks < 8 * world
        assert better.read_factor <= 0.8 * plan.read_factor
    else:
        assert better.read_factor <= 1.2


def test_a_poorly_mixed_batch_is_told():
    plan = plan_of([50_000] * 40, row_bytes=2000, shuffle_bytes=1 << 28)
    assert [w for w in plan.warnings if re.search(r"from about \d row groups only.*smaller row groups", w)]


def test_a_batch_that_draws_from_as_many_as_under_a_true_permutation_is_not_called_poorly_mixed():
    few = plan_of([10_000] * 5, row_bytes=2000, shuffle_bytes=9 << 20, lanes=5)
    assert few.order.block < few.num_rows
    assert few.groups_per_batch == pytest.approx(few.permuted_groups_per_batch, rel=0.1)
    assert few.permuted_groups_per_batch == pytest.approx(5)
    assert not [w for w in few.warnings if "poorly mixed" in w]
    one_lane = plan_of([10_000] * 5, row_bytes=2000, shuffle_bytes=9 << 20, lanes=1)
    assert [w for w in one_lane.warnings if "poorly mixed" in w]


def test_what_makes_chunks_smaller_is_asked_only_if_a_warning_needs_it():
    asked = []

    def smaller():
        asked.append(1)
        return "buy a saw"

    assert plan_of([1000] * 3, smaller=smaller).warnings == ()
    assert not asked
    plan = plan_of([50_000] * 40, row_bytes=2000, shuffle_bytes=1 << 26, smaller=smaller)
    assert asked
    assert [w for w in plan.warnings if "poorly mixed: buy a saw, or start the run with a larger shuffle_bytes" in w]
    assert "smaller row groups" not in str(plan)


def test_one_of_something_is_told_in_the_singular_and_one_rank_has_the_buffer_of_the_job():
    rows, _, _, buffer, _, mixing, _ = str(plan_of([100])).splitlines()[1:]
    assert rows == "  rows     100 in 1 row group"
    assert buffer == "  buffer   at most 97.7 KiB on this rank"
    assert mixing == "  mixing   a batch of this rank draws from about 1 row group; under a true permutation from 1"
    parts = plan_of([100, 100], groups=np.zeros(2, np.int64))
    assert "rows     200 in 2 parts of 1 row group, 97.7 KiB each" in str(parts)


def test_reads_that_memory_may_save_are_told_as_the_most():
    again = plan_of([1000] * 100, row_bytes=1000, shuffle_bytes=1 << 24, lanes=7)
    assert again.read_factor > 1.001
    assert f"reads    at most {again.read_factor:.3f} bytes by this rank" in str(again)
    assert "reads    1.000 bytes by this rank" in str(
        plan_of([1000] * 100, row_bytes=1000, shuffle_bytes=1 << 24, lanes=1)
    )


def test_a_true_permutation_is_never_called_poorly_mixed():
    assert plan_of([1000] * 3).warnings == ()


def test_a_chunk_larger_than_the_window_is_told():
    plan = plan_of([50_000] * 40, row_bytes=2000, shuffle_bytes=1 << 26)
    assert any("a row group of 50,000 rows has 100,000,000 bytes" in warning for warning in plan.warnings)


def test_lines_have_no_lanes_to_name():
    plan = plan_of([1000] * 10, world=16, kind="groups")
    assert plan.chunks_per_batch is None
    assert "write smaller row groups" in plan.warnings[0]
    assert plan_of([1000] * 100, world=4, kind="natural").warnings == ()


def test_bytes_are_written_for_people():
    assert [bytes_text(n) for n in (0, 1, 1023, 1024, 1 << 20, 5 << 28, 1 << 50)] == [
        "0 B", "1 B", "1023 B", "1.0 KiB", "1.0 MiB", "1.25 GiB", "1,024.00 TiB",
    ]  # fmt: skip
