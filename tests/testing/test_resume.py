"""The resume check passes on a right loader and fails on every planted mistake."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from penstock.testing import assert_resumes_exactly


class Counter:
    """A right loader of numbers: `epochs` epochs of `steps` batches a pass, another order in each epoch."""

    def __init__(self, *, steps: int = 5, epochs: int = 1) -> None:
        self.steps, self.epochs = steps, epochs
        self.epoch = self.step = 0
        self.closed = False

    def __len__(self) -> int:
        end = (self.epoch // self.epochs + 1) * self.epochs
        return (end - self.epoch) * self.steps - self.step

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for _ in range(len(self)):
            batch = self.batch(self.epoch, self.step)
            self.step += 1
            if self.step == self.steps:
                self.epoch, self.step = self.epoch + 1, 0
            yield batch

    def batch(self, epoch: int, step: int) -> dict[str, Any]:
        order = np.random.default_rng(epoch).permutation(self.steps)
        text = np.array([f"{order[step]}", None], object)
        return {"id": np.array([epoch, order[step]]), "text": text, "ragged": [np.arange(step), None]}

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.step = state["epoch"], state["step"]

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("epochs", [1, 2, 3])
def test_a_right_loader_passes_at_every_state(epochs: int) -> None:
    assert assert_resumes_exactly(lambda: Counter(epochs=epochs)) == 2 * epochs * 5 + 1


def test_every_and_max_steps_bound_the_work() -> None:
    assert assert_resumes_exactly(Counter, every=4) == 4  # steps 0, 4, 8 and the last, 10
    assert assert_resumes_exactly(lambda: Counter(epochs=10**9), max_steps=7, passes=1) == 8


def test_a_loader_without_batches_passes() -> None:
    assert assert_resumes_exactly(lambda: Counter(steps=1, epochs=1), passes=0) == 1


def test_loaders_are_closed() -> None:
    made: list[Counter] = []

    def make() -> Counter:
        made.append(Counter())
        return made[-1]

    assert_resumes_exactly(make)
    assert len(made) > 10
    assert all(loader.closed for loader in made)


def test_a_plain_iterator_has_one_pass() -> None:
    class Numbers:
        def __init__(self) -> None:
            self.at = 0

        def __iter__(self) -> Iterator[int]:
            return self

        def __next__(self) -> int:
            if self.at == 4:
                raise StopIteration
            self.at += 1
            return self.at

        def state_dict(self) -> dict[str, Any]:
            return {"at": self.at}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.at = state["at"]

    assert assert_resumes_exactly(Numbers) == 5


class LosesOne(Counter):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if self.step == 3:
            self.step = 4


class RepeatsOne(Counter):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.hidden = self.step == 2

    def batch(self, epoch: int, step: int) -> dict[str, Any]:
        return super().batch(epoch, step - (step == 2 and getattr(self, "hidden", False)))


class ForgetsTheEpoch(Counter):
    def batch(self, epoch: int, step: int) -> dict[str, Any]:
        return super().batch(epoch if not hasattr(self, "resumed") else 0, step)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.resumed = True


class FailsTheSecondTime(Counter):
    def state_dict(self) -> dict[str, Any]:
        times = getattr(self, "times", 0)
        return {**super().state_dict(), "times": times} if times else super().state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.times = 1


class WrongLength(Counter):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.resumed = True

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self.resumed = False
        return super().__iter__()

    def __len__(self) -> int:
        return super().__len__() + getattr(self, "resumed", False)


class EndsEarly(Counter):
    def __iter__(self) -> Iterator[dict[str, Any]]:
        left = 2 if hasattr(self, "resumed") else 10**9
        for batch in super().__iter__():
            if not left:
                return
            left -= 1
            yield batch

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.resumed = True


class NotJson(Counter):
    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "order": (1, 2)}


class OtherNulls(Counter):
    def batch(self, epoch: int, step: int) -> dict[str, Any]:
        batch = super().batch(epoch, step)
        if hasattr(self, "resumed"):
            batch["text"][1] = ""
        return batch

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.resumed = True


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (LosesOne, "step 3"),
        (RepeatsOne, "step 2 differs"),
        (ForgetsTheEpoch, r"\['id'\]"),
        (FailsTheSecondTime, "state changed|state at step"),
        (WrongLength, "len"),
        (EndsEarly, "ended"),
        (NotJson, "not plain JSON"),
        (OtherNulls, r"\['text'\]\[1\]: str against NoneType"),
    ],
)
def test_a_wrong_loader_is_caught(make: Callable[[], Counter], text: str) -> None:
    with pytest.raises(AssertionError, match=text):
        assert_resumes_exactly(make)


def test_states_are_saved_as_json() -> None:
    class Ids(Counter):
        def load_state_dict(self, state: dict[str, Any]) -> None:
            json.dumps(state)
            super().load_state_dict(state)

    assert assert_resumes_exactly(Ids) == 11
