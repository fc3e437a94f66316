"""Take whole columns out of a reader and cut them into batches, with the reader's place counted right.

Stands between a reader and the loaders of `petastorm.pytorch`: a feed gives chunks of columns, `cut` makes batches of
exactly so many rows of them, over the borders of row groups and epochs as Petastorm does. A reader of ours hands over
what its workers have built; any other reader is asked for its items. Knows no framework and converts nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from penstock.codecs.narrowing import keeps_numbers
from penstock.codecs.row_values import row_values
from penstock.engine.stages import MASK
from penstock.errors import BudgetError, LoaderClosed, StateMismatch
from penstock.petastorm import _ask
from penstock.petastorm._columns import batch_column
from penstock.petastorm.errors import NoDataAvailableError
from penstock.petastorm.reader import Reader
from penstock.petastorm.reader_impl.shuffling_buffer import RandomShufflingBuffer
from penstock.plan.grouping import PartGrouping

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from penstock.engine.build import Built
    from penstock.engine.loader import Make

Columns = dict[Any, Any]
"""A column for each field; the fields of windows are named (step, field)."""
_FEW_ROWS = 256
"""Batches below this are gathered several at a time."""
_NO_LIMIT = 1 << 60


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some rows of a reader, as columns."""

    columns: Columns
    num_rows: int
    place: Any = None
    """Where they stand: known to the feed alone."""
    first: int = 0
    """Rows before it were delivered already."""


def make_feed(reader: Any, size: int, *, shuffle: int) -> Feed:
    """Return the feed for any reader; where `shuffle` rows shall be mixed, a reader of ours that can do it is told."""
    if isinstance(reader, Reader):
        arrange(reader, size, shuffle=shuffle > 0)
        if reader.ngram is None:
            return ReaderFeed(reader, size, shuffle)
    return Feed(reader, size, shuffle)


def cut(feed: Feed, size: int) -> Iterator[Columns]:
    """Yield columns of exactly `size` rows until the feed is at its end; the last ones may have fewer.

    Copies only where a batch takes from several chunks; otherwise columns are views of the chunk.
    """
    parts: list[tuple[Columns, int, int]] = []
    have = 0
    while (chunk := feed.take()) is not None:
        first = chunk.first
        while have + chunk.num_rows - first >= size:
            end = first + size - have
            batch = joined([*parts, (chunk.columns, first, end)])
            feed.received(chunk, end)
            parts, have, first = [], 0, end
            yield batch
        if first < chunk.num_rows:
            parts.append((chunk.columns, first, chunk.num_rows))
            have += chunk.num_rows - first
    if parts:
        yield joined(parts)


def joined(parts: Sequence[tuple[Columns, int, int]]) -> Columns:
    """Return stretches (columns, first row, end row) as columns."""
    if len(parts) == 1:
        columns, first, end = parts[0]
        return {name: values[first:end] for name, values in columns.items()}
    names = parts[0][0]
    return {name: join([columns[name][first:end] for columns, first, end in parts]) for name in names}


def join(columns: Sequence[Any]) -> Any:
    """Return columns one after the other: an array where they fit together, else the list of their values."""
    if len(columns) == 1:
        return columns[0]
    if all(isinstance(one, np.ndarray) for one in columns) and _fit(columns):
        masked = any(isinstance(one, np.ma.MaskedArray) for one in columns)
        return np.ma.concatenate(columns) if masked else np.concatenate(columns)  # type: ignore[no-untyped-call]
    return [value for one in columns for value in row_values(one)]


def _fit(columns: Sequence[Any]) -> bool:
    """Tell whether arrays have rows of one shape and kind; integers and floats go together if no value changes."""
    if len({one.shape[1:] for one in columns}) > 1:
        return False
    kinds = {"n" if one.dtype.kind in "iuf" else one.dtype.kind for one in columns}
    return len(kinds) == 1 and (kinds != {"n"} or keeps_numbers(columns))


