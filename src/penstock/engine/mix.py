"""Mix loaders: batches drawn from several of them by weight, in one order that can be saved and resumed like any other.

Made by `penstock.mix` from loaders and weights. `plan.draws` says whose turn it is, `agree` gives all batches the same
columns; reading, ranks, workers and memory stay those of each loader. Mixes batches, never the rows inside one.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import Counter
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from penstock.engine.agree import Agreed, columns_given
from penstock.engine.loader import Loader
from penstock.engine.passes import ENDED
from penstock.errors import LoaderClosed, PlanError, StateMismatch
from penstock.options import one_of
from penstock.plan.draws import Deck, Draws

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from types import TracebackType

    from penstock.engine.stages import Batch
    from penstock.plan import EpochPlan
    from penstock.plan.draws import Stop

Missing = Literal["error", "null"]


def mix(
    loaders: Iterable[tuple[Loader, float]], *, seed: int = 0, stop: Stop = "first", missing: Missing = "error"
) -> Mix:
    """Return an iterable of batches, each drawn from one of the loaders with a probability in proportion to its weight.

    The draws depend on seed, weights and the number of the pass only: every rank draws the same loader at the same
    step, and a resumed mix draws on. Each loader keeps its own threads and its own `memory_bytes`, which add up. From
    here on the loaders are the mix's: it iterates and closes them, beginning where each of them is.

    Args:
        loaders: Pairs of a loader and a weight above 0.
        seed: Picks the draws; 0 <= seed < 2**64.
        stop: "first": a pass is over when a loader is drawn that has no batch left; what the others had left of their
            passes is left out, and the next pass begins with a new pass of each. "all": such a loader leaves the draw,
            and a pass is over when every loader has given all its batches. A loader with `epochs=None` has no end: it
            goes on where it was in every pass.
        missing: "error": loaders must give the same columns; "null": every batch has the columns of all, absent ones as
            nulls.

    Raises:
        PlanError: No loader, one given twice, loaders of different ranks, a weight or an option that cannot be.
        SchemaError: The loaders give different columns, under missing="error".
    """
    pairs = [_pair(index, pair) for index, pair in enumerate(loaders)]
    one_of("missing", missing, ("error", "null"))
    return Mix([loader for loader, _ in pairs], [weight for _, weight in pairs], seed=seed, stop=stop, missing=missing)


class Mix:
    """Iterable of batches (dict of column -> array) drawn from several loaders; see `mix` for the options.

    Iterating again after the end, or after `break`, starts the next pass; after `load_state_dict` iteration goes on
    exactly where the state was taken. One iterator at a time: a new one ends the one before it.
    """

    def __init__(
        self, loaders: Sequence[Loader], weights: Sequence[float], *, seed: int, stop: Stop, missing: Missing
    ) -> None:
        _check(loaders)
        self._loaders = tuple(loaders)
        self._deck = Deck(Draws(weights, seed), stop)
        self._agreed = Agreed.of(
            [columns_given(loader, index) for index, loader in enumerate(loaders)], fill=missing == "null"
        )
        self._closed = False
        self._lock = threading.RLock()
        """Held where the place of the mix moves, never while waiting: a thread may save while another one iterates."""
        self._states = [loader.state_dict() for loader in loaders]
        """Where each loader is as far as the consumer has got; a loader that is elsewhere is put there when drawn."""
        self._marks: list[tuple[EpochPlan, int] | None] = [None] * len(loaders)
        """Plan and steps of a loader's last batch, where its entry of `_states` is out of date: a state takes 50 us."""
        self._deck.begin(self._left())
        self._active: weakref.ref[_Pass] | None = None
        """Weak: an iterator that nobody holds any more (after `break`) ends at once, and the loaders' threads too."""
        self._delivered = False
        self._source: int | None = None

    # -- iteration ------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Batch]:
        self._check_open()
        self._end_pass()
        if self._delivered:
            self._advance()
        started = _Pass(self)
        self._active = weakref.ref(started)
        return started

    def __len__(self) -> int:
        length = self._deck.length()
        if length is None:
            raise TypeError("a mix with loaders of epochs=None that never stop it has no length")
        return length

    # -- state ----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the place of this run as small JSON: the draws made, and the states of all loaders.

        Counts what the consumer has received. The same on every rank at the same step where those of the loaders are.
        """
        with self._lock:
            return self._deck.to_json() | {"loaders": [self._state(index) for index in range(len(self._loaders))]}

    def _state(self, index: int) -> dict[str, Any]:
        """Return the state of a loader after its last batch that the consumer has, worked out when somebody asks."""
        loader, mark = self._loaders[index], self._marks[index]
        if mark is not None:
            self._states[index] = loader.state_after(*mark)
            self._marks[index] = None
        return self._states[index]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of a mix of the same loaders, in the same order, and seed; weights and `stop` may differ.

        Ends a running iterator. Raises StateMismatch saying which part differs; the mix is then where it was.
        """
        self._check_open()
        before = self.state_dict()
        self._end_pass()
        try:
            self._load(state)
        except BaseException:
            self._load(before)
            raise

    def _load(self, state: Mapping[str, Any]) -> None:
        with self._lock:
            self._deck.load(state)
        states = state.get("loaders")
        if not isinstance(states, list) or len(states) != len(self._loaders):
            found = len(states) if isinstance(states, list) else repr(states)
            raise StateMismatch(f"cannot resume: the state has {found} loaders, this mix {len(self._loaders)}")
        for index, (loader, one) in enumerate(zip(self._loaders, states, strict=True)):
            try:
                loader.load_state_dict(one)
            except StateMismatch as error:
                raise StateMismatch(f"loader {index} of the mix: {error}") from error
        with self._lock:
            self._states, self._marks = [loader.state_dict() for loader in self._loaders], [None] * len(self._loaders)
            self._deck.begin(self._left())
            self._delivered, self._source = False, None
        if not self._deck.at_start and self._deck.next() is None:  # saved by another thread, at the very end of a pass
            self._advance()

    # -- what it says about itself ----------------------------------------------------------------------------------

    @property
    def source(self) -> int | None:
        """Index of the loader that the last batch came from; None before the first one."""
        return self._source

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of every batch, in order."""
        return tuple(self._agreed.columns)

    @property
    def pass_number(self) -> int:
        """The pass of the mix, counted from 0, that the next batch belongs to; moves on with the last one of a pass."""
        return self._deck.pass_number

    @property
    def rank(self) -> int:
        """The rank the loaders read for."""
        return self._loaders[0].rank

    @property
    def world(self) -> int:
        """The number of ranks that share the order."""
        return self._loaders[0].world

    def stats(self) -> dict[str, float]:
        """Return the loaders' counters, added up."""
        total: Counter[str] = Counter()
        for loader in self._loaders:
            total.update(loader.stats())
        return dict(total)

    def __repr__(self) -> str:
        length = self._deck.length()
        left = "endless" if length is None else f"{length} batches left"
        return f"Mix({len(self._loaders)} loaders, rank={self.rank}/{self.world}, {left})"

    # -- the end --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close all loaders; the mix cannot be used again."""
        self._closed = True
        with contextlib.ExitStack() as stack:  # one that fails does not keep the others open
            for loader in self._loaders:
                stack.callback(loader.close)

    def __enter__(self) -> Mix:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError("a mix is not pickled or copied; make one in the other process and give it the state_dict()")

    def _check_open(self) -> None:
        if self._closed:
            raise LoaderClosed("the mix is closed; make another one from new loaders")

    # -- passes -----------------------------------------------------------------------------------------------------

    def _left(self) -> list[int | None]:
        return [_left(loader) for loader in self._loaders]

    def _end_pass(self) -> None:
        with self._lock:
            self._active = None
        for loader in self._loaders:
            loader._end_pass()

    def _advance(self) -> None:
        """Go to the start of the next pass, and every loader that has an end to the start of its own."""
        self._end_pass()
        endless = [left is None for left in self._left()]
        for loader, goes_on in zip(self._loaders, endless, strict=True):
            if not goes_on:
                loader.next_pass()
        with self._lock:
            for index, goes_on in enumerate(endless):
                if not goes_on:
                    self._states[index], self._marks[index] = self._loaders[index].state_dict(), None
            self._deck.advance()
            self._deck.begin(self._left())
            self._delivered = False

    # -- called by the pass -----------------------------------------------------------------------------------------

    def _is_active(self, one: _Pass) -> bool:
        active = self._active
        return active is not None and active() is one

    def _pick(self, one: _Pass) -> int | None:
        with self._lock:
            if not self._is_active(one):
                self._check_open()
                if self._active is not None and self._active() is not None:
                    raise LoaderClosed(ENDED)
                return None
            return self._deck.next()

    def _iterate(self, index: int) -> Iterator[Batch]:
        """Return an iterator of a loader that goes on where the consumer has got to."""
        loader, state = self._loaders[index], self._state(index)
        if loader._delivered or loader.state_dict() != state:
            loader.load_state_dict(state)
        return iter(loader)

    def _move(self, one: _Pass, index: int) -> bool:
        """Move on by one batch; returns False if the pass was ended before."""
        loader = self._loaders[index]
        with self._lock:
            if not self._is_active(one):
                return False
            self._marks[index] = loader._progress
            self._deck.took(index)
            self._delivered, self._source = True, index
            over, ended = self._deck.next() is None, self._deck.ended[index]
        if over:
            self._advance()
        elif ended:
            loader.next_pass()  # gives back its threads and its memory now
        return True

    def _ran_out(self, one: _Pass, index: int) -> None:
        with self._lock:
            if self._is_active(one):
                self._states[index], self._marks[index] = self._loaders[index].state_dict(), None
                self._deck.ran_out(index)


