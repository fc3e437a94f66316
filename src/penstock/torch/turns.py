"""One worker's turns: which batches of the pass are its own, and where it stands.

Worker i of n delivers the batches i, i + n, i + 2n, ... of its rank's sequence, so that a `DataLoader`, which asks its
workers in turn, gives the native order for any n. Where a worker stands is said as a native state: that of the batch
it would deliver next. So the earliest of the workers' states is where the consumer stands, and any loader can go on
from there. Arithmetic on plans; reads nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.errors import StateMismatch
from penstock.plan import Cursor, State, plan_epoch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.api import Loader as NativeLoader
    from penstock.plan import EpochPlan

WORKER = "worker"
"""Entry of a state that says which worker of how many it is of, whether that one has nothing left in the pass, and the
rows of a batch on all ranks together."""
_SINCE = "_steps_since_snapshot"
"""Entry of a `StatefulDataLoader` with workers: batches that the consumer has received since the workers' states."""


class Turns:
    """What one worker delivers, pass after pass."""

    def __init__(self, native: NativeLoader, at: Mapping[str, Any], index: int, count: int) -> None:
        self._native = native
        self._index, self._count = index, count
        self._at = dict(at)
        """Where the next iteration begins; all workers agree on it, unless it is this worker's own (`_skip` is 0)."""
        self._skip = index
        self._over = False
        """Whether a loaded state says that nothing of its pass is left for this worker."""
        self._loaded = False
        self._own: dict[str, Any] | None = None
        """The state of the first batch that this iteration delivers; None: there is none."""
        self._num_out = 0
        self._iterating = False
        self._plan: EpochPlan | None = None

    @property
    def _epochs(self) -> int:
        return self._native._options.epochs or 1

    @property
    def is_fresh(self) -> bool:
        """Whether nothing has begun and no state was loaded: all workers are where the dataset was."""
        return not self._iterating and not self._loaded

    @property
    def next_pass(self) -> int:
        """The number of the pass that begins next."""
        return int(self._at["epoch"]) // self._epochs - self._over  # who has nothing left stands behind its pass

    def go_to_pass(self, number: int) -> None:
        """Begin with this pass, counted from 0."""
        self._at = start_of(self._native, self._at, number * self._epochs)

    def begin(self) -> tuple[int, Iterator[Any]]:
        """Return the number of the next pass and an iterator of this worker's batches of it."""
        begins, skip, over = self._at, self._skip, self._over
        number = self.next_pass
        self._num_out, self._iterating, self._skip, self._over = 0, True, self._index, False
        if over:
            self._own = None
            return number, iter(())
        self._own = self._after(begins, skip)
        self._at = self._next_pass(begins)
        if self._own is None:
            return number, iter(())
        self._native.load_state_dict(self._own)
        self._native._strided(0, self._count)
        return number, iter(self._native)

    def delivered(self) -> None:
        """Note that a batch is out."""
        self._num_out += 1

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the batch that this worker delivers next, and whose state it is."""
        if self._iterating:
            found = None if self._own is None else self._after(self._own, self._num_out * self._count)
        else:
            found = None if self._over else self._after(self._at, self._skip)
        over = found is None
        place = (self._at if self._iterating or self._over else self._next_pass(self._at)) if found is None else found
        worker = {"index": self._index, "count": self._count, "over": over, "rows": step_rows(self._native)}
        return {**place, WORKER: worker}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from this worker's own state, or from one that all workers share."""
        place, worker = native_part(state), state.get(WORKER)
        self._native.load_state_dict(place)
        if worker is not None and (worker["index"], worker["count"]) != (self._index, self._count):
            raise StateMismatch(
                f"the state is that of worker {worker['index']} of {worker['count']}, this is worker {self._index} of "
                f"{self._count}; load the whole state with Batches.load_state_dict before the DataLoader is made"
            )
        self._at, self._iterating, self._loaded = place, False, True
        self._skip = self._index if worker is None else 0
        self._over = worker is not None and bool(worker["over"])

    # -- arithmetic -----------------------------------------------------------------------------------------------

    def _next_pass(self, state: Mapping[str, Any]) -> dict[str, Any]:
        return start_of(self._native, state, (state["epoch"] // self._epochs + 1) * self._epochs)

    def _after(self, state: Mapping[str, Any], steps: int) -> dict[str, Any] | None:
        return state_after(self._native, state, steps, self._planned)

    def _planned(self, place: State, cursor: Cursor) -> EpochPlan:
        if self._plan is None or (self._plan.cursor, self._plan.order) != (cursor, place.order):
            self._plan = _plan(self._native, place, cursor)
        return self._plan


def state_after(
    native: NativeLoader, state: Mapping[str, Any], steps: int, planned: Callable[[State, Cursor], EpochPlan]
) -> dict[str, Any] | None:
    """Return the state so many batches further; None where the pass has no batch there."""
    place, epochs = State.from_json(state), native._options.epochs
    plan = planned(place, place.cursor)
    while steps >= plan.num_steps:
        steps -= plan.num_steps
        epoch = plan.cursor.epoch + 1
        if epochs is not None and epoch % epochs == 0:
            return None
        plan = planned(place, plan.next_epoch())
    return replace(place, cursor=plan.after(steps)).to_json()


def _plan(native: NativeLoader, place: State, cursor: Cursor) -> EpochPlan:
    return plan_epoch(native._facts.counts, order=place.order, cursor=cursor, share=native._share)


def start_of(native: NativeLoader, state: Mapping[str, Any], epoch: int) -> dict[str, Any]:
    """Return the state at the beginning of an epoch, in the order that `state` is of."""
    place = State.from_json(state)
    return replace(place, cursor=Cursor.start(epoch, place.order, native._total_rows)).to_json()


def step_rows(native: NativeLoader) -> int:
    """Return the rows of a batch on all ranks together."""
    return native._share.batch_size * native._share.world


def native_part(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a worker's state without what is said of the worker."""
    return {name: value for name, value in state.items() if name != WORKER}


def resumed_state(native: NativeLoader, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return where a loader goes on from what was loaded: `consumer_state`, and the batches received since.

    A `StatefulDataLoader` with snapshot_every_n_steps > 1 asks its workers for their states now and then only.
    """
    place = consumer_state(state)
    steps = state.get(_SINCE, 0)
    if not steps:
        return place
    rows = next((one[WORKER].get("rows") for one in _states_in(state) if WORKER in one), None)
    if rows != step_rows(native):
        raise StateMismatch(
            f"the state is {steps} batches older than its checkpoint (snapshot_every_n_steps of StatefulDataLoader), "
            f"of {rows or 'an unknown number of'} rows on all ranks, and batches have {step_rows(native)} here; load "
            "it with the same batch size and ranks, or save with snapshot_every_n_steps=1"
        )
    native._check_state(place)
    further = state_after(native, place, steps, lambda at, cursor: _plan(native, at, cursor))
    epochs = native._options.epochs or 1
    return further or start_of(native, place, (place["epoch"] // epochs + 1) * epochs)


def consumer_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return where the consumer stands: a native state itself, or the earliest of those of all workers.

    Takes what `Batches.state_dict()` gave, or all that a `StatefulDataLoader` over it gave.
    """
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
    return native_part(min(found, key=_earliness))


def _states_in(value: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(value, Mapping):
        return
    if {"version", "order", "dataset", "rows"} <= value.keys():
        yield dict(value)
        return
    for one in value.values():
        yield from _states_in(one)


def _earliness(state: Mapping[str, Any]) -> tuple[int, int]:
    cursor = State.from_json(native_part(state)).cursor
    left = -sum(last - first for first, last in cursor.left) if cursor.left is not None else cursor.position
    return cursor.epoch, left or 0
