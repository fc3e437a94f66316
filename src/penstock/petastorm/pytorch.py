"""`petastorm.pytorch`: `DataLoader`, `BatchedDataLoader` and `InMemBatchedDataLoader` over a reader.

A loader takes whole columns from its reader, cuts them into batches and returns them as tensors; rows are made only for
functions that need them. Beyond Petastorm's loaders: a second pass, `break` and another loop, texts and nulls, a length
and a state. Rows are shuffled by the reader, if the loader is made before its first row.
"""

from __future__ import annotations

import contextlib
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockWarning, StateMismatch
from penstock.petastorm._reader_options import whole_number
from penstock.petastorm._row_feed import BufferedShuffle, RowFeed, cut, join, joined, make_feed
from penstock.petastorm._tensors import as_tensor, column_of, leaf, nested, rows_of, tensors_of, torch_module

if TYPE_CHECKING:
    from types import TracebackType

__all__ = [
    "BatchedDataLoader",
    "DataLoader",
    "InMemBatchedDataLoader",
    "LoaderBase",
    "decimal_friendly_collate",
]


def decimal_friendly_collate(batch: Sequence[Any]) -> Any:
    """Return samples as one batch: tensors, and lists of what has no tensor.

    Dicts become a dict of batches, tuples and lists of one length a list of batches. Arrays, numbers and tensors that
    are alike become a tensor; Decimals, texts, bytes, None and arrays of unequal shape stay a list, or a tuple where
    `batch` is one. Times become int64 nanoseconds. Anything else is left to torch's `default_collate`.
    """
    first = batch[0]
    if isinstance(first, Mapping):
        return {key: decimal_friendly_collate([sample[key] for sample in batch]) for key in first}
    if isinstance(first, Sequence) and not isinstance(first, str | bytes):
        alike = all(isinstance(one, Sequence) and len(one) == len(first) for one in batch)
        return [decimal_friendly_collate(samples) for samples in zip(*batch, strict=True)] if alike else batch
    found = leaf(batch, as_tensor)
    known = type(first).__module__ in ("builtins", "datetime", "decimal", "numpy", "torch")
    if isinstance(found, list) and not known:
        return torch_module().utils.data.default_collate(list(batch))
    return tuple(found) if isinstance(found, list) and isinstance(batch, tuple) else found


