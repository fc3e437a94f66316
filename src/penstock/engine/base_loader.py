"""What a loader and a mix have in common: places, states and facts; all that a framework needs of either.

Streams and passes are those of `delivery.StreamedPasses`; a subclass says how places become states and streams.
`LoaderProxy` is the base class of the frameworks' loaders: they map the stream and leave passes, length, state and
counters to the loader or mix behind them, so that there is one record of what the consumer has received.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from penstock.engine.delivery import ClosedOnExit, StreamedPasses

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.engine.loader import Loader
    from penstock.engine.locate import Skipped
    from penstock.engine.report import Report
    from penstock.plan.plan import Plan


class BaseLoader(StreamedPasses):
    """Iterable of batches in an order that can be saved and resumed; base class of `Loader` and `Mix`.

    Iterating again after the end, or after `break`, starts the next pass; after `load_state_dict` iteration resumes
    exactly where the state was taken. One iterator at a time: a new one ends the one before it, which raises
    LoaderClosed if it is asked for more.
    """

    def __getitem__(self, index: Any) -> Any:
        """Raise TypeError: batches come in order only."""
        raise TypeError(
            "a loader is iterated, not indexed: dataset[i] and dataset.take() give rows by number, and "
            "penstock.torch.loader takes the place of a torch DataLoader"
        )

    def __len__(self) -> int:
        """Return the batches that this iteration gives in all, or that the next one will; exact, constant in a pass."""
        self._progress.settle()
        stream = self._stream()
        length = self.count(self.next_start()) if stream is None or stream.is_over else stream.length
        if length is None:
            raise TypeError(self._endless)
        return length

    @property
    def batches_left(self) -> int | None:
        """Batches of this pass that the consumer has not received yet; None if passes have no end."""
        place = self.place()
        # The place behind the last batch is the start of the next pass.
        return 0 if self._progress.in_pass and self.pass_of(place) != self._begun else self.count(place)

    # -- places and states ----------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the place of this run as small JSON: what the consumer has received, not what was prefetched.

        The same on every rank at the same step; under remainder="uneven", where ranks have unequal numbers of batches,
        only in the first epoch of a pass: in later ones it names its rank, and only that rank can resume from it.
        After the last batch of a pass it is the start of the next one; see `pass_number`. Costs microseconds; the
        first time 3 to 15 for each column chunk, to digest what the footers say about them.
        """
        return self.state_of(self.place())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state: of any world, batch size, workers, window or columns, of the same dataset, rows and seed.

        Ends a running iterator. Raises StateMismatch saying which part differs, and BudgetError where the lanes and
        block of the state need more memory than there is; then nothing has changed.
        """
        self.check_open()  # before a state that does not fit is reported
        self.go_to(self.place_of(state))

    @property
    def pass_number(self) -> int:
        """The pass, counted from 0, that the next batch belongs to; with epochs=None the epoch.

        It moves on with the last batch of a pass, as the state does: after 10 passes it is 10, also in a loader that
        has loaded the state of then. Under remainder="uneven", ranks with fewer batches move on when their loop ends.
        """
        return self.pass_of(self.place())

    @abstractmethod
    def state_of(self, place: Any) -> dict[str, Any]:
        """Return a place as small JSON."""

    @abstractmethod
    def place_of(self, state: Mapping[str, Any]) -> Any:
        """Return the place of a state; StateMismatch or BudgetError if this loader cannot resume from it."""

    @abstractmethod
    def place_at(self, pass_number: int) -> Any:
        """Return the place at the beginning of a pass, counted from 0."""

    @abstractmethod
    def place_after(self, place: Any, batches: int) -> Any:
        """Return the place so many batches further; None where the pass has no batch there."""

    @abstractmethod
    def pass_after(self, place: Any) -> Any:
        """Return the beginning of the pass after the one that a place lies in."""

    def pass_end(self, place: Any) -> Any:
        """Return the place behind the last batch of the pass that a place lies in."""
        return self.pass_after(place)

    @abstractmethod
    def count(self, place: Any) -> int | None:
        """Return the batches from a place to the end of its pass; None: it has no end."""

    # -- what it says about itself ----------------------------------------------------------------------------------

    _endless = "a loader with epochs=None has no length"

    @property
    @abstractmethod
    def rank(self) -> int:
        """The rank this loader reads for."""

    @property
    @abstractmethod
    def world(self) -> int:
        """The number of ranks that share the order."""

    @abstractmethod
    def inside(self) -> tuple[Loader, ...]:
        """Return the loaders that read: a loader itself, or all those of a mix."""

    @property
    def full_batches(self) -> int | None:
        """Rows of every batch, where all batches are sure to have the same number; else None."""
        sizes = {loader.full_batches for loader in self.inside()}
        return sizes.pop() if len(sizes) == 1 else None

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...] | None:
        """Names of the columns of every batch, in order; None where a function of the user decides."""

    @property
    @abstractmethod
    def skipped(self) -> list[Skipped]:
        """The rows left out of received batches under on_error="skip", each once, in the order of delivery."""

    @abstractmethod
    def stats(self) -> dict[str, float]:
        """Return counters: rows, batches, bytes and chunks read, seconds the consumer waited, seconds of each stage."""

    def report(self) -> Report:
        """Return where the time of the last steps went and what would help; loaders have one, a mix asks its own."""
        raise TypeError("a mix has no report of its own; ask its loaders: mix.loaders[0].report()")

    @property
    def plan(self) -> Plan:
        """What a loader does from here to the end of the epoch; a mix asks its own."""
        raise TypeError("a mix has no plan of its own; ask its loaders: mix.loaders[0].plan")

    def num_waiting(self) -> int:
        """Return how many batches are made and wait for the consumer."""
        stream = self._stream()
        return 0 if stream is None else stream.ready()

    def __reduce__(self) -> Any:
        raise TypeError("a loader is not pickled or copied; make one in the other process and give it the state_dict()")


class LoaderProxy(ClosedOnExit):
    """Forwards to the loader or mix in `native`."""

    native: BaseLoader
    """The loader or mix that does the work; set by the subclass."""

    def __len__(self) -> int:
        return len(self.native)

    @property
    def batches_left(self) -> int | None:
        """Batches of this pass that the consumer has not received; None: it has no end."""
        return self.native.batches_left

    @property
    def pass_number(self) -> int:
        """The pass, counted from 0, that the next batch belongs to; moves on with the last batch of a pass."""
        return self.native.pass_number

    def next_pass(self) -> None:
        """End a running iterator and go to the beginning of the next pass, unless this is the beginning of one."""
        self.native.next_pass()

    def state_dict(self) -> dict[str, Any]:
        """Return the place of this run as small JSON: what the consumer has received; the same on every rank."""
        return self.native.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state: of any world, batch size or framework, of the same dataset, rows and seed."""
        self.native.load_state_dict(state)

    def stats(self) -> dict[str, float]:
        """Return counters: rows, batches, bytes and chunks read, seconds waited, seconds of each stage."""
        return self.native.stats()

    def report(self) -> Report:
        """Return where the time of the last steps went and what would help, to print: see docs/stalls.md."""
        return self.native.report()

    @property
    def skipped(self) -> list[Skipped]:
        """The rows left out so far under on_error="skip"."""
        return self.native.skipped

    @property
    def plan(self) -> Plan:
        """What this loader does from here to the end of the epoch; print it."""
        return self.native.plan

    @property
    def rank(self) -> int:
        """The rank this loader reads for."""
        return self.native.rank

    @property
    def world(self) -> int:
        """The number of ranks that share the order."""
        return self.native.world

    def close(self) -> None:
        """Stop threads and processes; the loader cannot be used again. What was handed out stays valid."""
        self.native.close()
