"""`petastorm.reader`: `make_reader`, `make_batch_reader` and the `Reader` that both return.

A reader is a loader of the engine whose items are rows, whole row groups or windows of rows, and hands them out as
Petastorm does: named tuples of values, or of columns. It adds what Petastorm never had: a length, a state that resumes
exactly, a reset at any moment. Reading, decoding and ordering are the engine's; this file only says what is asked for.
"""

from __future__ import annotations

import threading
import warnings
from typing import TYPE_CHECKING, Any

from penstock.engine.stages import MASK
from penstock.errors import LoaderClosed, PenstockWarning
from penstock.petastorm import _ask
from penstock.petastorm._columns import columns_of, row_type, rows_of, windows_of
from penstock.petastorm.cache import LOCAL_DISK_CACHE, MEMORY_CACHE, NULL_CACHE, clean_up_after, make_cache
from penstock.petastorm.errors import NoDataAvailableError
from penstock.petastorm.fs_utils import normalize_dataset_url_or_urls
from penstock.plan.state import State
from penstock.schema.unischema import schema_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType

    from penstock.engine.build import Built
    from penstock.engine.loader import Loader
    from penstock.plan import EpochPlan

__all__ = [
    "LOCAL_DISK_CACHE",
    "MEMORY_CACHE",
    "NULL_CACHE",
    "Reader",
    "make_batch_reader",
    "make_reader",
    "normalize_dataset_url_or_urls",
]


