"""Turn gathered columns into the batch the user sees: decode, mask nulls, pad, transform.

Runs in a thread of the engine or in a process of the pool; sees one batch and knows no file names. A cell that cannot
be decoded is reported by its row in the batch (`Lost`); the caller knows where that row came from.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from penstock.codecs.arrow import mask
from penstock.codecs.base import CellError
from penstock.codecs.decode import decode_cells, reason_of
from penstock.engine.chance import BATCH, NAMES, ROW, generators
from penstock.engine.chunk import CellLost, Damaged
from penstock.engine.memory import Cutter, aligned
from penstock.engine.padding import Paddings
from penstock.errors import TransformError
from penstock.halt import until

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from penstock.codecs import Cells
    from penstock.engine.chance import Watch
    from penstock.engine.columns import Column
    from penstock.engine.gather import Gathered
    from penstock.engine.memory import BlockPool

Batch = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Lost:
    """A row left out of the batch, by its row in the batch as planned."""

    row: int
    column: str
    reason: str | None
    """None: a filter that is applied on delivery has left it out."""


class LateFilter(Protocol):
    """Leaves rows out on delivery; picklable."""

    @property
    def fields(self) -> frozenset[str]:
        """Columns it looks at."""

    @property
    def digest(self) -> str:
        """Digest of what it keeps, for states."""

    def __call__(self, batch: Batch, num_rows: int, /) -> NDArray[np.bool_]:
        """Return which rows to keep."""


@dataclass(frozen=True, slots=True)
class Fold:
    """How windows of rows become one batch: every column gets an axis of time after that of the batch."""

    length: int
    """Rows of a window."""
    steps: Mapping[str, tuple[int, ...]] | None = None
    """The steps of each column; None: all columns have all of them."""

    def __call__(self, batch: Batch, fold: NDArray[np.int64]) -> Batch:
        """Return the columns of windows from those of their distinct rows."""
        if self.steps is None:
            return {name: _folded(values, fold) for name, values in batch.items()}
        return {name: _folded(batch[name], fold[:, list(steps)]) for name, steps in self.steps.items()}


def _folded(values: Any, fold: NDArray[np.int64]) -> Any:
    if isinstance(values, list):
        return [[values[row] for row in line] for line in fold.tolist()]
    return values[fold]


def refold(fold: NDArray[np.int64], keep: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return windows over the kept rows only, and which windows are left: those that lack no row."""
    whole = cast("NDArray[np.bool_]", keep[fold].all(axis=1))
    return (np.cumsum(keep) - np.int64(1))[fold[whole]], whole


@dataclass(frozen=True, slots=True)
class Place:
    """Where a batch stands in the order; what a transform may ask for."""

    seed: int
    epoch: int
    num_rows: int
    positions: NDArray[np.int64] | None
    """Global position of every row; None where the transform does not ask."""
    first: int = 0
    """Global position of the first row as planned, whether it is skipped or not; 0 where the transform does not ask."""
    fold: NDArray[np.int64] | None = None
    """Which rows each window consists of, where items are windows."""
    lost: tuple[Lost, ...] = ()
    """Rows that are lost already; their cells are null."""

    def of_batch(self, wants: frozenset[str]) -> dict[str, Any]:
        """Return the generators that are wanted, keyed by (seed, epoch, position of the batch's first row)."""
        return generators(wants, (self.seed, self.epoch), (self.first, 0, BATCH))

    def of_row(self, wants: frozenset[str], row: int) -> dict[str, Any]:
        """Return the generators of a row of the batch as planned, keyed by (seed, epoch, position of the row).

        Rows of windows and of whole chunks have no position: they are keyed by their place in the batch.
        """
        if self.positions is not None and self.fold is None and len(self.positions) == self.num_rows:
            return generators(wants, (self.seed, self.epoch), (int(self.positions[row]), 0, ROW))
        return generators(wants, (self.seed, self.epoch), (self.first, row + 1, ROW))


