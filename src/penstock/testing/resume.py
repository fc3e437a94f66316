"""The check that every loader has to pass: what comes after a restored state is what would have come without a stop.

For authors of loaders, adapters and pipelines: it takes anything that is iterable and has `state_dict` and
`load_state_dict`. It compares bit for bit, at every step, into the next pass, and through a second interruption. It
knows nothing of Penstock's own loader.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from penstock.testing.compare import difference

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Resumable(Protocol):
    """What is asked of a loader: it is iterable and its state can be saved and restored."""

    def __iter__(self) -> Iterator[Any]: ...

    def state_dict(self) -> dict[str, Any]:
        """Return the position as plain JSON."""

    def load_state_dict(self, state: dict[str, Any], /) -> Any:
        """Go on from there at the next iteration."""


@dataclass(frozen=True, slots=True)
class _Run:
    """What an uninterrupted run gave."""

    batches: list[Any]
    states: list[dict[str, Any]]
    """One more than batches: before the first, and after each."""
    passes: list[int]
    """Number of the pass that each batch came in."""


def assert_resumes_exactly(
    make_loader: Callable[[], Resumable], *, passes: int = 2, max_steps: int | None = None, every: int = 1
) -> int:
    """Check that a loader resumes exactly, and return the number of states that were tried.

    Runs one loader for `passes` passes (the second is the next epoch, which has another order) and saves its state
    before the first batch and after each. Then, for every state: through JSON and back, into a fresh loader, and the
    rest has to be the same batches bit for bit (nulls, masks, strings and ragged lists included), in the same passes,
    with `len()` right where there is one; on the way the resumed loader is saved and restored once more.

    Costs about n*n/2 batches for n batches: use little data, or `every`.

    Args:
        make_loader: gives a fresh, equal loader at each call; closed afterwards if it has `close()`.
        passes: how many passes to run; a plain iterator has only one.
        max_steps: stop after so many batches; needed for loaders that never end.
        every: try every so-many-th state only; the first and the last are always tried.

    Raises:
        AssertionError: says at which step which value differs.
    """
    run = _record(make_loader, passes, max_steps)
    steps = sorted({*range(0, len(run.states), every), len(run.states) - 1})
    for step in steps:
        # The second interruption comes at a distance that changes with the step, at once and at the end included.
        again = step + step % (len(run.batches) - step + 1)
        _check_resumed(make_loader, run, step, again)
    return len(steps)


def _record(make_loader: Callable[[], Resumable], passes: int, max_steps: int | None) -> _Run:
    with _closing(make_loader()) as loader:
        batches, numbers, states = [], [], [_saved(loader, "before the first batch")]
        for number, batch in itertools.islice(_stream(loader, passes), max_steps):
            batches.append(batch)
            numbers.append(number)
            states.append(_saved(loader, f"after step {len(batches)}"))
    return _Run(batches, states, numbers)


def _stream(loader: Resumable, passes: int) -> Iterator[tuple[int, Any]]:
    for number in range(passes):
        for batch in loader:
            yield number, batch


def _saved(loader: Resumable, when: str) -> dict[str, Any]:
    state = loader.state_dict()
    restored: dict[str, Any] = json.loads(json.dumps(state))
    if restored != state:
        raise AssertionError(f"the state {when} is not plain JSON: {state!r} comes back as {restored!r}")
    return restored


def _check_resumed(make_loader: Callable[[], Resumable], run: _Run, step: int, again: int) -> None:
    """Restore the state of `step`, go on to `again`, save, restore into a third loader and go on to the end."""
    where = f"resumed at step {step}"
    with _closing(make_loader()) as loader:
        loader.load_state_dict(run.states[step])
        if loader.state_dict() != run.states[step]:
            raise AssertionError(f"{where}: the state changed by restoring it, to {loader.state_dict()!r}")
        _check_stream(loader, run, (step, again), where)
        state = _saved(loader, where)
    if state != run.states[again]:
        raise AssertionError(f"{where}: state at step {again} is {state!r}, without a stop {run.states[again]!r}")
    with _closing(make_loader()) as loader:
        loader.load_state_dict(state)
        _check_stream(loader, run, (again, len(run.batches)), f"{where} and again at step {again}")


def _check_stream(loader: Resumable, run: _Run, span: tuple[int, int], where: str) -> None:
    """Compare what the loader gives with the batches from `span[0]` to `span[1] - 1`."""
    start, stop = span
    if start == len(run.batches):
        return
    _check_length(loader, run, start, where)
    passes = run.passes[-1] - run.passes[start] + 1
    got = start
    for number, batch in itertools.islice(_stream(loader, passes), stop - start):
        if number + run.passes[start] != run.passes[got]:
            raise AssertionError(f"{where}: the pass that step {got} belongs to ended too early or too late")
        found = difference(batch, run.batches[got])
        if found is not None:
            raise AssertionError(f"{where}: step {got} differs from the run without a stop: {found}")
        got += 1
    if got < stop:
        raise AssertionError(f"{where}: ended after step {got}, without a stop there are {len(run.batches)}")


def _check_length(loader: Any, run: _Run, start: int, where: str) -> None:
    try:
        length = len(loader)
    except TypeError:  # no length, or endless
        return
    left = run.passes[start:].count(run.passes[start])
    if run.passes[-1] > run.passes[start] and length != left:
        raise AssertionError(f"{where}: len() says {length} batches are left in the pass; there are {left}")


@contextlib.contextmanager
def _closing(loader: Resumable) -> Iterator[Resumable]:
    try:
        yield loader
    finally:
        close = getattr(loader, "close", None)
        if close is not None:
            close()
