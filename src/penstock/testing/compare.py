"""Compare batches bit for bit: arrays, masks, strings, nulls, ragged lists, anything that a loader returns.

`assert_resumes_exactly` checks anything that is iterable and has `state_dict` and `load_state_dict`: what comes after a
restored state is what would have come without a stop, at every step, into the next pass, and through a second
interruption. NaN equals NaN if the bits agree, 1 differs from 1.0 and from True, and the
data under a mask counts too, because a resumed run that differs anywhere is not the same run. Needs no framework:
tensors are compared through `__array__`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

Frozen = tuple[Any, ...]


def freeze(value: Any) -> Frozen:
    """Return an immutable copy of a batch or value that compares equal exactly if all bits are the same."""
    if isinstance(value, np.ma.MaskedArray):
        return ("masked", freeze(value.data), freeze(np.ma.getmaskarray(value)))
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        return ("objects", value.shape, tuple(map(freeze, value.ravel().tolist())))
    if isinstance(value, np.ndarray | np.generic):
        kind = "array" if isinstance(value, np.ndarray) else "scalar"
        return (kind, value.dtype.str, value.shape, value.tobytes())
    if isinstance(value, Mapping):
        return ("dict", tuple((str(key), freeze(item)) for key, item in value.items()))
    if isinstance(value, list | tuple):
        return (type(value).__name__, tuple(map(freeze, value)))
    if isinstance(value, float):
        return ("float", struct.pack("<d", value))
    if hasattr(value, "__array__"):
        return (type(value).__name__, freeze(np.asarray(value)))
    return (type(value).__name__, value)


def difference(one: Any, other: Any) -> str | None:
    """Return where and how two batches or values first differ, or None if they are the same bit for bit."""
    return _differ(freeze(one), freeze(other), "")


def assert_same(one: Any, other: Any) -> None:
    """Raise AssertionError saying where two batches or values first differ, unless they are the same bit for bit."""
    found = difference(one, other)
    if found is not None:
        raise AssertionError(found)


def _differ(a: Frozen, b: Frozen, where: str) -> str | None:
    if a == b:
        return None
    if a[0] != b[0]:
        return f"{where or 'value'}: {a[0]} against {b[0]}"
    if a[0] == "dict":
        names, others = [key for key, _ in a[1]], [key for key, _ in b[1]]
        if names != others:
            return f"{where or 'keys'}: {names} against {others}"
        found = (_differ(x, y, f"{where}[{key!r}]") for (key, x), (_, y) in zip(a[1], b[1], strict=True))
        return next(filter(None, found), None)
    if a[0] == "masked":
        return _differ(a[1], b[1], where) or _differ(a[2], b[2], f"mask of {where or 'value'}")
    if a[0] == "objects" and a[1] != b[1]:
        return f"{where or 'value'}: shape {a[1]} against {b[1]}"
    if a[0] in ("array", "scalar"):
        if a[1:3] != b[1:3]:
            return f"{where or 'value'}: {a[1]} of shape {a[2]} against {b[1]} of shape {b[2]}"
        left, right = (np.frombuffer(x[3], f"V{np.dtype(x[1]).itemsize}") for x in (a, b))
        first = int(np.flatnonzero(left != right)[0])
        values = [np.frombuffer(x[3], x[1])[first] for x in (a, b)]
        index = tuple(map(int, np.unravel_index(first, a[2]))) if a[2] else ()
        return f"{where or 'value'}: {values[0]} against {values[1]} at {index}"
    if isinstance(a[-1], tuple) and isinstance(b[-1], tuple):
        return _differ_in_items(a[-1], b[-1], where)
    return f"{where or 'value'}: {a[-1]!r:.80} against {b[-1]!r:.80}"


def _differ_in_items(a: Frozen, b: Frozen, where: str) -> str | None:
    if len(a) != len(b):
        return f"{where or 'value'}: {len(a)} items against {len(b)}"
    if not all(isinstance(item, tuple) for item in (*a, *b)):  # a tensor: (name, frozen array)
        return _differ(a, b, where)
    found = (_differ(x, y, f"{where}[{i}]") for i, (x, y) in enumerate(zip(a, b, strict=True)))
    return next((text for text in found if text is not None), None)


class Resumable(Protocol):
    """What a loader must have: it is iterable, and its state can be saved and restored."""

    def __iter__(self) -> Iterator[Any]: ...

    def state_dict(self) -> dict[str, Any]:
        """Return the position as plain JSON."""

    def load_state_dict(self, state: dict[str, Any], /) -> Any:
        """Continue from there at the next iteration."""


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
        AssertionError: names the step and the value that differs.
    """
    run = _record(make_loader, passes, max_steps)
    steps = sorted({*range(0, len(run.states), every), len(run.states) - 1})
    for step in steps:
        # The second interruption comes at a distance that changes with the step, at once and at the end included.
        again = step + step % (len(run.batches) - step + 1)
        # Restore the state of `step`, continue to `again`, save, restore into a third loader and continue to the end.
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
        raise AssertionError(f"{where}: len() is {length}, but {left} batches are left in the pass")


def _closing(loader: Any) -> contextlib.AbstractContextManager[Any]:
    return contextlib.closing(loader) if hasattr(loader, "close") else contextlib.nullcontext(loader)
