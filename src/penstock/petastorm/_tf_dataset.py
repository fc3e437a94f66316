"""A `tf.data.Dataset` over a reader: blocks of rows for readers of ours, items for any other.

A block is what the engine has built, converted column by column; TensorFlow takes it apart into rows,
counts them, and gives free dimensions their shape. So the reader's place is that of the consumer, row by row, without
a call into Python. TensorFlow is imported when `make_dataset` is called.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import LoaderClosed
from penstock.petastorm._feed import _next_built
from penstock.petastorm._tf_values import column_of, ragged_of
from penstock.petastorm.reader import Reader
from penstock.petastorm.tf_utils import Shape, tensor_dtype, tensorflow_module

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from penstock.engine.build import Built
    from penstock.petastorm._tf_values import Kind

_BLOCK_BYTES = 16 << 20
"""Windows of rows are laid out for TensorFlow up to about so many bytes at once."""


def make_dataset(reader: Any) -> Any:
    """Return the dataset of a reader's items, with the members of TF1, as TensorFlow's `compat.v1` makes it."""
    tensorflow_module()  # says how to get it
    from penstock.tensorflow._dataset import no_running_ahead

    shape = Shape(reader)
    blocks = isinstance(reader, Reader) and not shape.batched and bool(shape.kinds)
    made = _blocks(reader, shape) if blocks else _items(reader, shape)
    made = made.with_options(no_running_ahead())
    made.penstock = reader  # keeps the reader, and marks the dataset as ours
    return made


class Passes:
    """Begins a pass of the reader for every iterator of the dataset; one at a time."""

    def __init__(self, reader: Any, make: Callable[[], Iterator[Any]]) -> None:
        self._reader = reader
        self._make = make
        self._begun = False
        self._current: object = None

    def __call__(self) -> Iterator[Any]:
        """Return the items, or blocks, of the next pass."""
        from penstock.tensorflow._exit import exiting, watch

        watch()
        if getattr(self._reader, "last_row_consumed", False) or (self._begun and isinstance(self._reader, Reader)):
            self._reader.reset()
        self._begun = True
        self._current = mine = object()
        items = self._make()
        while True:
            try:
                item = next(items)
            except StopIteration:
                return
            except BaseException:
                if exiting():
                    return
                raise
            if self._current is not mine:
                raise LoaderClosed("another iterator of this dataset was begun; make a reader and a dataset for each")
            yield item


def _items(reader: Any, shape: Shape) -> Any:
    """Return the dataset of items that are asked for one by one."""
    from penstock.tensorflow._dataset import as_it_is

    tf = tensorflow_module()

    def items() -> Iterator[Any]:
        for item in reader:
            yield tuple(shape.arrays(item))

    signature = tuple(tf.TensorSpec(shape.static(kind), tensor_dtype(kind)) for kind in shape.kinds)
    if not signature:
        raise ValueError("the reader has no fields: there is nothing to make tensors of")
    made = tf.compat.v1.data.Dataset.from_generator(Passes(reader, items), output_signature=signature)
    return made.map(as_it_is(lambda *tensors: shape.pack(tensors)))


# -- blocks -----------------------------------------------------------------------------------------------------------


def _blocks(reader: Reader, shape: Shape) -> Any:
    """Return the dataset of rows, or windows, that TensorFlow takes out of blocks."""
    from penstock.tensorflow._dataset import as_it_is

    tf = tensorflow_module()
    places = Places(reader) if tf.executing_eagerly() else None
    signature = tuple(spec for kind in shape.kinds for spec in _block_specs(kind))
    made = tf.compat.v1.data.Dataset.from_generator(
        Passes(reader, lambda: Blocks(reader, shape, places)), output_signature=signature
    )
    free = any(kind.is_free for kind in shape.kinds)

    def slices(*tensors: Any) -> Any:
        whole = tuple(_joined(shape.kinds, tensors))
        return tf.data.Dataset.from_tensor_slices(whole if free else shape.pack(whole))

    made = made.flat_map(as_it_is(slices))  # `unbatch` takes twice as long
    if places is not None:
        counter = places.counter
        made = made.filter(as_it_is(lambda *_: counter.assign_add(1) > 0))  # keeps all; cheaper than a map
    return made.map(as_it_is(lambda *tensors: shape.pack(list(_rows(shape.kinds, tensors))))) if free else made


def _block_specs(kind: Kind) -> list[Any]:
    tf = tensorflow_module()
    if not kind.is_free:
        return [tf.TensorSpec([None, *kind.shape], tensor_dtype(kind))]
    ends, shapes = tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, len(kind.shape)], tf.int64)
    return [tf.TensorSpec([None], tensor_dtype(kind)), ends, shapes]


def _joined(kinds: Sequence[Kind], tensors: Sequence[Any]) -> Iterator[Any]:
    left = iter(tensors)
    for kind in kinds:
        values = next(left)
        if not kind.is_free:
            yield values
            continue
        yield tensorflow_module().RaggedTensor.from_row_splits(values, next(left), validate=False)
        yield next(left)


def _rows(kinds: Sequence[Kind], tensors: Sequence[Any]) -> Iterator[Any]:
    left = iter(tensors)
    for kind in kinds:
        value = next(left)
        if kind.is_free:
            value = tensorflow_module().reshape(value, next(left))
            value.set_shape(kind.shape)
        yield value


class Places:
    """Where the rows of blocks stand, so that the reader can tell how far the consumer is."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._blocks: deque[tuple[int, Callable[[int], None]]] = deque()
        self._lock = threading.Lock()
        tf = tensorflow_module()
        with tf.device("CPU"):
            self.counter = tf.Variable(0, dtype=tf.int64, trainable=False, name="rows_received")

    def begin(self) -> None:
        """Forget the pass before."""
        with self._lock:
            self._blocks.clear()
            self.counter.assign(0)
            self._reader._settle = self.settle

    def add(self, num_rows: int, place: Callable[[int], None]) -> None:
        """Note a block that is handed over: `place(n)` puts the reader behind its first n rows."""
        with self._lock:
            self._settle_now()
            self._blocks.append((num_rows, place))

    def settle(self) -> None:
        """Put the reader where the consumer is."""
        with self._lock:
            self._settle_now()

    def _settle_now(self) -> None:
        count = int(self.counter.numpy())
        while self._blocks:
            num_rows, place = self._blocks[0]
            place(min(count, num_rows))
            if count < num_rows or len(self._blocks) == 1:
                return
            count -= num_rows
            self.counter.assign_sub(num_rows)
            self._blocks.popleft()


