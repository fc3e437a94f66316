"""Where attempts run: this process, processes of this machine, Ray, Spark, or an executor of the user.

`map_files` sees one interface: a context manager with `submit(task)`, which returns a `concurrent.futures.Future` of an
`Outcome`, and `room`, how many tasks it wants at once. A lost worker makes its future fail; retrying is left to the
caller, so all executors retry and report alike. Ray and Spark are imported when they are used.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol, Self

from penstock.engine.host import cores
from penstock.errors import PlanError
from penstock.jobs.processes import LocalPool
from penstock.jobs.task import Outcome, run

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.jobs.task import Attempt, FileJob

NAMES = ("local", "ray", "spark", "serial")
RAY_ROOM = 1000
"""Tasks that Ray knows of at once: enough for an autoscaler to see the demand."""


class Executor(Protocol):
    """What `map_files` needs."""

    room: int
    """Tasks to have submitted at once."""

    def submit(self, task: Attempt) -> Future[Outcome]:
        """Start an attempt."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...


def make_executor(executor: Any, job: FileJob, workers: int | None, options: Mapping[str, Any] | None) -> Executor:
    """Return the executor that the user chose.

    Raises:
        PlanError: there is no such executor.
        ImportError: it is not installed; names the line that installs it.
    """
    if options and executor != "ray":
        raise PlanError(f"executor_options are the keywords of ray.remote; executor={executor!r} takes none")
    if executor == "local":
        return LocalPool(job, workers or cores())
    if executor == "serial":
        return Serial(job)
    if executor == "ray":
        return Ray(job, workers, options or {})
    if executor == "spark":
        return Spark(job, workers)
    if hasattr(executor, "submit"):
        return Theirs(job, executor, workers)
    raise PlanError(
        f"executor must be one of {', '.join(map(repr, NAMES))}, or have a submit() as those of concurrent.futures do; "
        f"got {executor!r}"
    )


class Serial:
    """Runs tasks in this process, one after another: for debugging."""

    room = 1

    def __init__(self, job: FileJob) -> None:
        self._job = job

    def submit(self, task: Attempt) -> Future[Outcome]:
        """Run a task now."""
        future: Future[Outcome] = Future()
        future.set_result(run(self._job, task))
        return future

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """Nothing to end."""


class Theirs:
    """An executor of the user: Dask, mpi4py, a ThreadPoolExecutor. It is not shut down here."""

    def __init__(self, job: FileJob, executor: Any, workers: int | None) -> None:
        self._job, self._executor = job, executor
        self._futures: set[Future[Outcome]] = set()
        self.room = workers or 4 * (getattr(executor, "_max_workers", None) or cores())

    def submit(self, task: Attempt) -> Future[Outcome]:
        """Submit a task to it."""
        future: Future[Outcome] = self._executor.submit(run, self._job, task)
        self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        return future

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for future in list(self._futures):
            future.cancel()


class Ray:
    """Tasks of a Ray cluster: the one this process is connected to, else the one that `ray.init()` finds or starts."""

    def __init__(self, job: FileJob, workers: int | None, options: Mapping[str, Any]) -> None:
        try:
            import ray
        except ImportError:
            raise ImportError("executor='ray' needs Ray: pip install 'penstock[ray]'") from None
        self._ray: Any = ray
        self.room = workers or RAY_ROOM
        self._job, self._options = job, options
        self._references: dict[Future[Outcome], Any] = {}

    def __enter__(self) -> Self:
        self._ours = not self._ray.is_initialized()
        if self._ours:
            self._ray.init()
        self._payload = self._ray.put(self._job)
        # Ray would retry a lost worker silently; the caller does it, and reports it.
        self._run = self._ray.remote(**{"max_retries": 0, **self._options})(_run_in_ray)
        return self

    def submit(self, task: Attempt) -> Future[Outcome]:
        """Submit a Ray task."""
        reference = self._run.remote(self._payload, task)
        future: Future[Outcome] = reference.future()
        self._references[future] = reference
        future.add_done_callback(lambda done: self._references.pop(done, None))
        return future

    def __exit__(self, *exc: object) -> None:
        for reference in list(self._references.values()):
            self._ray.cancel(reference, force=True)
        if self._ours:
            self._ray.shutdown()


def _run_in_ray(job: FileJob, task: Attempt) -> Outcome:
    return run(job, task)


class Spark:
    """Spark jobs of one task each, in the active session; classic and Connect alike.

    A job for each file costs some ten milliseconds on the driver; in return a lost executor or a bad file affects that
    file only.
    """

    def __init__(self, job: FileJob, workers: int | None) -> None:
        self._session, self._dumps = _spark()
        self._job = job
        context = _context(self._session)
        self.room = workers or (16 if context is None else max(1, int(context.defaultParallelism)))
        self._group = f"penstock-map-files-{id(self):x}"
        self._threads = ThreadPoolExecutor(self.room, thread_name_prefix="penstock-spark")

    def submit(self, task: Attempt) -> Future[Outcome]:
        """Start a Spark job from a thread."""
        return self._threads.submit(self._run, task)

    def _run(self, task: Attempt) -> Outcome:
        context = _context(self._session)
        if context is not None:
            context.setJobGroup(self._group, f"map_files: {task.input}", interruptOnCancel=True)
        payload = self._dumps((self._job, task))
        rows = self._session.range(0, 1, 1, 1).mapInArrow(functools.partial(_run_in_spark, payload), "outcome binary")
        outcome: Outcome = pickle.loads(bytes(rows.collect()[0][0]))
        return outcome

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        context = _context(self._session)
        if context is not None and exc[0] is not None:
            with contextlib.suppress(Exception):  # the session may be gone, perhaps the reason for the error
                context.cancelJobGroup(self._group)
        self._threads.shutdown(cancel_futures=True)


def _run_in_spark(payload: bytes, batches: Iterator[Any]) -> Iterator[Any]:
    import pyarrow as pa

    for _ in batches:  # one row without content
        pass
    outcome = pickle.dumps(run(*pickle.loads(payload)))
    yield pa.RecordBatch.from_arrays([pa.array([outcome], pa.binary())], names=["outcome"])


def _spark() -> tuple[Any, Any]:
    try:
        from pyspark import cloudpickle
        from pyspark.sql import SparkSession
    except ImportError:
        raise ImportError("executor='spark' needs PySpark: pip install 'penstock[spark]'") from None
    return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate(), cloudpickle.dumps


def _context(session: Any) -> Any:
    """Return the SparkContext, or None on Spark Connect, which has none."""
    try:
        return session.sparkContext
    except Exception:  # noqa: BLE001 -- PySpark's error for that has another class in every version
        return None
