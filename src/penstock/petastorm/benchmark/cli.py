"""`petastorm-throughput.py`: rows a second of a dataset, from the command line.

Parses what Petastorm's command takes, calls `reader_throughput` and prints three numbers. Run it by
`python -m penstock.petastorm.benchmark.cli`.
"""

from __future__ import annotations

import argparse
import logging
import sys
from typing import TYPE_CHECKING

from penstock.petastorm.benchmark.throughput import ReadMethod, WorkerPoolType, reader_throughput
from penstock.petastorm.tools._command import command

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


@command("petastorm-throughput.py")
def main(args: Sequence[str] | None = None) -> None:
    """Measure the dataset that the command line names and print the result."""
    given = _parser().parse_args(args)
    logging.basicConfig(level=[logging.WARNING, logging.INFO, logging.DEBUG][min(given.verbose, 2)])
    queue = given.shuffling_queue_size
    result = reader_throughput(
        given.dataset_path,
        field_regex=given.field_regex,
        warmup_cycles_count=given.warmup_cycles,
        measure_cycles_count=given.measure_cycles,
        pool_type=given.pool_type,
        loaders_count=given.workers_count,
        profile_threads=given.profile_threads,
        read_method=given.read_method,
        shuffling_queue_size=queue,
        min_after_dequeue=int(queue * 0.8) if given.min_after_dequeue is None else given.min_after_dequeue,
    )
    sys.stdout.write(
        f"Average sample read rate: {result.samples_per_second:1.2f} samples/sec; "
        f"RAM {result.memory_info.rss / 2**20:1.2f} MB (rss); CPU {result.cpu:1.2f}%\n"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="petastorm-throughput.py", description="Measure how fast a dataset is read.")
    parser.add_argument("dataset_path", help="URL of the dataset, e.g. file:///data/set")
    parser.add_argument("--field-regex", nargs="+", metavar="R", help="columns to read: regular expressions")
    parser.add_argument("-w", "--workers-count", type=int, default=3, help="threads or processes")
    parser.add_argument("-p", "--pool-type", type=WorkerPoolType, default=WorkerPoolType.THREAD, choices=WorkerPoolType)
    parser.add_argument("-m", "--warmup-cycles", type=int, default=200, help="rows before the measurement")
    parser.add_argument("-n", "--measure-cycles", type=int, default=1000, help="rows of the measurement")
    parser.add_argument("--profile-threads", action="store_true", help="ignored")
    parser.add_argument("-d", "--read-method", type=ReadMethod, default=ReadMethod.PYTHON, choices=ReadMethod)
    parser.add_argument(
        "-q", "--shuffling-queue-size", type=int, default=500, help="for --read-method tf; 0: no shuffling"
    )
    parser.add_argument("--min-after-dequeue", type=int, help="ignored: tf.data keeps the queue full")
    parser.add_argument("-v", "--verbose", action="count", default=0, help="more log; -vv for even more")
    return parser


if __name__ == "__main__":
    main()
