"""`penstock.map_files`: apply a function or a program to many files, in parallel and restartable.

The only module of this package that sees all its parts: `files` pairs inputs with outputs, `executors` run the
attempts, `task` is one attempt, `JobReport` lists the results. Retries are here, the same for all executors.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from collections import deque
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from penstock.display import count_text
from penstock.errors import JobFailed, PlanError, printable
from penstock.jobs.executors import Executor, make_executor
from penstock.jobs.files import SCRATCH, Outputs, Resolver, make_pairs, sweep, there
from penstock.jobs.task import Attempt, Command, FileJob, Outcome, failure
from penstock.options import one_of
from penstock.progress import Progress, progress
from penstock.storage.locks import scratch_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


logger = logging.getLogger(__name__)

RETRIES = 2


def map_files(  # noqa: PLR0913 -- a public function takes flat keywords
    fn: Callable[[str, str], object] | Sequence[str | os.PathLike[str]],
    inputs: Any,
    outputs: Outputs | None = None,
    *,
    executor: Any = "local",
    workers: int | None = None,
    retries: int = RETRIES,
    skip_existing: bool = True,
    stage: bool = True,
    on_error: Literal["raise", "skip"] = "raise",
    executor_options: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    filesystem: Any = None,
) -> JobReport:
    """Call `fn(input_path, output_path)` for many files in parallel; return what was done.

    Every output appears complete or not at all: `fn` writes to a hidden name, which becomes the output when `fn`
    returns. So an interrupted job is simply run again: existing outputs are skipped. Files are started in order and
    finish in any order. The return value of `fn` is ignored.

        >>> penstock.map_files(shrink, "raw/*.tar", "small/")
        >>> penstock.map_files(shrink, "s3://b/raw-{0000..0999}.tar", "s3://b/small-{0000..0999}.tar", executor="ray")
        >>> penstock.map_files(["ffmpeg", "-i", "{input}", "{output}"], "videos/*.mov", "videos/{stem}.mp4")

    Args:
        fn: A function of two paths, or a program as a list of words, in which `{input}` and `{output}` stand for the
            paths; one that is not named is the program's standard input or output.
        inputs: A pattern, a folder, numbered names (`{0000..0147}`), a file, or a list of files. Without `outputs`:
            pairs of (input, output), or a dict.
        outputs: A folder (a name without an extension, or with a trailing slash), for one input also a file, a template
            with `{name}`, `{stem}`, `{suffix}`, `{relative}` (path below the pattern's or input's folder) or `{index}`
            (`{index:05d}`), numbered names, a list, or a function of the input.
        executor: "local" (processes of this machine), "ray", "spark" (the active session), "serial" (in this process,
            for debugging), or any object with a `submit` like the executors of `concurrent.futures`.
        workers: Attempts at once; default: the cores of this machine, or as many as the cluster takes.
        retries: Further attempts at a file after the first one failed or lost its worker.
        skip_existing: Skip files whose output exists. False: make them again, each replaced in one step.
        stage: Whether `fn` gets local copies of files on a store. False: it gets URLs, and what it uploads to the
            hidden URL is moved to its place.
        on_error: "raise" after all files have been tried, or "skip": only list failures in the report.
        executor_options: Keywords of `ray.remote`, such as `{"num_cpus": 4}`.
        storage_options: For the filesystem of URLs.
        filesystem: A pyarrow or fsspec filesystem to use instead.

    Raises:
        JobFailed: Files have no output; its `report` and its message list them, with attempt and cause.
        PlanError: Inputs and outputs do not match, or `fn` cannot be sent to other processes.
        DatasetNotFound: A pattern or folder matches no files.
    """
    one_of("on_error", on_error, ("raise", "skip"))
    for name, value, least in (("retries", retries, 0), ("workers", workers, 1)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise PlanError(f"{name} must be a whole number of at least {least}; got {value!r}")
    store = Resolver(storage_options, filesystem)
    pairs = make_pairs(inputs, outputs, store)
    targets = [output for _, output in pairs]
    skipped = there(store, targets) if skip_existing else set()
    tasks = [Attempt(index, *pair, attempt=1) for index, pair in enumerate(pairs) if pair[1] not in skipped]
    run = _JobLoop(retries)
    token = os.urandom(3).hex()
    with contextlib.ExitStack() as after:
        # For downloads and uploads of workers on this machine; workers elsewhere have their own.
        here = executor in ("local", "serial")
        scratch = after.enter_context(scratch_folder(tempfile.gettempdir(), SCRATCH)) if here else None
        job = FileJob(_function(fn), store, skip_existing, stage, scratch, token)
        engine = make_executor(executor, job, workers, executor_options)
        after.callback(sweep, store, targets, token)
        if tasks:
            label = str(fn[0]) if isinstance(fn, list | tuple) else getattr(fn, "__name__", type(fn).__name__)
            after.enter_context(engine)
            run.drive(tasks, engine, after.enter_context(progress(len(tasks), label, unit="files")))
    report = run.report(tuple(output for output in targets if output in skipped))
    if report.failed and on_error == "raise":
        raise JobFailed(report.failure_text(skip_existing=skip_existing), report=report)
    return report


class _JobLoop:
    """The loop of a job: submit, wait, retry."""

    def __init__(self, retries: int) -> None:
        self._most = retries + 1
        self._done: dict[int, str] = {}
        self._failed: list[FailedAttempt] = []

    def drive(self, tasks: Sequence[Attempt], engine: Executor, bar: Progress) -> None:
        """Run every task until it succeeds or has failed for the last time."""
        waiting, running = deque(tasks), dict[Future[Outcome], Attempt]()
        while waiting or running:
            while waiting and len(running) < engine.room:
                task = waiting.popleft()
                running[engine.submit(task)] = task
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                task = running.pop(future)
                try:
                    outcome = future.result()
                except (Exception, CancelledError) as error:  # noqa: BLE001 -- each executor's class for a lost worker
                    outcome = replace(failure(error), traceback="")
                again = self._settle(task, outcome)
                if again is not None:
                    waiting.append(again)  # after the others: the cause may be gone by then
                else:
                    bar.update()

    def _settle(self, task: Attempt, outcome: Outcome) -> Attempt | None:
        """Record how an attempt ended; return the next attempt, if there is one."""
        if outcome.cause is None:
            self._done[task.index] = task.output
            return None
        final = task.attempt >= self._most
        failed = FailedAttempt(task.input, task.output, task.attempt, outcome.cause, outcome.traceback, final)
        self._failed.append(failed)
        if final:
            return None
        logger.info("%s; it is tried again, %d of %d", failed, task.attempt + 1, self._most)
        return replace(task, attempt=task.attempt + 1)

    def report(self, skipped: tuple[str, ...]) -> JobReport:
        """Return the results for all files."""
        return JobReport(tuple(self._done[index] for index in sorted(self._done)), skipped, tuple(self._failed))


def _function(fn: Any) -> Callable[[str, str], object]:
    if isinstance(fn, list | tuple):
        return Command.of(fn)
    if isinstance(fn, str):
        raise PlanError(f"pass a program as a list of words, {fn.split()!r}, not as one string: no shell is involved")
    if not callable(fn):
        raise PlanError(f"fn must be a function of (input_path, output_path) or a list of words; got {fn!r}")
    return fn  # type: ignore[no-any-return]


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
