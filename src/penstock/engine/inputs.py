"""What a loader works from, and how a pass is set up: stages, the division of memory, and the scheduler.

`Inputs` are filled in by `api`: the source, the selected rows, the columns, what is dealt out. `choose_order` and
`count_needs` derive the order and the memory of a run from them, `make_stages` what happens to its batches. A `Column`
says what a column of a batch is made of; gathering and decoding choose their path by its `form`. `Setup` makes a
`Scheduler` for each stream of a loader. Reads no data and starts no thread: those of a scheduler start with the first
batch.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import numpy as np

from penstock.codecs.arrow import Fixed, Objects, column_kind
from penstock.codecs.arrow_kinds import form_of
from penstock.codecs.base import Codec, DataframeColumnCodec, column_dtype, has_cells
from penstock.engine import host
from penstock.engine.build import Builder, Room
from penstock.engine.gather import BlockPool
from penstock.engine.randomness import transform_wants
from penstock.engine.residency import Residency
from penstock.engine.row_arena import Shelf, make_records
from penstock.engine.scheduler import Limits, Scheduler
from penstock.engine.stages import Decode, FilterRows, Fold, MarkPadding, Stage, Transform
from penstock.errors import BudgetError, PenstockWarning, PlanError, UnsupportedType
from penstock.options import READ_COST, SPAN_BYTES, LoaderOptions, Pool
from penstock.plan.order import Grouping, Order, RowGrouping
from penstock.source import Caching, Splittable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from penstock.engine.loader import Record
    from penstock.engine.process import Payload
    from penstock.plan.epoch import EpochPlan
    from penstock.schema.unischema import UnischemaField
    from penstock.source import Selection, Source

Form = Literal["fixed", "cells", "ragged", "objects"]

_VARIABLE_GUESS_BYTES = 1 << 16
"""Decoded bytes assumed for a cell of unknown shape."""
_OBJECT_GUESS_BYTES = 64
_CELL_FORMS = ("bytes", "text", "dictionary")


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a batch."""

    name: str
    field: UnischemaField
    form: Form
    """fixed: stacked, straight from Arrow; cells: encoded, decoded into a stacked array;
    ragged: encoded, decoded into a list; objects: Python values."""
    dtype: np.dtype[Any] | None
    """Of the stacked array."""
    shape: tuple[int, ...]
    """Of one row of the stacked array."""
    kind: Fixed | Objects | None
    """How Arrow memory becomes values (fixed and objects)."""
    item_bytes: int
    """Bytes of one row in the batch; a guess for variable columns."""
    masked: bool = False
    """Whether a stacked column is a MaskedArray in every batch (`penstock.source.may_hold_nulls`)."""

    @property
    def codec(self) -> DataframeColumnCodec:
        """The codec of encoded cells; only for cells and ragged."""
        return cast("DataframeColumnCodec", self.field.codec)

    @property
    def light(self) -> bool:
        """Whether a row needs no decoding, or may need none: such rows are gathered for several batches at once."""
        codec = self.field.codec
        has_view = isinstance(codec, Codec) and type(codec).view_column is not Codec.view_column
        return self.form == "fixed" or (self.form == "cells" and has_view)


def columns_of(fields: Iterable[UnischemaField], types: Sequence[pa.DataType]) -> tuple[Column, ...]:
    """Return the columns of these fields, stored as these Arrow types; refuses what docs/types.md refuses."""
    return tuple(_column(field, kind) for field, kind in zip(fields, types, strict=True))


def _column(field: UnischemaField, arrow_type: pa.DataType) -> Column:
    if not has_cells(field.codec):
        kind = column_kind(arrow_type, numpy_dtype=field.asked_dtype, name=field.name, shape=field.shape)
        if isinstance(kind, Fixed):
            num_bytes = kind.dtype.itemsize * math.prod(kind.shape)
            return Column(field.name, field, "fixed", kind.dtype, kind.shape, kind, num_bytes)
        return Column(field.name, field, "objects", None, (), kind, _OBJECT_GUESS_BYTES)
    if form_of(arrow_type) not in _CELL_FORMS:
        raise UnsupportedType(
            f"column {field.name!r} is stored as {arrow_type}, and its codec {field.codec} reads bytes or text only; "
            "store its cells as binary, or open with columns= that leave it out"
        )
    dtype = column_dtype(field)
    if dtype is None:
        return Column(field.name, field, "ragged", None, (), None, _VARIABLE_GUESS_BYTES)
    shape = tuple(size for size in field.shape if size is not None)  # no free dimension: the field has a dtype
    return Column(field.name, field, "cells", dtype, shape, None, dtype.itemsize * math.prod(shape))