# -- any reader -------------------------------------------------------------------------------------------------------


class Feed:
    """Asks a reader for its items, one by one: for readers of others, for mixes of readers, for windows.

    Never reads further than the batch that is asked for, but for readers of batches, and for a shuffling buffer.
    """

    def __init__(self, reader: Any, size: int, shuffle: int) -> None:
        self._reader = reader
        self._size = size
        self._shuffle = shuffle
        self._items: Iterator[Any] | None = None
        self._at: tuple[Any, int] | None = None
        """Place of the chunk that the last delivered row came in, and rows of it that are out."""
        self._skip = 0
        """Rows that were delivered before the reader's place was left, and come again."""
        self.over = False
        """Whether a loaded state is that of the end of a pass, and the reader must be reset."""

    @property
    def reader(self) -> Any:
        """The reader."""
        return self._reader

    @property
    def buffer_rows(self) -> int:
        """Rows that must be mixed here, as the reader does not do it; 0 for none."""
        return 0 if isinstance(self._reader, Reader) and self._reader._job.asked.shuffle_rows else self._shuffle

    @property
    def is_batched(self) -> bool:
        """Whether an item of the reader has many rows."""
        return bool(self._reader.batched_output)

    def take(self) -> Chunk | None:
        """Return the next rows; None at the end of the pass."""
        if self._items is None:
            self._items = iter(self._reader)
        return self._take_batch(self._items) if self.is_batched else self._take_rows(self._items)

    def _take_rows(self, items: Iterator[Any]) -> Chunk | None:
        rows: list[Columns] = []
        for item in items:
            rows.append(self._flat(item))
            if len(rows) == self._size:
                break
        if not rows:
            return None
        return Chunk({name: [row[name] for row in rows] for name in rows[0]}, len(rows))

    def _take_batch(self, items: Iterator[Any]) -> Chunk | None:
        for_state = self._reader_state()
        for item in items:
            columns = self._flat(item)
            num_rows = len(next(iter(columns.values()))) if columns else 0
            if num_rows > self._skip:
                chunk = Chunk(columns, num_rows, for_state, self._skip)
                self._at = self._at or (for_state, self._skip)
                self._skip = 0
                return chunk
            self._skip -= num_rows
            for_state = self._reader_state()
        self._at = None
        return None

    def _flat(self, item: Any) -> Columns:
        if getattr(self._reader, "ngram", None) is not None:
            return {(step, name): value for step, row in item.items() for name, value in row._asdict().items()}
        schema = getattr(self._reader, "schema", None)
        names = tuple(getattr(schema, "fields", ()))
        return dict(zip(names if len(names) == len(item) else item._fields, item, strict=True))

    def received(self, chunk: Chunk, rows: int) -> None:
        """Note that the consumer has the first `rows` rows of a chunk, and all before it."""
        self._at = None if rows == chunk.num_rows else (chunk.place, rows)

    def restart(self) -> None:
        """Begin the next pass."""
        if self._skip and not isinstance(self, ReaderFeed):
            next(iter(self._reader), None)  # a part of it is out: a reader at its beginning would not go on
        self._reader.reset()
        self._skip, self._at, self._items = 0, None, None
        if isinstance(self._reader, Reader):
            arrange(self._reader, self._size, shuffle=self._shuffle > 0)

    def pause(self) -> None:
        """Note that nobody iterates any more: the place of the consumer is kept, what was read ahead is not."""
        if not getattr(self._reader, "stopped", False) and self._at is not None and self._at[0] is not None:
            state, self._skip = self._at
            self._reader.load_state_dict(state)
        self._at = self._items = None

    def _reader_state(self) -> dict[str, Any] | None:
        return self._reader.state_dict() if hasattr(self._reader, "state_dict") else None

    def state(self) -> dict[str, Any]:
        """Return the place of the consumer as small JSON."""
        state, skip = self._at or (self._reader_state(), self._skip)
        if state is None:
            raise TypeError(f"{type(self._reader).__name__} has no state_dict(): its place cannot be saved")
        return {"version": 1, "reader": state, "skip": skip} | ({"over": True} if self._at_end() else {})

    def _at_end(self) -> bool:
        """Tell whether the reader has nothing left; one of ours begins the next pass by itself."""
        if isinstance(self._reader, Reader):
            return False
        try:
            return self._at is None and len(self._reader) == 0
        except TypeError:
            return bool(getattr(self._reader, "last_row_consumed", False))

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of this, or from that of a reader."""
        if not hasattr(state, "get"):
            raise StateMismatch(f"a state is a dict; got {type(state).__name__}")
        skip = state.get("skip", 0)
        if isinstance(skip, bool) or not isinstance(skip, int) or skip < 0:
            raise StateMismatch(f"cannot resume: skip must be a whole number, at least 0; got {skip!r}")
        self._reader.load_state_dict(state.get("reader", state))
        self._skip, self._at, self._items = skip, None, None
        self.over = bool(state.get("over", False))

    def rows_left(self) -> int:
        """Return the rows that are left in this pass; TypeError where that is not known."""
        if self.is_batched:
            raise TypeError("no length: the reader gives batches, and does not tell their rows")
        return len(self._reader)


# -- readers of ours --------------------------------------------------------------------------------------------------


class ReaderFeed(Feed):
    """Takes from a reader of ours what its workers have built, as it is: no rows are made, nothing is copied."""

    _barren = 0
    """Items in a row of which nothing was left."""

    _last: Built | None = None
    """What was taken last."""

    def take(self) -> Chunk | None:
        """Return the next rows; None at the end of the pass."""
        while (built := self._next()) is not None:
            if self._at is None:
                self._settle(built, min(self._skip, built.num_rows))
            if built.num_rows > self._skip:
                chunk = Chunk(self._columns(built), built.num_rows, built, self._skip)
                self._skip = self._barren = 0
                return chunk
            self._skip -= built.num_rows
            self._check_barren(built)
        self._at, self._skip = None, 0
        return None

    def _next(self) -> Built | None:
        if (
            self._last is not None
        ):  # a state may have been asked for, which puts the loader back to the consumer's place
            loader = self._reader._loader
            loader.received(self._last.work.plan, loader.steps_of(self._last.end))
        self._last = _next_built(self._reader)
        return self._last

    def _columns(self, built: Built) -> Columns:
        names = [*self._reader.schema.fields, *((MASK,) if MASK in built.batch else ())]
        if not self.is_batched:
            return {name: built.batch[name] for name in names}
        dtypes = self._reader._job.batch_dtypes
        return {name: _plain(built.batch[name], dtypes.get(name)) for name in names}

    def _check_barren(self, built: Built) -> None:
        self._barren += built.end - built.first
        if self._reader.num_epochs is None and self._barren > 2 * built.work.plan.num_items:
            raise NoDataAvailableError("a whole epoch gave no row: the predicate or the transform leaves nothing")

    def received(self, chunk: Chunk, rows: int) -> None:
        """Note that the consumer has the first `rows` rows of a chunk, and all before it."""
        self._settle(chunk.place, rows)

    def _settle(self, built: Built, rows: int) -> None:
        """Tell the reader how far the consumer is, and keep what it cannot count: a part of a batch."""
        reader, rest = self._reader, 0
        steps = reader._loader.steps_of(built.first)
        if rows >= built.num_rows:
            steps = reader._loader.steps_of(built.end)
        elif self.is_batched:
            rest = rows
        elif rows:
            steps += rows if built.kept is None else int(built.kept[rows - 1]) + 1
        reader._plan, reader._before, reader._taken, reader._kept = built.work.plan, steps, 0, None
        self._at = built, rest

    @property
    def _rest(self) -> int:
        """Rows behind the reader's place that are out."""
        return self._skip if self._at is None else self._at[1]

    def pause(self) -> None:
        """Keep the place of the consumer and end the threads: what was read ahead is given up."""
        reader = self._reader
        if not reader.stopped and self._at is not None:
            self._skip = self._rest
            with reader._lock:
                reader._note()
                reader._loader.load_state_dict(reader._loader.state_dict())
                reader._start_pass()
        self._at = self._last = None

    def restart(self) -> None:
        """Begin the next pass."""
        loader = self._reader._loader
        if self._skip and loader._at_pass_start():  # a part of its first batch is out: it has begun
            loader._cursor = loader._start_of(loader._next_pass_epoch())
        super().restart()

    def state(self) -> dict[str, Any]:
        """Return the place of the consumer as small JSON."""
        return {"version": 1, "reader": self._reader.state_dict(), "skip": self._rest}

    def rows_left(self) -> int:
        """Return the rows that are left in this pass, at its end those of the next; TypeError where nobody knows."""
        job = self._reader._job
        spec = job.asked.transform_spec
        if job.asked.predicate is not None and not job.asked.exact:
            raise TypeError("no length: the predicate is applied on delivery (exact=False)")
        if not self.is_batched:  # at the end of a pass the reader has nothing left, its loader the next pass
            return len(self._reader._loader if self._reader.last_row_consumed else self._reader)
        if spec is not None and spec.func is not None:
            raise TypeError("no length: the transform may change the number of rows")
        if self._reader.num_epochs is None:
            raise TypeError("no length: the reader has num_epochs=None")
        return max(0, _rows_left(self._reader) - self._rest)