class _Pass:
    """The iterator of one pass of a mix; holds the iterators of the loaders, whose threads live no longer than they."""

    def __init__(self, owner: Mix) -> None:
        self._mix = owner
        self._iterators: dict[int, Iterator[Batch]] = {}

    def __iter__(self) -> _Pass:
        return self

    def __next__(self) -> Batch:
        try:
            return self._take()
        except BaseException:  # nobody shall go on behind what went wrong
            if self._mix._is_active(self):
                self._mix._end_pass()
            self._iterators.clear()
            raise

    def _take(self) -> Batch:
        mix = self._mix
        while (index := mix._pick(self)) is not None:
            if index not in self._iterators:
                self._iterators[index] = mix._iterate(index)
            try:
                batch = next(self._iterators[index])
            except StopIteration:  # earlier than its length said, or it has none
                mix._ran_out(self, index)
                continue
            batch = mix._agreed.complete(batch, index)
            if not mix._move(self, index):
                self._refuse()
            return batch
        if mix._is_active(self):
            mix._advance()
        raise StopIteration

    def _refuse(self) -> NoReturn:
        """End an iterator after another one was made, a state loaded or the mix closed."""
        self._mix._check_open()
        raise StopIteration


def _left(loader: Loader) -> int | None:
    try:
        return len(loader)
    except TypeError:
        return None


