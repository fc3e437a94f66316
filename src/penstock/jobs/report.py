"""The results of a job: the values that `map_files` returns or raises, and their text.

Filled by `map_files`; plain values that can be pickled, compared and printed. Decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.display import count_text
from penstock.errors import printable

MOST_SHOWN = 20
"""Failures that a message lists; the report has them all."""


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """One failed attempt at one file."""

    input: str
    output: str
    attempt: int
    """Counted from 1."""
    cause: str
    """The error in one line: its type and message, or how the worker ended."""
    traceback: str
    """The whole error if it was raised in Python; else empty."""
    final: bool
    """Whether it was the last one: there is no output."""

    def __str__(self) -> str:
        return printable(f"{self.input} -> {self.output}, attempt {self.attempt}: {self.cause}")


@dataclass(frozen=True, slots=True)
class JobReport:
    """What `penstock.map_files` did."""

    done: tuple[str, ...]
    """Outputs written by this run, in the order of the inputs."""
    skipped: tuple[str, ...]
    """Outputs that existed already."""
    failed_attempts: tuple[FailedAttempt, ...]
    """Every failed attempt, including those followed by a successful one, in the order in which they failed."""

    @property
    def failed(self) -> tuple[FailedAttempt, ...]:
        """The last attempt at each file that has no output."""
        return tuple(attempt for attempt in self.failed_attempts if attempt.final)

    def __str__(self) -> str:
        made_up = len(self.failed_attempts) - len(self.failed)
        text = f"{len(self.done):,} done, {len(self.skipped):,} skipped, {len(self.failed):,} failed"
        return f"{text} ({count_text(made_up, 'failed attempt')} made up for)" if made_up and not self.failed else text

    def failure_text(self, *, skip_existing: bool) -> str:
        """Return the message of the error: how many failed, which, why, and what to do."""
        failed = self.failed
        total = len(failed) + len(self.done) + len(self.skipped)
        head = f"{len(failed):,} of {count_text(total, 'file')} failed; the other outputs are complete"
        again = ", and running the same call again tries only the ones that are missing"
        if not skip_existing:  # outputs of an earlier run may still exist, so none need be missing
            again = (
                ". Outputs that failed are as they were before. With skip_existing=False the same call makes all files "
                "again; for the failed ones alone pass [(one.input, one.output) for one in error.report.failed]"
            )
        lines = [f"{head}{again}:"]
        lines += [f"  {attempt}" for attempt in failed[:MOST_SHOWN]]
        if len(failed) > MOST_SHOWN:
            lines.append(f"  ... and {len(failed) - MOST_SHOWN:,} more: see the report of this error")
        return "\n".join(lines)
