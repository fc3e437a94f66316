"""One run of a loader: threads that read, gather and decode ahead, and the consumer that takes batches in order.

All shared state lives in `Scheduler` under one condition. A worker picks a task under the lock, does it without, and
notes the result under the lock; without workers the consumer does so. Tasks, in order of preference: build the next
span whose chunks are loaded; index the span after those; read what the next span needs; plan the next epoch; read
ahead.

What happens to the threads, in every case:

- **End of the pass.** The last batch is out, `next` returns None, and the threads are stopped and joined.
- **break, del, garbage collection.** The iterator's finalizer stops the run; threads end after the task they are in.
- **Exception in the consumer.** The same, as soon as the traceback releases the iterator, or on `close()`.
- **Exception in a task** (file, codec, transform). Kept with the span it belongs to and raised when the consumer gets
  there, after every batch before it; then the run is stopped.
- **Ctrl-C.** The consumer waits on a condition, which a signal interrupts; the run is stopped, the error propagates.
- **A process of the pool dies.** Its thread sees the closed pipe and keeps a WorkerDied with the span (see `process`).
- **Interpreter exit.** Threads are daemons, so exit does not wait for them; the finalizer stops and joins them first,
  for at most `EXIT_WAIT_S` beyond a running call.
- **Fork.** A child has none of these threads: a stream's `take` raises LoaderClosed there instead of waiting forever.

No hang: a read that the next batch needs is always allowed when the consumer waits and nothing else is running, even
beyond the budget (the user may hold on to any number of batches).
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from penstock.engine.build import Builder, Results, Span, go_on, index_span
from penstock.engine.delivery import AWAITED, Built
from penstock.engine.gather import Chunk, LostChunk
from penstock.engine.residency import EpochWork, Read, Residency
from penstock.errors import LoaderClosed
from penstock.halt import OwnThread, wait_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.plan import EpochPlan
    from penstock.plan.order import Grouping

_INDEXED_AHEAD = 2
_LOOK_S = 1.0
"""A consumer that waits looks around this often: on Windows Ctrl-C does not interrupt a wait without end."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How wide a run may spread out."""

    workers: int
    """Threads; 0: the consumer does everything itself."""
    span_batches: int
    """Most batches gathered together."""
    ahead_spans: int
    """Most spans that are built, or being built, and not yet delivered."""
    num_chunks: int
    """Row groups of the dataset."""
    views: bool
    """Whether views of a chunk may be handed out: where no other epoch uses it, and no row comes twice."""
    last_epoch: int | None
    """The last epoch of the run; None: there is none."""
    positions: bool
    """Whether global positions are asked for: by the transform, or for the mask of padding."""
    items: Grouping
    """What a plan deals out."""
    batch_items: int
    """Most items of a batch."""
    batch_size: int
    """Items of a step; a batch may have several."""
    aligned: bool = False
    """Whether batches end with the chunk they come from."""
    every: tuple[int, int] = (0, 1)
    """Which batches of the run are built here: number `every[0]`, and every `every[1]`-th after it."""

    def work(self, plan: EpochPlan, base: int, before: int) -> EpochWork:
        """Return an epoch of the run that begins at tick `base`, after that many batches."""
        first, step = self.every
        stride = ((first - before) % step, step)
        return EpochWork(plan, base, self.items, self.batch_items, aligned=self.aligned, stride=stride)


