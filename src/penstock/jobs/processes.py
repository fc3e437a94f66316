"""Worker processes on this machine: each owned by a thread that notices its death and starts another one.

`executors` passes tasks to the threads; a thread has one task in its process at a time. Liveness:

- a process that dies (killed, out of memory, a crash in native code) shows as a closed pipe: the attempt is
  `WorkerDied` and the next task gets a new process;
- success, error, Ctrl-C: closing kills the processes with everything they started, then the threads end;
- this process is killed: every worker watches for that and ends with everything it started.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import connection as mp_connection
from typing import TYPE_CHECKING, Any

from penstock.engine.process import choice_left_open, ctrl_c_later, main_left_alone, signal_name
from penstock.errors import PlanError, WorkerDied
from penstock.jobs.task import failure, run

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from penstock.jobs.task import Attempt, FileJob, Outcome

_BEGUN = b"begun"
"""First message of a process: from then on, the user's function is the cause if it ends."""
_starting = threading.Lock()
"""Starting a process hides the user's script from it, for a moment, for all threads."""


class LocalPool:
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

    def __enter__(self) -> LocalPool:
        return self

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
        # Not a daemon: the user's function may start processes of its own.
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
        outcome: Outcome = pickle.loads(answer)
        return outcome

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