@dataclass(frozen=True, slots=True)
class Chance:
    """The random numbers of a batch for a `TransformSpec`: what its function asks for."""

    place: Place
    wants: frozenset[str]
    rows: NDArray[np.intp]
    """Which rows of the batch as planned are left."""

    def of_batch(self) -> dict[str, Any]:
        """Return what a function of the whole batch gets."""
        return self.place.of_batch(self.wants)

    def of_row(self, index: int) -> dict[str, Any]:
        """Return what a function of one of the rows that are left gets."""
        return self.place.of_row(self.wants, int(self.rows[index]))


@dataclass(frozen=True, slots=True)
class Finisher:
    """Finishes batches; small and picklable, so that a process of the pool gets one at its start."""

    columns: tuple[Column, ...]
    transform: Callable[..., Mapping[str, Any]] | None
    skip: bool
    paddings: Paddings = field(default_factory=Paddings)
    """Columns of variable shape that become arrays."""
    wants: frozenset[str] = field(default=frozenset())
    """Which of `rng`, `generator` and `positions` the transform takes, whichever it is."""
    late: LateFilter | None = None
    """Leaves rows out before anything else looks at them."""
    unseen: frozenset[str] = field(default=frozenset())
    """Columns that only `late` looks at."""
    rowwise: Callable[..., Batch] | None = None
    """Changes rows before they become windows; it may give another number of rows where they do not."""
    fold: Fold | None = None
    """How windows become a batch; None: rows stay as they are."""

    @property
    def does_more(self) -> bool:
        """Whether anything is done to columns that need no decoding."""
        return bool(self.paddings.read) or any(
            one is not None for one in (self.transform, self.late, self.rowwise, self.fold)
        )

    @property
    def calls_user(self) -> bool:
        """Whether a function of the user changes batches or rows."""
        return self.transform is not None or getattr(getattr(self.rowwise, "spec", None), "func", None) is not None

    def finish(self, gathered: Sequence[Gathered], place: Place, pool: BlockPool) -> tuple[Batch, list[Lost]]:
        """Return the batch and the rows that were left out of it (only under `skip`)."""
        num_rows = place.num_rows
        lost = {one.row: one for one in place.lost}
        batch = self._decoded(gathered, num_rows, pool, lost)
        if self.late is not None:
            self._filter(batch, num_rows, lost)
        keep = None
        if lost:
            keep = np.ones(num_rows, np.bool_)
            keep[list(lost)] = False
            batch = {name: _keep(values, keep) for name, values in batch.items()}
        for name in self.unseen:
            del batch[name]
        for name, padding in self.paddings.read.items():
            batch[name] = padding.stack(batch[name])
        if self.rowwise is not None:
            chance = None
            if self.wants:
                rows = np.arange(num_rows) if keep is None else np.flatnonzero(keep)
                chance = Chance(place, self.wants & NAMES, rows)
            batch = self.rowwise(batch, num_rows - len(lost), chance)
            for name, padding in self.paddings.spec.items():
                batch[name] = padding.stack(batch[name])
        if self.fold is not None and place.fold is not None:
            fold, keep = (place.fold, None) if keep is None else refold(place.fold, keep)
            batch, num_rows = self.fold(batch, fold), len(place.fold)
        if self.transform is not None:
            batch = self._transformed(batch, place, num_rows, keep)
        return batch, [lost[row] for row in sorted(lost)]

    def _filter(self, batch: Batch, num_rows: int, lost: dict[int, Lost]) -> None:
        """Note the rows that a filter leaves out; it does not look at those that are lost already."""
        late = cast("LateFilter", self.late)
        seen = np.setdiff1d(np.arange(num_rows), list(lost))
        columns = {name: batch[name] for name in late.fields}
        if lost:
            keep = np.zeros(num_rows, np.bool_)
            keep[seen] = True
            columns = {name: _keep(values, keep) for name, values in columns.items()}
        for row in seen[~late(columns, len(seen))].tolist():
            lost[row] = Lost(row, "", None)

    def _decoded(self, gathered: Sequence[Gathered], num_rows: int, pool: BlockPool, lost: dict[int, Lost]) -> Batch:
        need = [
            aligned(column.item_bytes * num_rows)
            for column, one in zip(self.columns, gathered, strict=True)
            if column.form == "cells" and one.cells is not None
        ]
        cutter = Cutter(pool.lease(sum(need))) if need else None  # also for arrays that have no elements
        batch: Batch = {}
        for column, one in zip(self.columns, gathered, strict=True):
            if one.rows is not None:
                batch[column.name] = one.rows
                if self.skip:
                    lost.update(_damaged(one.rows, column.name))
            elif one.values is not None:
                batch[column.name] = one.values if one.valid is None else mask(one.values, one.valid)
            else:
                batch[column.name] = self._cells(column, cast("Cells", one.cells), cutter, lost)
        return batch

    def _cells(self, column: Column, cells: Cells, cutter: Cutter | None, lost: dict[int, Lost]) -> Any:
        """Decode a column of cells; under `skip` rows that cannot be decoded are added to `lost`."""
        out = None
        if column.form != "ragged":
            dtype = cast("np.dtype[Any]", column.dtype)
            out = cast("Cutter", cutter).cut((len(cells), *column.shape), dtype, column.item_bytes * len(cells))
        failed: dict[int, Exception] | None = {} if self.skip else None
        try:
            values = decode_cells(column.codec, column.field, cells, out, failed)
        except CellError as error:
            raise CellLost(error.index, column.name, reason_of(error, column.name)) from error
        for row, reason in (failed or {}).items():
            lost.setdefault(row, Lost(row, column.name, reason_of(reason, column.name)))
        return values if out is not None else [_own(value) for value in values]

    def _transformed(self, batch: Batch, place: Place, num_rows: int, keep: NDArray[np.bool_] | None) -> Batch:
        extra = place.of_batch(self.wants)
        if "positions" in self.wants:
            positions = cast("NDArray[np.int64]", place.positions)
            extra["positions"] = positions.copy() if keep is None else positions[keep]
        try:
            result = cast("Callable[..., Any]", self.transform)(batch, **extra)
        except Exception as error:
            raise TransformError(f"the transform raised {type(error).__name__}: {error}") from error
        made = checked(result, num_rows if keep is None else int(keep.sum()))
        return made if self.paddings.made is None else self.paddings.made(made)