_KEPT_SHARE = 9
"""Sources keep at most this part of the memory between reads: an eighth of what all else needs, in the least budget."""
_BUFFER_SLACK = 1.4
"""A buffer that grew by doubling keeps up to twice its bytes when it is cut to length; 1.31 was seen for JPEG cells."""
_MOST_BYTES = 1 << 50
"""Beyond any memory: damaged footers declare sizes whose sums do not fit into 64 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What a loader knows of its dataset, and how rows become batches where those are not simply `batch_size` rows."""

    source: Source
    selection: Selection
    columns: tuple[Column, ...]
    items: Grouping
    """What is dealt out."""
    row_bytes: float
    """Bytes of a row in memory, all columns: decides lanes and block, which must not depend on the columns read."""
    column_bytes: float
    """Bytes of a row in memory, the columns read; of a typical row group."""
    chunk_bytes: NDArray[np.float64]
    """Bytes of all rows of each chunk in memory, the columns read."""
    rows: str
    """Digest of the selection and of what is dealt out."""
    filter_rows: FilterRows | None = None
    """Leaves rows out on delivery."""
    rowwise: Stage | None = None
    """Changes rows, also their number, before they become windows."""
    fold: Fold | None = None
    """How windows become a batch; None: they are left to the consumer."""
    batch_items: int | None = None
    """Most items that are made at once; None: those of a step, which is `batch_size` of the options."""
    aligned: bool = False
    """Whether batches end with their chunk, in line orders."""
    most_waiting: int = 1 << 30
    """Most results that wait for the consumer, where memory allows more."""
    whole: Source | None = None
    """The undivided source, if chunks are parts."""
    whole_chunk: NDArray[np.int64] | None = None
    """The chunk of `whole` in which each chunk lies."""

    def most_items(self, options: LoaderOptions) -> int:
        """Return the most items of a batch."""
        return options.batch_size if self.batch_items is None else self.batch_items

    def split(self, *, scan: bool | None) -> tuple[Inputs, bool] | None:
        """Return the same rows with parts as chunks, and `Split.scanned`; None if there are no parts, or items are not
        rows.

        `scan`, errors: see `penstock.source.Splittable`.
        """
        if not isinstance(self.items, RowGrouping) or not isinstance(self.source, Splittable):
            return None
        split = self.source.split(scan=scan)
        if split is None:
            return None
        selection = self.selection.split(split)
        found = replace(
            self,
            source=split.source,
            selection=selection,
            items=RowGrouping(selection.counts),
            chunk_bytes=split.source.chunk_bytes([column.name for column in self.columns]),
            rows=selection.digest(),
            whole=self.source,
            whole_chunk=split.chunk,
        )
        return found, split.scanned

    @property
    def selected(self) -> NDArray[np.int64]:
        """Selected rows of each chunk."""
        return self.selection.counts

    @property
    def chunk_rows(self) -> NDArray[np.int64]:
        """All rows of each chunk."""
        return self.source.facts.chunk_rows

    @property
    def counts(self) -> NDArray[np.int64]:
        """Items of each part: what the plan orders."""
        return self.items.counts

    @property
    def variable_bytes(self) -> float:
        """Bytes of a row in the columns of variable size."""
        return max(0.0, self.column_bytes - sum(c.item_bytes for c in self.columns if c.form == "fixed"))

    @property
    def slack(self) -> float:
        """How much more memory a chunk takes than its buffers are long."""
        return 1 + (_BUFFER_SLACK - 1) * self.variable_bytes / max(1.0, self.column_bytes)

    @property
    def held_bytes(self) -> float:
        """Bytes that a row takes while its chunk is in memory: decides what fits."""
        return self.column_bytes * self.slack

    @property
    def held_chunk_bytes(self) -> NDArray[np.int64]:
        """Bytes that the selected rows of each chunk take while they are in memory."""
        share = self.selected / np.maximum(1, self.chunk_rows)
        return np.minimum(np.ceil(self.chunk_bytes * share * self.slack), _MOST_BYTES).astype(np.int64)

    @property
    def excess_bytes(self) -> int:
        """Bytes that the heaviest chunk takes beyond typical ones of its rows: one row of it may hold them all.

        0 unless it takes at least twice as much, so that ordinary scatter does not count.
        """
        typical = self.chunk_rows * self.column_bytes
        heavy = (self.chunk_bytes - typical)[(self.selected > 0) & (self.chunk_bytes > 2 * typical)]
        return int(heavy.max(initial=0))

    @property
    def kept_bytes(self) -> int:
        """Bytes that the source may keep in memory between reads, beside the chunks."""
        source = self.source
        return source.kept_bytes([column.name for column in self.columns]) if isinstance(source, Caching) else 0

    @property
    def decoded_bytes(self) -> float:
        """Bytes of a row in a batch; objects take at least what they take in a chunk."""
        objects = self.variable_bytes if any(c.form == "objects" for c in self.columns) else 0.0
        return sum(c.item_bytes for c in self.columns) + objects


