"""The iterator of one pass of a loader: takes batches out of a `Run`, and the loader's place along with them.

Made by `Loader.__iter__`. Frameworks take through it as well: `take_as` converts a batch before it counts as delivered.
It starts the run with its first batch, and ends it when it is dropped, superseded, or through.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from penstock.engine.run import Run, finalize, now
from penstock.errors import LoaderClosed

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.engine.build import Built
    from penstock.engine.loader import Loader
    from penstock.engine.stages import Batch

_Made = TypeVar("_Made")
ENDED = (
    "this iterator was ended: another one was made of the same loader, or a state was loaded or an epoch set; go on "
    "with the new one, or make a loader for each"
)
"""What an iterator says that comes after another one."""


class Pass:
    """The iterator of one pass; threads live no longer than it does."""

    ahead = False
    """Whether a thread takes batches ahead of the consumer; whoever sets it calls `Loader.note_received`."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._run: Run | None = None
        self._starting = threading.Lock()
        self._finalizer: Any = None
        self._over = False
        """Whether the last batch is out: from there on it just ends, whatever becomes of the loader."""

    def __iter__(self) -> Pass:
        return self

    def __next__(self) -> Batch:
        return self.take().batch

    def take(self) -> Built:
        """Return the next batch with its place; StopIteration after the last one."""
        return self.take_as(_as_it_is)

    def take_as(self, hand_over: Callable[[Built], _Made]) -> _Made:
        """Return what a function makes of the next batch; where it fails, the batch was not delivered.

        The state moves on behind the function, and the consumer waits for it too.
        """
        try:
            return self._take(hand_over)
        except BaseException:  # Ctrl-C may have taken a batch along: nobody shall go on behind the gap
            self.stop()
            raise

    def _take(self, hand_over: Callable[[Built], _Made]) -> _Made:
        loader = self._loader
        run = self._run or self._begin()
        if not loader._is_active(self):  # after `_begin`: close() may come in between
            self._refuse()
        began = now()
        watch = None if self.ahead else loader.watch
        if watch is None:
            built = run.next()
        else:
            watch.user_waits()
            built = run.next()
            watch.user_works()
        loader._advise_on_chance()
        if built is None:
            self._over = True
            loader._move(self, None)
            raise StopIteration
        if built.skipped:
            loader._note_skipped(built.skipped)
        taken = now()
        made = hand_over(built)
        if not loader._move(self, built):
            self._refuse()
        if not self.ahead:
            if hand_over is not _as_it_is:
                loader._stats.handed_over(now() - taken)
            loader._stats.delivered(built.num_rows, now() - began)
        return made

    def _refuse(self) -> NoReturn:
        """End an iterator after another one was made, a state loaded or the loader closed."""
        if self._over:
            raise StopIteration
        self._loader._check_open()
        raise LoaderClosed(ENDED)

    def _begin(self) -> Run:
        with self._starting:  # several threads may ask for the first batch: they share one run
            if self._run is None:
                run = self._loader._make_run()
                self._finalizer = finalize(self, run)
                self._run = run
            return self._run

    def num_waiting(self) -> int:
        """Return how many batches are made and wait."""
        return 0 if self._run is None else self._run.num_waiting()

    def num_building(self) -> int:
        """Return how many batches are being built."""
        return 0 if self._run is None else self._run.num_building()

    def stop(self) -> None:
        """End the run: threads and processes are gone on return."""
        if self._run is not None:
            self._finalizer.detach()
            self._run.stop()


def _as_it_is(built: Built) -> Built:
    return built
