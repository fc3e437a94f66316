"""Petastorm's converter: a Spark DataFrame, written once as Parquet, as loaders of TensorFlow and torch.

`make_spark_converter` materialises a DataFrame below a folder that Spark's configuration names, and gives a converter;
the converter makes loaders over its files, on this machine or, pickled, on others. Reading, shuffling and resuming are
the engine's. pyspark, TensorFlow and torch are imported where they are needed; a converter itself needs none.
"""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockWarning, PlanError
from penstock.petastorm._reader_options import whole_number
from penstock.petastorm.spark import _cache, _places
from penstock.petastorm.spark._frames import Settings
from penstock.petastorm.spark._loaders import (
    ConvertedFiles,
    TFDatasetContextManager,
    TorchDatasetContextManager,
    check_options,
    check_shards,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["SparkDatasetConverter", "make_spark_converter", "register_delete_dir_handler"]

_BATCH_SIZE = 32
_WORKERS = 4
_FILE_AVAILABILITY_WAIT_TIMEOUT_SECS = 30
"""Longest wait for files that others have written; Petastorm's name."""


def make_spark_converter(
    df: Any,
    parquet_row_group_size_bytes: int = 32 << 20,
    compression_codec: str | None = None,
    dtype: str | None = "float32",
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> SparkDatasetConverter:
    """Write a DataFrame as Parquet and return the converter that makes loaders of it.

    The files go below the folder that Spark's setting `petastorm.spark.converter.parentCacheDirUrl` names. They are
    reused for a DataFrame of the same plan and settings as long as what it reads has not changed; if that is
    unknown (Delta tables, JDBC, `rand()`, Spark Connect) they are written again. They are deleted by `delete`, and at
    the end of the process.

    Args:
        df: A DataFrame, or the URL or path of a folder of Parquet files: that is read as it is and never deleted, and
            needs neither Spark nor the setting.
        parquet_row_group_size_bytes: Bytes of a row group in memory. Shards and shuffling go by rows.
        compression_codec: None for no compression, "snappy", "gzip", "lz4" or "zstd".
        dtype: Precision of floating-point columns and of arrays and vectors of such: "float32", "float64", or None to
            leave it.
        storage_options: Passed to fsspec where files are listed, read and deleted; pickled with the converter.

    Raises:
        ValueError: The setting is missing or not a URL, an unknown dtype, or a streaming DataFrame.
        RuntimeError: An unknown codec, or files that this process cannot see.
    """
    settings = Settings.checked(parquet_row_group_size_bytes, compression_codec, dtype)
    if isinstance(df, str | os.PathLike):
        return _of_folder(os.fspath(df), storage_options)
    if not all(hasattr(df, name) for name in ("isStreaming", "schema", "sparkSession")):
        raise TypeError(f"wanted a Spark DataFrame, or the URL of a folder of Parquet files; got {type(df).__name__}")
    if df.isStreaming:
        raise ValueError("a streaming DataFrame has no end and cannot be materialised; write it to a table first")
    parent = _places.place_of(_parent_url(df.sparkSession), storage_options)
    _places.warn_if_not_shared(parent)
    entry = _cache.stored(df, parent, settings, storage_options)
    made = SparkDatasetConverter(
        entry.place.url,  # type: ignore[union-attr]
        entry.file_urls,
        entry.num_rows,
        lengths=entry.lengths,
        storage_options=storage_options,
    )
    _cache.hold(entry, made)
    return made


def _parent_url(spark: Any) -> str:
    key = SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF
    found = spark.conf.get(key, None)
    if not found:
        raise ValueError(
            f"set where to write: spark.conf.set({key!r}, 'file:///folder'), a folder that Spark's workers and the "
            "processes that train all see (hdfs:, s3a: and dbfs: URLs too)"
        )
    return str(found)


def _of_folder(url: str, storage_options: Mapping[str, Any] | None) -> SparkDatasetConverter:
    import penstock

    url = _places.reading_url(url)
    dataset = penstock.open(url, storage_options=storage_options)
    place = _places.place_of(url if ":" in url else "file://" + os.path.abspath(url), storage_options)
    made = SparkDatasetConverter(place.url, [place.url], len(dataset), storage_options=storage_options)
    made.is_users_folder = True
    return made


def register_delete_dir_handler(handler: Callable[[str], Any] | None) -> None:
    """Set a function of a URL that deletes the folders of converters; None: the built-in way.

    It is called for folders that a converter has written only.
    """
    _cache.set_handler(handler)


class SparkDatasetConverter:
    """The rows of a DataFrame as Parquet files, and the loaders over them.

    Can be pickled to other processes and machines that see the files. `len(converter)` is the number of rows.
    """

    PARENT_CACHE_DIR_URL_CONF = "petastorm.spark.converter.parentCacheDirUrl"
    """Setting of Spark: the URL of the folder below which DataFrames are written."""

    def __init__(
        self,
        cache_dir_url: str,
        file_urls: Sequence[str],
        dataset_size: int,
        *,
        lengths: Mapping[str, int] | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Take files that are there; `make_spark_converter` does.

        Args:
            cache_dir_url: The folder, which `delete` deletes if a converter has written it.
            file_urls: The files, or folders of files.
            dataset_size: Their rows.
            lengths: Length of the arrays of a column, where it is the same in all rows.
            storage_options: Passed to fsspec.
        """
        self.cache_dir_url = cache_dir_url
        self.file_urls = list(file_urls)
        self.dataset_size = dataset_size
        self._lengths = dict(lengths or {})
        self._storage_options = None if storage_options is None else dict(storage_options)
        self._warned = False
        self.is_users_folder = False
        """Whether the user gave the folder, so that `delete` leaves it alone."""

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.dataset_size

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"SparkDatasetConverter({self.cache_dir_url!r}, rows={self.dataset_size:,}, files={len(self.file_urls)})"

    def steps_per_epoch(self, batch_size: int = _BATCH_SIZE, *, shard_count: int = 1) -> int:
        """Return the full batches in the rows, or in one shard's part of them; at least 1, or 0 without rows.

        For `model.fit(dataset, steps_per_epoch=...)` over a loader with `num_epochs=None`, which does not end: the rows
        that are left go into the first batch of the next epoch.
        """
        rows = self.dataset_size // whole_number("shard_count", shard_count, least=1)
        return max(1 if self.dataset_size else 0, rows // whole_number("batch_size", batch_size, least=1))

    def make_tf_dataset(
        self,
        batch_size: int | None = None,
        prefetch: int | None = None,
        num_epochs: int | None = None,
        workers_count: int | None = None,
        shuffling_queue_capacity: int | None = None,
        **petastorm_reader_kwargs: Any,
    ) -> TFDatasetContextManager:
        """Return a context manager that gives a `tf.data.Dataset` of batches: named tuples of tensors.

        The dataset has a length where `num_epochs` is given, so that `model.fit(dataset)` knows its steps, and
        `state_dict` and `load_state_dict`. Iterating again begins the next pass, in another order. It also has the
        members of `tensorflow.compat.v1.data.Dataset`: `make_one_shot_iterator()`, `output_shapes`, ...

        Args:
            batch_size: Rows of a batch; 32. The last batch of a pass may have fewer.
            prefetch: Batches that TensorFlow makes ahead; None leaves that to it, 0 for none.
            num_epochs: Epochs of one iteration; None: endless, with a warning: give `steps_per_epoch` to Keras then.
            workers_count: Threads of the reader; 4.
            shuffling_queue_capacity: More than 0: all rows are shuffled, within a buffer in memory.
            petastorm_reader_kwargs: Arguments of `make_batch_reader`: `seed`, `cur_shard`, `transform_spec`, ...
        """
        size = whole_number("batch_size", _BATCH_SIZE if batch_size is None else batch_size, least=1)
        ahead = None if prefetch is None else whole_number("prefetch", prefetch, least=-1)
        shuffle = whole_number("shuffling_queue_capacity", shuffling_queue_capacity or 0, least=0)
        source = self._source(num_epochs, workers_count, size, petastorm_reader_kwargs)
        return TFDatasetContextManager(source, size, ahead, shuffle)

    def make_torch_dataloader(
        self,
        batch_size: int = _BATCH_SIZE,
        num_epochs: int | None = None,
        workers_count: int | None = None,
        shuffling_queue_capacity: int = 0,
        data_loader_fn: Callable[..., Any] | None = None,
        **petastorm_reader_kwargs: Any,
    ) -> TorchDatasetContextManager:
        """Return a context manager that gives a loader of dicts of tensors.

        Args:
            batch_size: Rows of a batch. The last batch of a pass may have fewer.
            num_epochs: Epochs of one pass; None: endless, with a warning.
            workers_count: Threads of the reader; 4.
            shuffling_queue_capacity: More than 0: all rows are shuffled, within a buffer in memory.
            data_loader_fn: Makes the loader, with `reader`, `batch_size` and `shuffling_queue_capacity`; None for
                `penstock.petastorm.pytorch.DataLoader`.
            petastorm_reader_kwargs: Arguments of `make_batch_reader`: `seed`, `cur_shard`, `transform_spec`, ...
        """
        size = whole_number("batch_size", batch_size, least=1)
        shuffle = whole_number("shuffling_queue_capacity", shuffling_queue_capacity or 0, least=0)
        if data_loader_fn is not None and not callable(data_loader_fn):
            raise TypeError(f"data_loader_fn makes a loader of a reader; got {data_loader_fn!r}")
        source = self._source(num_epochs, workers_count, size, petastorm_reader_kwargs)
        return TorchDatasetContextManager(source, size, shuffle, data_loader_fn)

    def _source(
        self, num_epochs: int | None, workers: int | None, size: int, more: Mapping[str, Any]
    ) -> ConvertedFiles:
        check_options(more)
        check_shards(more, stacklevel=3)
        if num_epochs is None and not self.dataset_size:
            raise PlanError(
                f"the DataFrame of this converter has no rows ({self.cache_dir_url}), and num_epochs=None would wait "
                "for a batch forever; look at what it was made of, or give num_epochs=1, which ends at once"
            )
        self._warn_if_endless(num_epochs, size, more.get("shard_count"))
        options: dict[str, Any] = {"num_epochs": num_epochs, "workers_count": _WORKERS if workers is None else workers}
        if self._storage_options is not None:
            options["storage_options"] = self._storage_options
        options |= more
        files, wait_s = tuple(self.file_urls), _FILE_AVAILABILITY_WAIT_TIMEOUT_SECS
        return ConvertedFiles(self.cache_dir_url, files, self._lengths, wait_s, options)

    def _warn_if_endless(self, num_epochs: int | None, size: int, shard_count: int | None) -> None:
        if num_epochs is not None or self._warned:
            return
        self._warned = True
        shards = "" if shard_count is None else f", shard_count={shard_count}"
        warnings.warn(
            "num_epochs=None gives batches forever: give num_epochs=1, or stop after "
            f"converter.steps_per_epoch({size}{shards}) = {self.steps_per_epoch(size, shard_count=shard_count or 1)} "
            "batches, in Keras with model.fit(dataset, steps_per_epoch=...)",
            PenstockWarning,
            stacklevel=4,
        )

    def delete(self) -> None:
        """Delete the files that were written for this converter; the user's own files are never touched.

        Waits for other converters of the same DataFrame in this process: the last one deletes. A second call, or a call
        when the files no longer exist, does nothing. In a process that the converter was pickled to it deletes at once.
        """
        if self.is_users_folder:
            _cache.warn_of_users_folder(self.cache_dir_url, stacklevel=3)
        else:
            _cache.release(self.cache_dir_url, self, self._storage_options)
