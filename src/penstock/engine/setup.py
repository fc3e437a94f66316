"""Set up a pass: which stages batches go through, how memory is divided, and the scheduler that carries it out.

`Setup` is made once by a loader, from its inputs and options, and makes a `Scheduler` for each stream. Reads no data
and starts no thread: those of a scheduler start with the first batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from penstock.engine import host
from penstock.engine.build import Builder, Room
from penstock.engine.engine_stream import Record
from penstock.engine.gather import BlockPool
from penstock.engine.inputs import Inputs, Needs, count_needs
from penstock.engine.randomness import Watch, transform_wants
from penstock.engine.residency import Residency
from penstock.engine.row_arena import Shelf, make_records
from penstock.engine.scheduler import Limits, Scheduler
from penstock.engine.stages import Decode, MarkPadding, Stage, Transform
from penstock.errors import BudgetError
from penstock.options import READ_COST, SPAN_BYTES, LoaderOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.engine.process import Payload
    from penstock.plan.epoch import EpochPlan

_AHEAD_BYTES = 256 << 20
"""Chunks may be read this far ahead of need, or a few for each worker where chunks are larger."""
_SPAN_BATCHES = 64
_TOLERANCE = 1.25
_RETAIN_SHARE = 0.6
"""Line orders keep chunks for the next epoch when all of them take at most this part of the budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What all passes of a loader have in common."""

    inputs: Inputs
    options: LoaderOptions
    stages: tuple[Stage, ...]
    """What happens to a batch after it is gathered, in order."""
    record: Record
    workers: int
    memory_bytes: int
    payload: Payload | None
    """The stages, pickled for processes of the pool; None: there are none."""

    @classmethod
    def of(cls, inputs: Inputs, options: LoaderOptions) -> Setup:
        """Return the setup of a loader: defaults of the host where the options leave them open."""
        stages, payload = make_stages(inputs, options), None
        if options.pool == "process":
            from penstock.engine.process import payload_of  # here: multiprocessing is a tenth of the time of our import

            payload = payload_of(stages)
        calls_user = any(stage.calls_user for stage in stages)
        return cls(
            inputs=inputs,
            options=options,
            stages=stages,
            record=Record(options.skip_limit, Watch() if calls_user and payload is None else None),
            workers=options.workers or host.default_workers(),
            memory_bytes=options.memory_bytes or host.default_memory(),
            payload=payload,
        )

    @property
    def calls_user(self) -> bool:
        """Whether a stage calls a function of the user."""
        return any(stage.calls_user for stage in self.stages)

    def check_budget(self, plan: EpochPlan) -> Needs:
        """Return the memory that an epoch needs; BudgetError if there is less."""
        inputs, is_line = self.inputs, plan.order.is_line
        window_bytes = inputs.items.visits(plan.visits).most_rows(inputs.held_chunk_bytes)
        batch_rows = inputs.items.most_rows(inputs.most_items(self.options), neighbours=is_line and inputs.aligned)
        needs = count_needs(inputs, window_bytes, batch_rows, self.options.pool)
        if needs.least > self.memory_bytes and inputs.counts.any():
            largest = int(np.where(inputs.selected > 0, inputs.chunk_bytes, -1).argmax())
            noun = inputs.source.facts.part_noun
            raise BudgetError(
                f"memory_bytes={self.memory_bytes:,} is too little: the shuffle buffer of {needs.window_bytes:,} "
                f"bytes, one read of {needs.read_bytes:,} and two batches of {needs.batch_bytes:,} need at least "
                f"{needs.least:,} "
                f"(the largest {noun}: {inputs.source.locate(largest)}, {int(inputs.chunk_bytes[largest]):,} bytes in "
                f"memory); raise memory_bytes, or lower shuffle_bytes or batch_size, or write smaller {noun}s",
                least=needs.least,
            )
        return needs

    def make_scheduler(self, first: EpochPlan, plans: Iterator[EpochPlan], every: tuple[int, int]) -> Scheduler:
        """Return what carries out the rest of a pass, or every n-th batch of it; its threads start with `next`.

        `plans` gives the epochs of the pass, of which `first` is the first one.
        """
        inputs, options, needs = self.inputs, self.options, self.check_budget(first)
        is_line = first.order.is_line
        workers = 0 if options.pool == "serial" else self.workers
        free = self.memory_bytes - needs.window_bytes - needs.read_bytes
        span_batches = min(self._span_batches(needs.batch_bytes, every), max(1, free // 2 // max(1, needs.batch_bytes)))
        span_bytes = span_batches * needs.batch_bytes
        ahead = max(1, min(workers + 2, inputs.most_waiting, free // 2 // max(1, span_bytes)))
        budget = self.memory_bytes - (ahead + 1) * span_bytes
        pool = BlockPool(keep=max(ahead, workers) + 3)
        shelf = self._make_shelf(budget, pool, needs) if is_line else None
        residency = self._make_residency(
            budget if shelf is None else int(budget * (1 - _RETAIN_SHARE)), shelf, shuffled=not is_line
        )
        # What one read can have beside window and batches, and a little more: estimates scatter.
        chunk_room = _TOLERANCE * (self.memory_bytes - needs.window_bytes - 2 * needs.batch_bytes)
        room = Room(all_bytes=free, copies=3 if options.pool == "process" else 1)  # decoded, packed, unpacked
        if options.memory_bytes is None:
            room.cell_bytes = max(free, host.default_memory())
        else:  # only then a batch that needs more is an error; two of them fit at least
            room.cell_bytes, room.batch_bytes = free, free // 2
        builder = Builder(
            source=inputs.source, selection=inputs.selection, columns=inputs.columns, stages=self.stages, pool=pool,
            stats=self.record.stats, seed=options.seed, skip=options.on_error == "skip", arena=residency.arena,
            shelf=shelf, limit_bytes=int(chunk_room / READ_COST / inputs.slack), room=room, watch=self.record.watch,
        )  # fmt: skip
        last = None
        if options.epochs is not None:
            last = first.cursor.epoch // options.epochs * options.epochs + options.epochs - 1
        limits = Limits(
            workers=workers,
            span_batches=span_batches,
            ahead_spans=ahead,
            num_chunks=len(inputs.selected),
            views=is_line and options.remainder != "pad",
            last_epoch=last,
            # Processes seed their global random states for every batch, by its position.
            positions=any(stage.wants for stage in self.stages) or (options.pool == "process" and self.calls_user),
            items=inputs.items,
            batch_items=inputs.most_items(options),
            batch_size=options.batch_size,
            aligned=inputs.aligned and is_line,
            every=every,
        )
        processes: list[Any] = []
        if options.pool == "process":
            from penstock.engine.process import ProcessStages, start_method

            processes = [ProcessStages(cast("Payload", self.payload), start_method()) for _ in range(workers)]
        return Scheduler(plans, residency, builder, limits, processes)

    def _span_batches(self, batch_bytes: int, every: tuple[int, int]) -> int:
        """Return how many batches are gathered together: one where making it takes long, for workers to share."""
        slow = self.options.pool == "process" or self.inputs.aligned or any(stage.is_slow for stage in self.stages)
        slow = slow or not self.inputs.items.one_row or every[1] > 1
        if slow or not all(column.light for column in self.inputs.columns):
            return 1
        return max(1, min(_SPAN_BATCHES, SPAN_BYTES // max(1, batch_bytes)))

    def _make_shelf(self, budget: int, pool: BlockPool, needs: Needs) -> Shelf | None:
        """Return where a line order keeps chunks for the next epoch, if there is one and all chunks will fit."""
        inputs = self.inputs
        room, rest = int(budget * _RETAIN_SHARE), int(budget * (1 - _RETAIN_SHARE))
        all_bytes = int(inputs.held_chunk_bytes.sum())
        if self.options.epochs == 1 or all_bytes > room:
            return None
        return None if needs.window_bytes + needs.read_bytes > rest else Shelf(room, inputs.slack, pool)

    def _make_residency(self, budget: int, shelf: Shelf | None, *, shuffled: bool) -> Residency:
        inputs = self.inputs
        chunk_bytes = inputs.held_chunk_bytes
        whole_bytes = np.ceil(inputs.chunk_bytes * inputs.slack).astype(np.int64)
        ahead = max(_AHEAD_BYTES, int((2 * self.workers + 2) * whole_bytes.max(initial=0)))
        arena = make_records(inputs.columns, inputs.selected, budget) if shuffled else None
        reads = (READ_COST - 1) * whole_bytes
        return Residency(
            budget_bytes=budget, ahead_bytes=ahead, chunk_bytes=chunk_bytes, read_bytes=reads, share=shuffled,
            slack=inputs.slack, arena=arena, shelf=shelf,
        )  # fmt: skip


def make_stages(inputs: Inputs, options: LoaderOptions) -> tuple[Stage, ...]:
    """Return the stages of a loader, in order; for a plain table the only one is `Decode`, which has nothing to do."""
    columns, rowwise, fold, functions = inputs.columns, inputs.rowwise, inputs.fold, options.transforms
    stages: list[Stage | None] = [Decode(columns, options.on_error == "skip"), inputs.filter_rows]
    made = None
    if options.pad is None:
        stages += [rowwise, fold]
    else:
        from penstock.engine.padding import make_pads

        read, after, made = make_pads(columns, options.pad, rowwise=rowwise, has_function=bool(functions))
        stages += [read, rowwise, after, fold]
    for number, function in enumerate(functions):
        label = "the transform"
        if len(functions) > 1:
            label = f"transform {number + 1} of {len(functions)} ({getattr(function, '__name__', function)!s})"
        stages.append(Transform(function, transform_wants(function), number, label))
    stages += [made, MarkPadding(int(inputs.counts.sum())) if options.remainder == "pad" else None]
    return tuple(stage for stage in stages if stage is not None)
