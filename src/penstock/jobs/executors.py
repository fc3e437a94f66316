"""Where attempts run: this process, processes of this machine, Ray, Spark, or an executor of the user.

`map_files` sees one interface: a context manager with `submit(task)`, which returns a `concurrent.futures.Future` of an
`Outcome`, and `room`, how many tasks it wants at once. A lost worker makes its future fail; retrying is left to the
caller, so all executors retry and report alike. Ray and Spark are imported when they are used.

Each process of this machine is owned by a thread (`LocalPool`), which has one task in its process at a time. Liveness:

- a process that dies (killed, out of memory, a crash in native code) shows as a closed pipe: the attempt is
  `WorkerDied` and the next task gets a new process;
- success, error, Ctrl-C: closing kills the processes with everything they started, then the threads end;
- this process is killed: every worker watches for that and ends with everything it started.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import pickle
import signal
import threading
from abc import ABC, abstractmethod
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import connection as mp_connection
from typing import TYPE_CHECKING, Any, Self, cast

from penstock.engine.host import cores
from penstock.engine.process import choice_left_open, ctrl_c_later, main_left_alone, signal_name
from penstock.errors import PlanError, WorkerDied
from penstock.jobs.task import Attempt, FileJob, Outcome, failure, run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from multiprocessing.connection import Connection


RAY_ROOM = 1000
"""Tasks that Ray knows of at once: enough for an autoscaler to see the demand."""


class Executor(ABC):
    """What `map_files` needs: a context manager that starts attempts."""

    room: int
    """Tasks to have submitted at once."""

    @abstractmethod
    def submit(self, task: Attempt) -> Future[Outcome]:
        """Start an attempt."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:  # noqa: B027 - most have something to end
        """End what was started here."""


def make_executor(executor: Any, job: FileJob, workers: int | None, options: Mapping[str, Any] | None) -> Executor:
    """Return the executor that the user chose.

    Raises:
        PlanError: there is no such executor.
        ImportError: it is not installed; names the line that installs it.
    """
    if options and executor != "ray":
        raise PlanError(f"executor_options are the keywords of ray.remote; executor={executor!r} takes none")
    makers: dict[str, Callable[[], Executor]] = {
        "local": lambda: LocalPool(job, workers or cores()),
        "ray": lambda: Ray(job, workers, options or {}),
        "spark": lambda: Spark(job, workers),
        "serial": lambda: Serial(job),
    }
    if isinstance(executor, str) and executor in makers:
        return makers[executor]()
    if hasattr(executor, "submit"):
        return Theirs(job, executor, workers)
    raise PlanError(
        f"executor must be one of {', '.join(map(repr, makers))}, or have a submit() like the executors of "
        f"concurrent.futures; got {executor!r}"
    )


class Serial(Executor):
    """Runs tasks in this process, one after another: for debugging."""

    room = 1

    def __init__(self, job: FileJob) -> None:
        self._job = job

    def submit(self, task: Attempt) -> Future[Outcome]:
        """Run a task now."""
        future: Future[Outcome] = Future()
        future.set_result(run(self._job, task))
        return future


class Theirs(Executor):
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

    def __exit__(self, *exc: object) -> None:
        for future in list(self._futures):
            future.cancel()


class Ray(Executor):
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
        self._run = self._ray.remote(**{"max_retries": 0, **self._options})(run)
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


class Spark(Executor):
    """Spark jobs of one task each, in the active session; classic and Connect alike.

    A job for each file costs some ten milliseconds on the driver; in return a lost executor or a bad file affects that
    file only.
    """

    def __init__(self, job: FileJob, workers: int | None) -> None:
        try:
            from pyspark import cloudpickle
            from pyspark.sql import SparkSession
        except ImportError:
            raise ImportError("executor='spark' needs PySpark: pip install 'penstock[spark]'") from None
        self._session: Any = SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
        self._dumps: Any = cloudpickle.dumps
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
        return cast("Outcome", pickle.loads(bytes(rows.collect()[0][0])))

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


def _context(session: Any) -> Any:
    """Return the SparkContext, or None on Spark Connect, which has none."""
    try:
        return session.sparkContext
    except Exception:  # noqa: BLE001 -- PySpark's error for that has another class in every version
        return None


_BEGUN = b"begun"
"""First message of a process: from then on, the user's function is the cause if it ends."""
_starting = threading.Lock()
"""Starting a process hides the user's script from it, for a moment, for all threads."""


