"""One attempt at one file: what runs in a worker, wherever that is.

`map_files` sends a `FileJob` once and an `Attempt` for every try; `run` makes the input available locally, calls the
user's function, commits the output and returns a small value. Errors of the user's function are returned as text,
because an exception may not be picklable. Does not retry.

A `Command` is a program instead of a Python function. No shell is involved: every word of its list is one argument,
with any content. `{input}` and `{output}` stand for the two paths; if a command does not name one, its standard
input or output is that file, as in a pipe.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import subprocess
import time
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.engine.process import signal_name
from penstock.errors import JobFailed, PlanError
from penstock.jobs.files import Resolver, committed, committed_url, exists, is_local, near

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


BACKOFF_S = 0.1
"""Pause before the second attempt, doubled for every further one: a store may throttle requests."""
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
        is_near = job.stage or is_local(store, task.input)
        source = places.enter_context(near(store, task.input, scratch)) if is_near else task.input
        if job.stage or is_local(store, task.output):
            target = places.enter_context(committed(store, task.output, scratch, job.token))
        else:
            target = places.enter_context(committed_url(store, task.output, job.token))
        job.function(source, target)


_SHOWN_BYTES = 2000
"""The last bytes that a program wrote to stderr are part of the error."""


@dataclass(frozen=True, slots=True)
class Command:
    """A program with its arguments; called as `command(input_path, output_path)`."""

    words: tuple[str, ...]

    @classmethod
    def of(cls, words: Sequence[object]) -> Command:
        """Check a list of words; a misspelt `{output}` is an error instead of being passed to the program."""
        if not words:
            raise PlanError("the command is empty; give a list such as ['gzip', '-c', '{input}']")
        texts = []
        for word in words:
            if not isinstance(word, str | os.PathLike):
                raise PlanError(f"a command is a list of words; got {word!r} in it")
            text = os.fspath(word)
            for name in re.findall(r"\{(\w+)\}", text):
                near = difflib.get_close_matches(name, ["input", "output"], n=1)
                if near and name != near[0]:
                    raise PlanError(f"the command contains {{{name}}}; did you mean {{{near[0]}}}?")
            texts.append(text)
        return cls(tuple(texts))

    def __call__(self, source: str, target: str) -> None:
        """Run the program.

        Raises:
            JobFailed: it could not be started, or ended with another status than 0; with the end of its stderr.
        """
        words = [word.replace("{input}", source).replace("{output}", target) for word in self.words]
        try:
            with contextlib.ExitStack() as files:
                stdin, stdout = subprocess.DEVNULL, subprocess.DEVNULL
                if not self._names("{input}"):
                    stdin = files.enter_context(open(source, "rb")).fileno()
                if not self._names("{output}"):
                    stdout = files.enter_context(open(target, "xb")).fileno()
                done = subprocess.run(words, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, check=False)
        except FileNotFoundError as error:
            if error.filename != words[0]:
                raise
            raise JobFailed(f"no program {words[0]!r} on this machine; install it where the workers run") from error
        if done.returncode:
            status = done.returncode
            how = f"ended with status {status}" if status > 0 else f"was killed by {signal_name(-status)}"
            tail = " ".join(done.stderr[-_SHOWN_BYTES:].decode("utf-8", "replace").split())
            raise JobFailed(f"{words[0]} {how}: {tail or 'it wrote nothing to stderr'}")

    def _names(self, what: str) -> bool:
        return any(what in word for word in self.words)
