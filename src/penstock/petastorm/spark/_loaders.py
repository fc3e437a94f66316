"""What `make_tf_dataset` and `make_torch_dataloader` return: a reader and a loader over it, open within a `with`.

Rows, not row groups, are dealt to shards, so that shards differ by one row at most and no shard of a small DataFrame
stays empty. Everything else is the reader's and the loader's. TensorFlow and torch are imported on entering.
"""

from __future__ import annotations

import inspect
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from penstock.engine.host import find_rank
from penstock.errors import PenstockWarning, PlanError, close_names
from penstock.petastorm import _ask
from penstock.petastorm.reader import make_batch_reader
from penstock.petastorm.spark import _cache, _places

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from penstock.petastorm.reader import Reader

_GIVEN_OTHERWISE = {
    "dataset_url_or_urls": "the converter's",
    "num_epochs": "an argument",
    "workers_count": "an argument",
}


@dataclass(frozen=True, slots=True)
class ConvertedFiles:
    """What a loader reads."""

    folder: str
    """URL of the folder that the files lie in."""
    file_urls: tuple[str, ...]
    lengths: Mapping[str, int]
    """Length of the arrays of a column, where it is the same in all rows."""
    wait_s: float
    """Longest wait for files to be seen."""
    options: Mapping[str, Any]
    """Arguments of `make_batch_reader`."""

    def open(self) -> Reader:
        """Return the reader."""
        gone = self.folder if _cache.was_deleted(self.folder) else None
        _places.wait_for_files(self.file_urls, self.wait_s, self.options.get("storage_options"), deleted=gone)
        reader = make_batch_reader(list(self.file_urls), **self.options)
        _deal_rows(reader)
        return reader


def _deal_rows(reader: Reader) -> None:
    """Let a reader of row groups, which has not begun, deal rows to its shards."""
    job = reader._job
    if not job.asked.deals_parts or job.asked.drop_partitions > 1:
        return
    other = replace(job, items=_ask._items(job.dataset, replace(job.asked, shuffle_rows=True), None))
    loader = other.loader(reader._loader.order.seed)
    reader._loader.close()
    reader._job, reader._loader = other, loader
    reader._start_pass()


def check_options(options: Mapping[str, Any]) -> None:
    """Check the names of arguments for `make_batch_reader` before anything is opened.

    Raises:
        TypeError: An argument that it does not have.
    """
    known = [name for name in inspect.signature(make_batch_reader).parameters if name not in _GIVEN_OTHERWISE]
    for name in options:
        if name not in known:
            raise TypeError(
                f"make_batch_reader got an unexpected keyword argument {name!r}; {close_names(name, known)}"
            )


def check_shards(options: Mapping[str, Any], stacklevel: int) -> None:
    """Warn where the shard that is asked for is not that of this process in a job of many, as far as one can see."""
    try:
        found = find_rank()
    except PlanError:  # variables without a meaning: the reader does not use them
        return
    if found is None or found[1] == 1:
        return
    rank, world, where = found
    asked = options.get("cur_shard"), options.get("shard_count")
    if asked != (rank, world):
        warnings.warn(
            f"this process is {rank} of {world} by {where}, and cur_shard={asked[0]}, shard_count={asked[1]}; for each "
            f"process to read its own part give cur_shard={rank}, shard_count={world}",
            PenstockWarning,
            stacklevel=stacklevel + 1,
        )


class TFDatasetContextManager:
    """A `tf.data.Dataset` of a converter's rows, open within `with ... as dataset`.

    The dataset has `len`, `state_dict` and `load_state_dict`, where it ends and as `penstock.tensorflow.Batches` does,
    and the members of TF1 (`make_one_shot_iterator()`, `output_shapes`, ...), also after `map`, `batch` and the like.
    Leaving the `with` ends its threads; every `with` begins anew.
    """

    def __init__(self, source: ConvertedFiles, batch_size: int, prefetch: int | None, shuffle_rows: int) -> None:
        self._source = source
        self._batch_size = batch_size
        self._prefetch = prefetch
        self._shuffle_rows = shuffle_rows
        self.reader: Reader | None = None
        """The reader behind, within the `with`."""

    def __enter__(self) -> Any:
        from penstock.petastorm.tf_utils import tensorflow_module

        tf = tensorflow_module()
        from penstock.petastorm.spark._tf_batches import make_batches

        self.reader = self._source.open()
        try:
            made = make_batches(self.reader, self._batch_size, self._shuffle_rows, self._source.lengths)
            ahead = tf.data.AUTOTUNE if self._prefetch is None else self._prefetch
            return made.prefetch(ahead) if ahead else made
        except BaseException:
            self._close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        reader, self.reader = self.reader, None
        if reader is not None:
            reader.stop()
            reader.join()


class TorchDatasetContextManager:
    """A loader of `penstock.petastorm.pytorch` over a converter's rows, open within `with ... as loader`.

    Leaving the `with` ends its threads; every `with` begins anew.
    """

    def __init__(
        self, source: ConvertedFiles, batch_size: int, shuffle_rows: int, data_loader_fn: Callable[..., Any] | None
    ) -> None:
        self._source = source
        self._batch_size = batch_size
        self._shuffle_rows = shuffle_rows
        self._data_loader_fn = data_loader_fn
        self.reader: Reader | None = None
        """The reader behind, within the `with`."""
        self.loader: Any = None
        """What the `with` gives."""

    def __enter__(self) -> Any:
        from penstock.petastorm.pytorch import DataLoader

        make = self._data_loader_fn or DataLoader
        self.reader = self._source.open()
        try:
            self.loader = make(
                reader=self.reader, batch_size=self._batch_size, shuffling_queue_capacity=self._shuffle_rows
            )
        except BaseException:
            self._close()
            raise
        return self.loader

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        loader, self.loader = self.loader, None
        try:
            if hasattr(loader, "__exit__"):
                loader.__exit__(kind, error, trace)
        finally:
            self._close()

    def _close(self) -> None:
        reader, self.reader = self.reader, None
        if reader is not None:
            reader.stop()
            reader.join()