def make_reader(  # noqa: PLR0913 -- Petastorm's signature
    dataset_url: Any,
    schema_fields: Any = None,
    reader_pool_type: str = "thread",
    workers_count: int = 10,
    pyarrow_serialize: bool = False,
    results_queue_size: int = 50,
    seed: int | None = None,
    shuffle_rows: bool = False,
    shuffle_row_groups: bool = True,
    shuffle_row_drop_partitions: int = 1,
    predicate: Any = None,
    rowgroup_selector: Any = None,
    num_epochs: int | None = 1,
    cur_shard: int | None = None,
    shard_count: int | None = None,
    shard_seed: int | None = None,
    cache_type: str | None = NULL_CACHE,
    cache_location: str | None = None,
    cache_size_limit: int | None = None,
    cache_row_size_estimate: int | None = None,
    cache_extra_settings: Mapping[str, Any] | None = None,
    hdfs_driver: str = "libhdfs3",
    transform_spec: Any = None,
    filters: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    zmq_copy_buffers: bool = True,
    filesystem: Any = None,
    convert_early_to_numpy: bool = False,
    *,
    remainder: str = "uneven",
    exact: bool = True,
    memory_bytes: int | None = None,
    lanes: int | None = None,
    format: str | None = None,
) -> Reader:
    """Return a reader of rows: each a named tuple of decoded values, or a dict of them with an `NGram`.

    All parameters are Petastorm's; docs/migrate_from_petastorm.md tells what they do here.

    Args:
        dataset_url: URL or path of a dataset, or a list of them.
        schema_fields: Fields or regular expressions over whole names, or an `NGram`; None for all.
        reader_pool_type: "thread", "process" or "dummy" (everything in the calling thread).
        workers_count: Most threads or processes; never more than this process has cores.
        pyarrow_serialize: Without effect.
        results_queue_size: Most results that wait for the consumer; memory is bounded in any case.
        seed: Picks the order; None draws one, the same on all shards.
        shuffle_rows: Rows really shuffled, within a window of memory.
        shuffle_row_groups: Row groups in a new order each epoch, rows as stored.
        shuffle_row_drop_partitions: Cut each row group into that many stretches, shuffled on their own.
        predicate: Rows to keep; see `penstock.predicates`.
        rowgroup_selector: Row groups to keep, by an index.
        num_epochs: Epochs; None for ever.
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
    del convert_early_to_numpy
    _warn_without_effect(
        pyarrow_serialize=pyarrow_serialize,
        zmq_copy_buffers=not zmq_copy_buffers,
        hdfs_driver=hdfs_driver != "libhdfs3",
    )
    cache = make_cache(cache_type, cache_location, cache_size_limit, cache_row_size_estimate, cache_extra_settings)
    return Reader._asked(_ask.Asked(
        normalize_dataset_url_or_urls(dataset_url), False, schema_fields, reader_pool_type, workers_count,
        results_queue_size, _seed(seed, shard_seed), shuffle_rows, shuffle_row_groups, shuffle_row_drop_partitions,
        predicate, rowgroup_selector, num_epochs, cur_shard, shard_count, transform_spec, filters, storage_options,
        filesystem, cache, remainder, exact, memory_bytes, lanes, zmq_copy_buffers=zmq_copy_buffers,
        format=format,
    ))  # fmt: skip


def make_batch_reader(  # noqa: PLR0913, D417 -- Petastorm's signature; most arguments are those of make_reader
    dataset_url_or_urls: Any,
    schema_fields: Any = None,
    reader_pool_type: str = "thread",
    workers_count: int = 10,
    results_queue_size: int = 50,
    seed: int | None = None,
    shuffle_rows: bool = False,
    shuffle_row_groups: bool = True,
    shuffle_row_drop_partitions: int = 1,
    predicate: Any = None,
    rowgroup_selector: Any = None,
    num_epochs: int | None = 1,
    cur_shard: int | None = None,
    shard_count: int | None = None,
    shard_seed: int | None = None,
    cache_type: str | None = NULL_CACHE,
    cache_location: str | None = None,
    cache_size_limit: int | None = None,
    cache_row_size_estimate: int | None = None,
    cache_extra_settings: Mapping[str, Any] | None = None,
    hdfs_driver: str = "libhdfs3",
    transform_spec: Any = None,
    filters: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    zmq_copy_buffers: bool = True,
    filesystem: Any = None,
    convert_early_to_numpy: bool = False,
    *,
    remainder: str = "uneven",
    exact: bool = True,
    memory_bytes: int | None = None,
    lanes: int | None = None,
    decode: bool = False,
    format: str | None = None,
) -> Reader:
    """Return a reader of batches: each a named tuple of columns, the rows of one row group.

    Parameters as those of `make_reader`, and:

    Args:
        dataset_url_or_urls: URL or path of a dataset, or a list of them.
        decode: Decode the cells of datasets that store encoded ones (Petastorm's); otherwise they come as bytes.
        transform_spec: Its function takes and returns a pandas DataFrame, and may change the number of rows.
        shuffle_rows: Batches hold rows from many row groups, as many as a row group has on average.
    """
    del convert_early_to_numpy
    _warn_without_effect(zmq_copy_buffers=not zmq_copy_buffers, hdfs_driver=hdfs_driver != "libhdfs3")
    cache = make_cache(cache_type, cache_location, cache_size_limit, cache_row_size_estimate, cache_extra_settings)
    return Reader._asked(_ask.Asked(
        normalize_dataset_url_or_urls(dataset_url_or_urls), True, schema_fields, reader_pool_type, workers_count,
        results_queue_size, _seed(seed, shard_seed), shuffle_rows, shuffle_row_groups, shuffle_row_drop_partitions,
        predicate, rowgroup_selector, num_epochs, cur_shard, shard_count, transform_spec, filters, storage_options,
        filesystem, cache, remainder, exact, memory_bytes, lanes, decode, zmq_copy_buffers, format,
    ))  # fmt: skip


class Reader:
    """Iterates rows, or batches, of a dataset as named tuples; its own iterator, as in Petastorm.

    `next` after `stop` is a RuntimeError; after the last row StopIteration until `reset`, which may come at any moment
    and goes on with the next pass. A `for` loop after `break` continues where it was.
    """

    def __init__(  # noqa: PLR0913 -- Petastorm's signature
        self,
        pyarrow_filesystem: Any = None,
        dataset_path: Any = None,
        schema_fields: Any = None,
        seed: int | None = None,
        shuffle_rows: bool = False,
        shuffle_row_groups: bool = True,
        shuffle_row_drop_partitions: int = 1,
        predicate: Any = None,
        rowgroup_selector: Any = None,
        reader_pool: Any = None,
        num_epochs: int | None = 1,
        cur_shard: int | None = None,
        shard_count: int | None = None,
        cache: Any = None,
        worker_class: Any = None,
        transform_spec: Any = None,
        is_batched_reader: bool = False,
        filters: Any = None,
        shard_seed: int | None = None,
        convert_early_to_numpy: bool = False,
        *,
        dataset_url: Any = None,
        storage_options: Mapping[str, Any] | None = None,
        remainder: str = "uneven",
    ) -> None:
        """Open a dataset: `Reader(url, ...)` or `Reader(filesystem, path, ...)`; see `make_reader`."""
        del worker_class, convert_early_to_numpy
        filesystem, source = pyarrow_filesystem, dataset_path
        if isinstance(pyarrow_filesystem, str | list):
            if dataset_path is not None:  # Reader(url, fields): the second argument was the fields
                schema_fields = dataset_path if schema_fields is None else schema_fields
            filesystem, source = None, pyarrow_filesystem
        self._begin(_ask.Asked(
            normalize_dataset_url_or_urls(dataset_url or source), is_batched_reader, schema_fields,
            *_ask.pool_of(reader_pool), _seed(seed, shard_seed), shuffle_rows, shuffle_row_groups,
            shuffle_row_drop_partitions, predicate, rowgroup_selector, num_epochs, cur_shard, shard_count,
            transform_spec, filters, storage_options, filesystem, cache, remainder,
            zmq_copy_buffers=getattr(reader_pool, "zmq_copy_buffers", True),
        ))  # fmt: skip

    @classmethod
    def _asked(cls, asked: _ask.Asked) -> Reader:
        reader = cls.__new__(cls)
        reader._begin(asked)
        return reader

    def _begin(self, asked: _ask.Asked) -> None:
        self._job = _ask.open_job(asked)
        self.schema = self._job.schema
        """Unischema of what is returned."""
        self.ngram = self._job.ngram
        """The `NGram` in force, or None."""
        self.is_batched_reader = asked.batched
        self.num_epochs = asked.num_epochs
        self.dataset = self._job.dataset
        """The `penstock.Dataset` that is read."""
        self.cache = asked.cache
        self.last_row_consumed = False
        """Whether the last row of the pass was asked for, and StopIteration raised."""
        self.stopped = False
        self._lock = threading.RLock()
        """Held around every step: several threads may call `next`, and each row goes to one of them."""
        self._loader: Loader = self._job.loader(None)
        self._give: Callable[[Built], Iterator[Any]] = _giver(self._job)
        self._start_pass()

    def _start_pass(self) -> None:
        self._pass: Any = None
        self._rows: Iterator[Any] = iter(())
        self._plan: EpochPlan | None = None
        self._before = self._taken = 0
        self._kept: Any = None
        self._mask: Any = None
        self._barren = 0
        self._settle: Callable[[], None] | None = None
        """Asks whoever hands whole batches over how far the consumer is, and sets the place."""
        self._in_graph = False
        """Whether a TensorFlow graph takes whole batches, so that the consumer's place inside them is not known."""
        self.last_row_consumed = False

    # -- iteration ------------------------------------------------------------------------------------------------

    @property
    def batched_output(self) -> bool:
        """Whether a step is a batch of rows."""
        return self.is_batched_reader

    def __iter__(self) -> Reader:
        return self

    def __next__(self) -> Any:
        with self._lock:
            for row in self._rows:
                self._taken += 1
                return row
            return self._next_batch()

    next = __next__

    def _next_batch(self) -> Any:
        while True:
            if self.stopped:
                raise LoaderClosed("Trying to read a sample after the reader was stopped; make another one")
            if self.last_row_consumed:
                raise StopIteration
            if self._pass is None:
                self._pass = iter(self._loader)
            try:
                built = self._pass.take()
            except StopIteration:
                self._start_pass()
                self.last_row_consumed = True
                raise
            self._plan, self._taken, self._kept = built.work.plan, 0, built.kept
            self._before = self._loader.steps_of(built.first)
            self._mask = built.batch.get(MASK)
            if not built.num_rows and self.is_batched_reader:
                self._left_out(built)  # a filter on delivery, or a transform, has left nothing of it
                continue
            self._rows = self._give(built)
            self._job.check(built)  # last: it may warn, and a warning be made an error
            for row in self._rows:
                self._taken = 1
                self._barren = 0
                return row
            self._left_out(built)

    def _left_out(self, built: Built) -> None:
        """Go on behind a batch of which nothing is left; an endless reader that never gives anything is an error."""
        self._before = self._loader.steps_of(built.end)
        self._barren += built.end - built.first
        if self.num_epochs is None and self._barren > 2 * built.work.plan.num_items:
            raise NoDataAvailableError("a whole epoch gave no row: the predicate or the transform leaves nothing")

    def _note(self) -> None:
        """Tell the loader how far the consumer is."""
        if self._settle is not None:
            self._settle()
        if self._plan is None:
            return
        taken = self._taken
        if self._kept is not None and taken and not self.batched_output:  # some rows before it were left out
            taken = int(self._kept[taken - 1]) + 1
        self._loader.received(self._plan, self._before + taken)

    def __bool__(self) -> bool:
        return True  # whatever its length, which an endless one does not have

    def __len__(self) -> int:
        """Return the rows, or batches, left in this pass; those that a filter on delivery leaves out count too."""
        with self._lock:
            self._note()
            return 0 if self.last_row_consumed else len(self._loader)

    @property
    def valid(self) -> Any:
        """Whether the row that came last is no padding (`remainder="pad"`); for batches a mask, or True for all."""
        if self._mask is None:
            return True
        return self._mask if self.is_batched_reader else bool(self._mask[max(0, self._taken - 1)])

    def reset(self) -> None:
        """Begin the next pass of `num_epochs` epochs, whether or not this one is at its end."""
        if self.stopped:
            raise LoaderClosed("the reader was stopped; make another one")
        with self._lock:
            self._note()
            self._loader.next_pass()
            self._start_pass()

    # -- state ----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the place of this reader as small JSON; the same on every shard at the same step."""
        if self._job.is_late and self._loader.world > 1:
            raise NotImplementedError(
                "with exact=False the shards are not at the same place after as many rows, so that the state of one "
                "does not fit the others; use exact=True, or a loader of penstock.open(...).where(..., exact=False)"
            )
        with self._lock:
            if self._in_graph:
                raise NotImplementedError(
                    "a TensorFlow graph takes whole batches from this reader, so the row that its session has reached "
                    "is not known; take the state before or after a pass, iterate make_petastorm_dataset eagerly, or "
                    "use tf_tensors"
                )
            self._note()
            return self._loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on exactly where a state was taken, on any number of shards; with seed=None its seed is taken over."""
        with self._lock:
            seed = State.from_json(state).order.seed
            if self._job.drew_seed and seed != self._loader.order.seed:
                other = self._job.loader(seed)
                other.load_state_dict(state)  # before anything is given up: the state may be refused
                self._loader.close()
                self._loader = other
            else:
                self._loader.load_state_dict(state)
            self._start_pass()

    # -- the end --------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """End the threads or processes; the reader cannot be used again."""
        self.stopped = True
        self._rows = iter(())
        self._loader.close()

    def join(self) -> None:
        """Return: `stop` has waited already."""

    def cleanup_cache(self) -> None:
        """Give back what the cache holds, where it was made for this reader only; a failure is a warning."""
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
        found = {**self._loader.stats(), "output_queue_size": self._loader.num_waiting()}
        if self._job.asked.pool == "process":
            building, produced = self._loader.num_building(), found["batches"] + found["output_queue_size"]
            found |= {
                "items_consumed": produced + building,
                "items_produced": produced,
                "items_inprocess": building,
                "zmq_copy_buffers": self._job.asked.zmq_copy_buffers,
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


def _giver(job: _ask.Job) -> Callable[[Built], Iterator[Any]]:
    """Return the function that takes a built batch apart into what the reader gives."""
    names = tuple(job.schema.fields)
    make = row_type(schema_name(job.schema), names)
    if job.ngram is not None:
        types = job.step_types
        if job.batched:
            return lambda built: iter([_ask.window_columns(built, types, job.batch_dtypes)])
        return lambda built: windows_of(built.batch, built.fold, types)  # type: ignore[arg-type]
    if job.batched:
        return lambda built: iter([columns_of(built.batch, names, make, job.batch_dtypes)])
    return lambda built: rows_of(built.batch, names, make)


def _seed(seed: int | None, shard_seed: int | None) -> int | None:
    if shard_seed is not None:
        warnings.warn(
            "shard_seed was deprecated and will be removed in future versions. Use seed", UserWarning, stacklevel=3
        )
    return seed if shard_seed is None else shard_seed


_WHY = {
    "pyarrow_serialize": "pyarrow_serialize has no effect: results of processes come through shared memory",
    "zmq_copy_buffers": "zmq_copy_buffers has no effect: results of processes come through shared memory, not ZeroMQ",
    "hdfs_driver": "hdfs_driver has no effect: pyarrow has one driver only, libhdfs",
}


def _warn_without_effect(**given: bool) -> None:
    for name, was_given in given.items():
        if was_given:
            warnings.warn(_WHY[name], PenstockWarning, stacklevel=3)
