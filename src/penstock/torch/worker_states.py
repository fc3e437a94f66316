"""The states of a DataLoader's workers: what one worker saves and loads, and what all of them say about the consumer.

Worker i of n streams the batches i, i + n, i + 2n, ... of its rank's sequence, so that a `DataLoader`, which asks its
workers in turn, gives the native order for any n. The state of a worker is the native state in front of the batch that
it will deliver next. The earliest of them is therefore where the consumer stands, and any loader can go on from there.
Works with places of the native loader only; reads no data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from penstock.errors import StateMismatch
from penstock.plan import State

if TYPE_CHECKING:
    from penstock.engine.base_loader import BaseLoader
    from penstock.engine.delivery import Stream
    from penstock.engine.loader import Loader
    from penstock.engine.stages import Batch

WORKER = "worker"
"""Entry of a state with the worker's index, the number of workers, whether it has no batch left in its pass, and the
rows of a batch on all ranks together."""
_SINCE = "_steps_since_snapshot"
"""Entry of a `StatefulDataLoader`'s state: batches that the consumer has received since the workers' states."""


class WorkerPasses:
    """The passes of one worker, one stream each, and the worker's state."""

    def __init__(self, native: Loader, index: int, count: int) -> None:
        """Begin where the native loader is, which is the same place in all workers."""
        self._native, self._index, self._count = native, index, count
        self.is_fresh = True
        """Whether no pass has begun and no state was loaded."""
        self._is_running = False
        self._stand_at(native.next_start(), index)

    def _stand_at(self, start: Any, offset: int) -> None:
        self._start: Any = start
        """Where this worker's pass begins; None: it has no batch left in it."""
        self._offset = offset
        """Batches of all workers from `_start` to the next one of this worker."""
        self._following = self._native.pass_after(start)
        """The beginning of the pass after it."""

    @property
    def next_pass(self) -> int:
        """The number of the pass that begins next."""
        following = self._native.pass_of(self._following)
        return following if self._is_running else following - 1

    def go_to_pass(self, number: int) -> None:
        """Begin with this pass, counted from 0."""
        self._stand_at(self._native.place_at(number), self._index)
        self._is_running = False

    def begin(self) -> Stream[Batch] | None:
        """Return this worker's stream of the next pass; None: it has no batch there."""
        if self._is_running:
            self._stand_at(self._following, self._index)
        self.is_fresh, self._is_running = False, True
        every = self._offset, self._count
        return None if self._start is None else self._native.stream(start=self._start, every=every)

    def delivered(self) -> None:
        """Note that a batch was handed to the DataLoader."""
        self._offset += self._count

    def state_dict(self) -> dict[str, Any]:
        """Return the native state in front of this worker's next batch, and which worker it belongs to."""
        native = self._native
        place = None if self._start is None else native.place_after(self._start, self._offset)
        worker = {"index": self._index, "count": self._count, "over": place is None, "rows": _step_rows(native)}
        return {**native.state_of(place or self._following), WORKER: worker}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from this worker's own state, or from one that all workers share."""
        native, worker = self._native, state.get(WORKER)
        place = native.place_of(native_part(state))
        if worker is not None and (worker["index"], worker["count"]) != (self._index, self._count):
            raise StateMismatch(
                f"the state is that of worker {worker['index']} of {worker['count']}, this is worker {self._index} of "
                f"{self._count}; load the whole state with Batches.load_state_dict before the DataLoader is made"
            )
        native.go_to(place)
        self.is_fresh = self._is_running = False
        self._stand_at(place, self._index if worker is None else 0)
        if worker is not None and worker["over"]:  # its state is the start of the following pass
            self._start, self._following = None, place


def place_of(native: BaseLoader, state: Mapping[str, Any]) -> Any:
    """Return where the consumer stood when a state was saved: a native state, or all states of a DataLoader's workers.

    Takes what `Batches.state_dict()` or a `StatefulDataLoader` over it gave. The latter asks its workers only every
    `snapshot_every_n_steps` batches, and counts the batches since.
    """
    place = native.place_of(consumer_state(state))
    steps = state.get(_SINCE, 0)
    if not steps:
        return place
    rows = next((one[WORKER].get("rows") for one in _states_in(state) if WORKER in one), None)
    if rows != _step_rows(native):
        raise StateMismatch(
            f"the state is {steps} batches older than its checkpoint (snapshot_every_n_steps of StatefulDataLoader), "
            f"of {rows or 'an unknown number of'} rows on all ranks, and batches have {_step_rows(native)} here; load "
            "it with the same batch size and ranks, or save with snapshot_every_n_steps=1"
        )
    return native.place_after(place, steps) or native.pass_after(place)


def consumer_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the native state of the consumer: the state itself, or the earliest one of all workers."""
    if not isinstance(state, Mapping):
        raise StateMismatch(f"a state is a dict, as state_dict() gives it; got {type(state).__name__}")
    found = list(_states_in(state))
    if not found:
        raise StateMismatch(
            f"there is no state of Penstock in what was loaded; it has the entries {sorted(map(str, state))}"
        )
    workers = [one[WORKER] for one in found if WORKER in one]
    if len(found) != max((worker["count"] for worker in workers), default=1):
        raise StateMismatch(
            f"{len(found)} states of {workers[0]['count'] if workers else 1} workers do not say where the consumer is; "
            "load the whole state that StatefulDataLoader gave"
        )
    return native_part(found[0] if len(found) == 1 else min(found, key=_earliness))


def native_part(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a worker's state without the entry about the worker."""
    return {name: value for name, value in state.items() if name != WORKER}


def _states_in(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the states of loaders and mixes inside of nested dicts."""
    if isinstance(value, Mapping):
        if {"version", "order"} <= value.keys() and not {"dataset", "loaders"}.isdisjoint(value):
            yield value
        else:
            for one in value.values():
                yield from _states_in(one)


def _earliness(state: Mapping[str, Any]) -> tuple[int, int]:
    cursor = State.from_json(native_part(state)).cursor
    left = -sum(last - first for first, last in cursor.left) if cursor.left is not None else cursor.position
    return cursor.epoch, left or 0


def _step_rows(native: BaseLoader) -> int:
    """Return the rows of a batch on all ranks together."""
    return cast("Loader", native).batch_size * native.world
