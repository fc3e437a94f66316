"""Describe what a run will do before it starts: steps, buffer, reads, memory, and what could be better.

Takes what `plan_epoch` takes and the sizes of rows; returns a value to print. It decides nothing: the engine works from
`EpochPlan`, and the loader shows `warnings` once. Each warning names an option for the next fresh run, as a resumed one
keeps the lanes of its state. `count_reads` counts how often rows are read, over all ranks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock.plan.epoch import EpochPlan, Line, LinePlan, changes, cut, in_order, lay, part_offsets, plan_epoch
from penstock.plan.order import MAX_LANES, Cursor, Order, Share, as_counts, typical_rows
from penstock.plan.shuffled import LADDER, Grid, LanePlan, choose_lanes, rows_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Plan:
    """What one rank does from a place to the end of its epoch; `print` it."""

    order: Order
    """Kind, seed, lanes and block."""
    cursor: Cursor
    """Where the run begins."""
    share: Share
    """Rank, world, batch size and remainder."""
    num_rows: int
    """Selected rows of the whole epoch."""
    num_chunks: int
    """Chunks that have such rows: row groups, or parts of them."""
    num_groups: int
    """Row groups (of other sources, undivided chunks) that have such rows; `num_chunks` unless they are read in
    parts."""
    group_noun: str
    """What the source calls an undivided chunk: "row group"."""
    chunk_bytes: int
    """Bytes in memory of a typical chunk, all columns."""
    num_left: int
    """Rows left in the epoch from `cursor`."""
    num_steps: int
    """Batches of this rank in what is left of the epoch."""
    least_steps: int
    """Batches of the rank that has the fewest: differs from `max_steps` only with remainder "uneven"."""
    max_steps: int
    """Batches of the rank that has the most."""
    job_buffer_bytes: int
    """Bytes of rows waiting in memory, all ranks together, on average."""
    rank_buffer_bytes: int
    """Bytes of the chunks that this rank must have in memory at once, at most."""
    read_factor: float
    """Bytes read by all ranks over bytes needed, at most: memory that is left over may keep a chunk that is needed
    again. Counts what parts of row groups read twice where that is known."""
    page_factor: float | None
    """Bytes that the parts of a row group read over those of the row group, measured on a few row groups: pages at the
    borders of parts are read twice. None if row groups are read whole, or these pages cannot be found."""
    chunks_per_batch: float | None
    """Chunks that a batch of this rank draws from in the middle of its part; None where rows are not shuffled."""
    groups_per_batch: float | None
    """Row groups that it draws from; the same as `chunks_per_batch` unless they are read in parts."""
    permuted_groups_per_batch: float | None
    """Row groups that a batch would draw from under a true permutation of all rows, to compare with."""
    least_memory_bytes: int
    """The memory that this rank needs at least: its shuffle buffer, one read and two batches."""
    warnings: tuple[str, ...]
    """What could be better, each with its cure."""

    @property
    def steps(self) -> range:
        """The steps of this rank."""
        return range(self.num_steps)

    def __repr__(self) -> str:
        share, lanes = self.share, ""
        if self.order.lanes is not None:
            lanes = f", lanes={self.order.lanes}, block={self.order.block}"
        return (
            f"Plan(epoch={self.cursor.epoch}, rank={share.rank}/{share.world}, steps={self.num_steps}, "
            f"rows={self.num_rows:_}, order={self.order.name!r}{lanes}, left={self.num_left:_})"
        )

    def __str__(self) -> str:
        order, share, lanes, block = self.order, self.share, self.order.lanes, self.order.block
        some = "" if self.num_left == self.num_rows else f"; {self.num_left:,} left in epoch {self.cursor.epoch}"
        if lanes is None or block is None:
            how = "as stored" if order.kind == "natural" else f"chunks permuted, seed {order.seed}"
        elif lanes == 1 and block >= self.num_rows:
            how = f"a true permutation of all rows, seed {order.seed}"
        else:
            plural = "lane" if lanes == 1 else "lanes"
            how = f"rows shuffled over {lanes:,} {plural} in blocks of {block:,} rows, seed {order.seed}"
        even, rest = self.least_steps == self.max_steps, self.num_left % share.world
        steps = f"{self.max_steps:,}" if even else f"{self.least_steps:,} to {self.max_steps:,}"
        ranks = "1 rank (world=1)" if share.world == 1 else f"each of {share.world:,} ranks"
        left = ""
        if rest and share.remainder != "uneven":
            padding = f"; rows of padding: {share.world - rest:,}"
            left = f"; rows dropped: {rest:,}" if share.remainder == "drop" else padding
        buffer = f"at most {bytes_text(self.rank_buffer_bytes)} on this rank"
        if share.world > 1:
            buffer = f"{bytes_text(self.job_buffer_bytes)} for the job, {buffer}"
        readers = "by all ranks" if share.world > 1 else "by this rank"
        # What is read again may still be in memory; pages at the borders of parts are read twice in any case.
        most = "at most " if self.read_factor > 1.0005 * (self.page_factor or 1.0) and not order.is_line else ""
        chunks, pages = _count(self.num_groups, self.group_noun), ""
        if order.parts:
            chunks = f"{_count(self.num_chunks, 'part')} of {chunks}, {bytes_text(self.chunk_bytes)} each"
        if self.page_factor is not None:
            pages = f" (pages of parts: {self.page_factor:.3f}, measured on a few row groups)"
        lines = [
            f"rows     {self.num_rows:,} in {chunks}{some}",
            f"order    {order.name}: {how}",
            f"steps    {steps} on {ranks}: batches of {share.batch_size:,} rows{left}",
            f"buffer   {buffer}",
            f"reads    {most}{self.read_factor:.3f} bytes {readers} for each byte needed{pages}",
        ]
        if self.groups_per_batch is not None:
            groups = _count(round(self.groups_per_batch), self.group_noun)
            lines.append(
                f"mixing   a batch of this rank draws from about {groups}; under a true permutation from "
                f"{self.permuted_groups_per_batch:,.0f}"
            )
        lines.append(f"memory   at least {bytes_text(self.least_memory_bytes)} on this rank")
        return "\n  ".join(["Plan", *lines, *(f"warning  {text}" for text in self.warnings)])


def make_plan(  # noqa: PLR0913 -- all that a run is made of
    counts: Sequence[int] | NDArray[np.integer[Any]],
    *,
    order: Order,
    cursor: Cursor,
    share: Share,
    sizes: Sizes,
    least_memory: Callable[[EpochPlan], int],
) -> Plan:
    """Return what `share.rank` will do from `cursor` to the end of the epoch; about 2 us a chunk, reads nothing.

    `least_memory` returns the bytes needed for the plan of an epoch; how memory is spent is the engine's business.
    """
    array = as_counts(counts)
    plan = plan_epoch(array, order=order, cursor=cursor, share=share)
    window_rows, reads = plan.window_rows(), count_reads(array, order=order, cursor=cursor, share=share)
    groups = np.arange(len(array)) if sizes.groups is None else sizes.groups
    mixing = Mixing.of(plan, groups) if isinstance(plan, LanePlan) and plan.num_items else Mixing(None, None, None)
    return Plan(
        order=order,
        cursor=cursor,
        share=share,
        num_rows=plan.total_rows,
        num_chunks=int((array > 0).sum()),
        num_groups=len(np.unique(groups[array > 0])),
        group_noun=sizes.part_noun,
        chunk_bytes=int(typical_rows(array) * sizes.row_bytes),
        num_left=plan.num_left,
        num_steps=plan.num_steps,
        least_steps=share.steps(plan.num_left, share.world - 1),
        max_steps=plan.max_steps,
        job_buffer_bytes=int(job_window_rows(plan) * sizes.read_row_bytes),
        rank_buffer_bytes=int(window_rows * sizes.read_row_bytes),
        read_factor=reads.factor * (sizes.page_factor or 1.0),
        page_factor=sizes.page_factor,
        chunks_per_batch=mixing.chunks,
        groups_per_batch=mixing.groups,
        permuted_groups_per_batch=mixing.permuted,
        least_memory_bytes=least_memory(plan),
        warnings=advise(plan, sizes, read_factor=reads.factor, mixing=mixing),
    )


def job_window_rows(plan: EpochPlan) -> int:
    """Return the rows that wait in memory on average, all ranks together: L*(B+s), or one chunk on every rank."""
    order, typical = plan.order, typical_rows(plan.counts)
    if order.lanes is None or order.block is None:
        return min(plan.total_rows, typical * plan.share.world)
    return min(plan.total_rows, order.lanes * (order.block + typical))


def bytes_text(num_bytes: int) -> str:
    """Return bytes as a person reads them: 512 B, 3.0 KiB, 1.25 GiB."""
    power = min(4, max(0, num_bytes.bit_length() - 1) // 10)
    if not power:
        return f"{num_bytes} B"
    return f"{num_bytes / (1 << 10 * power):,.{1 + (power > 2)}f} {'KMGT'[power - 1]}iB"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


READ_FACTOR = 1.2
"""Bytes read over bytes needed above which a warning names the lanes that fit."""

WORTHWHILE = 0.8
"""A number of lanes is named only if it brings the factor down at least this far."""

FEW_GROUPS = 8
"""A shuffled batch from fewer row groups than this is poorly mixed, unless there are no more to draw from."""

AS_RANDOM = 0.9
"""A batch that draws from this share of what a true permutation draws from is mixed about as well."""


class Sizes(NamedTuple):
    """Bytes of a row as stored and as it waits, bytes of the shuffle buffer, and what is known about the chunks."""

    row_bytes: float
    """All columns in memory as they are stored: what decides the lanes of a fresh run."""
    read_row_bytes: float
    """The columns of this run as they wait in the shuffle buffer."""
    shuffle_bytes: int
    """The shuffle buffer of the whole job."""
    part_noun: str
    """What the source calls an undivided chunk."""
    groups: NDArray[np.int64] | None = None
    """The undivided chunk of each chunk; None: chunks are not divided."""
    page_factor: float | None = None
    """Bytes that parts read over those of their undivided chunks; None: not known, or not divided."""
    smaller: Callable[[], str] | None = None
    """Returns what makes chunks smaller, as an advice, or "" if nothing does; asked only if a warning needs it. None:
    only another layout does, unless the chunks are parts."""


def advise(plan: EpochPlan, sizes: Sizes, *, read_factor: float, mixing: Mixing) -> tuple[str, ...]:
    """Return a sentence for each thing that could be better; none for an empty plan."""
    if not plan.num_items:
        return ()
    found = [_reads(plan, sizes, read_factor), _mixing(plan, sizes, mixing), _large_chunk(plan, sizes)]
    return tuple(text for text in found if text)


def _smaller(plan: EpochPlan, sizes: Sizes) -> str:
    """Return the advice for chunks that are too large: an alternative that ends in ", or ", or nothing."""
    if sizes.smaller is not None:
        advice = sizes.smaller()
    else:
        advice = "" if plan.order.parts else f"write smaller {sizes.part_noun}s"
    return advice and f"{advice}, or "


def _noun(plan: EpochPlan, sizes: Sizes) -> str:
    return f"part of a {sizes.part_noun}" if plan.order.parts else sizes.part_noun


def _nouns(plan: EpochPlan, sizes: Sizes) -> str:
    return f"parts of {sizes.part_noun}s" if plan.order.parts else f"{sizes.part_noun}s"


def _reads(plan: EpochPlan, sizes: Sizes, read_factor: float) -> str | None:
    if read_factor <= READ_FACTOR:
        return None
    what = f"all ranks together read {read_factor:.2f} times the bytes needed"
    if plan.order.is_line:
        nouns = f"{sizes.part_noun}s"
        return f"{what}: {plan.share.world} ranks share few {nouns}; write smaller {nouns}"
    cure = fitting_lanes(plan, sizes)
    if cure is None or cure.factor > max(READ_FACTOR, WORTHWHILE * read_factor):
        return f"{what}, and no number of lanes helps: {_smaller(plan, sizes)}use fewer ranks"
    lanes, world = plan.order.lanes or 1, plan.share.world
    not_divided = f"{world} ranks do not divide {lanes} lane{'s' if lanes > 1 else ''}"
    why = not_divided if lanes % world else f"{lanes} lanes cut too many {_nouns(plan, sizes)}"
    text = f"{what}: {why}; start the run with lanes={cure.lanes}"
    if cure.shuffle_bytes > sizes.shuffle_bytes:
        text += f" and shuffle_bytes={-(-cure.shuffle_bytes // (1 << 20))} << 20"
    if cure.factor > READ_FACTOR:
        text += f", which only lowers it to {cure.factor:.2f}: the dataset has too few {_nouns(plan, sizes)} for more"
    return text


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


def _mixing(plan: EpochPlan, sizes: Sizes, mixing: Mixing) -> str | None:
    lanes, block = plan.order.lanes or 1, plan.order.block or 1
    if mixing.groups is None or mixing.permuted is None or not mixing.is_poor(plan.share.batch_size):
        return None
    if lanes == 1 and block >= plan.total_rows:
        return None  # a true permutation: nothing mixes better
    return (
        f"a batch draws from about {_count(round(mixing.groups), sizes.part_noun)} only (under a true permutation from "
        f"{mixing.permuted:,.0f}), so its rows are poorly mixed: {_smaller(plan, sizes)}start the run with a larger "
        "shuffle_bytes or more lanes"
    )


def _large_chunk(plan: EpochPlan, sizes: Sizes) -> str | None:
    if plan.order.is_line:
        return None
    largest = int(plan.counts.max())
    size = int(largest * sizes.row_bytes)
    if size <= sizes.shuffle_bytes:
        return None
    return (
        f"a {_noun(plan, sizes)} of {largest:,} rows has {size:,} bytes, more than the whole shuffle buffer of "
        f"{sizes.shuffle_bytes:,}: {_smaller(plan, sizes)}start the run with a larger shuffle_bytes"
    )


EXACT_STAYS = 1 << 22
"""Above so many stays over all ranks, those of one chunk that overlap on a rank are counted as two reads."""


class ReadAmplification(NamedTuple):
    """Rows of chunks read by all ranks for what is left of an epoch; padding is not counted."""

    rows_read: int
    """Rows of all chunks read, as often as they are read by any rank."""
    rows_needed: int
    """Rows of the chunks that are needed at all, once each."""

    @property
    def factor(self) -> float:
        """Rows read over rows needed; 1.0 where nothing is needed."""
        return self.rows_read / self.rows_needed if self.rows_needed else 1.0


def count_reads(counts: NDArray[np.int64], *, order: Order, cursor: Cursor, share: Share) -> ReadAmplification:
    """Return what all ranks read from `cursor` to the end of the epoch; about a microsecond a chunk.

    A stay of a chunk on a rank is one read: memory is not hoped to keep a chunk from one end of an epoch to the other.
    """
    chunk, times = (_line_reads if order.is_line else _lane_reads)(counts, order, cursor, share)
    return ReadAmplification(int((counts[chunk] * times).sum()), int(counts[np.unique(chunk)].sum()))


def _line_reads(
    counts: NDArray[np.int64], order: Order, cursor: Cursor, share: Share
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    plan = LinePlan(counts, order=order, cursor=cursor, share=share)
    bounds = part_offsets(share, plan.num_left)[:-1]
    last = np.minimum(bounds + _kept(share, plan.num_left), plan.num_left)
    part, cell = plan.cells(bounds, last)
    chunk = plan.line.chunks[cell]
    opens = changes((part[:-1] != part[1:]) | (chunk[:-1] != chunk[1:]), len(chunk))
    return chunk[opens], np.ones(len(opens), dtype=np.int64)


def _kept(share: Share, num_left: int) -> NDArray[np.int64]:
    """Return the items that each rank delivers."""
    return np.array([share.kept(num_left, rank) for rank in range(share.world)], dtype=np.int64)


class _Stays(NamedTuple):
    """Each chunk's rows of a lane: the turns [first, last) of the lane, all ranks, in which the chunk may be needed."""

    chunk: NDArray[np.int64]
    lane: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]

    @classmethod
    def of(cls, line: Line, grid: Grid, start: int) -> _Stays:
        """Return the stays that are not over before position `start`."""
        borders = grid.start(np.arange(grid.lanes + 1, dtype=np.int64))
        lane, cell, first, last = cut(line.borders, borders[:-1], borders[1:])
        first, _ = grid.block_span(lane, grid.block_of(lane, first - borders[lane]))
        _, last = grid.block_span(lane, grid.block_of(lane, last - 1 - borders[lane]))
        first = np.maximum(first, -(-(start - lane) // grid.lanes))
        some = first < last
        return cls(line.chunks[cell[some]], lane[some], first[some], last[some])


def _lane_reads(
    counts: NDArray[np.int64], order: Order, cursor: Cursor, share: Share
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return chunks and how often each is read; a chunk may be listed more than once."""
    total, start = int(counts.sum()), cursor.position or 0
    grid = Grid.of(total, order)
    stays = _Stays.of(lay(counts, order=order, epoch=cursor.epoch), grid, start)
    ranks_of_lane = share.world // gcd(grid.lanes, share.world)
    if len(stays.chunk) * ranks_of_lane > EXACT_STAYS:
        return stays.chunk, np.minimum(stays.last - stays.first, ranks_of_lane)
    chunk = _merged_chunks(stays, grid, start, share)
    return chunk, np.ones(len(chunk), dtype=np.int64)


def _merged_chunks(stays: _Stays, grid: Grid, start: int, share: Share) -> NDArray[np.int64]:
    """Return the chunk of every read of every rank: the union of the ranks' own visits, those that overlap made one."""
    world, common = share.world, gcd(grid.lanes, share.world)
    period, num_lanes = world // common, grid.lanes // common
    times = np.minimum(stays.last - stays.first, period)
    at = np.repeat(np.arange(len(times)), times)
    row = stays.first[at] + np.arange(len(at)) - np.repeat(np.cumsum(times) - times, times)
    first, rank = np.divmod(row * grid.lanes + stays.lane[at] - start, world)
    kept = _kept(share, grid.total_rows - start)[rank]
    turns = np.minimum((stays.last[at] - 1 - row) // period, (kept - 1 - first) // num_lanes)
    some = first < kept
    ids = (stays.chunk[at] * world + rank)[some]
    names, ids = np.unique(ids, return_inverse=True)
    last = first + turns * num_lanes + 1
    return np.asarray(names[in_order(ids, first[some], last[some]).merged().chunk] // world)


class Mixing(NamedTuple):
    """From how many chunks, and undivided chunks, a batch in the middle of the rank's part is expected to draw."""

    chunks: float | None
    groups: float | None
    permuted: float | None
    """Undivided chunks under a true permutation of all rows."""

    def is_poor(self, batch_size: int) -> bool:
        """Tell whether a batch draws from few undivided chunks, and from fewer than under a true permutation."""
        groups, permuted = self.groups or 0.0, self.permuted or 0.0
        return groups < min(FEW_GROUPS, batch_size, permuted) - 0.5 and groups < AS_RANDOM * permuted

    @classmethod
    def of(cls, plan: LanePlan, groups: NDArray[np.int64]) -> Mixing:
        """Count the chunks of a shuffled plan; `groups`: the undivided chunk of each chunk."""
        size = min(plan.share.batch_size, plan.num_items)
        shares = np.bincount(groups, weights=plan.counts) / max(1, plan.total_rows)
        permuted = float((1 - (1 - shares) ** size).sum())
        return cls(sources_per_batch(plan, np.arange(len(groups))), sources_per_batch(plan, groups), permuted)


def sources_per_batch(plan: LanePlan, groups: NDArray[np.int64]) -> float:
    """Return from how many groups of chunks a batch in the middle of the rank's part is expected to draw."""
    size = plan.share.batch_size
    lo = plan.num_items // 2 // size * size
    lane, row, grid = *plan.places(lo, min(lo + size, plan.num_items)), plan.grid
    begin, end = grid.block_span(lane, grid.block_of(lane, row))
    begin, at, draws = np.unique(begin + grid.start(lane), return_index=True, return_counts=True)
    end = (end + grid.start(lane))[at]
    block, cell, first, last = cut(plan.line.borders, begin, end)
    num_groups = int(groups.max(initial=0)) + 1
    # The rows of each group in each block that the batch draws from.
    pairs, place = np.unique(block * num_groups + groups[plan.line.chunks[cell]], return_inverse=True)
    block, group = np.divmod(pairs, num_groups)
    share_of_block = np.bincount(place, weights=last - first) / (end - begin)[block]
    with np.errstate(divide="ignore"):  # a block within one group misses it never: log 0
        missed = np.bincount(group, weights=draws[block] * np.log1p(-np.minimum(share_of_block, 1)))
    return float((1 - np.exp(missed)).sum())
