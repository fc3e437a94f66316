"""`petastorm.reader`: `make_reader`, `make_batch_reader` and the `Reader` that both return.

A reader takes deliveries from a loader of the engine, whose items are rows, whole row groups or windows of rows, and
returns them as Petastorm does: named tuples of values, or of columns. What Petastorm does not have: a length, a state
that resumes exactly, and a reset at any time. What the consumer has received is recorded by the loader alone.
"""

from __future__ import annotations

import threading
import warnings
from typing import TYPE_CHECKING, Any, Unpack

from penstock.engine.stages import MASK, Batch
from penstock.errors import LoaderClosed, PenstockWarning
from penstock.petastorm._columns import columns_of, row_type, rows_of, window_columns, windows_of
from penstock.petastorm._reader_options import (
    PETASTORM_ORDER,
    OwnReaderKeywords,
    ReaderOptions,
    ReaderSetup,
    check_arguments,
    open_setup,
    pool_options,
    take_arguments,
)
from penstock.petastorm._reader_stream import ReaderStream, place_after
from penstock.petastorm.cache import LOCAL_DISK_CACHE, MEMORY_CACHE, NULL_CACHE, clean_up_after
from penstock.petastorm.fs_utils import normalize_dataset_url_or_urls
from penstock.plan.state import State
from penstock.schema.unischema import schema_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType

    from penstock.engine.delivery import Delivery
    from penstock.engine.loader import Loader

__all__ = [
    "LOCAL_DISK_CACHE",
    "MEMORY_CACHE",
    "NULL_CACHE",
    "Reader",
    "make_batch_reader",
    "make_reader",
    "normalize_dataset_url_or_urls",
]


@take_arguments(
    ("dataset_url", *PETASTORM_ORDER[:3], "pyarrow_serialize", *PETASTORM_ORDER[3:]),
    ("remainder", "exact", "memory_bytes", "lanes", "format"),
)
def make_reader(
    dataset_url: Any, *_: Any, pyarrow_serialize: bool = False, **options: Unpack[OwnReaderKeywords]
) -> Reader:
    """Return a reader of rows: each a named tuple of decoded values, or a dict of them with an `NGram`.

    All parameters are Petastorm's; docs/migrate_from_petastorm.md describes what they do here.

    Args:
        dataset_url: URL or path of a dataset, or a list of them.
        schema_fields: Fields or regular expressions over whole names, or an `NGram`; None for all.
        reader_pool_type: "thread", "process" or "dummy" (everything in the calling thread).
        workers_count: Most threads or processes; never more than this process has cores.
        pyarrow_serialize: Without effect.
        results_queue_size: Most results that wait for the consumer; memory is limited in any case.
        seed: Selects the order; None draws a seed, the same on all shards.
        shuffle_rows: Shuffle rows across row groups, within a buffer in memory; large row groups are read in parts, as
            by `Dataset.loader` with `parts=None`.
        shuffle_row_groups: Row groups in another order in each epoch, rows as stored.
        shuffle_row_drop_partitions: Cut each row group into this many parts, which are shuffled independently.
        predicate: Rows to keep; see `penstock.predicates`.
        rowgroup_selector: Row groups to keep, by an index.
        num_epochs: Epochs; None: endless.
        cur_shard: Which part of the rows this process reads.
        shard_count: Number of parts.
        shard_seed: Deprecated: the same as `seed`.
        cache_type: "null", "local-disk" or "memory".
        cache_location: Folder of the cache; None: the user's cache folder.
        cache_size_limit: Bytes of the cache; None: a share of the free disk.
        cache_row_size_estimate: Checked as Petastorm does, where given.
        cache_extra_settings: More arguments of the cache.
        hdfs_driver: Without effect.
        transform_spec: A function of rows, see `TransformSpec`.
        filters: Tuples as pyarrow takes them, over partitions and ordinary columns; they filter rows.
        storage_options: Passed to fsspec.
        zmq_copy_buffers: Without effect.
        filesystem: A filesystem to use instead of the URL's.
        convert_early_to_numpy: Without effect: values are NumPy's at once.
        remainder: Rows that do not divide among shards: "uneven" (all are read), "drop" or "pad".
        exact: False: a predicate is evaluated when rows are delivered, not before; length and balance are given up.
        memory_bytes: Budget of this reader; see `Dataset.loader`.
        lanes: With `shuffle_rows`: lanes of the shuffled order, a multiple of `shard_count` where each shard should
            read its own row groups only; None: chosen from the dataset.
        format: "parquet" reads every Parquet file of a Delta, Iceberg or Hudi table, with rows that the table has
            deleted; None refuses such tables.
    """
    return Reader.open(check_arguments(dataset_url, batched=False, pyarrow_serialize=pyarrow_serialize, **options))


