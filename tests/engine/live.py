"""A program that lives through one hard moment of a loader; `test_liveness` runs it and looks at what it leaves.

`python -m tests.engine.live CASE DATA POOL [COUNT]`. A case that ends by itself checks its own threads, processes,
descriptors and mappings after every repetition. A case that leaves without closing prints `LEAVE` and the time, so that
the caller can tell how long the exit took. Holds no tests itself.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import signal
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

import penstock
from penstock.errors import LoaderClosed, TransformError, WorkerDied

SLOW_S = 0.3
"""How long a slow transform takes: the longest running call that an exit may have to wait for."""
_HELPERS = ("resource_tracker", "forkserver")


def plain(batch):
    return batch


def slow(batch):
    time.sleep(SLOW_S)
    return batch


def fails_late(batch):
    if (batch["id"] > 100).any():
        raise ValueError("the transform has had enough")
    return batch


def make(data, pool, transform=plain, **more):
    """A loader that never ends, with two workers."""
    options = {"batch_size": 8, "shuffle": True, "epochs": None, "workers": 2, **more}
    return penstock.open(data).loader(pool=pool, transform=transform, **options)


# -- what is left -----------------------------------------------------------------------------------------------------


_LIBRARIES = {"tasks": 2}
"""Arrow and its allocators start a thread or two when they need it; each round has two workers to leave behind."""


def children() -> list[int]:
    """Processes below this one, without multiprocessing's own helpers, which stay until the parent ends."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if not any(name in " ".join(child.cmdline()) for name in _HELPERS):
                found.append(child.pid)
    return found


def held() -> dict[str, int]:
    """Count what a loader could leave behind."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return {
        "threads": threading.active_count(),
        "tasks": len(os.listdir("/proc/self/task")),
        "children": len(children()),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "mappings": sum("memfd:penstock" in line for line in maps),
    }


def check_nothing_left(before: dict[str, int]) -> None:
    """Compare with what was held before; the kernel may take a moment to remove a task."""
    deadline = time.monotonic() + 0.5
    while more(after := held(), before) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not more(after, before), (before, after)


def more(after: dict[str, int], before: dict[str, int]) -> bool:
    return any(after[name] > before[name] + _LIBRARIES.get(name, 0) for name in before)


def repeated(moment):
    """Make a case of one that ends by itself: warm up, then repeat it and look at what is left each time."""

    def case(data, pool, count):
        moment(data, pool)
        gc.collect()
        gc.disable()  # nothing may wait for a collection of cycles
        before = held()
        for _ in range(count):
            moment(data, pool)
            check_nothing_left(before)

    return case


# -- moments that end by themselves -----------------------------------------------------------------------------------


@repeated
def early_break(data, pool):
    loader = make(data, pool)
    for number, _ in enumerate(loader):
        if number == 3:
            break
    assert len(next(iter(loader))["id"]) == 8, "a loader can be iterated again after break"


@repeated
def consumer_error(data, pool):
    def consume():
        for batch in make(data, pool):
            raise KeyError(len(batch["id"]))

    with contextlib.suppress(KeyError):
        consume()


@repeated
def transform_error(data, pool):
    loader = make(data, pool, fails_late, shuffle=False)
    seen = []
    with pytest.raises(TransformError, match=r"the transform has had enough.* row group"):
        seen.extend(loader)
    assert len(seen) == 12, "every batch before the error is delivered"


@repeated
def killed_worker(data, pool):
    loader = make(data, pool)
    batches = iter(loader)
    next(batches)
    os.kill(children()[0], signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(WorkerDied, match="SIGKILL"):
        for _ in batches:
            pass
    assert time.monotonic() - began < 5


@repeated
def close_while_waiting(data, pool):
    loader = make(data, pool, slow)
    closer = threading.Timer(0.05, loader.close)
    closer.start()
    with pytest.raises(LoaderClosed):
        for _ in loader:
            pass
    closer.join()


# -- moments that end the program -------------------------------------------------------------------------------------


def interrupted(data, pool, transform):
    """Iterate until somebody sends SIGINT."""
    loader = make(data, pool, transform)
    print("READY", flush=True)
    for _ in loader:
        pass


def leave() -> None:
    print("LEAVE", time.time(), flush=True)


class Knot:
    """Part of a reference cycle."""


def exit_in_cycle(data, pool, transform):
    knot = Knot()
    knot.me = knot
    knot.batches = iter(make(data, pool, transform))
    next(knot.batches)
    leave()


def exit_in_generator(data, pool, transform):
    def rows():
        for batch in make(data, pool, transform):
            yield from batch["id"]

    globals()["kept"] = rows()
    next(globals()["kept"])
    leave()


def exit_in_global(data, pool, transform):
    globals()["kept"] = iter(make(data, pool, transform))
    next(globals()["kept"])
    leave()


def exit_by_error(data, pool, transform):
    for _ in make(data, pool, transform):
        leave()
        raise SystemExit(0)


def wait_for_the_end(data, pool):
    """Print the processes of the pool and wait to be killed."""
    batches = iter(make(data, pool))
    next(batches)
    print("CHILDREN", *children(), flush=True)
    time.sleep(60)


def fork_with_loader(data, pool, count):
    """Fork in mid-epoch: the child may not go on, the parent may."""
    loader = make(data, pool, epochs=1)
    batches = iter(loader)
    seen = next(batches)["id"].tolist()
    for _ in range(count):
        pid = os.fork()
        if not pid:
            try:
                next(batches)
            except LoaderClosed:
                sys.exit(7)  # with all finalizers and exit functions of the interpreter
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        seen += next(batches)["id"].tolist()
    for batch in batches:
        seen += batch["id"].tolist()
    assert sorted(seen) == list(range(len(seen))), "the parent has lost rows"
    assert len(seen) == 400


def started_by(data, pool, method):
    """Read an epoch with processes started that way."""
    import multiprocessing

    multiprocessing.set_start_method(method)
    for _ in range(2):
        with make(data, pool, epochs=1) as loader:
            seen = [int(i) for batch in loader for i in batch["id"]]
            assert sorted(seen) == list(range(400))
    assert not children()


def main() -> None:
    faulthandler.enable()  # a caller out of patience sends SIGABRT, which prints where every thread is
    name, data, pool, *more = sys.argv[1:]
    more = [globals()[one] if one in globals() else int(one) if one.isdigit() else one for one in more]
    globals()[name](data, pool, *more)


if __name__ == "__main__":
    main()
