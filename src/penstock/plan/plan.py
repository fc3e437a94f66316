"""Tell a person what a run will do before it starts: steps, shuffle buffer, reads, memory, and what could be better.

Takes what `plan_epoch` takes and the sizes of rows; gives a value to print. It decides nothing: the engine works from
`EpochPlan`, and the loader shows `warnings` once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.plan.advice import Sizes, advise
from penstock.plan.epoch import plan_epoch
from penstock.plan.lanes import LanePlan
from penstock.plan.order import as_counts, typical_rows
from penstock.plan.reads import chunks_per_batch, count_reads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from penstock.plan.base import EpochPlan
    from penstock.plan.cursor import Cursor
    from penstock.plan.order import Order
    from penstock.plan.share import Share

__all__ = ["Plan", "Sizes", "make_plan"]


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
    """Chunks that have such rows."""
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
    """Bytes read by all ranks over bytes needed."""
    chunks_per_batch: float | None
    """Chunks that a batch of this rank draws from in the middle of its part; None where rows are not shuffled."""
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
        lines = [self._rows_text(), self._order_text(), self._steps_text(), self._buffer_text(), self._reads_text()]
        if self.chunks_per_batch is not None:
            lines.append(f"mixing   a batch of this rank draws from about {self.chunks_per_batch:,.0f} chunks")
        lines.append(f"memory   at least {bytes_text(self.least_memory_bytes)} on this rank")
        return "\n  ".join(["Plan", *lines, *(f"warning  {text}" for text in self.warnings)])

    def _rows_text(self) -> str:
        text = f"rows     {self.num_rows:,} in {self.num_chunks:,} chunks"
        return (
            text if self.num_left == self.num_rows else f"{text}; {self.num_left:,} left in epoch {self.cursor.epoch}"
        )

    def _order_text(self) -> str:
        lanes, block = self.order.lanes, self.order.block
        if lanes is None or block is None:
            how = "as stored" if self.order.kind == "natural" else f"chunks permuted, seed {self.order.seed}"
        elif lanes == 1 and block >= self.num_rows:
            how = f"a true permutation of all rows, seed {self.order.seed}"
        else:
            plural = "lane" if lanes == 1 else "lanes"
            how = f"rows shuffled over {lanes:,} {plural} in blocks of {block:,} rows, seed {self.order.seed}"
        return f"order    {self.order.name}: {how}"

    def _steps_text(self) -> str:
        share, even = self.share, self.least_steps == self.max_steps
        steps = f"{self.max_steps:,}" if even else f"{self.least_steps:,} to {self.max_steps:,}"
        ranks = "1 rank" if share.world == 1 else f"each of {share.world:,} ranks"
        return f"steps    {steps} on {ranks}: batches of {share.batch_size:,} rows{self._rest_text()}"

    def _rest_text(self) -> str:
        rest = self.num_left % self.share.world
        if not rest or self.share.remainder == "uneven":
            return ""
        if self.share.remainder == "drop":
            return f"; rows dropped: {rest:,}"
        return f"; rows of padding: {self.share.world - rest:,}"

    def _buffer_text(self) -> str:
        rank = bytes_text(self.rank_buffer_bytes)
        return f"buffer   {bytes_text(self.job_buffer_bytes)} for the job, at most {rank} on this rank"

    def _reads_text(self) -> str:
        ranks = "by all ranks" if self.share.world > 1 else "by this rank"
        return f"reads    {self.read_factor:.3f} bytes {ranks} for each byte needed"


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
    mixing = chunks_per_batch(plan) if isinstance(plan, LanePlan) and plan.num_items else None
    return Plan(
        order=order,
        cursor=cursor,
        share=share,
        num_rows=plan.total_rows,
        num_chunks=int((array > 0).sum()),
        num_left=plan.num_left,
        num_steps=plan.num_steps,
        least_steps=share.steps(plan.num_left, share.world - 1),
        max_steps=plan.max_steps,
        job_buffer_bytes=int(job_window_rows(plan) * sizes.read_row_bytes),
        rank_buffer_bytes=int(window_rows * sizes.read_row_bytes),
        read_factor=reads.factor,
        chunks_per_batch=mixing,
        least_memory_bytes=least_memory(plan),
        warnings=advise(plan, sizes, read_factor=reads.factor, chunks_per_batch=mixing),
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
