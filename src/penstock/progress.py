"""A progress bar for work that takes long: drawn on a terminal only, and only after two seconds.

Anything below `api` may wrap its long loops in `progress`; nothing reads it back. On a pipe, in a log file or in a
test it writes nothing at all. It starts no thread: it draws, at most ten times a second, when it is told of progress.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sized
from typing import Self, TextIO, TypeVar, overload

T = TypeVar("T")

DELAY_S = 2.0
"""Work that ends sooner shows nothing."""
REDRAW_S = 0.1
WIDTH = 30


class Progress:
    """A bar to be told of progress; use as a context manager, so that its line is finished on errors too."""

    def __init__(self, total: int | None, label: str, *, unit: str = "", stream: TextIO | None = None) -> None:
        self._total = total
        self._label = label
        self._unit = f" {unit}" if unit else ""
        self._stream = sys.stderr if stream is None else stream
        self._done = 0
        self._start = time.monotonic()
        self._next = self._start + DELAY_S if _is_terminal(self._stream) else float("inf")
        self._drawn = False

    def update(self, count: int = 1) -> None:
        """Tell that `count` more are done; costs a clock reading."""
        self._done += count
        now = time.monotonic()
        if now >= self._next:
            self._next = now + REDRAW_S
            self._draw(now)

    def _draw(self, now: float) -> None:
        rate = self._done / max(now - self._start, 1e-9)
        text = f"{self._label}: {self._done:,}"
        if self._total:
            filled = min(WIDTH, WIDTH * self._done // self._total)
            left = max(self._total - self._done, 0) / max(rate, 1e-9)
            text += f" of {self._total:,}{self._unit} [{'#' * filled:-<{WIDTH}}] {rate:,.0f}/s, {left:,.0f} s left"
        else:
            text += f"{self._unit}, {rate:,.0f}/s"
        self._stream.write(f"\r{text}\x1b[K")
        self._stream.flush()
        self._drawn = True

    def close(self) -> None:
        """Draw the last state and end the line, if one was begun. Twice does no harm."""
        if self._drawn:
            self._draw(time.monotonic())
            self._stream.write("\n")
            self._stream.flush()
            self._drawn = False
            self._next = float("inf")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


@overload
def progress(work: int | None, label: str, *, unit: str = ...) -> Progress: ...
@overload
def progress(work: Iterable[T], label: str, *, unit: str = ...) -> Iterator[T]: ...


def progress(work: Iterable[T] | int | None, label: str, *, unit: str = "") -> Iterator[T] | Progress:
    """Show how far `work` has come.

    Given an iterable, yield its items unchanged, in order, one at a time. Given a number (or None where the total is
    not known), return a `Progress` whose `update` is called as the work goes on.
    """
    if work is None or isinstance(work, int):
        return Progress(work, label, unit=unit)
    return _each(work, Progress(len(work) if isinstance(work, Sized) else None, label, unit=unit))


def _each(items: Iterable[T], bar: Progress) -> Iterator[T]:
    with bar:
        for item in items:
            yield item
            bar.update()


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()  # None under pythonw
    except ValueError:  # closed
        return False
