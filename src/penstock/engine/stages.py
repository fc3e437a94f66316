"""Turn gathered columns into the batch the user sees: a tuple of stages, each a small picklable callable.

`make_stages` builds the tuple once from the options; `run_stages` takes one batch through it, in a thread of the engine
or in a process of the pool. Stages see one batch and know no file names: a row that is lost is reported by its row in
the batch as planned (`Lost`), and the caller knows where that row came from.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeVar, cast

import numpy as np

from penstock.codecs.arrow import mask
from penstock.codecs.base import CellError
from penstock.codecs.decode import decode_cells, reason_of
from penstock.engine.gather import BlockPool, Cutter, Gathered, aligned
from penstock.engine.gather_values import CellLost, Damaged
from penstock.engine.randomness import BATCH, ROW, generators
from penstock.errors import TransformError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from penstock.codecs import Cells
    from penstock.engine.inputs import Column

Batch = dict[str, Any]
_Kind = TypeVar("_Kind", bound="Stage")

MASK = "_valid"
"""Name of the column that tells rows from padding."""


class Lost(NamedTuple):
    """A row left out of the batch, by its row in the batch as planned."""

    row: int
    column: str
    reason: str | None
    """None: a filter that is applied on delivery has left it out."""


@dataclass(frozen=True, slots=True)
class BatchOrigin:
    """Where a batch stands in the order, and the rows that it was planned with.

    Its *units* are what the consumer counts: rows, or windows of rows.
    """

    seed: int
    epoch: int
    num_rows: int
    positions: NDArray[np.int64] | None = None
    """Global position of every unit; None where no stage needs them."""
    first: int = 0
    """Global position of the first unit as planned, whether it is skipped or not; 0 where no stage needs it."""
    windows: NDArray[np.int64] | None = None
    """Rows of each window; None: units are rows."""
    ragged: bool = False
    """Whether items have several units: those of one item share a position."""
    lost: tuple[Lost, ...] = ()
    """Rows that are lost already; their cells are null."""

    def of_batch(self, wants: frozenset[str], number: int = 0) -> dict[str, Any]:
        """Return the generators of `wants`, keyed by (seed, epoch, position of the batch's first row).

        `number`: which of several functions gets them. Each draws from a stream of its own.
        """
        # 1 and 2 in the third word are a transform on a device and the global states, see `randomness`.
        return generators(wants, (self.seed, self.epoch), (self.first, number and number + 2, BATCH))

    def of_row(self, wants: frozenset[str], row: int) -> dict[str, Any]:
        """Return the generators of a row of the batch as planned, keyed by (seed, epoch, position of the row).

        Rows of windows and of ragged items have no position: they are keyed by their place in the batch.
        """
        if self.positions is not None and self.windows is None and not self.ragged:
            return generators(wants, (self.seed, self.epoch), (int(self.positions[row]), 0, ROW))
        return generators(wants, (self.seed, self.epoch), (self.first, row + 1, ROW))


@dataclass(slots=True)
class Draft:
    """A batch on its way through the stages, which change it in place."""

    origin: BatchOrigin
    gathered: Sequence[Gathered]
    """Columns as they were gathered, not decoded."""
    pool: BlockPool
    columns: Batch = field(default_factory=dict)
    """The batch so far."""
    rows: NDArray[np.intp] | None = None
    """Which rows of the batch as planned are left; None: all."""
    lost: dict[int, Lost] = field(default_factory=dict)
    """The others, by row."""

    @property
    def num_rows(self) -> int:
        """Number of rows that are left."""
        return self.origin.num_rows if self.rows is None else len(self.rows)

    def lose(self, lost: Iterable[Lost]) -> None:
        """Leave rows, given by their row in the batch as planned, out of all columns."""
        self.lost |= {one.row: one for one in lost if one.row not in self.lost}
        keep = np.ones(self.origin.num_rows, np.bool_)
        keep[list(self.lost)] = False
        here = keep if self.rows is None else keep[self.rows]
        self.columns = {
            name: (
                [value for value, kept in zip(values, here.tolist(), strict=True) if kept]
                if isinstance(values, list)
                else values[here]
            )
            for name, values in self.columns.items()
        }
        self.rows = np.flatnonzero(keep)

    def units(self) -> NDArray[np.intp] | None:
        """Return which units of the batch as planned are left: rows, or windows that lack no row; None: all."""
        whole = self.rows is None or self.origin.windows is None
        return self.rows if whole else np.flatnonzero(self._windows()[1])

    def windows(self) -> NDArray[np.int64]:
        """Return the windows that lack no row, as numbers of the rows that are left."""
        return cast("NDArray[np.int64]", self.origin.windows) if self.rows is None else self._windows()[0]

    def _windows(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        keep = np.zeros(self.origin.num_rows, np.bool_)
        keep[self.rows] = True
        return refold(cast("NDArray[np.int64]", self.origin.windows), keep)


def refold(windows: NDArray[np.int64], keep: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return windows over the kept rows only, and which windows are left: those that lack no row."""
    whole = cast("NDArray[np.bool_]", keep[windows].all(axis=1))
    return (np.cumsum(keep) - np.int64(1))[windows[whole]], whole


class Stage(ABC):
    """One step of a batch on its way. Immutable and picklable; called by several threads at once."""

    wants: frozenset[str] = frozenset()
    """Which of `rng`, `generator` and `positions` the user's function takes."""
    calls_user: bool = False
    """Whether it calls a function of the user."""
    is_slow: ClassVar[bool] = False
    """Whether batches are made one at a time because of it, so that workers share them evenly."""

    @abstractmethod
    def __call__(self, draft: Draft) -> None:
        """Change the batch; a row that cannot be had raises CellLost, or is left out by `Draft.lose`."""

    def names(self, names: list[str]) -> list[str] | None:
        """Return the columns after this stage, given those before it; None where only a batch can tell."""
        return names


def run_stages(
    stages: Sequence[Stage], gathered: Sequence[Gathered], origin: BatchOrigin, pool: BlockPool
) -> tuple[Batch, list[Lost]]:
    """Return the finished batch and the rows that were left out of it."""
    draft = Draft(origin, gathered, pool)
    for stage in stages:
        stage(draft)
    return draft.columns, [draft.lost[row] for row in sorted(draft.lost)]


# -- the stages, in the order in which a batch goes through them ------------------------------------------------------


@dataclass(frozen=True)
class Decode(Stage):
    """Decodes cells and masks nulls: the first stage of every batch."""

    columns: tuple[Column, ...]
    skip: bool
    """Whether rows that cannot be decoded are left out; otherwise they raise CellLost."""

    def __call__(self, draft: Draft) -> None:
        """Fill in the columns."""
        num_rows, lost = draft.origin.num_rows, {one.row: one for one in draft.origin.lost}
        pairs = list(zip(self.columns, draft.gathered, strict=True))
        need = [aligned(c.item_bytes * num_rows) for c, one in pairs if c.form == "cells" and one.cells is not None]
        cutter = Cutter(draft.pool.lease(sum(need))) if need else None  # also for arrays that have no elements
        for column, one in pairs:
            if one.rows is not None:
                values: Any = one.rows
                if self.skip:
                    bad = ((row, value) for row, value in enumerate(one.rows) if isinstance(value, Damaged))
                    lost.update({row: Lost(row, column.name, value.reason) for row, value in bad})
            elif one.values is not None:
                values = one.values
                if column.masked or one.valid is not None:
                    values = mask(values, one.valid, always=column.masked)
            else:
                values = self._decode(column, cast("Cells", one.cells), cutter, lost)
            draft.columns[column.name] = values
        if lost:
            draft.lose(lost.values())
            for column in self.columns:  # a row that was left out is null in the column that is to blame
                values = draft.columns[column.name]
                if not column.masked and isinstance(values, np.ma.MaskedArray) and not np.ma.is_masked(values):
                    draft.columns[column.name] = values.data

    def _decode(self, column: Column, cells: Cells, cutter: Cutter | None, lost: dict[int, Lost]) -> Any:
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
        if out is not None:
            return mask(out, cells.valid, always=True) if column.masked else values
        # The user may write to what a batch holds, and a codec may return a view of its bytes.
        return [v.copy() if isinstance(v, np.ndarray) and not v.flags.writeable else v for v in values]

    def names(self, names: list[str]) -> list[str]:
        """Return all columns that are read."""
        return [*names, *(column.name for column in self.columns)]


class LateFilter(Protocol):
    """Selects rows on delivery; picklable."""

    @property
    def fields(self) -> frozenset[str]:
        """Columns it looks at."""

    @property
    def digest(self) -> str:
        """Digest of what it keeps, for states."""

    def __call__(self, batch: Batch, num_rows: int, /) -> NDArray[np.bool_]:
        """Return which rows to keep."""


@dataclass(frozen=True)
class FilterRows(Stage):
    """Leaves out rows that a filter does not keep, before any other stage sees them."""

    filter: LateFilter
    hidden: frozenset[str]
    """Columns that are read for the filter only."""

    def __call__(self, draft: Draft) -> None:
        """Apply the filter to the rows that are left."""
        num_rows = draft.num_rows
        drop = ~self.filter({name: draft.columns[name] for name in self.filter.fields}, num_rows)
        for name in self.hidden:
            del draft.columns[name]
        if drop.any():
            rows = np.arange(num_rows) if draft.rows is None else draft.rows
            draft.lose(Lost(row, "", None) for row in rows[drop].tolist())

    def names(self, names: list[str]) -> list[str]:
        """Return the columns without those read for the filter only."""
        return [name for name in names if name not in self.hidden]


@dataclass(frozen=True)
class Fold(Stage):
    """Makes windows of rows: every column gets an axis of time after that of the batch."""

    length: int
    """Rows of a window."""
    steps: Mapping[str, tuple[int, ...]] | None = None
    """The steps of each column; None: all columns have all of them."""
    is_slow: ClassVar[bool] = True

    def __call__(self, draft: Draft) -> None:
        """Replace columns of rows by columns of windows."""
        windows, steps = draft.windows(), self.steps or dict.fromkeys(draft.columns, None)
        draft.columns = {
            name: _folded(draft.columns[name], windows if listed is None else windows[:, list(listed)])
            for name, listed in steps.items()
        }

    def names(self, names: list[str]) -> list[str]:
        """Return the columns that windows have."""
        return names if self.steps is None else list(self.steps)


@dataclass(frozen=True)
class Transform(Stage):
    """Calls the user's function of the batch, which may change columns but not rows."""

    function: Callable[..., Mapping[str, Any]]
    wants: frozenset[str]
    number: int = 0
    """Which of several functions it is."""
    label: str = "the transform"
    """How messages call it."""
    calls_user = True
    is_slow: ClassVar[bool] = True

    def __call__(self, draft: Draft) -> None:
        """Replace the columns by what the function returns."""
        origin, units = draft.origin, draft.units()
        extra = origin.of_batch(self.wants, self.number)
        if "positions" in self.wants:
            positions = cast("NDArray[np.int64]", origin.positions)
            extra["positions"] = positions.copy() if units is None else positions[units]
        try:
            result: Any = self.function(draft.columns, **extra)
        except Exception as error:
            raise TransformError(f"{self.label} raised {type(error).__name__}: {error}") from error
        num_units = origin.num_rows if origin.windows is None else len(origin.windows)
        draft.columns = checked(result, num_units if units is None else len(units), self.label)

    def names(self, names: list[str]) -> None:
        """Return None: the function decides."""


@dataclass(frozen=True)
class MarkPadding(Stage):
    """Adds the column that tells rows from padding; the last stage, so that the transform does not see it."""

    total: int
    """Items of an epoch: padding has positions from here on."""
    wants = frozenset({"positions"})

    def __call__(self, draft: Draft) -> None:
        """Add the column."""
        if MASK in draft.columns:
            raise TransformError(
                f"the transform returned a column {MASK!r}, which remainder='pad' adds; give it another name"
            )
        valid, units = cast("NDArray[np.int64]", draft.origin.positions) < self.total, draft.units()
        draft.columns[MASK] = valid if units is None else valid[units]

    def names(self, names: list[str]) -> list[str]:
        """Return the columns with the mask."""
        return [*names, MASK]


def stage_of(stages: Iterable[Stage], kind: type[_Kind]) -> _Kind | None:
    """Return the first stage of a class; None if there is none."""
    return next((stage for stage in stages if isinstance(stage, kind)), None)


def output_columns(stages: Iterable[Stage]) -> list[str] | None:
    """Return the names of a batch's columns in order; None where a function of the user decides."""
    names: list[str] = []
    for stage in stages:
        found = stage.names(names)
        if found is None:
            return None
        names = found
    return names


def checked(result: Any, num_rows: int, label: str) -> Batch:
    """Return a transform's result as a batch; TransformError unless it has equally many rows in every column."""
    if not hasattr(result, "keys"):
        raise TransformError(f"{label} must return a dict of columns; got {type(result).__name__}")
    batch = {str(name): result[name] for name in result.keys()}  # noqa: SIM118 -- any mapping, also one without __iter__ over keys
    for name, values in batch.items():
        try:
            count = len(values)
        except TypeError:
            raise TransformError(
                f"{label} must return columns of {num_rows} rows; column {name!r} is of type {type(values).__name__}"
            ) from None
        if count != num_rows:
            raise TransformError(
                f"{label} may change columns, not rows: column {name!r} has {count} rows, the batch has {num_rows}"
            )
    return batch


def _folded(values: Any, windows: NDArray[np.int64]) -> Any:
    is_list = isinstance(values, list)
    return [[values[row] for row in line] for line in windows.tolist()] if is_list else values[windows]
