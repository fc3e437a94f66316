"""What `make_tf_dataset` and `make_torch_dataloader` return: a reader and a loader over it, open within a `with`.

Rows, not row groups, are dealt to shards, so that shards differ by at most one row and no shard of a small DataFrame
stays empty. TensorFlow and torch are imported on entering the `with`.
"""

from __future__ import annotations

import inspect
import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.engine.rank import find_rank
from penstock.errors import PenstockWarning, PlanError, close_names
from penstock.petastorm.reader import Reader, make_batch_reader
from penstock.petastorm.spark import _cache, _places
from penstock.petastorm.tf_utils import tensorflow_module

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType


_GIVEN_OTHERWISE = ("dataset_url_or_urls", "num_epochs", "workers_count")
"""Arguments of `make_batch_reader` that the converter fills in."""


@dataclass(frozen=True, slots=True)
class ConvertedFiles:
    """The files of a converter, and how they are read."""

    folder: str
    """URL of the folder of the files."""
    file_urls: tuple[str, ...]
    lengths: Mapping[str, int]
    """Length of the arrays of a column, where it is the same in all rows."""
    wait_s: float
    """Longest wait for files to become visible."""
    options: Mapping[str, Any]
    """Arguments of `make_batch_reader`."""

    def open(self) -> Reader:
        """Return the reader."""
        gone = self.folder if _cache.was_deleted(self.folder) else None
        _places.wait_for_files(self.file_urls, self.wait_s, self.options.get("storage_options"), deleted=gone)
        reader = make_batch_reader(list(self.file_urls), **self.options)
        setup = reader.setup
        if setup.deals_whole and setup.options["shuffle_row_drop_partitions"] == 1:
            reader.read_as(setup.dealing_rows())
        return reader


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
    """Warn if the given shard is not the rank of this process, where that is known."""
    try:
        found = find_rank()
    except PlanError:  # variables without a meaning: the reader does not use them
        return
    given = options.get("cur_shard"), options.get("shard_count")
    if found is not None and found.world > 1 and given != found[:2]:
        rank, world, where = found
        warnings.warn(
            f"this process is {rank} of {world} by {where}, and cur_shard={given[0]}, shard_count={given[1]}; for each "
            f"process to read its own part give cur_shard={rank}, shard_count={world}",
            PenstockWarning,
            stacklevel=stacklevel + 1,
        )


class _ReaderContext(ABC):
    """Opens a reader, and what is made of it, within a `with`; leaving it ends their threads."""

    def __init__(self, files: ConvertedFiles, batch_size: int, shuffle_rows: int) -> None:
        self._files = files
        self._batch_size = batch_size
        self._shuffle_rows = shuffle_rows
        self.reader: Reader | None = None
        """The reader, within the `with`."""

    @abstractmethod
    def _make(self, reader: Reader) -> Any:
        """Return what the `with` gives."""

    def __enter__(self) -> Any:
        self.reader = self._files.open()
        try:
            return self._make(self.reader)
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


class TFDatasetContextManager(_ReaderContext):
    """A `tf.data.Dataset` of a converter's rows, open within `with ... as dataset`.

    The dataset has `state_dict`, `load_state_dict` and, if it ends, `len`, as `penstock.tensorflow.Batches` does, and
    the members of TF1 (`make_one_shot_iterator()`, `output_shapes`, ...), also after `map`, `batch` and the like.
    Leaving the `with` ends its threads; every `with` begins from the start.
    """

    def __init__(self, files: ConvertedFiles, batch_size: int, prefetch: int | None, shuffle_rows: int) -> None:
        super().__init__(files, batch_size, shuffle_rows)
        self._prefetch = prefetch

    def __enter__(self) -> Any:
        tensorflow_module()  # before files are waited for
        return super().__enter__()

    def _make(self, reader: Reader) -> Any:
        from penstock.petastorm.spark._tf_batches import make_batches

        made = make_batches(reader, self._batch_size, self._shuffle_rows, self._files.lengths)
        ahead = tensorflow_module().data.AUTOTUNE if self._prefetch is None else self._prefetch
        return made.prefetch(ahead) if ahead else made


class TorchDatasetContextManager(_ReaderContext):
    """A loader of `penstock.petastorm.pytorch` over a converter's rows, open within `with ... as loader`.

    Leaving the `with` ends its threads; every `with` begins from the start.
    """

    def __init__(
        self, files: ConvertedFiles, batch_size: int, shuffle_rows: int, data_loader_fn: Callable[..., Any] | None
    ) -> None:
        super().__init__(files, batch_size, shuffle_rows)
        self._data_loader_fn = data_loader_fn
        self.loader: Any = None
        """What the `with` gives."""

    def _make(self, reader: Reader) -> Any:
        from penstock.petastorm.pytorch import DataLoader

        make = self._data_loader_fn or DataLoader
        self.loader = make(reader=reader, batch_size=self._batch_size, shuffling_queue_capacity=self._shuffle_rows)
        return self.loader

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        loader, self.loader = self.loader, None
        try:
            if hasattr(loader, "__exit__"):
                loader.__exit__(kind, error, trace)
        finally:
            super().__exit__(kind, error, trace)
