"""Run cases in a child process that may crash, hang or take too much memory, and say which case did.

`run_cases("module:function", cases, folder)` calls the function in a child with each case's data and a folder to work
in; it returns None where all is well, else what is wrong. A child that ends or does not answer is started anew with
the next case. The bytes of every case that made trouble are kept in `folder`, for `function(bytes)` to be run by hand.
The child's side is at the end of this file.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pickle
import select
import signal
import struct
import subprocess
import sys
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 60.0
"""Far beyond what a case takes: a hang, not a slow machine."""


@dataclass(frozen=True, slots=True)
class Case:
    """One attempt."""

    name: str
    """What was done to the data."""
    data: Any
    """What the function gets; picklable."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """A case that went wrong."""

    case: Case
    what: str
    kept: Path
    """Where the data lies, pickled."""

    def __str__(self) -> str:
        return f"{self.case.name}: {self.what} (data: {self.kept})"


def run_cases(
    function: str, cases: Iterable[Case], folder: Path, *, most_bytes: int | None = None, warm: Iterable[Case] = ()
) -> list[Trouble]:
    """Return what went wrong; `most_bytes` is the most that memory may grow during one case.

    Every child begins with the cases `warm`, which must go well: libraries are imported, and memory does not count.
    """
    warm = list(warm)
    found: list[Trouble] = []
    child: _Child | None = None
    try:
        for case in cases:
            if child is None:
                child = _Child(function)
                for one in warm:
                    wrong = child.ask(one.data, None)
                    assert wrong is None, f"{one.name}: {wrong}"
            what = child.ask(case.data, most_bytes)
            if what is None:
                continue
            kept = folder / f"trouble-{len(found):03}.pickle"
            kept.write_bytes(pickle.dumps(case))
            found.append(Trouble(case, what, kept))
            if not child.is_alive:
                child = None
    finally:
        if child is not None:
            child.close()
    return found


class _Child:
    """A process that runs cases one after another."""

    def __init__(self, function: str) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 -- closed with the child
        self._process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-m", "tests.fuzz.harness", function],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, env=environment, cwd=ROOT,
        )  # fmt: skip
        self.is_alive = True

    def ask(self, data: Any, most_bytes: int | None) -> str | None:
        pickled = pickle.dumps((data, most_bytes))
        try:
            self._process.stdin.write(struct.pack("<Q", len(pickled)) + pickled)
            self._process.stdin.flush()
        except BrokenPipeError:
            return self._ended()
        if not select.select([self._process.stdout], [], [], TIMEOUT_S)[0]:
            self._process.send_signal(signal.SIGABRT)  # faulthandler prints where it hangs
            return f"no answer within {TIMEOUT_S:.0f} s; {self._ended()}"
        line = self._process.stdout.readline()
        return json.loads(line) if line else self._ended()

    def _ended(self) -> str:
        code = self._process.wait()
        said = self._said()
        self.close()
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return f"the process ended: {how}\n{said}"

    def _said(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")[-3000:]

    def close(self) -> None:
        self.is_alive = False
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        self._errors.close()


# -- changing bytes -----------------------------------------------------------------------------------------------

_SIZES = (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF)


def mutations(good: bytes, count: int, seed: int) -> Iterator[Case]:
    """Yield `count` changed copies: flipped bits, cuts, extreme sizes anywhere, parts moved, lost or overwritten."""
    rng = np.random.default_rng(seed)
    kinds = (_flip, _cut, _size, _overwrite, _remove, _repeat, _flip_early, _size_early)
    for name, data in ((("empty", b"")), ("one byte", good[:1]), ("zeros", bytes(len(good)))):
        yield Case(name, data)
    for number in range(count - 3):
        kind = kinds[number % len(kinds)]
        changed = bytearray(good)
        kind(changed, rng)
        yield Case(f"{kind.__name__.strip('_')} {seed}/{number}", bytes(changed))


def _flip(data: bytearray, rng: np.random.Generator, within: int | None = None) -> None:
    for at in rng.integers(0, min(len(data), within or len(data)), rng.integers(1, 9)).tolist():
        data[at] ^= 1 << int(rng.integers(8))


def _flip_early(data: bytearray, rng: np.random.Generator) -> None:
    _flip(data, rng, within=64)  # headers


def _cut(data: bytearray, rng: np.random.Generator) -> None:
    del data[int(rng.integers(len(data))) :]


def _size(data: bytearray, rng: np.random.Generator, within: int | None = None) -> None:
    """Write the largest or smallest number over 1, 2, 4 or 8 bytes, in either order."""
    width, at = int(rng.choice([1, 2, 4, 8])), int(rng.integers(min(len(data), within or len(data))))
    number = (int(rng.choice(np.array(_SIZES, object))) & ((1 << 8 * width) - 1)).to_bytes(
        width, "little" if rng.integers(2) else "big"
    )
    data[at : at + width] = number


def _size_early(data: bytearray, rng: np.random.Generator) -> None:
    _size(data, rng, within=64)


def _overwrite(data: bytearray, rng: np.random.Generator) -> None:
    at, count = int(rng.integers(len(data))), int(rng.integers(1, 64))
    data[at : at + count] = rng.bytes(count)


def _remove(data: bytearray, rng: np.random.Generator) -> None:
    at = int(rng.integers(len(data)))
    del data[at : at + int(rng.integers(1, 64))]


def _repeat(data: bytearray, rng: np.random.Generator) -> None:
    at = int(rng.integers(len(data)))
    data[at:at] = data[at : at + int(rng.integers(1, 64))] * int(rng.integers(1, 4))


# -- the child ----------------------------------------------------------------------------------------------------


def status(name: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise KeyError(name)


def attempt(function: Any, data: Any, folder: Path, most_bytes: int | None) -> str | None:
    """Run one case; return what is wrong with what it did, or None."""
    before = status("VmRSS")
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak counts from here
    try:
        wrong = function(data, folder)
    except BaseException:
        return traceback.format_exc(limit=-12)
    grown = status("VmHWM") - before
    if wrong is None and most_bytes is not None and grown > most_bytes:
        return f"memory grew by {grown >> 20} MiB; {most_bytes >> 20} are allowed"
    return wrong


def main() -> None:
    module, _, name = sys.argv[1].partition(":")
    function = getattr(importlib.import_module(module), name)
    answers = os.fdopen(os.dup(1), "w")  # what a library prints goes to stderr instead
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory() as folder:
        while head := sys.stdin.buffer.read(8):
            data, most_bytes = pickle.loads(sys.stdin.buffer.read(struct.unpack("<Q", head)[0]))
            print(json.dumps(attempt(function, data, Path(folder), most_bytes)), file=answers, flush=True)


if __name__ == "__main__":
    main()
