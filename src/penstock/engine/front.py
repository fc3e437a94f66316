"""What a loader in front of another one says about itself: what the one behind says.

The loaders of the frameworks hand on the batches of an engine's loader in another form, and keep a place of their own.
Everything else a user asks them is asked here, of the loader behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from types import TracebackType

    from penstock.engine.build import Skipped
    from penstock.engine.report import Report
    from penstock.plan.plan import Plan


class Front:
    """A loader whose work another one does."""

    _behind: Any
    """The one that does it; set by the subclass."""

    def stats(self) -> dict[str, float]:
        """Return counters: rows, batches, bytes and chunks read, seconds waited, seconds of each stage."""
        found: dict[str, float] = self._behind.stats()
        return found

    def report(self) -> Report:
        """Return where the time of the last steps went and what would help, to print: see docs/stalls.md."""
        found: Report = self._behind.report()
        return found

    @property
    def skipped(self) -> list[Skipped]:
        """The rows left out so far under on_error="skip"."""
        found: list[Skipped] = self._behind.skipped
        return found

    @property
    def plan(self) -> Plan:
        """What this loader does from here to the end of the epoch; print it."""
        found: Plan = self._behind.plan
        return found

    @property
    def pass_number(self) -> int:
        """The pass, counted from 0, that the next batch belongs to; moves on with the last batch of a pass."""
        return int(self._behind.pass_number)

    @property
    def rank(self) -> int:
        """The rank this loader reads for."""
        return int(self._behind.rank)

    @property
    def world(self) -> int:
        """The number of ranks that share the order."""
        return int(self._behind.world)

    def close(self) -> None:
        """Stop threads and processes; the loader cannot be used again. What was handed out stays valid."""
        self._behind.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