@take_arguments(
    ("dataset_url_or_urls", *PETASTORM_ORDER), ("remainder", "exact", "memory_bytes", "lanes", "decode", "format")
)
def make_batch_reader(
    dataset_url_or_urls: Any, *_: Any, decode: bool = False, **options: Unpack[OwnReaderKeywords]
) -> Reader:
    """Return a reader of batches: each a named tuple of columns, the rows of one row group.

    Parameters as those of `make_reader`, and:

    Args:
        dataset_url_or_urls: URL or path of a dataset, or a list of them.
        decode: Decode the cells of datasets that store encoded ones (Petastorm's); otherwise they come as bytes.
        transform_spec: Its function takes and returns a pandas DataFrame, and may change the number of rows.
        shuffle_rows: Batches hold rows from many row groups, as many as a row group has on average.
    """
    return Reader.open(check_arguments(dataset_url_or_urls, batched=True, decode=decode, **options))


_READER_ORDER = (
    "self", "pyarrow_filesystem", "dataset_path", "schema_fields", "seed", "shuffle_rows", "shuffle_row_groups",
    "shuffle_row_drop_partitions", "predicate", "rowgroup_selector", "reader_pool", "num_epochs", "cur_shard",
    "shard_count", "cache", "worker_class", "transform_spec", "is_batched_reader", "filters", "shard_seed",
    "convert_early_to_numpy",
)  # fmt: skip


