"""Read a chunk, find the rows of a span, build its batches: the work of a run, without its scheduling.

Called by the threads of a run. Every error leaves here with its location: file, row group, row and column. Holds no
lock and keeps no state but the pool of batch memory. `Room` limits the memory of cells of variable shape, whose decoded
size is known from their headers only: a few bytes may claim gigabytes.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from penstock.engine.delivery import Built, Origin
from penstock.engine.finish import build_damaged, finish_span, place_in
from penstock.engine.gather import (
    BlockPool,
    Chunk,
    Cutter,
    FixedPart,
    Gathered,
    LostChunk,
    Runs,
    aligned,
    gather,
    make_chunk,
)
from penstock.engine.gather_values import CellLost
from penstock.engine.locate import Locator
from penstock.engine.picks import Picks
from penstock.halt import until
from penstock.options import MEMORY_BYTES
from penstock.source import Selection, Source, read_chunk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from penstock.engine.inputs import Column
    from penstock.engine.loader import Stats
    from penstock.engine.randomness import Watch
    from penstock.engine.residency import EpochWork
    from penstock.engine.row_arena import Records, Shelf
    from penstock.engine.stages import Batch, Stage


@dataclass(slots=True)
class Span:
    """Some consecutive batches of one epoch, gathered together."""

    work: EpochWork
    number: int
    """Counts the spans of a run."""
    first_step: int
    end_step: int
    lo: int
    hi: int
    """Items of this rank in this epoch."""
    chunks: NDArray[np.int64] | None = None
    """The distinct chunks its rows lie in, once indexed."""
    part: NDArray[np.intp] | None = None
    rows: NDArray[np.int64] | None = None
    runs: list[tuple[int, int, int]] | None = None
    positions: NDArray[np.int64] | None = None
    """Global position of every unit (row or window); None where no stage needs them."""
    windows: NDArray[np.int64] | None = None
    """Rows of each window; see `ItemRows.windows`."""
    starts: NDArray[np.int64] | None = None
    """First unit of each item, where items are ragged; see `ItemRows.starts`."""
    num_asked: int = 0
    """How many of its chunks were in memory, or on their way there, when last looked at."""
    num_loaded: int = 0
    """How many of them were loaded."""

    @property
    def num_rows(self) -> int:
        """Rows of an indexed span: one an item, unless items are windows or whole chunks."""
        return len(self.rows) if self.rows is not None else sum(end - first for _, first, end in self.runs or ())

    def rows_of(self, batch: int) -> tuple[int, int]:
        """Return which of its rows make up a batch; several batches have one row an item."""
        if self.end_step - self.first_step == 1:
            return 0, self.num_rows
        return self.work.start_of(batch) - self.lo, self.work.end_of(batch) - self.lo


Chunks = dict[int, Chunk | LostChunk]
Results = list[Built | Exception]
"""The batches of a span, in order; an error stands for the first one that could not be built, and ends the list."""


def index_span(span: Span, num_chunks: int, *, positions: bool) -> None:
    """Fill in where the rows of a span lie, and the global positions of its units if they are needed."""
    plan, items = span.work.plan, span.work.items
    runs = plan.runs(span.lo, span.hi)
    found = items.locate(*plan.rows(span.lo, span.hi)) if runs is None else items.locate_runs(runs)
    span.windows, span.starts = found.windows, found.starts
    if positions:
        span.positions = plan.positions(span.lo, span.hi)
        if span.starts is not None:
            span.positions = np.repeat(span.positions, np.diff(span.starts))
    if found.runs is not None:
        span.runs = found.runs
        span.chunks = np.unique(np.array([chunk for chunk, _, _ in span.runs], np.int64))
        return
    chunk, span.rows = cast("NDArray[np.int64]", found.chunk), found.row
    number = np.zeros(num_chunks, np.intp)
    number[chunk] = 1
    distinct = np.flatnonzero(number)
    number[distinct] = np.arange(len(distinct))
    span.part = number[chunk]
    span.chunks = distinct  # last: other threads take a span for indexed once this is there


def _split(span: Span) -> Iterator[tuple[int, int, int, list[tuple[int, int, int]]]]:
    """Cut an indexed span of a line order into its batches: the step of each, its items [lo, hi), and their runs."""
    runs = deque(cast("list[tuple[int, int, int]]", span.runs))
    for step in range(span.first_step, span.end_step):
        lo, hi = span.work.start_of(step), span.work.end_of(step)
        mine, need = [], hi - lo
        while need:
            chunk, first, end = runs.popleft()
            cut = min(end, first + need)
            mine.append((chunk, first, cut))
            need -= cut - first
            if cut < end:
                runs.appendleft((chunk, cut, end))
        yield step, lo, hi, mine


def go_on(number: int, num_bytes: int) -> None:
    """Do not wait."""


@dataclass(slots=True, kw_only=True)
class Room:
    """How many bytes decoded cells of variable shape may take."""

    cell_bytes: int = MEMORY_BYTES
    """Of one cell: one that claims more is damaged, or cannot be read in this budget."""
    batch_bytes: int | None = None
    """Of one batch; None: as many as it needs, though others wait for it."""
    all_bytes: int = MEMORY_BYTES
    """Of all batches that are being made, wait for the consumer, or were taken last."""
    copies: int = 1
    """How often a value is in memory while its batch is made."""
    wait: Callable[[int, int], None] = field(default=go_on)
    """Called with the number of a span and the bytes that it needs; returns when it may be decoded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder:
    """Builds batches of one run."""

    source: Source
    selection: Selection
    columns: tuple[Column, ...]
    stages: tuple[Stage, ...]
    """What happens to gathered columns; `Decode` is the first."""
    pool: BlockPool
    stats: Stats
    seed: int = 0
    skip: bool = False
    """Whether damaged rows are left out instead of raising."""
    arena: Records | None = None
    """Where narrow columns of the window lie side by side; None: they stay as they were read."""
    shelf: Shelf | None = None
    """Where chunks are kept for the next epoch; None: they are read again."""
    limit_bytes: int | None = None
    """Memory that one chunk may take as Arrow; None: as much as it does."""
    room: Room = field(default_factory=Room)
    """What decoded cells of variable shape may take."""
    watch: Watch | None = None
    """Notices transforms that draw from global random states."""
    halted: threading.Event = field(default_factory=threading.Event)
    """Set when the run is stopped: a span of many slow batches ends with the one it is at."""

    @property
    def locator(self) -> Locator:
        """Locates rows for errors."""
        return Locator(self.source, self.selection)

    def read(self, chunk: int, *, last: bool) -> Chunk | LostChunk:
        """Read one chunk, selected rows only, or take it where it was kept; a failure becomes a `LostChunk`.

        `last`: no later epoch will use it.
        """
        began = time.perf_counter()
        kept = None if self.shelf is None else self.shelf.get(chunk, last=last)
        if kept is not None:
            self.stats.gathered(time.perf_counter() - began)
            return kept
        try:
            with until(self.halted):  # a store that is waited for does not delay the end
                names = [column.name for column in self.columns]
                data = read_chunk(self.source, chunk, names, limit_bytes=self.limit_bytes)
            made = make_chunk(chunk, data, self.columns, self.selection.rows_of(chunk), skip=self.skip)
            if self.arena is not None:
                made = replace(made, slot=self.arena.put(made.parts))
            if self.shelf is not None and not last:
                self.shelf.put(made)
        except CellLost as error:
            return LostChunk(chunk, self.locator.decode_error(chunk, error.row, error))
        except Exception as error:  # noqa: BLE001 -- raised by the batch that needs a row of it
            return LostChunk(chunk, error)
        self.stats.read(time.perf_counter() - began, made.num_bytes)
        return made

    def build(self, span: Span, chunks: Chunks, *, views: bool, process: Any = None) -> Results:
        """Gather a span and finish its batches; `process` runs the stages instead of this thread, if there is one."""
        began = time.perf_counter()
        if any(chunk.damaged for chunk in chunks.values()):
            return build_damaged(self, span, chunks, process)
        if views and span.runs is not None and span.end_step - span.first_step > 1:
            # A batch inside one chunk is a view of it; gathered together, all would be copied for one at the border.
            return self._views(span, chunks, process)
        columns = self.gather(span, _rows(span, cast("dict[int, Chunk]", chunks), views=views))
        self.stats.gathered(time.perf_counter() - began)
        ready = self._ready(columns) if process is None else None
        return finish_span(self, span, columns, process) if ready is None else self._slices(span, ready)

    def _views(self, span: Span, chunks: Chunks, process: Any) -> Results:
        """Build the batches of a line span one by one; where nothing is left to be done they are cut at once."""
        began = time.perf_counter()
        ready = self._columns_of(cast("dict[int, Chunk]", chunks)) if process is None else None
        made: Results = []
        for step, lo, hi, runs in _split(span):
            if ready:
                made.append(Built(self._cut(runs, ready), Origin(span.work.plan, lo, hi), hi - lo, ()))
            else:
                positions = None if span.positions is None else span.positions[lo - span.lo : hi - span.lo]
                one = replace(span, first_step=step, end_step=step + 1, lo=lo, hi=hi, runs=runs, positions=positions)
                made += self.build(one, chunks, views=True, process=process)
        if ready:
            self.stats.finished(time.perf_counter() - began)
        return made

    def _cut(self, runs: list[tuple[int, int, int]], ready: dict[int, list[NDArray[Any]]]) -> Batch:
        """Return a batch of finished columns: a view of a chunk, or what is in several of them put together."""
        chunk, first, end = runs[0]
        if len(runs) == 1:
            pairs = zip(self.columns, ready[chunk], strict=True)
            return {column.name: values[first:end] for column, values in pairs}
        num_rows = sum(end - first for _, first, end in runs)
        cut = Cutter(self.pool.lease(sum(aligned(column.item_bytes * num_rows) for column in self.columns))).cut
        batch: Batch = {}
        for number, column in enumerate(self.columns):
            out = cut((num_rows, *column.shape), column.dtype, column.item_bytes * num_rows)
            batch[column.name] = np.concatenate([ready[chunk][number][lo:hi] for chunk, lo, hi in runs], out=out)
        return batch

    def _columns_of(self, chunks: dict[int, Chunk]) -> dict[int, list[NDArray[Any]]] | None:
        """Return the columns of chunks if nothing is left to do with them: no cells, nulls, padding or transform."""
        if len(self.stages) > 1 or any(column.masked for column in self.columns):
            return None
        columns: dict[int, list[NDArray[Any]]] = {}
        for index, chunk in chunks.items():
            columns[index] = [part.values for part in chunk.parts if isinstance(part, FixedPart)]
            if chunk.nulls or len(columns[index]) < len(self.columns):
                return None
        return columns

    def _ready(self, columns: list[Gathered]) -> dict[str, NDArray[Any]] | None:
        """Return the columns of a span if nothing is left to do with them, as `_columns_of`."""
        if (
            len(self.stages) > 1
            or any(one.values is None or one.valid is not None for one in columns)
            or any(column.masked for column in self.columns)
        ):
            return None
        ready: dict[str, Any] = {column.name: one.values for column, one in zip(self.columns, columns, strict=True)}
        return ready

    def _slices(self, span: Span, columns: dict[str, NDArray[Any]]) -> Results:
        """Cut finished columns into batches without a call for each column; `finish_span` is the plain twin."""
        began = time.perf_counter()
        made: Results = []
        work, plan, base = span.work, span.work.plan, span.lo
        alone = span.end_step - span.first_step == 1
        for step in range(span.first_step, span.end_step):
            first, end = work.start_of(step), work.end_of(step)
            lo, hi = (0, span.num_rows) if alone else (first - base, end - base)
            batch: Batch = {name: values[lo:hi] for name, values in columns.items()}
            made.append(Built(batch, Origin(plan, first, end, span.windows), hi - lo, ()))
        self.stats.finished(time.perf_counter() - began)
        return made

    def gather(self, span: Span, rows: Runs | Picks) -> list[Gathered]:
        """Gather all columns of some rows of a span."""
        try:
            return gather(rows, self.columns, self.pool, self.arena, skip=self.skip)
        except CellLost as error:
            raise self.locator.decode_error(*place_in(span, error.row), error) from error.__cause__


def _rows(span: Span, chunks: dict[int, Chunk], *, views: bool) -> Runs | Picks:
    if span.runs is not None:
        return Runs([chunks[c] for c, _, _ in span.runs], [(a, b) for _, a, b in span.runs], views=views)
    found = cast("NDArray[np.int64]", span.chunks)
    return Picks(
        [chunks[int(c)] for c in found], cast("NDArray[np.intp]", span.part), cast("NDArray[np.int64]", span.rows)
    )
