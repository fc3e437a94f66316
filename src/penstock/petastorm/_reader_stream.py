"""The stream of a Petastorm reader: the engine's deliveries that have rows, and the places inside of them.

`Reader.deliveries` opens it, for the reader itself and for loaders that take whole batches out of a reader.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from penstock.engine.prefetch import Wrapping
from penstock.engine.stages import Batch
from penstock.petastorm.errors import NoDataAvailableError

if TYPE_CHECKING:
    from penstock.engine.delivery import Delivery, Stream
    from penstock.petastorm._reader_options import ReaderSetup


class ReaderStream(Wrapping[Batch, Batch]):
    """Leaves out deliveries of which a filter or a transform has left nothing, and measures how long `take` waits."""

    def __init__(self, source: Stream[Batch], setup: ReaderSetup) -> None:
        super().__init__(source)
        self.no_state: str | None = None
        """Why the reader has no state while this stream is iterated; set by a consumer that cannot count rows."""
        self._setup = setup
        self._unchecked: Delivery[Batch] | None = None
        self._left_out = 0
        """Consecutive items of which nothing was left."""
        self._waited_s = 0.0

    def take(self) -> Delivery[Batch] | None:
        """Return the next delivery that has rows."""
        began = time.perf_counter()
        while True:
            found = self._unchecked or self._source.take()
            if found is None:
                return None
            self._unchecked = found  # the check may raise, where warnings are errors, and the rows must not be lost
            self._setup.check_edits(found.batch)
            self._unchecked = None
            if num_items(self._setup, found):
                self._left_out = 0
                self._waited_s += time.perf_counter() - began
                return found
            self._left_out += found.origin.end - found.origin.first
            if self._setup.options["num_epochs"] is None and self._left_out > 2 * found.origin.plan.num_items:
                raise NoDataAvailableError("a whole epoch gave no row: the predicate or the transform leaves nothing")

    def received(self, place: Any, waited_s: float = 0.0) -> None:
        """Acknowledge all deliveries up to a place."""
        waited_s, self._waited_s = waited_s + self._waited_s, 0.0
        super().received(place, waited_s)


def num_items(setup: ReaderSetup, delivery: Delivery[Batch]) -> int:
    """Return how many rows, or windows, a delivery consists of; for readers of batches its rows."""
    windows = delivery.origin.windows
    return delivery.num_rows if setup.options["batched"] or windows is None else len(windows)


def place_after(setup: ReaderSetup, delivery: Delivery[Batch], items: int) -> Any:
    """Return the place behind the first items of a delivery; a reader of batches has received it whole, or not yet."""
    if setup.options["batched"]:
        return delivery.place if items else delivery.after(0)
    return delivery.after(items)