class Reader:
    """Iterates rows, or batches, of a dataset as named tuples; its own iterator, as in Petastorm.

    `next` after `stop` is a RuntimeError; after the last row StopIteration until `reset`, which may come at any moment
    and starts the next pass. A `for` loop after `break` continues where it was.
    """

    @take_arguments(_READER_ORDER, ("dataset_url", "storage_options", "remainder"))
    def __init__(  # noqa: PLR0913 -- Petastorm's arguments that its factories do not have
        self,
        pyarrow_filesystem: Any = None,
        dataset_path: Any = None,
        *_: Any,
        reader_pool: Any = None,
        cache: Any = None,
        worker_class: Any = None,
        is_batched_reader: bool = False,
        dataset_url: Any = None,
        **options: Any,
    ) -> None:
        """Open a dataset: `Reader(url, ...)` or `Reader(filesystem, path, ...)`; see `make_reader`."""
        del worker_class
        filesystem, source = pyarrow_filesystem, dataset_path
        if isinstance(pyarrow_filesystem, str | list):
            if options["schema_fields"] is None:  # Reader(url, fields): the second argument was the fields
                options["schema_fields"] = dataset_path
            filesystem, source = None, pyarrow_filesystem
        options |= {"cache": cache, "filesystem": filesystem, **pool_options(reader_pool)}
        self._open(check_arguments(dataset_url or source, batched=is_batched_reader, **options))

    @classmethod
    def open(cls, options: ReaderOptions) -> Reader:
        """Return a reader with these options."""
        reader = cls.__new__(cls)
        reader._open(options)
        return reader

    def _open(self, options: ReaderOptions) -> None:
        self.setup = open_setup(options)
        """What is read and how; see `read_as`."""
        self.loader: Loader = self.setup.make_loader(None)
        """The engine's loader, which records what was received; replaced by `read_as` and by some states."""
        self.schema = self.setup.schema
        """Unischema of what is returned."""
        self.ngram = self.setup.ngram
        """The `NGram` in force, or None."""
        self.is_batched_reader = options["batched"]
        self.num_epochs = options["num_epochs"]
        self.dataset = self.setup.dataset
        """The `penstock.Dataset` that is read."""
        self.cache = options["cache"]
        self.stopped = False
        self.lock = threading.RLock()
        """Held around every step: several threads may call `next`, and each row goes to one of them."""
        self._unpack = _unpacker(self.setup)
        self._leave()

    def _leave(self) -> None:
        """Forget the stream, and with it rows of its last delivery that were not taken."""
        self._stream: ReaderStream | None = None
        self._delivery: Delivery[Batch] | None = None
        self._rows: Iterator[Any] = iter(())
        self._taken = 0
        """Items of the delivery that were returned by `next`."""

    # -- iteration ------------------------------------------------------------------------------------------------

    @property
    def batched_output(self) -> bool:
        """Whether an item is a batch of rows."""
        return self.is_batched_reader

    @property
    def last_row_consumed(self) -> bool:
        """Whether the end of the pass was reached, and StopIteration raised."""
        return self._stream is not None and self._stream.is_over

    @property
    def has_begun(self) -> bool:
        """Whether something of the current pass was read."""
        with self.lock:
            place = self.loader.place()
            is_inside = self.loader.pass_of(self.loader.next_pass_after(place)) != self.loader.pass_of(place)
            return is_inside or (self._stream is not None and not self._stream.is_over)

    def __iter__(self) -> Reader:
        return self

    def __next__(self) -> Any:
        with self.lock:
            for row in self._rows:
                self._taken += 1
                return row
            return self._next_delivery()

    next = __next__

    def _next_delivery(self) -> Any:
        if self.stopped:
            raise LoaderClosed("Trying to read a sample after the reader was stopped; make another one")
        if self.last_row_consumed:
            raise StopIteration
        self._acknowledge()
        stream = self.deliveries() if self._stream is None else self._stream
        self._delivery, self._taken = stream.take(), 0
        if self._delivery is None:
            stream.received(stream.end)
            raise StopIteration
        self._rows = self._unpack(self._delivery)
        return self.__next__()

    def _acknowledge(self) -> None:
        """Acknowledge the rows that were returned by `next`."""
        with self.lock:
            if self._delivery is not None and self._stream is not None:
                self._stream.received(place_after(self.setup, self._delivery, self._taken))

    def __bool__(self) -> bool:
        return True  # also for an endless reader, which has no length

    def __len__(self) -> int:
        """Return the rows, or batches, left in this pass; includes those that a filter on delivery will leave out."""
        with self.lock:
            left = 0 if self.last_row_consumed else self.loader.batches_left
        if left is None:
            raise TypeError("a reader with num_epochs=None has no length")
        return left

    @property
    def valid(self) -> Any:
        """Whether the last row is not padding (`remainder="pad"`); for batches a mask, or True for all."""
        mask = None if self._delivery is None else self._delivery.batch.get(MASK)
        if mask is None:
            return True
        return mask if self.is_batched_reader else bool(mask[max(0, self._taken - 1)])

    def reset(self) -> None:
        """Begin the next pass of `num_epochs` epochs, even if this one is not finished."""
        if self.stopped:
            raise LoaderClosed("the reader was stopped; make another one")
        with self.lock:
            self.loader.next_pass()
            self._leave()

    # -- for loaders that take whole deliveries ---------------------------------------------------------------------

    def deliveries(self) -> ReaderStream:
        """Return the deliveries of what is left of this pass, for code that takes them apart itself.

        Begins behind what was received, by `next` or from an earlier stream, which ends. Deliveries without rows are
        left out. Use `place_after` for what to acknowledge. At the end of a pass, until `reset`, there are none.
        """
        with self.lock:
            if self._stream is None or not self._stream.is_over:
                place = self.loader.place()
                self._leave()
                self._stream = ReaderStream(self.loader.stream(start=place), self.setup)
                self._stream.before_state(self._acknowledge)
            return self._stream

    def pause(self) -> None:
        """End the threads and keep the place: what was read ahead is dropped, and read again by the next iteration."""
        with self.lock:
            if not self.stopped and not self.last_row_consumed:
                self.loader.go_to(self.loader.place())
                self._leave()

    def read_as(self, setup: ReaderSetup) -> None:
        """Continue with another setup of the same rows: from the same place if the items are the same.

        With other items or another order it begins at the start of the current pass. Raises BudgetError, and changes
        nothing, if the batches of the setup do not fit into the memory.
        """
        with self.lock:
            loader, before = setup.make_loader(self.loader.order.seed), self.loader
            if setup.items is self.setup.items:
                loader.load_state_dict(before.state_dict())
            else:
                loader.go_to(loader.place_at(before.pass_number))
            is_over = self.last_row_consumed
            before.close()
            self.setup, self.loader = setup, loader
            if not is_over:
                self._leave()

    # -- state ----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the place of this reader as small JSON; the same on every shard at the same step."""
        if self.setup.is_late and self.loader.world > 1:
            raise NotImplementedError(
                "with exact=False the shards are not at the same place after as many rows, so that the state of one "
                "does not fit the others; use exact=True, or a loader of penstock.open(...).where(..., exact=False)"
            )
        with self.lock:
            if self._stream is not None and self._stream.no_state is not None and not self._stream.is_over:
                raise NotImplementedError(self._stream.no_state)
            return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where a state was taken, on any number of shards; with seed=None with the state's seed."""
        with self.lock:
            seed = State.from_json(state).order.seed
            if self.setup.drawn is not None and seed != self.loader.order.seed:
                other = self.setup.make_loader(seed)
                other.load_state_dict(state)  # before anything is given up: the state may be refused
                self.loader.close()
                self.loader = other
            else:
                self.loader.load_state_dict(state)
            self._leave()

    # -- the end --------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """End the threads or processes; the reader cannot be used again."""
        self.stopped = True
        self._rows = iter(())
        self.loader.close()

    def join(self) -> None:
        """Return at once: `stop` has already waited."""

    def cleanup_cache(self) -> None:
        """Delete what the cache holds if it was made for this reader only; a failure is a warning."""
        cleanup = getattr(self.cache, "cleanup", None)
        if cleanup is None:
            return
        try:
            cleanup()
        except OSError as error:
            warnings.warn(f"the cache was not cleaned up: {error}", PenstockWarning, stacklevel=2)

    @property
    def diagnostics(self) -> dict[str, Any]:
        """Counters of the loader: rows, batches, seconds of each stage, and results that wait for the consumer.

        With the process pool also Petastorm's counters: an item is one result of the workers, a batch or up to 1,024
        rows; `items_consumed` were begun, `items_produced` are finished, `items_inprocess` are being made.
        """
        with self.lock:
            if not self.stopped:
                self._acknowledge()
            found = {**self.loader.stats(), "output_queue_size": self.loader.num_waiting()}
            if self._delivery is not None and not self.is_batched_reader and self._taken < self._delivery.num_rows:
                found |= {"rows": found["rows"] + self._taken, "batches": found["batches"] + 1}
        if self.setup.options["reader_pool_type"] == "process":
            building, produced = self.loader.num_building(), found["batches"] + found["output_queue_size"]
            found |= {
                "items_consumed": produced + building,
                "items_produced": produced,
                "items_inprocess": building,
                "zmq_copy_buffers": self.setup.options["zmq_copy_buffers"],
            }
        return found

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self.join()
        clean_up_after(error, self.cleanup_cache)


def _unpacker(setup: ReaderSetup) -> Callable[[Delivery[Batch]], Iterator[Any]]:
    """Return the function that takes a delivery apart into what the reader returns."""
    names, dtypes = tuple(setup.schema.fields), setup.batch_dtypes
    make = row_type(schema_name(setup.schema), names)
    if setup.ngram is not None:
        types = setup.step_types
        if setup.options["batched"]:
            return lambda found: iter([window_columns(found.batch, found.origin.windows, types, dtypes)])
        return lambda found: windows_of(found.batch, found.origin.windows, types)
    if setup.options["batched"]:
        return lambda found: iter([columns_of(found.batch, names, make, dtypes)])
    return lambda found: rows_of(found.batch, names, make)
