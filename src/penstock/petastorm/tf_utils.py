"""`petastorm.tf_utils`: a reader as a `tf.data.Dataset`, or as tensors of a graph.

`make_petastorm_dataset` takes whole batches from a `Reader` and lets TensorFlow split them into rows, without a call
into Python for each row. Other readers, and `tf_tensors`, are read one item at a time. TensorFlow is imported when
a function is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.petastorm._columns import row_type
from penstock.petastorm._tf_values import Kind, column_of, date_to_nsec_from_epoch, kind_of, value_of
from penstock.schema.unischema import schema_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


__all__ = [
    "RANDOM_SHUFFLING_QUEUE_SIZE",
    "date_to_nsec_from_epoch",
    "make_namedtuple_tf_ngram",
    "make_petastorm_dataset",
    "tf_tensors",
]

RANDOM_SHUFFLING_QUEUE_SIZE = "random_shuffling_queue_size"
"""Name of the operation that returns the size of the shuffling queue in a graph."""


def make_petastorm_dataset(reader: Any) -> Any:
    """Return a `tf.data.Dataset` of what a reader gives: named tuples of tensors, or dicts of them for an `NGram`.

    Shapes and dtypes are static, from the reader's schema; fields of free dimensions come with the shape of their row.
    Iterating again, also after `break`, begins the reader's next pass. `reader.state_dict()` covers what has come out
    of this dataset; later stages that run ahead (`prefetch`, a parallel `map`) have taken more than came out of them.
    Therefore maps behind it are parallel only if they have `num_parallel_calls`.

    The dataset is a `tensorflow.compat.v1.data.Dataset`, which is a `tf.data.Dataset` too: it has
    `make_one_shot_iterator()`, `make_initializable_iterator()`, `output_shapes`, `output_types` and `output_classes`,
    also after `map`, `batch` and the like. In a graph the state of a reader of rows is not known during a pass.

    Raises:
        ValueError: A field whose dtype TensorFlow does not have.
    """
    from penstock.petastorm._tf_dataset import make_dataset

    return make_dataset(reader)


def tf_tensors(reader: Any, shuffling_queue_capacity: int = 0, min_after_dequeue: int = 0) -> Any:
    """Return tensors of a graph that give the next row each time they are evaluated: `OutOfRangeError` at the end.

    A named tuple of tensors, or `{timestep: named tuple}` for an `NGram`; shapes are static, from the reader's schema.
    For sessions of `tensorflow.compat.v1`. The order is better shuffled by the reader (`shuffle_rows=True`).

    Args:
        reader: A reader of rows or batches.
        shuffling_queue_capacity: Rows that a queue holds to shuffle them; 0 for none. Not with readers of batches.
            Needs `tf.train.start_queue_runners`.
        min_after_dequeue: Rows that stay in the queue, so that it mixes well.

    Raises:
        RuntimeError: There is no graph: evaluated eagerly, the tensors would always be the same row.
    """
    tf = tensorflow_module()
    if reader.batched_output and shuffling_queue_capacity:
        raise ValueError(
            "shuffling_queue_capacity is not possible with a reader of batches: the queue would shuffle whole batches; "
            "use shuffle_rows=True of make_batch_reader"
        )
    if tf.executing_eagerly():
        raise RuntimeError(
            "tf_tensors gives tensors of a graph, and TensorFlow evaluates eagerly here: call it inside `with "
            "tf.compat.v1.Graph().as_default():` and evaluate them in a tf.compat.v1.Session, or iterate over "
            "make_petastorm_dataset(reader), which needs no graph"
        )
    shape = Shape(reader)
    dtypes = [tensor_dtype(kind) for kind in shape.kinds]
    items = iter(reader)
    tensors = list(tf.numpy_function(lambda: shape.arrays(next(items)), [], dtypes)) if dtypes else []
    if shuffling_queue_capacity:
        tensors = _through_queue(tf, tensors, shuffling_queue_capacity, min_after_dequeue)
    for tensor, kind in zip(tensors, shape.kinds, strict=True):
        tensor.set_shape(shape.static(kind))
    return shape.pack(tensors)


def _through_queue(tf: Any, tensors: list[Any], capacity: int, least: int) -> list[Any]:
    v1 = tf.compat.v1
    queue = v1.RandomShuffleQueue(capacity, least, [tensor.dtype for tensor in tensors])
    v1.train.add_queue_runner(v1.train.QueueRunner(queue, [queue.enqueue(tensors)]))
    queue.size(name=RANDOM_SHUFFLING_QUEUE_SIZE)
    found = queue.dequeue()
    return list(found) if isinstance(found, list | tuple) else [found]


def make_namedtuple_tf_ngram(unischema: Any, ngram: Any, *args: Any, **kargs: Any) -> dict[int, Any]:
    """Return `{timestep: named tuple}` of values in the order of timesteps, and of fields in each.

    Named values come as a dict for each timestep, under the timestep's number as text.
    """
    window, values = {}, list(args)
    for step in ngram.timesteps:
        schema = ngram.get_schema_at_timestep(unischema, step)
        named = kargs.get(str(step), {})
        count = len(schema.fields) - len(named)
        window[step] = schema.make_namedtuple_tf(*values[:count], **named)
        del values[:count]
    return window


class Shape:
    """The values of a reader's item in a flat order, and how they become an item again."""

    def __init__(self, reader: Any) -> None:
        self.batched = bool(reader.batched_output)
        self.ngram = reader.ngram
        self._make: dict[int, Callable[[Sequence[Any]], Any]] = {}
        self.steps: list[tuple[int, tuple[str, ...]]] = []
        """Step and names of each named tuple of an item; step 0 where there is one only."""
        kinds = {name: kind_of(field) for name, field in reader.schema.fields.items()}
        for step in (0,) if self.ngram is None else self.ngram.timesteps:
            schema = reader.schema if self.ngram is None else self.ngram.get_schema_at_timestep(reader.schema, step)
            self.steps.append((step, tuple(schema.fields)))
            self._make[step] = row_type(schema_name(schema), tuple(schema.fields))._make
        self.kinds: list[Kind] = [kinds[name] for _, names in self.steps for name in names]

    def static(self, kind: Kind) -> list[int | None]:
        """Return the static shape of a value."""
        return [None, *kind.shape] if self.batched else list(kind.shape)

    def arrays(self, item: Any) -> list[Any]:
        """Return the values of an item as arrays, in the flat order."""
        rows = [item] if self.ngram is None else [item[step] for step, _ in self.steps]
        values = [value for row in rows for value in row]
        convert = column_of if self.batched else value_of
        return [convert(kind, value) for kind, value in zip(self.kinds, values, strict=True)]

    def pack(self, tensors: Sequence[Any]) -> Any:
        """Return an item of tensors in the flat order."""
        left, item = list(tensors), {}
        for step, names in self.steps:
            item[step] = self._make[step](left[: len(names)])
            del left[: len(names)]
        return item[0] if self.ngram is None else item


def tensor_dtype(kind: Kind) -> Any:
    """Return TensorFlow's dtype of a field's values."""
    tf = tensorflow_module()
    return tf.string if kind.dtype == object else tf.as_dtype(kind.dtype)


def tensorflow_module() -> Any:
    """Return TensorFlow; ImportError with the line that installs it where it is missing."""
    try:
        import tensorflow as tf
    except ImportError:
        raise ImportError("penstock.petastorm.tf_utils needs TensorFlow: pip install 'penstock[tensorflow]'") from None
    return tf