class LocalPool(Executor):
    """Runs tasks in `workers` processes; a context manager."""

    def __init__(self, job: FileJob, workers: int) -> None:
        self.room = workers
        self._payload, self._needs_script = _pickled(job)
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="penstock-job")
        self._mine = threading.local()
        self._workers: list[_Worker] = []
        self._closed = False

    def submit(self, task: Attempt) -> Future[Outcome]:
        """Run a task in the next free process."""
        return self._threads.submit(self._run, task)

    def _run(self, task: Attempt) -> Outcome:
        worker = getattr(self._mine, "worker", None)
        if worker is None:
            worker = self._mine.worker = self._start()
        try:
            return worker.ask(task)
        except (EOFError, OSError) as error:
            self._mine.worker = None
            raise worker.died() from error

    def _start(self) -> _Worker:
        with _starting:
            if self._closed:
                raise WorkerDied("the job has ended")
            worker = _Worker(self._payload, needs_script=self._needs_script)
            self._workers.append(worker)
        return worker

    def __exit__(self, *exc: object) -> None:
        with _starting:
            self._closed = True
        for worker in self._workers:
            worker.end()
        self._threads.shutdown(cancel_futures=True)


class _Worker:
    """One process and the pipe to it."""

    def __init__(self, payload: bytes, *, needs_script: bool) -> None:
        context = multiprocessing.get_context("spawn")
        self._needs_script, self._has_begun = needs_script, False
        self._ended = False
        self._pipe, theirs = context.Pipe(duplex=True)
        # Not a daemon: the user's function may start processes.
        self._process = context.Process(target=_serve, args=(theirs, payload), name="penstock-job", daemon=False)
        hidden = contextlib.nullcontext() if needs_script else main_left_alone()
        with choice_left_open(), ctrl_c_later("spawn"), hidden:
            self._process.start()
        theirs.close()
        # multiprocessing would wait for it at exit; `end` kills it instead.
        getattr(multiprocessing.process, "_children", set()).discard(self._process)

    def ask(self, task: Attempt) -> Outcome:
        """Send a task and wait for its outcome, or for the end of the process."""
        self._pipe.send_bytes(pickle.dumps(task))
        answer = self._receive()
        if answer == _BEGUN:
            self._has_begun = True
            answer = self._receive()
        return cast("Outcome", pickle.loads(answer))

    def _receive(self) -> bytes:
        ready = mp_connection.wait([self._pipe, self._process.sentinel])
        if self._pipe not in ready and not self._pipe.poll():
            raise EOFError
        return self._pipe.recv_bytes()

    def died(self) -> WorkerDied:
        """Return the error for a process that has ended, and kill what it started."""
        mp_connection.wait([self._process.sentinel], 1)  # not join: its pid must stay reserved until `end` is done
        self.end()
        code = self._process.exitcode
        how = f"ended with exit code {code}" if code is None or code >= 0 else f"was killed by {signal_name(-code)}"
        hint = ""
        if code == -9:
            hint = "; the system kills processes when memory runs out: fewer workers= may help"
        elif code == 1 and not self._has_begun:
            hint = " before it began; see its traceback above"
            if self._needs_script:  # it imports the user's script, which may start processes in turn
                hint += ": a script that starts processes needs `if __name__ == '__main__':`"
        return WorkerDied(f"the worker process (pid {self._process.pid}) {how}{hint}")

    def end(self) -> None:
        """Kill the process and everything it started. May be called twice."""
        ended, self._ended = self._ended, True
        pid = self._process.pid
        if ended or pid is None:
            return
        if hasattr(os, "killpg"):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)  # its process group has its pid
        self._process.kill()
        self._process.join()


def _pickled(job: FileJob) -> tuple[bytes, bool]:
    """Return the pickled job, and whether workers must import the user's script to find its function."""
    try:
        plain: bytes | None = pickle.dumps(job)
        failure: Exception | None = None
    except Exception as error:  # noqa: BLE001 -- a user's object may raise anything when pickled
        plain, failure = None, error
    if plain is not None and b"_main__" not in plain:
        return plain, False
    try:
        import cloudpickle

        return cloudpickle.dumps(job), False
    except ImportError:
        pass
    except Exception as error:  # noqa: BLE001 -- as above
        failure = error
    if plain is not None:
        return plain, True
    raise PlanError(
        f"the function cannot be sent to other processes: {failure}; define it at the top level of a module, make what "
        "it needs inside it, or pip install cloudpickle"
    ) from failure


# -- the other process -------------------------------------------------------------------------------------------------


def _serve(pipe: Connection, payload: bytes) -> None:
    """Run tasks until the pipe closes; runs in the worker process."""
    if hasattr(os, "setsid"):
        os.setsid()  # own process group: its children end with it, and Ctrl-C reaches only the parent
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # programs that it starts would inherit an ignored signal
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_watch_parent, daemon=True).start()
    job: Any = None
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        pipe.send_bytes(_BEGUN)
        while True:
            task = pickle.loads(pipe.recv_bytes())
            try:
                job = pickle.loads(payload) if job is None else job
                outcome = run(job, task)
            except BaseException as error:  # noqa: BLE001 -- Ctrl-C does not arrive here: the function raised it
                outcome = failure(error)
            pipe.send_bytes(pickle.dumps(outcome))


def _watch_parent() -> None:
    """End this process, and everything it started, when its parent is gone."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        mp_connection.wait([parent.sentinel])
    if hasattr(os, "killpg"):
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