class Needs(NamedTuple):
    """Bytes that a run needs."""

    window_bytes: int
    """Chunks that must be in memory at once."""
    read_bytes: int
    """One read in flight, of the largest chunk."""
    batch_bytes: int
    """One batch, with what its making takes."""
    kept_bytes: int
    """What the source keeps between reads, at least."""

    @property
    def least(self) -> int:
        """The smallest budget that will do."""
        return self.window_bytes + self.read_bytes + 2 * self.batch_bytes + self.kept_bytes


def count_needs(inputs: Inputs, window_bytes: int, batch_size: int, pool: Pool) -> Needs:
    """Return what a run with a window of that many bytes needs."""
    largest = float(inputs.chunk_bytes[inputs.selected > 0].max(initial=0))
    row_bytes = inputs.decoded_bytes
    if pool == "process":  # gathered and packed for the process, then in its answer
        row_bytes += 2 * inputs.column_bytes
    batch_rows = min(batch_size, max(1, int(inputs.selected.sum())))
    read_bytes = math.ceil(READ_COST * largest * inputs.slack)
    batch_bytes = math.ceil(row_bytes * batch_rows) + inputs.excess_bytes
    others = window_bytes + read_bytes + 2 * batch_bytes
    return Needs(window_bytes, read_bytes, batch_bytes, min(inputs.kept_bytes, -(-others // (_KEPT_SHARE - 1))))


def choose_order(inputs: Inputs, options: LoaderOptions) -> tuple[Order, Inputs]:
    """Return the order of a fresh run, and the inputs whose chunks it deals out: parts of them where there are some."""
    kind = options.order_kind
    if kind != "lanes":
        return Order(kind, options.seed), inputs
    from penstock.plan.shuffled import choose_lanes  # here: other orders have no lanes

    if options.parts and not isinstance(inputs.source, Splittable):
        raise PlanError(
            f"parts=True needs a source whose {inputs.source.facts.part_noun}s can be divided; "
            f"{type(inputs.source).__name__} cannot do that: leave parts out"
        )
    split = None if options.parts is False else inputs.split(scan=options.parts)
    dealt, scanned = (inputs, False) if split is None else split
    chosen = choose_lanes(
        dealt.counts, row_bytes=dealt.row_bytes, shuffle_bytes=options.shuffle_bytes, lanes=options.lanes,
        parts=split is not None,
    )  # fmt: skip
    return Order("lanes", options.seed, chosen.lanes, chosen.block, split is not None, scanned), dealt


def advise_smaller(inputs: Inputs, order: Order, options: LoaderOptions) -> str:
    """Return what makes the chunks of a run smaller, as an advice; "" if they are parts, as small as they get.

    If chunks cannot be divided, the source may warn why.
    """
    noun, source = inputs.source.facts.part_noun, inputs.source if inputs.whole is None else inputs.whole
    if order.is_line or not isinstance(inputs.items, RowGrouping) or not isinstance(source, Splittable):
        return f"write smaller {noun}s"
    with warnings.catch_warnings():  # of what is said here
        warnings.simplefilter("ignore", PenstockWarning)
        default = None if order.parts else source.split(scan=None)
    if default is not None and options.parts is False:
        return f"leave parts=False out, for which {noun}s are read whole"
    if default is not None:
        return f"start a new run, which reads {noun}s in parts (the state of this one has whole {noun}s)"
    index = "run `penstock index --beside URL` once"
    try:
        divided = source.split(scan=True)
    except PlanError:  # not on this store, unless there is an index of pages
        return f"{index} to read {noun}s in parts"
    if divided is not None and len(divided.chunk) > len(inputs.counts):
        return f"{index}, or load with parts=True, to read {noun}s in parts"
    return "" if order.parts else f"write smaller {noun}s"


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
    def of(cls, inputs: Inputs, options: LoaderOptions, stages: tuple[Stage, ...], record: Record) -> Setup:
        """Return the setup of a loader: defaults of the host where the options leave them open."""
        payload = None
        if options.pool == "process":
            from penstock.engine.process import payload_of  # here: multiprocessing is a tenth of the time of our import

            payload = payload_of(stages)
        return cls(
            inputs=inputs,
            options=options,
            stages=stages,
            record=record,
            workers=options.workers or host.default_workers(),
            memory_bytes=options.memory_bytes or host.default_memory(),
            payload=payload,
        )

    @property
    def calls_user(self) -> bool:
        """Whether a stage calls a function of the user."""
        return any(stage.calls_user for stage in self.stages)

    def check_budget(self, plan: EpochPlan, *, resumed: bool = False) -> Needs:
        """Return the memory that an epoch needs; BudgetError if there is less.

        `resumed`: the order comes from a state, so options cannot change it.
        """
        inputs, is_line = self.inputs, plan.order.is_line
        window_bytes = inputs.items.visits(plan.visits).most_rows(inputs.held_chunk_bytes)
        batch_rows = inputs.items.most_rows(inputs.most_items(self.options), neighbours=is_line and inputs.aligned)
        needs = count_needs(inputs, window_bytes, batch_rows, self.options.pool)
        if needs.least > self.memory_bytes and inputs.counts.any():
            raise self._too_little(plan, needs, resumed=resumed)
        return needs

    def _too_little(self, plan: EpochPlan, needs: Needs, *, resumed: bool) -> BudgetError:
        inputs, order = self.inputs, plan.order
        largest = int(np.where(inputs.selected > 0, inputs.chunk_bytes, -1).argmax())
        noun = inputs.source.facts.part_noun
        part = f"part of a {noun}" if order.parts else noun
        held = f"{needs.window_bytes:,} bytes"
        held = f"{held} of {noun}s in use" if order.is_line else f"the shuffle buffer of {held}"
        kept = f", {needs.kept_bytes:,} of indexes and narrow columns" if needs.kept_bytes else ""
        if resumed and not order.is_line:
            cure = "or use more ranks, or a smaller batch_size; lanes, block and parts are those of the state"
        else:
            with warnings.catch_warnings():  # the error has to come, also where warnings are errors
                warnings.simplefilter("ignore", PenstockWarning)
                smaller = advise_smaller(inputs, order, self.options)
            cure = f"or lower {'' if order.is_line else 'shuffle_bytes or '}batch_size{smaller and f', or {smaller}'}"
            if "parts=True" in smaller:
                cure += " (a loader that is to resume such a run needs parts=True as well)"
        return BudgetError(
            f"memory_bytes={self.memory_bytes:,} is too little: {held}, one read of "
            f"{needs.read_bytes:,}{kept} and two batches of {needs.batch_bytes:,} need at least {needs.least:,} "
            f"(the largest {part}: {inputs.source.locate(largest)}, {int(inputs.chunk_bytes[largest]):,} bytes in "
            f"memory); raise memory_bytes, {cure}",
            least=needs.least,
        )

    def make_scheduler(self, first: EpochPlan, plans: Iterator[EpochPlan], every: tuple[int, int]) -> Scheduler:
        """Return what carries out the rest of a pass, or every n-th batch of it; its threads start with `next`.

        `plans` gives the epochs of the pass, of which `first` is the first one.
        """
        inputs, options, needs = self.inputs, self.options, self.check_budget(first)
        is_line = first.order.is_line
        workers = 0 if options.pool == "serial" else self.workers
        kept_bytes = min(inputs.kept_bytes, self.memory_bytes // _KEPT_SHARE)
        if isinstance(inputs.source, Caching):
            inputs.source.keep(kept_bytes)
        memory_bytes = self.memory_bytes - kept_bytes
        free = memory_bytes - needs.window_bytes - needs.read_bytes
        span_batches = min(self._span_batches(needs.batch_bytes, every), max(1, free // 2 // max(1, needs.batch_bytes)))
        span_bytes = span_batches * needs.batch_bytes
        ahead = max(1, min(workers + 2, inputs.most_waiting, free // 2 // max(1, span_bytes)))
        budget = memory_bytes - (ahead + 1) * span_bytes
        pool = BlockPool(keep=max(ahead, workers) + 3)
        shelf = self._make_shelf(budget, pool, needs) if is_line else None
        residency = self._make_residency(
            budget if shelf is None else int(budget * (1 - _RETAIN_SHARE)), shelf, shuffled=not is_line
        )
        # What one read can have beside window and batches, and a little more: estimates scatter.
        chunk_room = _TOLERANCE * (memory_bytes - needs.window_bytes - 2 * needs.batch_bytes)
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
        epochs = options.epochs
        last = None if epochs is None else first.cursor.epoch // epochs * epochs + epochs - 1
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
        single = slow or not all(column.light for column in self.inputs.columns)
        return 1 if single else max(1, min(_SPAN_BATCHES, SPAN_BYTES // max(1, batch_bytes)))

    def _make_shelf(self, budget: int, pool: BlockPool, needs: Needs) -> Shelf | None:
        """Return where a line order keeps chunks for the next epoch, if there is one and all chunks will fit."""
        inputs = self.inputs
        room, rest = int(budget * _RETAIN_SHARE), int(budget * (1 - _RETAIN_SHARE))
        all_bytes = int(inputs.held_chunk_bytes.sum())
        fits = all_bytes <= room and needs.window_bytes + needs.read_bytes <= rest
        return Shelf(room, inputs.slack, pool) if fits and self.options.epochs != 1 else None

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
