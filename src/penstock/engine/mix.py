"""Mix loaders: batches drawn from several of them by weight, in one order that can be saved and resumed like any other.

Made by `penstock.mix` from loaders and weights. `plan.draws` says whose turn it is, `output_columns.Agreed` gives all
batches the same columns; reading, ranks, workers and memory stay those of each loader. Mixes batches, never the rows
inside one.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import Counter, deque
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from penstock.engine.base_loader import BaseLoader
from penstock.engine.delivery import FAILED, STOPPED, Acknowledged, Delivery, Stream, not_a_place
from penstock.engine.output_columns import Agreed, columns_given
from penstock.engine.stages import Batch
from penstock.errors import PlanError, StateMismatch
from penstock.options import at_least, one_of
from penstock.plan.draws import Deck, Draws, Mark, Stop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from penstock.engine.loader import Loader
    from penstock.engine.locate import Skipped

Missing = Literal["error", "null"]


def mix(
    loaders: Iterable[tuple[BaseLoader, float]], *, seed: int = 0, stop: Stop = "first", missing: Missing = "error"
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


class MixPlace(NamedTuple):
    """The place of a mix: its draws, and a place of each loader."""

    mark: Mark
    loaders: tuple[Any, ...]
    source: int | None = None
    """Index of the loader that the last batch came from."""

    @property
    def key(self) -> tuple[int, int]:
        """Orders the places of one stream."""
        return self.mark.pass_number, self.mark.num_draws


class Mix(BaseLoader):
    """Iterable of batches (dict of column -> array) drawn from several loaders; see `mix` for the options."""

    _endless = "a mix with loaders of epochs=None that never stop it has no length"
    _closed = "the mix is closed; make another one from new loaders"

    def __init__(
        self, loaders: Sequence[BaseLoader], weights: Sequence[float], *, seed: int, stop: Stop, missing: Missing
    ) -> None:
        if not loaders:
            raise PlanError("a mix needs at least one pair (loader, weight); got none")
        seen: dict[int, int] = {}
        for index, loader in enumerate(loaders):
            for one in loader.inside():
                if id(one) in seen:
                    raise PlanError(
                        f"loaders {seen[id(one)]} and {index} of the mix are one and the same, or share a loader; add "
                        "up their weights, or make two from the dataset"
                    )
            seen |= {id(one): index for one in loader.inside()}
            if (loader.rank, loader.world) != (loaders[0].rank, loaders[0].world):
                raise PlanError(
                    f"loader 0 of the mix reads for rank {loaders[0].rank} of {loaders[0].world}, loader {index} for "
                    f"rank {loader.rank} of {loader.world}; give all the same"
                )
        self.loaders = tuple(loaders)
        """What it draws from: it iterates and closes them."""
        self._deck = Deck(Draws(weights, seed), stop)
        self.agreed = Agreed.of(
            [columns_given(loader, index) for index, loader in enumerate(loaders)], fill=missing == "null"
        )
        """The columns of every batch, and how absent ones are filled."""
        super().__init__(MixPlace(self._deck.mark, tuple(loader.place() for loader in loaders)))

    # -- streams --------------------------------------------------------------------------------------------------

    def _open(self, place: MixPlace, every: tuple[int, int], number: int) -> Stream[Batch]:
        return MixStream(self, place, every, (self._progress, number))

    def deck_at(self, place: MixPlace) -> Deck:
        """Return the draws from a place on."""
        return self._deck.at(place.mark, self._left(place))

    def _left(self, place: MixPlace) -> list[int | None]:
        return [loader.count(one) for loader, one in zip(self.loaders, place.loaders, strict=True)]

    def pass_after(self, place: MixPlace) -> MixPlace:
        """Return the start of the next pass; every loader that has an end is at the start of one of its own."""
        each = zip(self.loaders, place.loaders, self._left(place), strict=True)
        begun = tuple(one if count is None else loader.next_pass_after(one) for loader, one, count in each)
        return MixPlace(self._deck.start_of(place.mark.pass_number + 1), begun, place.source)

    # -- places and states ----------------------------------------------------------------------------------------

    def check_place(self, place: Any) -> None:
        """Raise TypeError or StateMismatch unless this is a place of a mix of such loaders with the same seed."""
        if not isinstance(place, MixPlace):
            raise not_a_place(place, "mix")
        if place.mark.seed != self._deck.seed or len(place.loaders) != len(self.loaders):
            raise StateMismatch(
                f"the place belongs to a mix of {len(place.loaders)} loaders with seed {place.mark.seed}; this one has "
                f"{len(self.loaders)} and seed {self._deck.seed}"
            )
        for loader, one in zip(self.loaders, place.loaders, strict=True):
            loader.check_place(one)

    def state_of(self, place: MixPlace) -> dict[str, Any]:
        """Return a place as small JSON: the draws made, and the states of all loaders."""
        self.check_place(place)
        states = [loader.state_of(one) for loader, one in zip(self.loaders, place.loaders, strict=True)]
        return self._deck.to_json(place.mark) | {"loaders": states}

    def place_of(self, state: Mapping[str, Any]) -> MixPlace:
        """Return the place of a state of the same loaders, in the same order, and seed; weights and `stop` may differ.

        Raises StateMismatch saying which part differs.
        """
        mark, states = self._deck.mark_of(state), state.get("loaders")
        if not isinstance(states, list) or len(states) != len(self.loaders):
            found = len(states) if isinstance(states, list) else repr(states)
            raise StateMismatch(f"cannot resume: the state has {found} loaders, this mix {len(self.loaders)}")
        places = []
        for index, (loader, one) in enumerate(zip(self.loaders, states, strict=True)):
            try:
                places.append(loader.place_of(one))
            except StateMismatch as error:
                raise StateMismatch(f"loader {index} of the mix: {error}") from error
        place = MixPlace(mark, tuple(places))
        # Under other weights the next draw may end the pass.
        return self.pass_after(place) if mark.num_draws and self.deck_at(place).next() is None else place

    def place_at(self, pass_number: int) -> MixPlace:
        """Return the place at the beginning of a pass, with every loader at the beginning of that pass of its own."""
        begun = tuple(loader.place_at(pass_number) for loader in self.loaders)
        return MixPlace(self._deck.start_of(pass_number), begun)

    def place_after(self, place: MixPlace, batches: int) -> MixPlace | None:
        """Return the place so many batches further; None where the pass has no batch there."""
        self.check_place(place)
        found = self._walk(place, at_least("batches", batches, 0))
        return found if found.mark.pass_number == place.mark.pass_number else None

    def pass_end(self, place: MixPlace) -> MixPlace:
        """Return the place behind the last batch of the pass that a place lies in; follows all its draws."""
        return self._walk(place, None)

    def _walk(self, place: MixPlace, batches: int | None) -> MixPlace:
        """Return the place so many batches further (None: all); at the end of the pass the start of the next one."""
        deck, taken, source = self.deck_at(place), [0] * len(self.loaders), place.source
        following = deck.next()
        while following is not None and (batches is None or sum(taken) < batches):
            source = following
            deck.took(source)
            taken[source] += 1
            following = deck.next()
        each = zip(self.loaders, place.loaders, taken, strict=True)
        places = (loader.place_after(one, n) or loader.pass_end(one) if n else one for loader, one, n in each)
        found = MixPlace(deck.mark, tuple(places), source)
        return found if following is not None else self.pass_after(found)

    def next_pass_after(self, place: MixPlace) -> MixPlace:
        """Return the beginning of the next pass; the place itself if it is the beginning of one."""
        return self.pass_after(place) if place.mark.num_draws else place

    def pass_of(self, place: MixPlace) -> int:
        """Return the number of the pass that a place lies in."""
        return place.mark.pass_number

    def count(self, place: MixPlace) -> int | None:
        """Return the batches from a place to the end of its pass; None: it has no end, or none that is known."""
        return self.deck_at(place).length()

    # -- what it says about itself ----------------------------------------------------------------------------------

    @property
    def source(self) -> int | None:
        """Index of the loader that the last batch came from; None before the first one."""
        return cast("int | None", self.place().source)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of every batch, in order."""
        return tuple(self.agreed.columns)

    @property
    def rank(self) -> int:
        """The rank the loaders read for."""
        return self.loaders[0].rank

    @property
    def world(self) -> int:
        """The number of ranks that share the order."""
        return self.loaders[0].world

    def inside(self) -> tuple[Loader, ...]:
        """Return the loaders of this mix and of those inside of it."""
        return tuple(one for loader in self.loaders for one in loader.inside())

    @property
    def skipped(self) -> list[Skipped]:
        """The rows that all loaders left out of received batches, loader by loader."""
        return [one for loader in self.loaders for one in loader.skipped]

    def stats(self) -> dict[str, float]:
        """Return the loaders' counters, added up."""
        total: Counter[str] = Counter()
        for loader in self.loaders:
            total.update(loader.stats())
        return dict(total)

    def __repr__(self) -> str:
        left = self.batches_left
        length = "endless" if left is None else f"{left} batches left"
        return f"Mix({len(self.loaders)} loaders, rank={self.rank}/{self.world}, {length})"

    def close(self) -> None:
        """Close all loaders; the mix cannot be used again."""
        super().close()
        with contextlib.ExitStack() as stack:  # one that fails does not keep the others open
            for loader in self.loaders:
                stack.callback(loader.close)


