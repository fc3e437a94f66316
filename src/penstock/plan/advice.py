"""Say what could be better about a plan and name the cure.

Takes a rank's plan and the sizes of rows; gives sentences for `Plan.warnings`. Changes nothing itself: the cure is an
option of the next fresh run, as a resumed one keeps the lanes of its state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from penstock.plan.cursor import Cursor
from penstock.plan.order import LADDER, MAX_LANES, Order, choose_lanes, rows_in, typical_rows
from penstock.plan.reads import count_reads

if TYPE_CHECKING:
    from penstock.plan.base import EpochPlan

READ_FACTOR = 1.2
"""Bytes read over bytes needed above which a warning names the lanes that fit."""

WORTHWHILE = 0.8
"""A number of lanes is named only if it brings the factor down at least this far."""

FEW_CHUNKS = 8
"""A shuffled batch from fewer chunks than this is poorly mixed."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of a row in its three forms, and of the shuffle buffer."""

    row_bytes: float
    """All columns in memory as they are stored: what decides the lanes of a fresh run."""
    read_row_bytes: float
    """The columns of this run as they wait in the shuffle buffer."""
    decoded_row_bytes: float
    """The columns of this run in a batch."""
    shuffle_bytes: int
    """The shuffle buffer of the whole job."""


def advise(plan: EpochPlan, sizes: Sizes, *, read_factor: float, chunks_per_batch: float | None) -> tuple[str, ...]:
    """Return a sentence for each thing that could be better; none for an empty plan."""
    if not plan.num_items:
        return ()
    found = [_reads(plan, sizes, read_factor), _mixing(plan, chunks_per_batch), _large_chunk(plan, sizes)]
    return tuple(text for text in found if text)


def _reads(plan: EpochPlan, sizes: Sizes, read_factor: float) -> str | None:
    if read_factor <= READ_FACTOR:
        return None
    what = f"all ranks together read {read_factor:.2f} times the bytes needed"
    if plan.order.is_line:
        return f"{what}: {plan.share.world} ranks share few chunks; write smaller row groups"
    cure = fitting_lanes(plan, sizes)
    if cure is None or cure.factor > max(READ_FACTOR, WORTHWHILE * read_factor):
        return f"{what}, and no number of lanes helps: write more and smaller row groups, or use fewer ranks"
    text = f"{what}: {_why(plan)}; start the run with lanes={cure.lanes}"
    if cure.shuffle_bytes > sizes.shuffle_bytes:
        text += f" and shuffle_bytes={-(-cure.shuffle_bytes // (1 << 20))} << 20"
    if cure.factor > READ_FACTOR:
        text += f", which only lowers it to {cure.factor:.2f}: the dataset has too few chunks for more"
    return text


def _why(plan: EpochPlan) -> str:
    lanes, world = plan.order.lanes or 1, plan.share.world
    if lanes % world:
        return f"{world} ranks do not divide {lanes} lane{'s' if lanes > 1 else ''}"
    return f"{lanes} lanes cut too many chunks"


class Cure(NamedTuple):
    """Lanes to start a run with, the read factor they give, and the shuffle buffer that they need."""

    lanes: int
    factor: float
    shuffle_bytes: int


def fitting_lanes(plan: EpochPlan, sizes: Sizes) -> Cure | None:
    """Return lanes that keep the read factor of a fresh epoch at 1.2, or come nearest; None for too many ranks.

    A large multiple of the world, so that every lane is read by one rank; within the shuffle buffer if possible.
    """
    world, counts = plan.share.world, plan.counts
    if world > MAX_LANES:
        return None
    lane_rows = 2 * max(1, typical_rows(counts))
    in_window = rows_in(sizes.shuffle_bytes, sizes.row_bytes) // lane_rows
    most = min(max(LADDER[-1], world), int((counts > 0).sum()))
    times = max(1, min(most, in_window) // world)
    factor = _factor(plan, sizes, world * times)
    while times > 1 and factor > READ_FACTOR:
        times = times * 2 // 3
        factor = _factor(plan, sizes, world * times)
    return Cure(world * times, factor, math.ceil(world * times * lane_rows * max(sizes.row_bytes, 1.0)))


def _factor(plan: EpochPlan, sizes: Sizes, lanes: int) -> float:
    """Return the read factor of a fresh epoch with so many lanes."""
    chosen = choose_lanes(plan.counts, row_bytes=sizes.row_bytes, shuffle_bytes=sizes.shuffle_bytes, lanes=lanes)
    order = Order("lanes", plan.order.seed, *chosen)
    return count_reads(plan.counts, order=order, cursor=Cursor(0, position=0), share=plan.share).factor


def _mixing(plan: EpochPlan, chunks_per_batch: float | None) -> str | None:
    lanes, block = plan.order.lanes or 1, plan.order.block or 1
    if chunks_per_batch is None or chunks_per_batch >= min(FEW_CHUNKS, plan.share.batch_size) - 0.5:
        return None
    if lanes == 1 and block >= plan.total_rows:
        return None  # a true permutation: nothing mixes better
    return (
        f"a batch draws from about {chunks_per_batch:.0f} chunks only, so its rows are poorly mixed: "
        "write smaller row groups, or start the run with a larger shuffle_bytes or more lanes"
    )


def _large_chunk(plan: EpochPlan, sizes: Sizes) -> str | None:
    if plan.order.is_line:
        return None
    largest = int(plan.counts.max())
    size = int(largest * sizes.row_bytes)
    if size <= sizes.shuffle_bytes:
        return None
    return (
        f"a chunk of {largest:,} rows has {size:,} bytes, more than the whole shuffle buffer of "
        f"{sizes.shuffle_bytes:,}: write smaller row groups or start the run with a larger shuffle_bytes"
    )
