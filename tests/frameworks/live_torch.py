"""A program that lives through one hard moment of a torch loader; `test_torch_liveness` looks at what it leaves.

`python -m tests.frameworks.live_torch CASE FORM DATA`. The form is `cpu`, `fed` (through the thread of a feed) or
`workers` (a DataLoader with two of them). Holds no tests itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time

from torch.utils.data import DataLoader

from penstock.errors import LoaderClosed
from penstock.torch import Batches, loader

SLOW_S = 0.3


def slow(batch):
    time.sleep(SLOW_S)
    return batch


def make(form, data, **options):
    """A loader of 40 batches in one of the forms."""
    options = {"batch_size": 10, "shuffle": True, "epochs": None, **options}
    if form == "workers":
        return DataLoader(Batches(data, **options), batch_size=None, num_workers=2)
    return loader(data, device="meta" if form == "fed" else None, **options)


def threads():
    return [t.name for t in threading.enumerate() if t.name.startswith("penstock")]


def leave(form, data):
    """Leave without closing, in mid-epoch, while transforms run."""
    running = iter(make(form, data, transform=slow))
    next(running)
    print("LEAVE", time.time(), flush=True)


def raising(form, data):
    """Leave by an exception in the user's code."""
    for _ in make(form, data):
        print("LEAVE", time.time(), flush=True)
        raise SystemExit(3)


def interrupted(form, data):
    """Ctrl-C while a batch is awaited."""
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    batches = make(form, data, transform=slow)
    try:
        for _ in batches:
            pass
    except KeyboardInterrupt:
        print("LEAVE", time.time(), flush=True)


def broken_often(form, data):
    """Break out of many loops; nothing is left after any of them."""
    batches = make(form, data)
    for _ in range(10 if form != "workers" else 3):
        for _ in batches:
            break
        assert not threads(), threads()
    print("LEAVE", time.time(), flush=True)


def forked(form, data):
    """A fork in mid-epoch ends the child's iterator and not the parent's."""
    batches = make(form, data)
    running = iter(batches)
    next(running)
    child = os.fork()
    if not child:
        with contextlib.suppress(LoaderClosed):
            for _ in range(1000):
                next(running)
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    next(running)
    print("LEAVE", time.time(), flush=True)


CASES = {f.__name__: f for f in (leave, raising, interrupted, broken_often, forked)}

if __name__ == "__main__":
    CASES[sys.argv[1]](*sys.argv[2:])
