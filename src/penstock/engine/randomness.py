"""Random numbers of transforms: generators keyed by the place of a batch or row, and a watch on the global ones.

What a transform draws from the generators it is given repeats in every run and after resuming. What it draws from the
global states of `random`, NumPy and torch does not, as threads share them: `Watch` notices that, and a process of the
pool, which has global states of its own, seeds them for every batch. Imports torch only for a transform that asks for
a `torch.Generator`.
"""

from __future__ import annotations

import importlib.util
import inspect
import random
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH, ROW = 2, 3
"""The fourth word of the counter: random numbers for a whole batch, or for one row."""
_GLOBAL = 2
"""The third word of a batch's counter, for seeding global states; 1 is a transform on a device."""
_LOOKS = 8
"""How many batches are watched; a look at all three states takes about 0.2 ms."""

NAMES = frozenset({"rng", "generator"})


def transform_wants(transform: Callable[..., Any] | None) -> frozenset[str]:
    """Return which of the names `rng`, `generator` and `positions` a transform takes, and a partial leaves open.

    A `generator` with a default other than None is the user's own.
    """
    if transform is None:
        return frozenset()
    try:
        parameters = inspect.signature(transform).parameters
    except (TypeError, ValueError):  # a builtin without a signature takes just the batch
        return frozenset()
    bound = transform.keywords if isinstance(transform, partial) else {}
    wants = {*NAMES, "positions"} & parameters.keys() - bound.keys()
    if "generator" in wants:
        default = parameters["generator"].default
        has_torch = importlib.util.find_spec("torch") is not None
        if default is inspect.Parameter.empty and not has_torch:
            raise PlanError(
                "the transform has a parameter `generator`, which is a torch.Generator, and PyTorch is not installed; "
                "name it `rng` for one of NumPy, or pip install 'penstock[torch]'"
            )
        if default not in (inspect.Parameter.empty, None) or not has_torch:
            wants.discard("generator")
    return frozenset(wants)


def generators(wants: frozenset[str], key: tuple[int, int], counter: tuple[int, int, int]) -> dict[str, Any]:
    """Return the requested generators: `rng`, `generator` or both.

    `key` is (seed, epoch), `counter` the last three words of the counter. `generator` is seeded by the first word of
    the stream that `rng` is made of.
    """
    found: dict[str, Any] = {}
    if "rng" in wants:
        found["rng"] = np.random.Generator(_philox(key, counter))
    if "generator" in wants:
        import torch

        found["generator"] = torch.Generator().manual_seed(int(_philox(key, counter).random_raw()) >> 1)
    return found


def seed_globals(key: tuple[int, int], first: int) -> None:
    """Seed the global states of this process for the batch that begins at position `first`."""
    words = [int(word) for word in _philox(key, (first, _GLOBAL, BATCH)).random_raw(3)]
    random.seed(words[0])
    np.random.seed(words[1] & 0xFFFFFFFF)  # noqa: NPY002 -- the global state is what a transform of the user draws from
    torch = sys.modules.get("torch")
    if torch is not None:  # not manual_seed: where CUDA is not used yet it keeps every seed for later
        torch.default_generator.manual_seed(words[2] >> 1)


def _philox(key: tuple[int, int], counter: tuple[int, int, int]) -> np.random.Philox:
    # As arrays: NumPy takes a list of a number below 2**63 and one above for floats.
    return np.random.Philox(key=np.array(key, np.uint64), counter=np.array((0, *counter), np.uint64))


class Watch:
    """Notices that a transform draws from a global random state.

    The user's own thread may draw too, as dropout does: a look counts only where that thread has waited for a batch all
    the time. That is so for the first batch of nearly every run.
    """

    def __init__(self) -> None:
        self.moved: tuple[str, ...] = ()
        """Whose global states were moved."""
        self._waiting = False
        self._num_waits = 0
        self._looks_left = _LOOKS

    def user_waits(self) -> None:
        """Note that the user's thread begins to wait."""
        self._num_waits += 1
        self._waiting = True

    def user_works(self) -> None:
        """Note that the user's thread continues."""
        self._waiting = False

    def look(self) -> tuple[int, dict[str, Any]] | None:
        """Return the states before a transform, to be compared; None where a comparison would prove nothing."""
        if not self._waiting or not self._looks_left or self.moved:
            return None
        self._looks_left -= 1
        return self._num_waits, _states()

    def compare(self, before: tuple[int, dict[str, Any]] | None) -> None:
        """Compare the states behind a transform with those before it."""
        if before is None:
            return
        num_waits, states = before
        now = _states()
        if self._waiting and self._num_waits == num_waits:
            self.moved = tuple(name for name, state in states.items() if now[name] != state)


def _states() -> dict[str, Any]:
    numpy_state: Any = np.random.get_state(legacy=False)  # noqa: NPY002 -- looked at, not drawn from
    states = {
        "random": random.getstate(),
        "numpy.random": {name: np.asarray(value).tobytes() for name, value in numpy_state["state"].items()},
    }
    torch = sys.modules.get("torch")
    if hasattr(torch, "get_rng_state"):  # not while another thread imports it
        states["torch"] = torch.get_rng_state().numpy().tobytes()  # type: ignore[union-attr]
    return states


def advice(moved: tuple[str, ...]) -> str:
    """Return the warning about a transform that has moved global states."""
    return (
        f"the transform draws from the global random state of {' and '.join(moved)}, which all threads share: its "
        "results do not repeat in another run or after resuming; give it a parameter `generator` (a torch.Generator) "
        "or `rng` (NumPy's) and draw from that, or use pool='process', which seeds the global states for every batch"
    )
