"""Functions that the tests of `map_files` send to workers; at the top level of a module, so that pickle finds them."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path


def double(source: str, target: str) -> None:
    """Write the input twice."""
    text = Path(source).read_bytes()
    Path(target).write_bytes(text + text)


def refuse_odd(source: str, target: str) -> None:
    """Fail for files whose number is odd, after having begun to write."""
    Path(target).write_text("half")
    if int(Path(source).stem) % 2:
        raise ValueError(f"{Path(source).name} is odd\nand that is that")
    double(source, target)


def leave_odd(source: str, target: str) -> None:
    """Leave the program for files whose number is odd."""
    if int(Path(source).stem) % 2:
        sys.exit(3)
    double(source, target)


def raise_interrupt(source: str, target: str) -> None:
    """Raise what Ctrl-C raises."""
    raise KeyboardInterrupt("from the function")


def end_at_once(source: str, target: str) -> None:
    """End the process without a word."""
    os._exit(1)


def fail_once(source: str, target: str) -> None:
    """Fail at the first attempt at every file; remembers beside the input."""
    mark = Path(source).with_suffix(".tried")
    if not mark.exists():
        mark.touch()
        raise OSError("the store says: slow down")
    double(source, target)


def die_once(source: str, target: str) -> None:
    """Kill the worker in the middle of writing, at the first attempt at file 3."""
    mark = Path(source).with_suffix(".tried")
    Path(target).write_text("half")
    if Path(source).stem == "3" and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    double(source, target)


def wait_to_be_killed(source: str, target: str) -> None:
    """As `die_once`, but somebody else does the killing: says its pid and waits."""
    mark = Path(source).with_suffix(".pid")
    Path(target).write_text("half")
    if Path(source).stem == "3" and not mark.exists():
        made = mark.with_suffix(".writing")
        made.write_text(str(os.getpid()))
        os.replace(made, mark)
        time.sleep(120)
    double(source, target)


def wait_to_go_on(source: str, target: str) -> None:
    """Begin to write, make a file beside it, say so, and wait until somebody lets it go on."""
    Path(target).write_text("half")
    Path(f"{target}.log").write_text("pass 1")
    Path(source).with_suffix(".begun").touch()
    while not Path(source).with_suffix(".go").exists():
        time.sleep(0.02)
    double(source, target)


def with_extras(source: str, target: str) -> None:
    """Make a file and a folder beside the output, as encoders leave their logs; then fail for odd numbers."""
    Path(f"{target}.log").write_text("pass 1")
    os.mkdir(f"{target}.parts")
    refuse_odd(source, target)


def nothing(source: str, target: str) -> None:
    """Return without an output."""


def folder(source: str, target: str) -> None:
    """Make a folder with two files."""
    os.mkdir(target)
    shutil.copy(source, target)
    Path(target, "more").write_text("more")


def in_processes(source: str, target: str) -> None:
    """Start processes of its own, as a function that decodes a shard in parallel does."""
    import multiprocessing

    with multiprocessing.get_context("spawn").Pool(1) as pool:
        Path(target).write_text(str(sum(pool.map(abs, [-1, -2, -3]))))
