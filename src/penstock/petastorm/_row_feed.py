"""Take columns out of a reader and cut them into batches, with the reader's place counted right.

For the loaders of `petastorm.pytorch` and the datasets of the Spark converter: a feed returns blocks of rows, `cut`
makes batches of exactly that many rows, across row groups and epochs as Petastorm does. A `Reader` provides
whole deliveries; other readers are iterated item by item. Knows no framework and converts nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock.codecs.row_values import keeps_numbers, row_values
from penstock.engine.stages import MASK, Batch
from penstock.errors import BudgetError, StateMismatch
from penstock.petastorm._columns import batch_column
from penstock.petastorm._reader_stream import ReaderStream, place_after
from penstock.petastorm.reader import Reader
from penstock.petastorm.reader_impl.shuffling_buffer import RandomShufflingBuffer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


Columns = dict[Any, Any]
"""A column for each field; the fields of windows are named (step, field)."""
_FEW_ROWS = 256
"""Batches below this are gathered several at a time."""
_NO_LIMIT = 1 << 60


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Some rows of a reader, as columns."""

    columns: Columns
    num_rows: int
    origin: Any = None
    """Where they come from; used by the feed only."""
    first: int = 0
    """Rows before this one were delivered already."""


def make_feed(reader: Any, size: int, *, shuffle: int) -> RowFeed:
    """Return the feed for any reader; a `Reader` shuffles rows itself if `shuffle` is not 0 and it has not begun."""
    if isinstance(reader, Reader):
        arrange(reader, size, shuffle=shuffle > 0)
        if reader.ngram is None:
            return ReaderFeed(reader, size, shuffle)
    return RowFeed(reader, size, shuffle)


class CutBatch(NamedTuple):
    """A batch, and what the consumer has received with it: pass both to `RowFeed.received`."""

    columns: Columns
    block: RowBlock
    """The last block that it has rows of."""
    end: int | None
    """Rows of that block up to the end of the batch; None: it is the last batch of the pass."""


def cut(feed: RowFeed, size: int) -> Iterator[CutBatch]:
    """Yield batches of exactly `size` rows until the end of the pass; the last one may have fewer.

    Copies only where a batch takes rows from several blocks; otherwise columns are views.
    """
    parts: list[tuple[Columns, int, int]] = []
    have = 0
    while (block := feed.take()) is not None:
        first, last = block.first, block
        while have + block.num_rows - first >= size:
            end = first + size - have
            yield CutBatch(joined([*parts, (block.columns, first, end)]), block, end)
            parts, have, first = [], 0, end
        if first < block.num_rows:
            parts.append((block.columns, first, block.num_rows))
            have += block.num_rows - first
    if parts:
        yield CutBatch(joined(parts), last, None)


def joined(parts: Sequence[tuple[Columns, int, int]]) -> Columns:
    """Return ranges of rows, each (columns, first row, end row), as columns."""
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
    """Return whether arrays have rows of one shape and kind; integers and floats fit together if no value changes."""
    if len({one.shape[1:] for one in columns}) > 1:
        return False
    kinds = {"n" if one.dtype.kind in "iuf" else one.dtype.kind for one in columns}
    return len(kinds) == 1 and (kinds != {"n"} or keeps_numbers(columns))


# -- any reader -------------------------------------------------------------------------------------------------------


