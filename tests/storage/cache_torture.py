"""Eight processes on one cache folder, killed at random, as a program: FOLDER EVICTION SECONDS.

Every process fetches random keys, whose right bytes it can compute, and ends with code 7 when it sees wrong ones.
Prints the number of kills, the most bytes seen on disk, and the exit codes of processes that ended by themselves. Run
by itself, without threads, so that processes can be forked quickly.
"""

import contextlib
import os
import random
import signal
import sys
import time
import warnings
from pathlib import Path

import pyarrow as pa

from penstock.storage import cache_files
from penstock.storage.cache_files import UsageCounter
from penstock.storage.disk_cache import DiskCache

PROCESSES = 8
KEYS = 60
LARGEST = 60_000
LIMIT = 40 * 16384


def key(number: int) -> str:
    return f"{number << 120 | number:032x}"


def right(number: int) -> pa.Buffer:
    """Return the bytes of a key."""
    return pa.py_buffer(random.Random(number).randbytes(random.Random(-number - 1).randrange(LARGEST)))


def work(folder: Path, eviction: str, seed: int) -> None:
    warnings.simplefilter("error")
    rng = random.Random(seed)
    cache = DiskCache(folder, LIMIT, eviction=eviction)
    while True:
        number = rng.randrange(KEYS)
        [data] = cache.fetch([key(number)], lambda _: [right(number)])  # noqa: B023 - called at once
        if data != right(number):
            os._exit(7)
        if rng.random() < 0.02:
            cache = DiskCache(folder, LIMIT, eviction=eviction)
        elif rng.random() < 0.003:
            cache.clear_own()


def start(folder: Path, eviction: str, seed: int) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, Arrow's: the child does not use them
        pid = os.fork()
    if pid == 0:
        try:
            work(folder, eviction, seed)
        finally:
            sys.excepthook(*sys.exc_info())
            os._exit(8)
    return pid


def on_disk(folder: Path) -> int:
    """Bytes of all entries as the cache counts them, looked at while nobody deletes any."""
    with (
        contextlib.suppress(FileNotFoundError),
        UsageCounter(str(folder / cache_files.FOLDER / "usage")).hold(5) as account,
    ):
        assert account is not None
        return sum(entry.cost for entry in cache_files.entries(str(folder / cache_files.FOLDER)))
    return 0  # there is no folder yet, or no more


def end(pid: int) -> int:
    """Kill a process and return its exit code: -9 unless it had ended by itself."""
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main(folder: Path, eviction: str, seconds: float) -> None:
    rng = random.Random(0)
    workers = [start(folder, eviction, seed) for seed in range(PROCESSES)]
    codes, most = [], 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(rng.random() * 0.1)
        most = max(most, on_disk(folder))
        victim = rng.randrange(PROCESSES)
        codes.append(end(workers[victim]))
        workers[victim] = start(folder, eviction, PROCESSES + len(codes))
    codes += [end(pid) for pid in workers]
    print(len(codes), most, *(code for code in codes if code != -signal.SIGKILL))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