class ThreadFinisher:
    """A `Finisher` that works in the calling thread; has the start and close of one that has a process."""

    def __init__(self, finisher: Finisher, halted: threading.Event, watch: Watch | None) -> None:
        self._finisher = finisher
        self._halted = halted
        self._watch = watch

    def finish(self, gathered: Sequence[Gathered], place: Place, pool: BlockPool) -> tuple[Batch, list[Lost]]:
        """Finish a batch here; a transform of rows ends with the row it is at when the run is stopped."""
        with until(self._halted):
            if self._watch is None:
                return self._finisher.finish(gathered, place, pool)
            before = self._watch.look()
            finished = self._finisher.finish(gathered, place, pool)
            self._watch.compare(before)
            return finished

    def start(self) -> None:
        """Do nothing: there is no process."""

    def close(self) -> None:
        """Do nothing: there is no process."""


def checked(result: Any, num_rows: int) -> Batch:
    """Return a transform's result as a batch, or say how it broke the contract: same rows, any columns."""
    if not hasattr(result, "keys"):
        raise TransformError(f"a transform must return a dict of columns; got {type(result).__name__}")
    batch = {str(name): result[name] for name in result.keys()}  # noqa: SIM118 -- any mapping, also one without __iter__ over keys
    for name, values in batch.items():
        try:
            count = len(values)
        except TypeError:
            raise TransformError(
                f"a transform must return columns of {num_rows} rows; column {name!r} is of type "
                f"{type(values).__name__}"
            ) from None
        if count != num_rows:
            raise TransformError(
                f"a transform may change columns, not rows: column {name!r} has {count} rows, the batch has {num_rows}"
            )
    return batch


def _own(value: Any) -> Any:
    """Return a decoded value the user may write to: a codec may well give a view of its bytes."""
    return value.copy() if isinstance(value, np.ndarray) and not value.flags.writeable else value


def _damaged(rows: Any, column: str) -> dict[int, Lost]:
    """Return the rows whose value could not be made."""
    return {row: Lost(row, column, value.reason) for row, value in enumerate(rows) if isinstance(value, Damaged)}


def _keep(values: Any, keep: NDArray[np.bool_]) -> Any:
    if isinstance(values, list):
        return [value for value, kept in zip(values, keep.tolist(), strict=True) if kept]
    return values[keep]