class MixStream(Stream[Batch]):
    """Deliveries of a mix: draws follow what was taken, the state what was acknowledged."""

    def __init__(self, owner: Mix, place: MixPlace, every: tuple[int, int], progress: tuple[Acknowledged, int]) -> None:
        self._mix = owner
        self._at = place
        """Behind what was taken."""
        self._deck = owner.deck_at(place)
        self._start, (self._first, self._step) = place, every
        self._progress, self._number = progress
        self._num_taken = 0
        self._is_through = False
        self._front: Callable[[], Stream[Any] | None] | None = None
        """Weak: the outermost stream with a thread that takes from here; None: the consumer takes."""
        self._streams: dict[int, Stream[Batch]] = {}
        """Of the loaders drawn so far."""
        self._unacknowledged: deque[tuple[MixPlace, int, Any]] = deque()
        self._lock = threading.RLock()
        self._taking = threading.RLock()

    @property
    def length(self) -> int | None:  # type: ignore[override]
        """Deliveries in all; follows the draws, about 30 ns each."""
        count = self._mix.count(self._start)
        return None if count is None else max(0, -(-(count - self._first) // self._step))

    @property
    def end(self) -> MixPlace:
        """The start of the next pass, known once `take` returned None."""
        return self._mix.pass_after(self._at) if self._at.mark.pass_number == self._start.mark.pass_number else self._at

    def take(self) -> Delivery[Batch] | None:
        """Return the next delivery; None at the end of the pass."""
        try:
            with self._taking:
                while True:
                    delivery = self._take()
                    if delivery is None or (self._num_taken - 1) % self._step == self._first:
                        return delivery
        except BaseException:  # an interrupt may have lost a batch: nothing comes after the gap
            self.release(why=FAILED)
            raise

    def _take(self) -> Delivery[Batch] | None:
        while not self._is_through:
            self._progress.check(self._number, taking=True)
            index = self._deck.next()
            if index is None:
                self._is_through = True
                break
            if index not in self._streams:
                stream = self._mix.loaders[index].stream(start=self._at.loaders[index])
                if self._front is not None:
                    stream.note_ahead(self)
                self._streams[index] = stream
            stream = self._streams[index]
            delivery = stream.take()
            if delivery is None:  # earlier than its length said, or it has none
                self._deck.ran_out(index)
                self._move(index, stream.end)
                continue
            batch = self._mix.agreed.complete(delivery.batch, index)
            self._deck.took(index)
            if self._deck.ended[index]:
                stream.take()  # None: gives back its threads and its memory now
            place = self._move(index, delivery.place)
            if self._deck.next() is None:
                self._at = place = self._mix.pass_after(place)
            self._num_taken += 1
            with self._lock:
                self._unacknowledged.append((place, index, delivery.place))
            return delivery._replace(batch=batch, place=place)
        return None

    def _move(self, index: int, place: Any) -> MixPlace:
        places = list(self._at.loaders)
        places[index] = place
        self._at = MixPlace(self._deck.mark, tuple(places), index)
        return self._at

    def received(self, place: MixPlace, waited_s: float = 0.0) -> None:
        """Acknowledge all deliveries up to a place, with the loaders they came from."""
        if self.is_over:  # a late acknowledgement is of an earlier place
            return
        self._progress.check(self._number)  # before the lock, which a forked child may never get
        waiting = self._unacknowledged
        with self._lock:
            is_end = False
            if not (waiting and waiting[0][0] is place):
                self._mix.check_place(place)
                is_end = self._is_through and not waiting and place.key == self.end.key
                if place.key > self._at.key and not is_end:
                    raise StateMismatch(f"{place} lies beyond {self._at}, the last that was taken from the stream")
                if place.key < self._progress.place.key:
                    return
            self._progress.received(self._number, place, is_end=is_end)
            while waiting and waiting[0][0].key <= place.key:
                _, index, one = waiting.popleft()
                self._streams[index].received(one, waited_s)
                waited_s = 0.0
            self.is_over = is_end

    def ready(self) -> int:
        """Return how many batches of the loader whose turn it is are made and wait."""
        index = None if self._is_through else self._deck.next()
        return self._streams[index].ready() if index in self._streams else 0

    def before_state(self, function: Callable[[], None]) -> None:
        """Have a function called by state_dict() and len() of the mix."""
        self._progress.before_state(self._number, function)

    def note_hand_over(self, seconds: float) -> None:
        """Count work between the engine and the consumer, for the loader drawn last."""
        if self._at.source is not None:
            self._streams[self._at.source].note_hand_over(seconds)

    def note_waiting(self, waiting: bool) -> None:
        """Note that the consumer begins or ends a wait."""
        for stream in list(self._streams.values()):
            stream.note_waiting(waiting)

    def note_ahead(self, front: Stream[Any]) -> None:
        """Note that a thread of `front` takes ahead of the consumer."""
        self._front = weakref.ref(front)
        for stream in self._streams.values():
            stream.note_ahead(self)

    def release(self, wait_s: float | None = None, why: str = STOPPED) -> None:
        """End the streams of all loaders."""
        self._progress.halt(self._number, why)
        with contextlib.ExitStack() as stack:
            for one in list(self._streams.values()):
                stack.callback(one.release, wait_s, why)

    def stop(self) -> None:
        """End the streams of all loaders, and the threads in front."""
        self.release()
        front = None if self._front is None else self._front()
        if front is not None:
            front.stop()


def _pair(index: int, pair: Any) -> tuple[BaseLoader, float]:
    if not isinstance(pair, tuple | list) or len(pair) != 2:  # not unpacked: a loader would give its batches
        raise PlanError(f"a mix takes pairs (loader, weight); item {index} is {pair!r}")
    loader, weight = pair
    if not isinstance(loader, BaseLoader):
        raise TypeError(
            f"a mix takes loaders, as Dataset.loader and mix give them; item {index} is a {type(loader).__name__} "
            f"of {type(loader).__module__}; give the mix to a framework's loader function, not its loaders to a mix"
        )
    if isinstance(weight, bool) or not isinstance(weight, Real) or not float(weight) > 0:
        raise PlanError(f"weights must be numbers above 0; that of loader {index} is {weight!r}")
    return loader, float(weight)
