"""Finish gathered batches: run the stages, leave out lost rows, and say where a failure lies.

Called by `build` for batches that are not finished arrays once they are gathered: encoded cells, nulls, transforms,
windows, rows that are damaged. Every error leaves here with its location: file, row group, row and column.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from penstock.codecs.base import Cells, claimed_bytes
from penstock.engine.delivery import Built, Origin
from penstock.engine.gather import Chunk, Gathered, LostChunk
from penstock.engine.gather_values import CellLost
from penstock.engine.picks import Picks
from penstock.engine.stages import Batch, BatchOrigin, Fold, Lost, refold, run_stages, stage_of
from penstock.errors import BadFile, BudgetError, CodecError, DecodeError, FileChanged, TransformError
from penstock.halt import until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from penstock.engine.build import Builder, Chunks, Results, Room, Span
    from penstock.engine.inputs import Column
    from penstock.engine.locate import Skipped


class _Part(NamedTuple):
    """One batch of a span: which of the span's items, and what was lost of it already."""

    span: Span
    step: int
    rows: slice | NDArray[np.int64]
    """Which rows of the span it has."""
    num_rows: int
    units: slice | NDArray[np.int64]
    """Which units of the span it has: rows, or windows."""
    windows: NDArray[np.int64] | None = None
    """Rows of each window, counted in the batch."""
    skipped: tuple[Skipped, ...] = ()

    def row(self, row: int) -> int:
        """Return which row of the span a row of the batch is."""
        return self.rows.start + row if isinstance(self.rows, slice) else int(self.rows[row])

    def kept(self, keep: NDArray[np.bool_] | None) -> NDArray[np.int64]:
        """Return which items of the batch are left, given which of its units are; None: all units."""
        units = self.units
        numbers = np.arange(units.start, units.stop) if isinstance(units, slice) else units
        numbers = numbers if keep is None else numbers[keep]
        if self.span.starts is not None:
            numbers = np.unique(np.searchsorted(self.span.starts, numbers, side="right") - 1)
        return numbers - self.first

    @property
    def first(self) -> int:
        """The first item, counted from the span's first."""
        return self.span.work.start_of(self.step) - self.span.lo


def _each(builder: Builder, span: Span, make: Callable[[int], Built]) -> Results:
    """Make the batches of a span one after another, up to the first that cannot be made, or to the run's end."""
    made: list[Built] = []
    for step in range(span.first_step, span.end_step):
        if builder.halted.is_set():
            break
        try:
            made.append(make(step))
        except Exception as error:  # noqa: BLE001 -- the consumer meets it in its place
            return [*made, error]  # not append: the error's traceback holds this frame and its list
    return [*made]


def finish_span(builder: Builder, span: Span, columns: list[Gathered], process: Any) -> Results:
    """Return the batches of a gathered span, after all stages."""

    def batch(step: int) -> Built:
        lo, hi = span.rows_of(step)
        mine = columns if span.end_step - span.first_step == 1 else [_slice(one, lo, hi) for one in columns]
        units = slice(lo, hi) if span.windows is None else slice(0, len(span.windows))
        return _finish(builder, _Part(span, step, slice(lo, hi), hi - lo, units, span.windows), mine, process)

    return _each(builder, span, batch)


def build_damaged(builder: Builder, span: Span, chunks: Chunks, process: Any) -> Results:
    """Return the batches of a span some of whose chunks have lost rows: errors, or batches without those rows."""
    chunk, row = span_rows(span)
    return _each(builder, span, lambda step: _batch_around(builder, span, step, (chunks, chunk, row), process))


def _run(builder: Builder, columns: list[Gathered], origin: BatchOrigin) -> tuple[Batch, list[Lost]]:
    """Run the stages in this thread; a transform of rows stops at the current row when the run is stopped."""
    with until(builder.halted):
        if builder.watch is None:
            return run_stages(builder.stages, columns, origin, builder.pool)
        before = builder.watch.look()
        finished = run_stages(builder.stages, columns, origin, builder.pool)
        builder.watch.compare(before)
        return finished


def _finish(builder: Builder, part: _Part, columns: list[Gathered], process: Any) -> Built:
    """Take one batch through the stages; errors get their location."""
    began = time.perf_counter()
    span, positions, first = part.span, None, 0
    if span.positions is not None:
        positions, first = span.positions[part.units], int(span.positions[part.first])
    try:
        columns, gone, used = within(builder.room, builder.columns, columns, skip=builder.skip)
        builder.room.wait(span.number, used)
        origin = BatchOrigin(
            builder.seed, span.work.epoch, part.num_rows, positions, first, part.windows,
            ragged=span.starts is not None, lost=gone,
        )  # fmt: skip
        batch, lost = _run(builder, columns, origin) if process is None else process.run(columns, origin, builder.pool)
    except CellLost as error:
        raise builder.locator.decode_error(*place_in(span, part.row(error.row)), error) from error.__cause__
    except BudgetError as error:
        raise BudgetError(f"{error}; in {_describe(builder, part)}", least=error.least) from None
    except TransformError as error:
        raise TransformError(f"{error}; in {_describe(builder, part)}") from error.__cause__
    except CodecError as error:
        raise CodecError(f"{error}; in {_describe(builder, part)}") from error.__cause__
    skipped = tuple(
        builder.locator.skipped(*place_in(span, part.row(one.row)), one.column, one.reason)
        for one in lost
        if one.reason is not None
    )
    windows, keep = part.windows, None
    if lost:
        keep = np.ones(part.num_rows, np.bool_)
        keep[[one.row for one in lost]] = False
        if windows is not None:
            windows, keep = refold(windows, keep)
    kept = None if keep is None and not part.skipped else part.kept(keep)
    builder.stats.finished(time.perf_counter() - began)
    work, num_rows = span.work, len(next(iter(batch.values()))) if batch else 0
    first, end = work.start_of(part.step), work.end_of(part.step)
    made_of = Origin(work.plan, first, end, None if stage_of(builder.stages, Fold) else windows, kept)
    return Built(batch, made_of, num_rows, part.skipped + skipped)


