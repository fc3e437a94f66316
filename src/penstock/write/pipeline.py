"""Run encode tasks on all cores: encodes in threads, stores in order, holds a bounded number of bytes.

`writer` submits tasks; `Pipeline` encodes them in a pool (codecs release the GIL where it matters), and one more thread
passes the batches to `files` in order. Cases: success: `drain` returns when all are stored; an error in a codec or on
the disk: nothing that follows is stored, and the next call raises it; `close`: tasks that have not started are dropped,
running ones finish first. No thread outlives `close`. A caller that would have to wait encodes meanwhile.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from penstock.write.options import EncodeTask

AHEAD_BYTES = 256 << 20
"""Most bytes of rows that are being encoded or wait for the disk, however many cores there are."""


class Pipeline:
    """Encodes and stores tasks; to be used by one thread."""

    def __init__(self, store: Callable[[pa.RecordBatch], None], *, threads: int) -> None:
        self._store = store
        self._most = threads + 2  # one being stored, one waiting, and one for each core
        self._helps = threads > 1
        self._threads = max(threads - 1, 1)  # the caller's own thread is the last one
        self._encoders = ThreadPoolExecutor(self._threads, thread_name_prefix="penstock-encode")
        self._storer = ThreadPoolExecutor(1, thread_name_prefix="penstock-store")
        self._waiting: deque[tuple[Future[pa.RecordBatch], EncodeTask]] = deque()
        """Tasks that no thread has started."""
        self._running: deque[tuple[Future[None], int]] = deque()
        self._begun = self._encoded = 0
        self._bytes = 0
        self._error: BaseException | None = None

    def submit(self, work: EncodeTask) -> None:
        """Take the next task; if too many are in progress, encode some of them here."""
        self._raise()
        encoded: Future[pa.RecordBatch] = Future()
        self._waiting.append((encoded, work))
        self._encoders.submit(self._encode_next)
        self._begun += 1
        self._running.append((self._storer.submit(self._finish, encoded), work.num_bytes))
        self._bytes += work.num_bytes
        while len(self._running) > self._most or (self._bytes > AHEAD_BYTES and len(self._running) > 1):
            # Encode a task that nobody has started; if there is none, wait until the oldest is stored.
            if self._helps and self._waiting and not self._running[0][0].done():
                self._encode_next()
            else:
                self._wait_one()

    def is_busy(self) -> bool:
        """Tell whether every thread has work and one more task waits: then the caller should encode itself."""
        return self._helps and self._begun - self._encoded > self._threads

    def _encode_next(self) -> None:
        """Encode the next task, in any thread; does nothing if there is none."""
        try:
            encoded, work = self._waiting.popleft()
        except IndexError:
            return
        try:
            encoded.set_result(work.make())
        except BaseException as error:  # noqa: BLE001 - raised where the batch is stored
            encoded.set_exception(error)
        finally:
            self._encoded += 1  # racy on purpose: the count only decides who encodes

    def call(self, function: Callable[[], Any]) -> Any:
        """Run a function in the storing thread, after all tasks so far, and return its result."""
        self.drain()
        return self._storer.submit(function).result()

    def drain(self) -> None:
        """Return when all tasks are stored."""
        while self._helps and self._waiting and self._error is None:
            self._encode_next()
        while self._running:
            self._wait_one()
        self._raise()

    def close(self) -> None:
        """Drop what has not started and end the threads; may be called twice."""
        self._error = self._error or RuntimeError("the writer is closed")
        self._encoders.shutdown(cancel_futures=True)
        while self._waiting:
            self._waiting.popleft()[0].cancel()
        self._storer.shutdown(cancel_futures=True)
        self._running.clear()

    def _finish(self, encoded: Future[Any]) -> None:
        """Store one batch, in the storing thread; nothing is stored after an error."""
        if self._error is not None:
            return
        try:
            self._store(encoded.result())
        except BaseException as error:  # noqa: BLE001 - handed to the caller, in whose thread it is raised
            self._error = error

    def _wait_one(self) -> None:
        future, size = self._running.popleft()
        self._bytes -= size
        future.result()
        self._raise()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error
