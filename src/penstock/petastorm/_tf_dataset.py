"""A `tf.data.Dataset` over a reader: blocks of rows if it is a `Reader` of rows or windows, items for any other.

A block is a delivery, converted column by column; TensorFlow takes it apart into rows, counts them, and gives free
dimensions their shape. So the reader's state follows the consumer row by row, without calls into Python.
TensorFlow is imported when `make_dataset` is called.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import LoaderClosed
from penstock.petastorm._columns import take_rows
from penstock.petastorm._reader_stream import ReaderStream, num_items, place_after
from penstock.petastorm._tf_values import Kind, column_of, ragged_of
from penstock.petastorm.reader import Reader
from penstock.petastorm.tf_utils import Shape, tensor_dtype, tensorflow_module

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.engine.delivery import Delivery
    from penstock.engine.stages import Batch

_BLOCK_BYTES = 16 << 20
"""Windows of rows are laid out for TensorFlow up to about so many bytes at once."""
_IN_GRAPH = (
    "a TensorFlow graph takes whole batches from this reader, so the row that its session has reached is not known; "
    "take the state before or after a pass, iterate make_petastorm_dataset eagerly, or use tf_tensors"
)


def make_dataset(reader: Any) -> Any:
    """Return the dataset of a reader's items, with the members of TF1, as TensorFlow's `compat.v1` makes it."""
    tensorflow_module()  # raises with the install line if it is missing
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
            if self._current is not mine:
                raise LoaderClosed("another iterator of this dataset was started; make a reader and a dataset for each")
            try:
                item = next(items)
            except StopIteration:
                return
            except BaseException:
                if exiting():
                    return
                raise
            yield item


def _items(reader: Any, shape: Shape) -> Any:
    """Return the dataset of items that are taken from the reader one by one."""
    from penstock.tensorflow._dataset import as_it_is

    tf = tensorflow_module()
    signature = tuple(tf.TensorSpec(shape.static(kind), tensor_dtype(kind)) for kind in shape.kinds)
    if not signature:
        raise ValueError("the reader has no fields: there is nothing to make tensors of")
    made = tf.compat.v1.data.Dataset.from_generator(
        Passes(reader, lambda: (tuple(shape.arrays(item)) for item in reader)), output_signature=signature
    )
    return made.map(as_it_is(lambda *tensors: shape.pack(tensors)))


# -- blocks -----------------------------------------------------------------------------------------------------------


def _blocks(reader: Reader, shape: Shape) -> Any:
    """Return the dataset of rows, or windows, that TensorFlow takes out of blocks."""
    from penstock.tensorflow._dataset import as_it_is

    tf = tensorflow_module()
    counter = RowCounter(reader) if tf.executing_eagerly() else None
    signature = tuple(spec for kind in shape.kinds for spec in _block_specs(kind))
    made = tf.compat.v1.data.Dataset.from_generator(
        Passes(reader, lambda: _block_arrays(reader, shape, counter)), output_signature=signature
    )
    free = any(kind.is_free for kind in shape.kinds)

    def slices(*tensors: Any) -> Any:
        whole = tuple(_joined(shape.kinds, tensors))
        return tf.data.Dataset.from_tensor_slices(whole if free else shape.pack(whole))

    made = made.flat_map(as_it_is(slices))  # `unbatch` takes twice as long
    if counter is not None:
        variable = counter.variable
        made = made.filter(as_it_is(lambda *_: variable.assign_add(1) > 0))  # keeps all; cheaper than a map
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


class RowCounter:
    """Acknowledges the rows of blocks that TensorFlow has taken out of them, as a variable counts them."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._stream: ReaderStream | None = None
        self._blocks: deque[tuple[int, Delivery[Batch], int]] = deque()
        """Rows of each block, its delivery, and items of the delivery before it."""
        self._lock = threading.Lock()
        tf = tensorflow_module()
        with tf.device("CPU"):
            self.variable = tf.Variable(0, dtype=tf.int64, trainable=False, name="rows_received")

    def begin(self, stream: ReaderStream | None) -> None:
        """Count the rows of another stream; None: of none, at the end of a pass."""
        with self._lock:
            self._blocks.clear()
            self.variable.assign(0)
            self._stream = stream
        if stream is not None:
            stream.before_state(self.settle)

    def add(self, num_rows: int, delivery: Delivery[Batch], first: int) -> None:
        """Record a block that is passed to TensorFlow: items of a delivery from `first` on."""
        self.settle()
        with self._lock:
            self._blocks.append((num_rows, delivery, first))

    def settle(self) -> None:
        """Acknowledge what the consumer has received."""
        with self._lock:
            count = int(self.variable.numpy())
            while self._blocks and self._stream is not None and count:
                num_rows, delivery, first = self._blocks[0]
                self._stream.received(place_after(self._reader.setup, delivery, first + min(count, num_rows)))
                if count < num_rows or len(self._blocks) == 1:
                    return
                count -= num_rows
                self.variable.assign_sub(num_rows)
                self._blocks.popleft()


def _block_arrays(reader: Reader, shape: Shape, counter: RowCounter | None) -> Iterator[tuple[Any, ...]]:
    """Yield the arrays of each block of a pass."""
    stream = reader.deliveries()
    if counter is None:
        stream.no_state = _IN_GRAPH
    else:
        counter.begin(stream)
    while (delivery := stream.take()) is not None:
        for first, num_rows, columns in _blocks_of(delivery, shape, num_items(reader.setup, delivery)):
            arrays: list[Any] = []
            for kind, values in zip(shape.kinds, columns, strict=True):
                arrays += ragged_of(kind, values) if kind.is_free else [column_of(kind, values)]
            if counter is None:
                stream.received(place_after(reader.setup, delivery, first + num_rows))
            else:
                counter.add(num_rows, delivery, first)
            yield tuple(arrays)
    if counter is not None:
        counter.begin(None)
    if not stream.is_over:
        stream.received(stream.end)


def _blocks_of(delivery: Delivery[Batch], shape: Shape, total: int) -> Iterator[tuple[int, int, list[Any]]]:
    """Yield a delivery in blocks: items before it, items of it, and its columns; windows become rows of all steps."""
    fields = [(step, name) for step, names in shape.steps for name in names]
    batch, windows = delivery.batch, delivery.origin.windows
    if windows is None:
        yield 0, total, [batch[name] for _, name in fields]
        return
    earliest = shape.steps[0][0]
    some = max(1, _BLOCK_BYTES // max(1, sum(_row_bytes(batch[name]) for _, name in fields)))
    for first in range(0, total, some):
        lines = windows[first : first + some]
        yield first, len(lines), [take_rows(batch[name], lines[:, step - earliest]) for step, name in fields]


def _row_bytes(values: Any) -> int:
    if isinstance(values, np.ndarray) and len(values):
        return int(values.nbytes // len(values))
    return next((int(getattr(value, "nbytes", 64)) for value in values), 64)
