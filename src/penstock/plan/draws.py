"""Decide whose turn it is when sources are mixed: a pure function of weights, seed, pass and number of the draw.

`Draws` turns random words into picks; `Deck` follows one mix through its passes: who has run out, when a pass is over,
how many turns are left, and all that as small JSON. Knows sources by their index only; `engine.mix` and Petastorm's
`WeightedSamplingReader` hold the loaders and readers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast, get_args

import numpy as np

from penstock.errors import PlanError, StateMismatch
from penstock.plan.order import check_seed
from penstock.plan.permutation import DRAWS, Words

if TYPE_CHECKING:
    from numpy.typing import NDArray

Stop = Literal["first", "all"]

NAME = "mix-1"
"""The name under which states keep this order; the number grows when the draws change."""

BLOCK = 1024
"""Draws whose words are one stream: a number of the pinned order."""

LOOK_AHEAD = 10**8
"""How many draws `Deck.length` follows before it gives up; a second or two."""

_VERSION = 1


class Draws:
    """The picks of all passes. Draw n of pass p takes word n % 1024 of `Philox([seed, p], [0, n // 1024, 0, 3])`.

    The upper 53 bits of the word, as a fraction of the weights' running sum, fall to one source.
    """

    def __init__(self, weights: Sequence[float], seed: int) -> None:
        check_seed(seed)
        try:
            found = [float(weight) for weight in weights]
        except (TypeError, ValueError):
            raise PlanError(f"weights must be numbers; got {list(weights)!r}") from None
        if not all(math.isfinite(weight) and weight >= 0 for weight in found) or not any(found):
            raise PlanError(f"weights must be finite numbers of at least 0, and not all 0; got {found}")
        self.weights = np.array(found)
        self.seed = seed

    def block(self, number: int, *, pass_number: int, among: Sequence[bool]) -> NDArray[np.int64]:
        """Return the picks of draws number*1024 to number*1024+1023 of a pass, among some sources; 20 ns each."""
        words = Words(self.seed, pass_number).draw(BLOCK, a=number, b=0, kind=DRAWS)
        weights = np.where(among, self.weights, 0.0)
        ends = np.cumsum(weights / weights.max())  # not np.sum, whose order of adding is not promised
        fraction = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return cast("NDArray[np.int64]", np.searchsorted(ends, fraction * ends[-1], side="right"))


class Mark(NamedTuple):
    """A place between two draws."""

    pass_number: int
    num_draws: int
    """Draws made in this pass."""
    ended: tuple[bool, ...]
    """Which sources have nothing left in it."""
    seed: int
    """The seed that picks the draws: it tells places of other mixes."""


class Deck:
    """Whose turn it is in a mix, from the first draw of a pass to the last.

    stop="first": a pass is over when the next draw falls to a source that has nothing left. stop="all": such sources
    leave the draw, the others keep their weights, and a pass is over when none is left. Not to be shared by threads
    without a lock.
    """

    def __init__(self, draws: Draws, stop: Stop) -> None:
        if stop not in get_args(Stop):
            raise PlanError(f"stop must be 'first' or 'all'; got {stop!r}")
        self._draws, self._stop = draws, stop
        self.pass_number = 0
        self.num_draws = 0
        """Draws made in this pass."""
        self.left: list[int | None] = [None] * len(draws.weights)
        """What each source has left in its own pass; None: endless, or not known before it ends."""
        self.ended = [False] * len(draws.weights)
        """Which sources have nothing left in this pass."""
        self._picks: list[int] = []
        self._first = 0
        """The draw that `_picks` begins with."""

    def begin(self, left: Sequence[int | None]) -> None:
        """Take what each source has left; those that ended before keep nothing."""
        self.left = [0 if ended else count for ended, count in zip(self.ended, left, strict=True)]
        self.ended = [count == 0 for count in self.left]
        self._picks = []

    def advance(self) -> None:
        """Go to the start of the next pass; `begin` must follow."""
        self.pass_number, self.num_draws, self._picks = self.pass_number + 1, 0, []
        self.ended = [False] * len(self.ended)

    @property
    def seed(self) -> int:
        """The seed that picks the draws."""
        return self._draws.seed

    def next(self) -> int | None:
        """Return whose turn it is, or None when the pass is over; the same until `took` or `ran_out`."""
        ahead = self.num_draws - self._first  # the number only grows: never before the first
        if ahead < len(self._picks):
            pick = self._picks[ahead]
        elif self._stop == "all" and all(self.ended):
            return None
        else:
            # Work out the block that the next draw lies in.
            number, offset = divmod(self.num_draws, BLOCK)
            self._first = number * BLOCK
            self._picks = self._draws.block(number, pass_number=self.pass_number, among=self._among()).tolist()
            pick = self._picks[offset]
        return None if self.ended[pick] else pick

    def took(self, index: int) -> None:
        """Count a draw that gave something."""
        self.num_draws += 1
        left = self.left[index]
        if left is not None:
            self.left[index] = left - 1
            if left <= 1:
                self._end(index)

    def ran_out(self, index: int) -> None:
        """Note that a source ended though it was not known to; under "all" that draw gave nothing and counts."""
        self.left[index] = 0
        self._end(index)
        if self._stop == "all":
            self.num_draws += 1

    def length(self) -> int | None:
        """Return how many draws are left in this pass, exactly; None where it has no end, or none that is known.

        Under "first" the draws are followed to the end: about 30 ns a draw that is left.
        """
        if self._stop == "all":
            known = [count for count in self.left if count is not None]
            return sum(known) if len(known) == len(self.left) else None
        return None if all(count is None for count in self.left) else self._until_short()

    @property
    def mark(self) -> Mark:
        """Where the deck is, as a small value."""
        return Mark(self.pass_number, self.num_draws, tuple(self.ended), self.seed)

    def start_of(self, pass_number: int) -> Mark:
        """Return the mark at the beginning of a pass."""
        return Mark(pass_number, 0, (False,) * len(self.ended), self.seed)

    def at(self, mark: Mark, left: Sequence[int | None]) -> Deck:
        """Return a deck of the same draws at another place, where the sources have so much left."""
        deck = Deck(self._draws, self._stop)
        deck.pass_number, deck.num_draws, deck.ended = mark.pass_number, mark.num_draws, list(mark.ended)
        deck.begin(left)
        return deck

    def to_json(self, mark: Mark | None = None) -> dict[str, Any]:
        """Return seed and place as a dict of JSON values."""
        mark = mark or self.mark
        ended = [index for index, ended in enumerate(mark.ended) if ended]
        head = {"version": _VERSION, "order": NAME, "seed": self._draws.seed}
        return head | {"pass": mark.pass_number, "draws": mark.num_draws, "ended": ended}

    def mark_of(self, value: Mapping[str, Any]) -> Mark:
        """Return the place that `to_json` gave; StateMismatch where it is damaged or of another seed.

        Weights and stop policy are not part of it: a resumed run may have others.
        """
        count = len(self.ended)
        if not isinstance(value, Mapping):
            raise StateMismatch(f"a state is the dict that state_dict() gave; got {type(value).__name__}")
        if value.get("version") != _VERSION or value.get("order") != NAME:
            raise StateMismatch(
                f"the state of a mix has version {_VERSION} and order {NAME!r}; got version {value.get('version')!r} "
                f"and order {value.get('order')!r}: it is the state of something else, or of a newer Penstock"
            )
        for name in ("seed", "pass", "draws"):
            if type(value.get(name)) is not int or value[name] < 0:
                raise StateMismatch(f"damaged state: entry {name!r} must be a whole number, got {value.get(name)!r}")
        ended = value.get("ended")
        if not isinstance(ended, list) or not all(type(index) is int and 0 <= index < count for index in ended):
            raise StateMismatch(f"damaged state: entry 'ended' must list indices below {count}, got {ended!r}")
        if value["seed"] != self._draws.seed:
            raise StateMismatch(
                f"cannot resume: seed of the state is {value['seed']}, of this mix {self._draws.seed}; pass "
                f"seed={value['seed']}"
            )
        pass_number, num_draws, ended = value["pass"], value["draws"], set(ended)
        return Mark(pass_number, num_draws, tuple(index in ended for index in range(count)), self.seed)

    def _end(self, index: int) -> None:
        self.ended[index] = True
        if self._stop == "all":
            self._picks = []  # the others share its part from the next draw on

    def _among(self) -> list[bool]:
        return [not ended for ended in self.ended] if self._stop == "all" else [True] * len(self.ended)

    def _until_short(self) -> int | None:
        """Return the draws until one falls to a source that has nothing left."""
        left = np.array([LOOK_AHEAD if count is None else count for count in self.left])
        number, skip = divmod(self.num_draws, BLOCK)
        done = 0
        while done < LOOK_AHEAD:
            picks = self._draws.block(number, pass_number=self.pass_number, among=self._among())[skip:]
            counts = np.bincount(picks, minlength=len(left))
            short = np.flatnonzero(counts > left)
            if short.size:
                return done + min(int(np.flatnonzero(picks == one)[left[one]]) for one in short)
            left, number, skip, done = left - counts, number + 1, 0, done + len(picks)
        return None