class Scheduler:
    """Carries out a sequence of epochs for one consumer."""

    def __init__(
        self, plans: Iterator[EpochPlan], residency: Residency, builder: Builder, limits: Limits, processes: list[Any]
    ) -> None:
        self._plans = plans
        self._residency = residency
        self._builder = builder
        self._limits = limits
        self._processes = processes
        """A process for each thread, which runs the stages; empty: the threads run them."""
        # Re-entrant: a garbage collection inside a locked region may finalize this very run.
        self._lock = threading.RLock()
        self._cond = threading.Condition(self._lock)
        self._pid = os.getpid()
        self._threads: list[threading.Thread] = []
        self._starting = threading.Lock()
        self._stopped = False
        self._over = False
        """Whether the last batch is out."""
        self._failure: BaseException | None = None
        """What ended a thread: an internal error, raised in the consumer."""
        self._waiting = 0 if limits.workers else 1
        """Consumers that wait; one that has no workers waits in all that it does."""
        self._running = 0
        self._building = 0
        """Batches that are being built."""
        self._planning = False
        self._indexing = False
        self._ended = False
        self._next_base = 0
        self._spans: deque[Span] = deque()
        """Cut and not yet being built, in order."""
        self._open: dict[int, int] = {}
        """Span number -> first tick, of spans not yet gathered."""
        self._built: dict[int, Results | BaseException] = {}
        self._next_number = 0
        self._deliver = 0
        self._ready: deque[Built | Exception] = deque()
        self._all_batches = 0
        """Batches of the epochs planned so far, those that others build included."""
        self._cut_work = 0
        self._cut_step = 0
        self._returned: deque[int] = deque()
        self._cells: dict[int, int] = {}
        """Span number -> bytes of its decoded cells of variable shape, from before it is made until it is released."""
        self._num_short = 0
        """Threads that wait for room for such cells."""
        builder.room.wait = self._reserve

    # -- the consumer ---------------------------------------------------------------------------------------------

    def next(self) -> Built | None:
        """Return the next batch, or None after the last one; raises what went wrong on the way to it.

        The caller must stop the scheduler after an exception, KeyboardInterrupt included.
        """
        one: Built | Exception | None = None
        while one is None:  # another thread may take what this one has waited for
            if self._ready:  # asked first: Ctrl-C while an IndexError is handled would show a user both
                try:
                    one = self._ready.popleft()
                except IndexError:
                    continue
            elif not self._wait():  # outside the suppress block: errors raised here must not chain to an IndexError
                break
        if one is None:
            self.stop()
            if self._residency.is_tight:
                release_unused()  # what the threads have freed; new ones might not find it
            return None
        if isinstance(one, Built):
            return one
        try:
            raise one
        finally:
            del one  # see `_wait`

    @property
    def batch_size(self) -> int:
        """Items of a step."""
        return self._limits.batch_size

    def num_waiting(self) -> int:
        """Return how many batches are made and wait for the consumer."""
        with self._lock:
            made = sum(len(found) for found in self._built.values() if isinstance(found, list))
            return len(self._ready) + made

    def num_building(self) -> int:
        """Return how many batches are being built."""
        return self._building

    def _wait(self) -> bool:
        """Wait until something is ready; False at the end of the run, for every thread that asks."""
        if not self._threads and self._limits.workers and not self._stopped and not self._over:
            with self._starting:  # two consumers must not start two sets of them
                if not self._threads and not self._stopped and not self._over:
                    for process in self._processes:
                        process.start()  # before the threads: a forked process must not inherit a held lock
                    for index in range(self._limits.workers):
                        thread = OwnThread(target=self._work, args=(index,), name=f"penstock-{index}", daemon=True)
                        self._threads.append(thread)
                        thread.start()
        task: Callable[[int], None] | None = None
        found: Results | BaseException = []
        with self._lock:  # not `with self._cond`: its Python __enter__ could be interrupted with the lock taken
            self._waiting += 1
            if not self._running or self._num_short:
                self._cond.notify_all()  # threads that wait for room may now exceed the budget
            try:
                while self._deliver not in self._built:
                    if self._ready:
                        return True
                    if self._failure is not None:
                        raise self._failure
                    if self._over:
                        return False
                    if self._stopped:
                        raise LoaderClosed(AWAITED)
                    if self._ended and self._deliver == self._next_number and self._spans_left() is None:
                        self._over = True
                        return False
                    if not self._limits.workers:  # it does a task itself, below
                        task = self._pick()
                        if task is not None:
                            break
                        if not self._running:  # nor is another consumer doing one
                            raise LoaderClosed("the run ended before its last batch")
                    wait_in(self._lock, self._cond, _LOOK_S)
                else:
                    found = self._built.pop(self._deliver)
                    self._deliver += 1
            finally:
                self._waiting -= 1
            for number in [number for number in self._cells if number < self._deliver - 1]:
                self._residency.lent_bytes -= self._cells.pop(number)
            if not isinstance(found, BaseException):
                self._ready.extend(found)  # under the lock: who finds nothing left may stop the run
            self._cond.notify_all()
        if isinstance(found, BaseException):
            try:
                raise found
            finally:
                del found  # its traceback holds this frame: a cycle would keep chunks and pipes until a collection
        if task is not None:
            task(0)
        return True

    # -- threads --------------------------------------------------------------------------------------------------

    def _work(self, number: int) -> None:
        try:
            while True:
                with self._cond:
                    while (task := None if self._stopped else self._pick()) is None and not self._stopped:
                        self._cond.wait()
                if task is None:
                    return
                task(number)
                del task  # a bound span would keep its chunks alive while this thread waits
        except BaseException as error:  # noqa: BLE001 -- the consumer must not wait for a thread that is gone
            with self._cond:
                self._failure = error
                self._cond.notify_all()

    def stop(self, wait_s: float | None = None) -> None:
        """Stop the threads and wait for the calls they are in; safe to call twice and from a finalizer."""
        if os.getpid() != self._pid:
            return  # a forked child has no threads to stop, and its copy of the lock may never be released
        # Called in a locked region (by a garbage collection or a signal handler): our threads need the lock to end.
        inside = cast("Any", self._lock)._is_owned()
        with self._lock:
            if not self._stopped:  # called again inside these lines: the lock of an Event is not re-entrant
                self._stopped = True
                self._builder.halted.set()  # second: what is left of a halted span must never be noted
            self._cond.notify_all()
        for process in self._processes:
            process.close()  # first: a thread may be waiting for its process
        if not inside:
            deadline = None if wait_s is None else time.perf_counter() + wait_s
            threads, self._threads = self._threads, []
            for thread in threads:
                if thread is threading.current_thread():
                    continue
                with contextlib.suppress(RuntimeError):  # Ctrl-C came before it had started; it ends by itself
                    thread.join(None if deadline is None else max(0.0, deadline - time.perf_counter()))
        self._processes.clear()
        self._built.clear()
        self._ready.clear()
        self._spans.clear()
        self._residency.residents.clear()
        self._residency.works.clear()
        self._builder.pool.clear()
        self._builder.room.wait = go_on  # no cycle: what a run holds goes with it, not with a collection
        if self._builder.shelf is not None:
            self._builder.shelf.clear()

    # -- tasks: picked with the lock held, done without it --------------------------------------------------------

    def _pick(self) -> Callable[[int], None] | None:
        while self._returned:
            self._residency.lent_bytes -= self._returned.popleft()
        task = self._pick_build()
        if task is None and not self._spans:
            task = self._pick_index()
        task = task or self._pick_needed() or self._pick_index() or self._pick_plan()
        if task is None and (ahead := self._residency.read_ahead(tick=self._tick)) is not None:
            task = self._reading(ahead)
        if task is None and self._waiting and not self._running:
            task = self._pick_needed(force=True)
        if task is not None:
            self._running += 1
        return task

    @property
    def _tick(self) -> int:
        """First item that is not gathered yet."""
        if self._open:
            return min(self._open.values())
        work = self._spans_left()
        return self._next_base if work is None else work.base + work.start_of(self._cut_step)

    def _pick_build(self) -> Callable[[int], None] | None:
        if not self._spans or self._next_number - len(self._spans) - self._deliver >= self._limits.ahead_spans:
            return None
        span = self._spans[0]
        if span.chunks is None:
            return None
        chunks = self._loaded(span, span.chunks.tolist())
        if chunks is None:
            return None
        self._spans.popleft()
        self._building += span.end_step - span.first_step
        for index in chunks:
            self._residency.hold(span.work, index, span.work.base + span.hi)
        return lambda worker: self._do_build(span, chunks, worker)

    def _loaded(self, span: Span, indices: list[int]) -> dict[int, Chunk | LostChunk] | None:
        """Return the chunks of a span if all are loaded; asked after every read, so from the last one missing on."""
        while span.num_loaded < len(indices):
            if self._residency.chunk(span.work, indices[span.num_loaded]) is None:
                return None
            span.num_loaded += 1
        chunks: dict[int, Chunk | LostChunk] = {}
        for index in indices:
            loaded = self._residency.chunk(span.work, index)
            if loaded is None:  # left again for lack of room
                span.num_loaded = span.num_asked = 0
                return None
            chunks[index] = loaded
        return chunks

    def _pick_index(self) -> Callable[[int], None] | None:
        if self._indexing or len(self._spans) >= _INDEXED_AHEAD:
            return None
        span = self._cut()
        if span is None:
            return None
        self._indexing = True
        return lambda _: self._do_index(span)

    def _pick_needed(self, *, force: bool = False) -> Callable[[int], None] | None:
        for span in self._spans:
            if span.chunks is None:
                return None
            end, num_chunks = span.work.base + span.hi, len(span.chunks)
            while span.num_asked < num_chunks:
                index = int(span.chunks[span.num_asked])
                if self._residency.key(span.work, index) not in self._residency.residents:
                    read = self._residency.read_needed(span.work, index, end=end, force=force, tick=self._tick)
                    return None if read is None else self._reading(read)
                self._residency.hold(span.work, index, end)  # it must not leave again: it would not be requested again
                span.num_asked += 1
        return None

    def _pick_plan(self) -> Callable[[int], None] | None:
        if self._planning or self._ended or len(self._residency.works) - self._cut_work > 1:
            return None
        self._planning = True
        return lambda _: self._do_plan()

    def _reading(self, read: Read) -> Callable[[int], None]:
        return lambda _: self._do_read(read)

    # -- cutting epochs into spans ---------------------------------------------------------------------------------

    def _spans_left(self) -> EpochWork | None:
        """Return the epoch that the next span comes from; None if it is not planned yet."""
        works = self._residency.works
        while self._cut_work < len(works) and self._cut_step >= works[self._cut_work].num_batches:
            self._cut_step -= works[self._cut_work].num_batches
            self._cut_work += 1
        return works[self._cut_work] if self._cut_work < len(works) else None

    def _cut(self) -> Span | None:
        work = self._spans_left()
        if work is None:
            return None
        # The first spans are short so that the first batch comes soon.
        steps = min(self._limits.span_batches, 1 << min(self._next_number // 2, 30), work.num_batches - self._cut_step)
        lo, end = work.start_of(self._cut_step), self._cut_step + steps
        span = Span(work, self._next_number, self._cut_step, end, lo, work.end_of(end - 1))
        self._open[span.number] = work.base + lo
        self._spans.append(span)
        self._next_number += 1
        self._cut_step = end
        return span

    def _reserve(self, number: int, num_bytes: int) -> None:
        """Wait until there is room for the decoded cells of a span.

        Spans get it in their order, so that the one that the consumer waits for never waits for a later one.
        """
        if not num_bytes:
            return
        with self._lock:
            self._num_short += 1
            while not self._stopped and not self._has_room(number, num_bytes):
                wait_in(self._lock, self._cond, _LOOK_S)
            self._num_short -= 1
            self._cells[number] = num_bytes
            self._residency.lent_bytes += num_bytes
            self._residency.shrink(self._tick)
            self._cond.notify_all()

    def _has_room(self, number: int, num_bytes: int) -> bool:
        if any(one not in self._cells and one not in self._built for one in range(self._deliver, number)):
            return False
        if number == self._deliver and self._waiting:
            return True
        return sum(self._cells.values()) + num_bytes <= self._builder.room.all_bytes

    # -- doing: by the consumer itself where there are no workers, so `with self._lock` as in `_wait` --------------

    def _do_read(self, read: Read) -> None:
        loaded = self._builder.read(read.chunk, last=read.key[0] == self._limits.last_epoch)
        with self._lock:
            self._running -= 1
            if not self._stopped:
                self._residency.done(read, loaded)
            release = self._residency.release_is_due()
            self._cond.notify_all()
        del loaded
        if release:
            release_unused()

    def _do_index(self, span: Span) -> None:
        error: BaseException | None = None
        try:
            index_span(span, self._limits.num_chunks, positions=self._limits.positions)
        except BaseException as caught:  # noqa: BLE001 -- handed to the consumer
            error = caught
        with self._lock:
            self._running -= 1
            self._indexing = False
            if error is not None and span in self._spans:
                self._spans.remove(span)
                self._note(span, error)
            del error
            self._cond.notify_all()

    def _do_build(self, span: Span, chunks: dict[int, Chunk | LostChunk], worker: int) -> None:
        result: Results | BaseException
        try:
            process = self._processes[worker] if self._processes else None
            result = self._builder.build(span, chunks, views=self._limits.views, process=process)
        except BaseException as caught:  # noqa: BLE001 -- handed to the consumer, who meets it in order
            result = caught
        with self._lock:
            self._running -= 1
            self._building -= span.end_step - span.first_step
            if not self._stopped:
                self._note(span, result)
            del result  # an exception's traceback holds this frame, see `_wait`
            self._cond.notify_all()

    def _note(self, span: Span, result: Results | BaseException) -> None:
        self._built[span.number] = result
        self._open.pop(span.number, None)
        tick = self._tick
        for chunk in self._residency.leave(tick):
            if isinstance(chunk, Chunk):
                self._lend(chunk)
        works = self._residency.works
        while self._cut_work and works[0].base + works[0].plan.num_items <= tick:
            works.pop(0)
            self._cut_work -= 1

    def _lend(self, chunk: Chunk) -> None:
        """Count a chunk whose views may have gone out until the last of them is gone."""
        # Every column has its own memory; eight of them are watched for all, as 1,000 would cost milliseconds.
        some = chunk.parts[:: -(-len(chunk.parts) // 8)]
        bases = {id(base): base for part in some if (base := part.lent_base()) is not None}
        if not bases:
            return
        share = chunk.num_bytes // len(bases)
        self._residency.lent_bytes += share * len(bases)
        for base in bases.values():
            # A deque append takes no lock: this runs in whichever thread drops the last view.
            weakref.finalize(base, self._returned.append, share).atexit = False

    def _do_plan(self) -> None:
        plan: EpochPlan | None = None
        error: BaseException | None = None
        try:
            plan = next(self._plans, None)
        except BaseException as caught:  # noqa: BLE001 -- handed to the consumer
            error = caught
        with self._lock:
            self._running -= 1
            self._planning = False
            if plan is not None:
                work = self._limits.work(plan, self._next_base, self._all_batches)
                self._all_batches += work.all_batches
                self._residency.add(work)
                self._next_base += plan.num_items
            else:
                self._ended = True
            if error is not None:
                self._built[self._next_number] = error
                self._next_number += 1
            del error
            self._cond.notify_all()


def release_unused() -> None:
    """Give memory that Arrow has freed back to the system; costs 1 to 5 ms, and first touches later.

    Arrow's allocator keeps what a thread has freed for that thread, once more as much as is in use.
    """
    import pyarrow as pa

    pa.default_memory_pool().release_unused()
