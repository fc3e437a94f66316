"""One attempt at one file: what runs in a worker, wherever that is.

`map_files` sends a `FileJob` once and an `Attempt` for every try; `run` makes the input available locally, calls the
user's function, commits the output and returns a small value. Errors of the user's function are returned as text,
because an exception may not be picklable. Does not retry.
"""

from __future__ import annotations

import contextlib
import time
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.jobs.files import committed, committed_url, exists, is_local, near

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.jobs.pairs import Resolver

BACKOFF_S = 0.1
"""Pause before the second attempt, doubled for every further one: a store may ask to slow down."""
_MOST_BACKOFF_S = 10.0


@dataclass(frozen=True, slots=True)
class FileJob:
    """What is the same for all files."""

    function: Callable[[str, str], object]
    store: Resolver
    skip_existing: bool
    stage: bool
    """Whether the function gets local paths for files on a store."""
    scratch: str | None
    """Folder for downloads and uploads; None: the worker's own temporary folder."""
    token: str
    """6 hex digits that all hidden names of this run begin with."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at one file."""

    index: int
    input: str
    output: str
    attempt: int
    """Counted from 1."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended."""

    cause: str | None = None
    """The error in one line; None: success."""
    traceback: str = ""


def run(job: FileJob, task: Attempt) -> Outcome:
    """Make one attempt; never raises for errors of the function, a file or a store."""
    try:
        if task.attempt > 1:
            time.sleep(min(_MOST_BACKOFF_S, BACKOFF_S * 2 ** (task.attempt - 2)))
            # The previous attempt may have succeeded on a worker that was lost before it could report.
            if job.skip_existing and exists(job.store, task.output):
                return Outcome()
        _apply(job, task)
    except (Exception, SystemExit) as error:  # noqa: BLE001 -- a user's function may raise anything; it is reported
        return failure(error)
    return Outcome()


def failure(error: BaseException) -> Outcome:
    """Return an error as an outcome."""
    message = " ".join(str(error).split())
    return Outcome(f"{type(error).__name__}: {message}", "".join(traceback.format_exception(error)))


def _apply(job: FileJob, task: Attempt) -> None:
    store, scratch = job.store, job.scratch
    with contextlib.ExitStack() as places:
        if job.stage or is_local(store, task.input):
            source = places.enter_context(near(store, task.input, scratch))
        else:
            source = task.input
        if job.stage or is_local(store, task.output):
            target = places.enter_context(committed(store, task.output, scratch, job.token))
        else:
            target = places.enter_context(committed_url(store, task.output, job.token))
        job.function(source, target)
