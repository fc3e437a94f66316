"""A `tf.data.Dataset` of whole batches over a reader of batches, with the place of its consumer and its length.

The batches are cut out of what the engine has built, as for the loaders of torch; the dataset around them is that of
`penstock.tensorflow`, which counts what comes out of its last stage. TensorFlow is imported by `make_batches`.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.petastorm._feed import cut, make_feed
from penstock.petastorm._tf_values import column_of
from penstock.petastorm.tf_utils import Shape, tensor_dtype, tensorflow_module

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.petastorm._feed import Columns, Feed
    from penstock.petastorm.reader import Reader


def make_batches(reader: Reader, batch_size: int, shuffle_rows: int, lengths: Mapping[str, int]) -> Any:
    """Return the dataset: named tuples of tensors with `batch_size` rows, the last ones of a pass with fewer.

    Batches go over the borders of row groups and, where `num_epochs` is not 1, of epochs.

    Args:
        reader: Of batches, not begun.
        batch_size: Rows of a batch.
        shuffle_rows: More than 0: the reader shuffles rows.
        lengths: Length of arrays, by column, where all rows have the same: such tensors get a static shape.
    """
    tf = tensorflow_module()
    from penstock.tensorflow._dataset import Delivery, TF1Batches, no_running_ahead

    _refuse_padding(reader)
    feed = make_feed(reader, batch_size, shuffle=shuffle_rows)
    shape = _shaped(reader, lengths)
    kind: Any = type("FeedDelivery", (_OfFeed, Delivery), {})
    delivery = kind(feed, shape, batch_size)
    signature = tuple(tf.TensorSpec(shape.static(one), tensor_dtype(one)) for one in shape.kinds)
    made = tf.data.Dataset.from_generator(delivery._start, output_signature=signature)
    made = made.map(lambda *tensors: shape.pack(tensors))
    if delivery._repeats:
        made = made.repeat()  # why: see penstock.tensorflow._dataset
    if delivery._full is not None:
        made = made.take(delivery._full)
    return TF1Batches(made.with_options(no_running_ahead()), delivery, counted=False)


def _refuse_padding(reader: Reader) -> None:
    if reader._job.asked.remainder == "pad":
        raise ValueError(
            "remainder='pad' repeats rows and marks them in a mask, which the named tuples of make_tf_dataset do not "
            "have; use 'drop' or 'uneven', or make_torch_dataloader"
        )


def _shaped(reader: Reader, lengths: Mapping[str, int]) -> Shape:
    """Return what an item consists of, with the lengths of arrays that are known."""
    shape = Shape(reader)
    spec = reader._job.asked.transform_spec
    if spec is None or spec.func is None:
        shape.kinds = [
            replace(kind, shape=(lengths[kind.name],)) if kind.shape == (None,) and kind.name in lengths else kind
            for kind in shape.kinds
        ]
    return shape


class _Cut:
    """Batches of one pass, as the iterators of loaders give them: `take`, `stop`."""

    def __init__(self, batches: Iterator[Columns]) -> None:
        self._batches = batches

    def take(self) -> Columns:
        return next(self._batches)

    def stop(self) -> None:
        self._batches.close()  # type: ignore[attr-defined]


class _OfFeed:
    """What the delivery of `penstock.tensorflow` does otherwise over a feed: places are states, passes the reader's."""

    _ended_early: bool
    _will_count: bool
    _place: Any
    _state: Any
    _waiting: deque[Any]
    _received: deque[Any]

    def __init__(self, feed: Feed, shape: Shape, size: int) -> None:
        self._feed = feed
        self._shape = shape
        self._size = size
        self._lock = threading.RLock()
        self._feed_lock = threading.Lock()
        """Held around every step of the feed, and taken before `_lock`: a state may be asked for meanwhile."""
        self._current: weakref.ref[Any] | None = None
        self._ended_early = self._will_count = self._resumed = self._begun = False
        self._full = self._batches_left()
        self._repeats = self._full is not None or feed.reader.num_epochs is None
        self._begin(counted=False)

    @property
    def _loader(self) -> Any:
        return self._feed.reader._loader

    def _batches_left(self) -> int | None:
        try:
            return -(-self._feed.rows_left() // self._size)
        except TypeError:  # it never ends, or a transform may change the number of rows
            return None

    def _begin(self, *, counted: bool) -> None:
        self._counted = counted
        self._state = self._feed.state()
        self._length = self._batches_left()
        self._waiting, self._received = deque(), deque(maxlen=1024)
        self._place, self._num_received = None, 0

    def _start(self) -> Iterator[tuple[Any, ...]]:
        """Begin a pass; called by tf.data for every iterator."""
        from penstock.tensorflow._dataset import _One
        from penstock.tensorflow._exit import exiting, watch

        with self._feed_lock, self._lock:
            if (self._repeats and self._ended_early) or exiting():
                self._ended_early = False
                return iter(())
            self._loader._check_open()
            if self._begun:
                self._feed.pause()
                self._feed.restart()
            self._begun = True
            self._begin(counted=self._will_count)
            self._will_count = self._resumed = False
            one = _One(self, _Cut(cut(self._feed, self._size)))  # type: ignore[arg-type]
            self._current = weakref.ref(one)
            watch()
            return one

    def _batch_of(self, one: Any) -> tuple[Any, ...]:
        """Return the arrays of the next batch, and note the place behind it."""
        with self._feed_lock:
            if not self._is_current(one):  # type: ignore[attr-defined]
                raise StopIteration
            columns = one.batches.take()
            state = self._feed.state()
        kinds = self._shape.kinds
        arrays = tuple(column_of(kind, columns[kind.name]) for kind in kinds)
        with self._lock:
            if self._is_current(one):  # type: ignore[attr-defined]
                self._waiting.append(state)
                if not self._counted:
                    self._receive()  # type: ignore[attr-defined]
        return arrays

    def state_dict(self) -> dict[str, Any]:
        """Return the place of this run as small JSON: what the consumer has received."""
        with self._lock:
            found: dict[str, Any] = self._state if self._place is None else self._place
            return found

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state with the next iteration."""
        with self._feed_lock, self._lock:
            self._feed.pause()
            self._feed.load(state)
            self._current, self._ended_early, self._resumed = None, False, True
            self._begun = self._feed.over
            self._begin(counted=False)