class Blocks:
    """The iterator of one pass: what the engine has built, as the arrays of a block."""

    def __init__(self, reader: Reader, shape: Shape, places: Places | None) -> None:
        self._reader = reader
        self._shape = shape
        self._places = places
        self._blocks = self._make()
        if places is None:
            reader._in_graph = True
        else:
            places.begin()

    def __iter__(self) -> Blocks:
        return self

    def __next__(self) -> tuple[Any, ...]:
        return next(self._blocks)

    def _make(self) -> Iterator[tuple[Any, ...]]:
        reader = self._reader
        with reader._lock:  # rows of a batch that somebody has begun to take apart
            taken, begun = reader._taken, list(reader._rows)
            reader._rows = iter(())
        if begun:
            yield self._hand_over(self._of_items(begun), len(begun), lambda rows: _taken(reader, taken + rows))
        while (built := _next_built(reader)) is not None:
            if _num_items(built):
                reader._barren = 0
                yield from self._of_built(built)
                # A state that was asked for has put the loader back to a place inside of the batch.
                reader._loader.received(built.work.plan, reader._loader.steps_of(built.end))
            else:
                reader._left_out(built)

    def _hand_over(self, block: tuple[Any, ...], num_rows: int, place: Callable[[int], None]) -> tuple[Any, ...]:
        if self._places is None:
            place(num_rows)
        else:
            self._places.add(num_rows, place)
        return block

    def _of_items(self, items: list[Any]) -> tuple[Any, ...]:
        rows = [
            [item] if self._shape.ngram is None else [item[step] for step, _ in self._shape.steps] for item in items
        ]
        flat = [[value for row in line for value in row] for line in rows]
        return self._of_columns([list(column) for column in zip(*flat, strict=True)])

    def _of_columns(self, columns: Sequence[Any]) -> tuple[Any, ...]:
        arrays: list[Any] = []
        for kind, values in zip(self._shape.kinds, columns, strict=True):
            arrays += ragged_of(kind, values) if kind.is_free else [column_of(kind, values)]
        return tuple(arrays)

    def _of_built(self, built: Built) -> Iterator[tuple[Any, ...]]:
        fields = [(step, name) for step, names in self._shape.steps for name in names]
        if built.fold is None:
            block = self._of_columns([built.batch[name] for _, name in fields])
            yield self._hand_over(block, built.num_rows, _placer(self._reader, built, 0))
            return
        first = self._shape.steps[0][0]
        some = max(1, _BLOCK_BYTES // max(1, sum(_row_bytes(built.batch[name]) for _, name in fields)))
        for begin in range(0, len(built.fold), some):
            lines = built.fold[begin : begin + some]
            block = self._of_columns([_picked(built.batch[name], lines[:, step - first]) for step, name in fields])
            yield self._hand_over(block, len(lines), _placer(self._reader, built, begin))


def _num_items(built: Built) -> int:
    return built.num_rows if built.fold is None else len(built.fold)


def _picked(values: Any, rows: NDArray[np.int64]) -> Any:
    return [values[row] for row in rows.tolist()] if isinstance(values, list) else values[rows]


def _row_bytes(values: Any) -> int:
    if isinstance(values, np.ndarray) and len(values):
        return int(values.nbytes // len(values))
    return next((int(getattr(value, "nbytes", 64)) for value in values), 64)


def _placer(reader: Reader, built: Built, begin: int) -> Callable[[int], None]:
    """Return the function that puts a reader behind so many items of a batch, counted from `begin`."""
    loader, total = reader._loader, _num_items(built)

    def place(items: int) -> None:
        reader._plan, reader._kept = built.work.plan, built.kept
        reader._before, reader._taken = loader.steps_of(built.first), begin + items
        if begin + items >= total:  # also behind items at its end that were left out
            reader._before, reader._taken = loader.steps_of(built.end), 0

    return place


def _taken(reader: Reader, rows: int) -> None:
    reader._taken = rows