def _pair(index: int, pair: Any) -> tuple[Loader, float]:
    if not isinstance(pair, tuple | list) or len(pair) != 2:  # not unpacked: a loader would give its batches
        raise PlanError(f"a mix takes pairs (loader, weight); item {index} is {pair!r}")
    loader, weight = pair
    if not isinstance(loader, Loader):
        raise TypeError(f"a mix takes loaders, as Dataset.loader gives them; item {index} is a {type(loader).__name__}")
    if isinstance(weight, bool) or not isinstance(weight, Real) or not float(weight) > 0:
        raise PlanError(f"weights must be numbers above 0; that of loader {index} is {weight!r}")
    return loader, float(weight)


def _check(loaders: Sequence[Loader]) -> None:
    if not loaders:
        raise PlanError("a mix needs at least one pair (loader, weight); got none")
    seen: dict[int, int] = {}
    for index, loader in enumerate(loaders):
        if id(loader) in seen:
            raise PlanError(
                f"loaders {seen[id(loader)]} and {index} of the mix are one and the same; add up their weights, or "
                "make two from the dataset"
            )
        seen[id(loader)] = index
        if (loader.rank, loader.world) != (loaders[0].rank, loaders[0].world):
            raise PlanError(
                f"loader 0 of the mix reads for rank {loaders[0].rank} of {loaders[0].world}, loader {index} for rank "
                f"{loader.rank} of {loader.world}; give all the same"
            )