def _describe(builder: Builder, part: _Part) -> str:
    """Name the rows of a batch for an error."""
    chunks, rows = span_rows(part.span)
    listed = [part.row(row) for row in range(min(part.num_rows, 256))]
    return builder.locator.describe((int(chunks[row]), int(rows[row])) for row in listed)


def _batch_around(
    builder: Builder, span: Span, step: int, place: tuple[Chunks, NDArray[np.int64], NDArray[np.int64]], process: Any
) -> Built:
    """Build a batch some of whose rows may be lost: an error, or the batch without them."""
    chunks, chunk, row = place
    lo, hi = span.rows_of(step)
    bad = np.zeros(hi - lo, np.bool_)
    for number, one in chunks.items():
        if one.damaged:
            here = chunk[lo:hi] == number
            bad |= here if isinstance(one, LostChunk) else here & np.isin(row[lo:hi], list(one.damaged))
    for index in dict.fromkeys(chunk[lo:hi][bad].tolist()):
        # Only damage is skipped: a store that fails, a file that has changed or a bug of a source would lose good rows.
        error = getattr(chunks[index], "error", None)
        if error is not None and (
            not builder.skip or not isinstance(error, BadFile | DecodeError) or isinstance(error, FileChanged)
        ):
            raise error
    rows = np.arange(lo, hi)
    gone = tuple(builder.locator.skipped_in(chunks[int(chunk[i])], int(row[i])) for i in rows[bad])
    rows = rows[~bad]
    distinct, part = np.unique(chunk[rows], return_inverse=True)
    there = [cast("Chunk", chunks[int(c)]) for c in distinct]
    columns = builder.gather(span, Picks(there, part.astype(np.intp), row[rows]))
    windows, units = None, rows
    if span.windows is not None:
        windows, whole = refold(span.windows, ~bad)
        units = np.flatnonzero(whole)
    return _finish(builder, _Part(span, step, rows, len(rows), units, windows, gone), columns, process)


def span_rows(span: Span) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the chunk and the row of every item of an indexed span; for errors and damaged data only."""
    if span.runs is None:
        return cast("NDArray[np.int64]", span.chunks)[span.part], cast("NDArray[np.int64]", span.rows)
    rows = [np.arange(first, end) for _, first, end in span.runs]
    chunks = [np.full(end - first, chunk) for chunk, first, end in span.runs]
    return np.concatenate(chunks), np.concatenate(rows)


def place_in(span: Span, row: int) -> tuple[int, int]:
    """Return chunk and row of a row of an indexed span."""
    chunks, rows = span_rows(span)
    return int(chunks[row]), int(rows[row])


def _slice(one: Gathered, lo: int, hi: int) -> Gathered:
    """Cut one batch out of a gathered column."""
    valid = None if one.valid is None else one.valid[lo:hi]
    if valid is not None and valid.all():
        valid = None
    if one.values is not None:
        return Gathered(one.values[lo:hi], valid)
    if one.rows is not None:
        return Gathered(rows=one.rows[lo:hi])
    cells = cast("Cells", one.cells)
    part = None if cells.part is None else cells.part[lo:hi]
    return Gathered(valid=valid, cells=Cells(cells.parts, part, cells.start[lo:hi], cells.stop[lo:hi], valid))


def within(
    room: Room, columns: Sequence[Column], gathered: Sequence[Gathered], *, skip: bool
) -> tuple[list[Gathered], tuple[Lost, ...], int]:
    """Return the columns with those cells null that claim too many bytes, their rows, and the bytes of the others.

    Raises:
        CellLost: a cell claims more than there is, and is not to be skipped.
        BudgetError: all cells together claim more than a batch may have.
    """
    found, lost, used = list(gathered), dict[int, Lost](), 0
    most = room.cell_bytes // room.copies
    for number, (column, one) in enumerate(zip(columns, gathered, strict=True)):
        if column.form != "ragged" or one.cells is None:
            continue
        sizes = claimed_bytes(column.codec, column.field, one.cells)
        if sizes is None:
            continue
        over = sizes > most
        for row in np.flatnonzero(over).tolist():
            reason = (
                f"its header claims {int(sizes[row]):,} bytes of pixels or elements, and there is room for {most:,}; "
                "it is damaged, or memory_bytes= must be raised"
            )
            if not skip:
                raise CellLost(row, column.name, reason)
            lost.setdefault(row, Lost(row, column.name, reason))
        if over.any():
            valid = ~over if one.cells.valid is None else one.cells.valid & ~over
            found[number] = one._replace(valid=valid, cells=replace(one.cells, valid=valid))
        used += int(sizes[~over].sum()) * room.copies
        if room.batch_bytes is not None and used > room.batch_bytes:
            raise BudgetError(
                f"the cells of one batch up to column {column.name!r} need {used:,} bytes to be decoded, and "
                f"memory_bytes leaves {room.batch_bytes:,}; raise memory_bytes, or lower batch_size or shuffle_bytes",
                least=used,
            )
    return found, tuple(lost.values()), used
