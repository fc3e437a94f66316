"""A `tf.data.Dataset` of whole batches over a reader of batches, with the consumer's place and its length.

The batches are cut as for the loaders of torch; the dataset around them comes from `penstock.tensorflow`, which
acknowledges what comes out of its last stage. TensorFlow is imported by `make_batches`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from penstock.engine.base_loader import LoaderProxy
from penstock.engine.delivery import ENDED, Delivery
from penstock.engine.prefetch import Wrapping
from penstock.errors import LoaderClosed
from penstock.petastorm._row_feed import Columns, CutBatch, ReaderFeed, arrange, cut
from penstock.petastorm._tf_values import column_of
from penstock.petastorm.tf_utils import Shape, tensor_dtype, tensorflow_module

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.engine.loader import Loader
    from penstock.petastorm.reader import Reader


def make_batches(reader: Reader, batch_size: int, shuffle_rows: int, lengths: Mapping[str, int]) -> Any:
    """Return the dataset: named tuples of tensors with `batch_size` rows, the last ones of a pass with fewer.

    Batches cross row groups and, if `num_epochs` is not 1, epochs.

    Args:
        reader: A reader of batches that has not started.
        batch_size: Rows of a batch.
        shuffle_rows: More than 0: the reader shuffles rows.
        lengths: Length of arrays, by column, where all rows have the same: such tensors get a static shape.
    """
    tf = tensorflow_module()
    from penstock.tensorflow._dataset import Loader, TF1Batches, make_dataset

    if reader.setup.options["remainder"] == "pad":
        raise ValueError(
            "remainder='pad' repeats rows and marks them in a mask, which the named tuples of make_tf_dataset do not "
            "have; use 'drop' or 'uneven', or make_torch_dataloader"
        )
    shape = Shape(reader)
    if not reader.setup.calls_transform:
        shape.kinds = [
            replace(kind, shape=(lengths[kind.name],)) if kind.shape == (None,) and kind.name in lengths else kind
            for kind in shape.kinds
        ]
    arrange(reader, batch_size, shuffle=shuffle_rows > 0)
    batches = CutBatches(ReaderFeed(reader, batch_size, shuffle_rows), batch_size)

    def convert(delivery: Delivery[Columns]) -> tuple[Any, ...]:
        return tuple(column_of(kind, delivery.batch[kind.name]) for kind in shape.kinds)

    signature = tuple(tf.TensorSpec(shape.static(kind), tensor_dtype(kind)) for kind in shape.kinds)
    # If a transform may change the number of rows, the length is unknown, and nothing could end a repetition.
    repeats = batches.batches_left is not None or reader.num_epochs is None
    return make_dataset(
        Loader(batches, convert, repeats=repeats), signature, lambda *tensors: shape.pack(tensors), TF1Batches
    )


class CutBatches(LoaderProxy):
    """Batches of `size` rows of a reader, as streams: what the dataset of `penstock.tensorflow` needs of a loader.

    Counters come from the reader's loader, whose batches differ. One stream at a time.
    """

    def __init__(self, feed: ReaderFeed, size: int) -> None:
        self._feed = feed
        self._size = size
        self._begun = False
        self.live: CutStream | None = None
        """The stream that may take and acknowledge."""

    @property
    def native(self) -> Loader:  # type: ignore[override]
        """The reader's loader."""
        return cast("Loader", self._feed.reader.loader)

    def check_open(self) -> None:
        """Raise LoaderClosed after `close`, or after the reader was stopped."""
        self.native.check_open()

    def stream(self) -> CutStream:
        """Return the deliveries of the next pass, or of what is left of one after `load_state_dict`."""
        self.check_open()
        if self._begun:
            self._feed.pause()
            self._feed.restart()
        self._begun = True
        self.live = CutStream(self, self._feed, self._size)
        return self.live

    @property
    def batches_left(self) -> int | None:
        """Batches of this pass that the consumer has not received, or of the next pass at its end; None: unknown."""
        try:
            return -(-self._feed.rows_left() // self._size)
        except TypeError:
            return None

    def __len__(self) -> int:
        """Return the batches that the next iteration gives, or that are left in this one."""
        left = self.batches_left
        if left is None:
            raise TypeError("no length: the reader has num_epochs=None, or a transform may change the number of rows")
        return left

    def state_dict(self) -> dict[str, Any]:
        """Return the consumer's place as small JSON."""
        return self._feed.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state with the next iteration."""
        self._feed.pause()
        self._feed.load(state)
        self.live, self._begun = None, self._feed.over


class CutStream(Wrapping[Any, "Columns"]):
    """A reader's stream, cut into batches; a place is the `CutBatch` that ends there."""

    def __init__(self, owner: CutBatches, feed: ReaderFeed, size: int) -> None:
        super().__init__(feed.stream())
        self._owner = owner
        self._feed = feed
        self._batches = cut(feed, size)
        self._length = owner.batches_left

    @property
    def length(self) -> int | None:  # type: ignore[override]
        """Deliveries in all; None: not known."""
        return self._length

    def _check(self) -> None:
        if self._owner.live is not self:
            raise LoaderClosed(ENDED)

    def take(self) -> Delivery[Columns] | None:
        """Return the next batch; None at the end of the pass."""
        self._check()
        batch = next(self._batches, None)
        if batch is None:
            return None
        found: Delivery[Any] = batch.block.origin
        place: Any = self.end if batch.end is None else batch
        return Delivery(batch.columns, place, found.origin, len(next(iter(batch.columns.values()))))

    def received(self, place: Any, waited_s: float = 0.0) -> None:  # noqa: ARG002 -- the reader's stream measures
        """Acknowledge all batches up to a place."""
        self._check()
        if isinstance(place, CutBatch):
            self._feed.received(place.block, place.end)
        else:
            self._feed.finish()

    def stop(self) -> None:
        """End the threads; the consumer's place is kept."""
        if self._owner.live is self:
            self._feed.pause()
