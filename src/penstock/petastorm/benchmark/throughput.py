"""Rows a second that a reader gives, with the memory and processor time they take.

Opens a dataset by `make_reader`, warms it up and times a number of rows: of the reader itself, or of a
`tf.data.Dataset` over it. TensorFlow is imported for the latter only, and nothing is written.
"""

from __future__ import annotations

import time
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.bench.measure import peak_bytes
from penstock.petastorm.tf_utils import make_petastorm_dataset, tensorflow_module
from penstock.petastorm.utils import run_in_subprocess

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["BenchmarkResult", "MemoryInfo", "ReadMethod", "WorkerPoolType", "reader_throughput"]


class WorkerPoolType(Enum):
    """Where rows are decoded: what `make_reader` calls reader_pool_type."""

    THREAD = "thread"
    PROCESS = "process"
    NONE = "dummy"

    def __str__(self) -> str:
        return self.value


class ReadMethod(Enum):
    """How rows are read: by iterating over the reader, or over a `tf.data.Dataset` of it."""

    TF = "tf"
    PYTHON = "python"

    def __str__(self) -> str:
        return self.value


class MemoryInfo(NamedTuple):
    """Memory of the process."""

    rss: int
    """Bytes in memory; the peak so far where the system reports only that, 0 where it reports nothing."""


class BenchmarkResult(NamedTuple):
    """What was measured."""

    time_mean: float
    """Seconds a row (or batch)."""
    samples_per_second: float
    """Rows (or batches) a second."""
    memory_info: MemoryInfo
    """At the end."""
    cpu: float
    """Percent of one core that the process used while measuring, its threads included."""


def reader_throughput(  # noqa: PLR0913 - Petastorm's signature
    dataset_url: str,
    field_regex: Sequence[str] | None = None,
    warmup_cycles_count: int = 300,
    measure_cycles_count: int = 1000,
    pool_type: WorkerPoolType = WorkerPoolType.THREAD,
    loaders_count: int = 3,
    profile_threads: bool = False,  # noqa: ARG001
    read_method: ReadMethod = ReadMethod.PYTHON,
    shuffling_queue_size: int = 500,
    min_after_dequeue: int = 400,  # noqa: ARG001
    reader_extra_args: Mapping[str, Any] | None = None,
    spawn_new_process: bool = True,
) -> BenchmarkResult:
    """Return how fast `make_reader` gives the rows of a dataset, read over and over.

    `warmup_cycles_count` rows are taken first and not timed, then `measure_cycles_count` are. By default in a new
    process, so that the memory is the reader's. `field_regex` chooses columns, `loaders_count` the workers,
    `reader_extra_args` are further keywords of `make_reader`. With `ReadMethod.TF` rows come as tensors out of
    `make_petastorm_dataset(reader).shuffle(shuffling_queue_size)`, without the shuffling where that is 0; the queue
    fills up before the first row. The other arguments are Petastorm's and without effect.

    Raises:
        ImportError: `ReadMethod.TF` where TensorFlow is not installed.
    """
    if warmup_cycles_count < 0 or measure_cycles_count < 1:
        raise ValueError(f"cannot measure {measure_cycles_count} rows after {warmup_cycles_count} rows of warm-up")
    options = {
        "schema_fields": list(field_regex) if field_regex else None,
        "reader_pool_type": WorkerPoolType(pool_type).value,
        "workers_count": loaders_count,
        "num_epochs": None,
    } | dict(reader_extra_args or {})
    queue = shuffling_queue_size if ReadMethod(read_method) is ReadMethod.TF else None
    arguments = (dataset_url, options, warmup_cycles_count, measure_cycles_count, queue)
    return run_in_subprocess(_measure, *arguments) if spawn_new_process else _measure(*arguments)


def _measure(
    dataset_url: str, options: dict[str, Any], num_warmup: int, num_measured: int, queue: int | None
) -> BenchmarkResult:
    from penstock.petastorm.reader import make_reader

    if queue is not None:
        tensorflow_module()
    with make_reader(dataset_url, **options) as reader:
        rows: Any = reader
        if queue is not None:
            dataset = make_petastorm_dataset(reader)
            rows = iter(dataset.shuffle(queue) if queue else dataset)
        for _ in range(num_warmup):
            next(rows)
        started, used = time.perf_counter(), time.process_time()
        for _ in range(num_measured):
            next(rows)
        wall_s, cpu_s = time.perf_counter() - started, time.process_time() - used
    return BenchmarkResult(
        wall_s / num_measured, num_measured / wall_s, MemoryInfo(_memory_bytes()), 100 * cpu_s / wall_s
    )


def _memory_bytes() -> int:
    try:
        import psutil
    except ImportError:
        return peak_bytes() or 0
    return int(psutil.Process().memory_info().rss)