def _plain(values: Any, dtype: np.dtype[Any] | None) -> Any:
    """Return a column of a batch reader: numbers as its batches have them, lists as arrays where they can be.

    What would be objects in its batches keeps its mask: rows of which none is null can be a tensor of numbers.
    """
    if dtype == np.object_ and isinstance(values, np.ndarray) and values.ndim == 1:
        return values
    numbers = dtype is not None or isinstance(values, list | np.ma.MaskedArray)
    return batch_column(values, dtype) if numbers else values


def _next_built(reader: Reader) -> Built | None:
    """Take a whole batch of the engine out of a reader; None at the end of the pass."""
    with reader._lock:
        if reader.stopped:
            raise LoaderClosed("Trying to read a sample after the reader was stopped; make another one")
        if reader.last_row_consumed:
            return None
        if reader._pass is None:
            reader._pass = iter(reader._loader)
        try:
            built = cast("Built", reader._pass.take())
        except StopIteration:
            reader._start_pass()
            reader.last_row_consumed = True
            return None
        reader._job.check(built)
        return built


def _rows_left(reader: Reader) -> int:
    """Return the rows in the batches that a batch reader has left in this pass; microseconds a row group."""
    with reader._lock:
        reader._note()
        loader = reader._loader
        cursor, epochs = loader._now(), cast("int", reader.num_epochs)
        plans = [loader._plan(cursor)]
        later = range(cursor.epoch + 1, (cursor.epoch // epochs + 1) * epochs)
        plans += [loader._plan(loader._start_of(epoch)) for epoch in later]
    items = reader._job.items
    if not isinstance(items, PartGrouping) or not items.whole:
        return sum(plan.num_items for plan in plans)
    return sum(int(items.sizes[plan.rows(0, plan.num_items)[0]].sum()) for plan in plans)


# -- how a reader of ours reads ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BatchJob(_ask.Job):
    """The job of a reader whose rows leave in batches: so many are made at once, whichever row groups they lie in."""

    batch_items: int = 0
    """Rows that are made at once; 0: as the job would have it."""

    def _batch_items(self) -> int:
        return self.batch_items or super()._batch_items()

    def _make(self, batch_items: int) -> Make:
        make = super()._make(batch_items)
        return replace(make, aligned=False) if self.batch_items else make


def arrange(reader: Reader, size: int, *, shuffle: bool) -> None:
    """Let a reader make batches of the right size and, before its first row, mix all rows where that is asked for.

    Does nothing where the reader would have to go another way than it has begun to.
    """
    job, loader = reader._job, reader._loader
    if reader.stopped or (isinstance(job, BatchJob) and (job.asked.shuffle_rows or not shuffle)):
        return
    with reader._lock:
        reader._note()
        begun = reader._pass is not None or reader._plan is not None or not loader._at_pass_start()
        shuffle = shuffle and not begun and not job.asked.shuffle_rows
        other = _arranged(job, size, shuffle=shuffle)
        if other is None:
            return
        try:
            made = other.loader(loader.order.seed)
        except BudgetError:  # batches of that size do not fit: they are put together from smaller ones
            other = replace(other, batch_items=0)
            made = other.loader(loader.order.seed)
        if shuffle:
            made._cursor = made._start_of(loader._now().epoch)
        else:
            made.load_state_dict(loader.state_dict())
        over = reader.last_row_consumed
        loader.close()
        reader._job, reader._loader = other, made
        reader._start_pass()
        reader.last_row_consumed = over


def _arranged(job: _ask.Job, size: int, *, shuffle: bool) -> BatchJob | None:
    """Return the job that suits batches of `size`; None where the job does already."""
    asked, items = job.asked, job.items
    if shuffle:
        asked = replace(asked, shuffle_rows=True)
        items = _ask._items(job.dataset, asked, job.ngram)
    spec = asked.transform_spec
    batch_items = 0
    if not asked.batched and job.ngram is None:
        batch_items = size * max(1, job._batch_items() // size)
    elif shuffle and job.ngram is None and (spec is None or spec.func is None):
        batch_items = size * max(1, _FEW_ROWS // size)
    if not shuffle and not batch_items:
        return None
    kept = {field.name: getattr(job, field.name) for field in fields(_ask.Job)}
    return BatchJob(**kept | {"asked": asked, "items": items}, batch_items=batch_items)


# -- rows mixed here --------------------------------------------------------------------------------------------------


class Mixed:
    """Rows of a feed in another order, through a buffer: for readers that cannot shuffle rows themselves.

    Every row comes exactly once; at the end of the pass the buffer is emptied. What lies in it has no place in the
    reader's order, so there is no state.
    """

    def __init__(self, feed: Feed, size: int) -> None:
        self._feed = feed
        self._size = size
        loader = getattr(feed.reader, "_loader", None)
        seed = None if loader is None else loader.order.seed
        capacity = feed.buffer_rows
        self._buffer = RandomShufflingBuffer(capacity, capacity - 1, extra_capacity=_NO_LIMIT, seed=seed)
        self._names: tuple[Any, ...] = ()
        self._over = False

    def batches(self) -> Iterator[Columns]:
        """Yield columns of exactly so many rows; the last ones may have fewer."""
        rows: list[tuple[Any, ...]] = []
        while True:
            self._fill()
            if not self._buffer.can_retrieve():
                break
            rows.append(self._buffer.retrieve())
            if len(rows) == self._size:
                yield self._columns(rows)
                rows = []
        if rows:
            yield self._columns(rows)

    def _fill(self) -> None:
        while self._buffer.can_add() and not self._over:
            chunk = self._feed.take()
            if chunk is None:
                self._over = True
                self._buffer.finish()
                return
            self._names = tuple(chunk.columns)
            columns = [row_values(values)[chunk.first :] for values in chunk.columns.values()]
            self._buffer.add_many(zip(*columns, strict=True))

    def _columns(self, rows: list[tuple[Any, ...]]) -> Columns:
        return {name: list(values) for name, values in zip(self._names, zip(*rows, strict=True), strict=True)}
