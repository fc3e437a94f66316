"""`WeightedSamplingReader`: items drawn from several readers by probability, with Petastorm's signature.

Sits on top of readers as `make_reader` and `make_batch_reader` give them and looks like one, so that adapters take it
for one. It draws as `penstock.mix` with stop="first" does, from its own generator: NumPy's global one is
not used. Reads nothing itself.
"""

from __future__ import annotations

import contextlib
import secrets
from typing import TYPE_CHECKING, Any

from penstock.errors import StateMismatch
from penstock.petastorm._columns import row_type
from penstock.petastorm.cache import clean_up_after
from penstock.plan.draws import Deck, Draws
from penstock.schema.unischema import schema_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

__all__ = ["WeightedSamplingReader"]


class WeightedSamplingReader:
    """Gives rows (or batches, or n-grams) of several readers, each drawn from one of them.

    Ends when a reader is drawn that has nothing left, and stays ended until `reset()`; what the other readers had left
    is then left out. A reader with ``num_epochs=None`` never ends and continues where it was. The same seed gives the
    same draws; a row of the result is the drawn reader's own, its fields in the first reader's order.
    """

    def __init__(self, readers: Sequence[Any], probabilities: Sequence[float], seed: int | None = None) -> None:
        """Take readers of the same fields.

        Args:
            readers: Two or more; each keeps its own order, epochs, shard and workers.
            probabilities: One for each reader, at least 0; need not add up to 1.
            seed: Selects the draws, 0 <= seed < 2**64. None chooses one at random, kept in `state_dict()`: give a
                number if all ranks of a job should draw alike.

        Raises:
            ValueError: Fewer than two readers, not one probability for each, or readers that differ in fields, in
                n-grams, or in giving rows or batches.
        """
        self._readers = list(readers)
        _check(self._readers, list(probabilities))
        self._probabilities, self._seed = list(probabilities), seed
        self._deck = self._new_deck(secrets.randbits(63) if seed is None else seed)
        self._deck.begin([_left(reader) for reader in self._readers])
        self._over = False
        self._takes = [iter(reader).__next__ for reader in self._readers]
        names = list(self.schema.fields)
        self._reordered = [None if self.ngram is not None else _in_order(one.schema, names) for one in self._readers]

    # -- what it gives ------------------------------------------------------------------------------------------------

    @property
    def schema(self) -> Any:
        """The Unischema of the items: the first reader's."""
        return self._readers[0].schema

    @property
    def ngram(self) -> Any:
        """The n-gram that all readers give, or None."""
        return self._readers[0].ngram

    @property
    def batched_output(self) -> bool:
        """Whether items are batches of columns."""
        return bool(self._readers[0].batched_output)

    @property
    def is_batched_reader(self) -> bool:
        """The same as `batched_output`."""
        return self.batched_output

    @property
    def num_epochs(self) -> int | None:
        """None if no reader ends; else the value of the first reader that does."""
        found = [getattr(reader, "num_epochs", 1) for reader in self._readers]
        return next((epochs for epochs in found if epochs is not None), None)

    @property
    def last_row_consumed(self) -> bool:
        """Whether the end was reached since the last `reset()`."""
        return self._over or any(reader.last_row_consumed for reader in self._readers)

    @property
    def stopped(self) -> bool:
        """Whether `stop()` was called."""
        return any(getattr(reader, "stopped", False) for reader in self._readers)

    @property
    def diagnostics(self) -> dict[str, Any]:
        """How many items were drawn in this pass, and the diagnostics of each reader."""
        readers = [getattr(reader, "diagnostics", {}) for reader in self._readers]
        return {"draws": self._deck.num_draws, "readers": readers}

    # -- iteration ----------------------------------------------------------------------------------------------------

    def __iter__(self) -> WeightedSamplingReader:
        return self

    def __next__(self) -> Any:
        deck = self._deck
        index = deck.next()
        if index is None or self._over:
            self._over = True
            raise StopIteration
        try:
            item = self._takes[index]()
        except StopIteration:  # of a reader without a length
            deck.ran_out(index)
            self._over = True
            raise
        deck.took(index)
        reorder = self._reordered[index]
        return item if reorder is None else reorder(item)

    next = __next__

    def __bool__(self) -> bool:
        return True  # not by length, which an endless one does not have

    def __len__(self) -> int:
        """Return how many items are left until the end, exactly: the draws are followed; about 30 ns an item."""
        length = 0 if self._over else self._deck.length()
        if length is None:
            raise TypeError("no length: the readers that can end it have num_epochs=None, or no length themselves")
        return length

    def reset(self) -> None:
        """Start the next pass, also during a pass: every reader that ends starts its next pass."""
        for reader in self._readers:
            if getattr(reader, "num_epochs", 1) is not None:
                reader.reset()
        self._deck.advance()
        self._deck.begin([_left(reader) for reader in self._readers])
        self._over = False

    # -- state --------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the place as small JSON: seed, draws, and the states of all readers."""
        return self._deck.to_json() | {"readers": [reader.state_dict() for reader in self._readers]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where a state was taken, with readers of the same data in the same order.

        A reader that was made without `seed` takes the seed of the state.

        Raises:
            StateMismatch: The state is of other readers, or of another seed.
        """
        states = state.get("readers") if hasattr(state, "get") else None
        if not isinstance(states, list) or len(states) != len(self._readers):
            found = len(states) if isinstance(states, list) else repr(states)
            raise StateMismatch(f"cannot resume: the state has {found} readers, there are {len(self._readers)} here")
        seed = state.get("seed")
        deck = self._new_deck(seed if self._seed is None and type(seed) is int else self._deck.seed)
        mark = deck.mark_of(state)
        before = [reader.state_dict() for reader in self._readers]
        try:
            self._load_readers(states)
        except BaseException:
            self._load_readers(before)
            raise
        self._deck, self._over = deck.at(mark, [_left(reader) for reader in self._readers]), False

    def _load_readers(self, states: list[Any]) -> None:
        for index, (reader, state) in enumerate(zip(self._readers, states, strict=True)):
            try:
                reader.load_state_dict(state)
            except StateMismatch as error:
                raise StateMismatch(f"reader {index}: {error}") from error

    def _new_deck(self, seed: int) -> Deck:
        return Deck(Draws(self._probabilities, seed), "first")

    # -- the end ------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stop all readers."""
        self._each("stop")

    def join(self) -> None:
        """Wait for the threads and processes of all readers."""
        self._each("join")

    def cleanup_cache(self) -> None:
        """Clean up the caches of all readers, where they have any."""
        self._each("cleanup_cache")

    def _each(self, name: str) -> None:
        with contextlib.ExitStack() as stack:  # a reader that fails does not keep the others running
            for reader in reversed(self._readers):
                if hasattr(reader, name):
                    stack.callback(getattr(reader, name))

    def __enter__(self) -> WeightedSamplingReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self.join()
        clean_up_after(error, self.cleanup_cache)


def _left(reader: Any) -> int | None:
    try:
        return len(reader)
    except TypeError:
        return None


def _check(readers: list[Any], probabilities: list[float]) -> None:
    if len(readers) < 2:
        raise ValueError(f"WeightedSamplingReader takes two readers or more; got {len(readers)}")
    if len(readers) != len(probabilities):
        raise ValueError(
            f"one probability for each reader: got {len(readers)} readers and {len(probabilities)} probabilities"
        )
    if len({id(reader) for reader in readers}) < len(readers):
        raise ValueError("a reader is given twice; add up its probabilities, or make two of them")
    first = readers[0]
    for index, reader in enumerate(readers[1:], 1):
        if bool(reader.batched_output) != bool(first.batched_output):
            raise ValueError(
                f'all readers should have the same value of "batched_output": {first.batched_output} for reader 0, '
                f"{reader.batched_output} for reader {index}; make all with make_reader or all with make_batch_reader"
            )
        ours, theirs = set(first.schema.fields), set(reader.schema.fields)
        if ours != theirs:
            raise ValueError(
                f"all readers should have the same schema: only reader 0 has {sorted(ours - theirs)}, only reader "
                f"{index} has {sorted(theirs - ours)}; choose the same with schema_fields="
            )
        if reader.ngram != first.ngram:
            raise ValueError(
                f"all readers should have the same ngram: {first.ngram!r} for reader 0, {reader.ngram!r} for reader "
                f"{index}"
            )


def _in_order(schema: Any, names: list[str]) -> Callable[[Any], Any] | None:
    """Return what puts the values of an item into the order of `names`; None where they are in it."""
    own = list(schema.fields)
    if own == names:
        return None
    places = [own.index(name) for name in names]
    make = row_type(schema_name(schema), tuple(names))
    return lambda item: make._make([item[place] for place in places])
