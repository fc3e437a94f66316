"""Base class of the frameworks' loaders: everything but the batches themselves is that of the loader or mix behind.

A framework's loader maps the stream of a `Loader` or `Mix` (`batches`) and leaves passes, length, state and counters
to it, so that there is one record of what the consumer has received.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from penstock.engine.base_loader import BaseLoader
    from penstock.engine.locate import Skipped
    from penstock.engine.report import Report
    from penstock.plan.plan import Plan


class LoaderProxy:
    """Forwards to the loader or mix in `native`."""

    native: BaseLoader
    """The loader or mix that does the work; set by the subclass."""

    def __len__(self) -> int:
        return len(self.native)

    @property
    def batches_left(self) -> int | None:
        """BaseLoader of this pass that the consumer has not received; None: it has no end."""
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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