class RowFeed:
    """Iterates a reader item by item: for foreign readers, mixes of readers, and windows.

    Never reads beyond the batch that is needed, except from readers of batches and for a shuffling buffer.
    """

    def __init__(self, reader: Any, size: int, shuffle: int) -> None:
        self.reader = reader
        self._size = size
        self._shuffle = shuffle
        self._items: Iterator[Any] | None = None
        self._at: tuple[Any, int] | None = None
        """State of the reader before the batch that the last delivered row came in, and rows of it that are out."""
        self._skip = 0
        """Rows behind the reader's place that were delivered already."""
        self.over = False
        """Whether the loaded state is the end of a pass, so that the reader must be reset."""

    @property
    def buffer_rows(self) -> int:
        """Rows that must be shuffled in a buffer, as the reader does not do it; 0 for none."""
        shuffles = isinstance(self.reader, Reader) and self.reader.setup.options["shuffle_rows"]
        return 0 if shuffles else self._shuffle

    @property
    def is_batched(self) -> bool:
        """Whether an item of the reader has many rows."""
        return bool(self.reader.batched_output)

    def take(self) -> RowBlock | None:
        """Return the next rows; None at the end of the pass."""
        if self._items is None:
            self._items = iter(self.reader)
        return self._take_batch(self._items) if self.is_batched else self._take_rows(self._items)

    def _take_rows(self, items: Iterator[Any]) -> RowBlock | None:
        rows = [self._flat(item) for item in islice(items, self._size)]
        if not rows:
            return None
        return RowBlock({name: [row[name] for row in rows] for name in rows[0]}, len(rows))

    def _take_batch(self, items: Iterator[Any]) -> RowBlock | None:
        before = self._reader_state()
        for item in items:
            columns = self._flat(item)
            num_rows = len(next(iter(columns.values()))) if columns else 0
            if num_rows > self._skip:
                block = RowBlock(columns, num_rows, before, self._skip)
                self._at = self._at or (before, self._skip)
                self._skip = 0
                return block
            self._skip -= num_rows
            before = self._reader_state()
        self._at = None
        return None

    def _flat(self, item: Any) -> Columns:
        if getattr(self.reader, "ngram", None) is not None:
            return {(step, name): value for step, row in item.items() for name, value in row._asdict().items()}
        names = tuple(getattr(getattr(self.reader, "schema", None), "fields", ()))
        return dict(zip(names if len(names) == len(item) else item._fields, item, strict=True))

    def received(self, block: RowBlock, rows: int | None) -> None:
        """Note that the consumer has the first `rows` rows of a block and all before it; None: the whole pass."""
        self._at = None if rows in (None, block.num_rows) else (block.origin, rows or 0)

    def finish(self) -> None:
        """Note that the consumer is at the end of the pass."""
        self._at = None

    def restart(self) -> None:
        """Begin the next pass."""
        if self._skip:
            next(iter(self.reader), None)  # a reader at the beginning of a pass would not go to the next one
        self._reset()

    def _reset(self) -> None:
        self.reader.reset()
        self._skip, self._at, self._items = 0, None, None
        if isinstance(self.reader, Reader):
            arrange(self.reader, self._size, shuffle=self._shuffle > 0)

    def pause(self) -> None:
        """End an iteration: the consumer's place is kept, what was read ahead is dropped."""
        if not getattr(self.reader, "stopped", False) and self._at is not None and self._at[0] is not None:
            state, self._skip = self._at
            self.reader.load_state_dict(state)
        self._at = self._items = None

    def _reader_state(self) -> dict[str, Any] | None:
        return self.reader.state_dict() if hasattr(self.reader, "state_dict") else None

    def state(self) -> dict[str, Any]:
        """Return the consumer's place as small JSON."""
        state, skip = self._at or (self._reader_state(), self._skip)
        if state is None:
            raise TypeError(f"{type(self.reader).__name__} has no state_dict(): its place cannot be saved")
        return {"version": 1, "reader": state, "skip": skip} | ({"over": True} if self._at_end() else {})

    def _at_end(self) -> bool:
        """Return whether the reader has nothing left; False for a `Reader`, which starts the next pass itself."""
        if isinstance(self.reader, Reader):
            return False
        try:
            return self._at is None and len(self.reader) == 0
        except TypeError:
            return bool(getattr(self.reader, "last_row_consumed", False))

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of a feed or of a reader."""
        if not hasattr(state, "get"):
            raise StateMismatch(f"a state is a dict; got {type(state).__name__}")
        skip = state.get("skip", 0)
        if isinstance(skip, bool) or not isinstance(skip, int) or skip < 0:
            raise StateMismatch(f"cannot resume: skip must be a whole number, at least 0; got {skip!r}")
        self._check_shard(state)
        self.reader.load_state_dict(state.get("reader", state))
        self._skip, self._at, self._items = skip, None, None
        self.over = bool(state.get("over", False))

    def _check_shard(self, state: Mapping[str, Any]) -> None:
        """Raise StateMismatch if the state lies inside a batch of another shard."""

    def rows_left(self) -> int:
        """Return the rows that are left in this pass; TypeError if that is unknown."""
        if self.is_batched:
            raise TypeError("no length: the reader returns batches, whose rows are not known before they come")
        return len(self.reader)


# -- a Reader ---------------------------------------------------------------------------------------------------------


class ReaderFeed(RowFeed):
    """Takes whole deliveries from a `Reader`, as they are: no rows are made, nothing is copied.

    The reader's loader records what was received, in rows or in whole batches; `_skip` adds the rows that were received
    of the next batch. One thread may take while another one saves or acknowledges.
    """

    def __init__(self, reader: Any, size: int, shuffle: int) -> None:
        super().__init__(reader, size, shuffle)
        self._stream: ReaderStream | None = None
        self._to_skip = 0
        """Rows at the beginning of the stream that were delivered already."""
        self._received: tuple[RowBlock, int] | None = None
        """What the consumer has received last."""
        self._lock = reader.lock

    def stream(self) -> ReaderStream:
        """Return the stream that rows are taken from; opens it if there is none."""
        if self._stream is None:
            self._stream, self._to_skip = self.reader.deliveries(), self._skip
            if not self._stream.is_over:
                self._stream.before_state(self._acknowledge)
        return self._stream

    def take(self) -> RowBlock | None:
        """Return the next rows; None at the end of the pass."""
        stream = self.stream()
        while (delivery := stream.take()) is not None:
            first, self._to_skip = self._to_skip, max(0, self._to_skip - delivery.num_rows)
            if delivery.num_rows > first:
                return RowBlock(self._columns(delivery.batch), delivery.num_rows, delivery, first)
        return None

    def _columns(self, batch: Batch) -> Columns:
        names = [*self.reader.schema.fields, *((MASK,) if MASK in batch else ())]
        if not self.is_batched:
            return {name: batch[name] for name in names}
        dtypes = self.reader.setup.batch_dtypes
        return {name: _plain(batch[name], dtypes.get(name)) for name in names}

    def received(self, block: RowBlock, rows: int | None) -> None:
        """Note that the consumer has the first `rows` rows of a block and all before it; None: the whole pass.

        Acknowledged to the reader's loader when another block begins, or when a state is needed.
        """
        if rows is None:
            self.finish()
            return
        if self._received is not None and self._received[0] is not block:
            self._acknowledge()
        self._received = block, rows

    def _acknowledge(self) -> None:
        with self._lock:
            if self._received is None or self._stream is None:
                return
            block, rows = self._received
            is_part = self.is_batched and rows < block.num_rows
            self._stream.received(place_after(self.reader.setup, block.origin, 0 if is_part else rows))
            self._skip = rows if is_part else 0

    def finish(self) -> None:
        """Acknowledge the end of the pass."""
        with self._lock:
            stream, self._received = self.stream(), None
            if not stream.is_over:
                stream.received(stream.end)
            self._skip = 0

    def pause(self) -> None:
        """Keep the consumer's place and end the threads: what was read ahead is dropped."""
        if self._stream is not None:
            self.reader.pause()
        self._stream = self._received = None

    def restart(self) -> None:
        """Begin the next pass."""
        loader = self.reader.loader
        self._acknowledge()
        if self._skip:  # the acknowledged place may be the start of this pass
            loader.go_to(loader.place_at(loader.pass_number + 1))
        self._stream = self._received = None
        self._reset()

    def state(self) -> dict[str, Any]:
        """Return the consumer's place as small JSON; inside a batch it belongs to this shard."""
        with self._lock:
            state = {"version": 1, "reader": self.reader.state_dict(), "skip": self._skip}
            if self._skip:
                state["shard_count"] = self.reader.loader.world
                if self.reader.setup.deals_whole:  # batches of rows from anywhere are as large on every shard
                    state["cur_shard"] = self.reader.loader.rank
            return state

    def _check_shard(self, state: Mapping[str, Any]) -> None:
        wanted = {name: state[name] for name in ("cur_shard", "shard_count") if name in state}
        here = {"cur_shard": self.reader.loader.rank, "shard_count": self.reader.loader.world}
        if not wanted.items() <= here.items():
            raise StateMismatch(
                f"cannot resume: the state is inside a batch of {_shard_text(wanted)}, and this reader is "
                f"{_shard_text(here)}; resume on the same shards, or use make_reader, whose states fit any number"
            )

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of a feed or of a reader."""
        super().load(state)
        self._stream = self._received = None

    def rows_left(self) -> int:
        """Return the rows left in this pass, or of the next one at its end; TypeError if that is unknown."""
        reader, setup = self.reader, self.reader.setup
        if setup.is_late:
            raise TypeError("no length: the predicate is applied on delivery (exact=False)")
        if not self.is_batched:
            return len(reader.loader if reader.last_row_consumed else reader)
        if setup.calls_transform:
            raise TypeError("no length: the transform may change the number of rows")
        with self._lock:
            rows: int | None = reader.loader.count_units(reader.loader.place())  # settles what was received
            if rows is None:
                raise TypeError("no length: the reader has num_epochs=None")
            return max(0, rows - self._skip)


def _shard_text(shard: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(shard.items()))


def _plain(values: Any, dtype: np.dtype[Any] | None) -> Any:
    """Return a column of a batch reader: numbers as its batches have them, lists as arrays where they can be.

    What would be objects in its batches keeps its mask: rows of which none is null can be a tensor of numbers.
    """
    if dtype == np.object_ and isinstance(values, np.ndarray) and values.ndim == 1:
        return values
    numbers = dtype is not None or isinstance(values, list | np.ma.MaskedArray)
    return batch_column(values, dtype) if numbers else values


def arrange(reader: Reader, size: int, *, shuffle: bool) -> None:
    """Let a reader make batches that `size` divides and, if it has not begun, shuffle all rows.

    Does nothing if the reader has started and its order would change.
    """
    setup = reader.setup
    options = setup.options
    if reader.stopped or (setup.batch_rows is not None and (options["shuffle_rows"] or not shuffle)):
        return
    shuffle = shuffle and not options["shuffle_rows"] and not reader.has_begun
    batch_rows = 0
    if not options["batched"] and setup.ngram is None:
        batch_rows = size * max(1, setup.batch_items // size)
    elif shuffle and setup.ngram is None and not setup.calls_transform:
        batch_rows = size * max(1, _FEW_ROWS // size)
    if shuffle:
        other = setup.dealing_rows(options=options | {"shuffle_rows": True}, batch_rows=batch_rows)
    elif batch_rows:
        other = replace(setup, batch_rows=batch_rows)
    else:
        return
    try:
        reader.read_as(other)
    except BudgetError:  # batches of that size do not fit: they are assembled from smaller ones
        reader.read_as(replace(other, batch_rows=0))


# -- rows shuffled in a buffer ----------------------------------------------------------------------------------------


class BufferedShuffle:
    """Rows of a feed, shuffled in a buffer: for readers that cannot shuffle rows themselves.

    Every row comes exactly once; at the end of the pass the buffer is emptied. Rows in the buffer have no place in the
    reader's order, so there is no state.
    """

    def __init__(self, feed: RowFeed, size: int) -> None:
        self._feed = feed
        self._size = size
        seed = feed.reader.loader.order.seed if isinstance(feed.reader, Reader) else None
        capacity = feed.buffer_rows
        self._buffer = RandomShufflingBuffer(capacity, capacity - 1, extra_capacity=_NO_LIMIT, seed=seed)
        self._names: tuple[Any, ...] = ()
        self._over = False

    def batches(self) -> Iterator[Columns]:
        """Yield columns of exactly `size` rows; the last may have fewer."""
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
            block = self._feed.take()
            if block is None:
                self._over = True
                self._buffer.finish()
                return
            self._names = tuple(block.columns)
            columns = [row_values(values)[block.first :] for values in block.columns.values()]
            self._buffer.add_many(zip(*columns, strict=True))

    def _columns(self, rows: list[tuple[Any, ...]]) -> Columns:
        return {name: list(values) for name, values in zip(self._names, zip(*rows, strict=True), strict=True)}