class LoaderBase:
    """Iterates batches of a `reader`; what all loaders share.

    One `for` loop is one pass of the reader. The next loop starts the next pass, whether the previous one was completed
    or left by `break` or an error; a loop that is still running ends. A subclass has `reader` and `_iter_impl`, which
    yields the batches of one pass.
    """

    reader: Any = None
    _running: Any = None
    """Weak reference to the iterator, so that a loop that was left ends at once."""
    _begun = False

    def __iter__(self) -> Iterator[Any]:
        self._end_pass()
        started: Iterator[Any] = self._pass()
        self._running = weakref.ref(started)
        return started

    def _pass(self) -> Any:
        if self._begun:
            self._restart()
        self._begun = True
        try:
            yield from self._iter_impl()
        finally:
            self._leave()

    def _end_pass(self) -> None:
        running, self._running = None if self._running is None else self._running(), None
        if running is not None:
            running.close()

    def _iter_impl(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} must have _iter_impl(), which yields the batches of a pass")

    def _restart(self) -> None:
        self.reader.reset()

    def _leave(self) -> None:
        """Called when a pass has ended or was left."""

    def close(self) -> None:
        """Stop the reader and its threads or processes."""
        self._end_pass()
        self.reader.stop()
        self.reader.join()

    def __bool__(self) -> bool:
        return True  # not by length, which not every loader has

    def __enter__(self) -> Any:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _FeedLoader(LoaderBase, ABC):
    """A loader that goes through a reader: batches, length and state."""

    def __init__(self, reader: Any, batch_size: int, shuffling_queue_capacity: int) -> None:
        torch_module()
        self.reader = reader
        self.batch_size = whole_number("batch_size", batch_size, least=1)
        self.shuffling_queue_capacity = whole_number("shuffling_queue_capacity", shuffling_queue_capacity, least=0)
        self._feed: RowFeed = make_feed(reader, self.batch_size, shuffle=self.shuffling_queue_capacity)
        self._windows = getattr(reader, "ngram", None) is not None
        self._mixed: tuple[int, int] | None = None
        """Rows of a pass that goes through a buffer (-1: unknown), and how many of them are out."""
        self._begun = bool(getattr(reader, "last_row_consumed", False))

    @abstractmethod
    def _batch(self, columns: dict[Any, Any]) -> Any:
        """Return what the user gets."""

    def _iter_impl(self) -> Iterator[Any]:
        if not self._feed.buffer_rows:
            for batch in cut(self._feed, self.batch_size):
                made = self._batch(batch.columns)  # first: where a function of the user fails, nothing was received
                self._feed.received(batch.block, batch.end)
                yield made
            self._feed.finish()
            return
        num_rows, out = -1, 0
        with contextlib.suppress(TypeError):
            num_rows = self._feed.rows_left()
        self._mixed = num_rows, 0
        for columns in BufferedShuffle(self._feed, self.batch_size).batches():
            out += len(next(iter(columns.values())))
            self._mixed = num_rows, out
            yield self._batch(columns)
        self._feed.finish()

    def _restart(self) -> None:
        self._feed.restart()

    def _leave(self) -> None:
        self._mixed = None
        self._feed.pause()

    def __len__(self) -> int:
        """Return the batches left in this pass, or of the next one at its end; TypeError if that is unknown."""
        num_rows, out = self._mixed or (0, 0)
        if num_rows < 0:
            raise TypeError("no length: the number of rows of the reader is not known")
        left = self._feed.rows_left() if self._mixed is None else num_rows - out
        return (left + self.batch_size - 1) // self.batch_size

    def state_dict(self) -> dict[str, Any]:
        """Return the place as small JSON: what the consumer has received, not what was read ahead.

        Over a reader of rows it fits any number of shards and any batch size. Over a reader of batches it fits the same
        number of shards and, inside a row group, the same shard: it names both, and others refuse it.
        TypeError if rows wait in a shuffling buffer here: they have no position in the reader's order.
        """
        if self._mixed is not None or self._feed.buffer_rows:
            raise TypeError(
                "no state while rows wait in a shuffling buffer: make the loader before the first row is read, or give "
                "shuffle_rows=True to the reader instead of shuffling_queue_capacity"
            )
        return self._feed.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where a state was taken, with the next loop; ends a running loop."""
        self._end_pass()
        self._feed.load(state)
        self._begun, self._mixed = self._feed.over, None


class DataLoader(_FeedLoader):
    """Batches of a reader of rows or of batches, put together by `collate_fn`.

    The last batch of a pass may be shorter. Batches cross row groups and epochs.
    """

    def __init__(
        self,
        reader: Any,
        batch_size: int = 1,
        collate_fn: Callable[[list[Any]], Any] = decimal_friendly_collate,
        shuffling_queue_capacity: int = 0,
        *,
        transform: Callable[[dict[str, Any]], Any] | None = None,
    ) -> None:
        """Take a reader.

        Args:
            reader: Of `make_reader` or `make_batch_reader`, or anything that iterates named tuples as they do.
            batch_size: Rows of a batch.
            collate_fn: Makes a batch of a list of rows, each a dict. With the default none are made: columns are taken
                as they are.
            shuffling_queue_capacity: More than 0: rows are shuffled as `shuffle_rows=True` does it, if the reader has
                given no row yet; else, and for foreign readers, through a buffer of that many rows.
            transform: Called with each row, a dict; what it returns is given to `collate_fn`.
        """
        super().__init__(reader, batch_size, shuffling_queue_capacity)
        self.collate_fn = collate_fn
        self.transform = transform

    def _batch(self, columns: dict[Any, Any]) -> Any:
        if self.transform is None and self.collate_fn is decimal_friendly_collate:
            return tensors_of(columns, as_tensor, windows=self._windows)
        rows: list[Any] = rows_of(columns, windows=self._windows)
        if self.transform is not None:
            rows = [self.transform(row) for row in rows]
        return self.collate_fn(rows)


class BatchedDataLoader(_FeedLoader):
    """Batches of a reader, made column by column by `transform_fn`."""

    def __init__(
        self,
        reader: Any,
        batch_size: int = 1,
        transform_fn: Callable[[Any], Any] | None = None,
        shuffling_queue_capacity: int = 0,
    ) -> None:
        """Take a reader.

        Args:
            reader: As for `DataLoader`.
            batch_size: Rows of a batch.
            transform_fn: Makes a tensor of an array with the rows of a batch, such as `torch.as_tensor` with a
                device; called once for each column that has a tensor form.
            shuffling_queue_capacity: As for `DataLoader`.
        """
        super().__init__(reader, batch_size, shuffling_queue_capacity)
        self.transform_fn = transform_fn or as_tensor

    def _batch(self, columns: dict[Any, Any]) -> Any:
        return tensors_of(columns, self.transform_fn, windows=self._windows)


class InMemBatchedDataLoader(LoaderBase):
    """Reads the rows of a reader once and returns batches of them from memory, for `num_epochs` epochs a pass.

    The last batch of an epoch may be shorter. Each epoch has its own order, derived from `seed`.
    """

    def __init__(  # noqa: PLR0913 -- Petastorm's signature
        self,
        reader: Any,
        batch_size: int = 1,
        transform_fn: Callable[[Any], Any] | None = None,
        num_epochs: int | None = 1,
        seed: int = 0,
        rows_capacity: int | None = None,
        shuffle: bool = False,
    ) -> None:
        """Read the rows and stop the reader.

        Args:
            reader: As for `DataLoader`; an endless one needs `rows_capacity`.
            batch_size: Rows of a batch.
            transform_fn: Makes a tensor of an array with all rows; called once for each column that has a tensor form.
            num_epochs: Epochs of one pass; None: endless.
            seed: Selects the orders.
            rows_capacity: Most rows that are kept, with a warning where there are more; None for all.
            shuffle: Whether each epoch shuffles the rows in another order.
        """
        torch_module()
        for name, value in (("num_epochs", num_epochs), ("rows_capacity", rows_capacity)):
            if value is not None:
                whole_number(name, value, least=1)
        self.reader = reader
        self.batch_size = whole_number("batch_size", batch_size, least=1)
        self._num_epochs, self._seed, self._shuffle = num_epochs, seed, shuffle
        self._start = reader.state_dict() if hasattr(reader, "state_dict") else None
        columns = self._read(rows_capacity)
        self._num_rows = len(next(iter(columns.values()))) if columns else 0
        make = transform_fn or as_tensor
        self._columns = {name: column_of(columns[name], make) for name in list(columns)}
        self._epoch = self._row = 0
        """The place of the consumer: epoch, and rows of it that are out."""

    def _read(self, capacity: int | None) -> dict[Any, Any]:
        reader = self.reader
        if capacity is None and getattr(reader, "num_epochs", 1) is None:
            raise ValueError("the reader has num_epochs=None and never ends: give it num_epochs=1, or rows_capacity")
        feed = make_feed(reader, self.batch_size, shuffle=0)
        self._windows = getattr(reader, "ngram", None) is not None
        parts: dict[Any, list[Any]] = {}
        left = capacity
        while (block := feed.take()) is not None and left != 0:
            end = block.num_rows if left is None else min(block.num_rows, block.first + left)
            left = None if left is None else left - (end - block.first)
            for name, values in joined([(block.columns, block.first, end)]).items():
                parts.setdefault(name, []).append(values)
            if end < block.num_rows:
                break
        if block is not None:
            warnings.warn(
                f"rows_capacity={capacity} keeps the first rows only, and the reader has more; rows_capacity=None "
                "keeps all of them",
                PenstockWarning,
                stacklevel=4,
            )
        reader.stop()
        reader.join()
        return {name: join(parts.pop(name)) for name in list(parts)}  # pop: at most one column exists twice

    def _iter_impl(self) -> Iterator[Any]:
        while self._num_rows:
            torch = torch_module()
            order = torch.arange(self._num_rows)
            if self._shuffle:
                generator = torch.Generator().manual_seed(self._seed + self._epoch)
                order = torch.randperm(self._num_rows, generator=generator)
            for first in range(self._row, self._num_rows, self.batch_size):
                batch = self._take(order[first : first + self.batch_size])
                self._row = first + self.batch_size
                if self._row >= self._num_rows:
                    self._epoch, self._row = self._epoch + 1, 0
                yield batch
            if self._num_epochs is not None and self._epoch % self._num_epochs == 0:
                return

    def _take(self, rows: Any) -> dict[Any, Any]:
        torch = torch_module()
        batch = {
            name: values[rows.to(values.device)]
            if isinstance(values, torch.Tensor)
            else [values[row] for row in rows.tolist()]
            for name, values in self._columns.items()
        }
        return nested(batch) if self._windows else batch

    def _restart(self) -> None:
        length = self._num_epochs or 1
        if self._row or self._epoch % length:
            self._epoch, self._row = (self._epoch // length + 1) * length, 0

    def __len__(self) -> int:
        """Return the batches left in this pass; TypeError if it never ends."""
        if self._num_epochs is None:
            raise TypeError("no length: num_epochs is None")
        epochs = self._num_epochs - self._epoch % self._num_epochs
        whole = -(-self._num_rows // self.batch_size)
        return (epochs - 1) * whole - (-(self._num_rows - self._row) // self.batch_size)

    def state_dict(self) -> dict[str, Any]:
        """Return the place as small JSON; valid for the same rows in the same order."""
        return {
            "version": 1,
            "epoch": self._epoch,
            "row": self._row,
            "num_rows": self._num_rows,
            "seed": self._seed,
            "reader": self._start,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where a state was taken, with the next loop.

        Raises:
            StateMismatch: The rows in memory are not those of the state: other data, or the reader has another order.
        """
        mine = self.state_dict()
        for name in ("version", "num_rows", "seed", "reader"):
            if state.get(name) != mine[name]:
                hint = "; give the reader a seed, or shuffle_row_groups=False" if name == "reader" else ""
                raise StateMismatch(
                    f"cannot resume: {name} is {state.get(name)!r} in the state, {mine[name]!r} here{hint}"
                )
        self._end_pass()
        self._epoch, self._row, self._begun = state["epoch"], state["row"], False
